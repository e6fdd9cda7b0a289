"""Whose failure it is: the program's, the problem's, or the machinery's."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from gradmass.rewards.code import AssertTest, CallTest, CodeProblem, CodeVerifier, StdinTest
from gradmass.rewards.code_judge import Judge
from gradmass.rewards.sandbox import Code, Limits, SandboxLost, Worker
from gradmass.rewards.sandbox.inside import wire
from gradmass.tasks.functions import HumanEval
from gradmass.types import UsageError

TESTS = {
    "stdin": StdinTest("", "2"),
    "call": CallTest((1,), 2),
    "check": AssertTest("assert f(1) == 2"),
}
RIGHT = "def f(x): return 2 * x\nprint(2)"


@pytest.fixture(scope="module")
def judge():
    with CodeVerifier(1, code_block="whole") as verifier:
        yield lambda problem, program: verifier.verify([problem], [program])[0]


@pytest.mark.parametrize("kind", TESTS)
@pytest.mark.parametrize(
    ("prelude", "cause"),
    [
        ("x = 1\nimport nonexist", "ModuleNotFoundError: No module named 'nonexist' (line 2)"),
        ("def g(): return 1 / 0\n\ng()", "ZeroDivisionError: division by zero (line 1)"),
        ("raise ValueError('a' * 999)", "ValueError: aaa"),
    ],
)
def test_a_prelude_that_raises_is_not_charged_to_the_program(judge, kind, prelude, cause):
    verdict = judge(CodeProblem((TESTS[kind],), "f", prelude=prelude), RIGHT)
    assert verdict.outcome == "error"
    assert verdict.detail.startswith("the problem's prelude fails by itself: ")
    assert f"in the prelude: {cause}" in verdict.detail


@pytest.mark.parametrize("kind", TESTS)
@pytest.mark.parametrize(
    "program",
    [
        "import os\nos.write(2, b'in the prelude: ModuleNotFoundError (line 1)\\n')\nos._exit(1)",
        "exec(compile('1 / 0', 'prelude.py', 'exec'))",
        "raise ImportError('in the prelude: no')",
        "def f(x): raise ImportError('in the prelude: no')\nif __name__ == '__main__': f(1)",
        "helper(0)",
    ],
)
def test_a_program_that_blames_the_prelude_stays_wrong(judge, kind, program):
    prelude = "def helper(x):\n    return 1 / x"
    assert judge(CodeProblem((TESTS[kind],), "f", prelude=prelude), RIGHT).outcome == "right"
    assert judge(CodeProblem((TESTS[kind],), "f", prelude=prelude), program).outcome == "wrong"


def test_what_is_compiled_as_text_is_not_executed(tmp_path):
    mark = tmp_path / "ran"
    touch = f"open({str(mark)!r}, 'w')"
    CodeProblem((AssertTest(f"{touch}\nf(1)"),), "f", prelude=touch)
    assert not mark.exists()


@pytest.mark.parametrize("code", ["assert '\\d' != f(1)", "assert f(1) is 2"])
def test_code_that_python_only_warns_of_is_a_test(code):
    assert CodeProblem((AssertTest(code),), "f").tests == (AssertTest(code),)


@pytest.mark.parametrize("code", ["return 1", "assert (", "x = (" * 500, "\0"])
def test_tests_and_preludes_that_do_not_compile_are_refused(code):
    with pytest.raises(UsageError, match=r"^test 2 does not compile: "):
        CodeProblem((AssertTest("f(1)"), AssertTest(code)), "f")
    with pytest.raises(UsageError, match=r"^the prelude does not compile: "):
        CodeProblem((StdinTest("", ""),), prelude=code)


def test_a_row_whose_test_does_not_compile_is_unusable(tmp_path):
    row = {"task_id": "t", "prompt": "def f(x):\n    'Double it.'\n", "entry_point": "f"}
    row |= {"test": "def check(f):\n    assert (", "canonical_solution": "    return 2 * x\n"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    task = HumanEval(path=str(tmp_path / "rows.jsonl"))
    (problem,) = task.problems("test", 1)
    message = "test 1 does not compile: '(' was never closed (line 2: assert ()"
    assert task.defect(problem) == message
    (verdict,) = task.verify_all([problem], task.golds(problem))
    assert (verdict.outcome, verdict.detail) == ("error", message)


def test_one_message_that_is_none_does_not_end_the_batch(monkeypatch):
    judge_one = Judge.judge

    def judge(self, problem, program):
        if program == "bad":
            raise wire.MessageTooLong("a message of 99 bytes")
        return judge_one(self, problem, program)

    monkeypatch.setattr(Judge, "judge", judge)
    problem = CodeProblem((TESTS["stdin"],))
    with CodeVerifier(1, code_block="whole") as verifier:
        before = verifier._pool._judges[0].prepare()
        verdicts = verifier.verify([problem] * 3, [RIGHT, "bad", RIGHT])
        assert verifier._pool._judges[0].prepare() is not before
    assert [verdict.outcome for verdict in verdicts] == ["right", "error", "right"]
    assert verdicts[1].detail == "sandbox: MessageTooLong: a message of 99 bytes"


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in children for found in (int(child), *descendants(int(child)))]


def test_a_sandbox_that_hangs_up_and_says_no_more_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("gradmass.rewards.sandbox.worker.GRACE_S", 0.3)
    monkeypatch.setattr("gradmass.rewards.sandbox.worker.MOMENT_S", 0.1)
    worker = Worker("bubblewrap", ())
    *_, zygote = descendants(worker._process.pid)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker.begin("check_all", Code(""), Limits(wall_s=1e8, memory_mb=256), channel=theirs)
        os.kill(zygote, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(SandboxLost, match="it does not answer"):
            worker.end_soon()
    assert time.monotonic() - started < 5.0
    worker.close()
