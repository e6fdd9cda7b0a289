"""How far above a Ritz value its eigenvalue can be, where the Krylov space began at random.

Ritz values are never above the eigenvalues; how far below follows from the start being random: no
eigenvector is nearly orthogonal to it, and so none of a large eigenvalue stays hidden for long.
"""

import functools
import math
from bisect import bisect_left

import numpy as np

MISS = 1e-6
"""Probability that a random start hides a value from its bar."""
APART = 1e-2
"""Residual below which a value is set apart from the rest, as a share of its distance from the
smallest value seen."""
MAX_ENDS = 32
"""Ends that are looked for; values in between have that of the one before, which is above theirs
too. Looking for each of hundreds would take longer than the products."""
EXCESSES = np.geomspace(1e-6, 10, 240)
"""Where the end of a bar is looked for, relative to the value."""


def is_apart(ritz_D: np.ndarray, residuals_D: np.ndarray) -> np.ndarray:
    """Which values have residuals that are small beside their distance from the smallest one."""
    return np.asarray(residuals_D < APART * (ritz_D - ritz_D[-1]))


def upper_ends(
    ritz_D: np.ndarray, residuals_D: np.ndarray, starts_DB: np.ndarray, num_terms: int, top: int
) -> np.ndarray:
    """What the first eigenvalues of G do not exceed, each but for a probability of ``MISS``.

    Let the k-th eigenvalue be at least x, above the k-th Ritz value t_k. Of the span of the first k
    eigenvectors some direction z is orthogonal to the first k - 1 Ritz vectors u_j. For every
    polynomial p of degree below q that increases from x on, ``||z^T p(G) S||`` is at least s p(x),
    where s is the least singular value of a k x B Gaussian matrix, because the start S is one.
    On the other hand ``p(G) S = sum_j u_j p(t_j) u_j^T S``, in which the terms before the k-th
    vanish with z, and z takes at most ``e_j / (x - t_j)`` of a term whose residual is e_j. The bar
    ends where both cannot be: each term that is apart counts by its residual, the others together
    by the norm of their sum for the p that is least on them.

    Args:
        ritz_D: Eigenvalues of G on the Krylov space of S, descending: t.
        residuals_D: Norms ``||G u_j - t_j u_j||``, or more: e.
        starts_DB: ``u_j^T S`` in rows.
        num_terms: q, blocks of the space.
        top: Eigenvalues K asked for, at most B.

    Returns:
        K values, descending, infinite where nothing is known.

    Source: Kuczynski and Wozniakowski (SIAM J. Matrix Anal. Appl. 13, 1992) bound the first
    eigenvalue so, by Chebyshev polynomials and before the search; here are the k-th and the
    polynomials that fit the spectrum found.
    """
    num_apart = int(np.argmin(is_apart(ritz_D, residuals_D)))
    num_ends = min(top, num_apart + 1)
    x_KX = ritz_D[:num_ends, None] * (1 + EXCESSES)
    others_DB = starts_DB[num_apart:]
    at_others_TD, at_x_TX = orthonormal_polynomials(
        ritz_D[num_apart:], np.sum(others_DB**2, axis=1), num_terms, x_KX.ravel()
    )
    at_x_TKX = at_x_TX.reshape(-1, *x_KX.shape)
    leaks_D = residuals_D * np.linalg.norm(starts_DB, axis=1)

    def is_out(k: int, number: int) -> bool:
        x, at_x_T = x_KX[k, number], at_x_TKX[:, k, number]
        p_D = at_x_T @ at_others_TD / np.sum(at_x_T**2)  # 1 at x, and at most 1 at those apart
        sum_DB = others_DB * p_D[:, None]
        # Of 16 x 16: a tenth of the time of the norm itself.
        norm = math.sqrt(np.linalg.eigvalsh(sum_DB.T @ sum_DB)[-1])
        leak = np.sum(leaks_D[k:num_apart] / (x - ritz_D[k:num_apart]))
        return bool(norm + leak <= least_singular_value(starts_DB.shape[1], k + 1))

    ends: list[float] = []
    every = -(-num_ends // MAX_ENDS)
    for k in range(num_ends):
        if k % every:
            ends.append(ends[-1])
            continue
        number = bisect_left(range(len(EXCESSES)), True, key=functools.partial(is_out, k))
        ends.append(x_KX[k, number] if number < len(EXCESSES) else math.inf)
    ends += ends[-1:] * (top - num_ends)
    return np.minimum.accumulate(ends)


def orthonormal_polynomials(
    nodes_D: np.ndarray, weights_D: np.ndarray, num_terms: int, x_X: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Polynomials with ``sum_i w_i p_a(t_i) p_b(t_i) = (a == b)``, at the nodes t and at x.

    By Stieltjes' recurrence, on nodes mapped to [-1, 1]; at most ``num_terms``, fewer if there are
    fewer nodes. ``sum_a p_a(x) p_a(t)`` has the least ``sum_i w_i p(t_i)^2`` of all polynomials in
    t with its value at x, and increases from x on if the nodes are below x.
    """
    centre = (nodes_D.max() + nodes_D.min()) / 2
    radius = max((nodes_D.max() - nodes_D.min()) / 2, 1e-12 * nodes_D.max(), 1e-300)
    t = (np.concatenate([nodes_D, x_X]) - centre) / radius
    # All at the nodes, which decide the coefficients, and at x.
    w = np.concatenate([weights_D, np.zeros(len(x_X))])
    beta = 0.0
    found = [np.zeros_like(t), np.full_like(t, 1 / math.sqrt(max(weights_D.sum(), 1e-300)))]
    for _ in range(num_terms - 1):
        before, now = found[-2:]
        following = (t - float(np.sum(w * t * now**2))) * now - beta * before
        beta = math.sqrt(float(np.sum(w * following**2)))
        if beta < 1e-10:
            break
        found.append(following / beta)
    values = np.stack(found[1:])
    return values[:, : len(nodes_D)], values[:, len(nodes_D) :]


@functools.cache
def least_singular_value(width: int, k: int, miss: float = MISS) -> float:
    """What the least singular value of a k x width Gaussian matrix exceeds but for this chance.

    By ``P(s^2 <= x) <= f P(chi2_{width-k+1} <= x)``, with f the ratio of both densities at 0 (Chen
    and Dongarra, arXiv 0810.0800); an equality for k = 1.
    """
    half = (width - k + 1) / 2
    log_ratio = (
        math.log(math.pi) / 2
        + math.lgamma((width + 1) / 2)
        - math.lgamma(k / 2)
        - math.lgamma((width - k + 2) / 2)
    )
    low, high = 0.0, 1.0 + width
    for _ in range(80):
        middle = (low + high) / 2
        y, log_y = middle / 2, math.log(middle / 2)
        # The tail of the series, because one minus its head would cancel. Its terms grow until
        # half + j is y, and are halved at least from 2 y on.
        logs = ((half + j) * log_y - math.lgamma(half + j + 1) for j in range(60 + round(2 * y)))
        if sum(math.exp(log_ratio - y + log_term) for log_term in logs) < miss:
            low = middle
        else:
            high = middle
    return math.sqrt(low)
