"""The limit of large groups, from finite groups of growing size.

A group of n with exactly the share p of successes is weighed at n, 2 n and 4 n. What depends on
the group through its mean alone is then the same at every n; what differs by leave-one-out means,
Bessel's correction or draws without replacement differs by a series in 1/n, of which Romberg's
extrapolation removes the first two terms.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from gradmass.masses.canonical import Canonical
from gradmass.masses.priors import Prior
from gradmass.types import UsageError

LEVELS = 3
BY_GROUP_SIZE, BY_BATCH_SIZE = 1000, 100
"""Smallest n, so that two or three decimals of p are a whole number of successes."""
MIN_SUCCESSES = 100
"""Successes, and failures, of the smallest groups that p is read off; n grows towards the ends."""
LOWEST_P = 1e-4
LOWEST_P_OF_PRIOR = 1e-3
"""Beyond it, towards 0 and 1, the weights of a prior's problems are taken for powers of p."""
LOG_ODDS_STEP = 0.1
"""Between the solve rates at which F is integrated."""


def romberg(levels: Sequence[np.ndarray]) -> np.ndarray:
    """Extrapolate values at n, 2 n, 4 n ... whose error is a series in 1/n.

    >>> float(romberg([np.array(3 + 1 / n + 5 / n**2) for n in (10, 20, 40)]).round(12))
    3.0
    """
    values = list(levels)
    for order in range(1, len(values)):
        values = [
            fine + (fine - coarse) / (2**order - 1) for coarse, fine in itertools.pairwise(values)
        ]
    return values[0]


def limit_weights(
    canonical: Canonical, p_N: np.ndarray, min_successes: int = MIN_SUCCESSES
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of a success and, negated, of a failure in an infinite group.

    Args:
        canonical: The weight.
        p_N: Solve rates, 1e-4 or more from 0 and 1 (0.01 where the weight depends on the batch).
        min_successes: Successes and failures of the smallest groups.

    Returns:
        ``w_S``, ``w_F``, and an estimate of the error of the masses: the last step of the
        extrapolation. Where the weight jumps in p, values within a few parts in a thousand of the
        jump are interpolated.

    Raises:
        UsageError: A solve rate too close to 0 or 1.
    """
    lowest = _lowest(canonical)
    for p in p_N[~is_in_range(canonical, p_N)]:
        raise UsageError(
            f"the limit of large groups is computed for p from {lowest:g} to {1 - lowest:g}, "
            f"got {p:g}"
        )
    size_N = (
        _sizes(p_N, min_successes) if canonical.is_by_group else np.full(len(p_N), BY_BATCH_SIZE)
    )
    success_LN = np.empty((LEVELS, len(p_N)))
    failure_LN = np.empty((LEVELS, len(p_N)))
    for level in range(LEVELS):
        for size in np.unique(size_N):
            at = size_N == size
            success_LN[level, at], failure_LN[level, at] = _at_share(
                canonical, p_N[at], int(size) << level
            )
    w_S_N, w_F_N = romberg(list(success_LN)), romberg(list(failure_LN))
    error_S_N = np.abs(w_S_N - romberg(list(success_LN[1:])))
    error_F_N = np.abs(w_F_N - romberg(list(failure_LN[1:])))
    return w_S_N, w_F_N, p_N * error_S_N + (1 - p_N) * error_F_N


def is_in_range(canonical: Canonical, p_N: np.ndarray) -> np.ndarray:
    """Which solve rates are far enough from 0 and 1 for the limit to be computed."""
    lowest = _lowest(canonical) * (1 - 1e-9)
    is_in_N: np.ndarray = (p_N >= lowest) & (p_N <= 1 - lowest)
    return is_in_N


def _lowest(canonical: Canonical) -> float:
    return LOWEST_P if canonical.is_by_group else 1 / BY_BATCH_SIZE


def _at_share(
    canonical: Canonical, p_N: np.ndarray, group_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of groups of one size with a share p of successes, interpolated by a cubic."""
    exact_N = p_N * group_size
    nearest_N = np.rint(exact_N).astype(np.int64)
    first_N = np.clip(np.floor(exact_N).astype(np.int64) - 1, 1, group_size - 4)
    node_NK = first_N[:, None] + np.arange(4)
    factor_NK = np.ones(node_NK.shape)
    for k in range(4):
        for j in {0, 1, 2, 3} - {k}:
            factor_NK[:, k] *= (exact_N - node_NK[:, j]) / (k - j)
    # No interpolation, across a jump perhaps, where the share is that of a whole number.
    is_whole_N = np.abs(exact_N - nearest_N) < 1e-9 * group_size
    node_NK[is_whole_N] = nearest_N[is_whole_N, None]
    factor_NK[is_whole_N] = [1.0, 0.0, 0.0, 0.0]
    successes_S, place_NK = np.unique(node_NK, return_inverse=True)
    success_S, failure_S = canonical.by_successes(group_size, successes_S)
    place_NK = place_NK.reshape(node_NK.shape)
    return (factor_NK * success_S[place_NK]).sum(1), (factor_NK * failure_S[place_NK]).sum(1)


def limit_over_problems(
    canonical: Canonical, prior: Prior
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Solve rates of a prior with their shares, and the weights of infinite groups there.

    Returns:
        ``p_N``, ``share_N``, ``w_S_N``, ``w_F_N``. Rates of exactly 0 or 1, which a measured prior
        may have, are those of groups of equal rewards.
    """
    p_N, share_N = prior.nodes()
    lowest = LOWEST_P_OF_PRIOR if canonical.is_by_group else 1 / BY_BATCH_SIZE
    is_inner_N = (p_N >= lowest) & (p_N <= 1 - lowest)
    ends = np.array([lowest, 2 * lowest, 1 - lowest, 1 - 2 * lowest])
    at_inner = limit_weights(canonical, np.concatenate([p_N[is_inner_N], ends]), 16)
    size = BY_GROUP_SIZE if canonical.is_by_group else BY_BATCH_SIZE
    at_ties = canonical.by_successes(size, np.array([0, size]))
    found = []
    for inner, ties in zip(at_inner[:2], at_ties, strict=True):
        weight_N = np.zeros(len(p_N))
        weight_N[is_inner_N] = inner[:-4]
        is_low_N, is_high_N = (p_N > 0) & (p_N < lowest), (p_N < 1) & (p_N > 1 - lowest)
        weight_N[is_low_N] = _beyond(p_N[is_low_N] / lowest, inner[-4], inner[-3])
        weight_N[is_high_N] = _beyond((1 - p_N[is_high_N]) / lowest, inner[-2], inner[-1])
        weight_N[p_N == 0], weight_N[p_N == 1] = ties
        found.append(weight_N)
    return p_N, share_N, found[0], found[1]


def _beyond(share_N: np.ndarray, at_end: float, at_twice: float) -> np.ndarray:
    """A power of the solve rate, from its values at an end and at twice it."""
    is_power = at_end * at_twice > 0
    beyond_N: np.ndarray = at_end * share_N ** (math.log2(at_twice / at_end) if is_power else 0.0)
    return beyond_N


def limit_objective(canonical: Canonical, p_N: np.ndarray) -> tuple[np.ndarray, float]:
    """Integrate the slope ``w_S + w_F`` of an infinite group.

    Between neighbouring solve rates the slope is taken for a power of p below 1/2 and of 1 - p
    above, which suits singular ends as well; beyond the outermost ones likewise.

    Args:
        canonical: The weight.
        p_N: Solve rates.

    Returns:
        F at each solve rate, to about 1e-3, and where it is 0: at p = 0.0, or at 1.0 where F is
        infinite at 0, or at 0.5 where it is infinite at both.
    """
    node_M = np.unique(np.concatenate([_nodes(canonical), p_N]))
    w_S_M, w_F_M, _ = limit_weights(canonical, node_M, min_successes=8)
    slope_M = w_S_M + w_F_M
    pieces = [
        _piece(node_M[m], node_M[m + 1], slope_M[m], slope_M[m + 1]) for m in range(len(node_M) - 1)
    ]
    rising_M = np.concatenate([[0.0], np.cumsum(pieces)])
    low = _tail(node_M[0], node_M[1], slope_M[0], slope_M[1])
    high = _tail(1 - node_M[-1], 1 - node_M[-2], slope_M[-1], slope_M[-2])
    zero = 0.0 if math.isfinite(low) else 1.0 if math.isfinite(high) else 0.5
    offset = {0.0: low, 1.0: -rising_M[-1] - high, 0.5: -rising_M[np.searchsorted(node_M, 0.5)]}
    return rising_M[np.searchsorted(node_M, p_N)] + offset[zero], zero


def _nodes(canonical: Canonical) -> np.ndarray:
    """Solve rates from end to end that whole numbers of successes have."""
    if not canonical.is_by_group:
        return np.arange(1, BY_BATCH_SIZE) / BY_BATCH_SIZE
    end = math.log(LOWEST_P / (1 - LOWEST_P))
    log_odds_M = np.linspace(end, 0.0, round(-end / LOG_ODDS_STEP))
    p_M = 1 / (1 + np.exp(-log_odds_M))
    size_M = _sizes(p_M, 8)
    p_M = np.maximum(np.rint(p_M * size_M) / size_M, LOWEST_P)
    return np.unique(np.concatenate([p_M, 1 - p_M]))


def _sizes(p_N: np.ndarray, min_successes: int) -> np.ndarray:
    """Smallest group size for each solve rate, so that both outcomes are numerous."""
    wanted_N = min_successes / np.minimum(p_N, 1 - p_N) / BY_GROUP_SIZE
    size_N: np.ndarray = 2 ** np.ceil(np.log2(np.maximum(wanted_N, 1.0))).astype(np.int64)
    return BY_GROUP_SIZE * size_N


def _piece(p0: float, p1: float, slope0: float, slope1: float) -> float:
    """Integral of a power between two solve rates."""
    if p0 + p1 > 1:
        p0, p1, slope0, slope1 = 1 - p1, 1 - p0, slope1, slope0
    if slope0 * slope1 <= 0:
        return (slope0 + slope1) / 2 * (p1 - p0)
    width = math.log(p1 / p0)
    exponent = math.log(slope1 / slope0) / width + 1
    grown = math.expm1(exponent * width) / exponent if exponent else width
    return slope0 * p0 * grown


def _tail(end: float, inner: float, slope_end: float, slope_inner: float) -> float:
    """Integral from 0 to the outermost solve rate of the power through it and the next."""
    if slope_end * slope_inner <= 0:
        return slope_end * end
    exponent = math.log(slope_inner / slope_end) / math.log(inner / end) + 1
    # The slopes of a logarithm give an exponent of 0 but for rounding.
    return slope_end * end / exponent if exponent > 0.03 else math.copysign(math.inf, slope_end)
