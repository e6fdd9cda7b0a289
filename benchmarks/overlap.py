"""Rollouts per second with a slow verifier: in turn, and overlapped with a largest lag of 4.

    python benchmarks/overlap.py [--steps 30] [--lag 4] [--threads 1] [--json]

The demo's model and task. The verifier waits, as one does that runs programs elsewhere, for as long
as sampling and updating take together, which is measured first. Both ways are timed in turns in the
same process; what is compared is the time between the first and the last row of metrics.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from gradmass.config import Recipe
from gradmass.record import Run, RunWriter
from gradmass.rewards import Verdict
from gradmass.tables import load_recipe, to_tables
from gradmass.tasks import Problem
from gradmass.tasks.countdown import Countdown
from gradmass.training.train import train

WARM_UP = 3


@dataclass(frozen=True, kw_only=True)
class SlowCountdown(Countdown):
    """Countdown with a verifier that takes its time."""

    name: ClassVar[str] = "slow_countdown"
    wait_s: float = 0.0

    def verify_batch(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
        time.sleep(self.wait_s)
        return super().verify_batch(problems, texts)


def seconds_a_step(recipe: Recipe) -> tuple[float, float]:
    """Seconds a step by the wall clock, and the mean lag."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        config = {"label": recipe.weight.label, "recipe": to_tables(recipe)}
        writer = RunWriter.create(Path(folder) / "run", config, {})
        train(recipe, writer, lambda row: times.append(time.perf_counter()))
        writer.close()
        rows = Run(Path(folder) / "run").metrics
    used = times[1 + WARM_UP : -1]  # the last row waits for an evaluation
    lag = statistics.mean(row["policy/lag"] for row in rows[1 + WARM_UP :])
    return (used[-1] - used[0]) / (len(used) - 1), lag


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lag", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    flags = ["--weight=grpo", f"--train.steps={arguments.steps + WARM_UP}", "--eval.every=0"]
    flags += [f"--train.threads={arguments.threads}", "--eval.num_problems=1"]
    flags += ["--eval.num_samples=0", "--probe.every=0", "--probe.rank_every=0"]
    recipe = load_recipe(Recipe, "demo", flags)
    wait_s, _ = seconds_a_step(recipe)
    slow = replace(recipe, task=SlowCountdown(wait_s=wait_s))
    ways = {
        "synchronous": slow,
        f"max_lag = {arguments.lag}": replace(
            slow, train=replace(slow.train, max_lag=arguments.lag)
        ),
        f"policy_lag = {arguments.lag}": replace(
            slow, train=replace(slow.train, policy_lag=arguments.lag)
        ),
    }
    rounds = [{name: seconds_a_step(way) for name, way in ways.items()} for _ in range(2)]
    num_rollouts = recipe.train.prompts_per_step * recipe.train.group_size
    found = {
        name: {
            "seconds a step": statistics.mean(one[name][0] for one in rounds),
            "mean lag": statistics.mean(one[name][1] for one in rounds),
        }
        for name in ways
    }
    base = found["synchronous"]["seconds a step"]
    for numbers in found.values():
        numbers["rollouts/s"] = num_rollouts / numbers["seconds a step"]
        numbers["times synchronous"] = base / numbers["seconds a step"]
    if arguments.json:
        print(json.dumps({"verifier_s": wait_s, "ways": found}))
        return
    print(f"{num_rollouts} rollouts a step, verifier {wait_s:.3f} s, {arguments.threads} threads")
    for name, numbers in found.items():
        shown = ", ".join(f"{key} {value:.3f}" for key, value in numbers.items())
        print(f"  {name:16} {shown}")


if __name__ == "__main__":
    main()
