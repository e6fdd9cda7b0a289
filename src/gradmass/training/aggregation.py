"""What the loss of a token is divided by, and which rollouts are in the loss at all.

The gradient of the loss is ``sum_i (w_i / d_i) sum_t c_it grad log pi_it`` with w the policy
weights, d the denominators below, and c what ratios and clips make of a token. So the score of a
whole rollout counts ``w_i / d_i``: a denominator that is the same for all rollouts scales the
update, one that differs between them changes the gradient masses too.
"""

import torch
from torch import Tensor

from gradmass.config import LossConfig
from gradmass.training.rollout import Rollouts


def rollouts_in_loss(config: LossConfig, rollouts: Rollouts) -> Tensor:
    """Which rollouts are in the loss, above and below the line, shape ``[B]``, bool.

    All of them, or where truncated ones are masked those that ended.
    """
    if config.truncated == "count":
        return torch.ones_like(rollouts.is_ended_B)
    return rollouts.is_ended_B


def loss_denominators(config: LossConfig, rollouts: Rollouts, max_new_tokens: int) -> Tensor:
    """What the loss of each rollout's tokens is divided by.

    With B' the rollouts in the loss, T the limit on new tokens and L_i the tokens of rollout i:

    - ``constant``: ``B' T`` (Dr. GRPO; TRL's ``dr_grpo``)
    - ``token-mean``: ``sum_{j in loss} L_j`` (DAPO; TRL's ``dapo``, verl's ``token-mean``)
    - ``seq-mean-token-mean``: ``B' L_i`` (GRPO; TRL's ``grpo``, verl's of that name)
    - ``seq-mean-token-sum``: ``B'`` (TRL's ``luspo`` without its ratio, verl's of that name)

    They are those of the whole batch, however it is split into passes.

    Returns:
        Shape ``[B]``, float64, at least 1: a batch without a rollout in the loss has loss 0.
    """
    is_in_B = rollouts_in_loss(config, rollouts)
    length_B = rollouts.answer_mask_BT.sum(1).double()
    num_rollouts = is_in_B.sum().double()
    if config.aggregation == "token-mean":
        denominator_B = (length_B * is_in_B).sum().expand(length_B.shape)
    elif config.aggregation == "seq-mean-token-mean":
        denominator_B = num_rollouts * length_B
    elif config.aggregation == "seq-mean-token-sum":
        denominator_B = num_rollouts.expand(length_B.shape)
    else:
        denominator_B = (num_rollouts * max_new_tokens).expand(length_B.shape)
    return denominator_B.clamp(min=1.0)
