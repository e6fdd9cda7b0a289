"""A pool answers every request whatever its workers do, and leaves nothing behind."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradmass.rewards.pool import Failure, Pool
from gradmass.types import UsageError

HANDLER = """
import os, resource, signal, time

def warm_up():
    pass

def handle(request):
    yield "begun"
    what, value = request
    if what == "echo":
        return value
    if what == "pid":
        time.sleep(0.05)
        return os.getpid()
    if what == "spin":
        while True:
            pass
    if what == "sleep":
        time.sleep(value)
    if what == "exit":
        os._exit(value)
    if what == "signal":
        os.kill(os.getpid(), value)
    if what == "memory":
        return len(bytearray(value << 20))
    if what == "deep":
        return deep()
    if what == "raise":
        raise ValueError("of this value")
    if what == "close":
        os.closerange(3, 64)
    return "survived"

def deep():
    return deep()
"""


@pytest.fixture
def handler(tmp_path, monkeypatch):
    (tmp_path / "pool_handler.py").write_text(HANDLER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return "pool_handler"


@pytest.fixture
def pool(handler):
    with Pool(handler, num_workers=2, time_limit_s=1.0, memory_mb=128) as made:
        made.map([["echo", 0]])  # the first request waits for Python to start
        yield made


def children() -> set[int]:
    """Living or dead processes below this one."""
    found, todo = set(), [os.getpid()]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            try:
                pids = {int(pid) for pid in task.read_text().split()}
            except OSError:  # it ended meanwhile
                continue
            found |= pids
            todo += pids
    return found


def test_replies_come_in_the_order_of_requests(pool):
    replies = pool.map([["echo", i] for i in range(500)])
    assert [reply.value for reply in replies] == list(range(500))
    assert {reply.failure for reply in replies} == {None}
    assert pool.map([]) == []


def test_values_survive_the_way_to_a_worker_and_back(pool):
    values = ["line\nbreak", "π \u2028 \x00 \ud7ff", "x" * 3_000_000, None, [1, {"a": 0.1}], -0.0]
    assert [reply.value for reply in pool.map([["echo", value] for value in values])] == values


@pytest.mark.parametrize(
    ("request_", "failure", "detail"),
    [
        (["spin", 0], Failure.TIMEOUT, ""),
        (["sleep", 60], Failure.TIMEOUT, ""),
        (["exit", 0], Failure.CRASH, "exit status 0"),
        (["exit", 7], Failure.CRASH, "exit status 7"),
        (["signal", signal.SIGSEGV], Failure.CRASH, "SIGSEGV"),
        (["signal", signal.SIGSTOP], Failure.TIMEOUT, ""),
        (["memory", 4096], Failure.MEMORY, ""),
        (["raise", 0], Failure.MACHINERY, "ValueError: of this value"),
        (["deep", 0], Failure.MACHINERY, "RecursionError: maximum recursion depth exceeded"),
        (["close", 0], Failure.CRASH, "exit status"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, list) else "",
)
def test_a_failure_is_named_and_moves_no_other_reply(pool, request_, failure, detail):
    requests = [["echo", i] for i in range(40)]
    requests[13] = requests[14] = request_
    start = time.monotonic()
    replies = pool.map(requests)
    assert time.monotonic() - start < 4
    for reply in replies[13:15]:
        assert reply.failure is failure
        assert reply.value is None
        assert reply.stage == "begun"
        assert reply.detail.startswith(detail)
        assert reply.seconds < 1.5
    rest = replies[:13] + replies[15:]
    assert [reply.value for reply in rest] == [i for i in range(40) if i not in (13, 14)]
    assert [reply.value for reply in pool.map([["echo", "after"]])] == ["after"]


def test_memory_below_the_limit_is_given(pool):
    assert [reply.value for reply in pool.map([["memory", 64]])] == [64 << 20]


def test_a_worker_killed_from_outside_costs_no_reply(pool):
    (victim,) = (reply.value for reply in pool.map([["pid", 0]]))
    killer = threading.Timer(0.3, os.kill, (victim, signal.SIGKILL))
    killer.start()
    replies = pool.map([["pid", 0] for _ in range(30)])
    killer.join()
    assert {reply.failure for reply in replies} == {None}
    assert victim not in {reply.value for reply in replies[-4:]}


def test_the_process_that_forks_is_replaced_too(pool):
    (worker,) = (reply.value for reply in pool.map([["pid", 0]]))
    status = Path(f"/proc/{worker}/status").read_text()
    os.kill(int(status.partition("PPid:")[2].split()[0]), signal.SIGKILL)
    replies = pool.map([["echo", i] for i in range(20)])
    assert [reply.value for reply in replies] == list(range(20))


def test_requests_come_from_any_thread(pool):
    def ask(thread):
        replies = pool.map([["echo", [thread, i]] for i in range(50)])
        return [reply.value for reply in replies] == [[thread, i] for i in range(50)]

    with ThreadPoolExecutor(8) as executor:
        assert all(executor.map(ask, range(16)))


def test_a_fork_of_the_owner_has_workers_of_its_own(pool):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if pool.map([["echo", 5]])[0].value == 5 else 2
            pool.close()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert pool.map([["echo", 6]])[0].value == 6


def leftovers() -> tuple[set[int], set[str], set[str], set[str]]:
    """Processes, open files, threads and temporary files; what others leave is gone first."""
    gc.collect()
    threads = {thread.name for thread in threading.enumerate()}
    files = {link for fd in Path("/proc/self/fd").iterdir() if (link := _target(fd))}
    return children(), files, threads, {path.name for path in Path("/tmp").iterdir()}


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except FileNotFoundError:  # the listing's own
        return ""


def test_nothing_is_left_after_closing(handler):
    before = leftovers()
    with Pool(handler, num_workers=3, time_limit_s=0.5, memory_mb=128) as pool:
        pool.map([["echo", 1], ["exit", 3], ["spin", 0], ["memory", 4096], ["echo", 2]])
        assert len(children() - before[0]) >= 2
    after = leftovers()
    assert after[0] == before[0]
    assert {f for f in after[1] - before[1] if "socket" in f or "pipe" in f} == set()
    assert after[2] == before[2]
    assert {name for name in after[3] - before[3] if "pool" in name} == set()
    pool.close()


def test_closing_ends_what_is_under_way(handler):
    before = children()
    pool = Pool(handler, num_workers=1, time_limit_s=60, memory_mb=128)
    pool.map([["echo", 1]])
    failures = []

    def ask():
        try:
            pool.map([["spin", 0], ["echo", 1]])
        except UsageError as error:
            failures.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.3)
    pool.close()
    thread.join(timeout=10)
    assert failures == ["the verifier was closed while it was at work"]
    assert children() == before
    with pytest.raises(UsageError, match="is closed"):
        pool.map([["echo", 1]])


def test_a_forgotten_pool_is_closed_with_its_garbage(handler):
    before = children()
    pool = Pool(handler, num_workers=1, time_limit_s=5, memory_mb=128)
    pool.map([["echo", 1]])
    assert children() != before
    del pool
    gc.collect()
    assert children() == before


@pytest.mark.parametrize("ending", ["pass", "os.kill(os.getpid(), 9)", "sys.exit(3)"])
def test_workers_die_with_their_owner(handler, ending):
    program = f"""
import contextlib, os, sys, threading, time
from gradmass.rewards.pool import Pool
from gradmass.types import UsageError

def ask():
    with contextlib.suppress(UsageError):  # the pool is closed while Python ends
        pool.map([["spin", 0]])

pool = Pool({handler!r}, num_workers=2, time_limit_s=2, memory_mb=128)
print(pool.map([["pid", 0]])[0].value, flush=True)
threading.Thread(target=ask, daemon=True).start()
time.sleep(0.2)
{ending}
"""
    source = str(Path(__file__).parents[2] / "src")
    path = os.pathsep.join([source, os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stderr == ""
    deadline = time.monotonic() + 5
    while Path(f"/proc/{int(done.stdout)}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{int(done.stdout)}").exists()


def test_a_module_that_cannot_be_imported_is_a_failure_of_the_machinery():
    with Pool("no_such_module", num_workers=1, time_limit_s=1, memory_mb=128) as pool:
        (reply,) = pool.map([1])
    assert reply.failure is Failure.MACHINERY
    assert "imports no_such_module ended with 1" in reply.detail


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_workers": 0}, "num_workers must be at least 1, got 0"),
        ({"time_limit_s": 0.0}, "time_limit_s must be seconds above 0, got 0.0"),
        ({"time_limit_s": float("inf")}, "time_limit_s must be seconds above 0, got inf"),
        ({"memory_mb": 1}, "memory_mb must be at least 64, got 1"),
    ],
)
def test_limits_out_of_range_are_refused(change, message):
    arguments = {"num_workers": 1, "time_limit_s": 1.0, "memory_mb": 128} | change
    with pytest.raises(UsageError, match=message):
        Pool("any", **arguments)
