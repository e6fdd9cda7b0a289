"""The short forward pass against the models' own, which shares no code with it."""

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from gradmass.training import attention as attention_module
from gradmass.training import lean as lean_module
from gradmass.training.attention import FEW_SCORES
from gradmass.training.decoder import LeanDecoder, ModelDecoder, make_decoder
from gradmass.training.lean import is_lean, lean_answer_states

SHAPE = {
    "vocab_size": 21,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CONFIGS = {
    "qwen2": Qwen2Config(**SHAPE, num_key_value_heads=4),
    "qwen2 grouped, tied": Qwen2Config(**SHAPE, num_key_value_heads=2, tie_word_embeddings=True),
    "llama": LlamaConfig(**SHAPE, num_key_value_heads=1, rms_norm_eps=1e-2),
    "llama biased": LlamaConfig(
        **SHAPE, num_key_value_heads=2, attention_bias=True, mlp_bias=True, head_dim=12
    ),
    "llama 3": LlamaConfig(**SHAPE, num_key_value_heads=4, rope_parameters=LLAMA3),
    "llama stretched": LlamaConfig(
        **SHAPE,
        num_key_value_heads=4,
        rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0},
    ),
    "qwen3": Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=16),
}
PROMPT_PT = torch.tensor([[0, 0, 5, 6, 7], [3, 4, 0, 6, 8], [0, 9, 9, 2, 3]])
MASK_PT = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]).bool()
ROW_N = torch.tensor([2, 0, 0, 1, 2, 0])
ANSWER_NT = torch.tensor(
    [
        [4, 5, 6, 1, 0, 0],
        [7, 7, 8, 9, 10, 1],
        [1, 0, 0, 0, 0, 0],
        [7, 1, 0, 0, 0, 0],
        [2, 3, 0, 5, 6, 7],
        [9, 9, 1, 0, 0, 0],
    ]
)
LENGTHS = [4, 6, 1, 2, 6, 3]
ANSWER_MASK_NT = torch.arange(6) < torch.tensor(LENGTHS)[:, None]


def random_model(config, seed=0):
    """Far from uniform, and with norms and biases that are not those of a new model."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


@pytest.fixture(params=list(CONFIGS))
def model(request):
    return random_model(CONFIGS[request.param])


def own_states(model, n):
    """The states that the tokens of an answer are drawn from: one text, no padding, no cache."""
    p = ROW_N[n]
    prompt = PROMPT_PT[p][MASK_PT[p]].tolist()
    tokens = prompt + ANSWER_NT[n, : LENGTHS[n]].tolist()
    states_1TD = model.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state
    return states_1TD[0, len(prompt) - 1 : -1]


def lean_states(model):
    states_NTD = lean_answer_states(model, PROMPT_PT, MASK_PT, ROW_N, ANSWER_NT, ANSWER_MASK_NT)
    return [states_NTD[n, :length] for n, length in enumerate(LENGTHS)]


@pytest.mark.parametrize("few_scores", [0, FEW_SCORES])
def test_states_are_those_of_the_model_s_own_forward(model, few_scores, monkeypatch):
    monkeypatch.setattr(attention_module, "FEW_SCORES", few_scores)
    assert is_lean(model)
    for n, states_TD in enumerate(lean_states(model)):
        torch.testing.assert_close(states_TD, own_states(model, n), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("few_scores", [0, FEW_SCORES])
def test_so_are_the_gradients_of_all_parameters(model, few_scores, monkeypatch):
    monkeypatch.setattr(attention_module, "FEW_SCORES", few_scores)
    torch.manual_seed(1)
    directions = [torch.randn(length, SHAPE["hidden_size"]) for length in LENGTHS]

    def gradients(states):
        total = sum((s * d).sum() for s, d in zip(states, directions, strict=True))
        parameters = dict(model.model.named_parameters())
        return dict(
            zip(parameters, torch.autograd.grad(total, list(parameters.values())), strict=True)
        )

    found = gradients(lean_states(model))
    for name, expected in gradients([own_states(model, n) for n in range(len(LENGTHS))]).items():
        scale = float(expected.abs().max())
        assert scale > 0, name
        torch.testing.assert_close(found[name], expected, rtol=1e-3, atol=1e-4 * scale)


def test_a_padding_token_that_is_read_has_no_gradient_as_in_the_model_itself(model):
    grad_VD = torch.autograd.grad(
        sum(states.square().sum() for states in lean_states(model)),
        model.get_input_embeddings().weight,
    )[0]
    assert (grad_VD[0] == 0).all()
    assert (grad_VD[6] != 0).any()


def test_frozen_parameters_are_left_out(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1.self_attn" in name)
    sum(states.square().sum() for states in lean_states(model)).backward()
    found = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert found == {name for name, _ in model.named_parameters() if "layers.1.self_attn" in name}


def test_one_token_needs_the_prompt_alone(model):
    states_N1D = lean_answer_states(
        model, PROMPT_PT, MASK_PT, ROW_N, ANSWER_NT[:, :1], ANSWER_MASK_NT[:, :1]
    )
    for n in range(len(LENGTHS)):
        torch.testing.assert_close(states_N1D[n], own_states(model, n)[:1], rtol=1e-4, atol=1e-5)


def test_nothing_is_read_behind_a_token_that_ends_its_answer(model):
    """Columns that no answer reaches leave the states, and the gradient, as they are."""
    arguments = (model, PROMPT_PT, MASK_PT, ROW_N)
    mask_NT = ANSWER_MASK_NT & (torch.arange(6) < 1)
    states_NTD = lean_answer_states(*arguments, ANSWER_NT, mask_NT)
    states_N1D = lean_answer_states(*arguments, ANSWER_NT[:, :1], mask_NT[:, :1])
    torch.testing.assert_close(states_NTD[:, :1], states_N1D)
    assert (states_NTD[:, 1:] == 0).all()
    parameters = list(model.model.parameters())
    wide = torch.autograd.grad(states_NTD.square().sum(), parameters)
    narrow = torch.autograd.grad(states_N1D.square().sum(), parameters)
    for found, expected in zip(wide, narrow, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("max_new_tokens", [6, 40])
@torch.inference_mode()
def test_decoding_gives_the_logits_of_the_model_s_own(model, max_new_tokens):
    """With a room that attention sees a part of, and one that it sees whole."""
    arguments = (model, PROMPT_PT, MASK_PT, ROW_N, max_new_tokens)
    short = make_decoder(*arguments)
    assert isinstance(short, LeanDecoder)
    own, rows_N = ModelDecoder(*arguments), torch.arange(len(ROW_N))
    for t in range(5):
        is_live_N = t < torch.tensor(LENGTHS)[rows_N]
        torch.testing.assert_close(
            short.logits_BV[is_live_N], own.logits_BV[is_live_N], rtol=1e-4, atol=1e-4
        )
        is_next_N = t + 1 < torch.tensor(LENGTHS)[rows_N]
        kept = short.retire(is_next_N)
        again = own.retire(is_next_N)
        assert (kept is None) == (again is None)
        if kept is not None:
            assert torch.equal(kept, again)
            rows_N, is_next_N = rows_N[kept], is_next_N[kept]
        for each in (short, own):
            each.feed(ANSWER_NT[rows_N, t, None], is_next_N[:, None])


IN_ORDER_N = torch.arange(3).repeat_interleave(32)
MIXED_N = torch.arange(96) % 3


def of_32_words(num_key_value_heads):
    """A vocabulary whose rows fill vectors one by one."""
    return random_model(
        Qwen2Config(**SHAPE | {"vocab_size": 32}, num_key_value_heads=num_key_value_heads)
    )


PLACE_N = torch.arange(96)
LEFT_N = {
    "as many of each prompt": PLACE_N % 4 == 0,
    "many of one, few of the others": (PLACE_N < 10) | (PLACE_N % 32 == 0),
    "few": PLACE_N % 40 == 0,
}


@pytest.mark.parametrize("num_key_value_heads", [2, 4])
@pytest.mark.parametrize("row_N", [IN_ORDER_N, MIXED_N], ids=["in order", "mixed"])
@pytest.mark.parametrize("is_left_N", LEFT_N.values(), ids=LEFT_N)
@torch.inference_mode()
def test_rows_that_ended_are_dropped_and_the_others_do_not_notice(
    row_N, is_left_N, num_key_value_heads
):
    """Before they have read a token of their own, and after."""
    model = of_32_words(num_key_value_heads)
    whole, some = (make_decoder(model, PROMPT_PT, MASK_PT, row_N, 8) for _ in range(2))
    tokens_NT = torch.arange(96 * 7).view(96, 7) % 32
    rows_N = PLACE_N
    for t, is_next_N in enumerate([is_left_N, is_left_N, PLACE_N == 0, PLACE_N == 0]):
        kept = some.retire(is_next_N[rows_N])
        assert (kept is None) == (t in (1, 3) or len(rows_N) == 4)
        rows_N = rows_N if kept is None else rows_N[kept]
        assert set(is_next_N.nonzero()[:, 0].tolist()) <= set(rows_N.tolist())
        assert len(rows_N) < 96 / 2
        whole.feed(tokens_NT[:, t, None], is_next_N[:, None])
        some.feed(tokens_NT[rows_N, t, None], is_next_N[rows_N, None])
        assert torch.equal(whole.logits_BV[rows_N], some.logits_BV)


@torch.inference_mode()
def test_an_answer_s_numbers_do_not_depend_on_what_else_is_asked():
    """Whether the answers of a prompt stand together, and how many there are."""
    model = of_32_words(4)
    together = make_decoder(model, PROMPT_PT, MASK_PT, IN_ORDER_N, 8)
    mixed = make_decoder(model, PROMPT_PT, MASK_PT, MIXED_N, 8)
    fewer = make_decoder(model, PROMPT_PT[:2], MASK_PT[:2], IN_ORDER_N[:64], 8)
    place_N = MIXED_N.argsort(stable=True)
    for t in range(7):
        tokens_N1 = ((torch.arange(96) + t) % 32)[:, None]
        together.feed(tokens_N1, tokens_N1 >= 0)
        mixed.feed(tokens_N1[place_N.argsort()], tokens_N1 >= 0)
        fewer.feed(tokens_N1[:64], tokens_N1[:64] >= 0)
        assert torch.equal(together.logits_BV, mixed.logits_BV[place_N])
        assert torch.equal(together.logits_BV[:64], fewer.logits_BV)


def changed(**fields):
    return Qwen2Config(**SHAPE | fields, num_key_value_heads=4)


class Rounding(torch.nn.Linear):
    """A linear layer that computes something else, as quantised ones do."""


OTHERS = {
    "another family": MistralConfig(**SHAPE, num_key_value_heads=4),
    "capped logits": Gemma2Config(**SHAPE, num_key_value_heads=4, head_dim=8),
    "absolute positions": GPT2Config(vocab_size=21, n_embd=32, n_layer=2, n_head=2),
    "a sliding window": changed(use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "another activation": changed(hidden_act="gelu"),
    "rotations by length": changed(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
    ),
    "many parameters": changed(vocab_size=1_100_000),
}


@pytest.mark.parametrize("config", OTHERS.values(), ids=OTHERS)
def test_models_of_another_form_take_their_own_forward(config):
    model = AutoModelForCausalLM.from_config(config).eval()
    assert not is_lean(model)


def test_so_does_a_model_that_is_not_as_it_was_made():
    model = random_model(CONFIGS["qwen2"])
    assert is_lean(model)
    handle = model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert not is_lean(model)
    handle.remove()
    assert is_lean(model)
    model.config.attention_dropout = 0.1
    assert is_lean(model)
    assert not is_lean(model.train())
    model.config.attention_dropout = 0.0
    assert is_lean(model)
    model.config.num_hidden_layers = 2
    assert not is_lean(model)
    model.config.num_hidden_layers = 3
    model.config._attn_implementation = "flex_attention"
    assert not is_lean(model)
    model.config._attn_implementation = "sdpa"
    handle = model.lm_head.register_full_backward_hook(lambda *_: None)
    assert not is_lean(model)
    handle.remove()
    model.model.norm.forward = model.model.norm.forward
    assert not is_lean(model)
    del model.model.norm.forward
    model.model.norm.to(torch.bfloat16)
    assert not is_lean(model)
    model.model.norm.to(torch.float32)
    model.model.layers[0].mlp.up_proj = Rounding(32, 48, bias=False)
    assert not is_lean(model)
    model = random_model(CONFIGS["qwen2"])
    assert is_lean(model)
    assert not is_lean(model.to(torch.bfloat16))
    model = random_model(CONFIGS["qwen2"])
    model.activation_checkpointing_enable({"use_reentrant": False})
    assert not is_lean(model)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's
def test_a_model_with_adapters_takes_its_own_forward():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(random_model(CONFIGS["qwen2"]), LoraConfig(target_modules=["q_proj"]))
    assert not is_lean(model)
    assert not is_lean(model.get_base_model())


def test_every_family_was_tried_with_every_part():
    """Heads that share keys, tied heads, biases, rotations and norms of heads."""
    seen = {type(AutoModelForCausalLM.from_config(config)) for config in CONFIGS.values()}
    assert seen == set(lean_module.FAMILIES)
    kinds = {config.rope_parameters["rope_type"] for config in CONFIGS.values()}
    assert kinds == lean_module.FIXED_ROTATIONS
