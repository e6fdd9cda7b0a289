"""A warm interpreter that never runs a program itself: it forks, jails the child, and waits.

Everything a program is and says passes by in open files, unread: this process holds nothing of
one program that the next could find in its copy of the memory.
"""

import contextlib
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
from .jail import Bounds, Jail, Plan

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
POLL_S = 0.005


def main(control_fd: int, settings: dict[str, Any]) -> None:
    """Serve jobs until the other end of the control socket closes.

    Args:
        control_fd: The control socket.
        settings: ``is_isolated``; ``uid`` for programs or None; ``packages``, folders to import
            from.
    """
    del sys.path[0]  # where this code was imported from
    os.environ.pop("PWD", None)  # which bubblewrap sets, and programs are elsewhere
    sys.path += settings["packages"]
    for name in WARM:
        importlib.import_module(name)
    control = socket.socket(fileno=control_fd)
    zygote = _Zygote(control, settings)
    gc.disable()
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
        self._jail = Jail(settings["is_isolated"], settings["uid"])

    def run(self, job: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Run one job to its end, by itself or by force, and leave nothing of it."""
        started = time.monotonic()
        folder = None if self._is_isolated else tempfile.mkdtemp(prefix="gradmass-")
        reports, report = os.pipe()
        sleeper = None
        # Tests are not the adversary: they need no namespace of their own within the sandbox.
        has_namespace = self._is_isolated and job["role"] in ("script", "serve")
        plan = self._jail.plan(Bounds(**job["bounds"]), has_namespace=has_namespace)
        try:
            if has_namespace:
                sleeper = self._jail.enter_process_namespace()
            program = self._jail.fork()
            if program == 0:
                try:
                    self._become(job, fds, report, plan, folder or "/tmp")
                finally:
                    os._exit(SETUP_FAILED)  # never on with this function in a copy of the zygote
            forced = self._watch(program, started + job["wall_s"])
            if forced:
                os.kill(sleeper or program, signal.SIGKILL)
            _, status, usage = os.wait4(program, 0)
        except OSError as error:
            return {"error": str(error)}
        finally:
            if sleeper is not None:
                self._jail.leave_process_namespace()
                os.kill(sleeper, signal.SIGKILL)
            self._reap()
            os.close(report)
            said = os.read(reports, 1 << 16)
            for fd in (reports, *fds):
                os.close(fd)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        reply = {
            "status": None if forced else os.waitstatus_to_exitcode(status),
            "forced": forced,
            "seconds": time.monotonic() - started,
            "cpu_s": usage.ru_utime + usage.ru_stime,
        }
        for line in said.splitlines():
            reply |= json.loads(line)
        return reply

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)

    def _watch(self, program: int, deadline: float) -> str | None:
        """Wait until the program ends, its time is up, or the host speaks."""
        if not hasattr(os, "pidfd_open"):
            return self._poll(program, deadline)
        pidfd = os.pidfd_open(program)
        left = max(0.0, deadline - time.monotonic())
        ready = select.select([pidfd, self._control.fileno()], [], [], left)[0]
        os.close(pidfd)
        if pidfd in ready:
            return None
        return "stopped" if ready else "timeout"

    def _poll(self, program: int, deadline: float) -> str | None:
        """The same where no file tells that a process ended (macOS)."""
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, program, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                return None
            if select.select([self._control.fileno()], [], [], POLL_S)[0]:
                return "stopped"
        return "timeout"

    def _become(
        self, job: dict[str, Any], fds: list[int], report: int, plan: Plan, folder: str
    ) -> None:
        """From here on this is the program's process: give up what it may not have, and start."""
        try:
            code = os.pread(fds[CODE], os.fstat(fds[CODE]).st_size, 0)
            report, result = _take_places(fds, report, is_check=job["role"] == "check")
            refused = self._jail.lock(plan)
            if refused:
                _report(report, refused=refused)
            os.chdir(folder)
            os.close(report)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            _report(report, error=f"{type(error).__name__}: {error}")
            return
        status = 1
        try:
            gc.enable()
            cut = job["prelude_bytes"]
            prelude = code[:cut].decode("utf-8", "surrogatepass")
            program = code[cut:].decode("utf-8", "surrogatepass")
            if job["role"] == "script":
                status = roles.run_script(prelude, program)
            elif job["role"] == "serve":
                status = roles.answer_calls(prelude, program)
            elif job["role"] == "check_all":
                status = roles.check_all()
            else:
                passed = roles.check_calls(prelude, program, job["entry_point"])
                os.write(result, json.dumps(passed).encode())
                status = 0
        finally:
            os._exit(status)


def _report(fd: int, **said: Any) -> None:
    os.write(fd, json.dumps(said).encode() + b"\n")


def _take_places(fds: list[int], report: int, is_check: bool) -> tuple[int, int]:
    """Put the job's files where a process expects them, and close all others.

    The standard streams of Python stay: the zygote used none, so only what is behind them changes.

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
    return 4, 5
