"""The forward pass of small models of Llama's form, in fewer and larger operations.

A small model spends much of its time handing out operations, and many of those of transformers are
masks, copies and the parts of norms. Here the same parameters go through the same formulas: weights
of norms and scales are worked into the matrices that follow, matrices of the same input are one,
what is the same for all tokens is made once, and nothing but attention is computed for padding.

Other models, and large ones, whose time goes into products, take their own forward.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM
from transformers.activations import SiLUActivation

Extend = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Given a layer's number and the keys and values of the tokens being read, shape ``[N, H, T, D]``,
those that attention is to see, shape ``[N, H, S, D]``."""
FAMILIES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
PARTS = {nn.Linear, nn.Embedding, nn.ModuleList, nn.SiLU, SiLUActivation}
"""What their models consist of besides the classes of their own files."""
OWN_ATTENTION = {"eager", "sdpa"}
"""Attention by one formula; any other may be anything."""
FIXED_ROTATIONS = {"default", "linear", "llama3"}
"""Rotary embeddings in which the angles of a position do not depend on the length of the text."""
LARGEST = 1 << 25
"""Parameters of a model that is small: its matrices are copied for every pass."""
FEW_SCORES = 1 << 21
"""Scores of attention that may exist at once (8 MB); more are never written out, which takes longer
where they are few."""
FAST_SOFTMAX = 16
"""Scores in a row below which torch takes a softmax number by number, twelve times slower."""
UNSEEN = -1e30
"""Added to the score of what attention must not see: its exponential is 0, and a row of nothing but
such scores, as of padding, stays finite."""


def is_lean(model: PreTrainedModel) -> bool:
    """Whether ``Lean`` computes what the model's own forward does.

    In float32 on a CPU, of a family whose layers are known and nothing but these, without adapters,
    hooks, dropout, sliding windows, attention of another kind and checkpointed blocks.
    """
    if type(model) not in FAMILIES:
        return False
    config: Any = model.config
    layers: Any = model.model.layers
    parameters = list(model.parameters())
    return (
        all(p.device.type == "cpu" and p.dtype == torch.float32 for p in parameters)
        and sum(p.numel() for p in parameters) <= LARGEST
        and config.hidden_act == "silu"
        and config.rms_norm_eps > 0
        and len(layers) == config.num_hidden_layers
        and config._attn_implementation in OWN_ATTENTION
        and config.rope_parameters["rope_type"] in FIXED_ROTATIONS
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and not (model.training and config.attention_dropout)
        and not model.is_activation_checkpointing
        and all(_is_plain(module, type(model).__module__) for module in model.modules())
    )


def _is_plain(module: nn.Module, family: str) -> bool:
    """Whether a module is one of torch's own or of a family's file, as it was made."""
    kind = type(module)
    is_known = kind in PARTS or kind.__module__ == family
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return is_known and "forward" not in vars(module) and not any(vars(module)[h] for h in hooks)


@dataclass(frozen=True)
class _Layer:
    """What a layer multiplies with, transposed: queries, keys and values are one matrix."""

    qkv_DE: Tensor
    qkv_bias_E: Tensor | None
    turned_scale_HD: Tensor | None
    """Of queries and keys that are divided by their own size, as in Qwen3."""
    out_ED: Tensor
    out_bias_D: Tensor | None
    gate_up_DF: Tensor
    gate_up_bias_F: Tensor | None
    down_FD: Tensor
    down_bias_D: Tensor | None


class Lean:
    """A model's parameters, ready to be passed through; they carry the gradient.

    Args:
        model: A model for which ``is_lean``.
        num_positions: How many tokens a text has at most.

    Attributes:
        head_size: Channels of an attention head.
    """

    def __init__(self, model: PreTrainedModel, num_positions: int) -> None:
        body: Any = model.model
        attention = body.layers[0].self_attn
        self.head_size = attention.head_dim
        self._num_queries = attention.q_proj.out_features // self.head_size
        self._num_keys = attention.k_proj.out_features // self.head_size
        self._embedding_VD = body.embed_tokens.weight
        # Its embedding has no gradient, even where the token stands in a text.
        self._padding_idx = body.embed_tokens.padding_idx
        self._eps = body.norm.variance_epsilon
        self._layers = [_fold(layer) for layer in body.layers]
        self._final_D = body.norm.weight * len(body.norm.weight) ** 0.5
        with torch.no_grad():
            every_1L = torch.arange(num_positions)[None]
            cos_1LD, sin_1LD = body.rotary_emb(body.norm.weight, every_1L)
        half = self.head_size // 2
        self._turn_LC = torch.complex(cos_1LD[0, :, :half], sin_1LD[0, :, :half])

    def states(
        self,
        token_NT: Tensor,
        position_NT: Tensor,
        bias_N1TS: Tensor,
        extend: Extend,
        mask_NT: Tensor | None = None,
    ) -> Tensor:
        """Hidden states that the output head is applied to, shape ``[N, T, D]``.

        Args:
            token_NT: The tokens to read.
            position_NT: Their places in their texts.
            bias_N1TS: Added to scores: 0 for what a token sees, ``UNSEEN`` for what it does not.
            extend: Gives each layer what its attention sees.
            mask_NT: True where there is a token. Nothing but attention is computed for the rest,
                whose states are 0; all if not given.
        """
        shape = token_NT.shape
        there_M = None if mask_NT is None else mask_NT.flatten().nonzero()[:, 0]
        turn_NT1C = self._turn_LC[position_NT][:, :, None]
        x_MD = F.embedding(
            _packed(token_NT, there_M), self._embedding_VD, padding_idx=self._padding_idx
        )
        for i, layer in enumerate(self._layers):
            unit_MD = _unit(x_MD, self._eps)
            qkv_ME = _linear(unit_MD, layer.qkv_DE, layer.qkv_bias_E)
            qkv_NTHD = _spread(qkv_ME, there_M, shape).unflatten(-1, (-1, self.head_size))
            queries_NHTD, keys_NHTD, values_NHTD = self._turned(
                qkv_NTHD, turn_NT1C, layer.turned_scale_HD
            )
            seen_NHSD = extend(i, keys_NHTD, values_NHTD)
            y_NHTD = _attend(queries_NHTD, *seen_NHSD, bias_N1TS)
            y_ME = _packed(y_NHTD.transpose(1, 2).flatten(2), there_M)
            x_MD = _added(x_MD, y_ME, layer.out_ED, layer.out_bias_D)
            unit_MD = _unit(x_MD, self._eps)
            gate_MF, up_MF = _linear(unit_MD, layer.gate_up_DF, layer.gate_up_bias_F).chunk(2, -1)
            x_MD = _added(x_MD, F.silu(gate_MF) * up_MF, layer.down_FD, layer.down_bias_D)
        return _spread(_unit(x_MD, self._eps) * self._final_D, there_M, shape)

    def _turned(
        self, qkv_NTHD: Tensor, turn_NT1C: Tensor, scale_HD: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Queries, keys and values, the first two turned by their positions."""
        qk_NTHD, values_NTHD = qkv_NTHD.split(
            [self._num_queries + self._num_keys, self._num_keys], dim=2
        )
        if scale_HD is not None:
            qk_NTHD = _unit(qk_NTHD, self._eps) * scale_HD
        qk_NTHC = torch.view_as_complex(qk_NTHD.unflatten(-1, (-1, 2)))
        qk_NTHD = torch.view_as_real(qk_NTHC * turn_NT1C).flatten(-2)
        queries_NTHD, keys_NTHD = qk_NTHD.split([self._num_queries, self._num_keys], dim=2)
        return tuple(x_NTHD.transpose(1, 2) for x_NTHD in (queries_NTHD, keys_NTHD, values_NTHD))


def lean_answer_states(
    model: PreTrainedModel,
    prompt_PT: Tensor,
    prompt_mask_PT: Tensor,
    row_N: Tensor,
    answer_NT: Tensor,
    mask_NT: Tensor,
) -> Tensor:
    """Hidden states that answer tokens are drawn from; each prompt is read once for its answers.

    Args:
        model: A model for which ``is_lean``.
        prompt_PT: Prompt tokens, padded on the left.
        prompt_mask_PT: True where one is no padding.
        row_N: Which prompt each answer belongs to.
        answer_NT: Answer tokens, padded on the right.
        mask_NT: True where one is no padding.

    Returns:
        Shape ``[N, T, D]``; what stands at padding means nothing.
    """
    num_tokens = answer_NT.shape[1]
    prompt_PT, prompt_mask_PT = widened(prompt_PT, prompt_mask_PT)
    lean = Lean(model, prompt_PT.shape[1] + num_tokens)
    of_prompts: list[tuple[Tensor, Tensor]] = []

    def keep(_: int, keys_PHSD: Tensor, values_PHSD: Tensor) -> tuple[Tensor, Tensor]:
        of_prompts.append((keys_PHSD, values_PHSD))
        return keys_PHSD, values_PHSD

    def behind(i: int, *own_NHTD: Tensor) -> tuple[Tensor, Tensor]:
        keys_NHSD, values_NHSD = (
            torch.cat([prompts_PHSD.index_select(0, row_N), x_NHTD], dim=2)
            for prompts_PHSD, x_NHTD in zip(of_prompts[i], own_NHTD, strict=True)
        )
        return keys_NHSD, values_NHSD

    position_PT = (prompt_mask_PT.cumsum(1) - 1).clamp(min=0)
    bias_P1TT = causal_bias(prompt_mask_PT, prompt_PT.shape[1])
    states_PTD = lean.states(prompt_PT, position_PT, bias_P1TT, keep, prompt_mask_PT)
    first_N1D = states_PTD[:, -1:].index_select(0, row_N)
    if num_tokens == 1:
        return first_N1D
    position_NT = position_PT[row_N, -1:] + torch.arange(1, num_tokens)
    seen_NS = torch.cat([prompt_mask_PT[row_N], mask_NT[:, :-1]], dim=1)
    bias_N1TS = causal_bias(seen_NS, num_tokens - 1)
    # The last token of an answer is drawn, not read.
    states_NTD = lean.states(answer_NT[:, :-1], position_NT, bias_N1TS, behind, mask_NT[:, 1:])
    return torch.cat([first_N1D, states_NTD], dim=1)


def widened(prompt_PT: Tensor, mask_PT: Tensor) -> tuple[Tensor, Tensor]:
    """Prompts and their mask, with padding where they are shorter than ``FAST_SOFTMAX``."""
    padding = (max(0, FAST_SOFTMAX - prompt_PT.shape[1]), 0)
    return F.pad(prompt_PT, padding), F.pad(mask_PT, padding)


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


def _fold(layer: Any) -> _Layer:
    """A layer's matrices with the weights of norms and the scale of scores worked in.

    The channels of a head that rotate together, half a head apart in the model, come to stand side
    by side, in queries and keys alike: scores stay what they are.
    """
    attention, mlp = layer.self_attn, layer.mlp
    first, second = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    root, size, scale = len(first) ** 0.5, attention.head_dim, attention.scaling
    qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
    weights, biases = [p.weight for p in qkv], [p.bias for p in qkv]
    turned_scale_HD = None
    if hasattr(attention, "q_norm"):
        num_heads = [len(weight) // size for weight in weights]
        norms = [attention.q_norm.weight * scale, attention.k_norm.weight]
        turned_scale_HD = size**0.5 * torch.cat(
            [_paired(w, size).expand(n, -1) for w, n in zip(norms, num_heads, strict=False)]
        )
    else:
        weights[0] = weights[0] * scale
        biases[0] = None if biases[0] is None else biases[0] * scale
    for i in (0, 1):
        weights[i] = _paired(weights[i], size)
        biases[i] = None if biases[i] is None else _paired(biases[i], size)
    gate_up_FD = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
    return _Layer(
        qkv_DE=(torch.cat(weights) * (first * root)).t(),
        qkv_bias_E=None if biases[0] is None else torch.cat(biases),
        turned_scale_HD=turned_scale_HD,
        out_ED=attention.o_proj.weight.t(),
        out_bias_D=attention.o_proj.bias,
        gate_up_DF=(gate_up_FD * (second * root)).t(),
        gate_up_bias_F=(
            None if mlp.up_proj.bias is None else torch.cat([mlp.gate_proj.bias, mlp.up_proj.bias])
        ),
        down_FD=mlp.down_proj.weight.t(),
        down_bias_D=mlp.down_proj.bias,
    )


def _paired(rows: Tensor, head_size: int) -> Tensor:
    """Rows ``[H * D, ...]`` with row d of a head's first half beside row d of its second."""
    return rows.unflatten(0, (-1, 2, head_size // 2)).transpose(1, 2).reshape(rows.shape)


def _packed(x_NT: Tensor, there_M: Tensor | None) -> Tensor:
    """What stands at tokens, in a row; any axes behind."""
    flat_M = x_NT.flatten(0, 1)
    return flat_M if there_M is None else flat_M.index_select(0, there_M)


def _spread(x_ME: Tensor, there_M: Tensor | None, shape: torch.Size) -> Tensor:
    """The opposite of ``_packed``, with 0 where there is no token."""
    if there_M is not None:
        x_ME = x_ME.new_zeros(shape.numel(), x_ME.shape[1]).index_copy(0, there_M, x_ME)
    return x_ME.view(*shape, -1)


def _linear(x_MD: Tensor, matrix_DE: Tensor, bias_E: Tensor | None) -> Tensor:
    return torch.mm(x_MD, matrix_DE) if bias_E is None else torch.addmm(bias_E, x_MD, matrix_DE)


def _added(x_MD: Tensor, y_ME: Tensor, matrix_ED: Tensor, bias_D: Tensor | None) -> Tensor:
    return torch.addmm(x_MD if bias_D is None else x_MD + bias_D, y_ME, matrix_ED)


def _unit(x_MD: Tensor, eps: float) -> Tensor:
    """Each row over the root of its sum of squares: an RMS norm but for a factor of root D."""
    return x_MD * (x_MD.square().sum(-1, keepdim=True) + x_MD.shape[-1] * eps).rsqrt()


def _attend(
    queries_NHTD: Tensor, keys_NGSD: Tensor, values_NGSD: Tensor, bias_N1TS: Tensor
) -> Tensor:
    """Attention, shape ``[N, H, T, D]``, of queries that are scaled."""
    num_rows, num_heads, num_tokens, size = queries_NHTD.shape
    num_groups, num_seen = keys_NGSD.shape[1:3]
    # Where each row has one token its keys are more numbers than its scores. And what a row gives
    # must not depend on how many there are.
    if num_tokens > 1 and num_rows * num_heads * num_tokens * num_seen > FEW_SCORES:
        return F.scaled_dot_product_attention(
            queries_NHTD,
            keys_NGSD,
            values_NGSD,
            attn_mask=bias_N1TS,
            scale=1.0,
            enable_gqa=num_heads != num_groups,
        )
    # Heads that share keys and values are rows of one product.
    queries_NGRD = queries_NHTD.reshape(num_rows, num_groups, -1, size)
    scores_NGRS = torch.matmul(queries_NGRD, keys_NGSD.transpose(-1, -2))
    scores_NHTS = scores_NGRS.view(num_rows, num_heads, num_tokens, num_seen) + bias_N1TS
    seen_NGRD = torch.matmul(scores_NHTS.softmax(-1).view_as(scores_NGRS), values_NGSD)
    return seen_NGRD.view(num_rows, num_heads, num_tokens, size)
