"""The same verdicts from the processes of a ray cluster, whatever happens to these."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from gradmass.rewards import code_ray
from gradmass.rewards.code import AssertTest, CallTest, CodeProblem, CodeVerifier, StdinTest
from gradmass.types import UsageError

CALL = CodeProblem((CallTest((1,), 2), CallTest((2,), 4)), "f", time_limit_s=2.0)
ECHO = CodeProblem((StdinTest("a", "a"), StdinTest("b", "b")), time_limit_s=2.0)
CHECK = CodeProblem((AssertTest("assert f(3) == 6"),), "f", time_limit_s=2.0)
EVEN = CodeProblem((StdinTest("", "even"),), checker=lambda test, output: int(output) % 2 == 0)
PROGRAMS = [
    (CALL, "def f(x): return 2 * x"),
    (CALL, "def f(x): return x + 1"),
    (CALL, "import os\ndef f(x): os._exit(0)"),
    (CALL, "def f(x): return chr(0xd800)"),
    (ECHO, "print(input())"),
    (ECHO, "print('a')"),
    (ECHO, "x = bytearray(1 << 40)"),
    (ECHO, "import time\ntime.sleep(60)"),
    (ECHO, "open('/etc/passwd', 'a')"),
    (CHECK, "def f(x): return x * 2"),
    (CHECK, "def f(x): return 7"),
    (EVEN, "print(4)"),
    (EVEN, "print(5)"),
]
SLOW = "import time; time.sleep(0.3); print(input())"


def judge(verifier, pairs):
    verdicts = verifier.verify(*zip(*pairs, strict=True))
    return [(str(v.outcome), v.detail.split(" (")[0], v.num_passed, v.num_tests) for v in verdicts]


def processes(word: str) -> set[int]:
    """Processes whose command line has a word."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word in (folder / "cmdline").read_bytes().decode(errors="replace"):
                found.add(int(folder.name))
        except OSError:  # it ended meanwhile
            continue
    return found - {os.getpid()}


def below(pid: int) -> set[int]:
    """Processes under a process."""
    found = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in file.read_text().split():
            found |= {int(child)} | below(int(child))
    return found


def wait_until(is_so) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two processors on this machine."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


@pytest.mark.slow
def test_verdicts_are_those_of_this_machine(cluster):
    options = {"num_workers": 2, "code_block": "whole"}
    with CodeVerifier(**options) as here, CodeVerifier(**options, executor="ray") as there:
        assert there.settings == {**here.settings, "executor": "ray"}
        expected = judge(here, PROGRAMS)
        assert judge(there, PROGRAMS) == expected
        assert judge(there, PROGRAMS[::-1]) == expected[::-1]
    assert [outcome for outcome, *_ in expected] == [
        *("right", "wrong", "wrong", "wrong"),
        *("right", "wrong", "wrong", "timeout", "wrong"),
        *("right", "wrong", "right", "wrong"),
    ]


@pytest.mark.slow
def test_programs_of_a_worker_that_is_killed_are_judged_by_another(cluster):
    with CodeVerifier(2, code_block="whole", executor="ray") as verifier:
        workers = processes("ray::_Remote")
        sandboxes = set().union(*map(below, workers))
        assert len(workers) == 2
        assert sandboxes
        timer = threading.Timer(0.4, lambda: [os.kill(pid, signal.SIGKILL) for pid in workers])
        timer.start()
        found = judge(verifier, [(ECHO, SLOW)] * 6)
        timer.join()
        assert found == [("right", "", 2, 2)] * 6
        assert not workers & processes("ray::_Remote")
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in sandboxes))


@pytest.mark.slow
def test_a_program_whose_workers_are_always_killed_is_unscorable(cluster):
    stopped = threading.Event()

    def kill():
        while not stopped.wait(0.05):
            for pid in processes("ray::_Remote.judge"):
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    with CodeVerifier(1, code_block="whole", executor="ray") as verifier:
        killer.start()
        (verdict,) = verifier.verify([ECHO], [SLOW])
        stopped.set()
        killer.join()
        assert (verdict.outcome, verdict.is_scorable) == ("error", False)
        assert verdict.detail.startswith("sandbox: the ray worker is gone (")
        assert judge(verifier, [(ECHO, SLOW)]) == [("right", "", 2, 2)]


@pytest.mark.slow
def test_closing_ends_the_workers_and_their_sandboxes_and_frees_their_processors(cluster):
    verifier = CodeVerifier(2, code_block="whole", executor="ray")
    sandboxes = set().union(*map(below, processes("ray::_Remote")))
    said = []

    def work():
        with pytest.raises(UsageError) as caught:
            judge(verifier, [(ECHO, SLOW)] * 50)
        said.append(str(caught.value))

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    verifier.close()
    thread.join(timeout=20)
    assert said == ["the verifier was closed while it was at work"]
    wait_until(lambda: not processes("ray::_Remote"))
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in sandboxes))
    wait_until(lambda: cluster.available_resources().get("CPU") == 2)


@pytest.mark.slow
def test_more_workers_than_processors_are_refused(cluster, monkeypatch):
    monkeypatch.setattr(code_ray, "START_LIMIT_S", 5.0)
    with pytest.raises(UsageError) as caught:
        CodeVerifier(3, executor="ray")
    assert str(caught.value) == (
        "no ray worker started within 5 s: each needs a CPU, and 0 of the cluster's 2 are free"
    )
    with pytest.raises(UsageError, match="pip install no-such-package"):
        CodeVerifier(1, executor="ray", packages=["no-such-package"])
    wait_until(lambda: not processes("ray::_Remote"))


@pytest.mark.slow
def test_a_fork_is_refused(cluster):
    with CodeVerifier(1, code_block="whole", executor="ray") as verifier:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with pytest.raises(UsageError, match="cannot judge in a fork of its process"):
                    judge(verifier, PROGRAMS[:1])
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert judge(verifier, PROGRAMS[:1]) == [("right", "", 2, 2)]


def test_without_ray_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError) as caught:
        CodeVerifier(executor="ray")
    assert str(caught.value) == (
        "executor 'ray' needs ray, which is not installed: pip install 'gradmass[ray]'"
    )


def test_an_executor_that_is_none_is_refused():
    with pytest.raises(UsageError, match="executor 'slurm' is not one of local, ray"):
        CodeVerifier(executor="slurm")
