"""The rollouts of a batch under other weights, and under the weight in use: signal and quality."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradmass.masses.canonical import Canonical
from gradmass.metrics.signal import (
    Levels,
    levels_of,
    pooled,
    signal_to_noise,
    update_quality,
)
from gradmass.training.batch import Batch
from gradmass.training.probes.gradients import MAX_PROBLEMS, GroupGradients
from gradmass.types import State, UsageError
from gradmass.weights import Weight


def weigh_again(weight: Weight, batch: Batch) -> tuple[np.ndarray, State]:
    """What another weight makes of a batch, from its initial state."""
    weights_PG, state = weight.update(
        batch.successes_PG.astype(np.float64), weight.init(), mask=batch.mask_PG, **batch.signals
    )
    return np.where(batch.is_in_loss_PG, weights_PG, 0.0), state


def factor_of(
    weight: Weight, state: State, weights_PG: np.ndarray, batch: Batch
) -> np.ndarray | None:
    """The factor of a weight of the form ``factor(rbar) x (r - rbar)``, at rbar = k / G.

    Found by weighing groups of every number of successes under the state as it is, and held against
    what the weight made of the batch, up to a constant.

    Returns:
        Shape ``[G - 1]``, for k = 1 .. G - 1; None where the weight has another form: one that
        treats right and wrong rollouts by different factors, looks at the whole batch, at lengths
        or at ties.
    """
    group_size = weights_PG.shape[1]
    if group_size < 2 or weight.on_ties != "zero":
        return None
    try:
        success_K, failure_K = Canonical(weight, state).by_successes(
            group_size, np.arange(group_size + 1)
        )
    except UsageError:  # it depends on more than the number of successes of the group
        return None
    rate_K = np.arange(1, group_size) / group_size
    factor_K: np.ndarray = success_K[1:-1] / (1 - rate_K)
    gap_K = factor_K - failure_K[1:-1] / rate_K
    if not factor_K.any() or np.abs(gap_K).max() > 1e-9 * np.abs(factor_K).max():
        return None
    is_whole_P = batch.mask_PG.all(1)
    num_P = batch.successes_PG[is_whole_P].sum(1)
    by_count_K = np.concatenate([[0.0], factor_K, [0.0]])
    centred_PG = batch.successes_PG[is_whole_P] - num_P[:, None] / group_size
    form_PG, own_PG = by_count_K[num_P][:, None] * centred_PG, weights_PG[is_whole_P]
    square = float(np.square(form_PG).sum())
    scale = float((form_PG * own_PG).sum()) / square if square else 0.0
    is_form = np.allclose(
        scale * form_PG, own_PG, rtol=1e-6, atol=1e-9 * np.abs(own_PG).max(initial=0)
    )
    return factor_K if is_form else None


def centred(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Solve rate of each group, and reward minus solve rate of each scored rollout."""
    success_PG = (batch.successes_PG & batch.mask_PG).astype(np.float64)
    rate_P = success_PG.sum(1) / np.maximum(1, batch.mask_PG.sum(1))
    return rate_P, np.where(batch.mask_PG, success_PG - rate_P[:, None], 0.0)


def group_levels(gradients: GroupGradients, batch: Batch) -> Levels:
    """Signal and energy of the groups of a batch by solve rate, under weight ``r - rbar``."""
    rate_P, centred_PG = centred(batch)
    dots_PP = gradients.dots(centred_PG[:MAX_PROBLEMS])
    assert dots_PP is not None  # a combination of the columns of right and of wrong rollouts
    return levels_of(rate_P[:MAX_PROBLEMS], dots_PP)


def judge_weight(
    weight: Weight,
    state: State,
    weights_PG: np.ndarray,
    gradients: GroupGradients,
    recent: Sequence[Levels],
    batch: Batch,
) -> dict[str, Any]:
    """What the rollouts say of a weight.

    Args:
        weight: The weight.
        state: Its state after the batch.
        weights_PG: What it makes of the batch; any factor leaves all but ``signal`` and ``noise``.
        gradients: Gradients of the batch's groups.
        recent: Levels of this batch and of those looked at before.
        batch: The batch.

    Returns:
        ``signal``, ``noise`` and ``snr`` of its gradient on this batch; and by (10), pooled over
        the recent looks, ``quality``, ``batch_ratio``, ``num_effective`` and ``known_share``, None
        for weights that are not of the form ``factor(rbar) x (r - rbar)``.
    """
    dots_PP = gradients.dots(weights_PG[:MAX_PROBLEMS])
    found = None if dots_PP is None else signal_to_noise(dots_PP)
    row: dict[str, Any] = {
        "label": weight.label,
        "signal": None if found is None else found.signal,
        "noise": None if found is None else found.noise,
        "snr": None if found is None else found.ratio,
        "quality": None,
        "batch_ratio": None,
        "num_effective": None,
        "known_share": None,
    }
    factor_K = factor_of(weight, state, weights_PG, batch)
    if factor_K is None:
        return row
    levels, group_size = pooled(recent), weights_PG.shape[1]
    rate_K = np.arange(1, group_size) / group_size
    slope_K = _slope(factor_K, rate_K)
    quality = update_quality(
        levels,
        np.interp(levels.rate_L, rate_K, factor_K).tolist(),
        np.interp(levels.rate_L, rate_K, slope_K).tolist(),
        group_size,
    )
    if quality is not None:
        row |= {
            "quality": quality.quality,
            "batch_ratio": quality.batch_ratio,
            "num_effective": quality.num_effective,
            "known_share": quality.known_share,
        }
    return row


def _slope(factor_K: np.ndarray, rate_K: np.ndarray) -> np.ndarray:
    """Derivative by differences, exact for factors up to the second power; 0 of a single point."""
    if len(rate_K) == 1:
        return np.zeros(1)
    slope_K: np.ndarray = np.gradient(
        factor_K, float(rate_K[0]), edge_order=2 if len(rate_K) > 2 else 1
    )
    return slope_K
