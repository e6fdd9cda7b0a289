"""Give up powers: namespaces, mounts, limits, capabilities, system calls."""

import ctypes
import os
import platform
import resource
import signal
import sys
from dataclasses import dataclass

from . import seccomp

CLONE_VM, CLONE_NEWNS, CLONE_NEWPID = 0x00000100, 0x00020000, 0x20000000
MOUNT_FLAGS = ctypes.c_ulong(2 | 4 | 8)
"""No set-user-id programs, no devices, nothing to execute."""
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
CAPABILITY_VERSION = 0x20080522
STACK_BYTES = 64 << 10
MAX_FILES, MAX_THREADS = 64, 64
INODES = 4096
PROGRAM_PID = 2
"""Of every program in its own process namespace, after the sleeper."""
NOBODY = 0x7FFFFFFF
"""No process has this number."""

IS_LINUX = sys.platform == "linux"


@dataclass(frozen=True)
class Bounds:
    """What one program may use.

    Args:
        memory_mb: Its address space, in MiB.
        cpu_s: Seconds of processor time, all threads together.
        file_mb: The longest file it can write, its output among them, in MiB.
        tmp_mb: All its files in /tmp together, in MiB.
    """

    memory_mb: int
    cpu_s: int
    file_mb: int
    tmp_mb: int


@dataclass(frozen=True)
class Plan:
    """How a child will be locked.

    Args:
        mount_options: Of its private /tmp; None where it gets none.
        limits: Name, number, soft and hard value of each limit.
    """

    mount_options: bytes | None
    limits: list[tuple[str, int, tuple[int, int]]]


class Jail:
    """Makes jails for children, with system calls that Python has no function for.

    Args:
        is_isolated: Within bubblewrap; otherwise there are no namespaces and mounts to be had.
        uid: The user and group that programs become, where this process may choose; else None.
    """

    def __init__(self, is_isolated: bool, uid: int | None) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._python = ctypes.PyDLL(None, use_errno=True)
        self._is_isolated, self._uid = is_isolated, uid
        self._stack = ctypes.create_string_buffer(STACK_BYTES)
        self._no_capabilities = (
            (ctypes.c_uint32 * 2)(CAPABILITY_VERSION),
            (ctypes.c_uint32 * 6)(),
        )
        if IS_LINUX:
            self._self = os.pidfd_open(os.getpid())
            zeros = [ctypes.c_ulong(0)] * 3
            self._call("prctl", PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *zeros)
            seccomp.Filter(seccomp.always(platform.machine())).load(self._libc)
            # Elsewhere its number is not known beforehand: no signals there.
            pids = {True: PROGRAM_PID, False: NOBODY}
            self._filters = {
                key: seccomp.Filter(seccomp.for_programs(platform.machine(), pid))
                for key, pid in pids.items()
            }

    def fork(self) -> int:
        """Fork as ``os.fork`` does, without what that does for processes with several threads.

        This process has one and holds the interpreter: the child can go on as it is. Python's own
        care touches, and thereby copies, four times as much memory as the fork itself.
        """
        pid = int(self._python.fork()) if IS_LINUX else os.fork()
        if pid < 0:
            raise OSError(ctypes.get_errno(), "fork")
        return pid

    def enter_process_namespace(self) -> int:
        """Make a process namespace for the next child; returns its first process.

        That one only sleeps, in this process's memory, which makes it cheap; when it is killed, the
        kernel kills all that lives in the namespace. Were the program itself the first process,
        signals it sends to itself would not reach it.
        """
        top = ctypes.addressof(self._stack) + len(self._stack)
        flags = CLONE_VM | CLONE_NEWPID | signal.SIGCHLD
        # The C library's own function: no code of Python may run there.
        sleeper = int(self._libc.clone(self._libc.pause, ctypes.c_void_p(top), flags, None))
        if sleeper < 0:
            raise OSError(ctypes.get_errno(), "clone: no process namespace")
        pidfd = os.pidfd_open(sleeper)
        try:
            self._call("setns", pidfd, CLONE_NEWPID)
        finally:
            os.close(pidfd)
        return sleeper

    def leave_process_namespace(self) -> None:
        """Let the next child be born here again."""
        self._call("setns", self._self, CLONE_NEWPID)

    def plan(self, bounds: Bounds, *, has_namespace: bool) -> "Plan":
        """Prepare ``lock``.

        Args:
            bounds: What the program may use.
            has_namespace: It will live in a process namespace of its own, and gets a mount
                namespace with a private /tmp.
        """
        owner = os.getuid() if self._uid is None else self._uid
        options = f"size={bounds.tmp_mb}m,nr_inodes={INODES},mode=0700,uid={owner},gid={owner}"
        return Plan(
            mount_options=options.encode() if has_namespace else None,
            limits=limits_of(bounds, counts_threads=self._is_isolated),
        )

    def lock(self, plan: "Plan") -> list[str]:
        """Give up, for good, what the program in this process may not have.

        Args:
            plan: From ``plan``, before the fork: what a child computes, it first has to copy.

        Returns:
            Which bounds this platform refuses to set.
        """
        if plan.mount_options is not None:
            self._call("unshare", CLONE_NEWNS)
            self._call("mount", b"tmpfs", b"/tmp", b"tmpfs", MOUNT_FLAGS, plan.mount_options)
        elif IS_LINUX:
            self._call("prctl", PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        refused = limit(plan.limits)
        if self._uid is not None:
            os.setgroups([])
            os.setresgid(self._uid, self._uid, self._uid)
            os.setresuid(self._uid, self._uid, self._uid)
        if IS_LINUX:
            self._call("capset", *self._no_capabilities)
            self._filters[plan.mount_options is not None].load(self._libc)
        return refused

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._libc, name)(*arguments):
            code = ctypes.get_errno()
            raise OSError(code, f"{name}: {os.strerror(code)}")


def limits_of(bounds: Bounds, *, counts_threads: bool) -> list[tuple[str, int, tuple[int, int]]]:
    """Limits of the kernel, none above those of this process.

    Args:
        bounds: How far.
        counts_threads: Bound their number, which the kernel counts for all processes of a user; in
            a sandbox, programs are alone with theirs.

    Returns:
        For each its name, its number, and its soft and hard value.
    """
    memory, file_bytes = bounds.memory_mb << 20, bounds.file_mb << 20
    wanted = [
        ("processor time", "RLIMIT_CPU", bounds.cpu_s, bounds.cpu_s),
        ("file size", "RLIMIT_FSIZE", file_bytes, file_bytes),
        ("open files", "RLIMIT_NOFILE", MAX_FILES, MAX_FILES),
        ("core dumps", "RLIMIT_CORE", 0, 0),
        # A stack may grow to all the memory: deep recursion is an honest way to solve a problem.
        # Its hard limit stays: programs ask for more than that and should not fail for it.
        ("stack", "RLIMIT_STACK", memory, resource.RLIM_INFINITY),
        ("memory", "RLIMIT_AS", memory, memory),
    ]
    if IS_LINUX:
        wanted.append(("locked memory", "RLIMIT_MEMLOCK", 0, 0))
    if counts_threads:
        wanted.append(("threads", "RLIMIT_NPROC", MAX_THREADS, MAX_THREADS))
    limits = []
    for name, which, soft, hard in wanted:
        number = getattr(resource, which)
        ceiling = resource.getrlimit(number)[1]
        if ceiling != resource.RLIM_INFINITY:
            hard = ceiling if hard == resource.RLIM_INFINITY else min(hard, ceiling)
            soft = min(soft, hard)
        limits.append((name, number, (soft, hard)))
    return limits


def limit(limits: list[tuple[str, int, tuple[int, int]]]) -> list[str]:
    """Bound this process; nothing it does afterwards can raise a hard limit again.

    Returns:
        Names of the limits that this platform refuses to set (macOS has none on memory).
    """
    refused = []
    for name, number, values in limits:
        try:
            resource.setrlimit(number, values)
        except (ValueError, OSError):
            refused.append(name)
    return refused
