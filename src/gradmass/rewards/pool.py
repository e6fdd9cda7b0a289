"""A pool of worker processes that are killed and replaced when they misbehave.

What a worker does with one request, be it to hang, crash or ask for all memory, never moves the
reply to another. Requests come from any thread. Nothing of a pool outlives ``close``, its garbage
collection, or the death of its process: no process, zombie, socket or file.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from gradmass.rewards.forks import watch_forks
from gradmass.rewards.zygote import Line
from gradmass.types import UsageError

START_LIMIT_S = 120.0
"""Longest wait for the process that workers are forked from; it imports, on a busy machine too."""
REQUESTS_PER_WORKER = 1000
"""After which a worker is replaced: parsers and symbolic algebra keep caches that only grow."""
LAST_WORDS_S = 0.3
"""How long a worker whose socket closed may take to end by itself."""
CLOSED = "the verifier was closed while it was at work"


class Failure(StrEnum):
    """Why a request has no reply."""

    TIMEOUT = "timeout"
    """It was not answered within the time limit."""
    MEMORY = "memory"
    """The worker wanted more than the memory limit."""
    CRASH = "crash"
    """The worker died of it, twice."""
    MACHINERY = "machinery"
    """No worker could be had; nothing is known of the request."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a request.

    Args:
        value: The handler's reply, plain JSON; None where it failed.
        seconds: Wall time from the request to the reply, or to the worker's end.
        failure: Why there is no reply; None if there is.
        stage: The last stage the handler reported; empty before the first.
        detail: More about a failure, for a person.
    """

    value: Any
    seconds: float
    failure: Failure | None = None
    stage: str = ""
    detail: str = ""


class Pool:
    """Worker processes that each answer one request at a time.

    Workers are forked, when first needed, from a process that imported ``module`` (see
    ``zygote``), and live in a process group of their own, so that Ctrl-C reaches their owner alone.
    On Linux, memory is limited; elsewhere only time is.

    Args:
        module: Importable name of a module with ``handle(request)``, a generator function that
            yields the names of stages it reached and returns the reply, both plain JSON, and with
            ``warm_up()``, called once before workers are forked.
        num_workers: Worker processes, at least 1.
        time_limit_s: Wall time of a request, in seconds, above 0.
        memory_mb: What a worker may allocate beyond its start, in MiB, at least 64.

    Raises:
        UsageError: A limit or count out of range.
    """

    def __init__(
        self, module: str, *, num_workers: int, time_limit_s: float, memory_mb: int
    ) -> None:
        if num_workers < 1:
            raise UsageError(f"num_workers must be at least 1, got {num_workers}")
        if not 0 < time_limit_s < float("inf"):
            raise UsageError(f"time_limit_s must be seconds above 0, got {time_limit_s}")
        if memory_mb < 64:
            raise UsageError(f"memory_mb must be at least 64, got {memory_mb}")
        self._arguments = (module, num_workers, time_limit_s, memory_mb)
        self._is_closed = False
        self._running: _Running | None = None
        self._lock = threading.Lock()
        watch_forks(self)

    def __enter__(self) -> "Pool":
        """Return the pool."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the pool."""
        self.close()

    def map(self, requests: Sequence[Any]) -> list[Reply]:
        """Return the reply to each request, in their order.

        Args:
            requests: Plain JSON values.

        Returns:
            As many replies as requests. A failed one has ``failure`` set.

        Raises:
            UsageError: The pool is closed, or was closed meanwhile.
        """
        with self._lock:
            if self._is_closed:
                raise UsageError("the verifier is closed: make another one")
            if self._running is None:
                running = _Running(*self._arguments)
                self._stop = weakref.finalize(self, running.stop)
                self._running = running
            running = self._running
            try:
                futures = [running.executor.submit(running.ask, request) for request in requests]
            except RuntimeError as error:  # Python is ending
                raise UsageError(CLOSED) from error
        try:
            replies = [_result(future) for future in futures]
        finally:
            for future in futures:  # after Ctrl-C nobody waits for the rest
                future.cancel()
        if running.is_stopped:
            raise UsageError(CLOSED)
        return replies

    def close(self) -> None:
        """End all workers; requests under way fail. Closing twice is fine."""
        with self._lock:
            self._is_closed = True
            running, self._running = self._running, None
        if running is not None:
            self._stop()

    def after_fork(self) -> None:
        """Let go of the workers of the process this one was forked from; it gets its own."""
        self._lock = threading.Lock()
        running, self._running = self._running, None
        if running is not None:
            self._stop.detach()
            running.forget()


def _result(future: Future[Reply]) -> Reply:
    try:
        return future.result()
    except CancelledError as error:
        raise UsageError(CLOSED) from error


class _Worker:
    """A worker process and the socket to it."""

    def __init__(self, zygote: "_Zygote") -> None:
        self.zygote = zygote
        self.num_requests = 0
        self.stage = ""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self.pid = zygote.fork(theirs)
        except BaseException:
            ours.close()
            raise
        self.line = Line(ours)

    def ask(self, request: Any, deadline: float) -> tuple[str, Any]:
        """Return the last message, its kind and value; ``stage`` says how far it came."""
        self.num_requests += 1
        self.stage = ""
        self._wait_until(deadline)
        self.line.send(request)
        while True:
            kind, value = self.line.receive()
            if kind != "stage":
                return kind, value
            self.stage = value
            self._wait_until(deadline)

    def _wait_until(self, deadline: float) -> None:
        self.line.end.settimeout(max(1e-3, deadline - time.monotonic()))

    def end(self, patience_s: float) -> int:
        """Kill it unless it ends soon; returns minus the signal, or the exit status."""
        self.line.end.close()
        return self.zygote.end(self.pid, patience_s)


class _Zygote:
    """The process that workers are forked from, as its owner sees it."""

    def __init__(self, module: str, memory_mb: int) -> None:
        self.lock = threading.Lock()
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).parents[2])
        program = (
            f"import sys; sys.path.insert(0, {root!r}); from gradmass.rewards import zygote; "
            f"zygote.main({theirs.fileno()}, {module!r}, {memory_mb})"
        )
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONHASHSEED": "0"},
                start_new_session=True,
            )
        self.line = Line(ours)
        ours.settimeout(START_LIMIT_S)
        try:
            self.line.receive()
        except (EOFError, OSError) as error:
            self.stop()
            raise ConnectionError(
                f"the process that imports {module} ended with {self.process.returncode}"
            ) from error

    def fork(self, end: socket.socket) -> int:
        """Start a worker at a socket; returns its pid."""
        with self.lock:
            socket.send_fds(self.line.end, [b'["fork"]'], [end.fileno()])
            return int(self.line.receive())

    def end(self, pid: int, patience_s: float) -> int:
        """Kill a worker unless it ends soon; returns how it ended."""
        with self.lock:
            self.line.send(["end", pid, patience_s])
            return int(self.line.receive())

    def stop(self) -> None:
        """End the process and all workers."""
        # Closing alone would not tell it: forks of this process have the socket too.
        with contextlib.suppress(OSError):
            self.line.end.shutdown(socket.SHUT_RDWR)
        self.line.end.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _Running:
    """What a pool has while it runs: a thread a worker, and the process they are forked from."""

    def __init__(self, module: str, num_workers: int, time_limit_s: float, memory_mb: int) -> None:
        self.module, self.time_limit_s, self.memory_mb = module, time_limit_s, memory_mb
        self.executor = ThreadPoolExecutor(num_workers, thread_name_prefix=f"pool-{id(self)}")
        self.prefix = f"pool-{id(self)}"
        self.lock = threading.Lock()
        self.zygote: _Zygote | None = None
        self.idle: list[_Worker] = []
        self.is_stopped = False

    def ask(self, request: Any) -> Reply:
        """Return the reply to a request, by any worker; a crash is tried a second time.

        A worker also dies when the machine runs out of memory through no fault of the request, or
        while it is idle. The second try has a new one.
        """
        reply = self._ask_once(request, is_second=False)
        if reply.failure in (Failure.CRASH, Failure.MACHINERY) and not self.is_stopped:
            reply = self._ask_once(request, is_second=True)
        return reply

    def _ask_once(self, request: Any, *, is_second: bool) -> Reply:
        start = time.monotonic()
        try:
            worker = self._worker(is_new=is_second)
        except (EOFError, OSError) as error:
            return Reply(None, time.monotonic() - start, Failure.MACHINERY, "", str(error))
        start = time.monotonic()
        failure: Failure | None = None
        value: Any = None
        detail = ""
        try:
            kind, value = worker.ask(request, start + self.time_limit_s)
        except TimeoutError:
            failure = Failure.TIMEOUT
        except (EOFError, OSError):
            failure = Failure.CRASH
        else:
            if kind == "memory":
                failure, value = Failure.MEMORY, None
            elif kind == "error":
                failure, value, detail = Failure.MACHINERY, None, value
        seconds, stage = time.monotonic() - start, worker.stage
        status = self._give_back(worker, failure)
        if failure is Failure.CRASH:
            detail = "no status" if status is None else _how(status)
        return Reply(value, seconds, failure, stage, detail)

    def _worker(self, *, is_new: bool) -> _Worker:
        with self.lock:
            if self.is_stopped:
                raise ConnectionError("the pool is closed")
            if self.idle and not is_new:
                return self.idle.pop()
            if self.zygote is not None:
                try:
                    return _Worker(self.zygote)
                except (EOFError, OSError):  # it was killed
                    self.zygote.stop()
                    self.zygote = None
            self.zygote = _Zygote(self.module, self.memory_mb)
            return _Worker(self.zygote)

    def _give_back(self, worker: _Worker, failure: Failure | None) -> int | None:
        """Keep a worker, or end it; returns how it ended, if that is known."""
        if failure is None and worker.num_requests < REQUESTS_PER_WORKER:
            with self.lock:
                if not self.is_stopped:
                    self.idle.append(worker)
                    return None
        try:
            # One that crashed is ending, and how it does is worth waiting for.
            return worker.end(LAST_WORDS_S if failure is Failure.CRASH else 0.0)
        except (EOFError, OSError):
            return None

    def forget(self) -> None:
        """Let go of everything in a fork of the owner, which keeps it."""
        for worker in self.idle:
            worker.line.end.close()
        if self.zygote is not None:
            self.zygote.line.end.close()
            self.zygote.process.poll()  # no child of this process: there is nothing to wait for

    def stop(self) -> None:
        """End everything; called again, nothing happens."""
        with self.lock:
            self.is_stopped = True
            zygote, self.zygote = self.zygote, None
            idle, self.idle = self.idle, []
        self.executor.shutdown(wait=False, cancel_futures=True)
        for worker in idle:
            worker.line.end.close()
        if zygote is not None:
            with zygote.lock:
                zygote.stop()
        # Garbage may be collected in a thread of the executor, which cannot wait for itself.
        is_own_thread = threading.current_thread().name.startswith(self.prefix)
        self.executor.shutdown(wait=not is_own_thread)


def _how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
