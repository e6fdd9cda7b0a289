"""Verdicts on programs: run them in sandboxes against the tests of their problems."""

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar, get_args

from gradmass.rewards.blocks import CodeBlock, find_program
from gradmass.rewards.code_judge import Judge
from gradmass.rewards.code_problem import (
    AssertTest,
    CallTest,
    Checker,
    CodeProblem,
    StdinTest,
    Test,
)
from gradmass.rewards.outputs import Comparison
from gradmass.rewards.sandbox import Isolation, SandboxLost, Worker
from gradmass.rewards.verdict import Outcome, Verdict
from gradmass.types import UsageError

__all__ = [
    "AssertTest",
    "CallTest",
    "Checker",
    "CodeProblem",
    "CodeVerifier",
    "Comparison",
    "StdinTest",
    "Test",
]

T = TypeVar("T")

NUM_TRIES = 2
"""A sandbox that is lost says nothing about the program in it: once more, in a new one."""


class CodeVerifier:
    r"""Judges programs in a pool of sandboxes; several threads may use it at once.

    A verdict is *right* if the program passes all tests; *unparsed* if the completion has no code
    block; *timeout* if a test takes longer than its limit; *error* if the sandbox failed, which
    says nothing of the program; *wrong* in every other case. A crash, an early exit, too much
    memory or output is wrong, and ``detail`` says which.

    Args:
        num_workers: Programs judged at the same time, at least 1.
        isolation: "bubblewrap"; or "process", which limits what a program can use but not what it
            can see and change: the files of the user that runs this.
        stop_at_first_failure: Skip the tests after the first that is not passed.
        code_block: Which code block of a completion is the program: "last", "first", "longest", or
            "whole" for completions that are nothing else (see ``find_program``).
        packages: Installed distributions that programs may import besides the standard library.

    Raises:
        UsageError: An argument is out of range; bubblewrap or a package is not installed; sandboxes
            do not start here.

    >>> tests = [{"args": [1, 2], "expected": 3}, {"args": ["a", "b"], "expected": "ab"}]
    >>> problem = CodeProblem.from_json({"tests": tests, "entry_point": "add"})
    >>> with CodeVerifier(num_workers=1) as verifier:
    ...     answers = [f"```python\ndef add(a, b): return {x}\n```" for x in ("a + b", "3")]
    ...     verdicts = verifier.verify([problem, problem], answers)
    >>> [str(verdict.outcome) for verdict in verdicts]
    ['right', 'wrong']
    >>> verdicts[1].detail
    "test 2 of 2: returned 3, not 'ab'"
    """

    def __init__(
        self,
        num_workers: int = 2,
        isolation: Isolation = "bubblewrap",
        stop_at_first_failure: bool = True,
        code_block: CodeBlock = "last",
        packages: Sequence[str] = ("numpy",),
    ) -> None:
        if num_workers < 1:
            raise UsageError(f"num_workers must be at least 1, got {num_workers}")
        for name, value, known in (
            ("isolation", isolation, get_args(Isolation)),
            ("code_block", code_block, get_args(CodeBlock)),
        ):
            if value not in known:
                raise UsageError(f"{name} {value!r} is not one of {', '.join(known)}")
        self._settings = {
            "num_workers": num_workers,
            "isolation": isolation,
            "stop_at_first_failure": stop_at_first_failure,
            "code_block": code_block,
            "packages": list(packages),
        }
        self._code_block = code_block
        self._pool = _Pool(num_workers, isolation, tuple(packages), stop_at_first_failure)
        self._close = weakref.finalize(self, self._pool.close)
        try:
            self._pool.submit(lambda judge: judge.prepare()).result()
        except SandboxLost as error:
            self.close()
            raise UsageError(str(error)) from error
        except UsageError:
            self.close()
            raise

    @property
    def settings(self) -> dict[str, Any]:
        """How programs are judged, for a run's record; plain JSON."""
        return dict(self._settings)

    def verify(self, problems: Sequence[CodeProblem], completions: Sequence[str]) -> list[Verdict]:
        """Judge completions, each by the problem at its position.

        Args:
            problems: As many as completions.
            completions: What the model wrote.

        Returns:
            A verdict for each completion, in their order; none depends on another.

        Raises:
            UsageError: The numbers differ, or the verifier is closed.
        """
        if len(problems) != len(completions):
            raise UsageError(f"{len(problems)} problems for {len(completions)} completions")
        if not self._close.alive:
            raise UsageError("this verifier is closed")
        pending: list[Future[Verdict] | Verdict] = []
        for problem, completion in zip(problems, completions, strict=True):
            program = find_program(completion, self._code_block, problem.entry_point)
            if program is None:
                pending.append(
                    Verdict(Outcome.UNPARSED, "no code block", 0.0, 0, len(problem.tests))
                )
            else:
                pending.append(self._pool.submit(_judging(problem, program)))
        try:
            return [item if isinstance(item, Verdict) else item.result() for item in pending]
        finally:
            for item in pending:
                if isinstance(item, Future):
                    item.cancel()

    def close(self) -> None:
        """End all sandboxes, and what still runs in them."""
        self._close()

    def __enter__(self) -> "CodeVerifier":
        """Use it in a with block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all sandboxes."""
        self.close()


class _Pool:
    """Threads, each with its own judge and thus its own sandboxes."""

    def __init__(
        self, num_workers: int, isolation: Isolation, packages: Sequence[str], stops_early: bool
    ) -> None:
        # Bubblewrap ends its sandbox with the thread that started it: these live until the end.
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="gradmass-sandbox")
        self._isolation, self._packages = isolation, packages
        self._stops_early = stops_early
        self._own = threading.local()
        self._judges: list[Judge] = []
        self._closing = threading.Event()

    def submit(self, task: Callable[[Judge], T]) -> "Future[T]":
        """Run a task in one of the threads, with its judge."""
        return self._threads.submit(lambda: task(self._judge()))

    def close(self) -> None:
        self._closing.set()
        for judge in list(self._judges):
            judge.interrupt()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for judge in self._judges:
            judge.discard()

    def _judge(self) -> Judge:
        if not hasattr(self._own, "judge"):
            self._own.judge = Judge(self._start, stop_at_first_failure=self._stops_early)
            self._judges.append(self._own.judge)
        judge: Judge = self._own.judge
        return judge

    def _start(self) -> Worker:
        if self._closing.is_set():
            raise SandboxLost("the verifier is closed")
        worker = Worker(self._isolation, self._packages)
        if self._closing.is_set():  # while it started
            worker.close()
            raise SandboxLost("the verifier is closed")
        return worker


def _judging(problem: CodeProblem, program: str) -> Callable[[Judge], Verdict]:
    def task(judge: Judge) -> Verdict:
        reason: Exception | None = None
        for _ in range(NUM_TRIES):
            try:
                return judge.judge(problem, program)
            except (SandboxLost, OSError, UsageError) as error:
                reason = error
                judge.discard()
            except Exception as error:
                # Such as a message that is none: of this program alone, not of its batch.
                judge.discard()
                reason = RuntimeError(f"{type(error).__name__}: {error}")
                break
        return Verdict(Outcome.ERROR, f"sandbox: {reason}", num_tests=len(problem.tests))

    return task
