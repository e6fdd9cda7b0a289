"""Give up powers: namespaces, mounts, limits, capabilities, system calls. In this order."""

import ctypes
import os
import resource
import signal
import sys
from dataclasses import dataclass

from . import seccomp

CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
CAPABILITY_VERSION = 0x20080522
MAX_FILES, MAX_THREADS = 64, 64
LOCKED_BYTES = 64 << 10
INODES = 4096

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


class Kernel:
    """System calls that Python has no function for.

    Args:
        uid: The user and group that programs become, where this process may choose; else None.
    """

    def __init__(self, uid: int | None) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._uid = uid
        self._self = os.pidfd_open(os.getpid()) if IS_LINUX else -1

    def prepare_pid_namespace(self) -> None:
        """Let the next child be the first process of a new process namespace."""
        # The namespace of the child before this one is dead, and nothing can be born in it.
        self._call("setns", self._self, CLONE_NEWPID)
        self._call("unshare", CLONE_NEWPID)

    def mount_private_tmp(self, bounds: Bounds) -> None:
        """Enter a mount namespace of one's own, with an empty, bounded /tmp."""
        self._call("unshare", CLONE_NEWNS)
        owner = os.getuid() if self._uid is None else self._uid
        options = f"size={bounds.tmp_mb}m,nr_inodes={INODES},mode=0700,uid={owner},gid={owner}"
        flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
        self._call("mount", b"tmpfs", b"/tmp", b"tmpfs", flags, options.encode())

    def adopt_orphans(self) -> None:
        """Become the parent of descendants whose parent ends."""
        if IS_LINUX:
            self._call("prctl", PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))

    def die_with_parent(self) -> None:
        """Be killed when the process that forked this one ends."""
        if IS_LINUX:
            self._call("prctl", PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))

    def drop_powers(self) -> None:
        """Become the programs' user, without capabilities, under the system-call filter."""
        if self._uid is not None:
            os.setgroups([])
            os.setresgid(self._uid, self._uid, self._uid)
            os.setresuid(self._uid, self._uid, self._uid)
        if IS_LINUX:
            zeros = [ctypes.c_ulong(0)] * 3
            self._call("prctl", PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *zeros)
            header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
            self._call("capset", header, (ctypes.c_uint32 * 6)())
            seccomp.load(self._libc, os.getpid())

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._libc, name)(*arguments):
            code = ctypes.get_errno()
            raise OSError(code, f"{name}: {os.strerror(code)}")


def limit(bounds: Bounds) -> list[str]:
    """Bound this process; nothing it does afterwards can raise a bound again.

    Returns:
        Which bounds this platform refuses (macOS has no limit on memory).
    """
    memory = bounds.memory_mb << 20
    wanted = {
        "processor time": ("RLIMIT_CPU", bounds.cpu_s, bounds.cpu_s),
        "file size": ("RLIMIT_FSIZE", bounds.file_mb << 20, bounds.file_mb << 20),
        "open files": ("RLIMIT_NOFILE", MAX_FILES, MAX_FILES),
        "threads": ("RLIMIT_NPROC", MAX_THREADS, MAX_THREADS),
        "core dumps": ("RLIMIT_CORE", 0, 0),
        "locked memory": ("RLIMIT_MEMLOCK", LOCKED_BYTES, LOCKED_BYTES),
        "message queues": ("RLIMIT_MSGQUEUE", 0, 0),
        # Deep recursion is an honest way to solve a problem: the stack may take what memory there
        # is, and a program that asks for more is not refused by this.
        "stack": ("RLIMIT_STACK", memory, resource.RLIM_INFINITY),
        "memory": ("RLIMIT_AS", memory, memory),
    }
    refused = []
    for name, (which, soft, hard) in wanted.items():
        number = getattr(resource, which, None)
        try:
            if number is None:
                raise ValueError(which)
            ceiling = resource.getrlimit(number)[1]
            if ceiling != resource.RLIM_INFINITY:
                is_endless = hard == resource.RLIM_INFINITY
                hard = ceiling if is_endless else min(hard, ceiling)
                soft = min(soft, hard)
            resource.setrlimit(number, (soft, hard))
        except (ValueError, OSError):
            refused.append(name)
    return refused
