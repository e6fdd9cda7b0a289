"""Log-probabilities and entropies of answer tokens, without the tensor of all logits."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from gradmass.training.lean import is_lean, lean_answer_states
from gradmass.types import UsageError

LOGITS_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 27}
"""Logits of one piece: 64 MB in float32 on a CPU, 512 MB on a GPU; some four such tensors exist at
once in a backward pass."""


def answer_token_terms(
    model: PreTrainedModel,
    prompt_NT: Tensor,
    prompt_mask_NT: Tensor,
    answer_NT: Tensor,
    mask_NT: Tensor,
    *,
    with_entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities in nats of answers to prompts, and entropies; both carry the gradient.

    Few logits are made at once. Many (a vocabulary of 150,000 words) are made in pieces, of answer
    tokens alone, and made again for the gradient: memory then follows the hidden states, not the
    vocabulary. Either way logits are those of the model's own forward, with its caps and scales;
    below them small models take a short one (see ``Lean``).

    Args:
        model: The policy.
        prompt_NT: Prompt tokens, padded on the left.
        prompt_mask_NT: True where one is no padding.
        answer_NT: Answer tokens, padded on the right.
        mask_NT: True where one is no padding.
        with_entropy: Whether entropies are wanted; None stands for them otherwise.

    Returns:
        Shapes ``[N, T]``, float32, 0 at padding. A word that is impossible adds nothing to an
        entropy.
    """
    if is_lean(model):
        both_NT = torch.cat([prompt_mask_NT, prompt_NT], dim=1)
        both_PT, row_N = torch.unique(both_NT, dim=0, return_inverse=True)
        mask_PT, prompt_PT = both_PT.chunk(2, dim=1)
        hidden_NTD = lean_answer_states(model, prompt_PT, mask_PT.bool(), row_N, answer_NT, mask_NT)
        return terms_of_states(model, hidden_NTD, answer_NT, mask_NT, with_entropy=with_entropy)
    tokens_NT = torch.cat([prompt_NT, answer_NT], dim=1)
    attention_NT = torch.cat([prompt_mask_NT, mask_NT], dim=1)
    inputs = {
        "input_ids": tokens_NT,
        "attention_mask": attention_NT,
        "position_ids": (attention_NT.cumsum(1) - 1).clamp(min=0),
        "use_cache": False,
    }
    if _are_few(model, answer_NT):
        logits_NTV = model(**inputs, logits_to_keep=answer_NT.shape[1] + 1).logits[:, :-1]
        return _terms(logits_NTV, answer_NT, mask_NT, with_entropy)
    hidden_NTD = model.base_model(**inputs).last_hidden_state[:, -answer_NT.shape[1] - 1 : -1]
    return terms_of_states(model, hidden_NTD, answer_NT, mask_NT, with_entropy=with_entropy)


def prompted_logprobs(
    model: PreTrainedModel,
    prompt_PT: Tensor,
    prompt_mask_PT: Tensor,
    row_N: Tensor,
    answer_NT: Tensor,
    mask_NT: Tensor,
) -> Tensor:
    """Log-probabilities in nats of answers to prompts, each of which is read once for its answers.

    Args:
        model: The policy.
        prompt_PT: Prompt tokens, padded on the left.
        prompt_mask_PT: True where one is no padding.
        row_N: Which prompt each answer belongs to.
        answer_NT: Answer tokens, padded on the right.
        mask_NT: True where one is no padding.

    Returns:
        Shape ``[N, T]``, float32, 0 at padding.
    """
    if is_lean(model):
        x_NTE = lean_answer_states(model, prompt_PT, prompt_mask_PT, row_N, answer_NT, mask_NT)
        return terms_of_states(model, x_NTE, answer_NT, mask_NT, with_entropy=False)[0]
    # Few logits are made by the model itself; else its body gives the states that many are made of.
    are_few = _are_few(model, answer_NT)
    read = model if are_few else model.base_model
    field, last = ("logits", {"logits_to_keep": 1}) if are_few else ("last_hidden_state", {})
    output = read(
        input_ids=prompt_PT,
        attention_mask=prompt_mask_PT,
        position_ids=(prompt_mask_PT.cumsum(1) - 1).clamp(min=0),
        use_cache=True,
        **last,
    )
    x_NTE = output[field][row_N, -1:]
    if answer_NT.shape[1] > 1:
        output.cache.batch_select_indices(row_N)
        step_T = torch.arange(answer_NT.shape[1] - 1, device=model.device)
        rest = read(
            input_ids=answer_NT[:, :-1],
            attention_mask=torch.cat([prompt_mask_PT[row_N], mask_NT[:, :-1]], dim=1),
            position_ids=prompt_mask_PT[row_N].sum(1, keepdim=True) + step_T,
            cache=output.cache,
            use_cache=True,
        )
        x_NTE = torch.cat([x_NTE, rest[field]], dim=1)
    if are_few:
        return _terms(x_NTE, answer_NT, mask_NT, False)[0]
    return terms_of_states(model, x_NTE, answer_NT, mask_NT, with_entropy=False)[0]


def terms_of_states(
    model: PreTrainedModel,
    hidden_NTD: Tensor,
    answer_NT: Tensor,
    mask_NT: Tensor,
    *,
    with_entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """``answer_token_terms``, given the hidden states that the tokens are drawn from."""
    if _are_few(model, answer_NT):
        logits_MV = logits_of_hidden(model, hidden_NTD.flatten(0, 1))
        return _terms(logits_MV.view(*answer_NT.shape, -1), answer_NT, mask_NT, with_entropy)
    logprobs_M, entropy_M = hidden_terms(
        model, hidden_NTD[mask_NT], answer_NT[mask_NT], with_entropy=with_entropy
    )
    zeros_NT = torch.zeros(mask_NT.shape, device=mask_NT.device)
    return (
        zeros_NT.masked_scatter(mask_NT, logprobs_M),
        None if entropy_M is None else zeros_NT.masked_scatter(mask_NT, entropy_M),
    )


def hidden_terms(
    model: PreTrainedModel, hidden_MD: Tensor, token_M: Tensor, *, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of tokens, and entropies, given the hidden states they are drawn from.

    Args:
        model: Whose hidden states they are.
        hidden_MD: What the output head is applied to, M >= 1.
        token_M: The tokens.
        with_entropy: Whether entropies are wanted.

    Returns:
        Shapes ``[M]``, float32.
    """
    num_rows = max(1, _logits_at_once(model) // _num_words(model))

    def piece(hidden_CD: Tensor, token_C: Tensor) -> tuple[Tensor, Tensor | None]:
        return _terms(logits_of_hidden(model, hidden_CD), token_C, None, with_entropy)

    pieces = [
        checkpoint(piece, hidden_CD, token_C, use_reentrant=False)
        for hidden_CD, token_C in zip(
            hidden_MD.split(num_rows), token_M.split(num_rows), strict=True
        )
    ]
    logprobs_M = torch.cat([logprobs_C for logprobs_C, _ in pieces])
    return logprobs_M, torch.cat([h_C for _, h_C in pieces]) if with_entropy else None


def _are_few(model: PreTrainedModel, answer_NT: Tensor) -> bool:
    """Whether the logits of all answer tokens may exist at once."""
    return answer_NT.numel() * _num_words(model) <= _logits_at_once(model)


def _num_words(model: PreTrainedModel) -> int:
    return len(model.get_output_embeddings().weight)


def _logits_at_once(model: PreTrainedModel) -> int:
    return LOGITS_AT_ONCE["cpu" if model.device.type == "cpu" else "cuda"]


def logits_of_hidden(model: PreTrainedModel, hidden_ND: Tensor) -> Tensor:
    """Logits of hidden states by the model's own forward, with all it does after its output head.

    Some models cap or scale their logits (Gemma, Cohere, Granite); so their forward is run with the
    given states in place of what is below the head.

    Raises:
        UsageError: The model's forward gives something else than a row of logits for each state.
    """
    with _states_given(model, hidden_ND[None]):
        logits_1NV = model(inputs_embeds=hidden_ND[None], use_cache=False).logits
    if logits_1NV.shape[:2] != (1, len(hidden_ND)):
        raise UsageError(
            f"{type(model).__name__} has another form than a body and an output head: its logits "
            "cannot be made in pieces"
        )
    return logits_1NV[0]


@contextmanager
def _states_given(model: PreTrainedModel, hidden_1ND: Tensor) -> Iterator[None]:
    name = model.base_model_prefix
    body = getattr(model, name)
    setattr(model, name, _Given(hidden_1ND))
    try:
        yield
    finally:
        setattr(model, name, body)


class _Given(nn.Module):
    """Stands for the body of a model whose hidden states are known."""

    def __init__(self, hidden_1ND: Tensor) -> None:
        super().__init__()
        self._hidden_1ND = hidden_1ND

    def forward(self, *_: object, **__: object) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self._hidden_1ND)


def _terms(
    logits_NV: Tensor, token_N: Tensor, mask_N: Tensor | None, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each token and entropy of each row, 0 where masked; any axes in front."""
    logprobs_NV = logits_NV.float().log_softmax(-1)
    logprob_N = logprobs_NV.gather(-1, token_N[..., None]).squeeze(-1)
    # where, not times: at padding, an impossible token would leave 0 times infinity.
    logprob_N = logprob_N if mask_N is None else torch.where(mask_N, logprob_N, 0.0)
    if not with_entropy:
        return logprob_N, None
    finite_NV = logprobs_NV.clamp(min=torch.finfo(logprobs_NV.dtype).min)
    entropy_N = -(logprobs_NV.exp() * finite_NV).sum(-1)
    return logprob_N, entropy_N if mask_N is None else torch.where(mask_N, entropy_N, 0.0)
