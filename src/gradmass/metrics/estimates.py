"""pass@k of a model, and of two models on the same problems, with all that a reader has to know."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from gradmass.metrics.intervals import interval_like_these, mean_interval_within
from gradmass.metrics.passk import pass_at_k, pass_at_k_from_probability
from gradmass.types import Array, UsageError

Interval = Literal["problems-like-these", "these-problems"]
"""What an interval is for: another set of such problems, or more samples of these very ones."""


@dataclass(frozen=True)
class Sampled:
    """What n samples of each problem say.

    Args:
        num_correct_N: c, right samples of each problem, shape ``[N]``.
        num_samples_N: n, scorable samples of each problem, shape ``[N]`` or one number.
        num_unscorable: Samples left out because nothing is known of them, over all problems.
    """

    num_correct_N: Array
    num_samples_N: Array
    num_unscorable: int = 0

    @property
    def num_samples_range(self) -> tuple[int, int] | None:
        """Fewest and most samples of a problem."""
        samples_N = np.broadcast_to(self.num_samples_N, np.shape(self.num_correct_N))
        return int(samples_N.min()), int(samples_N.max())

    def values(self, ks: Sequence[int]) -> np.ndarray:
        """pass@k of each problem, shape ``[N, K]``."""
        samples_N = np.broadcast_to(self.num_samples_N, np.shape(self.num_correct_N))
        return np.stack([pass_at_k(self.num_correct_N, samples_N, k) for k in ks], axis=1)

    def within(self, k: int, level: float) -> tuple[float, float]:
        """Interval for these problems."""
        return mean_interval_within(self.num_correct_N, self.num_samples_N, k, level)


@dataclass(frozen=True)
class Exact:
    """Solve probabilities that are known, not sampled.

    Args:
        solve_probability_N: p of each problem, shape ``[N]``.
    """

    solve_probability_N: Array
    num_unscorable: int = 0

    @property
    def num_samples_range(self) -> tuple[int, int] | None:
        """None: nothing was sampled."""
        return None

    def values(self, ks: Sequence[int]) -> np.ndarray:
        """pass@k of each problem, shape ``[N, K]``."""
        columns = [pass_at_k_from_probability(self.solve_probability_N, k) for k in ks]
        return np.stack(columns, axis=1)

    def within(self, k: int, level: float) -> tuple[float, float]:
        """The value itself, twice: sampling again changes nothing."""
        del level
        value = float(self.values([k]).mean())
        return value, value


Measured = Sampled | Exact


@dataclass(frozen=True)
class PassAtK:
    """pass@k over problems, with its interval and what it rests on.

    Args:
        k: Number of tries.
        value: Mean over problems of the unbiased (or exact) pass@k.
        low: Lower end of the interval.
        high: Upper end.
        interval: What the interval is for.
        level: Share of data sets whose interval holds the true value.
        num_problems: Number of problems.
        num_samples: Fewest and most samples of a problem; None where the value is exact.
        num_unscorable: Samples left out.
    """

    k: int
    value: float
    low: float
    high: float
    interval: Interval
    level: float
    num_problems: int
    num_samples: tuple[int, int] | None
    num_unscorable: int


@dataclass(frozen=True)
class PairedPassAtK:
    """Difference of pass@k of two models on the same problems.

    Args:
        k: Number of tries.
        a: pass@k of the first model.
        b: pass@k of the second.
        difference: ``a - b``.
        low: Lower end of the interval of the difference.
        high: Upper end.
        interval: What the interval is for.
        level: Of the interval.
        num_problems: Number of problems.
        num_problems_needed: Problems like these with which the interval would exclude 0 four times
            in five, if the true difference and scatter were those seen (``num_problems_needed``).
            That is a normal approximation, which the interval is not: where it names no more than
            the present N although the interval contains 0, this is N + 1, the least that is not
            known to be too few. None where the difference is 0 or the interval is for these
            problems alone.
    """

    k: int
    a: float
    b: float
    difference: float
    low: float
    high: float
    interval: Interval
    level: float
    num_problems: int
    num_problems_needed: int | None

    @property
    def is_decided(self) -> bool:
        """Whether the interval excludes 0, so that the sign is known at its level."""
        return self.low > 0 or self.high < 0


def estimate_pass_at_k(
    measured: Measured,
    ks: Sequence[int],
    *,
    interval: Interval = "problems-like-these",
    level: float = 0.95,
) -> list[PassAtK]:
    """pass@k for many k in one pass.

    Args:
        measured: Samples or exact probabilities of one model.
        ks: Numbers of tries, each 1 to the fewest samples of a problem.
        interval: ``problems-like-these`` (``interval_like_these``: another set of such problems,
            sampling included) or ``these-problems`` (``mean_interval_within``: these very problems,
            sampled again).
        level: Of the interval.

    Raises:
        UsageError: As in ``pass_at_k`` and in the interval's function.

    >>> (found,) = estimate_pass_at_k(Sampled([3, 0, 4], 4), [2], interval="these-problems")
    >>> round(found.value, 4), found.num_problems, found.num_samples
    (0.6667, 3, (4, 4))
    """
    if not ks:
        raise UsageError("pass@k needs at least one k")
    values_NK = measured.values(ks)
    if len(values_NK) == 0:
        raise UsageError("pass@k needs at least 1 problem, got 0")
    if interval == "problems-like-these":
        low_K, high_K = interval_like_these(values_NK, level=level)
    else:
        low_K, high_K = np.array([measured.within(k, level) for k in ks]).T
    return [
        PassAtK(
            k,
            float(values_NK[:, i].mean()),
            float(low_K[i]),
            float(high_K[i]),
            interval,
            level,
            len(values_NK),
            measured.num_samples_range,
            measured.num_unscorable,
        )
        for i, k in enumerate(ks)
    ]


def compare_pass_at_k(
    a: Measured,
    b: Measured,
    ks: Sequence[int],
    *,
    interval: Interval = "problems-like-these",
    level: float = 0.95,
) -> list[PairedPassAtK]:
    """Paired difference of pass@k, first minus second, on the same problems in the same order.

    Pairing takes the difficulty of the problems out of the comparison, which is most of the
    scatter: two intervals that overlap do not show that two models are alike. For *problems like
    these* the interval is that of the problems' differences, with half a problem more that only the
    first model solves and half a one that only the second does (as Agresti and Min 2005 have it for
    matched pairs): differences far below 1 / sqrt(N) are therefore told apart late. For *these
    problems* the two intervals within problems combine as independent ones,
    ``d - sqrt((a - low_a)^2 + (high_b - b)^2)`` and ``d + sqrt((high_a - a)^2 + (b - low_b)^2)``
    (Newcombe 1998, method 10). Exchanging the models
    exactly negates the difference and mirrors its interval.

    Args:
        a: The first model.
        b: The second, on the same problems.
        ks: As in ``estimate_pass_at_k``.
        interval: As in ``estimate_pass_at_k``.
        level: As in ``estimate_pass_at_k``.

    Raises:
        UsageError: The numbers of problems differ, or as in ``estimate_pass_at_k``.

    >>> better, worse = Exact([0.9, 0.5, 0.7]), Exact([0.8, 0.5, 0.4])
    >>> (found,) = compare_pass_at_k(better, worse, [1], interval="these-problems")
    >>> round(found.difference, 4), round(found.low, 4), round(found.high, 4)
    (0.1333, 0.1333, 0.1333)
    """
    a_NK, b_NK = a.values(ks), b.values(ks)
    if a_NK.shape != b_NK.shape:
        raise UsageError(
            "a paired comparison needs the same problems on both sides, "
            f"got {len(a_NK)} and {len(b_NK)}"
        )
    if len(a_NK) == 0:
        raise UsageError("a paired comparison needs at least 1 problem, got 0")
    difference_NK = a_NK - b_NK
    mean_K = difference_NK.mean(axis=0)
    if interval == "problems-like-these":
        low_K, high_K = interval_like_these(difference_NK, (-1.0, 1.0), level=level)
        needed_K = [
            _needed(difference_NK[:, i], level, is_decided=not low_K[i] <= 0 <= high_K[i])
            for i in range(len(ks))
        ]
    else:
        ends = [_difference_within(a, b, k, level) for k in ks]
        low_K, high_K = np.array(ends).T
        needed_K = [None] * len(ks)
    return [
        PairedPassAtK(
            k,
            float(a_NK[:, i].mean()),
            float(b_NK[:, i].mean()),
            float(mean_K[i]),
            float(low_K[i]),
            float(high_K[i]),
            interval,
            level,
            len(a_NK),
            needed_K[i],
        )
        for i, k in enumerate(ks)
    ]


def num_problems_needed(
    difference_N: Array, *, level: float = 0.95, power: float = 0.8
) -> int | None:
    """How many problems like these would tell two models apart.

    The least n with ``|d| n / (n + 1) >= z_level sqrt((s^2 + 1 / n) / n) + z_power s / sqrt(n)``,
    with d the mean and s the standard deviation of the problems' differences: the first term on the
    right is half the length of ``interval_like_these``, by the normal approximation. If d and s are
    the true ones, the interval of that many problems excludes 0 with chance ``power``. d is itself
    uncertain, and where it is noise so is the number.

    Args:
        difference_N: Difference of each problem, N >= 2.
        level: Of the interval.
        power: Chance that it excludes 0.

    Returns:
        At least 2; None where the mean difference is 0, which no number of problems tells from 0.

    >>> num_problems_needed([0.5, -0.3, 0.4, -0.2, 0.1, 0.1])  # d = .1, s^2 = .1
    87
    """
    difference_N = np.asarray(difference_N, dtype=np.float64)
    mean, spread = float(difference_N.mean()), float(difference_N.std(ddof=1))
    if abs(mean) <= 1e-12:
        return None
    z_level, z_power = NormalDist().inv_cdf((1 + level) / 2), NormalDist().inv_cdf(power)

    def is_enough(num: int) -> bool:
        half = z_level * math.sqrt((spread**2 + 1 / num) / num)
        return abs(mean) * num / (num + 1) >= half + z_power * spread / math.sqrt(num)

    most = 2
    while not is_enough(most):
        most *= 2
    return bisect.bisect_left(range(most), True, lo=2, key=is_enough)


def _needed(difference_N: np.ndarray, level: float, *, is_decided: bool) -> int | None:
    """Problems needed; more than there are where these do not decide."""
    needed = num_problems_needed(difference_N, level=level)
    return needed if needed is None or is_decided else max(needed, len(difference_N) + 1)


def _difference_within(a: Measured, b: Measured, k: int, level: float) -> tuple[float, float]:
    value_a, value_b = float(a.values([k]).mean()), float(b.values([k]).mean())
    (low_a, high_a), (low_b, high_b) = a.within(k, level), b.within(k, level)
    difference = value_a - value_b
    return (
        difference - _root_sum_of_squares(value_a - low_a, high_b - value_b),
        difference + _root_sum_of_squares(high_a - value_a, value_b - low_b),
    )


def _root_sum_of_squares(x: float, y: float) -> float:
    # math.hypot may round differently for (y, x).
    return math.sqrt(x * x + y * y)
