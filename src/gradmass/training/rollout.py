"""Sampling: G answers to each prompt from the policy, with log-probabilities and entropies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradmass.types import UsageError


@dataclass(frozen=True)
class Rollouts:
    """A batch of answers, B = P * G rows, the G rollouts of a prompt one after the other.

    Args:
        prompt_BT: Prompt tokens, padded on the left.
        prompt_mask_BT: True where a prompt token is no padding.
        answer_BT: Answer tokens, end token included, padded on the right.
        answer_mask_BT: True up to and including the end token, or throughout if there is none.
        logprobs_BT: Log-probability in nats of each answer token under the policy that drew it.
        entropy_BT: Entropy in nats of the distribution each answer token was drawn from.
        is_ended_B: Whether the answer ended before the limit on new tokens.
    """

    prompt_BT: Tensor
    prompt_mask_BT: Tensor
    answer_BT: Tensor
    answer_mask_BT: Tensor
    logprobs_BT: Tensor
    entropy_BT: Tensor
    is_ended_B: Tensor

    @property
    def mean_entropy_nats(self) -> float:
        """Mean over all answer tokens of the entropy they were drawn with."""
        return float(self.entropy_BT[self.answer_mask_BT].double().mean())


ENTROPY_KIND = "exact softmax entropy, temperature 1, mean over answer tokens with end token"
"""What ``Rollouts.mean_entropy_nats`` is; entropies of another kind are other numbers."""
DIVERGED = "the policy gives NaN or infinite logits: it has diverged (try a smaller optim.lr)"


def uniforms(shape: tuple[int, ...], seed: int, stream: str, step: int = 0) -> np.ndarray:
    """Numbers uniform in [0, 1), fixed by the seed, the purpose and the step alone.

    Every rollout of a run is decided by these and the policy, so a resumed run needs no generator
    state, and runs that differ in their weight alone start from equal draws.
    """
    words = [seed, step, *stream.encode()]
    return np.random.default_rng(words).random(shape)


def encode_prompts(
    tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Prompt tokens padded on the left, and the mask of what is no padding."""
    try:
        encoded = tokenizer(
            list(prompts),
            padding=True,
            padding_side="left",
            add_special_tokens=False,
            return_tensors="pt",
        )
    except Exception as error:  # tokenizers raises nothing more specific
        raise UsageError(
            f"the tokenizer cannot read prompts such as {prompts[0]!r}: {error}"
        ) from error
    return encoded["input_ids"].to(device), encoded["attention_mask"].bool().to(device)


@torch.inference_mode()
def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    uniforms_BT: np.ndarray,
) -> Rollouts:
    """Sample at temperature 1, with a KV cache filled once for each prompt.

    A token is the inverse of the policy's cumulative distribution (float64) at its uniform number,
    so a draw does not depend on what else is in the batch.

    Args:
        model: The policy.
        tokenizer: Its tokenizer, with padding and end token.
        prompts: P texts.
        uniforms_BT: Numbers in [0, 1), a row for each rollout (P * G) and a column for each token.

    Raises:
        UsageError: The policy gives a NaN or infinite logit.
    """
    num_rollouts, max_new_tokens = uniforms_BT.shape
    group_size = num_rollouts // len(prompts)
    prompt_PT, mask_PT = encode_prompts(tokenizer, prompts, model.device)
    positions_PT = (mask_PT.cumsum(1) - 1).clamp(min=0)
    output = model(
        input_ids=prompt_PT,
        attention_mask=mask_PT,
        position_ids=positions_PT,
        use_cache=True,
        logits_to_keep=1,
    )
    cache = output.cache
    cache.batch_repeat_interleave(group_size)
    logits_BV = output.logits[:, -1].repeat_interleave(group_size, 0)
    prompt_BT, prompt_mask_BT, position_B1 = (
        x.repeat_interleave(group_size, 0) for x in (prompt_PT, mask_PT, positions_PT[:, -1:])
    )
    draws_BT = torch.as_tensor(uniforms_BT, device=model.device)
    is_ended_B = torch.zeros(num_rollouts, dtype=torch.bool, device=model.device)
    mask_BT = prompt_mask_BT
    columns: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for t in range(max_new_tokens):
        token_B1, logprob_B1, entropy_B1 = _draw(logits_BV, draws_BT[:, t : t + 1])
        token_B1[is_ended_B] = tokenizer.pad_token_id
        columns.append((token_B1, logprob_B1, entropy_B1, ~is_ended_B[:, None]))
        is_ended_B = is_ended_B | (token_B1[:, 0] == tokenizer.eos_token_id)
        if t + 1 == max_new_tokens or bool(is_ended_B.all()):
            break
        mask_BT = torch.cat([mask_BT, columns[-1][3]], dim=1)
        output = model(
            input_ids=token_B1,
            attention_mask=mask_BT,
            position_ids=position_B1 + 1 + t,
            cache=cache,
            use_cache=True,
        )
        logits_BV = output.logits[:, -1]
    answer_BT, logprobs_BT, entropy_BT, answer_mask_BT = (
        torch.cat(column, dim=1) for column in zip(*columns, strict=True)
    )
    return Rollouts(
        prompt_BT=prompt_BT,
        prompt_mask_BT=prompt_mask_BT,
        answer_BT=answer_BT,
        answer_mask_BT=answer_mask_BT,
        logprobs_BT=logprobs_BT.float() * answer_mask_BT,
        entropy_BT=entropy_BT.float() * answer_mask_BT,
        is_ended_B=is_ended_B,
    )


def decode(tokenizer: PreTrainedTokenizerFast, rollouts: Rollouts) -> list[str]:
    """Answers as text without the end token; any other special token stays visible.

    A special token in the middle of an answer is not dropped: what is left could be right, though
    the policy did not write it.
    """
    num_tokens_B = (rollouts.answer_mask_BT.sum(1) - rollouts.is_ended_B.long()).tolist()
    return tokenizer.batch_decode(
        [row[:n] for row, n in zip(rollouts.answer_BT.tolist(), num_tokens_B, strict=True)],
        skip_special_tokens=False,
        clean_up_tokenization_spaces=False,
    )


def answer_logprobs(model: PreTrainedModel, rollouts: Rollouts, rows: Tensor) -> Tensor:
    """Log-probabilities in nats of the answer tokens of some rollouts; carries the gradient.

    Args:
        model: The policy.
        rollouts: The batch.
        rows: Indices of the rollouts, shape ``[N]``.

    Returns:
        Shape ``[N, T]``, 0 at padding.
    """
    answer_NT, mask_NT = rollouts.answer_BT[rows], rollouts.answer_mask_BT[rows]
    prompt_mask_NT = rollouts.prompt_mask_BT[rows]
    attention_NT = torch.cat([prompt_mask_NT, mask_NT], dim=1)
    logits_NTV = model(
        input_ids=torch.cat([rollouts.prompt_BT[rows], answer_NT], dim=1),
        attention_mask=attention_NT,
        position_ids=(attention_NT.cumsum(1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=answer_NT.shape[1] + 1,
    ).logits[:, :-1]
    logprobs_NTV = logits_NTV.float().log_softmax(-1)
    return logprobs_NTV.gather(-1, answer_NT[..., None]).squeeze(-1) * mask_NT


def _draw(logits_BV: Tensor, draws_B1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A token for each row with its log-probability and the entropy of its distribution."""
    logprobs_BV = logits_BV.float().log_softmax(-1)
    probabilities_BV = logprobs_BV.exp()
    cumulative_BV = probabilities_BV.double().cumsum(-1)
    total_B1 = cumulative_BV[:, -1:]
    if not bool(torch.isfinite(total_B1).all()):
        raise UsageError(DIVERGED)
    # The first token whose cumulative probability exceeds the draw; never one of probability 0.
    token_B1 = torch.searchsorted(cumulative_BV, draws_B1 * total_B1, right=True)
    token_B1 = token_B1.clamp_(max=logits_BV.shape[-1] - 1)
    entropy_B1 = torch.special.entr(probabilities_BV).sum(-1, keepdim=True)
    return token_B1, logprobs_BV.gather(-1, token_B1), entropy_B1
