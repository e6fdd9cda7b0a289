"""The first singular values of a large matrix, from a few passes over it, with error bars.

A matrix enters only through products with its Gram matrix, so that it may lie on a disk, in torch,
or in two factors. Block Lanczos from a random start (randomised block Krylov) gives values that are
never too large; how much too small they can be follows from the start being random.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gradmass.metrics.bars import is_apart, upper_ends

BLOCK_WIDTH = 16
"""Columns of the start for up to 8 values; for more values, as many more."""
MAX_PASSES = 10
SHARE_TOLERANCE = 1e-3
VALUE_TOLERANCE = 1e-2
WIDE_TOLERANCE = 0.1
STALLED = 6e-3
"""Relative movement of the values in one pass that ends the search once bars are below 10%.

Errors shrink by at least a third in a pass: by at most 4e-3 in the half pass that follows, which
leaves at most about twice as much."""
LOCK = 1e-4
"""Share of the largest eigenvalue below which float32 products no longer resolve the rest."""
ROUNDING = 1e-6
"""Of a product in float32, relative to the largest eigenvalue; every bar is that much wider."""
EXHAUSTED = 1e-5
"""Width of the bars where rounding is all that is left of the last block, likewise."""
WEAK = 1e-3
"""Share of the largest eigenvalue below which a block is made orthogonal to the basis twice."""
FLOOR = 3e-6
"""Singular values below this share of the first are rounding."""

Product = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Spectrum:
    """The first K singular values of a matrix and how far off they can be.

    Args:
        squares_K: Squared singular values, descending, never above the true ones but for rounding.
        bounds_K: What the true ones do not exceed (each but for a probability of ``bars.MISS``).
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
    square: Product | None = None,
) -> Spectrum:
    """First singular values of a matrix W, from products with its Gram matrix ``W^T W``.

    Block Lanczos with full reorthogonalisation in float64: an orthonormal basis of
    ``span{S, G S, ..., G^(q-1) S}`` of a random start S, and the eigenvalues of ``G = W^T W`` on
    it, which are never above the true ones; ``bars.upper_ends`` says how far below. It ends when
    the bars put r_1 within 1e-3 and the values within 1e-2; where the spectrum is too flat for such
    bars, half a pass after they are below 10% and the values move by less than ``STALLED``, or
    after ``MAX_PASSES``.

    Directions below a hundredth of the first are found in a second search that leaves the first
    ones out, because a Gram matrix in float32 does not resolve both. Values below 3e-6 of the first
    are rounding and left out.

    Args:
        product: ``Q -> W^T (W Q)`` for ``[N, any]``, float64, correct to float32 precision.
        start_NB: From ``start_block``.
        first_NB: ``product(start_NB)``; the caller has it from reading the matrix.
        energy: ``||W||_F^2``, above 0.
        top: Values wanted, K, at most ``min(m, N)``.
        square: ``Q -> (W Q)^T (W Q)``, where that costs less than ``Q^T product(Q)``.

    Returns:
        K values, or fewer where the rank of W within float32 is below K.

    Source: Musco and Musco, arXiv 1504.05477, for the method; the upper bounds extend those of
    Kuczynski and Wozniakowski (1992) to the polynomial that fits the spectrum at hand and to the
    k-th value.
    """
    if square is None:
        square = functools.partial(_square, product)
    found, residuals_K = _search(product, square, start_NB, first_NB, energy, top=top)
    largest = found.squares_K[0]
    is_resolved_K = found.squares_K >= LOCK * largest
    if len(found.squares_K) == top and is_resolved_K.all():
        return found
    locked = found.only(is_resolved_K)
    rest = _search_rest(product, square, start_NB, locked, energy, top=top)
    if rest is None:
        return locked
    # To second order, what leaving out directions that are a little off does to the others.
    leak = float(np.sum((residuals_K**2 / found.squares_K)[is_resolved_K]))
    return Spectrum(
        np.concatenate([locked.squares_K, rest.squares_K]),
        np.concatenate([locked.bounds_K, rest.bounds_K + leak]),
        np.concatenate([locked.directions_NK, rest.directions_NK], axis=1),
    )


def _square(product: Product, block_NB: np.ndarray) -> np.ndarray:
    return np.asarray(block_NB.T @ product(block_NB))


def _search_rest(
    product: Product,
    square: Product,
    start_NB: np.ndarray,
    locked: Spectrum,
    energy: float,
    *,
    top: int,
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

    def deflated_square(block_NB: np.ndarray) -> np.ndarray:
        return square(without(block_NB))

    start_NB = without(start_NB)
    first_NB = deflated(start_NB)
    floor = FLOOR**2 * locked.squares_K[0]
    if float(np.linalg.norm(first_NB)) <= floor * float(np.linalg.norm(start_NB)):
        return None
    rest, _ = _search(deflated, deflated_square, start_NB, first_NB, energy, top=missing)
    is_real_K = rest.squares_K > floor
    return rest.only(is_real_K) if is_real_K.any() else None


def _search(
    product: Product,
    square: Product,
    start_NB: np.ndarray,
    first_NB: np.ndarray,
    energy: float,
    *,
    top: int,
) -> tuple[Spectrum, np.ndarray]:
    """One search of ``krylov_spectrum``, without the second one; also the norms of residuals."""
    space = _KrylovSpace(start_NB, top)
    image_NB = space.image_of_start(first_NB)
    for number in range(1, MAX_PASSES + 1):
        space.see_image(image_NB)
        if space.is_exhausted or space.is_told(energy):
            break
        is_last = number == MAX_PASSES or space.is_at_rest(energy)
        block_NB = space.grow()
        if is_last:
            space.see_square(square(block_NB))
            break
        image_NB = product(block_NB)
    return space.spectrum(), space.residuals_D[:top]


class _KrylovSpace:
    """A basis, what G does to it, and what follows for the first eigenvalues.

    Args:
        start_NB: The random start.
        top: Eigenvalues wanted.
    """

    def __init__(self, start_NB: np.ndarray, top: int) -> None:
        Q_NB, self._R_BB = np.linalg.qr(start_NB)
        num_rows, width = start_NB.shape
        # Columns one after the other, so that the basis grows without being copied.
        self._columns = np.empty((num_rows, (MAX_PASSES + 1) * width), order="F")
        self._columns[:, :width] = Q_NB
        self._basis_ND = self._columns[:, :width]
        self._top, self._num_blocks = top, 1
        self._T_DD = np.zeros((0, 0))
        self.ritz_D = np.zeros(0)
        self._ends_K = np.full(top, np.inf)

    def image_of_start(self, first_NB: np.ndarray) -> np.ndarray:
        """G times the first block, from G S without another pass."""
        return np.asarray(first_NB @ np.linalg.inv(self._R_BB))

    def see_image(self, image_NB: np.ndarray) -> None:
        """Take note of G times the last block."""
        part_DB = self._basis_ND.T @ image_NB
        self._diagonalise(part_DB)
        rest_NB = image_NB - self._basis_ND @ part_DB
        U_NB, norms_B, Vt_BB = np.linalg.svd(rest_NB, full_matrices=False)
        if norms_B[-1] < WEAK * self.ritz_D[0]:  # beside it, rounding has part in the basis
            rest_NB -= self._basis_ND @ (self._basis_ND.T @ rest_NB)
            U_NB, norms_B, Vt_BB = np.linalg.svd(rest_NB, full_matrices=False)
        is_new_B = norms_B > ROUNDING * self.ritz_D[0]
        self.is_exhausted = not is_new_B.any()  # the start has no part in any other direction
        self._next_NB, self._link_CB = U_NB[:, is_new_B], (norms_B[:, None] * Vt_BB)[is_new_B]
        self._bound(self._link_CB @ self._S_DD[-len(Vt_BB) :])

    def grow(self) -> np.ndarray:
        """The next block, from now on in the basis."""
        num_before, num_next = self._basis_ND.shape[1], self._next_NB.shape[1]
        self._basis_ND = self._columns[:, : num_before + num_next]
        self._basis_ND[:, num_before:] = self._next_NB
        self._num_blocks += 1
        return self._next_NB

    def see_square(self, square_CC: np.ndarray) -> None:
        """Take note of ``Q^T G Q`` for the last block Q, all that its part in the values needs."""
        num_rows, num_columns = self._link_CB.shape
        before = np.zeros((len(self._T_DD) - num_columns, num_rows))
        self._diagonalise(np.concatenate([before, self._link_CB.T, square_CC]))
        # G takes nothing to more than the largest eigenvalue.
        self._bound(self._ends_K[0] * self._S_DD[-num_rows:])

    def spectrum(self) -> Spectrum:
        """The values as far as they are known."""
        directions_NK = self._basis_ND @ self._S_DD[:, : self._top]
        return Spectrum(self.ritz_D[: self._top], self._bounds_K(), directions_NK)

    def is_told(self, energy: float) -> bool:
        """Whether the bars are as narrow as they should be."""
        return self._is_within(VALUE_TOLERANCE, energy)

    def is_at_rest(self, energy: float) -> bool:
        """Whether the values hardly move and the bars of a flat spectrum are all one can have."""
        num_seen = int(np.sum(self._is_seen_K()))
        is_flat = not is_apart(self.ritz_D, self.residuals_D)[:num_seen].all()
        if self._num_blocks == 1 or not (is_flat and self._is_within(WIDE_TOLERANCE, energy)):
            return False
        before_K, values_K = np.sqrt(self._before_D[:num_seen]), np.sqrt(self.ritz_D[:num_seen])
        return bool(np.all(values_K - before_K <= STALLED * values_K))

    def _is_seen_K(self) -> np.ndarray:
        """Which of the values float32 products resolve."""
        return np.asarray(self.ritz_D[: self._top] > LOCK * self.ritz_D[0])

    def _bounds_K(self) -> np.ndarray:
        values_K = self.ritz_D[: self._top]
        if self.is_exhausted:
            return np.asarray(values_K + EXHAUSTED * values_K[0])
        return np.asarray(self._ends_K + ROUNDING * values_K[0])

    def _is_within(self, tolerance: float, energy: float) -> bool:
        """Whether the bars of r_1 and, relative to the values, of those seen are narrow enough."""
        values_K, bounds_K, is_seen_K = (
            self.ritz_D[: self._top],
            self._bounds_K(),
            self._is_seen_K(),
        )
        errors_K = np.sqrt(bounds_K[is_seen_K] / values_K[is_seen_K]) - 1
        is_share_within = bounds_K[0] - values_K[0] <= SHARE_TOLERANCE * energy
        return bool(is_share_within and np.max(errors_K) <= tolerance)

    def _diagonalise(self, part_DB: np.ndarray) -> None:
        """Add the columns of the last block to ``Q^T G Q``."""
        self._before_D = self.ritz_D
        self._T_DD = _bordered(self._T_DD, part_DB)
        ritz_D, S_DD = np.linalg.eigh(self._T_DD)
        self.ritz_D, self._S_DD = ritz_D[::-1].clip(min=0.0), S_DD[:, ::-1]

    def _bound(self, residuals_CD: np.ndarray) -> None:
        """Find the ends of the bars, from residuals that are these columns in a basis."""
        self.residuals_D = np.linalg.norm(residuals_CD, axis=0)
        if not self.is_exhausted:
            starts_DB = self._S_DD[: len(self._R_BB)].T @ self._R_BB
            ends_K = upper_ends(
                self.ritz_D, self.residuals_D, starts_DB, self._num_blocks, self._top
            )
            self._ends_K = np.minimum(self._ends_K, ends_K)


def _bordered(T_CC: np.ndarray, part_DB: np.ndarray) -> np.ndarray:
    """The symmetric matrix of D rows that begins with T and ends in these columns."""
    grown_DD = np.zeros((len(part_DB), len(part_DB)))
    grown_DD[: len(T_CC), : len(T_CC)] = T_CC
    grown_DD[:, len(T_CC) :] = part_DB
    grown_DD[len(T_CC) :] = part_DB.T
    corner_BB = grown_DD[len(T_CC) :, len(T_CC) :]
    corner_BB[:] = (corner_BB + corner_BB.T) / 2
    return grown_DD
