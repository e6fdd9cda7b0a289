"""Differences of two arms, or of an arm from its own start, paired by seed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradmass.metrics.passk import KS
from gradmass.metrics.seeds import t_interval
from gradmass.record import Run
from gradmass.report.arms import Arm, seed_of
from gradmass.report.evaluations import is_evaluation, pass_key, splits_of


@dataclass(frozen=True)
class SeedDifference:
    """A mean of one difference a seed, with Student's 95% interval.

    Args:
        mean: Over seeds.
        low: Lower end.
        high: Upper end.
    """

    mean: float
    low: float
    high: float

    @property
    def is_decided(self) -> bool:
        """Whether the interval leaves 0 out."""
        return not self.low <= 0 <= self.high


@dataclass(frozen=True)
class SeedComparison:
    """Two arms on the same problems at one step, or why there is nothing to compare.

    Args:
        step: The last one that every run of both evaluated.
        seeds: Those that both have.
        differences: Of pass@k by split and k, the arm minus the other.
        rollouts: Sampled by then, by a run of the arm and of the other.
        obstacle: Why there are none.
    """

    step: int
    seeds: tuple[object, ...]
    differences: dict[str, dict[int, SeedDifference]]
    rollouts: tuple[int, int] = (0, 0)
    obstacle: str = ""


def compare_over_seeds(arm: Arm, other: Arm) -> SeedComparison:
    """Paired differences of pass@k: exact where it is recorded, else sampled."""
    pairs = [
        (run, base) for run in arm.runs for base in other.runs if seed_of(run) == seed_of(base)
    ]
    seeds = tuple(seed_of(run) for run, _ in pairs)
    if len(pairs) < 2:
        return SeedComparison(
            0, seeds, {}, obstacle=f"they share {len(pairs)} of their seeds, and that needs 2"
        )
    steps = _evaluated_steps([run for pair in pairs for run in pair])
    step = max(steps, default=0)
    obstacle = _obstacle(arm.runs[0], other.runs[0], step) if step else _NOT_EVALUATED
    if obstacle:
        return SeedComparison(step, seeds, {}, obstacle=obstacle)
    return _difference([(run, step, base, step) for run, base in pairs], seeds)


def compare_with_start(arm: Arm) -> SeedComparison:
    """What each run gained since its own start, over seeds."""
    steps = _evaluated_steps(arm.runs)
    step = max(steps, default=0)
    if not step or 0 not in steps:
        return SeedComparison(step, arm.seeds, {}, obstacle=_NOT_EVALUATED)
    return _difference([(run, step, run, 0) for run in arm.runs], arm.seeds)


_NOT_EVALUATED = "there is no evaluation after the start to compare"


def _difference(
    pairs: Sequence[tuple[Run, int, Run, int]], seeds: tuple[object, ...]
) -> SeedComparison:
    """Of the values of pairs of runs, each at a step of its own."""
    runs = [run for a, _, b, _ in pairs for run in (a, b)]
    differences: dict[str, dict[int, SeedDifference]] = {}
    for split in splits_of(runs):
        for k in KS:
            key = pass_key(runs, split, k)
            values = [(row_at(a, i).get(key), row_at(b, j).get(key)) for a, i, b, j in pairs]
            known = [a - b for a, b in values if a is not None and b is not None]
            if len(known) == len(pairs):
                found = t_interval(np.array(known))
                by_k = differences.setdefault(split, {})
                by_k[k] = SeedDifference(found.mean, found.low, found.high)
    a, i, b, j = pairs[0]
    rollouts = (int(row_at(a, i)["rollouts"]), int(row_at(b, j)["rollouts"]))
    return SeedComparison(i, seeds, differences, rollouts)


def row_at(run: Run, step: int) -> dict[str, float]:
    """The metrics of a step that a run evaluated."""
    return next(row for row in run.metrics if row["step"] == step and is_evaluation(row))


def _evaluated_steps(runs: Sequence[Run]) -> set[int]:
    """Steps that every run evaluated."""
    steps = [{row["step"] for row in run.metrics if is_evaluation(row)} for run in runs]
    return set.intersection(*steps)


def _obstacle(run: Run, other: Run, step: int) -> str:
    """Why two runs do not say the same of the same problems; empty if they do."""
    mine, theirs = run.config["recipe"], other.config["recipe"]
    asked = [recipe.get("eval", {}).get("num_problems") for recipe in (mine, theirs)]
    ids = [
        {row["split"]: sorted(row["problem_ids"]) for row in r.evaluations if row["step"] == step}
        for r in (run, other)
    ]
    is_alike = mine["task"] == theirs["task"] and asked[0] == asked[1] and ids[0] == ids[1]
    return "" if is_alike else "they were not evaluated on the same problems"
