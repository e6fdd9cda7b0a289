"""Runs that differ in their seed alone are one arm: one look, one row, one curve with a band.

A colour belongs to the name of a weight, in every figure and every report; arms of the same colour
differ in their dashes.
"""

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmass.metrics.seeds import Interval, t_interval
from gradmass.record import Run
from gradmass.report.evaluations import has

COLORS = {
    "fade": "#d55e00",
    "grpo": "#0072b2",
    "power": "#009e73",
    "asym_grpo_delta": "#cc79a7",
    "power_asym": "#e69f00",
    "grpo_std": "#56b4e9",
    "reinforce": "#4d4d4d",
}
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
OTHER_COLORS = ("#332288", "#882255", "#999933", "#44aa99", "#117733", "#aa4499")
"""Tol's muted colours; any other name keeps the one its checksum picks."""
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.8), (1.2, 1.4), (6, 1.6, 1.2, 1.6))


@dataclass(frozen=True)
class Look:
    """How an arm looks in every figure and table.

    Args:
        label: The label of its runs, with the folder of the first where two arms share it.
        color: Of its weight's name.
        dash: Lengths of strokes and gaps in points; empty for a solid line.
    """

    label: str
    color: str
    dash: tuple[float, ...]

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of a matplotlib line."""
        return {"color": self.color, "linestyle": (0, self.dash) if self.dash else "-"}


def color_of(weight_name: str) -> str:
    """The fixed colour of a weight's name.

    >>> color_of("fade")
    '#d55e00'
    """
    number = zlib.crc32(weight_name.encode())
    return COLORS.get(weight_name, OTHER_COLORS[number % len(OTHER_COLORS)])


@dataclass(frozen=True)
class Arm:
    """Runs whose recipes are alike but for the seed; often one.

    Args:
        runs: In the order given, each with another seed.
        look: Its label, colour and dash.
    """

    runs: tuple[Run, ...]
    look: Look

    @property
    def has_seeds(self) -> bool:
        """Whether it has several runs, so that something can be said over seeds."""
        return len(self.runs) > 1

    @property
    def seeds(self) -> tuple[Any, ...]:
        """The seed of each run."""
        return tuple(seed_of(run) for run in self.runs)


def seed_of(run: Run) -> Any:
    """The seed of the whole run; None where the record has none."""
    return run.config["recipe"].get("seed")


def arms_of(runs: Sequence[Run]) -> list[Arm]:
    """The arms of runs, in the order of their first run.

    Runs are of one arm where engine, the user's own files and every field of the recipe but
    ``seed`` and ``train.threads`` (how many threads are fastest is the machine's) are alike. Runs
    of one recipe *and* one seed are no sample of seeds: each of these is an arm by itself.
    """
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(_without_seed(run), []).append(run)
    groups: list[tuple[Run, ...]] = []
    for members in alike.values():
        if len({json.dumps(seed_of(run)) for run in members}) == len(members):
            groups.append(tuple(members))
        else:
            groups += [(run,) for run in members]
    order = {id(run): place for place, run in enumerate(runs)}
    groups.sort(key=lambda members: order[id(members[0])])
    return [Arm(members, look) for members, look in zip(groups, _looks(groups), strict=True)]


def _without_seed(run: Run) -> str:
    recipe = {key: value for key, value in run.config["recipe"].items() if key != "seed"}
    train = {key: value for key, value in recipe.get("train", {}).items() if key != "threads"}
    config = {key: value for key, value in run.config.items() if key in ("label", "files")}
    return json.dumps(
        {**config, "engine": engine_of(run), "recipe": {**recipe, "train": train}}, sort_keys=True
    )


def engine_of(run: Run) -> str:
    """What trained it; runs from before there were several engines are local."""
    return str(run.config.get("engine", "local"))


def _looks(groups: Sequence[tuple[Run, ...]]) -> list[Look]:
    """A look for each group; no two share all of colour, dash and label."""
    firsts = [members[0] for members in groups]
    labels = Counter(run.label for run in firsts)
    folders = Counter((run.label, run.path.resolve().name) for run in firsts)
    seen: Counter[str] = Counter()
    found = []
    for run in firsts:
        label, folder, color = run.label, run.path.resolve().name, color_of(run.weight_name)
        if labels[label] > 1:
            label += f" ({folder if folders[label, folder] == 1 else run.path})"
        found.append(Look(label, color, DASHES[seen[color] % len(DASHES)]))
        seen[color] += 1
    return found


def over_seeds(arm: Arm, *keys: str) -> list[np.ndarray]:
    """Values of metrics at the steps where every run of an arm has all of them.

    Args:
        arm: The runs.
        keys: Of the rows of metrics.

    Returns:
        For each key an array ``[S, N]``: a row a run, a column a step, in order of the steps.
    """
    tables = [
        {
            row["step"]: [row[key] for key in keys]
            for row in run.metrics
            if all(has(row, key) for key in keys)
        }
        for run in arm.runs
    ]
    steps = [step for step in tables[0] if all(step in table for table in tables)]
    values = np.array([[table[step] for step in steps] for table in tables], dtype=np.float64)
    values_SNK = values.reshape(len(tables), len(steps), len(keys))
    return [values_SNK[:, :, place] for place in range(len(keys))]


def interval_over_seeds(values: Sequence[float | None]) -> Interval | None:
    """Mean of one value a run with Student's 95% interval; None unless every run has one."""
    known = [value for value in values if value is not None]
    return t_interval(np.array(known)) if known and len(known) == len(values) else None
