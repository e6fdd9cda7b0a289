"""A batch of rollouts and what was made of it, as the loop and the probes see it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from gradmass.training.rollout import Rollouts
from gradmass.types import State


@dataclass(frozen=True)
class Batch:
    """Rollouts and what was made of them: P problems, G rollouts each, B = P * G.

    Args:
        policy_step: Updates that the policy which answered has had.
        rollouts: The sampled answers.
        successes_PG: Which are right.
        mask_PG: Which are scored.
        is_in_loss_PG: Which are in the loss; all, or those that ended. The others have weight 0.
        weights_PG: The policy weight of each in float64, any factor of the recipe's included.
        weights_B: The same, flat, in float32 on the policy's device.
        weight_state: State of the weight after the batch.
        signals: What the weight was told of the batch besides rewards.
        row: The metrics that describe it.
        laps: Seconds that drawing, judging and weighing held the loop up.
    """

    policy_step: int
    rollouts: Rollouts
    successes_PG: np.ndarray
    mask_PG: np.ndarray
    is_in_loss_PG: np.ndarray
    weights_PG: np.ndarray
    weights_B: Tensor
    weight_state: State
    signals: dict[str, Any]
    row: dict[str, Any]
    laps: dict[str, float]
