"""Passes over parts of a batch: their gradients add up to the gradient of the batch whole."""

import copy
import math

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    Qwen3Config,
)

from gradmass.config import LossConfig
from gradmass.tasks.countdown import Countdown
from gradmass.training import terms
from gradmass.training.evaluate import evaluate_exactly
from gradmass.training.loss import batch_loss, joined
from gradmass.training.passes import part, passes
from gradmass.training.rollout import answer_logprobs, answer_terms, sample, uniforms

PROMPTS = ("1,2=3:", "10,11,12,13=100:", "7,7,7=7:", "25,24,9,8=16:")
G, T = 4, 20
SHAPE = {
    "vocab_size": 21,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "head_dim": 8,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
FAMILIES = {
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE),
    "gpt2": GPT2Config(
        vocab_size=21, n_embd=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=1
    ),
    # A cap, a factor and a divisor behind the output head; a sliding window shorter than a row.
    "gemma2": Gemma2Config(
        **SHAPE,
        final_logit_softcapping=2.0,
        sliding_window=6,
        query_pre_attn_scalar=8,
        attn_implementation="eager",
    ),
    "cohere": CohereConfig(**{k: v for k, v in SHAPE.items() if k != "head_dim"}, logit_scale=0.5),
    "granite": GraniteConfig(
        **{k: v for k, v in SHAPE.items() if k != "head_dim"}, logits_scaling=3.0
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[request.param]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


@pytest.fixture(scope="module")
def rollouts(shipped):
    return sample(*shipped, PROMPTS, uniforms((len(PROMPTS) * G, T), 0, "rollout"))


def gradients(value, model):
    model.zero_grad()
    value.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def close(found, expected):
    assert found.keys() == expected.keys()
    size = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        assert float((found[name] - gradient).abs().max()) < 1e-4 * size, name


@pytest.mark.parametrize("tokens_at_once", [1, 40, 100, 300, 10**9])
@pytest.mark.parametrize("aggregation", ["constant", "token-mean"])
@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_gradients_of_passes_add_up_to_that_of_the_batch(
    policy, rollouts, tokens_at_once, aggregation, kl_coef
):
    config = LossConfig(aggregation=aggregation, kl_coef=kl_coef)
    weights_B = torch.linspace(-1, 2, len(PROMPTS) * G)
    start = copy.deepcopy(policy)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    # By hand: one rollout at a time, without padding, from the definition.
    denominator = rollouts.answer_mask_BT.sum() if aggregation == "token-mean" else 4 * G * T
    expected = torch.zeros(())
    for b in range(len(PROMPTS) * G):
        prompt = rollouts.prompt_BT[b][rollouts.prompt_mask_BT[b]]
        answer = rollouts.answer_BT[b][rollouts.answer_mask_BT[b]]
        both = torch.cat([prompt, answer])[None]
        logits, start_logits = policy(both).logits[0], start(both).logits[0].detach()
        for t, token in enumerate(answer):
            at = len(prompt) - 1 + t
            new = logits[at].log_softmax(-1)[token]
            ratio = (new - rollouts.logprobs_BT[b, t]).exp()
            weighed = torch.minimum(ratio * weights_B[b], ratio.clamp(0.8, 1.2) * weights_B[b])
            gap = start_logits[at].log_softmax(-1)[token] - new
            expected = expected + (kl_coef * (gap.exp() - 1 - gap) - weighed) / denominator
    wanted = gradients(expected, policy)

    policy.zero_grad()
    parts, seen = [], []
    for some, rows in passes(rollouts, torch.arange(len(PROMPTS) * G), tokens_at_once):
        width = some.prompt_BT.shape[1] + some.answer_BT.shape[1]
        assert len(rows) == 1 or len(rows) * width <= tokens_at_once
        loss = batch_loss(
            config,
            policy,
            start if kl_coef else None,
            some,
            weights_B[rows],
            torch.arange(len(rows)),
            torch.full((len(rows),), float(denominator)),
        )
        loss.value.backward()
        parts.append(loss)
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(PROMPTS) * G))
    whole = joined(parts)
    assert whole.value.item() == pytest.approx(expected.item(), abs=1e-5)
    assert whole.length_N.tolist() == rollouts.answer_mask_BT.sum(1)[seen].tolist()
    assert whole.has_weight_N.tolist() == (weights_B[seen] != 0).tolist()
    close({name: p.grad for name, p in policy.named_parameters()}, wanted)


def test_a_batch_that_fits_is_one_pass_as_it_is_and_others_are_sorted_by_length(rollouts):
    rows = torch.tensor([9, 2, 5])
    ((whole, chosen),) = passes(rollouts, rows, 10**9)
    assert chosen.tolist() == [9, 2, 5]
    assert torch.equal(whole.answer_BT, rollouts.answer_BT[rows])
    length_B = rollouts.prompt_mask_BT.sum(1) + rollouts.answer_mask_BT.sum(1)
    found = [c for _, c in passes(rollouts, torch.arange(len(PROMPTS) * G), 60)]
    lengths = [length_B[c] for c in torch.cat(found)]
    assert len(found) > 2
    assert lengths == sorted(lengths, reverse=True)


def test_a_part_has_no_padding_that_all_of_its_rows_have(rollouts):
    rows = torch.tensor([0, 1])
    some = part(rollouts, rows, trim=True)
    assert some.prompt_mask_BT.any(0).all()
    assert some.answer_mask_BT.any(0).all()
    for i, b in enumerate(rows.tolist()):
        for name in ("prompt", "answer"):
            found, whole = (getattr(r, f"{name}_BT") for r in (some, rollouts))
            masks = (getattr(r, f"{name}_mask_BT") for r in (some, rollouts))
            here, there = (m[j] for m, j in zip(masks, (i, b), strict=True))
            assert found[i][here].tolist() == whole[b][there].tolist()


def test_logits_in_pieces_give_the_terms_and_gradients_of_each_row_alone(
    family, rollouts, monkeypatch
):
    family.train(False)
    expected_logprobs, expected_entropy, total = [], [], torch.zeros(())
    for b in range(len(PROMPTS) * G):
        prompt = rollouts.prompt_BT[b][rollouts.prompt_mask_BT[b]]
        answer = rollouts.answer_BT[b][rollouts.answer_mask_BT[b]]
        logits = family(torch.cat([prompt, answer])[None]).logits[0]
        for t, token in enumerate(answer):
            row = logits[len(prompt) - 1 + t]
            p = row.softmax(-1)
            entropy = -(p * p.log()).sum()
            expected_logprobs.append(row.log_softmax(-1)[token].item())
            expected_entropy.append(entropy.item())
            total = total + (b + 1) * row.log_softmax(-1)[token] + 0.5 * entropy
    wanted = gradients(total, family)

    shapes = []
    original = terms._terms

    def spy(logits, *args):
        shapes.append(tuple(logits.shape))
        return original(logits, *args)

    monkeypatch.setattr(terms, "_terms", spy)
    monkeypatch.setattr(terms, "LOGITS_AT_ONCE", {"cpu": 21 * 7})
    logprobs_BT, entropy_BT = answer_terms(
        family, rollouts, torch.arange(len(PROMPTS) * G), with_entropy=True
    )
    assert len(shapes) > 10
    assert max(math.prod(shape) for shape in shapes) <= 21 * 7
    mask_BT = rollouts.answer_mask_BT.clone()
    assert logprobs_BT[mask_BT].tolist() == pytest.approx(expected_logprobs, abs=1e-4)
    assert entropy_BT[mask_BT].tolist() == pytest.approx(expected_entropy, abs=1e-4)
    assert (logprobs_BT[~mask_BT] == 0).all()
    assert (entropy_BT[~mask_BT] == 0).all()
    scale_B1 = torch.arange(1, len(PROMPTS) * G + 1)[:, None]
    close(gradients((scale_B1 * logprobs_BT + 0.5 * entropy_BT).sum(), family), wanted)
    assert family.base_model is not family  # the body is back in its place
    assert answer_logprobs(family, rollouts, torch.arange(2)).shape == (2, mask_BT.shape[1])


def test_sampling_gives_each_row_alone_for_every_family(family, tokenizer):
    draws_BT = uniforms((len(PROMPTS) * 2, T), 0, "rollout")
    found = sample(family, tokenizer, PROMPTS, draws_BT)
    assert len(set(found.answer_mask_BT.sum(1).tolist())) > 1
    for b in range(len(PROMPTS) * 2):
        prompt = found.prompt_BT[b][found.prompt_mask_BT[b]]
        answer = found.answer_BT[b][found.answer_mask_BT[b]]
        with torch.no_grad():
            logits = family(torch.cat([prompt, answer])[None]).logits[0]
        for t, token in enumerate(answer):
            p = logits[len(prompt) - 1 + t].double().softmax(-1)
            assert found.logprobs_BT[b, t].item() == pytest.approx(p[token].log().item(), abs=1e-4)
            # The token at the row's own uniform number.
            below, upto = p[:token].sum().item(), p[: token + 1].sum().item()
            assert below - 1e-5 <= draws_BT[b, t] <= upto + 1e-5


def test_right_answers_are_scored_alike_however_many_logits_exist_at_once(
    shipped, held_out, monkeypatch
):
    whole = evaluate_exactly(*shipped, Countdown(), held_out[:6])
    monkeypatch.setattr(terms, "LOGITS_AT_ONCE", {"cpu": 21 * 50})
    pieces = evaluate_exactly(*shipped, Countdown(), held_out[:6])
    assert pieces.solve_probability_N == pytest.approx(whole.solve_probability_N, rel=1e-4)


def test_tokens_are_drawn_alike_however_many_logits_exist_at_once(shipped, rollouts, monkeypatch):
    monkeypatch.setitem(terms.LOGITS_AT_ONCE, "cpu", 21 * 3)
    again = sample(*shipped, PROMPTS, uniforms((len(PROMPTS) * G, T), 0, "rollout"))
    assert torch.equal(again.answer_BT, rollouts.answer_BT)
    torch.testing.assert_close(again.entropy_BT, rollouts.entropy_BT)
