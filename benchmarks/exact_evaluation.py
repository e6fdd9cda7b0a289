"""Seconds to evaluate 200 Countdown problems exactly, and by 1,000 samples each.

    python benchmarks/exact_evaluation.py [--threads 2]

Exact evaluation includes listing the right answers. Beside the times stand the two pass@k.
"""

import argparse
import time

import torch

from gradmass.tasks.countdown import Countdown
from gradmass.training.evaluate import count_right, evaluate_exactly, sampled_summary
from gradmass.training.model import load_model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    task = Countdown()
    problems = task.problems("test", 200)
    model, tokenizer = load_model("countdown-tiny")
    evaluate_exactly(model, tokenizer, task, task.problems("ood", 5))  # warm-up, other problems
    started = time.perf_counter()
    exact = evaluate_exactly(model, tokenizer, task, problems).summary()
    exact_s = time.perf_counter() - started
    started = time.perf_counter()
    num_right_N, num_scorable_N = count_right(model, tokenizer, task, problems, 1000, 20, seed=0)
    sampled_s = time.perf_counter() - started
    sampled = sampled_summary(num_right_N, num_scorable_N)
    num_answers = sum(len(task.solutions(problem)) for problem in problems)
    print(f"exact: {exact_s:.2f} s for 200 problems with {num_answers} right answers")
    print(
        f"sampled: {sampled_s:.2f} s for 200 x 1,000 answers, {sampled_s / exact_s:.0f} times that"
    )
    for k in (1, 10, 100):
        low, high = sampled[f"pass@{k}_low"], sampled[f"pass@{k}_high"]
        key = f"pass@{k}"
        print(f"{key:9} exact {exact[key]:.4f}  sampled {sampled[key]:.4f} [{low:.4f}, {high:.4f}]")


if __name__ == "__main__":
    main()
