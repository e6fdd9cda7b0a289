"""The clipped policy-gradient loss. It is given numbers and never learns a weight's name."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradmass.config import LossConfig
from gradmass.training.kl import kl_estimate
from gradmass.training.passes import passes
from gradmass.training.rollout import Rollouts, answer_logprobs, answer_terms


@dataclass(frozen=True)
class Loss:
    """A loss and what happened in it, a number for each of N rollouts: parts can be joined.

    Args:
        value: Scalar that carries the gradient.
        has_weight_N: Whether the rollout's policy weight is other than 0.
        length_N: Its answer tokens.
        num_clipped_N: Those of them whose gradient was clipped away.
        kept_N: Mean over its tokens of the ratio where the gradient was not clipped away, 0 where
            it was: what of the rollout's weight reaches the gradient; 0 without one.
        log_ratio_N: Its log-probability under the policy being trained, minus that under the policy
            that drew it.
        ratio_sum_N: Sum over its tokens of their ratio to the policy that drew them.
        ratio_squares_N: Sum of the squares of these.
        kl_N: Sum over its tokens of the KL estimate, in nats; 0 where no KL term is on.
        entropy_N: Sum over its tokens of the policy's entropy, in nats; None where not measured.
    """

    value: Tensor
    has_weight_N: Tensor
    length_N: Tensor
    num_clipped_N: Tensor
    kept_N: Tensor
    log_ratio_N: Tensor
    ratio_sum_N: Tensor
    ratio_squares_N: Tensor
    kl_N: Tensor
    entropy_N: Tensor | None = None

    @property
    def clip_share(self) -> float:
        """Share of the tokens of rollouts with a weight whose gradient was clipped away."""
        num_tokens = float(self.length_N[self.has_weight_N].sum())
        return float(self.num_clipped_N.sum()) / max(1.0, num_tokens)

    @property
    def clipped_N(self) -> Tensor:
        """Share of each rollout's tokens whose gradient was clipped away."""
        return self.num_clipped_N / self.length_N.clamp(min=1)

    @property
    def kl_nats(self) -> float:
        """Mean of the KL estimate over all tokens."""
        return self._mean(self.kl_N)

    @property
    def entropy_nats(self) -> float | None:
        """Mean of the policy's entropy over all tokens; None where not measured."""
        return None if self.entropy_N is None else self._mean(self.entropy_N)

    @property
    def effective_rollouts(self) -> float:
        """Kish's effective share of the rollouts under their ratios, (sum r)^2 / (N sum r^2)."""
        # Divided by the largest ratio first: its exponential may be too large for a number.
        largest = self.log_ratio_N.max()
        if not largest.isfinite():  # every one is impossible by now
            return 1.0 / len(self.log_ratio_N)
        ratio_N = (self.log_ratio_N - largest).exp()
        return float(ratio_N.sum() ** 2 / ratio_N.square().sum()) / len(ratio_N)

    @property
    def effective_tokens(self) -> float:
        """Kish's effective share of the tokens under their ratios."""
        squares, num_tokens = float(self.ratio_squares_N.sum()), float(self.length_N.sum())
        return (float(self.ratio_sum_N.sum()) ** 2 / squares if squares else 1.0) / num_tokens

    def _mean(self, sums_N: Tensor) -> float:
        return float(sums_N.sum()) / max(1.0, float(self.length_N.sum()))


def policy_loss(
    logprobs_NT: Tensor,
    behaviour_logprobs_NT: Tensor,
    weights_N: Tensor,
    mask_NT: Tensor,
    *,
    denominator_N: Tensor,
    clip_low: float,
    clip_high: float,
    proximal_logprobs_NT: Tensor | None = None,
    importance_cap: float = 0.0,
    reference_logprobs_NT: Tensor | None = None,
    kl_coef: float = 0.0,
    kl_estimator: Literal["k1", "k2", "k3"] = "k3",
) -> Loss:
    """PPO's clipped surrogate with a weight for each rollout, summed over tokens.

    ``-sum_it f_it min(rho_it w_i, clip(rho_it, 1 - clip_low, 1 + clip_high) w_i) / d_i``; plus
    ``kl_coef`` times the KL estimate of each token, in the same sum. Without a cap
    ``rho = exp(logprobs - behaviour_logprobs)`` and ``f = 1``. With one, truncated importance
    sampling: ``rho = exp(logprobs - proximal_logprobs)`` is clipped about the policy at the batch's
    first update, and ``f = min(exp(proximal_logprobs - behaviour_logprobs), importance_cap)``,
    which has no gradient, accounts for the policy that drew the tokens.

    Args:
        logprobs_NT: Log-probabilities of the answer tokens under the policy being trained.
        behaviour_logprobs_NT: Those under the policy that drew them.
        weights_N: The policy weight of each rollout.
        mask_NT: True at answer tokens.
        denominator_N: What the loss of each rollout's tokens is divided by, d; see
            ``loss_denominators``.
        clip_low: Lower clip range.
        clip_high: Upper clip range.
        proximal_logprobs_NT: Log-probabilities under the policy at the batch's first update.
        importance_cap: Largest factor f, where there are these.
        reference_logprobs_NT: Log-probabilities under the starting policy, for the KL term.
        kl_coef: Its coefficient.
        kl_estimator: Its estimate.

    Source: Schulman et al. 2017, arXiv 1707.06347; separate clips from DAPO, arXiv 2503.14476; the
    factor from decoupled PPO, arXiv 2110.00641, truncated as in IMPALA, arXiv 1802.01561.
    """
    old_logprobs_NT = behaviour_logprobs_NT
    factor_NT = torch.ones_like(behaviour_logprobs_NT)
    if proximal_logprobs_NT is not None:
        old_logprobs_NT = proximal_logprobs_NT
        gap_NT = torch.where(mask_NT, proximal_logprobs_NT - behaviour_logprobs_NT, 0.0)
        factor_NT = gap_NT.exp().clamp(max=importance_cap)
    # where before exp: at padding, an overflow would leave 0 times infinity in the gradient.
    ratio_NT = torch.where(mask_NT, logprobs_NT - old_logprobs_NT, 0.0).exp()
    weights_N1 = weights_N[:, None].to(ratio_NT.dtype)
    unclipped_NT = ratio_NT * weights_N1
    clipped_NT = ratio_NT.clamp(1.0 - clip_low, 1.0 + clip_high) * weights_N1
    per_token_NT = -torch.minimum(unclipped_NT, clipped_NT) * factor_NT
    kl_NT = torch.zeros_like(per_token_NT)
    if reference_logprobs_NT is not None:
        gap_NT = torch.where(mask_NT, logprobs_NT - reference_logprobs_NT, 0.0)
        kl_NT = kl_estimate(gap_NT, kl_estimator)
        per_token_NT = per_token_NT + kl_coef * kl_NT
    total_N = torch.where(mask_NT, per_token_NT, 0.0).sum(1)
    with torch.no_grad():
        has_weight_NT = mask_NT & (weights_N1 != 0)
        is_clipped_NT = (clipped_NT < unclipped_NT) & has_weight_NT
        length_N = mask_NT.sum(1).double()
        # where, not times: an overflowing ratio that is clipped away leaves 0, not NaN.
        kept_NT = torch.where(has_weight_NT & ~is_clipped_NT, ratio_NT * factor_NT, 0.0)
        gap_NT = torch.where(mask_NT, logprobs_NT - behaviour_logprobs_NT, 0.0).double()
        # Beyond exp(300) one token carries everything anyway, and its square is still a number.
        to_behaviour_NT = gap_NT.clamp(max=300.0).exp() * mask_NT
    return Loss(
        value=(total_N / denominator_N.to(total_N.dtype)).sum(),
        has_weight_N=weights_N != 0,
        length_N=length_N,
        num_clipped_N=is_clipped_NT.double().sum(1),
        kept_N=kept_NT.double().sum(1) / length_N.clamp(min=1),
        log_ratio_N=gap_NT.sum(1),
        ratio_sum_N=to_behaviour_NT.sum(1),
        ratio_squares_N=to_behaviour_NT.square().sum(1),
        kl_N=torch.where(mask_NT, kl_NT.detach(), 0.0).double().sum(1),
    )


def batch_loss(
    config: LossConfig,
    policy: PreTrainedModel,
    start_policy: PreTrainedModel | None,
    rollouts: Rollouts,
    weights_B: Tensor,
    rows: Tensor,
    denominator_B: Tensor,
    *,
    entropy_scale: float | None = None,
) -> Loss:
    """The loss of some rollouts of a batch, as their part of the whole batch's loss.

    Args:
        config: Clips, KL term and the like.
        policy: The policy being trained.
        start_policy: The policy of the KL term; None leaves the term out.
        rollouts: The batch, with ``proximal_BT`` where importance sampling is truncated.
        weights_B: The policy weight of each of its rollouts.
        rows: Indices of the rollouts, shape ``[N]``, N >= 1.
        denominator_B: Those of the whole batch, from ``loss_denominators``.
        entropy_scale: What is taken off the loss for each nat of a token's entropy: the bonus's
            coefficient over the tokens of the whole batch. None: entropies are not measured.
    """
    mask_NT = rollouts.answer_mask_BT[rows]
    reference = None
    if start_policy is not None:
        with torch.no_grad():
            reference = answer_logprobs(start_policy, rollouts, rows)
    logprobs_NT, entropy_NT = answer_terms(
        policy, rollouts, rows, with_entropy=entropy_scale is not None
    )
    loss = policy_loss(
        logprobs_NT,
        rollouts.logprobs_BT[rows],
        weights_B[rows],
        mask_NT,
        denominator_N=denominator_B[rows],
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        proximal_logprobs_NT=None if rollouts.proximal_BT is None else rollouts.proximal_BT[rows],
        importance_cap=config.importance_cap,
        reference_logprobs_NT=reference,
        kl_coef=config.kl_coef,
        kl_estimator=config.kl_estimator,
    )
    if entropy_scale is None or entropy_NT is None:
        return loss
    return replace(
        loss,
        value=loss.value - entropy_scale * entropy_NT.sum(),
        entropy_N=entropy_NT.detach().double().sum(1),
    )


def joined(parts: Sequence[Loss]) -> Loss:
    """The loss of a batch from its parts, the rollouts in their order; it carries no gradient."""

    def column(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values)

    columns = {f.name: column(f.name) for f in fields(Loss) if f.name != "value"}
    total = torch.stack([part.value.detach() for part in parts]).sum()
    return Loss(value=total, **columns)  # type: ignore[arg-type]


def with_proximal(
    config: LossConfig, policy: PreTrainedModel, rollouts: Rollouts, tokens_at_once: int
) -> Rollouts:
    """The rollouts with log-probabilities under the policy at their batch's first update.

    They are needed where importance sampling is truncated, and cost a forward pass; elsewhere the
    rollouts are given back as they are.
    """
    if not config.importance_cap:
        return rollouts
    proximal_BT = torch.zeros_like(rollouts.logprobs_BT)
    rows = torch.arange(len(proximal_BT), device=proximal_BT.device)
    with torch.no_grad():
        for part, chosen in passes(rollouts, rows, tokens_at_once):
            every = torch.arange(len(chosen), device=chosen.device)
            logprobs_NT = answer_logprobs(policy, part, every)
            proximal_BT[chosen, : logprobs_NT.shape[1]] = logprobs_NT
        return replace(rollouts, proximal_BT=proximal_BT)
