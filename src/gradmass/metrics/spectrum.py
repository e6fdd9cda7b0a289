"""The first singular values of a large change, from a few passes over it, with error bars.

A matrix enters only through products with its Gram matrix, so that it may lie on a disk, in torch,
or in two factors. Block Lanczos from a random start (randomised block Krylov) gives values that are
never too large; how much too small they can be follows from the start being random.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gradmass.metrics.rank import top1_share_noise, top1_share_noise_edge
from gradmass.types import Array, UsageError

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
CONVERGED = 1e-3
LOCK = 1e-5
"""Share of the largest eigenvalue below which float32 products no longer resolve the rest."""
ROUNDING = 1e-6
"""Of a product in float32, relative to the largest eigenvalue."""
FLOOR = 3e-6
"""Singular values below this share of the first are rounding."""
SAMPLED_ENTRIES = 65_536
"""Largest shape whose noise value is sampled; for larger ones the edge is within 3%."""
MAX_ROUNDING_SHARE = 0.1

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

    Directions below about 1/300 of the first are found in a second search that leaves the first
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
    found = _search(product, start_NB, first_NB, energy, top=top)
    largest = found.squares_K[0]
    is_resolved_K = found.squares_K >= LOCK * largest
    if len(found.squares_K) == top and is_resolved_K.all():
        return found
    locked = found.only(is_resolved_K)
    rest = _search_rest(product, start_NB, locked, energy, top=top)
    if rest is None:
        return locked
    return Spectrum(
        np.concatenate([locked.squares_K, rest.squares_K]),
        np.concatenate([locked.bounds_K, rest.bounds_K]),
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
    rest = _search(deflated, start_NB, first_NB, energy, top=missing)
    is_real_K = rest.squares_K > floor
    return rest.only(is_real_K) if is_real_K.any() else None


def _search(
    product: Product, start_NB: np.ndarray, first_NB: np.ndarray, energy: float, *, top: int
) -> Spectrum:
    """One search of ``krylov_spectrum``, without the second one for small values."""
    weight = _least_weight(start_NB.shape[1])
    block_NB, R_BB = np.linalg.qr(start_NB)
    # G Q from G S, without another pass.
    image_NB = np.linalg.solve(R_BB.T, first_NB.T).T
    basis_ND, images_ND = block_NB, image_NB
    previous_K = np.zeros(0)
    for number in range(1, MAX_PASSES + 1):
        T_DD = basis_ND.T @ images_ND
        ritz_D, S_DD = np.linalg.eigh((T_DD + T_DD.T) / 2)
        ritz_D, S_DD = ritz_D[::-1].clip(min=0.0), S_DD[:, ::-1]
        rest_NB = image_NB - basis_ND @ (basis_ND.T @ image_NB)
        rest_NB -= basis_ND @ (basis_ND.T @ rest_NB)
        U_NB, norms_B, Vt_BB = np.linalg.svd(rest_NB, full_matrices=False)
        residuals_D = np.linalg.norm(
            (norms_B[:, None] * Vt_BB) @ S_DD[-image_NB.shape[1] :], axis=0
        )
        weights_D = np.sum((R_BB.T @ S_DD[: len(R_BB)]) ** 2, axis=0)
        bounds_K = _bounds(ritz_D, residuals_D, weights_D, number, weight)[:top]
        ritz_K = ritz_D[:top]
        is_new_B = norms_B > ROUNDING * ritz_D[0]
        if not is_new_B.any() or _is_enough(ritz_K, bounds_K, previous_K, energy, number):
            break
        previous_K = ritz_K
        if number < MAX_PASSES:
            block_NB = U_NB[:, is_new_B]
            block_NB = np.linalg.qr(block_NB - basis_ND @ (basis_ND.T @ block_NB))[0]
            image_NB = product(block_NB)
            basis_ND = np.concatenate([basis_ND, block_NB], axis=1)
            images_ND = np.concatenate([images_ND, image_NB], axis=1)
    return Spectrum(ritz_K, bounds_K, basis_ND @ S_DD[:, :top])


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
    is_converged_D = residuals_D <= CONVERGED * ritz_D
    if is_converged_D.all():
        return np.asarray(ritz_D + residuals_D)
    others = ~is_converged_D
    edge = _exclusion(ritz_D[others], weights_D[others], num_terms, weight)
    return np.where(is_converged_D, np.maximum(ritz_D + residuals_D, edge), edge)


def _exclusion(nodes_D: np.ndarray, weights_D: np.ndarray, num_terms: int, weight: float) -> float:
    """Least x above all nodes with ``min_p sum_i w_i p(t_i)^2 / p(x)^2 <= weight``."""
    low = high = float(nodes_D.max())
    while _christoffel(nodes_D, weights_D, num_terms, high) > weight:
        low, high = high, 2 * high
        if num_terms == 1:
            return math.inf  # constants exclude nothing
    for _ in range(40):
        middle = (low + high) / 2
        if _christoffel(nodes_D, weights_D, num_terms, middle) > weight:
            low = middle
        else:
            high = middle
    return high


def _christoffel(nodes_D: np.ndarray, weights_D: np.ndarray, num_terms: int, x: float) -> float:
    """``min sum_i w_i p(t_i)^2`` over polynomials of ``num_terms`` terms with ``p(x) = 1``.

    One over the sum of squares at x of the orthonormal polynomials (Stieltjes' recurrence, on
    nodes mapped to [-1, 1]).
    """
    centre = (nodes_D.max() + nodes_D.min()) / 2
    radius = max((nodes_D.max() - nodes_D.min()) / 2, 1e-12 * nodes_D.max(), 1e-300)
    t_D, t = (nodes_D - centre) / radius, (x - centre) / radius
    norm = math.sqrt(weights_D.sum())
    if norm == 0:
        return 0.0
    before_D, now_D, before, now, beta = np.zeros_like(t_D), np.ones_like(t_D) / norm, 0.0, 0.0, 0.0
    now = 1 / norm
    total = now**2
    for _ in range(num_terms - 1):
        alpha = float(np.sum(weights_D * t_D * now_D**2))
        next_D = (t_D - alpha) * now_D - beta * before_D
        next_beta = math.sqrt(float(np.sum(weights_D * next_D**2)))
        if next_beta < 1e-10:
            break
        value = ((t - alpha) * now - beta * before) / next_beta
        before_D, now_D, before, now, beta = now_D, next_D / next_beta, now, value, next_beta
        total += now**2
    return 1 / total


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


def gram_spectrum(gram_NN: np.ndarray, *, top: int) -> Spectrum:
    """First singular values of a matrix from its float64 Gram matrix, exact to rounding.

    Values below 3e-6 of the first are rounding and left out.
    """
    values_N, vectors_NN = np.linalg.eigh(gram_NN)
    squares_K = values_N[::-1][:top]
    found = Spectrum(squares_K, squares_K, vectors_NN[:, ::-1][:, :top])
    return found.only(squares_K > FLOOR**2 * squares_K[0])


def factor_spectrum(left_MR: Array, right_RN: Array, *, top: int) -> tuple[Spectrum, float]:
    """Singular values of the product of two thin factors, without forming it, and its energy.

    ``L R = Q_L (T_L T_R^T) Q_R^T`` with the QR decompositions of L and of R^T; the singular values
    are those of the r x r matrix in the middle.

    Args:
        left_MR: L, shape ``[m, r]``; a LoRA's B times its scale.
        right_RN: R, shape ``[r, n]``; its A.
        top: Values wanted.

    Returns:
        At most ``min(top, r, m, n)`` values, exact to float64 rounding, and ``||L R||_F^2``. Values
        below 3e-6 of the first are left out, as they are elsewhere.

    >>> spectrum, energy = factor_spectrum(np.array([[3.0], [4.0]]), np.array([[0.0, 2.0]]), top=8)
    >>> spectrum.squares_K.round(9).tolist(), round(energy, 9)  # |(3, 4)|^2 |(0, 2)|^2
    ([100.0], 100.0)
    """
    left_MR = np.asarray(left_MR, dtype=np.float64)
    right_RN = np.asarray(right_RN, dtype=np.float64)
    Q_NR, T_RR = np.linalg.qr(right_RN.T)
    core = np.linalg.qr(left_MR, mode="r") @ T_RR.T
    _, values_R, Vt_RR = np.linalg.svd(core, full_matrices=False)
    squares_R = values_R**2
    found = Spectrum(squares_R[:top], squares_R[:top], (Q_NR @ Vt_RR.T)[:, :top])
    return found.only(found.squares_K > FLOOR**2 * squares_R[0]), float(squares_R.sum())


@functools.cache
def noise_share(num_rows: int, num_columns: int) -> float:
    """r_1 of pure noise of a shape: sampled if it is small, else the Marchenko-Pastur edge.

    Args:
        num_rows: Of the matrix, at least 1.
        num_columns: Of the matrix, at least 1.
    """
    if num_rows * num_columns <= SAMPLED_ENTRIES:
        shape = (max(num_rows, num_columns), min(num_rows, num_columns))
        return top1_share_noise(shape, num_draws=40)
    return top1_share_noise_edge((num_rows, num_columns))


@functools.cache
def factor_noise_share(num_rows: int, num_columns: int, rank: int) -> float:
    """r_1 of the product of two Gaussian factors ``[m, r]`` and ``[r, n]``: noise of rank r.

    At least 1/r by construction, so that an r_1 of 1/r says nothing about an adapter of rank r.
    Mean of 40 draws of the r x r matrix that has the product's singular values (Bartlett's
    decomposition of the factors' Gram matrices).

    Args:
        num_rows: m, at least 1.
        num_columns: n, at least 1.
        rank: r, at least 1; more than the smaller side counts as the smaller side.
    """
    generator = np.random.default_rng(0)
    shares = []
    for _ in range(40):
        core = _triangle(num_rows, rank, generator) @ _triangle(num_columns, rank, generator).T
        squares_R = np.linalg.svd(core, compute_uv=False) ** 2
        shares.append(squares_R[0] / squares_R.sum())
    return float(np.mean(shares))


def _triangle(num_rows: int, rank: int, generator: np.random.Generator) -> np.ndarray:
    """R of the QR decomposition of a Gaussian ``[num_rows, rank]`` matrix, drawn directly."""
    height = min(num_rows, rank)
    R = np.triu(generator.standard_normal((height, rank)), 1)
    degrees = num_rows - np.arange(height)
    np.fill_diagonal(R, np.sqrt(generator.chisquare(degrees)))
    return R


def is_hidden(energy: float, rounding_energy: float) -> bool:
    """Whether rounding hides the spectrum of a stored change: nobody can tell r_1 from the files.

    Rounding moves an entry of a tuned weight by up to half the spacing of its dtype there, and by
    ``spacing^2 / 12`` in the mean square. Above a tenth (``MAX_ROUNDING_SHARE``) of the energy
    that is stored, r_1 of the stored change can be anything beside the true one; below, it was at
    most 0.08 too low in changes of rank one, of rank four, flat, heavy-tailed and sparse ones.

    Args:
        energy: Of the stored change.
        rounding_energy: Sum of ``spacing^2 / 12`` over all its entries.

    Raises:
        UsageError: A negative energy.
    """
    if energy < 0 or rounding_energy < 0:
        raise UsageError(f"energies are not negative, got {energy} and {rounding_energy}")
    return rounding_energy > MAX_ROUNDING_SHARE * energy
