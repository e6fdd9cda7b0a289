"""What two runs of one seed are compared by: one number for each, at the same place."""

import math
from collections.abc import Callable

import numpy as np

from gradmass.metrics.curves import (
    first_crossing,
    half_life,
    highest_common,
    mean_under,
    sigmoid_fit,
    value_at_first,
)
from gradmass.study.results import Result

Pair = tuple[float, float]
Measure = Callable[[Result, Result, float | None], Pair | None]
"""Values of two runs of one seed, given the setting's level; None where they cannot be compared."""


def excess_r_1(result: Result) -> np.ndarray:
    """Rank-one share of the head's change over that of noise of its shape."""
    excess_E: np.ndarray = result.curve("r_1") - result.curve("r_1_noise")
    return excess_E


def doublings_to(result: Result, level: float) -> tuple[float, bool]:
    """log2 of the rollouts until test pass@1 first meets a level, and whether that was seen.

    A run that does not get there counts as getting there with its last rollout: the difference to
    one that does is then too small, never too large.
    """
    start = result.curve("pass@1")[0]
    # A start above the level is there at once; one rollout keeps the logarithm finite.
    place = (
        1.0 if start >= level else first_crossing(result.rollouts, result.curve("pass@1"), level)
    )
    return math.log2(max(1.0, place or float(result.rollouts[-1]))), place is not None


def _each(value: Callable[[Result], float | None]) -> Measure:
    def measure(a: Result, b: Result, level: float | None) -> Pair | None:
        first, second = value(a), value(b)
        return None if first is None or second is None else (first, second)

    return measure


def _at_equal(x: str, y: Callable[[Result], np.ndarray]) -> Measure:
    def measure(a: Result, b: Result, level: float | None) -> Pair | None:
        common = highest_common(a.curve(x), b.curve(x))
        first, second = (value_at_first(run.curve(x), y(run), common) for run in (a, b))
        return None if first is None or second is None else (first, second)

    return measure


def _midpoint(result: Result) -> float | None:
    fit = sigmoid_fit(result.rollouts, result.curve("pass@1"))
    return math.log2(fit.midpoint) if fit is not None and fit.is_identified else None


def _ceiling(result: Result) -> float | None:
    fit = sigmoid_fit(result.rollouts, result.curve("pass@1"))
    return fit.ceiling if fit is not None and fit.is_identified else None


def _half_life(result: Result) -> float:
    life = half_life(result.rollouts, result.curve("entropy"))
    return math.log2(life or float(result.rollouts[-1]))


def _doublings(a: Result, b: Result, level: float | None) -> Pair | None:
    assert level is not None  # the design asks for it
    return doublings_to(a, level)[0], doublings_to(b, level)[0]


def _last(name: str) -> Measure:
    return _each(lambda result: result.last(name))


def _area(name: str) -> Measure:
    return _each(lambda result: mean_under(result.rollouts, result.curve(name)))


MEASURE: dict[str, Measure] = {
    "pass@1 at the end": _last("pass@1"),
    "pass@10 at the end": _last("pass@10"),
    "pass@100 at the end": _last("pass@100"),
    "pass@100 at equal pass@1": _at_equal("pass@1", lambda result: result.curve("pass@100")),
    "area under pass@1": _area("pass@1"),
    "area under pass@10": _area("pass@10"),
    "area under pass@100": _area("pass@100"),
    "midpoint of pass@1": _each(_midpoint),
    "ceiling of pass@1": _each(_ceiling),
    "doublings of rollouts to the level": _doublings,
    "entropy at the end": _last("entropy"),
    "entropy at equal pass@1": _at_equal("pass@1", lambda result: result.curve("entropy")),
    "half-life of the entropy": _each(_half_life),
    "r_1 over noise at the end": _each(lambda result: float(excess_r_1(result)[-1])),
    "r_1 over noise at equal pass@1": _at_equal("pass@1", excess_r_1),
    "r_1 over noise at equal norm": _at_equal("norm", excess_r_1),
}
"""The measures of ``design.MEASURES``, in their order."""


def pass_at_equal_by_problem(a: Result, b: Result, k: int = 100) -> np.ndarray | None:
    """Difference in pass@k of each test problem where both runs first reach their common pass@1.

    Returns:
        ``a - b`` for each problem, shape ``[N]``; None where they cannot be compared.
    """
    common = highest_common(a.curve("pass@1"), b.curve("pass@1"))
    values = []
    for run in (a, b):
        pass_EN = 1.0 - (1.0 - np.array(run.solve_probability_EN)) ** k
        reached = [value_at_first(run.curve("pass@1"), pass_E, common) for pass_E in pass_EN.T]
        if None in reached:
            return None
        values.append(np.array(reached, dtype=np.float64))
    return values[0] - values[1]
