"""Graders that lied, as reported by those who were lied to; each kind of lie is tested whole."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradmass.rewards.code import (
    AssertTest,
    CallTest,
    CodeProblem,
    CodeVerifier,
    Comparison,
    StdinTest,
)
from gradmass.rewards.sandbox.inside import jail
from gradmass.types import UsageError


@pytest.fixture(scope="module")
def verifier():
    with CodeVerifier(num_workers=2, code_block="whole") as verifier:
        yield verifier


@pytest.fixture
def judge(verifier):
    return lambda problem, program: verifier.verify([problem], [program])[0]


def prints(stdout: str, stdin: str = "", **options) -> CodeProblem:
    return CodeProblem((StdinTest(stdin, stdout),), **options)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise SystemExit",
        "quit()",
        "import atexit, os; atexit.register(lambda: os._exit(0))",
        "print('1 passed')",
    ],
)
@pytest.mark.parametrize("test", ["assert 1 == 2 and f", "assert f(1) == 2"])
def test_a_program_that_leaves_before_the_asserts_is_not_right(judge, code, test):
    assert judge(CodeProblem((AssertTest(test),), "f"), code).outcome == "wrong"


def test_a_busy_loop_is_stopped(judge):
    started = time.monotonic()
    assert judge(prints("", time_limit_s=2.0), "while True: pass").outcome == "timeout"
    assert time.monotonic() - started < 4.0


def test_a_grandchild_cannot_keep_the_pipe_open(judge):
    code = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(8)'])\nprint(42)"
    )
    started = time.monotonic()
    verdict = judge(prints("42", time_limit_s=3.0), code)
    assert time.monotonic() - started < 1.5
    assert verdict.outcome == "wrong"
    assert "PermissionError" in verdict.detail


def test_threads_work_up_to_a_number(judge):
    code = (
        "import threading\n"
        "threads = [threading.Thread(target=print, args=('x',)) for _ in range(40)]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()"
    )
    assert judge(prints("x\n" * 40), code).outcome == "right"


def test_a_stack_of_its_own_for_deep_recursion(judge):
    code = (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 27)\n"
        "def depth(n): return 0 if n == 0 else 1 + depth(n - 1)\n"
        "t = threading.Thread(target=lambda: print(depth(50000)))\nt.start(); t.join()"
    )
    assert judge(prints("50000"), code).outcome == "right"


def test_a_megabyte_of_output_is_no_deadlock(judge):
    assert judge(prints("x" * (1 << 20)), "print('x' * (1 << 20))").outcome == "right"


def test_huge_output_costs_the_judge_little_memory(judge):
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verdict = judge(prints(""), "import sys\nwhile True: sys.stdout.write('x' * 65536)")
    assert (verdict.outcome, verdict.detail) == ("wrong", "output limit: it printed too much")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_numpy_runs_within_the_memory_limit_whatever_the_number_of_cores(judge, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "64")
    program = "import numpy; print(numpy.ones(3).sum())"
    assert judge(prints("3.0", memory_mb=1024), program).outcome == "right"
    with CodeVerifier(num_workers=1, code_block="whole") as another:
        problem = prints("3.0", memory_mb=512)
        assert another.verify([problem], [program])[0].outcome == "right"


def test_a_limit_the_platform_lacks_is_named_and_stops_nothing(monkeypatch):
    real = jail.resource.setrlimit

    def without_memory(number, values):
        if number == jail.resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")
        if number == jail.resource.RLIMIT_CORE:
            real(number, values)

    monkeypatch.setattr(jail.resource, "setrlimit", without_memory)
    bounds = jail.Bounds(memory_mb=64, cpu_s=1, file_mb=1, tmp_mb=1)
    assert jail.limit(jail.limits_of(bounds, counts_threads=False)) == ["memory"]


def test_a_slow_machine_is_no_timeout_by_default(judge):
    assert judge(prints("1"), "import time; time.sleep(0.2); print(1)").outcome == "right"
    slow = judge(prints("1", time_limit_s=0.05), "import time; time.sleep(0.2); print(1)")
    assert slow.outcome == "timeout"
    assert "of processor time" in slow.detail


def test_main_runs(judge):
    code = "def main():\n    print(int(input()) * 2)\nif __name__ == '__main__':\n    main()"
    assert judge(prints("8", "4\n"), code).outcome == "right"


def test_main_does_not_run_where_functions_are_called(judge):
    code = "def f(x): return x\nif __name__ == '__main__':\n    print(int(input()))"
    assert judge(CodeProblem((CallTest((1,), 1),), "f"), code).outcome == "right"


@pytest.mark.parametrize(
    ("expected", "printed", "comparison", "outcome"),
    [
        ("0.333333", "0.333333333333", {}, "right"),
        ("3.0000001 2.9999999", "3 3", {}, "right"),
        ("1 2 3 \n", "1 2 3", {}, "right"),
        ("1\n2", "1 2", {}, "wrong"),
        ("1\n2", "1 2", {"match_lines": False}, "right"),
        ("YES", "Yes", {}, "wrong"),
        ("YES", "Yes", {"match_case": False}, "right"),
        ("10000000000000001", "10000000000000000", {}, "wrong"),
    ],
)
def test_output_is_compared_as_the_problem_says(judge, expected, printed, comparison, outcome):
    problem = prints(expected, comparison=Comparison(**comparison))
    assert judge(problem, f"print({printed!r})").outcome == outcome


@pytest.mark.parametrize("data", [{"tests": []}, {}, {"tests": [{}]}, {"tests": None}])
def test_a_problem_without_tests_is_refused(data):
    with pytest.raises(UsageError, match="test"):
        CodeProblem.from_json(data)


@pytest.mark.parametrize("test", [StdinTest("", ""), CallTest((), None), AssertTest("f")])
def test_what_does_not_compile_never_passes(judge, test):
    assert judge(CodeProblem((test,), "f"), "garbage(").outcome != "right"


def test_the_last_block_is_not_always_the_solution():
    completion = (
        "```python\ndef add(a,b):\n    return a+b\n```\nUsage:\n```python\nprint(add(1,2))\n```"
    )
    problem = CodeProblem((CallTest((1, 2), 3),), "add")
    for rule in ("last", "first", "longest"):
        with CodeVerifier(num_workers=1, code_block=rule) as verifier:
            assert verifier.verify([problem], [completion])[0].outcome == "right"
            assert verifier.settings["code_block"] == rule


@pytest.mark.parametrize(
    ("output", "outcome"),
    [("0 1", "right"), ("1 0", "right"), ("2 3", "right"), ("0 3", "wrong"), ("x", "wrong"),
     ("", "wrong")],
)  # fmt: skip
def test_a_checker_accepts_every_right_output(judge, output, outcome):
    numbers = [1, 2, 3, 0, 0]

    def sums_to_three(test, text):
        i, j = map(int, text.split())
        return i != j and numbers[i] + numbers[j] == 3 and test.stdout == "0 1"

    problem = prints("0 1", "1 2 3 0 0", checker=sums_to_three)
    verdict = judge(problem, f"print({output!r})")
    assert verdict.outcome == outcome


def test_a_missing_sandbox_is_never_a_weaker_one(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match=r"not installed: apt-get install bubblewrap \(or choose"):
        CodeVerifier()


def test_the_weaker_isolation_is_a_choice_that_is_recorded():
    with CodeVerifier(num_workers=1, isolation="process", code_block="whole") as verifier:
        assert verifier.settings["isolation"] == "process"
        programs = ["print(1)", "while True: pass", "import os; os.fork()", "x = bytearray(1<<31)"]
        verdicts = verifier.verify([prints("1", time_limit_s=1.0)] * 4, programs)
    assert [v.outcome for v in verdicts] == ["right", "timeout", "wrong", "wrong"]


def test_a_crash_of_what_a_model_wrote_is_wrong_and_not_an_error(judge):
    problem = CodeProblem((CallTest(("asdf",), 1),), "f")
    for program in ("def f(x): return int(x)", "def f(x): return {}[x]", "f = 3", "def g(): pass"):
        assert judge(problem, program).outcome == "wrong"


def test_a_judge_that_ends_without_closing_leaves_nothing_behind():
    code = (
        "import os, sys\nfrom gradmass.rewards.code import *\n"
        "v = CodeVerifier(1, code_block='whole')\n"
        "print(v._pool._judges[0].prepare()._process.pid, flush=True)\nos._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    deadline = time.monotonic() + 5.0
    while Path(f"/proc/{done.stdout.strip()}").exists():
        assert time.monotonic() < deadline, "the sandbox outlives its process"
        time.sleep(0.05)
