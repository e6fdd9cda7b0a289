"""A warm interpreter that never runs a program itself: it forks, jails the child, and waits.

Everything a program is and says passes by in open files, unread: this process holds nothing of
one program that the next could find in its copy of the memory.
"""

import fcntl
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from typing import Any

from . import roles, wire
from .jail import Bounds, Kernel, limit

WARM = (
    "array", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum",
    "fractions", "functools", "heapq", "io", "itertools", "json", "math", "operator", "queue",
    "random", "re", "statistics", "string", "threading", "typing",
)  # fmt: skip
"""What programs import most; they find it imported."""
CODE, STDIN, STDOUT, STDERR, CHANNEL = range(5)
"""The files that come with a job, in this order; the last only where calls are answered."""
HIGH = 64
SETUP_FAILED = 111


def main(control_fd: int, settings: dict[str, Any]) -> None:
    """Serve jobs until the other end of the control socket closes.

    Args:
        control_fd: The control socket.
        settings: ``is_isolated``; ``uid`` for programs or None; ``packages``, folders to import from.
    """
    # Of a folder of this kind nothing else is in sight; programs get it as their last resort.
    sys.path = [path for path in sys.path if path != os.path.dirname(os.path.dirname(__file__))]
    sys.path += settings["packages"]
    for name in WARM:
        importlib.import_module(name)
    control = socket.socket(fileno=control_fd)
    zygote = _Zygote(control, settings)
    gc.collect()
    gc.freeze()
    while True:
        try:
            job, fds = wire.receive(control)
            if "role" in job:
                wire.send(control, zygote.run(job, fds))
            # Else it says to stop a job that has stopped by itself.
        except (EOFError, OSError):
            return  # the host is gone


class _Zygote:
    def __init__(self, control: socket.socket, settings: dict[str, Any]) -> None:
        self._control = control
        self._is_isolated = settings["is_isolated"]
        self._kernel = Kernel(settings["uid"])
        if not self._is_isolated:
            self._kernel.adopt_orphans()

    def run(self, job: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Run one job to its end, by itself or by force, and leave nothing of it."""
        started = time.monotonic()
        folder = None if self._is_isolated else tempfile.mkdtemp(prefix="gradmass-")
        reports, report = os.pipe()
        try:
            if self._is_isolated:
                self._kernel.prepare_pid_namespace()
            guard = os.fork()
            if guard == 0:
                os.close(reports)
                self._guard(job, fds, report, folder)
            os.close(report)
            for fd in fds:
                os.close(fd)
            said, forced = self._watch(guard, reports, started + job["wall_s"])
            usage = os.wait4(guard, 0)[2]
            if not self._is_isolated:
                self._reap(guard)
        except OSError as error:
            return {"error": str(error)}
        finally:
            os.close(reports)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        seconds = time.monotonic() - started
        cpu_s = usage.ru_utime + usage.ru_stime
        return {"forced": forced, "seconds": seconds, "cpu_s": cpu_s} | said

    def _watch(
        self, guard: int, reports: int, deadline: float
    ) -> tuple[dict[str, Any], str | None]:
        """Wait for the guard's report, or end the job at its deadline or on the host's word."""
        ready = select.select([reports, self._control], [], [], deadline - time.monotonic())[0]
        if reports in ready:
            text = b""
            while chunk := os.read(reports, 1 << 16):
                text += chunk
            said: dict[str, Any] = {} if text else {"error": "the guard says nothing"}
            for line in text.splitlines():
                said |= json.loads(line)
            return said, None
        if self._is_isolated:
            os.kill(guard, signal.SIGKILL)  # and with it all of its namespace
        else:
            try:
                os.killpg(guard, signal.SIGKILL)
            except ProcessLookupError:  # so early that there is no group yet
                os.kill(guard, signal.SIGKILL)
        return {}, "stopped" if ready else "timeout"

    def _reap(self, group: int) -> None:
        """Without a namespace of processes: end the group, and wait for all of it."""
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            pass

    def _guard(self, job: dict[str, Any], fds: list[int], report: int, folder: str | None) -> None:
        """The first process of a job: it prepares the jail, forks the program, waits, reports."""
        try:
            self._control.close()
            bounds = Bounds(**job["bounds"])
            if self._is_isolated:
                self._kernel.mount_private_tmp(bounds)
            else:
                os.setpgid(0, 0)
                self._kernel.die_with_parent()
            program = os.fork()
            if program == 0:
                self._program(job, fds, report, bounds, folder or "/tmp")
            for fd in fds:
                os.close(fd)
            _, status = os.waitpid(program, 0)
            _report(report, status=os.waitstatus_to_exitcode(status))
        except OSError as error:
            _report(report, error=str(error))
        finally:
            os._exit(0)

    def _program(
        self, job: dict[str, Any], fds: list[int], report: int, bounds: Bounds, folder: str
    ) -> None:
        """The process of the program: it gives up what it has, then starts its role."""
        code = SETUP_FAILED
        try:
            if not self._is_isolated:
                self._kernel.die_with_parent()
            spec = json.loads(os.pread(fds[CODE], os.fstat(fds[CODE]).st_size, 0))
            is_check = job["role"] == "check"
            report, result = _take_places(fds, report, is_check)
            refused = limit(bounds)
            if refused and self._is_isolated:
                raise OSError(f"this kernel does not limit {', '.join(refused)}")
            if refused:
                _report(report, refused=refused)
            self._kernel.drop_powers()
            os.chdir(folder)
            os.close(report)
        except OSError as error:
            _report(report, error=str(error))
            os._exit(SETUP_FAILED)
        try:
            gc.enable()
            if job["role"] == "script":
                code = roles.run_script(spec)
            elif job["role"] == "serve":
                code = roles.answer_calls(spec)
            else:
                code = roles.check_calls(spec, lambda text: os.write(result, text))
        finally:
            os._exit(code)


def _report(fd: int, **said: Any) -> None:
    os.write(fd, json.dumps(said).encode() + b"\n")


def _take_places(fds: list[int], report: int, is_check: bool) -> tuple[int, int]:
    """Put the job's files where a process expects them, and close all others.

    Returns:
        The report's new number, and that of the file for a check's result. What tests print goes
        where errors go: their output is their result.
    """
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH) for fd in (*fds[STDIN:], report)]
    stdin, stdout, stderr, *channel, report = high
    for place, fd in enumerate((stdin, stderr if is_check else stdout, stderr, *channel)):
        os.dup2(fd, place)
    os.dup2(report, 4)
    os.dup2(stdout, 5)
    os.closerange(6 if is_check else 5, 1 << 16)
    if not channel:
        os.close(3)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open(  # type: ignore[misc]
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
    return 4, 5
