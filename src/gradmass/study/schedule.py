"""Make the runs of a study, several at a time, each after the one whose trace it replays."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gradmass.study.design import Study
from gradmass.study.execute import (
    Job,
    Process,
    RunInterrupted,
    execute,
    job_of,
    remove_run,
)
from gradmass.study.plan import PlannedRun, source_of, traced_as
from gradmass.study.results import Result, read_results, write_result
from gradmass.types import UsageError

Submit = Callable[[Job], "Future[Result]"]


class Executor(Protocol):
    """Where runs are made."""

    num_jobs: int
    """Runs at a time."""

    def submit(self, job: Job) -> "Future[Result]":
        """Start a run."""

    def stop(self) -> None:
        """Ask the runs under way to save where they are, and end."""

    def close(self) -> None:
        """Give back what was taken; runs have ended."""


class LocalExecutor:
    """Processes on this machine.

    Args:
        num_jobs: Processes at a time.
        folder: Where unfinished runs are kept.
    """

    def __init__(self, num_jobs: int, folder: Path) -> None:
        self.num_jobs = num_jobs
        self._threads = ThreadPoolExecutor(num_jobs, thread_name_prefix="study")
        self._processes: list[Process] = []
        self._execute = partial(execute, folder=folder, on_start=self._processes.append)

    def submit(self, job: Job) -> "Future[Result]":
        """Start a run in a process of its own."""
        return self._threads.submit(self._execute, job)

    def stop(self) -> None:
        """Ask each process once; a second time would kill it."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown()


class RayExecutor:
    """Nodes of a Ray cluster, one CPU a run; a run that breaks off starts again from its beginning.

    Args:
        num_jobs: Runs at a time; 0 for as many as the cluster has CPUs.
        address: Of the cluster; None for the one in ``RAY_ADDRESS``, or else this machine.
    """

    def __init__(self, num_jobs: int = 0, address: str | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise UsageError("--executor ray needs ray: pip install ray") from error
        ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
        resources = ray.cluster_resources()
        self.num_jobs = num_jobs or max(1, int(resources.get("CPU", 1)))
        self._references: list[Any] = []
        self._ray, self._remote = ray, ray.remote(num_cpus=1, max_retries=2)(_execute_on_node)

    def submit(self, job: Job) -> "Future[Result]":
        """Queue a run on the cluster."""
        self._references.append(self._remote.remote(job))
        future: Future[Result] = self._references[-1].future()
        return future

    def stop(self) -> None:
        """Cancel what is queued or under way."""
        for reference in self._references:
            self._ray.cancel(reference, force=True)

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()


def _execute_on_node(job: Job) -> Result:
    return execute(job)


class Scheduler:
    """Makes runs and keeps their results.

    Args:
        study: The study.
        out: Folder of the results, with unfinished runs in ``work``.
        executor: Where runs are made.
        on_end: Called with each run that ended, and its result or why it has none.
    """

    def __init__(
        self,
        study: Study,
        out: Path,
        executor: Executor,
        on_end: Callable[[PlannedRun, Result | str], Any],
    ) -> None:
        self._study, self._out, self._executor, self._on_end = study, out, executor, on_end
        self._running: dict[Future[Result], PlannedRun] = {}
        self.is_interrupted = False

    @property
    def work(self) -> Path:
        """Where unfinished runs are kept."""
        return self._out / "work"

    @property
    def running(self) -> list[PlannedRun]:
        """Runs that are being made."""
        return list(self._running.values())

    def stop(self) -> None:
        """Start nothing more, and wait until what is under way has saved where it is."""
        self.is_interrupted = True
        self._executor.stop()
        self.make([], lambda: None)

    def make(
        self, runs: Sequence[PlannedRun], on_tick: Callable[[], Any], tick_s: float = 1.0
    ) -> tuple[dict[PlannedRun, Result], dict[PlannedRun, str]]:
        """Make those of the runs that are not there.

        Args:
            runs: Which, in the order in which they are started.
            on_tick: Called every ``tick_s`` seconds.
            tick_s: Seconds.

        Returns:
            All results, and for each run without one the reason. Less than all where a run was
            interrupted: then no more is started, and those under way are waited for.
        """
        done = read_results(self._out, runs)
        pending = [run for run in runs if run not in done]
        failed: dict[PlannedRun, str] = {}
        while (pending and not self.is_interrupted) or self._running:
            if not self.is_interrupted:
                self._start(pending, done, failed)
                if not self._running:
                    break  # what is left replays runs that nobody makes
            ended, _ = wait(self._running, timeout=tick_s, return_when=FIRST_COMPLETED)
            for future in ended:
                self._end(future, done, failed)
            on_tick()
        if not self.is_interrupted:
            for run in pending:
                failed[run] = "the run it replays is not there"
                self._on_end(run, failed[run])
        return done, failed

    def _end(
        self,
        future: "Future[Result]",
        done: dict[PlannedRun, Result],
        failed: dict[PlannedRun, str],
    ) -> None:
        """Keep the result of a run that ended, or note why there is none."""
        run, error = self._running.pop(future), future.exception()
        if isinstance(error, RunInterrupted) or (error is not None and self.is_interrupted):
            self.is_interrupted = True
            return
        if error is None:
            result = future.result()
            try:
                write_result(result, self._out / f"{run.name}.json")
            except OSError as full:
                error = full
            else:
                done[run] = result
                remove_run(self.work, run)
                self._on_end(run, result)
        if error is not None:
            failed[run] = " ".join(str(error).split()) or type(error).__name__
            self._on_end(run, failed[run])

    def _start(
        self,
        pending: list[PlannedRun],
        done: dict[PlannedRun, Result],
        failed: dict[PlannedRun, str],
    ) -> None:
        """Start what can be, in order, up to the number of jobs."""
        for run in list(pending):
            if len(self._running) >= self._executor.num_jobs:
                return
            source = source_of(self._study, run)
            if source is not None and source in failed:
                failed[run] = f"{source.name}, which it replays, failed"
                pending.remove(run)
                self._on_end(run, failed[run])
            elif source is None or source in done:
                trace = None
                if source is not None:
                    what = traced_as(self._study, self._study.arm(run.arm))
                    trace = done[source].trace[str(what)]
                pending.remove(run)
                job = job_of(self._study, run, trace)
                self._running[self._executor.submit(job)] = run
