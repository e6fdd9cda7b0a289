"""Verdicts: one for each completion, in its place, whatever the others do; a pool that lasts."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradmass.rewards import code
from gradmass.rewards.code import AssertTest, CallTest, CodeProblem, CodeVerifier, StdinTest
from gradmass.rewards.sandbox import Code, Limits, SandboxLost, Worker, bubblewrap
from gradmass.types import UsageError

DOUBLE = CodeProblem((CallTest((1,), 2), CallTest((2,), 4), CallTest((3,), 6)), "f")
ECHO = CodeProblem((StdinTest("a", "a"), StdinTest("b", "b")))
RIGHT = "def f(x): return 2 * x"


@pytest.fixture(scope="module")
def verifier():
    with CodeVerifier(num_workers=2, code_block="whole") as verifier:
        yield verifier


@pytest.fixture
def judge(verifier):
    return lambda problem, program: verifier.verify([problem], [program])[0]


def summary(verdict):
    return verdict.outcome, verdict.detail, verdict.num_passed, verdict.num_tests


def test_verdicts_stand_in_the_order_of_the_completions(verifier):
    programs = [f"print(input() * {n % 3})" for n in range(30)]
    outcomes = [verdict.outcome for verdict in verifier.verify([ECHO] * 30, programs)]
    assert outcomes == ["right" if n % 3 == 1 else "wrong" for n in range(30)]


def test_no_completions_no_verdicts(verifier):
    assert verifier.verify([], []) == []


def test_the_first_failure_ends_it_or_not(verifier):
    program = "def f(x): return 2 * x if x != 2 else 0"
    assert summary(verifier.verify([DOUBLE], [program])[0]) == (
        "wrong", "test 2 of 3: returned 0, not 4", 1, 3,
    )  # fmt: skip
    with CodeVerifier(1, code_block="whole", stop_at_first_failure=False) as thorough:
        programs = [program, "import os\ndef f(x): return 2 * x if x != 2 else os._exit(0)", RIGHT]
        verdicts = thorough.verify([DOUBLE] * 3, programs)
        (printed,) = thorough.verify([ECHO], ["print('b')"])
    assert [summary(verdict) for verdict in [*verdicts, printed]] == [
        ("wrong", "test 2 of 3: returned 0, not 4", 2, 3),
        ("wrong", "test 2 of 3: it ended by itself before it answered", 2, 3),
        ("right", "", 3, 3),
        ("wrong", "test 1 of 2: printed 'b', not 'a'", 1, 2),
    ]


def test_a_completion_without_a_code_block_is_unparsed():
    with CodeVerifier(1) as verifier:
        fenced = f"```python\n{RIGHT}\n```"
        verdicts = verifier.verify([DOUBLE] * 3, [RIGHT, fenced, ""])
    assert [verdict.outcome for verdict in verdicts] == ["unparsed", "right", "unparsed"]


@pytest.mark.parametrize(
    "program",
    [
        "class Solution:\n    def f(self, x): return 2 * x",
        "from functools import partial\nimport operator\nf = partial(operator.mul, 2)",
        "class Solution:\n    @staticmethod\n    def f(x: int) -> int:\n        return 2 * x",
    ],
)
def test_an_entry_point_is_a_function_or_a_method_of_solution(judge, program):
    assert judge(DOUBLE, program).outcome == "right"


@pytest.mark.parametrize(
    ("value", "expression"),
    [
        ([1, 2.5, "x", None, True], "[1, 2.5, 'x', None, True]"),
        ((1, (2,)), "(1, (2,))"),
        ({1: {2: 3}}, "{1: {2: 3}}"),
        ({1, 2}, "{2, 1}"),
        (frozenset({1}), "frozenset({1})"),
        (b"\0\xff", "b'\\0\\xff'"),
        (1 + 2j, "1 + 2j"),
        (3**5000, "3 ** 5000"),
        (float("inf"), "float('inf')"),
        ("\ud800", "chr(0xd800)"),
        ([[1, 2], [3, 4]], "__import__('numpy').arange(1, 5).reshape(2, 2)"),
        (3, "__import__('numpy').int64(3)"),
        ({"a": 1}, "__import__('collections').Counter('a')"),
        ([1, 2], "__import__('collections').namedtuple('P', 'x y')(1, 2)"),
    ],
)
def test_plain_data_arrives_as_it_was_sent(judge, value, expression):
    problem = CodeProblem((CallTest((value,), value),), "f")
    verdict = judge(problem, f"def f(x):\n    y = {expression}\n    return y")
    assert verdict.outcome == "right", verdict
    assert judge(problem, "def f(x): return x").outcome == "right"


def test_what_tests_need_of_the_program_they_get(judge):
    test = AssertTest(
        "assert longest([Pair(1, 2), Pair(3, 9)]).area(Pair(0, 1)) == 6\n"
        "assert f(x=1) == 2\n"
        "try:\n    f('x')\nexcept TypeError as error:\n    assert 'int' in str(error)\n"
        "else:\n    assert False"
    )
    program = (
        "def f(x): return 1 + x if isinstance(x, int) else x + 1\n"
        "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n"
        "def longest(pairs):\n    best = max(pairs, key=lambda p: p.b - p.a)\n"
        "    return lambda: best.b - best.a\n"
    )
    test_of_objects = AssertTest("assert longest([Pair(1, 2), Pair(3, 9)])() == 6")
    problem = CodeProblem((test_of_objects, AssertTest(test.code.split("\n", 1)[1])))
    assert summary(judge(problem, program)) == ("right", "", 2, 2)


def test_the_prelude_is_the_problems_own_in_both_processes(judge):
    prelude = "def helper(x):\n    return 2 * x\n\ndef f(x):\n    '''Double it.'''\n"
    test = AssertTest("def check(candidate):\n    assert candidate(1) == helper(1) == 2")
    problem = CodeProblem((test,), "f", prelude=prelude)
    assert judge(problem, "def f(x): return helper(x)").outcome == "right"
    # A helper that the program bends bends only for itself.
    cheat = "def f(x): return 3\ndef helper(x): return 3"
    assert judge(problem, cheat).outcome == "wrong"


def test_a_test_that_never_calls_the_program_says_nothing_of_it(judge):
    verdict = judge(CodeProblem((AssertTest("assert True"),)), RIGHT)
    assert (verdict.outcome, verdict.detail) == ("error", "the test never calls the program")


def test_input_may_be_read_in_every_way(judge):
    reads = [
        "input()", "sys.stdin.readline()", "sys.stdin.read()", "open(0).read()",
        "os.read(0, os.fstat(0).st_size).decode()", "sys.stdin.buffer.readline().decode()",
        "''.join(sys.stdin)", "fileinput.input().__next__()",
    ]  # fmt: skip
    problem = CodeProblem((StdinTest("héllo\n", "héllo"),))
    for read in reads:
        verdict = judge(problem, f"import fileinput, os, sys\nprint({read})")
        assert verdict.outcome == "right", (read, verdict)


def test_output_may_be_written_in_every_way(judge):
    writes = [
        "sys.stdout.write('a')", "sys.stdout.buffer.write(b'a')", "os.write(1, b'a')",
        "open(1, 'w', closefd=False).write('a')", "x = open(1, 'w'); x.write('a')",
        "atexit.register(print, 'a')", "print('a', flush=True); sys.stdout.close()",
        "threading.Thread(target=print, args='a').start()", "print('a'); sys.exit()",
    ]  # fmt: skip
    problem = CodeProblem((StdinTest("", "a"),))
    for write in writes:
        verdict = judge(problem, f"import atexit, os, sys, threading\n{write}")
        assert verdict.outcome == "right", (write, verdict)


def test_programs_start_from_the_same_state(judge):
    program = "import random\nprint(random.random(), list({'a', 'b', 'c'}), hash('x'))"
    details = {judge(CodeProblem((StdinTest("", "x"),)), program).detail for _ in range(5)}
    assert len(details) == 1


def test_threads_share_a_verifier(verifier):
    def run(number):
        program = f"print(input() * {number % 2})"
        return [verdict.outcome for verdict in verifier.verify([ECHO] * 5, [program] * 5)]

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(run, range(12)))
    assert found == [["right" if number % 2 else "wrong"] * 5 for number in range(12)]


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in children for found in (int(child), *descendants(int(child)))]


def processes_of(verifier) -> list[int]:
    return [judge.prepare()._process.pid for judge in verifier._pool._judges]


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_sandbox_that_misbehaves_is_replaced_and_the_program_tried_again(monkeypatch, sign):
    monkeypatch.setattr("gradmass.rewards.sandbox.worker.GRACE_S", 0.5)
    problem = CodeProblem((StdinTest("a", "a"),), time_limit_s=1.0)
    with CodeVerifier(1, code_block="whole") as verifier:
        (first,) = processes_of(verifier)
        *_, warm_interpreter = descendants(first)
        threading.Timer(0.3, os.kill, (warm_interpreter, sign)).start()
        slow = "import time; time.sleep(0.6); print(input())"
        verdicts = verifier.verify([problem] * 2, [slow, "print(input())"])
        (second,) = processes_of(verifier)
    assert [verdict.outcome for verdict in verdicts] == ["right", "right"]
    assert first != second
    assert not Path(f"/proc/{first}").exists()


def test_machinery_that_fails_is_an_error_and_no_verdict_on_the_program(monkeypatch):
    with CodeVerifier(1, code_block="whole") as verifier:

        def fail(*arguments):
            raise SandboxLost("the disk is full")

        verifier._pool._judges[0].discard()
        monkeypatch.setattr(code, "Worker", fail)
        verdicts = verifier.verify([ECHO], ["print(input())"])
        monkeypatch.undo()
        verdicts += verifier.verify([ECHO], ["print(input())"])
    assert [verdict.outcome for verdict in verdicts] == ["error", "right"]
    assert verdicts[0].detail == "sandbox: the disk is full"
    assert not verdicts[0].is_scorable


def test_a_jail_that_cannot_be_made_is_an_error_and_the_next_can():
    worker = Worker("bubblewrap", ())
    with pytest.raises(SandboxLost, match="OverflowError"):
        worker.run("script", Code("print(1)"), Limits(wall_s=1.0, memory_mb=2**60))
    ended = worker.run("script", Code("print(1)"), Limits(wall_s=9.0, memory_mb=256))
    worker.close()
    assert (ended.code, ended.stdout) == (0, b"1\n")


def test_closing_ends_what_runs_and_leaves_nothing():
    files = len(list(Path("/proc/self/fd").iterdir()))
    verifier = CodeVerifier(1, code_block="whole")
    (pid,) = processes_of(verifier)
    problem = CodeProblem((StdinTest("", ""),), time_limit_s=60.0)
    refused = []

    def judge():
        with pytest.raises(UsageError) as caught:
            verifier.verify([problem] * 3, ["while True: pass"] * 3)
        refused.append(str(caught.value))

    threads = [threading.Thread(target=judge) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    started = time.monotonic()
    verifier.close()
    for thread in threads:
        thread.join()
    assert time.monotonic() - started < 5.0
    assert refused == ["the verifier was closed while it was at work"] * 3
    assert not Path(f"/proc/{pid}").exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    verifier.close()
    with pytest.raises(UsageError, match="closed"):
        verifier.verify([ECHO], ["print(input())"])


def interpreter_for_others() -> str:
    """The one that runs here, or the system's where this one lies in a closed folder."""
    own = Path(bubblewrap.interpreter())
    is_open = all(folder.stat().st_mode & 0o001 for folder in (own, *own.parents))
    return str(own) if is_open else "/usr/bin/python3"


@pytest.fixture
def open_folder():
    """A folder that every user may read; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_an_ordinary_user_is_isolated_as_well(open_folder):
    """Without root, the sandbox is made of user namespaces: same programs, same verdicts."""
    script = (
        "from gradmass.rewards.code import *\n"
        "with CodeVerifier(1, code_block='whole', packages=()) as v:\n"
        "    problem = CodeProblem((StdinTest('', '2 False'),))\n"
        "    program = 'import os; print(os.getpid(), os.path.exists(\"/proc/self\"))'\n"
        "    print(*v.verify([problem] * 2, [program, 'import os; os.setuid(0)']))\n"
    )
    command = [sys.executable, "-c", script]
    environment = dict(os.environ)
    if os.geteuid() == 0:
        # Root's own interpreter may be out of reach for others: the system's is not.
        source = open_folder / "gradmass"
        subprocess.run(["cp", "-r", str(Path(code.__file__).parents[1]), source], check=True)
        subprocess.run(["chmod", "-R", "a+rX", open_folder], check=True)
        command = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
        command += [interpreter_for_others(), "-c", script]
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(open_folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
    assert done.stderr == ""
    assert [part.split(":")[0] for part in done.stdout.split("<Outcome.")[1:]] == ["RIGHT", "WRONG"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "num_workers must be at least 1, got 0"),
        ({"isolation": "docker"}, "'docker' is not one of bubblewrap, process"),
        ({"code_block": "second"}, "'second' is not one of last, first, longest, whole"),
        ({"packages": ["no-such-package"]}, "pip install no-such-package"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        CodeVerifier(**options)


def test_as_many_problems_as_completions(verifier):
    with pytest.raises(UsageError, match="1 problems for 2 completions"):
        verifier.verify([ECHO], ["", ""])


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        ({"release": "5.10.0-1-amd64"}, "needs Linux 5.14 or later, and this is 5.10.0-1-amd64"),
        ({"machine": "riscv64"}, "knows x86_64 and aarch64, and this is riscv64"),
    ],
)
def test_a_machine_that_cannot_isolate_is_refused(monkeypatch, machine, message):
    for name, value in machine.items():
        monkeypatch.setattr(bubblewrap.platform, name, lambda value=value: value)
    with pytest.raises(UsageError, match=message):
        CodeVerifier()


BENT = {
    "math": (
        "import math\nmath.sqrt = f\nassert f(1)", "import math\nassert f(4) == math.sqrt(64)",
    ),
    "builtins": (
        "import builtins\nbuiltins.max = f\nassert f(1)", "assert f(1) == 2 == max(2, 1)",
    ),
    "sys through another module": (
        "import typing\ntyping.sys.setrecursionlimit(50)\nassert f(1)",
        "def deep(n): return n and 1 + deep(n - 1)\nassert f(100) == 2 * deep(100)",
    ),
    "a table": (
        "import copy\ncopy.dispatch_table[int] = f\nassert f(1)",
        "import copy\nassert f(1) == 2 and int not in copy.dispatch_table",
    ),
    "random draws": (
        "import random\nrandom.seed(5)\nrandom.random()\nassert f(1)",
        "import random\nassert f(1) == 2 and str(random.random()) == '0.8444218515250481'",
    ),
    "names": ("leftover = f(1)", "assert f(1) == 2\ntry:\n    leftover.x\nexcept Exception: pass\n"
              "else: assert False"),
}  # fmt: skip


@pytest.mark.parametrize("name", BENT)
def test_no_test_changes_what_the_next_one_sees(name):
    bend, check = BENT[name]
    with CodeVerifier(1, code_block="whole") as verifier:
        problems = [CodeProblem((AssertTest(text),), "f") for text in (bend, check)]
        verdicts = verifier.verify(problems, [RIGHT, RIGHT])
    assert [verdict.outcome for verdict in verdicts] == ["right", "right"], verdicts


def test_tests_that_stop_or_die_do_not_stop_those_after(judge):
    stuck = CodeProblem((AssertTest("f(1)\nwhile True: pass"),), "f", time_limit_s=0.5)
    assert judge(stuck, RIGHT).outcome == "timeout"
    full = CodeProblem((AssertTest("f(1)\nx = [0]\nwhile True: x += x"),), "f", memory_mb=128)
    assert (judge(full, RIGHT).outcome, judge(full, RIGHT).detail) == (
        "wrong", "MemoryError (line 3)",
    )  # fmt: skip
    dead = CodeProblem((AssertTest("f(1)\nimport os\nos._exit(3)"),), "f")
    assert judge(dead, RIGHT).detail == "exit code 3"
    fine = CodeProblem((AssertTest("assert f(1) == 2"),), "f")
    assert judge(fine, RIGHT).outcome == "right"
