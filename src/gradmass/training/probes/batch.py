"""What a batch says by itself: masses, ratios, difficulty, entropy. No model needed."""

from typing import Any

import numpy as np

from gradmass.config import LossConfig
from gradmass.metrics.entropy import entropy_terms, mean_entropy_nats
from gradmass.metrics.mass import (
    gradient_mass,
    group_shares,
    mass_by_solve_rate,
    reaching_mass,
    sign_ratios,
    solve_rate_counts,
)
from gradmass.metrics.signal import effective_size
from gradmass.training.aggregation import rollouts_in_loss
from gradmass.training.loss import Loss
from gradmass.training.rollout import Rollouts

Row = dict[str, Any]


def batch_row(
    rollouts: Rollouts, weights_PG: np.ndarray, successes_PG: np.ndarray, mask_PG: np.ndarray
) -> Row:
    """Sign, difficulty and entropy of a batch as it was weighed: one number a key.

    Cost: some hundred microseconds a batch; every batch.
    """
    m_success, m_failure = gradient_mass(weights_PG, successes_PG)
    num_scored = max(1, int(mask_PG.sum()))
    solve_rate = float((successes_PG & mask_PG).sum()) / num_scored
    ratio, ratio_fig4 = sign_ratios(m_success, m_failure, solve_rate)
    all_right, all_wrong, mixed = group_shares(successes_PG, mask_PG)
    mask_BT, entropy_BT, logprobs_BT = (
        x.cpu().numpy()
        for x in (rollouts.answer_mask_BT, rollouts.entropy_BT, rollouts.logprobs_BT)
    )
    weights_BT = np.broadcast_to(weights_PG.reshape(-1, 1), mask_BT.shape)
    terms = entropy_terms(weights_BT[mask_BT], logprobs_BT[mask_BT], entropy_BT[mask_BT])
    return {
        "groups/all_right": all_right,
        "groups/all_wrong": all_wrong,
        "groups/mixed": mixed,
        "groups/effective": effective_size(np.abs(weights_PG).mean(1)),
        "rollout/effective": effective_size(weights_PG.reshape(-1)),
        "entropy/mean_nats": rollouts.mean_entropy_nats,
        "entropy/sequence_mean_nats": mean_entropy_nats(entropy_BT, mask_BT, "sequence"),
        "entropy/drift": None if terms is None else terms.drift,
        "entropy/covariance": None if terms is None else terms.covariance,
        "entropy/covariance_within": None if terms is None else terms.covariance_within,
        "mass/positive": m_success,
        "mass/negative": m_failure,
        "mass/sign_ratio": ratio,
        "mass/sign_ratio_fig4": ratio_fig4,
    }


def difficulty(weights_PG: np.ndarray, successes_PG: np.ndarray, mask_PG: np.ndarray) -> Row:
    """Histogram of the solve rates of a batch, and its masses by decile of the solve rate."""
    positive, negative = mass_by_solve_rate(weights_PG, successes_PG, mask_PG)
    return {
        "kind": "difficulty",
        "solve_rate_counts": solve_rate_counts(successes_PG, mask_PG),
        "positive_mass_by_decile": positive,
        "negative_mass_by_decile": negative,
    }


def reach_row(
    config: LossConfig,
    rollouts: Rollouts,
    weights_PG: np.ndarray,
    successes_PG: np.ndarray,
    loss: Loss | None,
    rows: np.ndarray,
) -> Row:
    """The masses as they reach the gradient of an update, and what clipping removed, by verdict.

    They are over the rollouts in the loss: truncated ones that are masked count in neither.

    Args:
        config: How the loss aggregates.
        rollouts: The batch.
        weights_PG: Its policy weights.
        successes_PG: Which rollouts are right.
        loss: The loss of the update; None if no rollout was trained on.
        rows: The rollouts that were, in the order of the loss.
    """
    kept_B, clipped_B = np.zeros(weights_PG.size), np.zeros(weights_PG.size)
    if loss is not None:
        kept_B[rows] = loss.kept_N.cpu().numpy()
        clipped_B[rows] = loss.clipped_N.cpu().numpy()
    is_in_B = rollouts_in_loss(config, rollouts).cpu().numpy()
    if not is_in_B.any():
        is_in_B = ~is_in_B  # all have weight 0
    reach = reaching_mass(
        weights_PG.reshape(-1)[is_in_B],
        successes_PG.reshape(-1)[is_in_B],
        kept_B[is_in_B],
        clipped_B[is_in_B],
        rollouts.answer_mask_BT.sum(1).cpu().numpy()[is_in_B],
        config.aggregation,
    )
    return {
        "mass/reached_positive": reach.m_success,
        "mass/reached_negative": reach.m_failure,
        "mass/clipped_positive": reach.clipped_success,
        "mass/clipped_negative": reach.clipped_failure,
    }
