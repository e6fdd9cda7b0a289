"""Seconds a training step takes, by stage, for the demo's model: 32 problems x 8 rollouts.

    python benchmarks/train_step.py [--steps 40] [--threads 2] [--json]

Medians over the steps after a warm-up of 10, for GRPO at the start of training, where half the
groups carry signal, and with a weight under which all of them do. Nothing else should run on the
machine.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from gradmass.config import Recipe
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.training.train import train

STAGES = ("time/rollout_s", "time/verify_s", "time/weigh_s", "time/update_s", "time/step_s")
WARM_UP = 10


def measure(weight: list[str], steps: int, threads: int) -> dict[str, float]:
    flags = [*weight, f"--train.steps={steps + WARM_UP}", f"--train.threads={threads}"]
    flags += ["--eval.every=0", "--eval.num_problems=1", "--eval.num_samples=0"]
    recipe = load_recipe(Recipe, "demo", flags)
    with tempfile.TemporaryDirectory() as folder:
        config = {"label": recipe.weight.label, "recipe": to_tables(recipe)}
        writer = RunWriter.create(Path(folder) / "run", config, {})
        train(recipe, writer, lambda row: None)
        writer.close()
        rows = Run(Path(folder) / "run").metrics[1 + WARM_UP :]
    medians = {stage: statistics.median(row[stage] for row in rows) for stage in STAGES}
    medians["slowest step_s"] = max(row["time/step_s"] for row in rows)
    medians["rollouts trained on"] = statistics.median(row["loss/num_trained"] for row in rows)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    # REINFORCE with signed rewards has no zero weights: the full cost of 256 rollouts.
    weights = {
        "grpo": ["--weight=grpo"],
        "every rollout trained on": ["--weight=reinforce", "--weight.signed=true"],
    }
    results = {
        name: measure(weight, arguments.steps, arguments.threads)
        for name, weight in weights.items()
    }
    if arguments.json:
        print(json.dumps(results))
        return
    for name, medians in results.items():
        print(f"\n{name}, {arguments.threads} threads, 256 rollouts a step")
        for stage, value in medians.items():
            print(f"  {stage.removeprefix('time/'):22} {value:8.4f}")


if __name__ == "__main__":
    main()
