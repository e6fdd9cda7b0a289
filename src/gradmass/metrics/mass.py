"""Gradient mass of a batch: how hard a weight pushes successes up and failures down.

As it was weighed, as it reaches the gradient after clipping and aggregation, and by difficulty.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradmass.types import Array, UsageError


def gradient_mass(weights_PG: Array, successes_PG: Array) -> tuple[float, float]:
    """Positive and negative gradient mass of a batch as it was weighed.

    ``m_S = sum of the weights of successes / B`` and ``m_F = -sum of the weights of failures / B``
    with B the number of *all* rollouts of the batch, so that the gradient estimate is
    ``m_S grad_S - m_F grad_F``. Unscorable rollouts have weight 0 and count in B: they dilute both
    masses, as they dilute the gradient.

    Args:
        weights_PG: Policy weights, finite, any shape (``[P, G]`` or flat ``[B]``), B >= 1.
        successes_PG: Which rollouts are right, of the same shape: bool, or 0 and 1. Anything where
            the weight is 0.

    Returns:
        ``(m_S, m_F)``. Both are at least 0 for a weight that is positive on successes and negative
        on failures; m_F is below 0 where failures are reinforced.

    Raises:
        UsageError: Shapes differ, no rollout, a weight that is not finite, a success that is
            neither 0 nor 1.

    Source: FADE (arXiv 2607.01490), equation 2.

    >>> gradient_mass([[0.75, -0.25, -0.25, -0.25]], [[True, False, False, False]])
    (0.1875, 0.1875)
    """
    weights_PG, is_success_PG = _checked(weights_PG, successes_PG)
    total_failure, total_success = np.bincount(
        is_success_PG.reshape(-1), weights=weights_PG.reshape(-1), minlength=2
    ).tolist()
    # 0.0 minus, so that no failures give 0 and not -0.
    return total_success / weights_PG.size, (0.0 - total_failure) / weights_PG.size


def sign_ratios(
    m_success: float, m_failure: float, solve_rate: float
) -> tuple[float | None, float | None]:
    """Both ratios of positive to negative mass.

    ``m_S / m_F``, and ``m_S p / (m_F (1 - p))`` as in Figure 4 of the paper.

    Args:
        m_success: Positive mass.
        m_failure: Negative mass.
        solve_rate: p, share of right rollouts, in [0, 1].

    Returns:
        The ratios; None where one divides by 0.

    >>> sign_ratios(0.25, 0.5, 0.75)
    (0.5, 1.5)
    """
    if m_failure == 0:
        return None, None
    ratio = m_success / m_failure
    return ratio, ratio * solve_rate / (1 - solve_rate) if solve_rate < 1 else None


_FACTORS = {"constant": 0, "token-mean": 1, "seq-mean-token-mean": -1, "seq-mean-token-sum": 0}
"""The power of its length that a rollout's weight is multiplied by, by aggregation."""


@dataclass(frozen=True)
class Reach:
    """What of a batch's masses reaches the gradient.

    Args:
        m_success: Positive mass that reaches the gradient.
        m_failure: Negative mass that does.
        clipped_success: Share of the weight on right rollouts that clipping removed, in [0, 1];
            None where they have none.
        clipped_failure: Likewise for wrong rollouts.
    """

    m_success: float
    m_failure: float
    clipped_success: float | None
    clipped_failure: float | None


def reaching_mass(
    weights_B: Array,
    successes_B: Array,
    kept_B: Array,
    clipped_B: Array,
    lengths_B: Array,
    aggregation: Literal[
        "constant", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum"
    ] = "constant",
) -> Reach:
    """The masses as they reach the gradient, after clipping and aggregation.

    The clipped loss has the gradient ``sum_it c_it grad log pi_it`` with
    ``c_it = w_i rho_it [not clipped] / denominator``. Per rollout of the batch:
    ``m_S = (1 / B) sum_{i right} w_i a_i k_i``, ``m_F`` minus the same over wrong ones, with
    ``k_i = mean_t rho_it [not clipped]``, rho with the factor of truncated importance sampling,
    and a_i by aggregation, L_i the length: 1 for ``constant`` and ``seq-mean-token-sum``;
    ``L_i / mean_j L_j`` for ``token-mean``, where a rollout's share of the mean is that of its
    tokens; ``(1 / L_i) / mean_j (1 / L_j)`` for ``seq-mean-token-mean``, where the score of a long
    rollout counts less. On policy (rho = 1) with the first two they are the masses as weighed. A KL
    term is not in them: it pushes rollouts of weight 0 too, and its gradient is reported apart.

    Args:
        weights_B: Policy weights, finite.
        successes_B: Which rollouts are right: bool, or 0 and 1. Anything where the weight is 0.
        kept_B: ``k_i``, at least 0. Anything finite where the weight is 0.
        clipped_B: Share of the rollout's tokens whose gradient was clipped away, in [0, 1].
        lengths_B: Tokens of each rollout, above 0.
        aggregation: How the loss divides.

    Raises:
        UsageError: Shapes differ, no rollout, weights that are not finite, lengths of 0.

    >>> reach = reaching_mass([0.5, -0.5], [1, 0], [1.0, 0.5], [0.0, 0.5], [4, 4])
    >>> reach.m_success, reach.m_failure, reach.clipped_failure
    (0.25, 0.125, 0.5)
    """
    weights_B, is_success_B = _checked(weights_B, successes_B)
    kept_B, clipped_B, lengths_B = (
        np.asarray(values, dtype=np.float64) for values in (kept_B, clipped_B, lengths_B)
    )
    if not weights_B.shape == kept_B.shape == clipped_B.shape == lengths_B.shape:
        raise UsageError(
            f"{weights_B.shape} weights need as many kept and clipped shares and lengths, got "
            f"shapes {kept_B.shape}, {clipped_B.shape} and {lengths_B.shape}"
        )
    if not (lengths_B > 0).all():
        raise UsageError(f"a rollout has tokens, got a length of {lengths_B.min():g}")
    if aggregation not in _FACTORS:
        raise UsageError(f"aggregation must be one of {', '.join(_FACTORS)}, got {aggregation!r}")
    factor_B = lengths_B ** _FACTORS[aggregation]
    weights_B = weights_B * (factor_B / factor_B.mean())
    m_success, m_failure = gradient_mass(weights_B * kept_B, is_success_B)
    shares = []
    for is_side_B in (is_success_B, ~is_success_B):
        size_B = np.where(is_side_B, np.abs(weights_B), 0.0)
        shares.append(float(size_B @ clipped_B / size_B.sum()) if size_B.any() else None)
    return Reach(m_success, m_failure, shares[0], shares[1])


def mass_by_solve_rate(
    weights_PG: Array, successes_PG: Array, mask_PG: Array, num_bins: int = 10
) -> tuple[list[float], list[float]]:
    """Gradient mass of a batch by the solve rate of the group it comes from.

    Bin i holds groups with a share of right rollouts in ``[i / n, (i + 1) / n)``, the last one 1
    too. Each list sums to the batch's mass. The solve rate is that of the very rollouts weighed:
    at small groups it scatters widely around the problem's own.

    Args:
        weights_PG: Policy weights, shape ``[P, G]``, finite.
        successes_PG: Which rollouts are right. Anything where the weight is 0 or not scored.
        mask_PG: Which rollouts are scored.
        num_bins: Number of bins, at least 1.

    Returns:
        Positive and negative mass in each bin; what is in a group without a scored rollout is 0.

    Raises:
        UsageError: As in ``gradient_mass`` and ``group_shares``.

    >>> positive, negative = mass_by_solve_rate([[0.5, -0.5]], [[1, 0]], [[1, 1]], num_bins=2)
    >>> positive, negative
    ([0.0, 0.25], [0.0, 0.25])
    """
    weights_PG, is_success_PG = _checked(weights_PG, successes_PG)
    is_right_PG, is_scored_PG = _scored(successes_PG, mask_PG)
    num_scored_P = is_scored_PG.sum(1)
    # In whole numbers: 0.3 * 10 is below 3.
    bin_P = np.minimum(num_bins - 1, is_right_PG.sum(1) * num_bins // np.maximum(1, num_scored_P))
    sides = []
    for signed_PG in (
        np.where(is_success_PG, weights_PG, 0.0),
        np.where(is_success_PG, 0.0, 0.0 - weights_PG),
    ):
        mass_N = np.bincount(bin_P, weights=signed_PG.sum(1), minlength=num_bins)
        sides.append((mass_N / weights_PG.size).tolist())
    return sides[0], sides[1]


def solve_rate_counts(successes_PG: Array, mask_PG: Array) -> list[int]:
    """Histogram of the solve rates of a batch: groups with 0, 1, .., G right rollouts of G.

    A group of which only n are scored counts at the nearest of ``k / G`` to its own share (halves
    upwards); one without a scored rollout not at all.

    Args:
        successes_PG: Which rollouts are right. Anything where not scored.
        mask_PG: Which rollouts are scored.

    Returns:
        G + 1 counts.

    Raises:
        UsageError: As in ``group_shares``.

    >>> solve_rate_counts([[1, 0], [1, 1], [0, 0], [0, 1]], [[1, 1], [1, 1], [1, 1], [1, 1]])
    [1, 2, 1]
    """
    is_right_PG, is_scored_PG = _scored(successes_PG, mask_PG)
    group_size, num_scored_P = is_right_PG.shape[1], is_scored_PG.sum(1)
    num_P = num_scored_P[num_scored_P > 0]
    twice_P = 2 * is_right_PG.sum(1)[num_scored_P > 0] * group_size
    counts: list[int] = np.bincount(
        (twice_P + num_P) // (2 * num_P), minlength=group_size + 1
    ).tolist()
    return counts


def group_shares(successes_PG: Array, mask_PG: Array) -> tuple[float, float, float]:
    """Shares of groups whose scored rollouts are all right, all wrong, or mixed.

    Only mixed groups carry a gradient under a weight that is 0 on ties.

    Args:
        successes_PG: Which rollouts are right, shape ``[P, G]``: bool, or 0 and 1. Anything where
            not scored.
        mask_PG: Which rollouts are scored, shape ``[P, G]``, bool.

    Returns:
        ``(all_right, all_wrong, mixed)`` of the groups with at least one scored rollout; they sum
        to 1. All three are 0.0 where no rollout is scored.

    Raises:
        UsageError: Not two matrices of one shape, or a scored success that is neither 0 nor 1.

    >>> right = [[True, True], [False, False], [True, False], [True, False]]
    >>> scored = [[True, True], [True, True], [True, True], [True, False]]
    >>> group_shares(right, scored)
    (0.5, 0.25, 0.25)
    """
    is_right_PG, mask_PG = _scored(successes_PG, mask_PG)
    has_right_P = is_right_PG.any(axis=1)
    has_wrong_P = (mask_PG & ~is_right_PG).any(axis=1)
    _, num_right, num_wrong, num_mixed = np.bincount(
        has_right_P + 2 * has_wrong_P, minlength=4
    ).tolist()
    num_groups = num_right + num_wrong + num_mixed
    if num_groups == 0:
        return 0.0, 0.0, 0.0
    return num_right / num_groups, num_wrong / num_groups, num_mixed / num_groups


def _checked(weights: Array, successes: Array) -> tuple[np.ndarray, np.ndarray]:
    """Weights in float64, and which rollouts are right."""
    weights, successes = np.asarray(weights, dtype=np.float64), np.asarray(successes)
    if weights.shape != successes.shape or weights.size == 0:
        raise UsageError(
            "gradient mass needs a weight and a success for each of at least one rollout, got "
            f"shapes {weights.shape} and {successes.shape}"
        )
    if not np.isfinite(weights).all():
        raise UsageError(
            f"gradient mass needs finite weights, got {weights[~np.isfinite(weights)][0]}"
        )
    if successes.dtype == bool:
        return weights, successes
    return weights, _as_bool(np.where(weights != 0, successes, 0))


def _scored(successes_PG: Array, mask_PG: Array) -> tuple[np.ndarray, np.ndarray]:
    """Which rollouts are scored and right, and which are scored."""
    successes_PG, mask_PG = np.asarray(successes_PG), np.asarray(mask_PG, dtype=bool)
    if successes_PG.ndim != 2 or successes_PG.shape != mask_PG.shape:
        raise UsageError(
            "group shares need successes and a mask of one shape [prompts, rollouts], got "
            f"{successes_PG.shape} and {mask_PG.shape}"
        )
    if successes_PG.dtype == bool:
        return successes_PG & mask_PG, mask_PG
    return _as_bool(np.where(mask_PG, successes_PG, 0)), mask_PG


def _as_bool(successes: np.ndarray) -> np.ndarray:
    is_other = (successes != 0) & (successes != 1)
    if is_other.any():
        raise UsageError(
            f"a success is 0 or 1, got {successes[is_other][0]}; a shaped reward is not a verdict "
            "(compare it with the task's own threshold first)"
        )
    is_success: np.ndarray = successes.astype(bool)
    return is_success
