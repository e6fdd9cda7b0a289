"""The process that worker processes are forked from: imports once, forks in milliseconds.

``pool.Pool`` starts it as a program of its own and speaks to it over a socket, one JSON line a
message. It runs one thread and touches no text that has to be judged, so that forking it is safe
whatever the threads of the pool's owner do. It ends, and its workers with it, when the owner closes
the socket or dies.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NoReturn

Handler = Callable[[Any], Generator[str, None, Any]]
"""What a worker does with a request: yields the stages it reached, returns the reply."""

PR_SET_PDEATHSIG = 1
"""Linux: the signal a process gets when its parent dies."""


class Line:
    """Messages over a socket: one JSON value a line, each way.

    Args:
        end: The socket; its timeout is that of a single read or write.
    """

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._rest = bytearray()

    def send(self, message: Any) -> None:
        """Send a JSON value."""
        self.end.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Any:
        """Return the next JSON value; raises EOFError where the other end is closed."""
        start = 0
        while (stop := self._rest.find(b"\n", start)) < 0:
            start = len(self._rest)
            chunk = self.end.recv(1 << 16)
            if not chunk:
                raise EOFError
            self._rest += chunk
        line = bytes(self._rest[:stop])
        del self._rest[: stop + 1]
        return json.loads(line)


def main(control_fd: int, module: str, memory_mb: int) -> None:
    """Fork and kill workers as the owner asks, until it is gone.

    Args:
        control_fd: The socket to the owner. It sends ``"fork"`` with a socket for the worker
            beside it, answered by the worker's pid, and ``["end", pid, patience_s]``, answered by
            how it ended (the negative signal, or the exit status) when it has, or was killed after
            that long.
        module: Has ``handle``, the handler of a request, and ``warm_up``, called once here.
        memory_mb: What a worker may allocate beyond what this process has.
    """
    with socket.socket(fileno=control_fd) as control:
        line = Line(control)
        pids: set[int] = set()
        try:
            imported = importlib.import_module(module)
            imported.warm_up()
            gc.collect()
            gc.freeze()  # so that no worker copies pages only to count references anew
            line.send("ready")
            while True:
                request, fds = _receive(control)
                if request == ["fork"]:
                    pids.add(pid := _fork(control, fds, imported.handle, memory_mb))
                    line.send(pid)
                else:
                    _, pid, patience_s = request
                    pids.remove(pid)
                    line.send(_end(pid, patience_s))
        except (EOFError, ConnectionError):
            pass
        finally:
            for pid in pids:
                _end(pid)


def _receive(control: socket.socket) -> tuple[Any, list[int]]:
    """A message of the owner, which is always short, with the descriptors beside it."""
    text, fds, _, _ = socket.recv_fds(control, 4096, 1)
    if not text:
        raise EOFError
    return json.loads(text), fds


def _end(pid: int, patience_s: float = 0.0) -> int:
    """Kill a worker if it still runs after a while, and take its exit status."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork(control: socket.socket, fds: list[int], handle: Handler, memory_mb: int) -> int:
    (fd,) = fds
    pid = os.fork()
    if pid == 0:
        control.close()
        _work(fd, handle, memory_mb)
    os.close(fd)
    return pid


def _work(fd: int, handle: Handler, memory_mb: int) -> NoReturn:
    """Answer requests until the owner closes the socket."""
    status = 1
    try:
        _limit(memory_mb)
        with socket.socket(fileno=fd) as end:
            line = Line(end)
            while True:
                line.send(_answer(line, handle, line.receive()))
    except (EOFError, ConnectionError):
        status = 0
    finally:
        os._exit(status)


def _answer(line: Line, handle: Handler, request: Any) -> Any:
    stages = handle(request)
    try:
        while True:
            line.send(["stage", next(stages)])
    except StopIteration as stop:
        return ["reply", stop.value]
    except MemoryError:
        return ["memory", ""]
    except Exception as error:  # whatever it is, the owner has to hear of it
        return ["error", f"{type(error).__name__}: {error}"]


def _limit(memory_mb: int) -> None:
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)  # the parent died before it could be watched
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
