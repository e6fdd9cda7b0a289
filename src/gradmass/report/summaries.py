"""What the tables of the report say of an arm: its last values, its fields, its status."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradmass.metrics.seeds import Interval
from gradmass.record import Run
from gradmass.report.arms import Arm, Look, arms_of, engine_of, interval_over_seeds, seed_of
from gradmass.report.evaluations import is_evaluation, series
from gradmass.types import UsageError

MISSING = "–"
ENGINES = {"local": "this package, on one machine", "trl": "TRL"}


@dataclass(frozen=True)
class Summary:
    """What the tables say of an arm.

    Args:
        arm: Its runs and its look.
        last: Last row of metrics of each run.
        evaluated: Of each run the row of the last step that all evaluated; empty if none is.
    """

    arm: Arm
    last: list[dict[str, Any]]
    evaluated: list[dict[str, Any]]

    @property
    def look(self) -> Look:
        """Label, colour and dash."""
        return self.arm.look

    @property
    def status(self) -> str:
        """Running, interrupted, failed or finished, counted where its runs differ."""
        counts = Counter(map(status_of, self.arm.runs))
        if len(counts) == 1:
            return next(iter(counts))
        return ", ".join(f"{count} {status}" for status, count in counts.items())

    @property
    def task_name(self) -> str:
        """Registered name of its task."""
        return str(self.arm.runs[0].config["recipe"]["task"]["type"])

    @property
    def model_name(self) -> str:
        """The fields that describe its model."""
        fields = flatten(self.arm.runs[0].config["recipe"].get("model", {}))
        return ", ".join(f"{key} = {value}" for key, value in fields.items())

    @property
    def engine(self) -> str:
        """What trained it."""
        engine = engine_of(self.arm.runs[0])
        return ENGINES.get(engine, engine)

    @property
    def num_unscorable(self) -> int:
        """Rollouts that the verifier could not judge, over all its runs."""
        # A batch that several updates were made on has several rows, and one number of rollouts.
        batches = [
            {row["rollouts"]: row.get("rollout/num_unscorable") for row in run.metrics}
            for run in self.arm.runs
        ]
        return sum(number or 0 for rows in batches for number in rows.values())

    def at_end(self, key: str) -> list[Any]:
        """A value of the last row of each run, each only once."""
        return sorted({row[key] for row in self.last})

    @property
    def evaluated_step(self) -> int | None:
        """The last step that every run evaluated."""
        return int(self.evaluated[0]["step"]) if self.evaluated else None

    def value(self, key: str) -> Interval | None:
        """A metric at the last evaluation, over seeds."""
        return interval_over_seeds([row.get(key) for row in self.evaluated])

    def recent(self, key: str, window: int) -> Interval | None:
        """Mean of the last values of a key in each run, over seeds."""
        means: list[float | None] = []
        for run in self.arm.runs:
            values = series(run, "step", key)[1][-window:]
            means.append(sum(values) / len(values) if values else None)
        return interval_over_seeds(means)


def summary_of(arm: Arm) -> Summary:
    """Sum up an arm.

    Raises:
        UsageError: A run that has no row of metrics yet.
    """
    for run in arm.runs:
        if not run.metrics:
            raise UsageError(
                f"run {run.path} has no row of metrics yet; report it once it has started"
            )
    tables = [{row["step"]: row for row in run.metrics if is_evaluation(row)} for run in arm.runs]
    step = max(set.intersection(*map(set, tables)), default=None)
    evaluated = [] if step is None else [table[step] for table in tables]
    return Summary(arm, [run.metrics[-1] for run in arm.runs], evaluated)


@dataclass(frozen=True)
class NamedRun:
    """A single run under the name it has on the page.

    Args:
        run: The run.
        look: That of its arm, with the seed in the label where the arm has several.
    """

    run: Run
    look: Look

    @property
    def status(self) -> str:
        """Running, interrupted, failed, finished or unknown."""
        return status_of(self.run)

    @property
    def place(self) -> str:
        """The last step recorded, of how many."""
        steps = self.run.config["recipe"].get("train", {}).get("steps")
        return f"step {self.run.metrics[-1]['step']}" + (f" of {steps}" if steps else "")


def named_runs(runs: Sequence[Run]) -> list[NamedRun]:
    """All runs with their names, arm by arm."""
    return [
        NamedRun(run, replace(arm.look, label=f"{arm.look.label}, seed {seed_of(run)}"))
        if arm.has_seeds
        else NamedRun(run, arm.look)
        for arm in arms_of(runs)
        for run in arm.runs
    ]


def status_of(run: Run) -> str:
    """Running, interrupted, failed or finished; unknown before the first checkpoint."""
    try:
        return str(run.state["status"])
    except UsageError:
        return "unknown"


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables as dotted keys with their values as JSON (strings bare).

    >>> flatten({"task": {"type": "countdown", "seed": 0}})
    {'task.type': 'countdown', 'task.seed': '0'}
    """
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return flat


def rows_by_key(
    arms: Iterable[Arm], table_of: Callable[[Run], dict[str, Any]]
) -> list[tuple[str, list[str]]]:
    """A row for each dotted key that any run's table has, with the values of every arm."""
    flat = [[flatten(table_of(run)) for run in arm.runs] for arm in arms]
    keys = dict.fromkeys(key for tables in flat for table in tables for key in table)
    return [
        (key, ["; ".join(dict.fromkeys(table.get(key, MISSING) for table in arm)) for arm in flat])
        for key in keys
    ]


def recipe_of(run: Run) -> dict[str, Any]:
    """The recipe of a run, resolved in full."""
    recipe: dict[str, Any] = run.config["recipe"]
    return recipe


def differing(rows: Iterable[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """The rows whose values are not all alike."""
    return [(key, values) for key, values in rows if len(set(values)) > 1]
