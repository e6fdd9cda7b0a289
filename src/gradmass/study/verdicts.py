"""Claims decided by the rule of the design: shown, not shown, reversed or undecided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradmass.metrics.seeds import (
    Interval,
    crossed_interval,
    detectable_effect,
    equivalence_p,
    holm,
    sign_flip_p,
    t_interval,
)
from gradmass.study.design import Hypothesis, Part, Setting, Study
from gradmass.study.measures import MEASURE, doublings_to, pass_at_equal_by_problem
from gradmass.study.plan import PlannedRun
from gradmass.study.results import Result

Axes = tuple[tuple[str, int | float | str], ...]
Decision = Literal["shown", "not shown", "reversed", "undecided"]


@dataclass(frozen=True)
class Comparison:
    """Two arms in one setting by one measure, over seeds.

    Args:
        setting: Where.
        measure: By what.
        arm: The first arm.
        against: The second.
        seeds: Seeds that were compared.
        value_S: Values of the first arm, shape ``[S]``.
        other_S: Values of the second.
        num_left_out: Seeds with both runs that cannot be compared, or with one that diverged.
        num_censored: Runs that never got to the level.
        crossed: Interval for other seeds and other problems, where problems are kept.
    """

    setting: str
    measure: str
    arm: str
    against: str
    seeds: tuple[int, ...]
    value_S: np.ndarray
    other_S: np.ndarray
    num_left_out: int
    num_censored: int
    crossed: Interval | None

    @property
    def difference_S(self) -> np.ndarray:
        """First minus second, a number a seed."""
        difference_S: np.ndarray = self.value_S - self.other_S
        return difference_S

    @property
    def interval(self) -> Interval:
        """Mean difference with its 95% t interval over seeds."""
        return t_interval(self.difference_S)

    def detectable(self, alpha: float) -> float:
        """The difference that as many seeds with this spread find four times in five."""
        spread = float(self.difference_S.std(ddof=1))
        return detectable_effect(spread, len(self.seeds), alpha)

    def p_values(self, part: Part) -> tuple[float, float, float]:
        """One-sided p that the part holds, p that its reverse does, p of equivalence."""
        shift = {"higher": 0.0, "lower": 0.0}.get(part.direction, part.margin)
        sign = 1.0 if part.direction in ("higher", "not lower") else -1.0
        d_S = sign * self.difference_S + shift
        return sign_flip_p(d_S), sign_flip_p(-d_S), equivalence_p(self.difference_S, part.margin)


@dataclass(frozen=True)
class Decided:
    """What became of a hypothesis.

    Args:
        hypothesis: The hypothesis.
        comparisons: Each of its comparisons with the part it belongs to.
        p: Largest p of its comparisons: all must hold.
        p_adjusted: The same after Holm over all hypotheses.
        decision: By the rule.
    """

    hypothesis: Hypothesis
    comparisons: list[tuple[Part, Comparison]]
    p: float
    p_adjusted: float
    decision: Decision


def compare(
    results: Mapping[PlannedRun, Result],
    setting: Setting,
    measure: str,
    arm: str,
    against: str,
    axes: Axes = (),
) -> Comparison | None:
    """Compare two arms on the seeds that have both; None where none has."""
    runs: dict[tuple[str, int], Result] = {
        (run.arm, run.seed): result
        for run, result in results.items()
        if run.kind == "main" and run.setting == setting.name and run.axes == axes
    }
    seeds = sorted(seed for name, seed in runs if name == arm and (against, seed) in runs)
    kept, pairs, by_problem, num_censored = [], [], [], 0
    for seed in seeds:
        a, b = runs[arm, seed], runs[against, seed]
        if "diverged" in (a.status, b.status):
            continue
        pair = MEASURE[measure](a, b, setting.level)
        if pair is None:
            continue
        kept.append(seed)
        pairs.append(pair)
        if measure == "pass@100 at equal pass@1":
            by_problem.append(pass_at_equal_by_problem(a, b))
        if measure == "doublings of rollouts to the level":
            assert setting.level is not None  # the design asks for it
            num_censored += sum(not doublings_to(run, setting.level)[1] for run in (a, b))
    if not kept:
        return None
    values = np.array(pairs)
    is_crossed = len(by_problem) > 1 and all(row is not None for row in by_problem)
    return Comparison(
        setting=setting.name,
        measure=measure,
        arm=arm,
        against=against,
        seeds=tuple(kept),
        value_S=values[:, 0],
        other_S=values[:, 1],
        num_left_out=len(seeds) - len(kept),
        num_censored=num_censored,
        crossed=crossed_interval(np.array(by_problem)) if is_crossed else None,
    )


def decide(study: Study, results: Mapping[PlannedRun, Result]) -> list[Decided]:
    """Decide every hypothesis of a study by what is there.

    A hypothesis holds if all its comparisons do, in all settings (the largest p counts); *shown* if
    that p is at most ``alpha / 2`` after Holm. *Reversed* if one of its parts is reversed in all
    settings against one arm, at ``alpha / 2`` over the number of hypotheses. *Not shown* if one of
    its parts is within its margin in all settings by the equivalence test at ``alpha``. Else
    *undecided*. Parts of "not lower" can be reversed, not equivalent.
    """
    gathered = []
    for hypothesis in study.hypotheses:
        comparisons: list[tuple[Part, Comparison]] = []
        is_whole = True
        for part in hypothesis.parts:
            for against in part.against:
                for setting in study.settings:
                    found = compare(results, setting, part.measure, part.arm, against)
                    is_whole &= found is not None
                    if found is not None:
                        comparisons.append((part, found))
        ps = [comparison.p_values(part)[0] for part, comparison in comparisons]
        gathered.append((hypothesis, comparisons, max(ps) if ps and is_whole else 1.0))
    adjusted = holm({hypothesis.name: p for hypothesis, _, p in gathered})
    return [
        Decided(
            hypothesis,
            comparisons,
            p,
            adjusted[hypothesis.name],
            _decision(study, comparisons, adjusted[hypothesis.name]),
        )
        for hypothesis, comparisons, p in gathered
    ]


def _decision(
    study: Study, comparisons: Sequence[tuple[Part, Comparison]], p_adjusted: float
) -> Decision:
    if p_adjusted <= study.alpha / 2:
        return "shown"
    # The settings of one part against one arm stand or fall together.
    together: dict[tuple[Part, str], list[tuple[float, float, float]]] = {}
    for part, comparison in comparisons:
        together.setdefault((part, comparison.against), []).append(comparison.p_values(part))
    whole = {key: ps for key, ps in together.items() if len(ps) == len(study.settings)}
    level = study.alpha / 2 / max(1, len(study.hypotheses))
    if any(max(p[1] for p in ps) <= level for ps in whole.values()):
        return "reversed"
    if any(
        part.direction in ("higher", "lower") and max(p[2] for p in ps) <= study.alpha
        for (part, _), ps in whole.items()
    ):
        return "not shown"
    return "undecided"
