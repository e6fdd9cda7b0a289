"""Competitive programming: LiveCodeBench, CodeContests, TACO, APPS."""

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.rewards.code import Comparison
from gradmass.tasks.base import register_task
from gradmass.tasks.code import MAX_GOLDS, READS_INPUT, CodeData, CodeTask
from gradmass.tasks.dataset import Entry
from gradmass.tasks.rows import Row, RowError

PYTHON3 = 3
"""CodeContests' number of the language."""
IMPORTED = (
    "string",
    "re",
    "datetime",
    "collections",
    "heapq",
    "bisect",
    "copy",
    "math",
    "random",
    "statistics",
    "itertools",
    "functools",
    "operator",
    "io",
    "sys",
    "json",
    "builtins",
    "typing",
)
IMPORTS = "\n".join(
    [f"from {name} import *" for name in IMPORTED]
    + [f"import {name}" for name in IMPORTED]
    + ["sys.setrecursionlimit(50000)", ""]
)
"""What stands before every program in LiveCodeBench's own grader, and before functions in those of
TACO and APPS: answers rely on it. Source: ``lcb_runner/evaluation/testing_util.py``."""
MAX_TESTS_BYTES = 1 << 30
"""Longest decoded tests of one problem: a short text can decompress to any length."""


def header(starter_code: str) -> str:
    """What a prompt says where the answer starts from given code."""
    return f"\n\nStart from this code:\n```python\n{starter_code.strip()}\n```"


@register_task("livecodebench")
@dataclass(frozen=True, kw_only=True)
class LiveCodeBench(CodeTask):
    """LiveCodeBench's code generation (livecodebench/code_generation_lite): test.jsonl and so on.

    Public tests come first, then private ones. Those are JSON, or compressed and pickled; a pickle
    is read for a text alone, nothing in it is executed. With ``func_name`` in the metadata, tests
    call a function or a method of ``Solution``, else they give standard input. ``question_id`` is
    the problem's id. A benchmark: by default all of it is the test split.
    """

    columns: ClassVar[Collection[str] | None] = frozenset(
        (
            "question_id",
            "question_content",
            "starter_code",
            "public_test_cases",
            "private_test_cases",
            "metadata",
        )
    )

    test_share: float = 1.0
    """Share of questions that the hash holds out, from 0 to 1 (1: all are test problems)."""

    def entry(self, row: Row) -> Entry:
        """A problem; its tests stay encoded."""
        function = row.json("metadata", dict).get("func_name")
        starter = row["starter_code"] or ""
        packed = tuple(str(row[f"{name}_test_cases"] or "") for name in ("public", "private"))
        if not any(text.strip() for text in packed):
            raise row.error("has no tests")
        data = CodeData(row.where, "", entry_point=function, packed=packed, prelude=IMPORTS)
        form = READS_INPUT if function is None else header(starter)
        return Entry(row.text("question_content"), data, row.text("question_id"), form=form)

    def tests(self, data: CodeData) -> list[dict[str, Any]]:
        """Public tests, then private ones."""
        if not data.packed:
            return super().tests(data)
        cases = []
        for name, text in zip(("public", "private"), data.packed, strict=True):
            if text.strip():
                try:
                    cases += decode_cases(text)
                except ValueError as error:
                    raise RowError(
                        f"{data.where}: its {name} tests do not decode: {error}"
                    ) from error
        if not cases:
            raise RowError(f"{data.where}: has no tests")
        if data.entry_point is None:
            return [{"stdin": case["input"], "stdout": case["output"]} for case in cases]
        try:
            return [
                {
                    "args": [
                        json.loads(line) for line in case["input"].split("\n") if line.strip()
                    ],
                    "expected": json.loads(case["output"]),
                }
                for case in cases
            ]
        except ValueError as error:
            raise RowError(f"{data.where}: arguments of its tests are no JSON: {error}") from error


class TextOnly(pickle.Unpickler):
    """Reads pickles of plain values; anything that would import, and so run code, is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse."""
        raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}")


def decode_cases(text: str) -> list[dict[str, str]]:
    """Test cases from JSON, or from base64 of zlib of a pickle of JSON.

    Raises:
        ValueError: It is neither, or the cases have another form.

    >>> decode_cases('[{"input": "1", "output": "2", "testtype": "stdin"}]')
    [{'input': '1', 'output': '2', 'testtype': 'stdin'}]
    """
    try:
        cases: list[dict[str, str]] = json.loads(text)
    except ValueError:
        cases = json.loads(_unpack(text))
    is_list = isinstance(cases, list) and all(isinstance(case, dict) for case in cases)
    if not is_list or not all(
        isinstance(case.get(key), str) for case in cases for key in ("input", "output")
    ):
        raise ValueError("a list of objects with the texts input and output is needed")
    return cases


def _unpack(text: str) -> str:
    try:
        packed = base64.b64decode(text, validate=True)
        unpacker = zlib.decompressobj()
        pickled = unpacker.decompress(packed, MAX_TESTS_BYTES)
        if not unpacker.eof:
            raise ValueError(f"they are cut, or above {MAX_TESTS_BYTES} bytes")
        value = TextOnly(io.BytesIO(pickled)).load()
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"neither JSON nor packed ({error})") from error
    except Exception as error:  # a broken pickle raises anything
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not isinstance(value, str):
        raise ValueError(f"the pickle holds no text but a {type(value).__name__}")
    return value


@register_task("code_contests")
@dataclass(frozen=True, kw_only=True)
class CodeContests(CodeTask):
    """CodeContests (deepmind/code_contests) in its Parquet form.

    Tests: public, private, generated, in this order. A problem's own time and memory limits hold
    where they are above the task's. Outputs are compared as in the dataset's own tester: token by
    token whatever the lines and the case, numbers within 1e-5; but integers exactly. Python 3
    solutions are the references.
    """

    comparison: ClassVar[Comparison] = Comparison(
        tolerance=1e-5, match_lines=False, match_case=False
    )

    columns: ClassVar[Collection[str] | None] = frozenset(
        (
            "name",
            "description",
            "public_tests",
            "private_tests",
            "generated_tests",
            "solutions",
            "time_limit",
            "memory_limit_bytes",
            "input_file",
            "output_file",
        )
    )

    time_limit_s: float = 10.0
    """Seconds that a test may take, unless the problem itself allows more."""

    def entry(self, row: Row) -> Entry:
        """A problem that reads standard input."""
        for name in ("input_file", "output_file"):
            if row.get(name):
                raise row.error(f"uses the file {row[name]!r} in place of standard input or output")
        cases = [
            {"stdin": stdin, "stdout": stdout}
            for name in ("public_tests", "private_tests", "generated_tests")
            for stdin, stdout in zip(*parallel(row, name, "input", "output"), strict=True)
        ]
        if not cases:
            raise row.error("has no tests")
        limit = row.get("time_limit")
        languages, programs = parallel(row, "solutions", "language", "solution")
        python = [p for code, p in zip(languages, programs, strict=True) if code == PYTHON3]
        memory = row.get("memory_limit_bytes")
        data = CodeData(
            row.where,
            json.dumps(cases),
            time_limit_s=0.0 if limit is None else limit["seconds"] + limit["nanos"] / 1e9,
            memory_mb=-(-(memory or 0) // 2**20),
            programs=tuple(python[:MAX_GOLDS]),
        )
        return Entry(row.text("description"), data, form=READS_INPUT)


def parallel(row: Row, name: str, *keys: str) -> list[list[Any]]:
    """Lists of equal length in a column that is an object of them.

    Raises:
        RowError: They are missing, or of different lengths.
    """
    value = row[name]
    lists = [value.get(key) if isinstance(value, dict) else None for key in keys]
    found = [item for item in lists if isinstance(item, list)]
    if len(found) < len(keys) or len({len(item) for item in found}) > 1:
        raise row.error(f"field {name!r} must hold the lists {' and '.join(keys)}, equally long")
    return found


@dataclass(frozen=True, kw_only=True)
class InputOutputTask(CodeTask):
    """A dataset whose column ``input_output`` is a JSON text of inputs and outputs.

    With ``fn_name`` the tests call a function (or a method of ``Solution``) with each input as its
    arguments. Else inputs and outputs are texts, or lists of lines. A function's outputs are stored
    bare or in a list of one; where they are all lists of one, either form of the result is right.
    """

    columns: ClassVar[Collection[str] | None] = frozenset(
        ("question", "solutions", "starter_code", "input_output")
    )

    time_limit_s: float = 4.0
    """Seconds that a test may take, unless the problem itself allows more."""

    def entry(self, row: Row) -> Entry:
        """A problem of either kind."""
        if not row["input_output"]:
            raise row.error("has no tests")
        stored = row.json("input_output", dict)
        inputs, outputs = stored.get("inputs"), stored.get("outputs")
        if not (isinstance(inputs, list) and isinstance(outputs, list)):
            raise row.error("field 'input_output' must hold the lists inputs and outputs")
        if len(inputs) != len(outputs):
            raise row.error(f"has {len(inputs)} inputs and {len(outputs)} outputs")
        if not inputs:
            raise row.error("has no tests")
        function = stored.get("fn_name")
        make = call_tests if function else input_tests
        is_wrapped = all(isinstance(wanted, list) and len(wanted) == 1 for wanted in outputs)
        data = CodeData(
            row.where,
            json.dumps(make(inputs, outputs)),
            entry_point=function or None,
            prelude=IMPORTS if function else "",
            is_wrapped=bool(function) and is_wrapped,
            programs=tuple(row.json("solutions", list)[:MAX_GOLDS] if row["solutions"] else ()),
        )
        starter = row.get("starter_code")
        form = READS_INPUT
        if function:
            form = header(starter) if starter else f"\n\nWrite the function `{function}`."
        return Entry(row.text("question"), data, form=form)


def input_tests(inputs: list[Any], outputs: list[Any]) -> list[dict[str, Any]]:
    r"""Tests that give standard input, from texts or lists of lines.

    >>> input_tests([["1", "2"]], ["3\n"])
    [{'stdin': '1\n2', 'stdout': '3\n'}]
    """
    return [
        {"stdin": lines(given), "stdout": lines(wanted)}
        for given, wanted in zip(inputs, outputs, strict=True)
    ]


def lines(text: Any) -> str:
    """A text, or a list of lines as one."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def call_tests(inputs: list[Any], outputs: list[Any]) -> list[dict[str, Any]]:
    """Tests that call a function with each input as its arguments."""
    return [
        {"args": given if isinstance(given, list) else [given], "expected": wanted}
        for given, wanted in zip(inputs, outputs, strict=True)
    ]


@register_task("taco")
@dataclass(frozen=True, kw_only=True)
class Taco(InputOutputTask):
    """TACO (BAAI/TACO): JSON Lines or Parquet; the stated limits are not those of Python."""


@register_task("apps")
@dataclass(frozen=True, kw_only=True)
class Apps(InputOutputTask):
    """APPS (codeparrot/apps). Some rows have no tests: ``unusable = "skip"`` leaves them out."""
