"""Judge programs on a ray cluster: a process for each judge, with its sandboxes beside it."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from gradmass.rewards.code_judge import Judge
from gradmass.rewards.code_problem import CodeProblem
from gradmass.rewards.sandbox import Isolation, SandboxLost, Worker
from gradmass.rewards.verdict import Verdict
from gradmass.types import UsageError

START_LIMIT_S = 60.0
"""Longest wait for a process and its first sandbox, before the cluster counts as full."""


def connect() -> None:
    """Join the ray cluster of this process, of ``RAY_ADDRESS``, or a new one on this machine.

    Raises:
        UsageError: ray is not installed, or the cluster does not answer.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UsageError(
            f"executor 'ray' needs {error.name}, which is not installed: "
            "pip install 'gradmass[ray]'"
        ) from error
    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, ValueError, RuntimeError) as error:
            (line, *_) = str(error).splitlines() or [type(error).__name__]
            raise UsageError(f"there is no ray cluster to judge programs on: {line}") from error


class RayWorker:
    """A process of the cluster that judges programs, one at a time, on one of its processors.

    Args:
        isolation: As in ``Worker``, on the machine it is on.
        packages: As in ``Worker``.
        stop_at_first_failure: As in ``Judge``.

    Raises:
        UsageError: Bubblewrap or a package is not installed on that machine.
        SandboxLost: The cluster has no free processor, or the sandbox does not start.
    """

    def __init__(
        self, isolation: Isolation, packages: Sequence[str], stop_at_first_failure: bool
    ) -> None:
        import ray

        # No restarts by ray: whoever uses this knows whether to try again.
        remote = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(_Remote)
        self._actor: Any = remote.remote(isolation, tuple(packages), stop_at_first_failure)
        try:
            self._ask(self._actor.prepare, timeout_s=START_LIMIT_S)
        except BaseException:
            self.close()
            raise

    def judge(self, problem: CodeProblem, program: str) -> Verdict:
        """Run a program on the tests of a problem.

        Raises:
            SandboxLost: As in ``Judge``; or the process or its machine is gone.
        """
        verdict: Verdict = self._ask(self._actor.judge, problem, program)
        return verdict

    def interrupt(self) -> None:
        """End the process, and its sandboxes with it."""
        import ray

        if ray.is_initialized():  # else it ended with the connection
            ray.kill(self._actor)

    close = interrupt

    def forget(self) -> None:
        """Do nothing: a fork has no connection to the cluster."""

    def _ask(self, method: Any, *arguments: Any, timeout_s: float | None = None) -> Any:
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            return ray.get(method.remote(*arguments), timeout=timeout_s)
        except RayTaskError as error:
            # What was raised there, without the page of text that ray makes of it.
            raise error.cause from None
        except GetTimeoutError as error:
            num_free = ray.available_resources().get("CPU", 0)
            num_cpus = ray.cluster_resources().get("CPU", 0)
            raise SandboxLost(
                f"no ray worker started within {START_LIMIT_S:g} s: each needs a CPU, and "
                f"{num_free:g} of the cluster's {num_cpus:g} are free"
            ) from error
        except RayError as error:
            raise SandboxLost(f"the ray worker is gone ({type(error).__name__})") from error


class RayJudge:
    """What ``Judge`` is here, there.

    Args:
        start: Starts a worker.
    """

    def __init__(self, start: Callable[[], RayWorker]) -> None:
        self._start = start
        self._worker: RayWorker | None = None

    def prepare(self) -> RayWorker:
        """Start the worker, if it does not run yet."""
        self._worker = self._worker or self._start()
        return self._worker

    def judge(self, problem: CodeProblem, program: str) -> Verdict:
        """Run a program on the tests of a problem; raises as ``RayWorker.judge``."""
        return self.prepare().judge(problem, program)

    def discard(self) -> None:
        """End the worker; the next program gets a new one."""
        if self._worker is not None:
            self._worker.close()
        self._worker = None


class _Remote:
    """What runs on the cluster: the judge of one thread, in the main thread of its process."""

    def __init__(
        self, isolation: Isolation, packages: Sequence[str], stop_at_first_failure: bool
    ) -> None:
        self._judge = Judge(
            lambda: Worker(isolation, packages), stop_at_first_failure=stop_at_first_failure
        )

    def prepare(self) -> None:
        self._judge.prepare()

    def judge(self, problem: CodeProblem, program: str) -> Verdict:
        try:
            return self._judge.judge(problem, program)
        except BaseException:
            self._judge.discard()
            raise
