"""A system-call filter: what a program that computes never needs is refused by the kernel.

One process, which may have threads, starts no other and runs no other file; no sockets but local
ones; no signals but to itself; no memory outside its address space; none of the system calls that
only an administrator, a debugger or an exploit uses.
"""

import ctypes
import struct

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
CLONE_THREAD = 0x00010000
AF_UNIX = 1
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2

# Instructions of classic BPF, and where seccomp_data holds what they load.
LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16

# Architecture as the kernel names it, column in the table below.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# Numbers on x86_64 and aarch64; None where a machine has no such call.
CLONE, CLONE3 = (56, 220), (435, 435)
SOCKETS = {"socket": (41, 198), "socketpair": (53, 199)}
SIGNALS = {"kill": (62, 129), "tgkill": (234, 131)}
PRLIMIT = (302, 261)
Numbers = tuple[int | None, int | None]
# What a jail is made with, and no program needs.
SETUP: dict[str, Numbers] = {
    "fork": (57, None), "vfork": (58, None), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "pidfd_open": (434, 434), "setpgid": (109, 154), "setsid": (112, 157),
}  # fmt: skip
DENIED: dict[str, Numbers] = {
    # Another file, another view of the file system.
    "execve": (59, 221), "execveat": (322, 281), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # Other processes: their memory, files and signals.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    # Memory that the limit on the address space does not count, or that outlives the process.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "shmat": (30, 196), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    # Wide doors into the kernel.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_setup": (206, 0), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "vmsplice": (278, 75), "fanotify_init": (300, 262), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "personality": (135, 92), "modify_ldt": (154, None),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    # The machine itself.
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "swapon": (167, 224),
    "swapoff": (168, 225), "acct": (163, 89), "sethostname": (170, 161),
    "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "syslog": (103, 116),
    "iopl": (172, None), "ioperm": (173, None),
}  # fmt: skip
Line = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def always(machine: str) -> list[Line]:
    """What neither programs nor the process that jails them may call; loaded once, inherited.

    Args:
        machine: As ``platform.machine()`` names it; one of ``MACHINES``.

    Returns:
        Instructions: code, jump if true, jump if false, operand.
    """
    column = MACHINES[machine][1]
    lines = _start(machine)
    for numbers in DENIED.values():
        lines += _refuse(numbers[column], EPERM)
    # The C library then asks by clone, whose flags can be seen.
    lines += _refuse(CLONE3[column], ENOSYS)
    return [*lines, (RETURN, 0, 0, ALLOW)]


def for_programs(machine: str, pid: int) -> list[Line]:
    """What programs may not call in addition; short, because it is loaded for each.

    Args:
        machine: As ``platform.machine()`` names it; one of ``MACHINES``.
        pid: The process whose filter it is, the only one it may signal.
    """
    column = MACHINES[machine][1]
    lines = _start(machine)
    for numbers in SETUP.values():
        lines += _refuse(numbers[column], EPERM)
    is_thread = [(LOAD, 0, 0, FIRST_ARGUMENT), (JUMP_ANY_BIT, 1, 0, CLONE_THREAD)]
    lines += _allow_if(CLONE[column], is_thread, EPERM)
    for numbers in SOCKETS.values():
        lines += _allow_if(numbers[column], _first_argument_in(AF_UNIX), EAFNOSUPPORT)
    for numbers in SIGNALS.values():
        lines += _allow_if(numbers[column], _first_argument_in(pid), EPERM)
    lines += _allow_if(PRLIMIT[column], _first_argument_in(0, pid), EPERM)
    return [*lines, (RETURN, 0, 0, ALLOW)]


def _start(machine: str) -> list[Line]:
    lines = [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, MACHINES[machine][0]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    if machine == "x86_64":  # the x32 numbers, which are the same calls under another name
        lines += [(JUMP_GREATER_EQUAL, 0, 1, 0x40000000), (RETURN, 0, 0, ERRNO | EPERM)]
    return lines


def _refuse(number: int | None, errno: int) -> list[Line]:
    return [] if number is None else [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | errno)]


def _allow_if(number: int, test: list[Line], errno: int) -> list[Line]:
    """For one call: allow it where a jump of the test goes past the refusal."""
    block = [*test, (RETURN, 0, 0, ERRNO | errno), (RETURN, 0, 0, ALLOW)]
    return [(JUMP_EQUAL, 0, len(block), number), *block]


def _first_argument_in(*values: int) -> list[Line]:
    jumps = [(JUMP_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [(LOAD, 0, 0, FIRST_ARGUMENT), *jumps]


class Filter:
    """A filter in the form the kernel reads, made once and loaded by any child.

    Args:
        lines: Its instructions.
    """

    def __init__(self, lines: list[Line]) -> None:
        packed = b"".join(struct.pack("HBBI", *line) for line in lines)
        self._buffer = ctypes.create_string_buffer(packed, len(packed))
        self._program = _Program(len(lines), ctypes.addressof(self._buffer))

    def load(self, libc: ctypes.CDLL) -> None:
        """Put this process and its children under the filter, for good.

        ``no_new_privs`` must be set already.

        Raises:
            OSError: The kernel refuses the filter.
        """
        mode = ctypes.c_ulong(SECCOMP_MODE_FILTER)
        if libc.prctl(PR_SET_SECCOMP, mode, ctypes.byref(self._program)):
            raise OSError(ctypes.get_errno(), "the kernel refuses the system-call filter")
