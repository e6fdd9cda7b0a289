"""The runs of a study: which there are, which wait for which, and the recipe of each."""

import atexit
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from gradmass.config import Recipe
from gradmass.metrics.curves import FEWEST_POINTS
from gradmass.study.design import Arm, Setting, Study, flags_of
from gradmass.tables import from_spec, load_recipe, split_spec, to_tables
from gradmass.types import UsageError
from gradmass.weights import Weight

Rates = Mapping[tuple[str, str], float]
"""Learning rates by setting and arm."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a study; equal runs give equal numbers.

    Args:
        kind: Whether it counts or chooses a learning rate.
        setting: Name of the setting.
        arm: Name of the arm.
        seed: Seed of the recipe.
        lr: Learning rate; None for that of the recipe.
        axes: Field and value on each axis.
    """

    kind: Literal["main", "tuning"]
    setting: str
    arm: str
    seed: int
    lr: float | None = None
    axes: tuple[tuple[str, int | float | str], ...] = ()

    @property
    def name(self) -> str:
        """What its files are called, such as ``main.maze.grpo.lag-4.s1000``."""
        axes = [f"{field.rpartition('.')[2]}-{value:}" for field, value in self.axes]
        rate = [f"lr-{self.lr:g}"] if self.kind == "tuning" else []
        return ".".join([self.kind, self.setting, self.arm, *axes, *rate, f"s{self.seed}"])


def main_runs(study: Study, rates: Rates) -> list[PlannedRun]:
    """The runs that count, seed by seed, so that what is there at any time is paired.

    Args:
        study: The study.
        rates: Learning rates; where there is none, the recipe's.
    """
    return [
        PlannedRun(
            kind="main",
            setting=setting.name,
            arm=arm.name,
            seed=seed,
            lr=rates.get((setting.name, arm.rate_of or arm.name)),
            axes=axes,
        )
        for seed in study.seeds
        for setting in study.settings
        for axes in _crossed(study)
        for arm in study.arms
    ]


def tuning_runs(study: Study) -> list[PlannedRun]:
    """The runs that choose learning rates; arms that use another's rate have none."""
    tuning = study.tuning
    return [
        PlannedRun(kind="tuning", setting=setting.name, arm=arm.name, seed=seed, lr=lr)
        for seed in range(tuning.first_seed, tuning.first_seed + tuning.num_seeds)
        for setting in study.settings
        for lr in tuning.rates
        for arm in study.arms
        if not arm.rate_of
    ]


def source_of(study: Study, run: PlannedRun) -> PlannedRun | None:
    """The run whose trace this one replays, if it replays any."""
    arm = study.arm(run.arm)
    if not arm.trace_of:
        return None
    seeds = list(study.seeds)
    shift = 1 if arm.trace_seed == "next" else 0
    seed = seeds[(seeds.index(run.seed) + shift) % len(seeds)]
    return replace(run, arm=arm.trace_of, seed=seed)


def traced_as(study: Study, arm: Arm) -> str | None:
    """What of a run is replayed by an arm: ``alpha_delta`` or ``mass``; None without replay."""
    if not arm.trace_of:
        return None
    weight = _weight_tables(arm, trace_placeholder(arm))
    return str(weight["what"])


def recipe_of(study: Study, run: PlannedRun, trace: Path | None = None) -> Recipe:
    """The recipe of a run.

    Args:
        study: The study.
        run: One of its runs.
        trace: For the weight replay, the file to replay.

    Raises:
        UsageError: A field that is none, or a value of the wrong kind.
    """
    arm = study.arm(run.arm)
    setting = next(setting for setting in study.settings if setting.name == run.setting)
    tables = to_tables(study.recipe)
    tables["weight"] = _weight_tables(arm, trace)
    tables["seed"] = run.seed
    fields = [*setting.set, *arm.set, *(f"{field}={value}" for field, value in run.axes)]
    if run.kind == "tuning":
        fields += study.tuning.set
    if run.lr is not None:
        fields.append(f"optim.lr={run.lr!r}")
    recipe = load_recipe(Recipe, None, flags_of(fields), start=tables)
    if run.kind == "tuning":
        steps = max(1, round(recipe.train.steps * study.tuning.share_of_steps))
        recipe = replace(recipe, train=replace(recipe.train, steps=steps))
    return recipe


def check_recipes(study: Study) -> None:
    """Build the recipe of every arm in every setting, so that a mistake is found before any run.

    Raises:
        UsageError: As in ``recipe_of``, with the arm and the setting.
    """
    kinds = [main_runs(study, {})[: len(study.arms) * len(study.settings) * len(_crossed(study))]]
    kinds.append([run for run in tuning_runs(study) if run.seed == study.tuning.first_seed])
    measures = {part.measure for claimed in study.hypotheses for part in claimed.parts}
    needs_fit = bool(measures & {"midpoint of pass@1", "ceiling of pass@1"})
    for run in itertools.chain(*kinds):
        try:
            recipe = recipe_of(study, run, trace_placeholder(study.arm(run.arm)))
            if run.kind == "main" and needs_fit:
                _check_fit(recipe)
        except UsageError as error:
            raise UsageError(f"run {run.name} of study {study.name}: {error}") from error


def num_evaluations(recipe: Recipe) -> int:
    """How often a run evaluates: at its start, every few updates, and after the last."""
    steps, every = recipe.train.steps, recipe.eval.every
    return 1 + (-(-steps // every) if every else 1)


def _check_fit(recipe: Recipe) -> None:
    """Refuse evaluations that are too few for a fitted curve."""
    num_evals = num_evaluations(recipe)
    if num_evals < FEWEST_POINTS:
        raise UsageError(
            f"midpoint and ceiling of pass@1 need {FEWEST_POINTS} evaluations or more, got "
            f"{num_evals}: set eval.every to at most {recipe.train.steps // (FEWEST_POINTS - 1)}"
        )


def trace_placeholder(arm: Arm) -> Path | None:
    """A file that the weight replay reads before there is a trace; None for other weights."""
    if not arm.trace_of:
        return None
    is_mass = "what=mass" in split_spec(arm.weight)[1].split(",")
    file = _placeholders() / ("mass.json" if is_mass else "alpha_delta.json")
    file.write_text(json.dumps([1.0] if is_mass else [[1.0, 1.0]]))
    return file


@cache
def _placeholders() -> Path:
    """A folder of this process."""
    folder = tempfile.mkdtemp(prefix="gradmass-study-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def best_rates(study: Study, scores: Mapping[PlannedRun, float | None]) -> Rates:
    """Each arm's learning rate: the one with the largest mean score; the smaller of equals.

    Args:
        study: The study.
        scores: For every tuning run the area under pass@1 over rollouts; None where the policy
            diverged, which counts as 0.

    Returns:
        Rates by setting and arm, those fixed by hand included.
    """
    means: dict[tuple[str, str], dict[float, float]] = {}
    for run, score in scores.items():
        assert run.lr is not None  # tuning runs have one
        by_rate = means.setdefault((run.setting, run.arm), {})
        by_rate[run.lr] = by_rate.get(run.lr, 0.0) + (score or 0.0)
    chosen = {key: max(sorted(rates), key=rates.__getitem__) for key, rates in means.items()}
    return chosen | {(rate.setting, rate.arm): rate.lr for rate in study.rates}


def _weight_tables(arm: Arm, trace: Path | None) -> dict[str, Any]:
    spec = arm.weight
    if arm.trace_of:
        spec += f"{',' if ':' in spec else ':'}trace={trace}"
    return to_tables(from_spec(Weight, spec))  # type: ignore[type-abstract]


def _crossed(study: Study) -> Sequence[tuple[tuple[str, int | float | str], ...]]:
    pairs = [[(axis.field, value) for value in axis.values] for axis in study.axes]
    return list(itertools.product(*pairs))


def settings_of(
    study: Study,
) -> Iterator[tuple[Setting, tuple[tuple[str, int | float | str], ...]]]:
    """Every setting at every place of the axes: where arms are compared with each other."""
    for setting in study.settings:
        for axes in _crossed(study):
            yield setting, axes
