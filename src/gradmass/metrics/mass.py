"""Gradient mass of a batch: how hard a weight pushes successes up and failures down."""

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
    weights_PG = np.asarray(weights_PG, dtype=np.float64)
    successes_PG = np.asarray(successes_PG)
    if weights_PG.shape != successes_PG.shape or weights_PG.size == 0:
        raise UsageError(
            "gradient mass needs a weight and a success for each of at least one rollout, got "
            f"shapes {weights_PG.shape} and {successes_PG.shape}"
        )
    if not np.isfinite(weights_PG).all():
        raise UsageError(
            f"gradient mass needs finite weights, got {weights_PG[~np.isfinite(weights_PG)][0]}"
        )
    is_success_PG = _as_bool(np.where(weights_PG != 0, successes_PG, 0))
    total_success = float(np.sum(weights_PG, where=is_success_PG))
    total_failure = float(np.sum(weights_PG, where=~is_success_PG))
    # 0.0 minus, so that no failures give 0 and not -0.
    return total_success / weights_PG.size, (0.0 - total_failure) / weights_PG.size


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
    successes_PG, mask_PG = np.asarray(successes_PG), np.asarray(mask_PG, dtype=bool)
    if successes_PG.ndim != 2 or successes_PG.shape != mask_PG.shape:
        raise UsageError(
            "group shares need successes and a mask of one shape [prompts, rollouts], got "
            f"{successes_PG.shape} and {mask_PG.shape}"
        )
    is_right_PG = _as_bool(np.where(mask_PG, successes_PG, 0))
    has_right_P = is_right_PG.any(axis=1)
    has_wrong_P = (mask_PG & ~is_right_PG).any(axis=1)
    num_groups = int((has_right_P | has_wrong_P).sum())
    if num_groups == 0:
        return 0.0, 0.0, 0.0
    num_right = int((has_right_P & ~has_wrong_P).sum())
    num_wrong = int((has_wrong_P & ~has_right_P).sum())
    num_mixed = num_groups - num_right - num_wrong
    return num_right / num_groups, num_wrong / num_groups, num_mixed / num_groups


def _as_bool(successes: np.ndarray) -> np.ndarray:
    is_other = (successes != 0) & (successes != 1)
    if is_other.any():
        raise UsageError(
            f"a success is 0 or 1, got {successes[is_other][0]}; a shaped reward is not a verdict"
        )
    is_success: np.ndarray = successes.astype(bool)
    return is_success
