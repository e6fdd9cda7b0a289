"""Threads that judge programs, each with sandboxes of its own, here or on other machines."""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from gradmass.rewards.code_problem import CodeProblem
from gradmass.rewards.sandbox import SandboxLost
from gradmass.rewards.verdict import Verdict
from gradmass.types import UsageError

T = TypeVar("T")

CLOSED = "the verifier was closed while it was at work"


class Opened(Protocol):
    """What judges programs and has to be ended: a sandbox, or a process on a cluster."""

    def interrupt(self) -> None:
        """Make it end, from any thread, whatever it does; twice is fine."""

    def close(self) -> None:
        """See it end."""

    def forget(self) -> None:
        """Let go of it in a fork of its owner, who keeps it."""


W = TypeVar("W", bound=Opened)


class JudgeLike(Protocol):
    """Judges programs in one thread, with what it opens."""

    def prepare(self) -> Any:
        """Open what is needed for the first program."""

    def judge(self, problem: CodeProblem, program: str) -> Verdict:
        """Run a program on the tests of a problem."""

    def discard(self) -> None:
        """End what is open; the next program gets new ones."""


class JudgePool(Generic[W]):
    """Threads, each with its own judge and thus its own sandboxes.

    Args:
        num_workers: Threads.
        start: Opens what a judge needs.
        make: Makes a judge that opens by the function it is given.
    """

    def __init__(
        self,
        num_workers: int,
        start: Callable[[], W],
        make: Callable[[Callable[[], W]], JudgeLike],
    ) -> None:
        # Bubblewrap ends its sandbox with the thread that started it: these live until the end.
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="gradmass-sandbox")
        self._open, self._make = start, make
        self._own = threading.local()
        self._judges: list[JudgeLike] = []
        self._lock = threading.Lock()
        self._opened: weakref.WeakSet[W] = weakref.WeakSet()
        self._closing = threading.Event()

    def submit(self, task: Callable[[JudgeLike], T]) -> "Future[T]":
        """Run a task in one of the threads, with its judge.

        Raises:
            UsageError: The pool is closed, or Python is ending.
        """
        try:
            return self._threads.submit(lambda: task(self._judge()))
        except RuntimeError as error:
            raise UsageError(CLOSED) from error

    def close(self) -> None:
        """End everything; what is being judged is lost, what waits is cancelled."""
        with self._lock:
            self._closing.set()
            opened = list(self._opened)
        for worker in opened:
            worker.interrupt()
        # Garbage may be collected in one of the threads, which cannot wait for itself.
        is_own_thread = hasattr(self._own, "judge")
        self._threads.shutdown(wait=not is_own_thread, cancel_futures=True)
        for judge in self._judges:
            judge.discard()

    def forget(self) -> None:
        """Let go of everything, in a fork of the owner."""
        for worker in list(self._opened):
            worker.forget()

    def _judge(self) -> JudgeLike:
        if not hasattr(self._own, "judge"):
            self._own.judge = self._make(self._start)
            self._judges.append(self._own.judge)
        judge: JudgeLike = self._own.judge
        return judge

    def _start(self) -> W:
        """Open one that ``close`` knows of, or none."""
        if not self._closing.is_set():
            worker = self._open()
            with self._lock:
                if not self._closing.is_set():
                    self._opened.add(worker)
                    return worker
            worker.close()
        raise SandboxLost(CLOSED)
