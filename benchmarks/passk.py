"""Do 95% intervals of pass@k hold the truth in 95% of data sets, and how fast are they?

    python benchmarks/passk.py [--repeats 2000]

Coverage: solve rates are drawn from a Beta, samples from the solve rates, and each interval is
asked whether it holds what it is for. *Like these*: the mean over all problems of the Beta.
*These*: the mean over the problems drawn. Its standard error is .005 for 2,000 repeats. Speed: the
bootstrap of 10,000 problems, and the whole command on 1,000,000 rows.
"""

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gradmass.metrics.intervals import interval_like_these, mean_interval_within
from gradmass.metrics.passk import pass_at_k, pass_at_k_from_probability

BETAS = ((0.5, 1.2), (0.3, 3.0), (0.2, 0.2), (1.0, 1.0), (2.0, 5.0), (0.1, 2.0))
SAMPLES = {16: (1, 4, 16), 64: (1, 8, 32), 128: (1, 10, 100)}
PROBLEMS = (30, 100, 300)


def true_pass_at_k(a: float, b: float, k: int) -> float:
    """1 - E[(1 - p)^k] = 1 - B(a, b + k) / B(a, b)."""
    return 1 - math.prod((b + i) / (a + b + i) for i in range(k))


def coverage(
    a: float, b: float, num_problems: int, num_samples: int, repeats: int, generator
) -> dict[int, list[float]]:
    """Share of data sets whose intervals hold the truth, for each k: like these, these."""
    ks = SAMPLES[num_samples]
    table_CK = np.stack([pass_at_k(range(num_samples + 1), num_samples, k) for k in ks], axis=1)
    truth_K = np.array([true_pass_at_k(a, b, k) for k in ks])
    num_held = np.zeros((2, len(ks)))
    for repeat in range(repeats):
        p_N = generator.beta(a, b, num_problems)
        c_N = generator.binomial(num_samples, p_N)
        low_K, high_K = interval_like_these(table_CK[c_N], num_draws=1000, seed=repeat)
        num_held[0] += (low_K <= truth_K) & (truth_K <= high_K)
        for i, k in enumerate(ks):
            low, high = mean_interval_within(c_N, num_samples, k)
            num_held[1, i] += low <= pass_at_k_from_probability(p_N, k).mean() <= high
    return {k: (num_held[:, i] / repeats).tolist() for i, k in enumerate(ks)}


def print_coverage(repeats: int) -> None:
    generator = np.random.default_rng(0)
    worst: dict[int, list[float]] = {n: [] for n in PROBLEMS}
    print(f"coverage of 95% intervals, {repeats} data sets each; * outside .93 to .97")
    print("problems  Beta       samples  k    true pass@k  like these  these")
    for num_problems in PROBLEMS:
        for a, b in BETAS:
            for num_samples in SAMPLES:
                found = coverage(a, b, num_problems, num_samples, repeats, generator)
                for k, shares in found.items():
                    truth = true_pass_at_k(a, b, k)
                    marks = [f"{x:.3f}{' ' if 0.93 <= x <= 0.97 else '*'}" for x in shares]
                    print(
                        f"{num_problems:8}  {a:3}, {b:3}  {num_samples:8}  {k:<4} {truth:11.4f}  "
                        f"{marks[0]:>10}  {marks[1]}",
                        flush=True,
                    )
                    worst[num_problems].append(min(shares))
    for num_problems, shares in worst.items():
        short = max(0.0, 0.95 - min(shares))
        print(
            f"{num_problems} problems: lowest coverage {min(shares):.3f}, {short:.3f} short of .95"
        )


def print_bootstrap_times() -> None:
    generator = np.random.default_rng(0)
    ks = (1, 10, 100)
    c_N = generator.binomial(100, generator.beta(0.5, 1.2, 10_000))
    sampled_NK = np.stack([pass_at_k(c_N, 100, k) for k in ks], axis=1)
    exact_N = generator.beta(0.5, 1.2, 10_000)
    exact_NK = np.stack([pass_at_k_from_probability(exact_N, k) for k in ks], axis=1)
    for name, values_NK in (("100 samples each", sampled_NK), ("all values distinct", exact_NK)):
        started = time.perf_counter()
        interval_like_these(values_NK, num_draws=10_000)
        seconds = time.perf_counter() - started
        print(f"10,000 problems x 10,000 draws x 3 k, {name}: {seconds:.2f} s")


def print_command_times(folder: Path) -> None:
    random.seed(0)
    rows = folder / "rows.jsonl"
    with rows.open("w") as file:
        for i in range(1_000_000):
            is_right = random.random() < i // 100 % 97 / 97
            row = {"problem_id": f"task/{i // 100}", "sample": i % 100, "correct": is_right}
            file.write(json.dumps(row) + "\n")
    command = [sys.executable, "-m", "gradmass", "passk", str(rows), "--k", "1", "10", "100"]
    started = time.perf_counter()
    subprocess.run([*command, "--json"], check=True, stdout=subprocess.DEVNULL, env=os.environ)
    seconds = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"gradmass passk on 1,000,000 rows: {seconds:.2f} s "
        f"({usage.ru_utime + usage.ru_stime:.2f} s of CPU), {usage.ru_maxrss / 1024:.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=2000)
    repeats = parser.parse_args().repeats
    print_bootstrap_times()
    with tempfile.TemporaryDirectory() as folder:
        print_command_times(Path(folder))
    print_coverage(repeats)


if __name__ == "__main__":
    main()
