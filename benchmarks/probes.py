"""What looking costs: seconds a training step of the demo's model, with probes and without.

    python benchmarks/probes.py [--steps 15] [--repeats 2] [--threads 1] [--json]

Runs of GRPO without evaluation that look at every update, by turns: a look is held against the
steps of its own run, so other work on the machine changes the ratio less than the seconds. The
share of the training time follows from the default periods. What every batch measures anyway is
timed by itself.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from gradmass.config import ProbeConfig, Recipe
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.training.probes.batch import batch_row, difficulty, reach_row
from gradmass.training.rollout import Rollouts
from gradmass.training.train import train

WARM_UP = 5


def run(steps: int, threads: int, flags: list[str]) -> list[dict]:
    given = [f"--train.steps={steps}", f"--train.threads={threads}", "--weight=grpo"]
    given += ["--eval.every=0", "--eval.num_problems=1", "--eval.num_samples=0"]
    recipe = load_recipe(Recipe, "demo", [*given, *flags])
    with tempfile.TemporaryDirectory() as folder:
        config = {"label": recipe.weight.label, "recipe": to_tables(recipe)}
        writer = RunWriter.create(Path(folder) / "run", config, {})
        train(recipe, writer, lambda row: None)
        writer.close()
        return Run(Path(folder) / "run").metrics[1:]


def every_batch(threads: int) -> float:
    """Seconds of what is measured of every batch and update, on numbers of the demo's shape."""
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    shape, successes_PG = (256, 16), rng.random((32, 8)) < 0.3
    mask_PG = np.ones((32, 8), dtype=bool)
    weights_PG = successes_PG - successes_PG.mean(1, keepdims=True)
    numbers = torch.as_tensor(rng.random(shape))
    mask_BT = torch.as_tensor(np.arange(16) < rng.integers(8, 17, size=(256, 1)))
    rollouts = Rollouts(mask_BT, mask_BT, mask_BT, mask_BT, -numbers, numbers, mask_BT[:, 0])
    recipe, seconds = load_recipe(Recipe, "demo", []), []
    for _ in range(50):
        started = time.perf_counter()
        batch_row(rollouts, weights_PG, successes_PG, mask_PG)
        difficulty(weights_PG, successes_PG, mask_PG)
        reach_row(recipe.loss, rollouts, weights_PG, successes_PG, None, np.arange(256))
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    kinds = {
        "gradients, states, entropy": ["--probe.every=1", "--probe.rank_every=0"],
        "singular values": ["--probe.every=0", "--probe.rank_every=1"],
    }
    rows: dict[str, list[dict]] = {name: [] for name in kinds}
    for _ in range(arguments.repeats):
        for name, flags in kinds.items():
            steps = arguments.steps + WARM_UP
            rows[name] += run(steps, arguments.threads, flags)[WARM_UP:]
    looks = {
        name: tuple(
            statistics.median(row[key] for row in found) for key in ("time/probe_s", "time/step_s")
        )
        for name, found in rows.items()
    }
    step_s = statistics.median(row["time/step_s"] for found in rows.values() for row in found)
    always_s = every_batch(arguments.threads)
    config = ProbeConfig()
    periods = dict(zip(looks, (config.every, config.rank_every), strict=True))
    shares = {name: look_s / own_s / periods[name] for name, (look_s, own_s) in looks.items()}
    shares["every batch"] = always_s / step_s
    total = sum(shares.values())
    if arguments.json:
        print(json.dumps({"step_s": step_s, "looks": looks, "shares": shares, "total": total}))
        return
    print(f"a step without looks: {step_s:.3f} s, {arguments.threads} threads, 256 rollouts")
    for name, (look_s, own_s) in looks.items():
        print(
            f"  {name}: {look_s:.3f} s a look ({look_s / own_s:.1f} steps), once every "
            f"{periods[name]} updates: {shares[name]:.1%}"
        )
    print(f"  every batch: {1000 * always_s:.2f} ms: {shares['every batch']:.1%}")
    print(f"probes at their default periods cost {total:.1%} of the training time (limit 10%)")


if __name__ == "__main__":
    main()
