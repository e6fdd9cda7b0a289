"""How sure a mean over problems is.

Two questions, two answers. *Would another set of such problems give the same?* weighs problems
anew: ``interval_like_these``, and by a plain bootstrap ``bootstrap_mean_interval`` and
``paired_difference``. *Would more samples of these very problems give the same?* knows how samples
scatter within a problem: ``mean_interval_within``.

Samples are never resampled within a problem: a bootstrap sample of n answers repeats some, so
fewer of them are distinct and pass@k comes out too low (n = k = 8 with one right answer: .66
instead of 1). The scatter of sampling is in the values of the problems already.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from gradmass.metrics.bounded import upper_mean
from gradmass.metrics.passk import checked_counts, pass_at_k
from gradmass.metrics.within import within_variance
from gradmass.types import Array, UsageError

CHUNK_ENTRIES = 1_000_000
"""Most resampled values held in memory at once."""


@dataclass(frozen=True)
class Difference:
    """Mean difference of two systems on the same problems.

    Args:
        mean: Mean over problems of the first system's value minus the second's.
        low: Lower end of its interval.
        high: Upper end of its interval.
        num_problems: Number of problems, the unit that was resampled.
    """

    mean: float
    low: float
    high: float
    num_problems: int

    @property
    def is_decided(self) -> bool:
        """Whether the interval excludes 0, so that the sign is known at its level."""
        return self.low > 0 or self.high < 0


def bootstrap_mean_interval(
    values_N: Array, *, level: float = 0.95, num_draws: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval for the mean over problems like these.

    Draws N problems with replacement ``num_draws`` times and takes the ``(1 - level) / 2`` and
    ``(1 + level) / 2`` quantiles of the means. Below some 20 problems it is a little too short.

    Args:
        values_N: One finite value a problem (a pass@k, a mean reward), shape ``[N]``, N >= 2.
        level: Share of data sets whose interval holds the true mean, between 0 and 1.
        num_draws: Number of bootstrap means, at least 1.
        seed: Of the resampling; the same seed gives the same interval.

    Returns:
        ``(low, high)``, both within the range of the values; equal where all values are.

    Raises:
        UsageError: Fewer than 2 problems (one says nothing of others), values that are not finite
            or not flat, a level or number of draws out of range.

    >>> bootstrap_mean_interval([0.0, 1.0])  # a quarter of the draws holds the first problem twice
    (0.0, 1.0)
    """
    values_N = _problem_values(values_N)
    _check_level(level)
    if num_draws < 1:
        raise UsageError(f"num_draws must be at least 1, got {num_draws}")
    generator = np.random.default_rng(seed)
    num_problems = len(values_N)
    chunk = max(1, CHUNK_ENTRIES // num_problems)
    means = np.empty(num_draws)
    for start in range(0, num_draws, chunk):
        size = min(chunk, num_draws - start)
        drawn = generator.integers(num_problems, size=(size, num_problems))
        means[start : start + size] = values_N[drawn].mean(axis=1)
    # A mean of equal values may be off by a rounding; no mean of the values is outside their range.
    means = np.clip(means, values_N.min(), values_N.max())
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return low, high


def paired_difference(
    a_N: Array, b_N: Array, *, level: float = 0.95, num_draws: int = 10_000, seed: int = 0
) -> Difference:
    """Mean of ``a - b`` over problems, with the bootstrap interval of the paired differences.

    Pairing removes the difficulty of the problems from the comparison, which is most of the
    scatter; two separate intervals that overlap do not show that two systems are alike.

    Args:
        a_N: One value a problem of the first system, shape ``[N]``, N >= 2.
        b_N: Values of the second system on the same problems in the same order.
        level: As in ``bootstrap_mean_interval``.
        num_draws: As in ``bootstrap_mean_interval``.
        seed: As in ``bootstrap_mean_interval``.

    Raises:
        UsageError: Lengths differ, or as in ``bootstrap_mean_interval``.

    >>> paired_difference([0.5, 0.75], [0.25, 0.5])
    Difference(mean=0.25, low=0.25, high=0.25, num_problems=2)
    """
    a_N, b_N = np.asarray(a_N, dtype=np.float64), np.asarray(b_N, dtype=np.float64)
    if a_N.shape != b_N.shape:
        raise UsageError(
            "a paired difference needs the same problems on both sides, "
            f"got shapes {a_N.shape} and {b_N.shape}"
        )
    difference_N = _problem_values(a_N - b_N)
    low, high = bootstrap_mean_interval(difference_N, level=level, num_draws=num_draws, seed=seed)
    return Difference(float(difference_N.mean()), low, high, len(difference_N))


def interval_like_these(
    values_NK: Array, bounds: tuple[float, float] = (0.0, 1.0), *, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Intervals for means over problems like these, many columns in one pass.

    The Jeffreys interval of a share, carried over to values between the bounds: a Bayesian
    bootstrap over problems, with half a problem more at each bound, in the limit of infinitely many
    draws (``upper_mean``). Those halves stand for problems that were not seen: where all of 30
    problems are solved, .92 to 1. No resampling of the values alone can know of them, and so none
    holds what it promises near the bounds, where a mean rests on problems of which a hundred may
    not contain one. Far from the bounds the interval is that of the bootstrap.

    Of the negated values (and bounds) the intervals are exactly the mirrored ones: which of two
    models comes first does not matter.

    Args:
        values_NK: A finite value for each problem and column (k), shape ``[N, K]``, N >= 2.
        bounds: Lowest and highest value there can be: 0 and 1 for pass@k, -1 and 1 for differences.
        level: Share of data sets whose interval holds the true mean, between 0 and 1.

    Returns:
        Lower and upper ends, shape ``[K]`` each, within the bounds, the mean between them.

    Raises:
        UsageError: Fewer than 2 problems, values out of bounds, a level out of range.

    Source: as ``upper_mean``. ``benchmarks/passk.py`` measures how often the intervals hold.

    >>> low_K, high_K = interval_like_these([[1.0]] * 30)
    >>> low_K.round(2), high_K
    (array([0.92]), array([1.]))
    """
    values_NK = np.asarray(values_NK, dtype=np.float64) + 0.0  # turns -0 into 0
    _check_level(level)
    lowest, highest = bounds
    if values_NK.ndim != 2 or len(values_NK) < 2:
        raise UsageError(
            "an interval over problems like these needs values of at least 2 problems, got shape "
            f"{values_NK.shape}"
        )
    if not ((values_NK >= lowest) & (values_NK <= highest)).all():
        bad = values_NK[~((values_NK >= lowest) & (values_NK <= highest))][0]
        raise UsageError(f"a value must be within {lowest:g} to {highest:g}, got {bad}")
    z = NormalDist().inv_cdf((1 + level) / 2)
    mean_K = values_NK.mean(axis=0)
    low_K = -upper_mean(-values_NK, (-highest, -lowest), z)
    return np.minimum(low_K, mean_K), np.maximum(upper_mean(values_NK, bounds, z), mean_K)


def mean_interval_within(
    num_correct_N: Array, num_samples_N: Array, k: int, level: float = 0.95
) -> tuple[float, float]:
    """Normal interval for the mean pass@k of these fixed problems, given the sampling within them.

    It says where the exact mean ``mean(1 - (1 - p)^k)`` of *these* problems lies, not that of
    others: use it to check sampled against exact pass@k. The half width is
    ``z sqrt(sum_i var_i) / N`` with ``var_i`` the expected variance of the unbiased estimate of
    problem i, in closed form (``within_variance``). Where no problem has both right and wrong
    samples, nothing scatters, and the ends are exact: with ``alpha = 1 - level``, R problems all
    right and Z all wrong, no smaller low end than ``R/N (alpha/2)^(1/n_R)`` and no larger high end
    than ``R/N + Z/N (1 - (alpha/2)^(k/n_Z))`` would have shown these samples that rarely; n_R are
    the samples of the R problems, n_Z is Z times the fewest samples of one of the Z.

    Args:
        num_correct_N: c, as in ``pass_at_k``, N >= 1.
        num_samples_N: n, as in ``pass_at_k``.
        k: Number of tries. The nearer to n, the rougher: at k = n the estimate of a problem is 0
            or 1, and only many problems make the mean normal.
        level: Between 0 and 1.

    Returns:
        ``(low, high)``, cut to [0, 1].

    Raises:
        UsageError: As in ``pass_at_k``; no problem; a level out of range.

    >>> low, high = mean_interval_within([1, 1], [2, 2], 1)  # var_i = .5 * .5 / 2 = 1/8
    >>> round(low, 2), round(high, 2)  # .5 -+ 1.96 sqrt(2/8) / 2
    (0.01, 0.99)
    """
    num_correct_N, num_samples_N = checked_counts(num_correct_N, num_samples_N, k)
    _check_level(level)
    if len(num_correct_N) == 0:
        raise UsageError("an interval needs at least 1 problem, got 0")
    is_right_N, is_wrong_N = num_correct_N == num_samples_N, num_correct_N == 0
    if (is_right_N | is_wrong_N).all():
        right, rare = float(is_right_N.mean()), (1 - level) / 2
        low = right and right * rare ** (1 / float(num_samples_N[is_right_N].sum()))
        if right == 1:
            return low, 1.0
        fewest = float(num_samples_N[is_wrong_N].min()) * float(is_wrong_N.sum())
        return low, right + (1 - right) * (1 - rare ** (k / fewest))
    mean = float(pass_at_k(num_correct_N, num_samples_N, k).mean())
    spread = float(within_variance(num_correct_N, num_samples_N, k).sum()) ** 0.5 / len(is_right_N)
    half = NormalDist().inv_cdf((1 + level) / 2) * spread
    return max(0.0, mean - half), min(1.0, mean + half)


def _problem_values(values: Array) -> np.ndarray:
    values_N: np.ndarray = np.asarray(values, dtype=np.float64)
    if values_N.ndim != 1 or len(values_N) < 2:
        raise UsageError(
            "an interval over problems needs one value each of at least 2 problems, "
            f"got shape {values_N.shape}"
        )
    if not np.isfinite(values_N).all():
        i = int(np.isfinite(values_N).argmin())
        raise UsageError(f"the value of problem {i} is {values_N[i]}; leave unscored problems out")
    return values_N


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise UsageError(f"level must be between 0 and 1, such as 0.95, got {level}")
