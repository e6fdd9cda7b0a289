"""How alike hidden states are: the shared direction of equation (8), and what is left beside it."""

import math
from dataclasses import dataclass

import numpy as np

from gradmass.types import Array, UsageError


@dataclass(frozen=True)
class Shared:
    """Vectors split along the direction they share.

    Args:
        direction_D: ``u_1``, of length 1, with a mean projection of at least 0.
        along_N: ``alpha_i = h_i . u_1``.
        rest_ND: ``h_i_perp = h_i - alpha_i u_1``.
        energy_share: Share of the sum of squares that lies along the direction, in [1/D, 1].
    """

    direction_D: np.ndarray
    along_N: np.ndarray
    rest_ND: np.ndarray
    energy_share: float


def split_shared(vectors_ND: Array) -> Shared | None:
    """Split vectors along their dominant shared direction.

    ``u_1`` is the first right singular vector of the matrix with the vectors as rows, not centred:
    the direction that holds most of their energy. Cost: ``N D^2`` operations and the
    eigenvectors of a D x D matrix, or the other way round if N is below D.

    Args:
        vectors_ND: One vector a row, finite; N and D at least 1.

    Returns:
        None where every vector is 0.

    Raises:
        UsageError: Not a matrix, an empty one, or values that are not finite.

    Edge cases: the shared direction takes the mean of all vectors with it, so what only half of
    them have in common beside it is left half on them and, reversed, half on the others.

    Source: FADE (arXiv 2607.01490), equation 8.

    >>> shared = split_shared([[3.0, 0.0], [4.0, 1.0]])
    >>> bool(abs(shared.rest_ND @ shared.direction_D).max() < 1e-12)
    True
    """
    vectors_ND = _vectors(vectors_ND)
    scale = float(np.abs(vectors_ND).max())
    if scale == 0:
        return None
    scaled_ND = vectors_ND / scale
    if len(scaled_ND) < scaled_ND.shape[1]:
        # The same direction from the smaller Gram matrix: V = A^T U / sigma.
        values, left_NN = np.linalg.eigh(scaled_ND @ scaled_ND.T)
        direction_D = scaled_ND.T @ left_NN[:, -1]
    else:
        values, right_DD = np.linalg.eigh(scaled_ND.T @ scaled_ND)
        direction_D = right_DD[:, -1]
    direction_D = direction_D / np.linalg.norm(direction_D)
    if (vectors_ND @ direction_D).sum() < 0:
        direction_D = -direction_D
    along_N = vectors_ND @ direction_D
    return Shared(
        direction_D=direction_D,
        along_N=along_N,
        rest_ND=vectors_ND - along_N[:, None] * direction_D,
        energy_share=min(1.0, float(values[-1] / np.square(scaled_ND).sum())),
    )


def mean_pairwise_correlation(vectors_ND: Array, group_ids_N: Array | None = None) -> float | None:
    """Mean cosine over pairs of vectors: ``rho = mean_{i<j} x_i . x_j / (|x_i| |x_j|)``.

    Applied to ``h_i_perp`` this is the rho_perp of equation (9). From the sum of the unit vectors,
    in ``N D`` operations: ``(|sum_i x_i|^2 - N) / (N (N - 1))``. Not centred, as the mean direction
    is what the vectors may share.

    Args:
        vectors_ND: One vector a row, finite. Vectors of length 0 have no direction and are left
            out.
        group_ids_N: Integers; if given, only pairs of different groups count. Rollouts of the same
            prompt are alike for that alone, and right ones come in larger sets from easy prompts.

    Returns:
        In [-1, 1]: 1 if all point the same way, about 0 for independent directions. None where no
        pair counts.

    Raises:
        UsageError: Not a matrix, values that are not finite, or another number of ids.

    >>> mean_pairwise_correlation([[1.0, 0.0], [2.0, 0.0], [0.0, 5.0]])  # cosines 1, 0, 0
    0.3333333333333333
    """
    vectors_ND = _vectors(vectors_ND)
    length_N = np.linalg.norm(vectors_ND, axis=1)
    is_kept_N = length_N > 0
    unit_ND = vectors_ND[is_kept_N] / length_N[is_kept_N][:, None]
    square, num_pairs = float(np.square(unit_ND.sum(0)).sum()), len(unit_ND) ** 2
    if group_ids_N is None:
        square, num_pairs = square - len(unit_ND), num_pairs - len(unit_ND)
    else:
        ids_N = np.asarray(group_ids_N)
        if ids_N.shape != (len(vectors_ND),):
            raise UsageError(
                f"{len(vectors_ND)} vectors need as many group ids, got shape {ids_N.shape}"
            )
        for id_ in np.unique(ids_N[is_kept_N]):
            own_ND = unit_ND[ids_N[is_kept_N] == id_]
            square -= float(np.square(own_ND.sum(0)).sum())
            num_pairs -= len(own_ND) ** 2
    return max(-1.0, min(1.0, square / num_pairs)) if num_pairs else None


def split_change(change_VD: Array, direction_D: Array) -> tuple[float, float]:
    """Norms of the two parts of an output head's change: (8), ``W_delta = M_1 + M_2``.

    ``M_1 = W_delta u_1 u_1^T`` is of rank one, what the change does to the shared direction of the
    hidden states; ``M_2 = W_delta - M_1`` is the rest. They are orthogonal:
    ``|M_1|^2 + |M_2|^2 = |W_delta|^2``. Cost: ``2 V D`` operations.

    The equation is exact for the sum of head gradients ``sum_i A_i v_i (x) h_i`` with the hidden
    states of that very time. For the change of a whole run, made with an optimiser and with hidden
    states that moved, it is the same split by the direction of now.

    Args:
        change_VD: ``W_rl - W_sft``, shape ``[V, D]``, finite.
        direction_D: ``u_1``, of length 1.

    Returns:
        ``(|M_1|, |M_2|)``, Frobenius norms.

    Raises:
        UsageError: Shapes that do not fit, or a direction that is not of length 1.

    Source: FADE (arXiv 2607.01490), equation 8.

    >>> split_change([[3.0, 4.0]], [0.0, 1.0])
    (4.0, 3.0)
    """
    change_VD, direction_D = _vectors(change_VD), np.asarray(direction_D, dtype=np.float64)
    if direction_D.shape != change_VD.shape[1:]:
        raise UsageError(
            f"a change of shape {change_VD.shape} has no direction of shape {direction_D.shape}"
        )
    if not math.isclose(float(np.linalg.norm(direction_D)), 1.0, rel_tol=1e-5):
        raise UsageError(
            f"a direction has length 1, got one of length {np.linalg.norm(direction_D):g}"
        )
    along_V = change_VD @ direction_D
    rest_VD = change_VD - along_V[:, None] * direction_D
    return float(np.linalg.norm(along_V)), float(np.linalg.norm(rest_VD))


def _vectors(vectors_ND: Array) -> np.ndarray:
    vectors: np.ndarray = np.asarray(vectors_ND, dtype=np.float64)
    if vectors.ndim != 2 or vectors.size == 0:
        raise UsageError(f"vectors are the rows of a matrix with entries, got {vectors.shape}")
    if not np.isfinite(vectors).all():
        row = int(np.argwhere(~np.isfinite(vectors))[0, 0])
        raise UsageError(f"vectors need finite entries; row {row} has NaN or infinite ones")
    return vectors
