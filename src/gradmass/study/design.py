"""What a study file holds: arms, settings, axes, seeds, tuning and hypotheses, all fixed before."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gradmass.config import Recipe
from gradmass.metrics.seeds import MAX_EXACT
from gradmass.tables import from_tables, read_toml
from gradmass.types import UsageError

MEASURES = (
    "pass@1 at the end",
    "pass@10 at the end",
    "pass@100 at the end",
    "pass@100 at equal pass@1",
    "area under pass@1",
    "area under pass@10",
    "area under pass@100",
    "midpoint of pass@1",
    "ceiling of pass@1",
    "doublings of rollouts to the level",
    "entropy at the end",
    "entropy at equal pass@1",
    "half-life of the entropy",
    "r_1 over noise at the end",
    "r_1 over noise at equal pass@1",
    "r_1 over noise at equal norm",
)
"""What two runs of one seed are compared by (``measures.py``)."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A place where all arms are compared: a task and a starting point."""

    name: str
    """What results are filed under."""
    set: tuple[str, ...] = ()
    """Fields of the recipe as FIELD=VALUE, such as task.type=maze."""
    level: float | None = None
    """pass@1 on test problems to which rollouts are counted, fixed beforehand."""

    def __post_init__(self) -> None:
        """Refuse levels no run can cross."""
        _check_name("settings", self.name)
        if self.level is not None and not 0 < self.level < 1:
            raise UsageError(f"setting {self.name}: level must be between 0 and 1: {self.level}")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A weight to compare, with whatever else it changes."""

    name: str
    """What results are filed under."""
    weight: str
    """NAME, or NAME:field=value,field=value."""
    set: tuple[str, ...] = ()
    """Further fields of the recipe as FIELD=VALUE, such as loss.clip_high=0.28."""
    trace_of: str = ""
    """For the weight replay: the arm whose run is replayed. The run waits for that one."""
    trace_seed: Literal["same", "next"] = "same"
    """Replay the run of the same seed, or that of the next one (of the first, for the last)."""
    rate_of: str = ""
    """The arm whose learning rate is used; this one is not tuned. Empty: its own."""

    def __post_init__(self) -> None:
        """Refuse names that make no file name."""
        _check_name("arms", self.name)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A field of the recipe that is crossed with all arms."""

    field: str
    """Dotted name, such as train.policy_lag or optim.lr."""
    values: tuple[int | float | str, ...]
    """Its values."""

    def __post_init__(self) -> None:
        """Refuse an axis without values, or with values that are the same or no file names."""
        if not self.values:
            raise UsageError(f"axis {self.field} needs values")
        _check_twice(f"axis {self.field}", "values", self.values)
        for value in self.values:
            if not re.fullmatch(r"[\w.+-]+", str(value)):
                raise UsageError(
                    f"axis {self.field}: {value!r} names files: use letters, digits and . _ + - "
                    "only, or make settings of it"
                )


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How each arm's learning rate is chosen, in each setting, before the seeds that count."""

    rates: tuple[float, ...] = ()
    """Learning rates to try; none: no tuning, rates are those of the recipe or of ``rates``."""
    first_seed: int = 0
    """Seed of the first run of each; the seeds that count are others."""
    num_seeds: int = 2
    """Runs of each."""
    share_of_steps: float = 0.5
    """Length of a tuning run over that of one that counts."""
    set: tuple[str, ...] = ()
    """Fields of the recipe as FIELD=VALUE that make it other problems, such as task.seed=1."""

    def __post_init__(self) -> None:
        """Refuse what makes no tuning."""
        if self.num_seeds < 1 or not 0 < self.share_of_steps <= 1:
            raise UsageError(
                "tuning needs num_seeds of at least 1 and share_of_steps in (0, 1], got "
                f"{self.num_seeds} and {self.share_of_steps}"
            )
        _check_twice("tuning", "rates", self.rates)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A learning rate fixed by hand."""

    setting: str
    """In this setting"""
    arm: str
    """this arm"""
    lr: float
    """is trained at this rate."""

    def __post_init__(self) -> None:
        """Refuse what is no learning rate."""
        if not 0 < self.lr < float("inf"):
            raise UsageError(
                f"the learning rate of arm {self.arm} in setting {self.setting} must be finite and "
                f"above 0, got {self.lr}"
            )


@dataclass(frozen=True, kw_only=True)
class Part:
    """One comparison that a hypothesis rests on."""

    measure: str
    """What is compared, one of the measures of a study."""
    arm: str
    """The arm the hypothesis is about."""
    against: tuple[str, ...]
    """The arms it is compared with, one by one; all comparisons must hold."""
    direction: Literal["higher", "lower", "not lower", "not higher"]
    """What is claimed of the arm; "not lower" is by the margin at most."""
    margin: float
    """Differences below it are called equal: for "not lower" and for the equivalence test."""

    def __post_init__(self) -> None:
        """Refuse unknown measures and margins that are none."""
        if self.measure not in MEASURES:
            raise UsageError(f"unknown measure {self.measure!r}; known: {'; '.join(MEASURES)}")
        if not (self.against and 0 < self.margin < float("inf")):
            raise UsageError(
                f"a comparison of {self.measure} needs arms to compare with and a finite margin "
                f"above 0, got {list(self.against)} and {self.margin}"
            )
        _check_twice(f"a comparison of {self.measure}", "arms", (self.arm, *self.against))


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A claim with its decision rule: all parts hold in all settings."""

    name: str
    """Short, such as H1."""
    claim: str
    """In words."""
    parts: tuple[Part, ...]
    """What must hold, all of it."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A grid of arms, axes and seeds in some settings, from one recipe."""

    name: str
    """What results are filed under."""
    recipe: Recipe = field(default_factory=Recipe)
    """What all runs share."""
    settings: tuple[Setting, ...]
    """Tasks and starting points."""
    arms: tuple[Arm, ...]
    """Weights."""
    axes: tuple[Axis, ...] = ()
    """Fields crossed with the arms."""
    first_seed: int = 0
    """Seed of the first run of each arm."""
    num_seeds: int = 2
    """Runs of each arm, paired across arms: same problems, order, draws and evaluation."""
    tuning: Tuning = field(default_factory=Tuning)
    """How learning rates are chosen."""
    rates: tuple[Rate, ...] = ()
    """Learning rates fixed by hand."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """Primary claims; whatever else is compared is exploratory."""
    alpha: float = 0.05
    """Two-sided chance of a false claim among all hypotheses (Holm)."""

    def __post_init__(self) -> None:
        """Refuse a study whose names do not fit together."""
        _check_name("name", self.name)
        for kind, names in (
            ("settings", [setting.name for setting in self.settings]),
            ("arms", [arm.name for arm in self.arms]),
            ("hypotheses", [hypothesis.name for hypothesis in self.hypotheses]),
        ):
            if not names and kind != "hypotheses":
                raise UsageError(f"study {self.name} needs {kind}")
            _check_twice(f"study {self.name}", kind, names)
        _check_twice(f"study {self.name}", "axes", [axis.field for axis in self.axes])
        if self.num_seeds < 1 or self.first_seed < 0 or not 0 < self.alpha < 1:
            raise UsageError(
                f"study {self.name} needs num_seeds of at least 1, first_seed of at least 0 and "
                f"alpha between 0 and 1, got {self.num_seeds}, {self.first_seed}, {self.alpha}"
            )
        tuned = range(self.tuning.first_seed, self.tuning.first_seed + self.tuning.num_seeds)
        if self.tuning.rates and set(tuned) & set(self.seeds):
            raise UsageError(
                f"study {self.name} would tune on seeds that count: tuning.first_seed = "
                f"{self.tuning.first_seed}, first_seed = {self.first_seed}"
            )
        if self.hypotheses and self.num_seeds > MAX_EXACT:
            raise UsageError(
                f"study {self.name}: hypotheses are decided by exact tests, which take at most "
                f"{MAX_EXACT} seeds, got num_seeds = {self.num_seeds}"
            )
        self._check_fields()
        self._check_arms()
        for part in (part for hypothesis in self.hypotheses for part in hypothesis.parts):
            for name in (part.arm, *part.against):
                self._known(name, f"a hypothesis on {part.measure}")
            if part.measure == "doublings of rollouts to the level":
                missing = [setting.name for setting in self.settings if setting.level is None]
                if missing:
                    raise UsageError(f"setting {missing[0]} needs a level for its hypothesis")

    @property
    def seeds(self) -> range:
        """The seeds that count."""
        return range(self.first_seed, self.first_seed + self.num_seeds)

    def arm(self, name: str) -> Arm:
        """The arm of a name."""
        return next(arm for arm in self.arms if arm.name == name)

    def _check_fields(self) -> None:
        """Refuse fields of the recipe that the study sets itself, after all others."""
        own = {
            "seed": "first_seed and num_seeds",
            "weight": "the weight of each arm",
        }
        if self.tuning.rates or self.rates:
            own["optim.lr"] = "tuning.rates or rates"
        texts = {axis.field: f"axis {axis.field}" for axis in self.axes}
        for place, settings in (
            *((f"setting {setting.name}", setting.set) for setting in self.settings),
            *((f"arm {arm.name}", arm.set) for arm in self.arms),
            ("tuning", self.tuning.set),
        ):
            texts |= {text.partition("=")[0]: place for text in settings}
        for name, place in texts.items():
            if name in own:
                raise UsageError(
                    f"study {self.name}: {place} sets {name}, which comes from {own[name]}"
                )
        if self.recipe.seed:
            raise UsageError(
                f"study {self.name}: recipe.seed = {self.recipe.seed} is set, which comes from "
                f"{own['seed']}"
            )

    def _check_arms(self) -> None:
        for arm in self.arms:
            if arm.trace_of:
                traced = self._known(arm.trace_of, f"arm {arm.name}")
                if traced.trace_of:
                    raise UsageError(
                        f"arm {arm.name} replays {traced.name}, which replays another itself"
                    )
            if arm.rate_of and self._known(arm.rate_of, f"arm {arm.name}").rate_of:
                raise UsageError(f"arm {arm.name}: {arm.rate_of} has no learning rate of its own")
            if bool(arm.trace_of) != arm.weight.startswith("replay"):
                raise UsageError(
                    f"arm {arm.name}: trace_of and the weight replay belong together, got "
                    f"trace_of = {arm.trace_of!r} and weight {arm.weight}"
                )
            if arm.trace_of and self.tuning.rates and arm.rate_of != arm.trace_of:
                raise UsageError(
                    f"arm {arm.name} replays {arm.trace_of} and needs its learning rate: "
                    f'rate_of = "{arm.trace_of}"'
                )
        fixed = [f"{rate.arm} in {rate.setting}" for rate in self.rates]
        _check_twice(f"study {self.name}", "learning rates of arm", fixed)
        for rate in self.rates:
            if other := self._known(rate.arm, "a learning rate").rate_of:
                raise UsageError(f"arm {rate.arm} is trained at the learning rate of {other}")
            if rate.setting not in [setting.name for setting in self.settings]:
                raise UsageError(f"a learning rate is for setting {rate.setting!r}, which is none")

    def _known(self, name: str, who: str) -> Arm:
        names = [arm.name for arm in self.arms]
        if name not in names:
            raise UsageError(f"{who} names arm {name!r}; known: {', '.join(names)}")
        return self.arm(name)


def load_study(file: str) -> Study:
    """Read a study from a TOML file, or the name of a shipped one, and try all its recipes.

    Raises:
        UsageError: No such file, an unknown key, names that do not fit, or a recipe that is none.
    """
    from gradmass.study.plan import check_recipes

    study = from_tables(Study, read_toml(file), file)
    check_recipes(study)
    return study


def flags_of(settings: Iterable[str]) -> list[str]:
    """FIELD=VALUE as flags of a recipe; ``task=maze`` chooses a class.

    >>> flags_of(["task=maze", "optim.lr=1e-3"])
    ['--task=maze', '--optim.lr=1e-3']
    """
    for text in settings:
        if "=" not in text:
            raise UsageError(f"a field is set as FIELD=VALUE, got {text!r}")
    return [f"--{text}" for text in settings]


def _check_twice(place: str, kind: str, names: Sequence[object]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"{place} has two {kind} called {str(twice[0])!r}")


def _check_name(place: str, name: str) -> None:
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise UsageError(f"{place}: {name!r} names files: use a-z, 0-9 and _ only")
