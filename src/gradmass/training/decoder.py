"""Policies that read their prompts and write answers token by token, with a KV cache."""

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from gradmass.training.cache import keep_rows, make_room
from gradmass.training.lean import UNSEEN, Lean, causal_bias, is_lean, widened

LANES = 32
"""Numbers that the widest vector loops treat at once."""
RETIRE_AT = 0.75
"""Share of the rows being computed below which those of answers that ended are dropped."""
ENOUGH = 400
"""Terms of a product of a batch below which torch goes through a plain loop, five times slower."""


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
            The rows that stay, in their new order; None if all do.
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
    kind = LeanDecoder if is_lean(model) else ModelDecoder
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
        kept = _kept(is_live_N, self.logits_BV.shape[-1])
        if kept is not None:
            self._cache.batch_select_indices(kept)
            self._mask_BT, self._position_B1 = self._mask_BT[kept], self._position_B1[kept]
        return kept


class LeanDecoder:
    """Of a small model (see ``Lean``).

    Attention sees a column for each token to come from the start, where that is what it takes for
    its products not to be the slow ones of few terms; the columns not yet written are masked.
    """

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
        self._end, self._num_room = prompt_PT.shape[1], prompt_PT.shape[1] + max_new_tokens - 1
        self._num_enough = -(-ENOUGH // self._lean.head_size)
        of_prompts_PHTD: list[Tensor] = []

        def keep(_: int, keys_PHTD: Tensor, values_PHTD: Tensor) -> tuple[Tensor, Tensor]:
            of_prompts_PHTD.extend((keys_PHTD, values_PHTD))
            return keys_PHTD, values_PHTD

        position_PT = (mask_PT.cumsum(1) - 1).clamp(min=0)
        bias_P1TT = causal_bias(mask_PT, prompt_PT.shape[1])
        states_PTD = self._lean.states(prompt_PT, position_PT, bias_P1TT, keep, mask_PT)
        room = max_new_tokens - 1
        # Zeros, since what is not written yet is added up with weight 0. One piece: of many, the
        # system takes back each time what the next batch has to ask it for again.
        memory_LPHSD = F.pad(torch.stack(of_prompts_PHTD), (0, 0, 0, room))
        self._memory_LBHSD = memory_LPHSD.index_select(1, row_B)
        self._position_B1 = position_PT[row_B, -1:]
        self._bias_B11S = F.pad(bias_P1TT[:, :, -1:], (0, room), value=UNSEEN)[row_B]
        self.logits_BV = self._logits(states_PTD[:, -1])[row_B]

    def feed(self, token_B1: Tensor, is_live_B1: Tensor) -> None:
        """Append a token to each answer; what those that are not live see does not matter."""
        new, self._end = self._end, self._end + 1
        num_seen = max(self._end, min(self._num_room, self._num_enough))
        self._bias_B11S[..., new] = 0.0
        self._position_B1 = self._position_B1 + 1

        def extend(i: int, keys_BH1D: Tensor, values_BH1D: Tensor) -> tuple[Tensor, Tensor]:
            keys_BHSD, values_BHSD = self._memory_LBHSD[2 * i], self._memory_LBHSD[2 * i + 1]
            keys_BHSD[:, :, new : self._end] = keys_BH1D
            values_BHSD[:, :, new : self._end] = values_BH1D
            return keys_BHSD[:, :, :num_seen], values_BHSD[:, :, :num_seen]

        states_B1D = self._lean.states(
            token_B1, self._position_B1, self._bias_B11S[..., :num_seen], extend
        )
        self.logits_BV = self._logits(states_B1D[:, 0])

    def retire(self, is_live_N: Tensor) -> Tensor | None:
        """Drop the rows of answers that ended, once they are many."""
        kept = _kept(is_live_N, self.logits_BV.shape[-1])
        if kept is not None:
            self._memory_LBHSD = keep_rows(self._memory_LBHSD, kept, axis=1)
            self._bias_B11S, self._position_B1 = self._bias_B11S[kept], self._position_B1[kept]
        return kept

    def _logits(self, states_ND: Tensor) -> Tensor:
        return F.linear(states_ND, self._head.weight, self._head.bias)


def _kept(is_live_N: Tensor, num_words: int) -> Tensor | None:
    """The rows that stay, in their new order; None if all do.

    Rows behind those that stay take the places of rows that go, so that few are copied.

    Vector instructions leave an odd rest to scalar ones, whose last bits differ. So that no number
    depends on how many rows are left, enough dead ones stay to fill whole vectors.
    """
    step = LANES // math.gcd(LANES, num_words)
    num_kept = -(-int(is_live_N.sum()) // step) * step
    if num_kept > RETIRE_AT * len(is_live_N):
        return None
    kept = torch.arange(num_kept, device=is_live_N.device)
    moved = is_live_N[num_kept:].nonzero()[:, 0] + num_kept
    free = (~is_live_N[:num_kept]).nonzero()[: len(moved), 0]
    kept[free] = moved
    return kept
