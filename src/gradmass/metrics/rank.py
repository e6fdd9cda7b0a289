"""How much of an update lies in one direction: r_1, and what pure noise would give.

r_1 means something only beside the r_1 of noise of the same shape, which is large for small
matrices, and only where the entries moved by more than the rounding of what they are stored in.
"""

import math
from dataclasses import dataclass

import numpy as np

from gradmass.types import Array, UsageError

BLOCK_ROWS = 8192
"""Rows of a large matrix that are held in float64 at once."""

MAX_ROUNDING_SHARE = 0.1
"""Share of a stored change's energy that may be rounding before its spectrum says nothing."""
MAX_NOISE_ENTRIES = 4_000_000
"""Largest matrix that ``top1_share_noise`` samples."""


def top1_share(matrix: Array) -> float | None:
    """Share of a change's energy in its first direction: ``r_1 = sigma_1^2 / ||W||_F^2``.

    ``sigma_1^2`` is the largest eigenvalue of the Gram matrix of the smaller side, accumulated in
    float64 over blocks of rows: exact like an SVD for the first direction, at a fraction of its
    cost.

    Args:
        matrix: The change W of a weight matrix, shape ``[m, n]``, real, finite, not empty.

    Returns:
        In [1/min(m, n), 1]; 1 for rank one. None for a change that is 0 everywhere, which has no
        direction.

    Raises:
        UsageError: Not a matrix, an empty one, or entries that are NaN or infinite.

    Source: FADE (arXiv 2607.01490), equation 9.

    >>> round(top1_share(np.diag([3.0, 4.0])), 12)  # 16 / (9 + 16)
    0.64
    """
    matrix = np.asarray(matrix)
    scale = _scale(matrix)
    return None if scale == 0 else _share(_gram(matrix, scale))


@dataclass(frozen=True)
class Spectrum:
    """The singular values of a change, in few numbers.

    Args:
        norm: Frobenius norm.
        top1_share: ``r_1 = sigma_1^2 / |W|^2``; None where nothing changed, as all below.
        stable_rank: ``|W|^2 / sigma_1^2 = 1 / r_1``, from 1 to the smaller side: how many equal
            directions would hold this energy beside the largest.
        effective_rank: ``exp`` of the entropy of ``sigma_i / sum sigma``, from 1 to the smaller
            side; it counts small singular values more than the stable rank does.
        singular_values: The largest, in descending order.
    """

    norm: float
    top1_share: float | None
    stable_rank: float | None
    effective_rank: float | None
    singular_values: tuple[float, ...]


def spectrum_of(matrix: Array, top: int = 8) -> Spectrum:
    """All singular values of a change, by the Gram matrix of its smaller side in float64.

    Cost: ``m n min(m, n)`` multiplications and the eigenvalues of the Gram matrix: milliseconds up
    to some 1000 x 250, minutes for the head of a large model. Singular values below ``1e-8`` of the
    largest are rounding noise; energies are exact.

    Args:
        matrix: The change W, shape ``[m, n]``, real, finite, not empty.
        top: How many singular values to return, at least 1.

    Raises:
        UsageError: As in ``top1_share``; no values asked for.

    Source: effective rank from Roy and Vetterli, EUSIPCO 2007; r_1 as in ``top1_share``.

    >>> found = spectrum_of(np.diag([3.0, 4.0]))
    >>> found.singular_values, found.norm, round(found.stable_rank, 12)  # 25 / 16
    ((4.0, 3.0), 5.0, 1.5625)
    """
    if top < 1:
        raise UsageError(f"top must be at least 1, got {top}")
    matrix = np.asarray(matrix)
    scale = _scale(matrix)
    num_values = min(top, *matrix.shape)
    if scale == 0:
        return Spectrum(0.0, None, None, None, (0.0,) * num_values)
    squares = np.linalg.eigvalsh(_gram(matrix, scale))[::-1].clip(min=0.0)
    energy = float(squares.sum())
    values = np.sqrt(squares)
    shares = values[values > 0] / values.sum()
    return Spectrum(
        norm=scale * math.sqrt(energy),
        top1_share=min(1.0, float(squares[0]) / energy),
        stable_rank=max(1.0, energy / float(squares[0])),
        effective_rank=math.exp(max(0.0, -float(shares @ np.log(shares)))),
        singular_values=tuple((scale * values[:num_values]).tolist()),
    )


@dataclass(frozen=True)
class Rounding:
    """What storing a change in few bits leaves of it.

    Args:
        changed_fraction: Share of the entries whose stored value changed.
        noise_energy: Estimated energy that rounding adds to the difference of the stored values.
        noise_share: That over the energy of the stored difference, at most 1; None where nothing
            changed.
        hides_rank: Whether rounding hides the rank (``is_hidden``), or nothing changed.
    """

    changed_fraction: float
    noise_energy: float
    noise_share: float | None
    hides_rank: bool


def rounding_of(before: Array, after: Array, significand_bits: int = 8) -> Rounding:
    """How far rounding hides the difference of two matrices stored with few bits.

    An entry of size x is stored to a multiple of ``ulp = 2^(floor(log2 |x|) - bits + 1)``. An entry
    that moved by less than half of that does not change at all; one that did carries an error
    uniform within half an ulp, of energy ``ulp^2 / 12``. A pure rank-one change of which 1% of the
    entries survived looks like noise of full rank: r_1 of the stored difference says nothing then.

    Args:
        before: Stored values, as float32 or wider, finite.
        after: Stored values of the same shape.
        significand_bits: Bits of the significand with the leading one: 8 for bfloat16, 11 for
            float16, 24 for float32.

    Raises:
        UsageError: Shapes differ, nothing in them, or bits below 2.

    >>> rounding_of([[1.0, 1.0]], [[1.0, 1.0078125]]).changed_fraction
    0.5
    """
    before = np.asarray(before, dtype=np.float64)
    after = np.asarray(after, dtype=np.float64)
    if before.shape != after.shape or before.size == 0:
        raise UsageError(
            "rounding compares two arrays of one shape with entries, got "
            f"{before.shape} and {after.shape}"
        )
    if significand_bits < 2:
        raise UsageError(f"significand_bits must be at least 2, got {significand_bits}")
    _, exponent = np.frexp(after)
    ulp = np.where(after != 0, np.ldexp(1.0, exponent - significand_bits), 0.0)
    noise = float(np.square(ulp).sum()) / 12
    energy = float(np.square(after - before).sum())
    changed = float((after != before).mean())
    share = min(1.0, noise / energy) if energy > 0 else None
    return Rounding(changed, noise, share, share is None or is_hidden(energy, noise))


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


def top1_share_noise(shape: tuple[int, int], *, num_draws: int = 200, seed: int = 0) -> float:
    """Mean r_1 of matrices of independent Gaussian entries, by sampling: r_1 of pure noise.

    Args:
        shape: ``(m, n)``, at most ``MAX_NOISE_ENTRIES`` entries; the time is that of ``num_draws``
            products of m x n matrices. For larger ones the edge is as good.
        num_draws: Matrices drawn, at least 1. A single r_1 scatters by some 6% at 20 x 64,
            and ever less for larger shapes.
        seed: Of the draws.

    Raises:
        UsageError: A side below 1, too large a shape, no draws.

    >>> top1_share_noise((1, 7))  # a single row is of rank one
    1.0
    >>> round(top1_share_noise((20, 64)), 2)
    0.11
    """
    num_rows, num_columns = _sides(shape)
    if num_draws < 1:
        raise UsageError(f"num_draws must be at least 1, got {num_draws}")
    if num_rows * num_columns > MAX_NOISE_ENTRIES:
        raise UsageError(
            f"shape {num_rows} x {num_columns} is too large to sample (more than "
            f"{MAX_NOISE_ENTRIES} entries); use top1_share_noise_edge"
        )
    generator = np.random.default_rng(seed)
    draws = (generator.standard_normal((num_rows, num_columns)) for _ in range(num_draws))
    return sum(_share(_gram(draw, 1.0)) for draw in draws) / num_draws


def top1_share_noise_edge(shape: tuple[int, int]) -> float:
    """r_1 of noise in the limit of large matrices: ``(sqrt(m) + sqrt(n))^2 / (m n)``, at most 1.

    The Marchenko-Pastur edge ``(sqrt(m) + sqrt(n))^2`` of ``sigma_1^2`` over the mean ``m n`` of
    ``||W||_F^2``. A little above the sampled mean: by 10% at 20 x 64, by 1% at 1000 x 2000.

    Args:
        shape: ``(m, n)``, the sides of the matrix.

    Raises:
        UsageError: A side below 1.

    >>> round(top1_share_noise_edge((16, 64)), 6)  # (4 + 8)^2 / 1024
    0.140625
    """
    num_rows, num_columns = _sides(shape)
    edge = (math.sqrt(num_rows) + math.sqrt(num_columns)) ** 2
    return min(1.0, edge / (num_rows * num_columns))


def _scale(matrix: np.ndarray) -> float:
    """The largest absolute entry of a matrix that has an r_1, or 0."""
    if matrix.ndim != 2 or matrix.size == 0:
        raise UsageError(f"r_1 is defined for a matrix with entries, got shape {matrix.shape}")
    scale = float(np.max(np.abs(matrix)))
    if not math.isfinite(scale):
        row, column = np.argwhere(~np.isfinite(matrix))[0].tolist()
        raise UsageError(
            f"r_1 needs finite entries, got {matrix[row, column]} at row {row}, column {column}"
        )
    return scale


def _gram(matrix: np.ndarray, scale: float) -> np.ndarray:
    """Gram matrix of the smaller side of ``matrix / scale``, in float64."""
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    gram = np.zeros((tall.shape[1], tall.shape[1]))
    for start in range(0, len(tall), BLOCK_ROWS):
        block = tall[start : start + BLOCK_ROWS].astype(np.float64) / scale
        gram += block.T @ block
    return gram


def _share(gram: np.ndarray) -> float:
    return min(1.0, float(np.linalg.eigvalsh(gram)[-1] / np.trace(gram)))


def _sides(shape: tuple[int, int]) -> tuple[int, int]:
    if len(shape) != 2 or min(shape) < 1:
        raise UsageError(f"a matrix has two sides of at least 1, got shape {tuple(shape)}")
    return shape
