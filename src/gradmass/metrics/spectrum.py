"""What a change between two checkpoints looks like, beside noise, and when nobody can tell."""

import functools

import numpy as np

from gradmass.metrics.krylov import FLOOR, Spectrum
from gradmass.metrics.rank import top1_share_noise, top1_share_noise_edge
from gradmass.types import Array

SAMPLED_ENTRIES = 65_536
"""Largest shape whose noise value is sampled; for larger ones the edge is within 3%."""
NUM_DRAWS = 40


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
        return top1_share_noise(shape, num_draws=NUM_DRAWS)
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
    for _ in range(NUM_DRAWS):
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
