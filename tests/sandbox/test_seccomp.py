"""The system-call filter of both machines, by an interpreter of its instructions."""

import struct

import pytest

from gradmass.rewards.sandbox.inside import seccomp

PID = 2
THREAD = 0x003D0F00  # the flags of pthread_create
NEW_PROCESS = 0x01200011  # those of fork
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CALLS = {
    # name: (x86_64, aarch64), from the kernel's tables
    "read": (0, 63), "openat": (257, 56), "mmap": (9, 222), "futex": (202, 98),
    "exit_group": (231, 94), "getrandom": (318, 278), "sched_yield": (24, 124),
    "execve": (59, 221), "ptrace": (101, 117), "unshare": (272, 97), "mount": (165, 40),
    "bpf": (321, 280), "io_uring_setup": (425, 425), "memfd_create": (319, 279),
    "clone": (56, 220), "clone3": (435, 435), "socket": (41, 198), "kill": (62, 129),
    "tgkill": (234, 131), "prlimit64": (302, 261),
}  # fmt: skip


def verdict(lines, architecture: int, number: int, argument: int = 0) -> str:
    """Run a filter on one call."""
    data = struct.pack("<IIQQ", number, architecture, 0, argument)
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, operand = lines[position]
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif code == 0x06:
            return {0x7FFF0000: "allow", 0x80000000: "kill"}.get(
                operand, f"errno {operand & 0xFFFF}"
            )
        else:
            is_true = {
                0x15: accumulator == operand,
                0x35: accumulator >= operand,
                0x45: bool(accumulator & operand),
            }[code]
            position += if_true if is_true else if_false


def both(machine: str, name: str, argument: int = 0) -> str:
    """What a program meets: the filter of all and its own; the stricter counts."""
    number = CALLS[name][list(MACHINES).index(machine)]
    filters = (seccomp.always(machine), seccomp.for_programs(machine, PID))
    found = {verdict(lines, MACHINES[machine], number, argument) for lines in filters}
    return "allow" if found == {"allow"} else (found - {"allow"}).pop()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        *((name, 0, "allow") for name in list(CALLS)[:7]),
        *((name, 0, "errno 1") for name in list(CALLS)[7:14]),
        ("clone", THREAD, "allow"),
        ("clone", NEW_PROCESS, "errno 1"),
        ("clone3", 0, "errno 38"),
        ("socket", 1, "allow"),
        ("socket", 2, "errno 97"),
        ("socket", 40, "errno 97"),
        ("kill", PID, "allow"),
        ("kill", 1, "errno 1"),
        ("kill", 0, "errno 1"),
        ("kill", 2**32 - 1, "errno 1"),
        ("tgkill", PID, "allow"),
        ("tgkill", 1, "errno 1"),
        ("prlimit64", 0, "allow"),
        ("prlimit64", PID, "allow"),
        ("prlimit64", 1, "errno 1"),
    ],
)
def test_calls_are_allowed_or_refused(machine, name, argument, expected):
    assert both(machine, name, argument) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_another_architecture_is_killed(machine):
    for lines in (seccomp.always(machine), seccomp.for_programs(machine, PID)):
        assert verdict(lines, 0x40000003, 1) == "kill"  # 32-bit x86


def test_the_other_names_of_calls_on_x86_64_are_refused():
    for lines in (seccomp.always("x86_64"), seccomp.for_programs("x86_64", PID)):
        assert verdict(lines, MACHINES["x86_64"], 0x40000000 + 59) == "errno 1"


def test_what_makes_a_jail_is_refused_to_programs_alone():
    number = CALLS["unshare"][0]
    assert verdict(seccomp.always("x86_64"), MACHINES["x86_64"], number) == "allow"
    assert verdict(seccomp.for_programs("x86_64", PID), MACHINES["x86_64"], number) == "errno 1"
