"""What weights do on the rollouts of a log: masses by sign, difficulty and time; effective size."""

from typing import Any

import numpy as np

from gradmass.logs.layout import Layout
from gradmass.logs.rollouts import Rollouts
from gradmass.metrics.mass import gradient_mass, mass_by_solve_rate
from gradmass.types import UsageError
from gradmass.weights import Weight

NUM_TENTHS, MOST_BINS = 10, 16
"""Bins of solve rates; as many as rollouts where all groups are of one size of up to the second."""
CHUNK_GROUPS = 1 << 14
MATCH = 0.01
"""Largest relative distance at which logged weights are called proportional to computed ones."""


def weigh(
    log: Rollouts, layout: Layout, weight: Weight
) -> tuple[np.ndarray, dict[str, float | str | None]]:
    """Weights of all rollouts as the weight would have given them, step by step where it matters.

    A rollout's reward is its verdict, 1 or 0, where the log has verdicts, else the logged reward.
    Signals are those a log can have: successes, lengths, entropy, the step. What has no verdict is
    masked.

    Returns:
        Weights ``[B]`` in the order of the log, and what the weight reports after the last step.

    Raises:
        UsageError: The weight needs a signal that the log does not have, or other rewards.
    """
    weights_PG = np.zeros(layout.row_PG.shape)
    is_alone = weight.scope == "group" and not weight.init()
    pieces = layout.chunks(CHUNK_GROUPS) if is_alone else layout.steps()
    state = weight.init()
    num_steps = int(log.step_B.max()) + 1
    for piece_P in pieces:
        signals = _signals(log, layout, piece_P)
        if not is_alone:
            signals |= {"step": int(layout.step_P[piece_P[0]]), "num_steps": num_steps}
        weights_PG[piece_P], state = weight.update(
            layout.reward_PG[piece_P], state, mask=layout.is_scored_PG[piece_P], **signals
        )
    return layout.flat(weights_PG), weight.report(state)


def _signals(log: Rollouts, layout: Layout, piece_P: np.ndarray) -> dict[str, Any]:
    signals: dict[str, Any] = {}
    row_PG, is_filled_PG = layout.row_PG[piece_P], layout.is_filled_PG[piece_P]
    if log.verdicts is not None:
        is_right_PG = layout.is_right_PG[piece_P]
        signals["successes_PG"] = is_right_PG
        signals["num_success"] = int(is_right_PG.sum())
        signals["num_scored"] = int(layout.is_scored_PG[piece_P].sum())
    if log.length_B is not None:
        lengths_PG = log.length_B[row_PG]
        signals["lengths_PG"] = np.where(is_filled_PG & (lengths_PG > 0), lengths_PG, 1.0)
    if log.entropy_B is not None:
        entropy_N = log.entropy_B[row_PG[is_filled_PG]]
        if np.isfinite(entropy_N).any():
            signals["entropy_nats"] = float(np.nanmean(entropy_N))
            signals["entropy_kind"] = "logged"
    return signals


def describe(log: Rollouts, layout: Layout, label: str, weight_B: np.ndarray) -> dict[str, Any]:
    """Everything said of one weight.

    Returns:
        ``label``; shares ``effective_rollouts`` and ``effective_groups`` of Kish's effective size
        in the mean step; ``mean_absolute``; with verdicts also ``m_S``, ``m_F``, ``sign_ratio``,
        both masses by solve rate and by window of time; with lengths ``token_mean``.
    """
    num = len(log)
    is_finite_B = np.isfinite(weight_B)
    weight_B = np.where(is_finite_B, weight_B, 0.0)
    weight_PG = layout.matrix(weight_B)
    entry: dict[str, Any] = {
        "label": label,
        "mean_absolute": float(np.abs(weight_B).mean()),
        "effective_rollouts": _effective_share(weight_B, layout.step_index_B),
        "effective_groups": _effective_share(
            np.abs(weight_PG).sum(1) / layout.size_P, layout.step_index_P
        ),
    }
    if log.verdicts is None:
        return entry
    is_right_B = log.verdicts.success_B == 1
    # Rollouts without verdict belong to neither side.
    known_B = np.where(log.verdicts.is_known_B, weight_B, 0.0)
    m_S, m_F = gradient_mass(known_B, is_right_B)
    size = int(layout.size_P.max())
    is_exact = bool((layout.size_P == size).all()) and size <= MOST_BINS
    positive, negative = mass_by_solve_rate(
        np.where(layout.is_scored_PG, weight_PG, 0.0),
        layout.is_right_PG,
        layout.is_scored_PG,
        size if is_exact else NUM_TENTHS,
    )
    padding = weight_PG.size / num
    entry |= {
        "m_S": m_S,
        "m_F": m_F,
        "sign_ratio": _ratio(m_S, m_F, entry["mean_absolute"]),
        "positive_by_solve_rate": [mass * padding for mass in positive],
        "negative_by_solve_rate": [mass * padding for mass in negative],
        "by_window": [
            dict(zip(("m_S", "m_F"), gradient_mass(known_B[at_B], is_right_B[at_B]), strict=True))
            for at_B in layout.window_rows
        ],
    }
    if log.size_B is not None:
        size_B, unit = log.size_B
        # What has no length, or none but empty answers beside it, weighs nothing.
        mean_B = layout.mean_of_step(size_B)
        factor_B = np.nan_to_num(size_B) / np.where(mean_B > 0, mean_B, 1.0)
        token_S, token_F = gradient_mass(known_B * factor_B, is_right_B)
        entry["token_mean"] = {
            "unit": unit,
            "m_S": token_S,
            "m_F": token_F,
            "sign_ratio": _ratio(token_S, token_F, entry["mean_absolute"]),
        }
    return entry


def _ratio(m_S: float, m_F: float, scale: float) -> float | None:
    """None where the negative mass is nothing but rounding."""
    return m_S / m_F if abs(m_F) > 1e-6 * scale else None


def _effective_share(weight_N: np.ndarray, step_N: np.ndarray) -> float:
    """Kish's effective size of each step over its number, in the mean step."""
    size_N = np.abs(weight_N)
    size_N = size_N / (size_N.max(initial=0.0) or 1.0)
    sum_S, square_S = np.bincount(step_N, size_N), np.bincount(step_N, size_N**2)
    num_S = np.bincount(step_N)
    share_S = np.where(square_S > 0, sum_S**2 / np.where(square_S > 0, square_S, 1.0), 0.0) / num_S
    return float(share_S.mean())


def likeness(logged_B: np.ndarray, candidates: dict[str, np.ndarray]) -> tuple[str, float] | None:
    """Which computed weight the logged ones are a multiple of, and the factor.

    Args:
        logged_B: As logged.
        candidates: By label.

    Returns:
        The closest within a hundredth; None if none is, or all is 0.
    """
    is_in_B = np.isfinite(logged_B)
    best: tuple[float, str, float] | None = None
    for label, weight_B in candidates.items():
        own_N, other_N = logged_B[is_in_B], weight_B[is_in_B]
        energy = float(other_N @ other_N)
        if not energy or not own_N.any():
            continue
        factor = float(own_N @ other_N) / energy
        distance = float(np.linalg.norm(own_N - factor * other_N) / np.linalg.norm(own_N))
        if factor > 0 and distance < MATCH and (best is None or distance < best[0]):
            best = distance, label, factor
    return None if best is None else best[1:]


def try_weigh(log: Rollouts, layout: Layout, weight: Weight) -> dict[str, Any]:
    """``describe`` of a weight, or why it cannot be computed on this log."""
    try:
        return computed(log, layout, weight)
    except UsageError as error:
        return {"label": weight.label, "not_computed": str(error)}


def computed(log: Rollouts, layout: Layout, weight: Weight) -> dict[str, Any]:
    """``describe`` of a weight, and of one with memory what it reports at the end, as ``state``."""
    weight_B, state = weigh(log, layout, weight)
    entry = describe(log, layout, weight.label, weight_B)
    return {**entry, "state": state} if weight.init() else entry
