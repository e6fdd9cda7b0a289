"""How much of an update lies in one direction: r_1, and what pure noise would give.

r_1 means something only beside the r_1 of noise of the same shape, which is large for small
matrices.
"""

import math

import numpy as np

from gradmass.types import Array, UsageError

BLOCK_ROWS = 8192
"""Rows of a large matrix that are held in float64 at once."""

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
    if matrix.ndim != 2 or matrix.size == 0:
        raise UsageError(f"r_1 is defined for a matrix with entries, got shape {matrix.shape}")
    scale = float(np.max(np.abs(matrix)))
    if not math.isfinite(scale):
        row, column = np.argwhere(~np.isfinite(matrix))[0].tolist()
        raise UsageError(
            f"r_1 needs finite entries, got {matrix[row, column]} at row {row}, column {column}"
        )
    if scale == 0:
        return None
    return _share(_gram(matrix, scale))


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
