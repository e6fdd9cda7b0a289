"""Whose sandboxes are whose, and until when: forks, closing, garbage, the end of Python."""

import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gradmass.rewards.code import CodeProblem, CodeVerifier, StdinTest
from gradmass.types import UsageError

ECHO = CodeProblem((StdinTest("a", "a"),))
PRINT = "print(input())"
SLOW = CodeProblem((StdinTest("a", "a"),), time_limit_s=60.0)


def outcomes(verifier, num=1):
    return [str(v.outcome) for v in verifier.verify([ECHO] * num, [PRINT] * num)]


def in_fork(work) -> int:
    """Exit status of a fork in which ``work`` says whether all is well; it ends as Python does."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 2
            gc.collect()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def children() -> set[int]:
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for file in found for pid in file.read_text().split()}


def sandbox_of(verifier) -> int:
    (judge, *_) = verifier._pool._judges
    return judge.prepare()._process.pid


def test_a_fork_has_sandboxes_of_its_own_and_those_of_its_parent_stay():
    with CodeVerifier(1, code_block="whole") as verifier:
        before = sandbox_of(verifier)

        def work():
            first = outcomes(verifier, 3) == ["right"] * 3
            is_new = sandbox_of(verifier) != before
            verifier.close()
            return first and is_new

        assert in_fork(work) == 0
        assert in_fork(lambda: verifier.close() is None) == 0
        assert outcomes(verifier) == ["right"]
        assert sandbox_of(verifier) == before


@pytest.mark.slow
def test_a_fork_made_while_programs_are_judged_neither_hangs_nor_disturbs():
    with CodeVerifier(2, code_block="whole") as verifier:
        found = []
        judging = threading.Thread(target=lambda: found.extend(outcomes(verifier, 200)))
        judging.start()
        for _ in range(3):
            assert in_fork(lambda: outcomes(verifier, 2) == ["right"] * 2) == 0
        judging.join()
    assert found == ["right"] * 200


def test_processes_of_multiprocessing_judge_as_the_workers_of_a_data_loader_do():
    with CodeVerifier(1, code_block="whole") as verifier:
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        processes = [
            context.Process(target=lambda: results.put(outcomes(verifier, 2))) for _ in range(2)
        ]
        for process in processes:
            process.start()
        found = [results.get() for _ in processes]
        for process in processes:
            process.join()
        results.close()
        assert found == [["right"] * 2] * 2
        assert outcomes(verifier) == ["right"]


def test_a_fork_of_a_closed_verifier_is_closed():
    verifier = CodeVerifier(1, code_block="whole")
    verifier.close()

    def work():
        with pytest.raises(UsageError, match="this verifier is closed"):
            outcomes(verifier)
        return True

    assert in_fork(work) == 0


def test_a_fork_that_outlives_its_parents_verifier_keeps_none_of_its_sandboxes():
    verifier = CodeVerifier(1, code_block="whole")
    pid = sandbox_of(verifier)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the parent is done
        os._exit(0)
    started = time.monotonic()
    verifier.close()
    assert time.monotonic() - started < 2.0
    assert not Path(f"/proc/{pid}").exists()
    os.close(write)
    os.close(read)
    os.waitpid(child, 0)


@pytest.mark.slow
def test_closing_at_any_moment_ends_every_batch_with_verdicts_or_one_line():
    rng, before = random.Random(0), children()
    for _ in range(8):
        verifier = CodeVerifier(2, code_block="whole", packages=())
        said = []

        def judge(verifier=verifier, said=said):
            try:
                while True:
                    found = outcomes(verifier, 4)
                    if found != ["right"] * 4:
                        said.append(found)
            except UsageError as error:
                said.append(str(error))

        threads = [threading.Thread(target=judge) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(rng.random() * 0.3)
        closing = [threading.Thread(target=verifier.close) for _ in range(2)]
        for thread in closing:
            thread.start()
        for thread in [*threads, *closing]:
            thread.join(timeout=20)
            assert not thread.is_alive()
        known = {"the verifier was closed while it was at work", "this verifier is closed"}
        assert set(said) <= known
        assert len(said) == 3
    assert children() == before


def test_a_forgotten_verifier_is_closed_with_its_garbage_even_in_its_own_thread():
    before = children()
    verifier = CodeVerifier(1, code_block="whole")
    # As a collection there would.
    verifier._pool.submit(lambda judge, close=verifier._close: close()).result(timeout=10)
    assert children() == before
    verifier = CodeVerifier(1, code_block="whole")
    del verifier
    gc.collect()
    assert children() == before


@pytest.mark.parametrize("ending", ["pass", "sys.exit(3)", "os.kill(os.getpid(), 9)", "os.fork()"])
def test_python_may_end_while_programs_are_judged(ending):
    program = f"""
import contextlib, os, sys, threading, time
from gradmass.rewards.code import CodeProblem, CodeVerifier, StdinTest
from gradmass.types import UsageError

def judge():
    with contextlib.suppress(UsageError):
        verifier.verify([problem] * 2, ["while True: pass"] * 2)

verifier = CodeVerifier(1, code_block="whole", packages=())
problem = CodeProblem((StdinTest("", ""),), time_limit_s=1.0)
print(verifier._pool._judges[0].prepare()._process.pid, flush=True)
threading.Thread(target=judge, daemon=True).start()
time.sleep(0.2)
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.returncode == {"sys.exit(3)": 3, "os.kill(os.getpid(), 9)": -9}.get(ending, 0)
    pid = int(done.stdout.split()[0])
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_ctrl_c_leaves_a_verifier_that_judges_on():
    with CodeVerifier(1, code_block="whole") as verifier:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            verifier.verify([SLOW] * 50, ["import time; time.sleep(0.2); print(input())"] * 50)
        assert outcomes(verifier) == ["right"]
