"""Verdicts on programs: run them in sandboxes against the tests of their problems."""

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Literal, get_args

from gradmass.rewards.blocks import CodeBlock, find_program
from gradmass.rewards.code_judge import Judge
from gradmass.rewards.code_pool import CLOSED, JudgeLike, JudgePool
from gradmass.rewards.code_problem import (
    AssertTest,
    CallTest,
    Checker,
    CodeProblem,
    StdinTest,
    Test,
)
from gradmass.rewards.code_ray import RayJudge, RayWorker, connect
from gradmass.rewards.forks import watch_forks
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
    "Executor",
    "StdinTest",
    "Test",
]

Executor = Literal["local", "ray"]
"""Where sandboxes are: on this machine, or on those of a ray cluster."""

NUM_TRIES = 2
"""A sandbox that is lost says nothing about the program in it: once more, in a new one."""


class CodeVerifier:
    r"""Judges programs in a pool of sandboxes; several threads may use it at once.

    A fork of the process, such as a worker of a data loader, gets sandboxes of its own when it
    judges; those of the process it was forked from stay as they are.

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
        executor: "local"; or "ray", which judges by the same functions in ``num_workers`` processes
            of a ray cluster, a CPU each: the one this process is connected to, that of the variable
            RAY_ADDRESS, or a new one on this machine. Every machine needs this package and
            bubblewrap. A fork of the process cannot judge.

    Raises:
        UsageError: An argument is out of range; bubblewrap, ray or a package is not installed;
            sandboxes do not start here; the cluster has too few free CPUs.

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

    _close: "weakref.finalize[Any, Any]"

    def __init__(
        self,
        num_workers: int = 2,
        isolation: Isolation = "bubblewrap",
        stop_at_first_failure: bool = True,
        code_block: CodeBlock = "last",
        packages: Sequence[str] = ("numpy",),
        executor: Executor = "local",
    ) -> None:
        if num_workers < 1:
            raise UsageError(f"num_workers must be at least 1, got {num_workers}")
        for name, value, known in (
            ("isolation", isolation, get_args(Isolation)),
            ("code_block", code_block, get_args(CodeBlock)),
            ("executor", executor, get_args(Executor)),
        ):
            if value not in known:
                raise UsageError(f"{name} {value!r} is not one of {', '.join(known)}")
        self._settings: dict[str, Any] = {
            "num_workers": num_workers,
            "isolation": isolation,
            "stop_at_first_failure": stop_at_first_failure,
            "code_block": code_block,
            "packages": list(packages),
            "executor": executor,
        }
        self._code_block = code_block
        if executor == "ray":
            connect()
        self._open()
        try:
            self._prepare()
        except SandboxLost as error:
            self.close()
            raise UsageError(str(error)) from error
        except BaseException:
            self.close()
            raise
        watch_forks(self)

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
            UsageError: The numbers differ; the verifier is closed, or was closed meanwhile; it is
                one of a ray cluster, in a fork of its process.
        """
        if len(problems) != len(completions):
            raise UsageError(f"{len(problems)} problems for {len(completions)} completions")
        if self._is_fork:
            raise UsageError(
                "a verifier with executor 'ray' cannot judge in a fork of its process: make it "
                "there, or start processes by spawn"
            )
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
            verdicts = [item if isinstance(item, Verdict) else item.result() for item in pending]
        except CancelledError as error:
            raise UsageError(CLOSED) from error
        finally:
            for item in pending:
                if isinstance(item, Future):
                    item.cancel()
        if not self._close.alive:
            raise UsageError(CLOSED)
        return verdicts

    def close(self) -> None:
        """End all sandboxes, and what still runs in them; a batch under way is lost.

        From any thread; closing twice is fine.
        """
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

    def after_fork(self) -> None:
        """Let go of the sandboxes of the process this one was forked from."""
        if not self._close.alive:
            return
        self._close.detach()
        self._pool.forget()
        if self._settings["executor"] == "ray":
            self._is_fork = True
        else:
            self._open()

    def _open(self) -> None:
        """Make a pool, which starts sandboxes when it is asked to."""
        settings = self._settings
        isolation, packages = settings["isolation"], settings["packages"]
        stops_early = settings["stop_at_first_failure"]
        self._is_fork = False
        self._pool: JudgePool[Any] = (
            JudgePool(
                settings["num_workers"],
                lambda: RayWorker(isolation, packages, stops_early),
                RayJudge,
            )
            if settings["executor"] == "ray"
            else JudgePool(
                settings["num_workers"],
                lambda: Worker(isolation, packages),
                lambda start: Judge(start, stop_at_first_failure=stops_early),
            )
        )
        self._close = weakref.finalize(self, self._pool.close)

    def _prepare(self) -> None:
        """Start a sandbox; on a cluster one of every worker, so that too few CPUs show at once."""
        num = self._settings["num_workers"] if self._settings["executor"] == "ray" else 1
        barrier = threading.Barrier(num)

        def prepare(judge: JudgeLike) -> None:
            barrier.wait()  # each thread takes one
            judge.prepare()

        for started in [self._pool.submit(prepare) for _ in range(num)]:
            started.result()


def _judging(problem: CodeProblem, program: str) -> Callable[[JudgeLike], Verdict]:
    def task(judge: JudgeLike) -> Verdict:
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
