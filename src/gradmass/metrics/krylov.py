"""The first singular values of a large matrix, from a few passes over it, with error bars.

A matrix enters only through products with its Gram matrix, so that it may lie on a disk, in torch,
or in two factors. Block Lanczos from a random start (randomised block Krylov) gives values that are
never too large; how much too small they can be follows from the start being random.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

BLOCK_WIDTH = 16
"""Columns of the start for up to 8 values; for more values, as many more."""
MAX_PASSES = 10
SHARE_TOLERANCE = 1e-3
VALUE_TOLERANCE = 1e-2
WIDE_TOLERANCE = 0.1
STALLED = 4e-3
"""Relative movement of the values in one pass that ends the search once bars are below 10%.

Errors shrink by at least a third in a pass, so that what is left is at most about twice as much."""
MISS = 1e-6
"""Probability that a random start hides a value from its bar."""
CONVERGED = 1e-4
"""Residual of a converged value, as a share of its distance from the smallest value seen."""
CLUSTER = 10.0
"""Residuals that a converged value may be too low by: values closer together than the residual
cannot be told apart, and mix."""
EXCESSES = np.geomspace(1e-6, 10, 120)
"""Where the end of a bar is looked for, relative to the largest value that has not converged."""
LOCK = 1e-4
"""Share of the largest eigenvalue below which float32 products no longer resolve the rest."""
ROUNDING = 1e-6
"""Of a product in float32, relative to the largest eigenvalue; every bar is that much wider."""
FLOOR = 3e-6
"""Singular values below this share of the first are rounding."""

Product = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Spectrum:
    """The first K singular values of a matrix and how far off they can be.

    Args:
        squares_K: Squared singular values, descending, never above the true ones but for rounding.
        bounds_K: What the true ones do not exceed (each but for a probability of ``MISS``).
        directions_NK: Right singular vectors in columns, orthonormal.
    """

    squares_K: np.ndarray
    bounds_K: np.ndarray
    directions_NK: np.ndarray

    @property
    def error(self) -> float:
        """Largest relative error of a singular value that the bars leave: 0.01 is one percent."""
        is_seen_K = self.squares_K > 0
        ratios_K = self.bounds_K[is_seen_K] / self.squares_K[is_seen_K]
        return float(np.sqrt(np.max(ratios_K, initial=1.0))) - 1

    def only(self, is_kept_K: np.ndarray) -> "Spectrum":
        """The values that a mask selects."""
        return Spectrum(
            self.squares_K[is_kept_K], self.bounds_K[is_kept_K], self.directions_NK[:, is_kept_K]
        )


def start_block(num_columns: int, top: int, *, seed: int = 0) -> np.ndarray:
    """Random start for ``krylov_spectrum``, shape ``[num_columns, width]``, standard normal.

    Args:
        num_columns: Columns N of the matrix.
        top: Values wanted.
        seed: Of the draw; the start must not depend on the matrix.
    """
    width = max(BLOCK_WIDTH, top + 8 + top % 2)
    return np.random.default_rng(seed).standard_normal((num_columns, min(width, num_columns)))


def krylov_spectrum(
    product: Product,
    start_NB: np.ndarray,
    first_NB: np.ndarray,
    energy: float,
    *,
    top: int,
) -> Spectrum:
    """First singular values of a matrix W, from products with its Gram matrix ``W^T W``.

    Block Lanczos with full reorthogonalisation in float64: an orthonormal basis of
    ``span{S, G S, ..., G^(q-1) S}`` of a random start S, and the eigenvalues of ``G = W^T W`` on
    it. It ends when the bars put r_1 within 1e-3 and the values within 1e-2; where the spectrum is
    too flat for such bars, when they are below 10% and the values move by less than ``STALLED``, or
    after ``MAX_PASSES``.

    The values are Ritz values: never above the true ones. The upper ends: if G had an eigenvalue x
    besides those that have converged, then its eigenvector takes part in the start with a weight
    that is chi-squared in B degrees of freedom, and so at least c but for a probability of
    ``MISS``. Then ``c p(x)^2 <= ||p(G) S||_F^2`` (less what the converged directions contribute)
    for every polynomial p of degree below q, and the right side is known from the basis. The bar
    ends at the largest x that no p excludes; the best p is the Christoffel function's.

    Directions below a hundredth of the first are found in a second search that leaves the first
    ones out, because a Gram matrix in float32 does not resolve both. Values below 3e-6 of the first
    are rounding and left out.

    Args:
        product: ``Q -> W^T (W Q)`` for ``[N, any]``, float64, correct to float32 precision.
        start_NB: From ``start_block``.
        first_NB: ``product(start_NB)``; the caller has it from reading the matrix.
        energy: ``||W||_F^2``, above 0.
        top: Values wanted, K, at most ``min(m, N)``.

    Returns:
        K values, or fewer where the rank of W within float32 is below K.

    Source: Musco and Musco, arXiv 1504.05477, for the method; the upper bounds are those of
    Kuczynski and Wozniakowski (1992) for the polynomial that fits the spectrum at hand.
    """
    found, residuals_K = _search(product, start_NB, first_NB, energy, top=top)
    largest = found.squares_K[0]
    is_resolved_K = found.squares_K >= LOCK * largest
    if len(found.squares_K) == top and is_resolved_K.all():
        return found
    locked = found.only(is_resolved_K)
    rest = _search_rest(product, start_NB, locked, energy, top=top)
    if rest is None:
        return locked
    # To second order, what leaving out directions that are a little off does to the others.
    leak = float(np.sum((residuals_K**2 / found.squares_K)[is_resolved_K]))
    return Spectrum(
        np.concatenate([locked.squares_K, rest.squares_K]),
        np.concatenate([locked.bounds_K, rest.bounds_K + leak]),
        np.concatenate([locked.directions_NK, rest.directions_NK], axis=1),
    )


def _search_rest(
    product: Product, start_NB: np.ndarray, locked: Spectrum, energy: float, *, top: int
) -> Spectrum | None:
    """Search orthogonally to the locked directions; None if only rounding is left there."""
    V = locked.directions_NK
    missing = top - V.shape[1]
    if missing == 0:
        return None

    def without(block_NB: np.ndarray) -> np.ndarray:
        block_NB = block_NB - V @ (V.T @ block_NB)
        return np.asarray(block_NB - V @ (V.T @ block_NB))

    def deflated(block_NB: np.ndarray) -> np.ndarray:
        return without(product(without(block_NB)))

    start_NB = without(start_NB)
    first_NB = deflated(start_NB)
    floor = FLOOR**2 * locked.squares_K[0]
    if float(np.linalg.norm(first_NB)) <= floor * float(np.linalg.norm(start_NB)):
        return None
    rest, _ = _search(deflated, start_NB, first_NB, energy, top=missing)
    is_real_K = rest.squares_K > floor
    return rest.only(is_real_K) if is_real_K.any() else None


def _search(
    product: Product, start_NB: np.ndarray, first_NB: np.ndarray, energy: float, *, top: int
) -> tuple[Spectrum, np.ndarray]:
    """One search of ``krylov_spectrum``, without the second one; also the norms of residuals."""
    weight = _least_weight(start_NB.shape[1])
    block_NB, R_BB = np.linalg.qr(start_NB)
    # G Q from G S, without another pass.
    image_NB = np.linalg.solve(R_BB.T, first_NB.T).T
    basis_ND = block_NB
    T_DD = np.zeros((0, 0))
    previous_K = np.zeros(0)
    for number in range(1, MAX_PASSES + 1):
        part_DB = basis_ND.T @ image_NB
        T_DD = _bordered(T_DD, part_DB)
        ritz_D, S_DD = np.linalg.eigh(T_DD)
        ritz_D, S_DD = ritz_D[::-1].clip(min=0.0), S_DD[:, ::-1]
        rest_NB = image_NB - basis_ND @ part_DB
        rest_NB -= basis_ND @ (basis_ND.T @ rest_NB)
        U_NB, norms_B, Vt_BB = np.linalg.svd(rest_NB, full_matrices=False)
        residuals_D = np.linalg.norm(
            (norms_B[:, None] * Vt_BB) @ S_DD[-image_NB.shape[1] :], axis=0
        )
        weights_D = np.sum((R_BB.T @ S_DD[: len(R_BB)]) ** 2, axis=0)
        ritz_K = ritz_D[:top]
        is_new_B = norms_B > ROUNDING * ritz_D[0]
        if not is_new_B.any():  # the start has no part in any other direction
            bounds_K = ritz_K + CLUSTER * ROUNDING * ritz_K[0]
            break
        bounds_K = _bounds(ritz_D, residuals_D, weights_D, number, weight)[:top]
        if _is_enough(ritz_K, bounds_K, previous_K, energy, number):
            break
        previous_K = ritz_K
        if number < MAX_PASSES:
            block_NB = U_NB[:, is_new_B]
            block_NB = np.linalg.qr(block_NB - basis_ND @ (basis_ND.T @ block_NB))[0]
            image_NB = product(block_NB)
            basis_ND = np.concatenate([basis_ND, block_NB], axis=1)
    return Spectrum(ritz_K, bounds_K, basis_ND @ S_DD[:, :top]), residuals_D[:top]


def _bordered(T_CC: np.ndarray, part_DB: np.ndarray) -> np.ndarray:
    """The symmetric matrix of D rows that begins with T and ends in these columns."""
    grown_DD = np.zeros((len(part_DB), len(part_DB)))
    grown_DD[: len(T_CC), : len(T_CC)] = T_CC
    grown_DD[:, len(T_CC) :] = part_DB
    grown_DD[len(T_CC) :] = part_DB.T
    corner_BB = grown_DD[len(T_CC) :, len(T_CC) :]
    corner_BB[:] = (corner_BB + corner_BB.T) / 2
    return grown_DD


def _is_enough(
    ritz_K: np.ndarray, bounds_K: np.ndarray, previous_K: np.ndarray, energy: float, number: int
) -> bool:
    if bounds_K[0] - ritz_K[0] > SHARE_TOLERANCE * energy:
        return False
    is_seen_K = ritz_K > LOCK * ritz_K[0]
    values_K = np.sqrt(ritz_K[is_seen_K])
    error = float(np.max(np.sqrt(bounds_K[is_seen_K]) / values_K)) - 1
    if error <= VALUE_TOLERANCE:
        return True
    before_K = np.sqrt(previous_K[: len(ritz_K)])
    if error > WIDE_TOLERANCE or len(before_K) < len(ritz_K):
        return False
    return bool(np.all(values_K - before_K[is_seen_K] <= STALLED * values_K))


def _bounds(
    ritz_D: np.ndarray,
    residuals_D: np.ndarray,
    weights_D: np.ndarray,
    num_terms: int,
    weight: float,
) -> np.ndarray:
    """Upper ends of the bars: of converged values their residual, of the others the exclusion."""
    is_converged_D = residuals_D <= CONVERGED * (ritz_D - ritz_D[-1])
    highest_D = ritz_D + CLUSTER * residuals_D
    if not is_converged_D.all():
        others = ~is_converged_D
        edge = _exclusion(ritz_D[others], weights_D[others], num_terms, weight)
        highest_D = np.where(is_converged_D, np.maximum(highest_D, edge), edge)
    return np.asarray(highest_D + ROUNDING * ritz_D[0])


def _exclusion(nodes_D: np.ndarray, weights_D: np.ndarray, num_terms: int, weight: float) -> float:
    """Least x above all nodes with ``min_p sum_i w_i p(t_i)^2 / p(x)^2 <= weight``, or a bit more.

    The next of the ``EXCESSES``, so that one recurrence answers for all; infinite if none does.
    """
    x_X = float(nodes_D.max()) * (1 + EXCESSES)
    is_out_X = _christoffel(nodes_D, weights_D, num_terms, x_X) <= weight
    return float(x_X[np.argmax(is_out_X)]) if is_out_X.any() else math.inf


def _christoffel(
    nodes_D: np.ndarray, weights_D: np.ndarray, num_terms: int, x_X: np.ndarray
) -> np.ndarray:
    """``min sum_i w_i p(t_i)^2`` over polynomials of ``num_terms`` terms with ``p(x) = 1``.

    One over the sum of squares at x of the orthonormal polynomials (Stieltjes' recurrence, on
    nodes mapped to [-1, 1]).
    """
    centre = (nodes_D.max() + nodes_D.min()) / 2
    radius = max((nodes_D.max() - nodes_D.min()) / 2, 1e-12 * nodes_D.max(), 1e-300)
    t = (np.concatenate([nodes_D, x_X]) - centre) / radius
    # All polynomials at the nodes, which decide the coefficients, and at x.
    w = np.concatenate([weights_D, np.zeros(len(x_X))])
    norm = math.sqrt(weights_D.sum())
    if norm == 0:
        return np.zeros(len(x_X))
    before, now, beta = np.zeros_like(t), np.full_like(t, 1 / norm), 0.0
    total = now**2
    for _ in range(num_terms - 1):
        following = (t - float(np.sum(w * t * now**2))) * now - beta * before
        beta = math.sqrt(float(np.sum(w * following**2)))
        if beta < 1e-10:
            break
        before, now = now, following / beta
        total += now**2
    return np.asarray(1 / total[len(nodes_D) :])


@functools.cache
def _least_weight(degrees: int) -> float:
    """What a chi-squared variable falls below with probability ``MISS``; degrees rounded down."""
    half = max(1, degrees // 2)
    low, high = 0.0, float(degrees + 1)
    for _ in range(80):
        middle = (low + high) / 2
        terms = [(middle / 2) ** j / math.factorial(j) for j in range(half, half + 60)]
        # The tail of the series, because one minus its head would cancel.
        if math.exp(-middle / 2) * sum(terms) < MISS:
            low = middle
        else:
            high = middle
    return low
