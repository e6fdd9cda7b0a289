"""Numbers that sum up a curve over training: when it gets there, how high, how long it lasts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradmass.types import Array, UsageError

FEWEST_POINTS = 5
"""Of a curve that is fitted."""


@dataclass(frozen=True)
class SigmoidFit:
    """The curve ``start + (ceiling - start) / (1 + (midpoint / x)^steepness)``.

    Args:
        start: Value at 0.
        ceiling: Value it tends to.
        midpoint: Where half of the way is gone: how efficient a method is, whatever its ceiling.
        steepness: Exponent, above 0.
        residual: Root mean square of what the curve leaves.
        is_identified: Whether the data reach past the midpoint, so that the ceiling is not a guess.
    """

    start: float
    ceiling: float
    midpoint: float
    steepness: float
    residual: float
    is_identified: bool


def first_crossing(x_E: Array, y_E: Array, level: float) -> float | None:
    """Where a curve first meets a level, on straight lines between its points.

    Args:
        x_E: Places, in order, shape ``[E]``, E >= 1.
        y_E: Values; NaN where there is none, which are left out.
        level: The level, from whichever side.

    Returns:
        The place, or None if the curve never meets the level.

    >>> first_crossing([0, 10, 20], [0.0, 1.0, 0.0], 0.25)
    2.5
    >>> first_crossing([0, 10], [0.0, 1.0], 2.0)
    """
    return value_at_first(y_E, x_E, level)


def value_at_first(x_E: Array, y_E: Array, level: float) -> float | None:
    """Value of y where x first meets a level, both on straight lines between points in order.

    With x pass@1 and y pass@100: pass@100 at a given pass@1, whenever it is reached. Neither has to
    be monotone. Points with a NaN are left out.

    Args:
        x_E: What meets the level, shape ``[E]``.
        y_E: What is read there.
        level: The level.

    Returns:
        The value, or None if x never meets the level.

    >>> value_at_first([0.2, 0.4, 0.3], [0.9, 0.7, 0.6], 0.3)  # halfway from the first to the next
    0.8
    """
    x_E, y_E = _paired(x_E, y_E)
    if len(x_E) and x_E[0] == level:
        return float(y_E[0])
    for i in range(1, len(x_E)):
        low, high = sorted((x_E[i - 1], x_E[i]))
        if low <= level <= high and low < high:
            share = (level - x_E[i - 1]) / (x_E[i] - x_E[i - 1])
            return float(round(y_E[i - 1] + share * (y_E[i] - y_E[i - 1]), 12))
    return None


def highest_common(x_E: Array, other_E: Array) -> float:
    """The highest value that both curves reach: where they can be compared at equal x.

    >>> highest_common([0.2, 0.5, 0.4], [0.2, 0.3, 0.45])
    0.45
    """
    return float(min(np.nanmax(x_E), np.nanmax(other_E)))


def mean_under(x_E: Array, y_E: Array) -> float:
    """Mean height of a curve: the area under straight lines between points, over the width.

    Raises:
        UsageError: Fewer than two points, or places that do not increase.

    >>> mean_under([0, 1, 3], [0.0, 1.0, 1.0])  # (1/2 + 2) / 3
    0.8333333333333334
    """
    x_E, y_E = _paired(x_E, y_E)
    if len(x_E) < 2 or not (np.diff(x_E) > 0).all():
        raise UsageError(f"an area needs two or more increasing places, got {x_E.tolist()}")
    return float(np.trapezoid(y_E, x_E) / (x_E[-1] - x_E[0]))


def half_life(x_E: Array, y_E: Array) -> float | None:
    """How long until a curve is first at half its first value; None if it never is.

    >>> half_life([0, 10, 20], [1.0, 0.6, 0.4])
    15.0
    """
    x_E, y_E = _paired(x_E, y_E)
    if not len(x_E) or y_E[0] <= 0:
        return None
    place = first_crossing(x_E, y_E, float(y_E[0]) / 2)
    return None if place is None else place - float(x_E[0])


def sigmoid_fit(x_E: Array, y_E: Array) -> SigmoidFit | None:
    """Least-squares fit of a saturating curve through its first value.

    ``y = start + (ceiling - start) / (1 + (midpoint / x)^steepness)``, start the first value,
    ceiling in [start, 1], steepness in [1/4, 8]. Efficiency (midpoint) and ceiling are told apart,
    where the value at the end or the steps to a level confound them.

    Args:
        x_E: Rollouts, the first 0, shape ``[E]``, E >= 5.
        y_E: pass@1.

    Returns:
        The fit; None for a curve that does not rise.

    Raises:
        UsageError: Fewer than five points.

    Source: the form of arXiv 2510.13786, equation (1).
    """
    from scipy.optimize import least_squares

    x_E, y_E = _paired(x_E, y_E)
    if len(x_E) < FEWEST_POINTS:
        raise UsageError(f"a sigmoid needs five points or more, got {len(x_E)}")
    start, width = float(y_E[0]), float(x_E[-1])
    if y_E[1:].max() <= start:
        return None
    x, y = x_E[1:], y_E[1:]

    def curve(log_midpoint: float, ceiling: float, steepness: float) -> np.ndarray:
        share = 1.0 / (1.0 + np.exp(steepness * (log_midpoint - np.log(x))))
        return np.asarray(start + (ceiling - start) * share)

    best = None
    for midpoint in (width / 8, width / 2):
        for steepness in (1.0, 3.0):
            found = least_squares(
                lambda p: curve(*p) - y,
                [math.log(midpoint), min(0.99, float(y.max()) + 0.02), steepness],
                bounds=([math.log(width / 1e3), start, 0.25], [math.log(width * 10), 1.0, 8.0]),
            )
            best = found if best is None or found.cost < best.cost else best
    assert best is not None
    log_midpoint, ceiling, steepness = map(float, best.x)
    return SigmoidFit(
        start=start,
        ceiling=ceiling,
        midpoint=math.exp(log_midpoint),
        steepness=steepness,
        residual=float(np.sqrt(np.mean(best.fun**2))),
        is_identified=math.exp(log_midpoint) < width,
    )


def _paired(
    x_E: Array | Sequence[float], y_E: Array | Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(x_E, dtype=np.float64), np.asarray(y_E, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise UsageError(f"a curve needs as many places as values, got {x.shape} and {y.shape}")
    is_known = ~(np.isnan(x) | np.isnan(y))
    return x[is_known], y[is_known]
