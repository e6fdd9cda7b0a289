"""One sandbox, seen from outside: start it, hand it jobs, end it."""

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from gradmass.rewards.sandbox import bubblewrap
from gradmass.rewards.sandbox.inside import wire

Isolation = Literal["bubblewrap", "process"]
Role = Literal["script", "serve", "check", "check_all"]

INSIDE = Path(__file__).parent / "inside"
GRACE_S = 5.0
"""How much longer than its limit a job may seem to run before its sandbox counts as broken."""
START_S = 30.0
END_S = 2.0
MOMENT_S = 1.0
"""What a process that hung up has to end by itself, so that its exit code is known."""
FILE_MB = 16
TMP_MB = 64
STDERR_BYTES = 4096
FIRST_UID, NUM_UIDS = 64000, 900
_slots = itertools.count(os.getpid())

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    # The same order of sets and the same draws for every program.
    "PYTHONHASHSEED": "0",
    # Libraries that reserve memory for each core run out of it on machines with many.
    "MALLOC_ARENA_MAX": "2",
    **{
        f"{name}_NUM_THREADS": "1"
        for name in ("OPENBLAS", "OMP", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")
    },
}


class SandboxLost(Exception):
    """The sandbox ended or does not answer; nothing is known about the program."""


@dataclass(frozen=True)
class Code:
    """What a process executes.

    Args:
        program: A program or, to check one, a test.
        prelude: What runs before it, in the same namespace.
        entry_point: The function that a test tests.
    """

    program: str
    prelude: str = ""
    entry_point: str | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one process of a program may use.

    Args:
        wall_s: Seconds until it is killed.
        memory_mb: Its address space in MiB, interpreter (about 40) and stacks included.
    """

    wall_s: float
    memory_mb: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended.

    Args:
        code: Its exit code, or the negative number of the signal that killed it; None where the
            sandbox ended it.
        forced: "timeout", or "stopped" on the host's word; None where it ended by itself.
        seconds: Wall time.
        cpu_s: Processor time.
        stdout: What it wrote.
        stderr: The end of what it wrote there.
        is_full: It wrote as much as it could write, and may have wanted to write more.
        refused: Limits that this platform does not know.
    """

    code: int | None
    forced: str | None
    seconds: float
    cpu_s: float
    stdout: bytes
    stderr: str
    is_full: bool
    refused: Sequence[str] = ()


class Worker:
    """A sandbox with a warm interpreter that forks a jailed process for each job.

    Args:
        isolation: "bubblewrap", or the weaker "process".
        packages: Installed distributions that programs may import.

    Raises:
        UsageError: Bubblewrap or a package is not installed.
        SandboxLost: The sandbox does not start.
    """

    def __init__(self, isolation: Isolation, packages: Sequence[str]) -> None:
        self._isolation = isolation
        words = bubblewrap.command(packages, INSIDE) if isolation == "bubblewrap" else []
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._files: list[IO[bytes]] = []
        self._control, theirs = socket.socketpair()
        words += _interpreter(isolation, packages, theirs.fileno())
        self._process = subprocess.Popen(
            words,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        try:
            self._check()
        except SandboxLost as error:
            said = self._said()
            self.close()
            raise SandboxLost(f"the sandbox does not start: {said or error}") from error

    def _check(self) -> None:
        """Have a known program right before any other is judged."""
        program = "import threading\nthreading.Thread(target=print, args=(6 * 7,)).start()"
        limits = Limits(wall_s=START_S, memory_mb=1024)
        ended = self.run("script", Code(program), limits)
        if (ended.code, ended.stdout) != (0, b"42\n"):
            raise SandboxLost(f"a known program fails: {ended.stderr or ended}")
        if ended.refused and self._isolation == "bubblewrap":
            raise SandboxLost(f"this kernel does not limit {', '.join(ended.refused)}")
        if ended.refused:
            warnings.warn(
                f"this platform does not limit {', '.join(ended.refused)} of programs", stacklevel=2
            )

    def run(self, role: Role, code: Code, limits: Limits, stdin: str = "") -> Ended:
        """Run a job to its end.

        Raises:
            SandboxLost: The sandbox is of no more use.
        """
        self.begin(role, code, limits, stdin=stdin)
        return self.end()

    def begin(
        self,
        role: Role,
        code: Code,
        limits: Limits,
        *,
        stdin: str = "",
        channel: socket.socket | None = None,
    ) -> None:
        """Start a job; ``end`` has to follow."""
        prelude, program, given = (
            text.encode("utf-8", "surrogatepass") for text in (code.prelude, code.program, stdin)
        )
        contents = (prelude + program, given, b"", b"")
        self._files = [_memory_file(content) for content in contents]
        fds = [file.fileno() for file in self._files]
        if channel is not None:
            fds.append(channel.fileno())
        bounds = {
            "memory_mb": limits.memory_mb,
            # The clock on the wall is the limit; this one stops what many threads burn.
            "cpu_s": int(limits.wall_s) + 2,
            "file_mb": FILE_MB,
            "tmp_mb": TMP_MB,
        }
        self._deadline = time.monotonic() + limits.wall_s + GRACE_S
        job = {
            "role": role,
            "prelude_bytes": len(prelude),
            "entry_point": code.entry_point,
            "wall_s": limits.wall_s,
            "bounds": bounds,
        }
        self._send(job, fds)

    def stop(self) -> None:
        """End the job that runs, if it still does; then it ends at once, whatever its limit."""
        self._deadline = min(self._deadline, time.monotonic() + GRACE_S)
        self._send({"stop": True})

    def end_soon(self) -> Ended:
        """Wait for the end of a job that hung up: by itself or, after a moment, by force.

        Raises:
            SandboxLost: The sandbox is of no more use.
        """
        if not select.select([self._control], [], [], MOMENT_S)[0]:
            self.stop()
        return self.end()

    def end(self) -> Ended:
        """Wait for the end of the job.

        Raises:
            SandboxLost: The sandbox is of no more use.
        """
        try:
            self._control.settimeout(None)
            reply, _ = wire.receive(self._control, deadline=self._deadline)
        except (OSError, EOFError, ValueError) as error:
            raise SandboxLost(self._said() or f"it does not answer ({error})") from error
        stdout, stderr = self._files[2:4]
        size = os.fstat(stdout.fileno()).st_size
        said = os.fstat(stderr.fileno()).st_size
        tail = os.pread(stderr.fileno(), STDERR_BYTES, max(0, said - STDERR_BYTES))
        output = os.pread(stdout.fileno(), size, 0)
        for file in self._files:
            file.close()
        if "error" in reply:
            raise SandboxLost(reply["error"])
        return Ended(
            code=reply.get("status"),
            forced=reply["forced"],
            seconds=reply["seconds"],
            cpu_s=reply["cpu_s"],
            stdout=output,
            stderr=tail.decode("utf-8", "replace"),
            is_full=max(size, said) >= FILE_MB << 20,
            refused=tuple(reply.get("refused", ())),
        )

    def interrupt(self) -> None:
        """Make the sandbox end itself and what it runs; may be called from any thread."""
        # Where it is closed already there is nothing to end.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See the sandbox end, by itself or by force, and leave nothing open."""
        self.interrupt()
        try:
            self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._control.close()
        for file in (self._log, *self._files):
            file.close()

    def forget(self) -> None:
        """Let go of the sandbox in a fork of the process that started it, which keeps it."""
        self._control.close()  # not shut down: the socket is shared
        self._process.poll()  # it is no child of this process: there is nothing to wait for
        for file in (self._log, *self._files):
            file.close()

    def _send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        self._control.settimeout(GRACE_S)
        try:
            wire.send(self._control, message, fds)
        except OSError as error:
            raise SandboxLost(f"it takes no job ({error})") from error

    def _said(self) -> str:
        """The last line it wrote to its own error stream, if any."""
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _interpreter(isolation: Isolation, packages: Sequence[str], control_fd: int) -> list[str]:
    is_isolated = isolation == "bubblewrap"
    folder = bubblewrap.CODE if is_isolated else str(INSIDE.parent)
    is_root = is_isolated and os.geteuid() == 0
    settings = {
        "is_isolated": is_isolated,
        "uid": FIRST_UID + next(_slots) % NUM_UIDS if is_root else None,
        "packages": [bubblewrap.PACKAGES] if is_isolated else bubblewrap.folders_of(packages),
    }
    start = (
        f"import sys, json; sys.path.insert(0, {folder!r}); from inside.zygote import main; "
        f"main({control_fd}, json.loads({json.dumps(settings)!r}))"
    )
    # Neither this environment's packages nor its variables, nor bytecode written anywhere.
    return [bubblewrap.interpreter(), "-s", "-P", "-B", "-X", "utf8", "-c", start]


def _memory_file(content: bytes) -> IO[bytes]:
    """An open file without a name, which starts with this content and is read from its start."""
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("gradmass"), "r+b", buffering=0)
    else:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (its reader closes it)
    file.write(content)
    file.seek(0)
    return file
