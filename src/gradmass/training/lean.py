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

from gradmass.training.attention import attention, causal_bias, widened

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Given a layer's number and the queries (scaled), keys and values of the tokens being read, each
``[N, T, heads, D]``: what the queries see, ``[N, T, H, D]``."""
FAMILIES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
PARTS = {nn.Linear, nn.Embedding, nn.ModuleList, nn.SiLU, SiLUActivation}
"""What their models consist of besides the classes of their own files."""
OWN_ATTENTION = {"eager", "sdpa"}
"""Attention by one formula; any other may be anything."""
FIXED_ROTATIONS = {"default", "linear", "llama3"}
"""Rotary embeddings in which the angles of a position do not depend on the length of the text."""
LARGEST = 1 << 25
"""Parameters of a model that is small: its matrices are copied for every pass."""


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
        num_queries: Heads of queries.
    """

    def __init__(self, model: PreTrainedModel, num_positions: int) -> None:
        body: Any = model.model
        attention = body.layers[0].self_attn
        self.head_size = attention.head_dim
        self.num_queries = attention.q_proj.out_features // self.head_size
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
        attend: Attend,
        mask_NT: Tensor | None = None,
        *,
        only_last: bool = False,
    ) -> Tensor:
        """Hidden states that the output head is applied to, shape ``[N, T, D]``.

        Args:
            token_NT: The tokens to read.
            position_NT: Their places in their texts.
            attend: Attention, for each layer in turn.
            mask_NT: True where there is a token. Nothing but attention is computed for the rest,
                whose states are 0; all if not given.
            only_last: Give those of the last tokens alone, T = 1: behind attention, the last layer
                computes nothing for the others.
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
            y_NTHD = attend(i, *self._turned(qkv_NTHD, turn_NT1C, layer.turned_scale_HD))
            if only_last and layer is self._layers[-1]:
                x_MD = _spread(x_MD, there_M, shape)[:, -1]
                y_NTHD, there_M, shape = y_NTHD[:, -1:], None, torch.Size((len(x_MD), 1))
            y_ME = _packed(y_NTHD.flatten(2), there_M)
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
            [self.num_queries + self._num_keys, self._num_keys], dim=2
        )
        if scale_HD is not None:
            qk_NTHD = _unit(qk_NTHD, self._eps) * scale_HD
        qk_NTHC = torch.view_as_complex(qk_NTHD.unflatten(-1, (-1, 2)))
        qk_NTHD = torch.view_as_real(qk_NTHC * turn_NT1C).flatten(-2)
        queries_NTHD, keys_NTHD = qk_NTHD.split([self.num_queries, self._num_keys], dim=2)
        return queries_NTHD, keys_NTHD, values_NTHD


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
    last_P1D, of_prompts = read_prompts(lean, prompt_PT, prompt_mask_PT)
    first_N1D = last_P1D.index_select(0, row_N)
    if num_tokens == 1:
        return first_N1D
    seen_NS = torch.cat([prompt_mask_PT[row_N], mask_NT[:, :-1]], dim=1)
    bias_N1TS = causal_bias(seen_NS, num_tokens - 1)

    def attend(i: int, queries_NTHD: Tensor, *own_NTGD: Tensor) -> Tensor:
        keys_NGSD, values_NGSD = (
            torch.cat([prompts_PGTD.index_select(0, row_N), x_NTGD.transpose(1, 2)], dim=2)
            for prompts_PGTD, x_NTGD in zip(of_prompts[i], own_NTGD, strict=True)
        )
        return attention(queries_NTHD, keys_NGSD, values_NGSD, bias_N1TS)

    num_before_N1 = prompt_mask_PT.sum(1)[row_N, None]
    position_NT = num_before_N1 + torch.arange(num_tokens - 1)
    # The last token of an answer is drawn, not read.
    states_NTD = lean.states(answer_NT[:, :-1], position_NT, attend, mask_NT[:, 1:])
    return torch.cat([first_N1D, states_NTD], dim=1)


def read_prompts(
    lean: Lean, prompt_PT: Tensor, mask_PT: Tensor
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Hidden states of the last tokens of prompts, ``[P, 1, D]``, and all keys and values.

    These are in pairs, one for each layer, ``[P, G, T, D]``.

    Args:
        lean: The policy.
        prompt_PT: Prompt tokens, padded on the left.
        mask_PT: True where one is no padding.
    """
    bias_P1TT = causal_bias(mask_PT, prompt_PT.shape[1])
    seen: list[tuple[Tensor, Tensor]] = []

    def attend(_: int, queries_PTHD: Tensor, keys_PTGD: Tensor, values_PTGD: Tensor) -> Tensor:
        seen.append((keys_PTGD.transpose(1, 2), values_PTGD.transpose(1, 2)))
        return attention(queries_PTHD, *seen[-1], bias_P1TT)

    position_PT = (mask_PT.cumsum(1) - 1).clamp(min=0)
    return lean.states(prompt_PT, position_PT, attend, mask_PT, only_last=True), seen


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
