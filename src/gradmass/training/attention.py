"""Attention of small models on a CPU: of whole texts, and of answers being written."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_SCORES = 1 << 21
"""Scores of attention that may exist at once (8 MB); more are never written out, which takes longer
where they are few."""
FAST_SOFTMAX = 16
"""Scores in a row below which torch takes a softmax number by number, twelve times slower."""
UNSEEN = -1e30
"""Added to the score of what attention must not see: its exponential is 0, and a row of nothing but
such scores, as of padding, stays finite."""


def attention(
    queries_NTHD: Tensor, keys_NGSD: Tensor, values_NGSD: Tensor, bias_N1TS: Tensor
) -> Tensor:
    """What queries see, shape ``[N, T, H, D]``.

    Args:
        queries_NTHD: Scaled.
        keys_NGSD: As many heads of them, or fewer, each for as many heads of queries.
        values_NGSD: Likewise.
        bias_N1TS: Added to scores: 0 for what a token sees, ``UNSEEN`` for what it does not.
    """
    num_rows, num_tokens, num_heads, size = queries_NTHD.shape
    num_groups, num_seen = keys_NGSD.shape[1:3]
    queries_NHTD = queries_NTHD.transpose(1, 2)
    if num_rows * num_heads * num_tokens * num_seen > FEW_SCORES:
        seen_NHTD = F.scaled_dot_product_attention(
            queries_NHTD,
            keys_NGSD,
            values_NGSD,
            attn_mask=bias_N1TS,
            scale=1.0,
            enable_gqa=num_heads != num_groups,
        )
        return seen_NHTD.transpose(1, 2)
    # Heads that share keys and values are rows of one product.
    queries_NGRD = queries_NHTD.reshape(num_rows, num_groups, -1, size)
    scores_NGRS = torch.matmul(queries_NGRD, keys_NGSD.transpose(-1, -2))
    scores_NHTS = scores_NGRS.view(num_rows, num_heads, num_tokens, num_seen) + bias_N1TS
    seen_NGRD = torch.matmul(scores_NHTS.softmax(-1).view_as(scores_NGRS), values_NGSD)
    return seen_NGRD.view(num_rows, num_heads, num_tokens, size).transpose(1, 2)


def causal_bias(mask_NS: Tensor, num_tokens: int) -> Tensor:
    """What is added to scores so that each token sees those up to itself that are no padding.

    Args:
        mask_NS: True where a token is no padding.
        num_tokens: How many of them, the last ones, see.

    Returns:
        Shape ``[N, 1, T, S]``.
    """
    num_seen = mask_NS.shape[1]
    is_before_TS = torch.ones(num_tokens, num_seen, dtype=torch.bool).tril(num_seen - num_tokens)
    return torch.where(mask_NS[:, None, None] & is_before_TS, 0.0, UNSEEN)


def widened(prompt_PT: Tensor, mask_PT: Tensor) -> tuple[Tensor, Tensor]:
    """Prompts and their mask, with padding where they are shorter than ``FAST_SOFTMAX``."""
    padding = (max(0, FAST_SOFTMAX - prompt_PT.shape[1]), 0)
    return F.pad(prompt_PT, padding), F.pad(mask_PT, padding)


class AnswerMemory:
    """What answers being written see: their prompts, kept once for all answers, and themselves.

    A token a row makes products of so few numbers that handing them out takes longer than making
    them. So a row's heads are one product: each head's query stands in the channels of its own
    keys, among zeros. And those of a prompt's answers with the prompt are one.

    Rows are P prompts times C answers, those of a prompt one after the other.

    Args:
        of_prompts: Of each layer, keys and values of the prompts, each ``[P, G, T, D]``.
        bias_P1T: Added to scores of the prompts' tokens: 0, or ``UNSEEN`` for padding.
        num_heads: Heads of queries, H.
        num_answers: Answers to each prompt, C.
        num_tokens: Most tokens of an answer that are read.
    """

    def __init__(
        self,
        of_prompts: Sequence[tuple[Tensor, Tensor]],
        bias_P1T: Tensor,
        num_heads: int,
        num_answers: int,
        num_tokens: int,
    ) -> None:
        num_prompts, num_groups, _, size = of_prompts[0][0].shape
        self._bias_P1T = bias_P1T
        # One piece: of many, the system takes back each time what the next batch asks it for again.
        stacked = torch.stack([x_PGTD for pair in of_prompts for x_PGTD in pair])
        self._prompts_LPTE = stacked.transpose(2, 3).flatten(3)
        num_rows, width = num_prompts * num_answers, num_groups * size
        self._own_LBSE = stacked.new_empty(len(stacked), num_rows, num_tokens, width)
        self._end = 0
        self._group_HG1 = torch.eye(num_groups).repeat_interleave(num_heads // num_groups, 0)[
            ..., None
        ]

    def begin_token(self) -> None:
        """A token more of each answer is read."""
        self._end += 1

    def attention(
        self, layer: int, queries_BHD: Tensor, keys_BGD: Tensor, values_BGD: Tensor
    ) -> Tensor:
        """What the newest token of each answer sees, itself included, shape ``[B, H, D]``.

        Args:
            layer: Number of the layer.
            queries_BHD: Scaled.
            keys_BGD: Of these tokens; kept.
            values_BGD: Likewise.
        """
        num_rows, num_heads, size = queries_BHD.shape
        num_groups = keys_BGD.shape[1]
        own_keys_BSE, own_values_BSE = self._own_LBSE[2 * layer : 2 * layer + 2, :, : self._end]
        prompt_keys_PTE, prompt_values_PTE = self._prompts_LPTE[2 * layer : 2 * layer + 2]
        num_prompts, num_tokens, width = prompt_keys_PTE.shape
        own_keys_BSE[:, -1].view(keys_BGD.shape).copy_(keys_BGD)
        own_values_BSE[:, -1].view(keys_BGD.shape).copy_(values_BGD)
        queries_BHE = (queries_BHD[:, :, None] * self._group_HG1).flatten(2)
        scores_PRT = torch.baddbmm(
            self._bias_P1T,
            queries_BHE.view(num_prompts, -1, width),
            prompt_keys_PTE.transpose(1, 2),
        )
        scores_BHS = torch.bmm(queries_BHE, own_keys_BSE.transpose(1, 2))
        share_BHS = torch.cat(
            [scores_PRT.view(num_rows, num_heads, num_tokens), scores_BHS], dim=2
        ).softmax(2)
        of_prompts_BHT, of_own_BHS = share_BHS.split([num_tokens, self._end], dim=2)
        seen_PRE = torch.bmm(of_prompts_BHT.reshape(num_prompts, -1, num_tokens), prompt_values_PTE)
        seen_BHE = seen_PRE.view(num_rows, num_heads, width).baddbmm_(of_own_BHS, own_values_BSE)
        seen_BGRGD = seen_BHE.view(num_rows, num_groups, -1, num_groups, size)
        seen_BRDG = seen_BGRGD.diagonal(dim1=1, dim2=3)
        return seen_BRDG.permute(0, 3, 1, 2).reshape(num_rows, num_heads, size)

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """Have these prompts, which may repeat, and these answers, as many to each."""
        # index_select: indexing with a tensor takes ten times as long.
        self._prompts_LPTE = self._prompts_LPTE.index_select(1, prompts)
        self._bias_P1T = self._bias_P1T.index_select(0, prompts)
        self._own_LBSE = self._own_LBSE.index_select(1, rows)
