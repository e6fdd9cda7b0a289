"""How far a pass@k scatters if the same problems are sampled again."""

import numpy as np

from gradmass.metrics.passk import checked_counts
from gradmass.types import Array

CONCENTRATION = (1e-3, 1e-4)
"""Smallest and largest ``1 - rho`` and ``rho`` of a fitted Beta: nothing is learnt beyond."""


def within_variance(num_correct_N: Array, num_samples_N: Array, k: int) -> np.ndarray:
    """Expected variance of each problem's unbiased pass@k under sampling the problem again.

    If the solve rate of a problem is p, its estimate has the variance
    ``E[f(C)^2] - (1 - p)^(2k)`` with ``f(C) = C(n - C, k) / C(n, k)`` and C ~ Binomial(n, p). p is
    not known, and no function of the samples is unbiased for ``(1 - p)^(2k)`` where 2k > n: at
    k = n the plug-in c / n says 0 where the variance is largest. So the variance is averaged over
    what the samples say of p: the Beta(a + c, b + n - c) that follows from a Beta(a, b) fitted to
    all problems (``fit_beta``). Both terms are then closed: C is beta-binomial, and
    ``E[(1 - p)^(2k)] = B(a + c, b + n - c + 2k) / B(a + c, b + n - c)``.

    Args:
        num_correct_N: c, as in ``pass_at_k``.
        num_samples_N: n, as in ``pass_at_k``.
        k: Number of tries, 1 to the smallest n.

    Returns:
        float64, shape ``[N]``, at least 0. The sum over problems is what can be trusted, not each.

    Raises:
        UsageError: As in ``pass_at_k``.

    >>> within_variance([50, 50], 100, 1).round(5)  # .5 * .5 / 100
    array([0.0025, 0.0025])
    """
    num_correct_N, num_samples_N = checked_counts(num_correct_N, num_samples_N, k)
    if len(num_correct_N) == 0:
        return np.zeros(0)
    a, b = fit_beta(num_correct_N, num_samples_N)
    pairs = list(zip(num_correct_N.tolist(), num_samples_N.tolist(), strict=True))
    variance = {(c, n): _variance(a + c, b + n - c, n, k) for c, n in set(pairs)}
    return np.array([variance[pair] for pair in pairs])


def fit_beta(num_correct_N: np.ndarray, num_samples_N: np.ndarray) -> tuple[float, float]:
    """The Beta(a, b) whose mean and variance are those of the problems' solve rates.

    By moments that sampling does not bias: the mean is ``sum c / sum n``, with half a success and
    half a failure added so that it is never 0 or 1; ``E[p^2]`` is the mean of
    ``c (c - 1) / (n (n - 1))``, and ``E[p]^2`` that of the products of different problems. Where
    the moments show no spread between problems, or cannot (one problem, one sample each), p is
    almost the same for all, which makes ``within_variance`` largest.
    """
    mean = (float(num_correct_N.sum()) + 0.5) / (float(num_samples_N.sum()) + 1)
    has_two_N = num_samples_N > 1
    c_N, n_N = num_correct_N[has_two_N].astype(float), num_samples_N[has_two_N].astype(float)
    least, most = CONCENTRATION[1], 1 - CONCENTRATION[0]
    rho = least
    if len(c_N) > 1:
        rate_N = c_N / n_N
        square = float(np.mean(c_N * (c_N - 1) / (n_N * (n_N - 1))))
        between = float(rate_N.sum() ** 2 - (rate_N**2).sum()) / (len(c_N) * (len(c_N) - 1))
        rho = min(max((square - between) / (mean * (1 - mean)), least), most)
    total = 1 / rho - 1
    return mean * total, (1 - mean) * total


def _variance(a: float, b: float, num_samples: int, k: int) -> float:
    """``E[f(C)^2] - E[(1 - p)^(2k)]`` for p ~ Beta(a, b) and C ~ Binomial(n, p)."""
    index_C = np.arange(num_samples)
    rest_C = num_samples - index_C
    # Ratios of neighbours: from C(n - c, k) to C(n - c - 1, k), and of beta-binomial masses.
    failure_C = np.append(1.0, np.cumprod(np.maximum(rest_C - k, 0) / rest_C))
    ratio_C = rest_C * (a + index_C) / ((index_C + 1) * (b + rest_C - 1))
    none = np.log1p(-a / (a + b + index_C)).sum()  # prod_i (b + i) / (a + b + i)
    mass_C = np.exp(none + np.append(0.0, np.cumsum(np.log(ratio_C))))
    never = np.exp(np.log1p(-a / (a + b + np.arange(2 * k))).sum())
    return max(0.0, float(np.sum(mass_C * failure_C**2) - never))
