"""Hidden states under the output head: what rollouts share, and the entropy they give."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradmass.metrics.correlation import mean_pairwise_correlation, split_change, split_shared
from gradmass.metrics.entropy import mean_entropy_nats, token_entropy_of_hidden_nats
from gradmass.training.rollout import Rollouts, answer_logprobs

TOKENS_AT_ONCE = 128
"""Tokens whose logits exist at once: 78 MB in float32 for a vocabulary of 151,936."""
TEMPERATURE = 1.0
"""Of the sampling."""


@dataclass(frozen=True)
class States:
    """What the output head is applied to when it draws the tokens of answers.

    Args:
        hidden_BTD: A hidden state for each answer token, before it is drawn.
        mask_BT: True at answer tokens.
    """

    hidden_BTD: Tensor
    mask_BT: Tensor


@torch.no_grad()
def answer_states(policy: PreTrainedModel, rollouts: Rollouts) -> States:
    """Last-layer hidden states of the answers, by one forward pass without the output head."""
    mask_BT = torch.cat([rollouts.prompt_mask_BT, rollouts.answer_mask_BT], dim=1)
    hidden_BTD = policy.base_model(
        input_ids=torch.cat([rollouts.prompt_BT, rollouts.answer_BT], dim=1),
        attention_mask=mask_BT,
        position_ids=(mask_BT.cumsum(1) - 1).clamp(min=0),
        use_cache=False,
    ).last_hidden_state
    num_answer = rollouts.answer_BT.shape[1]
    return States(hidden_BTD[:, -num_answer - 1 : -1], rollouts.answer_mask_BT)


@torch.no_grad()
def entropy_of(policy: PreTrainedModel, states: States) -> float | None:
    """Mean entropy in nats over answer tokens of the distributions the policy draws them from.

    Exact, under the sampling temperature, a chunk of tokens at a time.
    """
    head = policy.get_output_embeddings()
    entropy_N = token_entropy_of_hidden_nats(
        states.hidden_BTD[states.mask_BT],
        head.weight,
        getattr(head, "bias", None),
        temperature=TEMPERATURE,
        chunk_rows=TOKENS_AT_ONCE,
    )
    flat_1N = entropy_N.double().cpu().numpy()[None]
    return mean_entropy_nats(flat_1N, np.ones(flat_1N.shape, dtype=bool))


@torch.no_grad()
def is_plain_head(policy: PreTrainedModel, rollouts: Rollouts) -> bool:
    """Whether logits are the output head times the hidden states, and nothing after.

    Some models cap or scale their logits (Gemma 2, Cohere): what is said of hidden states and head
    does not hold for them. Seen on the first rollout, by the log-probabilities of its tokens.
    """
    first = torch.zeros(1, dtype=torch.long, device=rollouts.answer_BT.device)
    expected_1T = answer_logprobs(policy, rollouts, first)
    one = Rollouts(**{k: v[:1] for k, v in vars(rollouts).items() if v is not None})
    states, head = answer_states(policy, one), policy.get_output_embeddings()
    logprobs_1TV = head(states.hidden_BTD).float().log_softmax(-1)
    found_1T = logprobs_1TV.gather(-1, one.answer_BT[..., None]).squeeze(-1) * one.answer_mask_BT
    return torch.allclose(found_1T, expected_1T, atol=1e-3)


def shared_row(
    states: States, successes_PG: np.ndarray, mask_PG: np.ndarray, head_change_VD: np.ndarray
) -> dict[str, float | None]:
    """Equations (8) and (9) on the rollouts of a batch, each by the mean of its hidden states.

    ``u_1`` is the direction shared by all scored rollouts of the batch. Cost: ``B D^2`` operations,
    and ``2 V D`` for the change of the head.

    Returns:
        ``states/shared_energy``, the share of ``sum |h|^2`` along u_1; ``states/rho_perp_right``
        and ``_wrong`` over all pairs, and ``_across`` over pairs of different problems only;
        ``rank/m1_norm`` and ``rank/m2_norm`` of the output head's change.
    """
    mask_BT1 = states.mask_BT[..., None]
    total_BD = (states.hidden_BTD.double() * mask_BT1).sum(1)
    mean_BD = (total_BD / mask_BT1.sum(1)).cpu().numpy()
    is_scored_B, is_right_B = mask_PG.reshape(-1), successes_PG.reshape(-1)
    problem_B = np.repeat(np.arange(len(mask_PG)), mask_PG.shape[1])
    # No rollout is scored where all were cut at the limit and the recipe excludes those.
    shared = split_shared(mean_BD[is_scored_B]) if is_scored_B.any() else None
    if shared is None:
        return {}
    is_right_N, problem_N = is_right_B[is_scored_B], problem_B[is_scored_B]
    row: dict[str, float | None] = {"states/shared_energy": shared.energy_share}
    for name, is_side_N in (("right", is_right_N), ("wrong", ~is_right_N)):
        key, rest_ND = f"states/rho_perp_{name}", shared.rest_ND[is_side_N]
        has_any = len(rest_ND) > 0
        row[key] = mean_pairwise_correlation(rest_ND) if has_any else None
        row[f"{key}_across"] = (
            mean_pairwise_correlation(rest_ND, problem_N[is_side_N]) if has_any else None
        )
    row["rank/m1_norm"], row["rank/m2_norm"] = split_change(head_change_VD, shared.direction_D)
    return row
