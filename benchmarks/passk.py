"""Do 95% intervals of pass@k hold the truth in 95% of data sets, and how fast are they?

    python benchmarks/passk.py [--repeats 2000] [--problems 100 300] [--skip-these]

Coverage: solve rates are drawn from a Beta, samples from the solve rates, and each interval is
asked whether it holds what it is for. *Like these*: the mean over all problems of the Beta.
*These*: the mean over the problems drawn. Pairs: the difference of two models whose solve rates
have Betas of their own and a rank correlation, first minus second, for *problems like these*. The
standard error is .005 for 2,000 repeats, of all data sets at once. Speed: the intervals of 10,000
problems, and the whole command on 1,000,000 rows.
"""

import argparse
import itertools
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
import scipy.stats

from gradmass.metrics.intervals import interval_like_these, mean_interval_within
from gradmass.metrics.passk import pass_at_k, pass_at_k_from_probability

BETAS = ((0.5, 1.2), (0.3, 3.0), (0.2, 0.2), (1.0, 1.0), (2.0, 5.0), (0.1, 2.0))
SAMPLES = {16: (1, 4, 16), 64: (1, 8, 32), 128: (1, 10, 100)}
PROBLEMS = (30, 100, 300)
PAIRS = (
    ((0.5, 1.2), (0.5, 1.2)),
    ((0.5, 1.2), (0.6, 1.2)),
    ((0.3, 3.0), (0.2, 3.0)),
    ((2.0, 5.0), (2.5, 5.0)),
    ((0.1, 2.0), (0.1, 2.0)),
    ((1.0, 1.0), (1.5, 1.0)),
)
RANK_CORRELATIONS = (0.5, 0.9, 0.99)


def true_pass_at_k(a: float, b: float, k: int) -> float:
    """1 - E[(1 - p)^k] = 1 - B(a, b + k) / B(a, b)."""
    return 1 - math.prod((b + i) / (a + b + i) for i in range(k))


def like_these(values_NRK: np.ndarray, truth_K: np.ndarray, bounds=(0.0, 1.0)) -> np.ndarray:
    """Share of data sets R whose interval holds the truth, and mean length, of each k."""
    shares = []
    for i, truth in enumerate(truth_K):
        # A column is a data set: all of them in one pass, in parts that fit in memory.
        columns = values_NRK[:, :, i]
        parts = np.array_split(columns, max(1, columns.size // 500_000), axis=1)
        ends = [interval_like_these(part, bounds) for part in parts]
        low_R, high_R = (np.concatenate(side) for side in zip(*ends, strict=True))
        held_R = (low_R <= truth) & (truth <= high_R)
        shares.append((held_R.mean(), (high_R - low_R).mean()))
    return np.array(shares)


def coverage(a: float, b: float, num_problems: int, num_samples: int, repeats: int, generator):
    """Of each k: share and length of intervals like these; share of those of these (or nan)."""
    ks = SAMPLES[num_samples]
    table_CK = np.stack([pass_at_k(range(num_samples + 1), num_samples, k) for k in ks], axis=1)
    truth_K = np.array([true_pass_at_k(a, b, k) for k in ks])
    p_NR = generator.beta(a, b, (num_problems, repeats))
    c_NR = generator.binomial(num_samples, p_NR)
    found = like_these(table_CK[c_NR], truth_K)
    return dict(zip(ks, found.tolist(), strict=True)), (p_NR, c_NR)


def coverage_of_these(p_NR: np.ndarray, c_NR: np.ndarray, num_samples: int, k: int) -> float:
    held = []
    for p_N, c_N in zip(p_NR.T, c_NR.T, strict=True):
        low, high = mean_interval_within(c_N, num_samples, k)
        held.append(low <= pass_at_k_from_probability(p_N, k).mean() <= high)
    return float(np.mean(held))


def mark(share: float) -> str:
    return f"{share:.3f}{' ' if 0.93 <= share <= 0.97 else '*'}"


def print_coverage(repeats: int, sizes: list[int], has_these: bool) -> None:
    generator = np.random.default_rng(0)
    print(f"coverage of 95% intervals, {repeats} data sets each; * outside .93 to .97")
    print("problems  Beta       samples  k    true pass@k  like these  length  these")
    for num_problems in sizes:
        all_shares = []
        for (a, b), num_samples in itertools.product(BETAS, SAMPLES):
            found, data = coverage(a, b, num_problems, num_samples, repeats, generator)
            for k, (share, length) in found.items():
                these = mark(coverage_of_these(*data, num_samples, k)) if has_these else ""
                print(
                    f"{num_problems:8}  {a:3}, {b:3}  {num_samples:8}  {k:<4} "
                    f"{true_pass_at_k(a, b, k):11.4f}  {mark(share):>10}  {length:.4f}  {these}",
                    flush=True,
                )
                all_shares.append(share)
        print_summary(f"{num_problems} problems like these", all_shares)


def print_paired_coverage(repeats: int, sizes: list[int]) -> None:
    generator = np.random.default_rng(1)
    print("pairs: problems  Beta, Beta, correlation  samples  k    difference  like these  length")
    for num_problems in sizes:
        all_shares = []
        for (one, two), rho, num_samples in itertools.product(PAIRS, RANK_CORRELATIONS, SAMPLES):
            ks = SAMPLES[num_samples]
            shape = (num_problems, repeats)
            normal = generator.standard_normal(shape)
            other = rho * normal + math.sqrt(1 - rho**2) * generator.standard_normal(shape)
            values = []
            for (a, b), deviates in ((one, normal), (two, other)):
                p_NR = scipy.stats.beta.ppf(scipy.stats.norm.cdf(deviates), a, b)
                c_NR = generator.binomial(num_samples, p_NR)
                values.append(
                    np.stack(
                        [pass_at_k(range(num_samples + 1), num_samples, k)[c_NR] for k in ks],
                        axis=2,
                    )
                )
            truth_K = np.array([true_pass_at_k(*one, k) - true_pass_at_k(*two, k) for k in ks])
            found = like_these(values[0] - values[1], truth_K, (-1.0, 1.0))
            for k, truth, (share, length) in zip(ks, truth_K, found, strict=True):
                print(
                    f"{num_problems:15}  {one} {two} {rho:<4}  {num_samples:8}  {k:<4} "
                    f"{truth:10.4f}  {mark(share):>10}  {length:.4f}",
                    flush=True,
                )
                all_shares.append(share)
        print_summary(f"pairs on {num_problems} problems like these", all_shares)


def print_summary(name: str, shares: list[float]) -> None:
    num_short, num_long = sum(x < 0.93 for x in shares), sum(x > 0.97 for x in shares)
    print(
        f"{name}: {min(shares):.3f} to {max(shares):.3f} in {len(shares)} settings; "
        f"{num_short} below .93, {num_long} above .97"
    )


def print_interval_times() -> None:
    generator = np.random.default_rng(0)
    ks = (1, 10, 100)
    c_N = generator.binomial(100, generator.beta(0.5, 1.2, 10_000))
    sampled_NK = np.stack([pass_at_k(c_N, 100, k) for k in ks], axis=1)
    exact_N = generator.beta(0.5, 1.2, 10_000)
    exact_NK = np.stack([pass_at_k_from_probability(exact_N, k) for k in ks], axis=1)
    for name, values_NK in (("100 samples each", sampled_NK), ("all values distinct", exact_NK)):
        started = time.perf_counter()
        interval_like_these(values_NK)
        seconds = time.perf_counter() - started
        print(f"intervals of 10,000 problems, 3 k, {name}: {seconds:.2f} s")


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
    parser.add_argument("--problems", type=int, nargs="+", default=list(PROBLEMS))
    parser.add_argument("--skip-these", action="store_true", help="only problems like these")
    arguments = parser.parse_args()
    print_interval_times()
    with tempfile.TemporaryDirectory() as folder:
        print_command_times(Path(folder))
    print_coverage(arguments.repeats, arguments.problems, not arguments.skip_these)
    print_paired_coverage(arguments.repeats, arguments.problems)


if __name__ == "__main__":
    main()
