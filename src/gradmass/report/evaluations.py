"""What the record of runs says of accuracy: evaluations, and comparisons of two runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.metrics.intervals import Difference, paired_difference
from gradmass.metrics.passk import KS, pass_at_k_from_probability
from gradmass.record import Run

SAMPLED = "sampled_"
"""Stands before pass@k in the key of a value that was sampled, not summed."""


def splits_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """The splits that any run evaluated, in the order of the record."""
    keys = (key for run in runs for row in run.metrics for key in row)
    pairs = (key.rsplit("/", 1) for key in keys if key.endswith("pass@1"))
    return tuple(dict.fromkeys(split for split, _ in pairs))


def pass_key(runs: Sequence[Run], split: str, k: int) -> str:
    """The key of pass@k on a split: exact where any run recorded it, else sampled."""
    exact = f"{split}/pass@{k}"
    is_exact = any(has(row, exact) for run in runs for row in run.metrics)
    return exact if is_exact else f"{split}/{SAMPLED}pass@{k}"


def is_evaluation(row: Mapping[str, Any]) -> bool:
    """Whether a row of metrics holds an evaluation."""
    return any(key.endswith("pass@1") and has(row, key) for key in row)


def series(run: Run, x: str, y: str) -> tuple[list[float], list[float]]:
    """The values of two keys in the rows of the metrics that have both, in order of the step."""
    pairs = [(row[x], row[y]) for row in run.metrics if has(row, x) and has(row, y)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


@dataclass(frozen=True)
class Comparison:
    """Two evaluations on the same problems, or why there is nothing to compare.

    Args:
        step: Step of the run's evaluation.
        rollouts: Sampled by then, by the run and by the other.
        differences: Of pass@k by split and k, the run minus the other.
        obstacle: Why there are none.
        seeds: None: one run stands against one, and the intervals are over problems.
    """

    step: int
    rollouts: tuple[int, int]
    differences: dict[str, dict[int, Difference]]
    obstacle: str = ""
    seeds: ClassVar[tuple[object, ...]] = ()

    @property
    def num_problems(self) -> dict[str, int]:
        """Problems of each split."""
        return {split: by_k[KS[0]].num_problems for split, by_k in self.differences.items()}


def solve_probabilities(run: Run, step: int) -> dict[str, dict[str, float]]:
    """Solve probability of each problem by split, at one step."""
    return {
        row["split"]: dict(zip(row["problem_ids"], row["solve_probability"], strict=True))
        for row in run.evaluations
        if row["step"] == step
    }


def compare(run: Run, other: Run, step: int, other_step: int) -> Comparison:
    """Paired differences of exact pass@k, the run minus the other, each at a step of its own."""
    mine, theirs = solve_probabilities(run, step), solve_probabilities(other, other_step)
    splits = [split for split in mine if split in theirs]
    obstacle = ""
    # Ids name a problem within its task alone, so the tasks must be the same too, field by field.
    if run.config["recipe"]["task"] != other.config["recipe"]["task"] or any(
        mine[split].keys() != theirs[split].keys() for split in splits
    ):
        obstacle = "they were not evaluated on the same problems"
    elif not splits and any(map(is_evaluation, run.metrics)):
        form = run.config["recipe"].get("prompt", {}).get("format", "none")
        hidden = f" in the form of prompt.format = {form!r}" if form != "none" else ""
        obstacle = (
            f"their task does not list its right answers{hidden}, so nothing exact can be paired"
        )
    elif not splits or step == 0:
        obstacle = "there is no evaluation after the start to compare"
    elif any(len(mine[split]) < 2 for split in splits):
        obstacle = "an interval over problems needs at least 2 problems"
    if obstacle:
        return Comparison(step, (0, 0), {}, obstacle)
    differences: dict[str, dict[int, Difference]] = {}
    for split in splits:
        ids = sorted(mine[split])
        a_N, b_N = ([values[split][id_] for id_ in ids] for values in (mine, theirs))
        differences[split] = {
            k: paired_difference(
                pass_at_k_from_probability(a_N, k), pass_at_k_from_probability(b_N, k)
            )
            for k in KS
        }
    rollouts = (_rollouts_at(run, step), _rollouts_at(other, other_step))
    return Comparison(step, rollouts, differences)


def compare_at_last_common_step(run: Run, other: Run) -> Comparison:
    """Compare two runs at the last step that both evaluated."""
    steps = {row["step"] for row in run.evaluations} & {row["step"] for row in other.evaluations}
    step = max(steps, default=0)
    return compare(run, other, step, step)


def at_level(x: Sequence[float], y: Sequence[float], level: float) -> float | None:
    """Value of y where x first meets a level, on straight lines between the points in order.

    >>> at_level([0.25, 0.5], [1.0, 0.0], 0.375), at_level([0.25, 0.5], [1.0, 0.0], 0.75)
    (0.5, None)
    """
    points = list(zip(x, y, strict=True))
    for (x_0, y_0), (x_1, y_1) in zip(points[:1] + points, points, strict=False):
        if min(x_0, x_1) <= level <= max(x_0, x_1):
            return y_1 if x_0 == x_1 else y_0 + (level - x_0) / (x_1 - x_0) * (y_1 - y_0)
    return None


def at_equal_pass_at_1(runs: Sequence[Run], split: str) -> tuple[float | None, list[float | None]]:
    """The highest pass@1 that every run reached, and each run's pass@100 there.

    Runs without an evaluation are left aside, with None.
    """
    paths = [series(run, *(pass_key(runs, split, k) for k in (1, 100))) for run in runs]
    level = min((max(x) for x, _ in paths if x), default=None)
    return level, [None if level is None else at_level(x, y, level) for x, y in paths]


def _rollouts_at(run: Run, step: int) -> int:
    return next((int(row["rollouts"]) for row in run.metrics if row["step"] == step), 0)


def has(row: Mapping[str, Any], key: str) -> bool:
    """Whether a row has a value for a key."""
    return row.get(key) is not None
