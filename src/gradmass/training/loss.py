"""The clipped policy-gradient loss. It is given numbers and never learns a weight's name."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """A loss and what happened in it.

    Args:
        value: Scalar that carries the gradient.
        clip_share: Share of the answer tokens of rollouts with a weight whose gradient was clipped
            away.
        kl_nats: Mean over tokens of the k3 estimate, in nats; 0 where no KL term is on.
    """

    value: Tensor
    clip_share: float
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
    total = torch.where(mask_NT, per_token_NT, 0.0).sum()
    return Loss(total / denominator, clip_share, kl_nats)
