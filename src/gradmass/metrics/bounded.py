"""How large the mean of a bounded quantity may be, given some values of it."""

from collections.abc import Sequence

import numpy as np

AT_BOUNDS = 0.5
"""Observations that are added at each bound: as many as Jeffreys' prior adds to a binomial."""
NUM_HALVINGS = 40
"""Until e is known to ten digits."""


def upper_mean(values_NK: np.ndarray, bounds: Sequence[float], z: float) -> np.ndarray:
    """Upper ends of intervals for means of bounded values, each column by itself.

    Which values there are is known from N of them alone, so each gets a random share of the
    population: ``(D_1, ..., D_N, D_low, D_high) ~ Dirichlet(1, ..., 1, 1/2, 1/2)``, the last two
    being the shares of the bounds. The end is the quantile of ``D_low low + D_high high +
    sum_i D_i v_i`` at the normal deviate z. For values 0 and 1 it is the Jeffreys interval of a
    binomial share; for values far from both bounds it is the Bayesian bootstrap with infinitely
    many draws.

    The quantile is by saddlepoint. With ``y_i`` the distances from the upper bound, ``a_i`` the
    parameters of the Dirichlet and e > 0, the mean ``t = sum_i a_i y_i / (e + y_i) / sum_i a_i /
    (e + y_i)`` has the deviate ``r* = w + log(u / w) / w`` with ``w^2 = 2 sum_i a_i
    log((e + y_i) / (e + t))`` and ``u^2 = sum_i a_i ((t - y_i) / (e + y_i))^2``; e is found by
    halving. Against the exact quantile an end is off by 1.5% of its distance from the bound where
    all values are there, and by less than a thousandth of the interval where a few are not.

    Args:
        values_NK: Values within the bounds, shape ``[N, K]``.
        bounds: Lowest and highest value there can be.
        z: Normal deviate of the end, above 0: 1.96 for an interval of level .95.

    Returns:
        Shape ``[K]``, below the upper bound.

    Source: Rubin 1981, The Bayesian bootstrap (Annals of Statistics 9); Brown, Cai and DasGupta
    2001, section 3 (Statistical Science 16), for the halves; Barndorff-Nielsen 1991 for ``r*``.

    >>> upper_mean(np.array([[0.0]] * 8 + [[1.0]] * 2), (0, 1), 1.96).round(3)  # Beta(2.5, 8.5)
    array([0.503])
    """
    lowest, highest = bounds
    ends_2K = np.array([[lowest], [highest]]) * np.ones((2, values_NK.shape[1]))
    # Sorted: the order of the problems changes nothing, not even by a rounding.
    sorted_NK = np.sort(np.concatenate([values_NK, ends_2K]), axis=0)
    y_NK = (highest - sorted_NK) / (highest - lowest)
    a_N1 = np.ones((len(y_NK), 1))
    a_N1[[0, -1]] = AT_BOUNDS
    low_K, high_K = np.full(y_NK.shape[1], -60.0), np.full(y_NK.shape[1], 30.0)
    for _ in range(NUM_HALVINGS):
        middle_K = (low_K + high_K) / 2
        e_K = np.exp(middle_K)
        share_NK = a_N1 / (e_K + y_NK)
        t_K = (share_NK * y_NK).sum(axis=0) / share_NK.sum(axis=0)
        w_K = np.sqrt(np.maximum(2 * (a_N1 * np.log((e_K + y_NK) / (e_K + t_K))).sum(axis=0), 0))
        u_K = np.sqrt((a_N1 * ((t_K - y_NK) / (e_K + y_NK)) ** 2).sum(axis=0))
        # Far from both bounds e is large, and w and u are equal but for roundings.
        is_small_K = w_K < 1e-6
        safe_K = np.where(is_small_K, 1.0, w_K)
        r_K = np.where(is_small_K, w_K, safe_K + np.log(u_K / safe_K) / safe_K)
        low_K = np.where(r_K > z, middle_K, low_K)
        high_K = np.where(r_K > z, high_K, middle_K)
    found_K: np.ndarray = highest - t_K * (highest - lowest)
    return found_K
