"""Do failure-heavy weights end in an update of rank one, concentrated in the output head?

    python benchmarks/rank.py [--seeds 8] [--steps 400] [--out runs/benchmark-rank] [--json]

The claim (arXiv 2607.01490, Tables 9 and 10): ``asym_grpo_delta`` with delta = 1/2 ends with a
higher r_1 and a larger share of the change in the output head than ``grpo``. Here: the demo's model
and recipe, one pair of runs a seed, both from the same checkpoint and random draws. r_1 and the
head's share are compared at the last step, at equal pass@1 (the highest on test problems that both
runs of a pair reached) and at equal norm of the head's change (the largest both reached), on
straight lines between evaluations; differences are paired by seed, with 95% t intervals over seeds.

A run that is finished is read and not made again; one that broke off goes on. About a minute and a
half a run on one thread, 20 minutes in all.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

from scipy.stats import t as student

from gradmass.config import Recipe
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.training.train import train

WEIGHTS = {"grpo": ["--weight=grpo"], "asym": ["--weight=asym_grpo_delta", "--weight.delta=0.5"]}
R_1, HEAD = "rank/head_top1_share", "rank/head_energy_share"
NORM, PASS = "rank/head_change_norm", "test/pass@1"
MEASURED = {"r_1 of the head": R_1, "head's share of the change": HEAD}


def finished(folder: Path, flags: list[str]) -> Run:
    """The run of a recipe in a folder: read, gone on with, or made."""
    recipe = load_recipe(Recipe, "demo", flags)
    config = {"label": recipe.weight.label, "recipe": to_tables(recipe)}
    if (folder / "state.json").exists():
        if Run(folder).config["recipe"] != json.loads(json.dumps(config["recipe"])):
            sys.exit(f"{folder} holds a run of another recipe; name another --out")
        if Run(folder).state["status"] == "finished":
            return Run(folder)
        writer = RunWriter.resume(folder, {})
    else:
        writer = RunWriter.create(folder, config, {})
    try:
        train(recipe, writer, lambda row: None)
    finally:
        writer.close()
    return Run(folder)


def path(run: Run, x: str, y: str) -> tuple[list[float], list[float]]:
    """Two metrics over the evaluations of a run at which both are known."""
    rows = [row for row in run.metrics if row.get(x) is not None and row.get(y) is not None]
    return [row[x] for row in rows], [row[y] for row in rows]


def at_end(pair: dict[str, Run], key: str) -> dict[str, float | None]:
    return {name: run.metrics[-1][key] for name, run in pair.items()}


def first_at(xs: list[float], ys: list[float], level: float) -> float | None:
    """Value of y where x first meets a level, on straight lines between the points in order."""
    points = list(zip(xs, ys, strict=True))
    for (x_0, y_0), (x_1, y_1) in zip(points[:1] + points, points, strict=False):
        if min(x_0, x_1) <= level <= max(x_0, x_1):
            return y_1 if x_0 == x_1 else y_0 + (level - x_0) / (x_1 - x_0) * (y_1 - y_0)
    return None


def at_equal(x: str) -> Callable[[dict[str, Run], str], dict[str, float | None]]:
    """Read a metric where each run of a pair first reaches the highest x that both reach."""

    def read(pair: dict[str, Run], key: str) -> dict[str, float | None]:
        paths = {name: path(run, x, key) for name, run in pair.items()}
        level = min(max(xs) for xs, _ in paths.values())
        return {name: first_at(xs, ys, level) for name, (xs, ys) in paths.items()}

    return read


def difference(values: list[float]) -> dict[str, float]:
    """Mean and 95% t interval."""
    half = student.ppf(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return {"mean": mean(values), "low": mean(values) - half, "high": mean(values) + half}


def compare(pairs: list[dict[str, Run]]) -> dict[str, dict[str, dict]]:
    places = {
        "at the last step": at_end,
        "at equal pass@1": at_equal(PASS),
        "at equal norm of change": at_equal(NORM),
    }
    found: dict[str, dict[str, dict]] = {}
    for place, read in places.items():
        keys = dict(MEASURED)
        if place != "at equal pass@1":
            keys |= {"pass@1, test": PASS, "pass@100, test": "test/pass@100"}
        if place != "at equal norm of change":
            keys |= {"norm of the head's change": NORM}
        for label, key in keys.items():
            values = [read(pair, key) for pair in pairs]
            # A run may stand above the level at its first evaluation with a change.
            values = [value for value in values if None not in value.values()]
            if len(values) < 2:
                sys.exit(f"{label} {place}: fewer than two pairs can be compared; take more steps")
            found.setdefault(place, {})[label] = {
                **{name: mean(value[name] for value in values) for name in WEIGHTS},
                "difference": difference([value["asym"] - value["grpo"] for value in values]),
                "by_pair": values,
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-rank"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error("an interval over seeds needs at least 2")
    pairs = []
    for seed in range(arguments.seeds):
        flags = [f"--seed={seed}", f"--train.steps={arguments.steps}", "--train.threads=1"]
        flags += ["--eval.every=20", "--eval.num_problems=50", "--eval.num_samples=0"]
        pair = {}
        for name, weight in WEIGHTS.items():
            print(f"seed {seed} of {arguments.seeds}: {name}", file=sys.stderr, flush=True)
            pair[name] = finished(arguments.out / f"{name}-{seed}", [*weight, *flags])
        pairs.append(pair)
    found = compare(pairs)
    if arguments.json:
        print(json.dumps(found))
        return
    noise = pairs[0]["grpo"].metrics[-1]["rank/head_top1_share_noise"]
    share = pairs[0]["grpo"].metrics[-1]["rank/head_parameter_share"]
    print(
        f"{arguments.seeds} pairs of {arguments.steps} steps; r_1 of noise {noise:.3f}, the head's "
        f"share of the parameters {share:.3f};\n"
        "differences asym_grpo_delta(.5) - grpo with 95% t intervals over seeds"
    )
    for place, rows in found.items():
        print(f"\n{place:29} {'grpo':>7} {'asym':>7}   difference")
        for label, row in rows.items():
            gap = row["difference"]
            print(
                f"  {label:27} {row['grpo']:7.3f} {row['asym']:7.3f}   "
                f"{gap['mean']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}]"
                + (f" ({len(row['by_pair'])} pairs)" if len(row["by_pair"]) < len(pairs) else "")
            )


if __name__ == "__main__":
    main()
