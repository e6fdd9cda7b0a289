"""Programs against unit tests: what the readers of code datasets share."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from gradmass.rewards import Outcome, Verdict
from gradmass.rewards.blocks import CodeBlock
from gradmass.rewards.code import (
    CallTest,
    CodeProblem,
    CodeVerifier,
    Comparison,
    Executor,
    Test,
)
from gradmass.rewards.outputs import same_value
from gradmass.rewards.sandbox import Isolation
from gradmass.rewards.shared import shared_verifier
from gradmass.tasks.base import Problem
from gradmass.tasks.dataset import DatasetTask
from gradmass.types import UsageError

MAX_GOLDS = 3
"""Reference programs kept of a problem: some datasets have hundreds."""
IN_BLOCK = "\n\nAnswer with a Python 3 program in one ```python block."
READS_INPUT = "\n\nThe program reads standard input and prints to standard output."


@dataclass(frozen=True, slots=True)
class CodeData:
    """What a program is judged by.

    Args:
        where: File and row of the dataset.
        tests: The tests as a JSON list in the form ``CodeProblem.from_json`` reads; text, because
            parsed tests of a whole dataset do not fit in memory.
        entry_point: Function or method that the tests call; None where they give standard input.
        time_limit_s: Seconds a test may take, as the problem states them; 0 where it does not.
        memory_mb: Its memory limit in MiB; 0 where there is none.
        prelude: Code the problem gives: imports, helper functions, the head to complete.
        programs: Programs known to be right.
        packed: Tests as the dataset packs them, in place of ``tests``; unpacked when a program is
            judged.
        is_wrapped: Whether results are stored in lists of one, and right in either form.
    """

    where: str
    tests: str = field(repr=False)
    entry_point: str | None = None
    time_limit_s: float = 0.0
    memory_mb: int = 0
    prelude: str = field(default="", repr=False)
    programs: tuple[str, ...] = field(default=(), repr=False)
    packed: tuple[str, ...] = field(default=(), repr=False)
    is_wrapped: bool = False


@dataclass(frozen=True, kw_only=True)
class CodeTask(DatasetTask):
    """A dataset of programming problems, judged by unit tests in the sandbox.

    The program is the completion's code block, which ``code_block`` picks.
    """

    comparison: ClassVar[Comparison] = Comparison()
    """How the dataset compares outputs."""

    instruction: str = IN_BLOCK
    """Text behind the question in the prompt."""
    code_block: CodeBlock = "last"
    """Which code block of a completion is the program; whole: all of it is, without a block."""
    num_workers: int = 2
    """Programs that run at once."""
    isolation: Isolation = "bubblewrap"
    """How programs are kept apart from this machine. process limits what a program uses, not what
    it sees and changes: the files of whoever trains."""
    executor: Executor = "local"
    """Where programs run: on this machine, or on a ray cluster (see docs/verifiers.md)."""
    stop_at_first_failure: bool = True
    """Whether a program is done with at its first failed test."""
    time_limit_s: float = 6.0
    """Seconds that a test may take, unless the problem itself allows more."""
    memory_mb: int = 1024
    """MiB that a program may use, unless the problem itself allows more."""

    def __post_init__(self) -> None:
        """Refuse limits that no program keeps."""
        DatasetTask.__post_init__(self)
        place = f"task {self.name or type(self).__name__}"
        if not 0 < self.time_limit_s < float("inf"):
            raise UsageError(f"{place}: time_limit_s must be above 0, got {self.time_limit_s}")
        if self.memory_mb < 1 or self.num_workers < 1:
            raise UsageError(
                f"{place}: memory_mb and num_workers must be above 0, got {self.memory_mb} and "
                f"{self.num_workers}"
            )

    def tests(self, data: CodeData) -> list[dict[str, Any]]:
        """The tests of a problem, in the form ``CodeProblem.from_json`` reads.

        Raises:
            RowError: They do not decode, or there is none.
        """
        found: list[dict[str, Any]] = json.loads(data.tests)
        return found

    def code_problem(self, data: CodeData) -> CodeProblem:
        """Tests and limits of a problem as the verifier takes them."""
        problem = CodeProblem.from_json(
            {
                "tests": self.tests(data),
                "entry_point": data.entry_point,
                "time_limit_s": max(self.time_limit_s, data.time_limit_s),
                "memory_mb": max(self.memory_mb, data.memory_mb),
                "prelude": data.prelude,
            }
        )
        checker = unwrapped if data.is_wrapped else None
        return replace(problem, comparison=self.comparison, checker=checker)

    def verify_all(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        """Judge all programs in the sandbox; one whose tests do not decode is unscorable."""
        decoded: dict[str, CodeProblem | Verdict] = {}
        for problem in problems:
            if problem.id not in decoded:
                try:
                    decoded[problem.id] = self.code_problem(problem.data)
                except UsageError as error:
                    decoded[problem.id] = Verdict(Outcome.ERROR, str(error))
        asked, answers = [], []
        for problem, completion in zip(problems, completions, strict=True):
            found = decoded[problem.id]
            if isinstance(found, CodeProblem):
                asked.append(found)
                answers.append(self.program(problem.data, completion))
        verifier = shared_verifier(
            CodeVerifier,
            num_workers=self.num_workers,
            isolation=self.isolation,
            stop_at_first_failure=self.stop_at_first_failure,
            code_block=self.code_block,
            executor=self.executor,
        )
        judged = iter(verifier.verify(asked, answers))
        verdicts = [decoded[problem.id] for problem in problems]
        return [found if isinstance(found, Verdict) else next(judged) for found in verdicts]

    def program(self, data: CodeData, completion: str) -> str:
        """The completion as the verifier shall see it."""
        return completion

    def known_good(self) -> tuple[Problem, str] | None:
        """Print the square of a number; None where a reward function of the user's judges."""
        if self.reward:
            return None
        data = CodeData("known-good program", '[{"stdin": "3", "stdout": "9"}]')
        program = "print(int(input()) ** 2)"
        return Problem("square", "", data), self.answer(program)

    def answer(self, program: str) -> str:
        """A program as the completion that gives it."""
        return program if self.code_block == "whole" else in_block(program)

    def golds(self, problem: Problem) -> tuple[str, ...]:
        """The reference programs, as completions."""
        return tuple(self.answer(program) for program in problem.data.programs)

    def defect(self, problem: Problem) -> str | None:
        """Why there are no tests, where there are none."""
        try:
            self.code_problem(problem.data)
        except UsageError as error:
            return str(error)
        return None


def unwrapped(test: Test, value: Any) -> bool:
    """Whether a result is the expected one, or what its list of one holds."""
    assert isinstance(test, CallTest)
    (bare,) = test.expected
    return any(same_value(value, form, Comparison()) for form in (test.expected, bare))


def in_block(program: str) -> str:
    """A program as a completion."""
    return f"```python\n{program.rstrip()}\n```"
