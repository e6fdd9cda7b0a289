"""Sampling: G answers to each prompt from the policy, with log-probabilities and entropies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradmass.training.decoder import make_decoder
from gradmass.training.terms import LOGITS_AT_ONCE, answer_token_terms
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
        proximal_BT: Log-probabilities under the policy at the batch's first update, where the loss
            needs them.
    """

    prompt_BT: Tensor
    prompt_mask_BT: Tensor
    answer_BT: Tensor
    answer_mask_BT: Tensor
    logprobs_BT: Tensor
    entropy_BT: Tensor
    is_ended_B: Tensor
    proximal_BT: Tensor | None = None

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


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """All tokens that end an answer: the tokenizer's, and those of the generation config.

    Chat models list several: one ends a turn, another a text.
    """
    listed = model.generation_config.eos_token_id if model.generation_config else None
    if listed is None:
        listed = []
    return frozenset({tokenizer.eos_token_id, *([listed] if isinstance(listed, int) else listed)})


def encode_prompts(
    tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Prompt tokens padded on the left, and the mask of what is no padding.

    Raises:
        UsageError: A prompt that the tokenizer cannot read, or makes no token of.
    """
    try:
        rows = tokenizer(list(prompts), add_special_tokens=False)["input_ids"]
    except Exception as error:  # tokenizers raises nothing more specific
        raise UsageError(
            f"the tokenizer cannot read prompts such as {prompts[0]!r}: {error}"
        ) from error
    if not all(rows):
        empty = next(prompt for prompt, row in zip(prompts, rows, strict=True) if not row)
        raise UsageError(
            f"the tokenizer makes no token of the prompt {empty!r}: a model needs one to begin with"
        )
    num_tokens = max(map(len, rows))
    num_missing_P1 = torch.tensor([[num_tokens - len(row)] for row in rows], device=device)
    pad = tokenizer.pad_token_id
    padded = [[pad] * (num_tokens - len(row)) + row for row in rows]
    mask_PT = torch.arange(num_tokens, device=device) >= num_missing_P1
    return torch.tensor(padded, device=device), mask_PT


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
    group_size, device = num_rollouts // len(prompts), model.device
    prompt_PT, mask_PT = encode_prompts(tokenizer, prompts, device)
    row_B = torch.arange(len(prompts), device=device).repeat_interleave(group_size)
    ends = torch.tensor(sorted(end_tokens(model, tokenizer)), device=device)
    draws_BT = torch.as_tensor(uniforms_BT, device=device)
    shape = (num_rollouts, max_new_tokens)
    answer_BT = torch.full(shape, tokenizer.pad_token_id, device=device)
    logprobs_BT, entropy_BT = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
    writer = make_decoder(model, prompt_PT, mask_PT, row_B, max_new_tokens)
    rows_N = torch.arange(num_rollouts, device=device)
    is_live_N1 = torch.ones((num_rollouts, 1), dtype=torch.bool, device=device)
    for t in range(max_new_tokens):
        token_N1, logprob_N1, entropy_N1 = _draw(writer.logits_BV, draws_BT[rows_N, t, None])
        answer_BT[rows_N, t] = token_N1[:, 0]
        logprobs_BT[rows_N, t] = logprob_N1[:, 0]
        entropy_BT[rows_N, t] = entropy_N1[:, 0]
        was_live_N1, is_live_N1 = is_live_N1, is_live_N1 & ~torch.isin(token_N1, ends)
        if t + 1 == max_new_tokens or not bool(is_live_N1.any()):
            break
        kept = writer.retire(is_live_N1[:, 0])
        if kept is not None:
            rows_N, token_N1 = rows_N[kept], token_N1[kept]
            was_live_N1 = is_live_N1 = is_live_N1[kept]
        writer.feed(token_N1, was_live_N1)
    answer_BT = answer_BT[:, : t + 1]
    is_end_BT = torch.isin(answer_BT, ends)
    # What an answer's row was given after its end means nothing.
    mask_BT = is_end_BT.cumsum(1) - is_end_BT.long() == 0
    return Rollouts(
        prompt_BT=prompt_PT[row_B],
        prompt_mask_BT=mask_PT[row_B],
        answer_BT=answer_BT.where(mask_BT, tokenizer.pad_token_id),
        answer_mask_BT=mask_BT,
        logprobs_BT=logprobs_BT[:, : t + 1].where(mask_BT, 0.0),
        entropy_BT=entropy_BT[:, : t + 1].where(mask_BT, 0.0),
        is_ended_B=is_end_BT.any(1),
    )


def decode(tokenizer: PreTrainedTokenizerFast, rollouts: Rollouts) -> list[str]:
    """Answers as text without the end token; any other special token stays visible.

    A special token in the middle of an answer is not dropped: what is left could be right, though
    the policy did not write it.
    """
    num_tokens_B = (rollouts.answer_mask_BT.sum(1) - rollouts.is_ended_B.long()).tolist()
    return texts_of(
        tokenizer,
        [row[:n] for row, n in zip(rollouts.answer_BT.tolist(), num_tokens_B, strict=True)],
    )


def texts_of(tokenizer: PreTrainedTokenizerFast, rows: Sequence[list[int]]) -> list[str]:
    """The texts of tokens, special ones and every space included."""
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        # What batch_decode comes to; it looks at every token first, twenty times as long.
        return tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=False)
    return tokenizer.batch_decode(
        rows, skip_special_tokens=False, clean_up_tokenization_spaces=False
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
    return answer_terms(model, rollouts, rows, with_entropy=False)[0]


def answer_terms(
    model: PreTrainedModel, rollouts: Rollouts, rows: Tensor, *, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """``answer_logprobs``, and the entropies in nats of the distributions; both carry the gradient.

    Args:
        model: The policy.
        rollouts: The batch.
        rows: Indices of the rollouts, shape ``[N]``.
        with_entropy: Whether entropies are wanted; None stands for them otherwise.

    Returns:
        Shapes ``[N, T]``, 0 at padding. A word that is impossible adds nothing to an entropy.
    """
    return answer_token_terms(
        model,
        rollouts.prompt_BT[rows],
        rollouts.prompt_mask_BT[rows],
        rollouts.answer_BT[rows],
        rollouts.answer_mask_BT[rows],
        with_entropy=with_entropy,
    )


def _draw(logits_BV: Tensor, draws_B1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A token for each row with its log-probability and the entropy of its distribution."""
    num_rows = max(1, LOGITS_AT_ONCE[logits_BV.device.type] // logits_BV.shape[-1])
    if len(logits_BV) > num_rows:  # float64 copies of all would be many times the model's own
        pieces = zip(logits_BV.split(num_rows), draws_B1.split(num_rows), strict=True)
        parts = [_draw(logits, draws) for logits, draws in pieces]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]
    logprobs_BV = logits_BV.float().log_softmax(-1)
    probabilities_BV = logprobs_BV.exp()
    token_B1 = pick(probabilities_BV, draws_B1)
    # An impossible token has probability 0: times a finite number, so that it adds nothing.
    finite_BV = logprobs_BV.clamp(min=torch.finfo(logprobs_BV.dtype).min)
    entropy_B1 = -(probabilities_BV * finite_BV).sum(-1, keepdim=True)
    return token_B1, logprobs_BV.gather(-1, token_B1), entropy_B1


def pick(probabilities_BV: Tensor, draws_B1: Tensor) -> Tensor:
    """The token of each row at its number in [0, 1) of the cumulative distribution (float64).

    Args:
        probabilities_BV: At least 0; need not sum to 1.
        draws_B1: In [0, 1).

    Returns:
        Shape ``[B, 1]``; never a token of probability 0.

    Raises:
        UsageError: A NaN or infinite probability.
    """
    cumulative_BV = probabilities_BV.cumsum(-1, dtype=torch.float64)
    total_B1 = cumulative_BV[:, -1:]
    if not math.isfinite(float(total_B1.sum())):
        raise UsageError(DIVERGED)
    # The first token whose cumulative probability exceeds the draw.
    token_B1 = torch.searchsorted(cumulative_BV, draws_B1 * total_B1, right=True)
    return token_B1.clamp_(max=probabilities_BV.shape[-1] - 1)
