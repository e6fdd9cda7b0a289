"""The clipped policy-gradient loss. It is given numbers and never learns a weight's name."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradmass.config import LossConfig
from gradmass.training.rollout import Rollouts, answer_logprobs


@dataclass(frozen=True)
class Loss:
    """A loss and what happened in it.

    Args:
        value: Scalar that carries the gradient.
        clip_share: Share of the answer tokens of rollouts with a weight whose gradient was clipped
            away.
        kept_N: Mean over the tokens of each rollout of the ratio where the gradient was not clipped
            away, 0 where it was: what of the rollout's weight reaches the gradient; 0 without one.
        clipped_N: Share of each rollout's tokens whose gradient was clipped away.
        kl_nats: Mean over tokens of the k3 estimate, in nats; 0 where no KL term is on.
    """

    value: Tensor
    clip_share: float
    kept_N: Tensor
    clipped_N: Tensor
    kl_nats: float


def policy_loss(
    logprobs_NT: Tensor,
    behaviour_logprobs_NT: Tensor,
    weights_N: Tensor,
    mask_NT: Tensor,
    *,
    denominator: float,
    clip_low: float,
    clip_high: float,
    reference_logprobs_NT: Tensor | None = None,
    kl_coef: float = 0.0,
) -> Loss:
    """PPO's clipped surrogate with a weight for each rollout, summed over tokens.

    ``-(1 / denominator) sum_it min(rho_it w_i, clip(rho_it, 1 - clip_low, 1 + clip_high) w_i)``
    with ``rho = exp(logprobs - behaviour_logprobs)``; plus ``kl_coef`` times the k3 estimate
    ``exp(d) - 1 - d``, ``d = reference_logprobs - logprobs``, in the same sum.

    Args:
        logprobs_NT: Log-probabilities of the answer tokens under the policy being trained.
        behaviour_logprobs_NT: Those under the policy that drew them.
        weights_N: The policy weight of each rollout.
        mask_NT: True at answer tokens.
        denominator: What the sum is divided by: rollouts times the longest answer for the constant
            aggregation, the number of answer tokens of the batch for the token mean.
        clip_low: Lower clip range.
        clip_high: Upper clip range.
        reference_logprobs_NT: Log-probabilities under the starting policy, for the KL term.
        kl_coef: Its coefficient.

    Source: Schulman et al. 2017, arXiv 1707.06347; separate clips from DAPO, arXiv 2503.14476; k3
    from http://joschu.net/blog/kl-approx.html.
    """
    # where before exp: at padding, an overflow would leave 0 times infinity in the gradient.
    ratio_NT = torch.where(mask_NT, logprobs_NT - behaviour_logprobs_NT, 0.0).exp()
    weights_N1 = weights_N[:, None].to(ratio_NT.dtype)
    unclipped_NT = ratio_NT * weights_N1
    clipped_NT = ratio_NT.clamp(1.0 - clip_low, 1.0 + clip_high) * weights_N1
    per_token_NT = -torch.minimum(unclipped_NT, clipped_NT)
    kl_nats = 0.0
    if reference_logprobs_NT is not None:
        gap_NT = torch.where(mask_NT, reference_logprobs_NT - logprobs_NT, 0.0)
        kl_NT = gap_NT.exp() - 1.0 - gap_NT
        per_token_NT = per_token_NT + kl_coef * kl_NT
        kl_nats = float(kl_NT.detach()[mask_NT].double().mean())
    with torch.no_grad():
        has_weight_NT = mask_NT & (weights_N1 != 0)
        is_clipped_NT = (clipped_NT < unclipped_NT) & has_weight_NT
        clip_share = float(is_clipped_NT.sum()) / max(1, int(has_weight_NT.sum()))
        length_N = mask_NT.sum(1).clamp(min=1).double()
        # where, not times: an overflowing ratio that is clipped away leaves 0, not NaN.
        kept_NT = torch.where(has_weight_NT & ~is_clipped_NT, ratio_NT, 0.0)
        kept_N = kept_NT.double().sum(1) / length_N
        clipped_N = is_clipped_NT.double().sum(1) / length_N
    total = torch.where(mask_NT, per_token_NT, 0.0).sum()
    return Loss(total / denominator, clip_share, kept_N, clipped_N, kl_nats)


def batch_loss(
    config: LossConfig,
    policy: PreTrainedModel,
    start_policy: PreTrainedModel | None,
    rollouts: Rollouts,
    weights_B: Tensor,
    rows: Tensor,
    denominator: float,
) -> Loss:
    """The loss of some rollouts of a batch, as their part of the whole batch's loss.

    Args:
        config: Clips and KL coefficient.
        policy: The policy being trained.
        start_policy: The policy of the KL term; None leaves the term out.
        rollouts: The batch.
        weights_B: The policy weight of each of its rollouts.
        rows: Indices of the rollouts, shape ``[N]``, N >= 1.
        denominator: That of the whole batch, from ``loss_denominator``.
    """
    reference = None
    if start_policy is not None:
        with torch.no_grad():
            reference = answer_logprobs(start_policy, rollouts, rows)
    return policy_loss(
        answer_logprobs(policy, rollouts, rows),
        rollouts.logprobs_BT[rows],
        weights_B[rows],
        rollouts.answer_mask_BT[rows],
        denominator=denominator,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        reference_logprobs_NT=reference,
        kl_coef=config.kl_coef,
    )


def loss_denominator(config: LossConfig, rollouts: Rollouts, max_new_tokens: int) -> float:
    """What the token sum of the loss is divided by."""
    if config.aggregation == "token-mean":
        return float(rollouts.answer_mask_BT.sum())
    return float(len(rollouts.is_ended_B) * max_new_tokens)
