"""Policies that read their prompts and write answers token by token, with a KV cache."""

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from gradmass.training.attention import UNSEEN, AnswerMemory, widened
from gradmass.training.cache import make_room
from gradmass.training.lean import Lean, is_lean, read_prompts

LANES = 32
"""Numbers that the widest vector loops treat at once."""
RETIRE_AT = 0.75
"""Share of the rows being computed below which those of answers that ended are dropped."""
FEWEST_ROWS = 4
"""Rows of a product below which it is made in another way, with other last bits."""


class Decoder(Protocol):
    """A policy that read its prompts; each is read once and repeated for each of its answers.

    Attributes:
        logits_BV: Of the next token of each answer.
    """

    logits_BV: Tensor

    def feed(self, token_B1: Tensor, is_live_B1: Tensor) -> None:
        """Append a token to each answer; one that is not live is padding."""

    def retire(self, is_live_N: Tensor) -> Tensor | None:
        """Drop the rows of answers that ended, once they are many; call it before ``feed``.

        Args:
            is_live_N: Which of the rows go on.

        Returns:
            The rows that stay, in their order; None if all do.
        """


def make_decoder(
    model: PreTrainedModel,
    prompt_PT: Tensor,
    mask_PT: Tensor,
    row_B: Tensor,
    max_new_tokens: int,
) -> Decoder:
    """The decoder for a model.

    Args:
        model: The policy.
        prompt_PT: Prompt tokens, padded on the left.
        mask_PT: True where a prompt token is no padding.
        row_B: Which prompt each answer belongs to.
        max_new_tokens: Longest answer.
    """
    is_short = is_lean(model) and model.config.num_attention_heads >= FEWEST_ROWS
    kind = LeanDecoder if is_short else ModelDecoder
    return kind(model, prompt_PT, mask_PT, row_B, max_new_tokens)


class ModelDecoder:
    """Of any model: by its own forward (see ``make_decoder``)."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompt_PT: Tensor,
        mask_PT: Tensor,
        row_B: Tensor,
        max_new_tokens: int,
    ) -> None:
        positions_PT = (mask_PT.cumsum(1) - 1).clamp(min=0)
        output = model(
            input_ids=prompt_PT,
            attention_mask=mask_PT,
            position_ids=positions_PT,
            use_cache=True,
            logits_to_keep=1,
        )
        make_room(output.cache, row_B, max_new_tokens - 1)
        self._model, self._cache = model, output.cache
        self._mask_BT, self._position_B1 = mask_PT[row_B], positions_PT[row_B, -1:]
        self.logits_BV = output.logits[row_B, -1]

    def feed(self, token_B1: Tensor, is_live_B1: Tensor) -> None:
        """Append a token to each answer; one that is not live is padding."""
        self._mask_BT = torch.cat([self._mask_BT, is_live_B1], dim=1)
        self._position_B1 = self._position_B1 + 1
        output = self._model(
            input_ids=token_B1,
            attention_mask=self._mask_BT,
            position_ids=self._position_B1,
            cache=self._cache,
            use_cache=True,
        )
        self.logits_BV = output.logits[:, -1]

    def retire(self, is_live_N: Tensor) -> Tensor | None:
        """Drop the rows of answers that ended, once they are many."""
        found = _kept(is_live_N[:, None], self.logits_BV.shape[-1])
        if found is None:
            return None
        kept, _ = found
        self._cache.batch_select_indices(kept)
        self._mask_BT, self._position_B1 = self._mask_BT[kept], self._position_B1[kept]
        return kept


class LeanDecoder:
    """Of a small model (see ``Lean``)."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompt_PT: Tensor,
        mask_PT: Tensor,
        row_B: Tensor,
        max_new_tokens: int,
    ) -> None:
        prompt_PT, mask_PT = widened(prompt_PT, mask_PT)
        self._lean = Lean(model, prompt_PT.shape[1] + max_new_tokens)
        self._head = model.lm_head
        last_P1D, of_prompts = read_prompts(self._lean, prompt_PT, mask_PT)
        self.logits_BV = self._logits(last_P1D[:, 0]).index_select(0, row_B)
        self._position_B1 = mask_PT.sum(1)[row_B, None] - 1
        # Answers that are not as many to each prompt, in its order, have a copy of it each.
        self._num_answers = len(row_B) // len(prompt_PT)
        in_order_B = torch.arange(len(prompt_PT)).repeat_interleave(self._num_answers)
        bias_P1T = torch.where(mask_PT[:, None], 0.0, UNSEEN)
        if not torch.equal(row_B, in_order_B):
            self._num_answers, bias_P1T = 1, bias_P1T[row_B]
            of_prompts = [(keys[row_B], values[row_B]) for keys, values in of_prompts]
        self._memory = AnswerMemory(
            of_prompts, bias_P1T, self._lean.num_queries, self._num_answers, max_new_tokens - 1
        )

    def feed(self, token_B1: Tensor, is_live_B1: Tensor) -> None:
        """Append a token to each answer; what those that are not live see does not matter."""
        self._position_B1 = self._position_B1 + 1
        self._memory.begin_token()

        def attend(i: int, *qkv_B1HD: Tensor) -> Tensor:
            return self._memory.attention(i, *(x_B1HD[:, 0] for x_B1HD in qkv_B1HD))[:, None]

        states_B1D = self._lean.states(token_B1, self._position_B1, attend)
        self.logits_BV = self._logits(states_B1D[:, 0])

    def retire(self, is_live_N: Tensor) -> Tensor | None:
        """Drop the rows of answers that ended, once they are many."""
        kept = _kept(is_live_N.view(-1, self._num_answers), self.logits_BV.shape[-1])
        if kept is None:
            return None
        prompts, rows_PC = kept
        rows = rows_PC.flatten()
        self._memory.keep(prompts, rows)
        self._position_B1, self._num_answers = self._position_B1[rows], rows_PC.shape[1]
        return rows

    def _logits(self, states_ND: Tensor) -> Tensor:
        return F.linear(states_ND, self._head.weight, self._head.bias)


def _kept(is_live_PC: Tensor, num_words: int) -> tuple[Tensor, Tensor] | None:
    """The prompts that stay, and which rows their answers are, as many to each; None if all do.

    Where prompts are left with few answers and others with many, each answer has its prompt to
    itself.

    Vector instructions leave an odd rest to scalar ones, whose last bits differ. So that no number
    depends on how many rows are left, enough dead ones stay to fill whole vectors.
    """
    num_prompts, num_answers = is_live_PC.shape
    num_live_P = is_live_PC.sum(1)
    num_live = int(num_live_P.sum())
    most = RETIRE_AT * is_live_PC.numel()
    if num_live > most:
        return None
    step = max(FEWEST_ROWS, LANES // math.gcd(LANES, num_words))
    num_single = -(-num_live // step) * step
    width = int(num_live_P.max())
    multiple = step // math.gcd(step, width)
    height = -(-int((num_live_P > 0).sum()) // multiple) * multiple
    num_together = height * width if height <= num_prompts else is_live_PC.numel()
    if num_single <= RETIRE_AT * num_together:
        rows = _first(is_live_PC.flatten(), num_single)
        return rows // num_answers, rows[:, None]
    if num_together > most:
        return None
    prompts = _first(num_live_P > 0, height)
    answers_PC = _first(is_live_PC.index_select(0, prompts), width)
    return prompts, prompts[:, None] * num_answers + answers_PC


def _first(is_wanted_N: Tensor, num: int) -> Tensor:
    """So many places, of the last axis, with all that are wanted; in order."""
    order_N = (~is_wanted_N).to(torch.uint8).argsort(dim=-1, stable=True)
    return order_N[..., :num].sort(dim=-1).values
