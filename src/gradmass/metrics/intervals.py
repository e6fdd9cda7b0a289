"""How sure a mean over problems is.

Two questions, two answers. *Would another set of such problems give the same?* resamples problems:
``bootstrap_mean_interval``, ``paired_difference``. *Would more samples of these very problems give
the same?* knows how samples scatter within a problem: ``mean_interval_within``.

Samples are never resampled within a problem: a bootstrap sample of n answers repeats some, so
fewer of them are distinct and pass@k comes out too low (n = k = 8 with one right answer: .66
instead of 1). The scatter of sampling is in the values of the problems already.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from gradmass.metrics.passk import checked_counts, pass_at_k
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


def mean_interval_within(
    num_correct_N: Array, num_samples_N: Array, k: int, level: float = 0.95
) -> tuple[float, float]:
    """Normal interval for the mean pass@k of these fixed problems, given the sampling within them.

    It says where the exact mean ``mean(1 - (1 - p)^k)`` of *these* problems lies, not that of
    others: use it to check sampled against exact pass@k. The half width is
    ``z sqrt(sum_i var_i) / N`` with ``var_i`` the exact variance of the unbiased estimate if the
    number of right samples is Binomial(n, p_i): a sum over its n + 1 values at the smoothed plug-in
    ``p_i = (c + 1/2) / (n + 1)``. Smoothing gives problems with c = 0 or c = n a variance above 0,
    so the interval is too wide where many problems are never or always solved.

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
    >>> round(low, 4), round(high, 4)  # .5 -+ 1.96 sqrt(2/8) / 2
    (0.01, 0.99)
    """
    num_correct_N, num_samples_N = checked_counts(num_correct_N, num_samples_N, k)
    _check_level(level)
    if len(num_correct_N) == 0:
        raise UsageError("an interval needs at least 1 problem, got 0")
    mean = float(pass_at_k(num_correct_N, num_samples_N, k).mean())
    pairs = list(zip(num_correct_N.tolist(), num_samples_N.tolist(), strict=True))
    variance = {(c, n): _variance((c + 0.5) / (n + 1), n, k) for c, n in set(pairs)}
    spread = sum(variance[pair] for pair in pairs) ** 0.5 / len(pairs)
    half = NormalDist().inv_cdf((1 + level) / 2) * spread
    return max(0.0, mean - half), min(1.0, mean + half)


def _variance(probability: float, num_samples: int, k: int) -> float:
    """Variance of ``C(n - c, k) / C(n, k)`` under c ~ Binomial(n, p), 0 < p < 1."""
    num_correct_C = np.arange(num_samples)
    rest_C = num_samples - num_correct_C
    # Ratios of neighbours: from C(n - c, k) to C(n - c - 1, k), and from C(n, c) to C(n, c + 1).
    failure_C = np.append(1.0, np.cumprod(np.maximum(rest_C - k, 0) / rest_C))
    log_comb_C = np.append(0.0, np.cumsum(np.log(rest_C / (num_correct_C + 1))))
    index_C = np.arange(num_samples + 1)
    log_odds = np.log(probability) - np.log1p(-probability)
    mass_C = np.exp(log_comb_C + index_C * log_odds + num_samples * np.log1p(-probability))
    mean = np.sum(mass_C * failure_C)
    return float(np.sum(mass_C * (failure_C - mean) ** 2))


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
