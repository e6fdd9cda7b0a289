"""Sampling against full forward passes on single rows, and against the softmax it draws from."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from gradmass.training.model import END, PAD, character_tokenizer
from gradmass.training.rollout import (
    DIVERGED,
    Rollouts,
    answer_logprobs,
    decode,
    encode_prompts,
    sample,
    uniforms,
)
from gradmass.types import UsageError

LAST_DRAW = 1 - 2.0**-53
"""The largest number that a generator of uniform numbers gives."""
PROMPTS = ("1,2=3:", "10,11,12,13=100:", "7,7,7=7:", "25,24,9,8=16:")
G, T = 4, 20


class FixedPolicy:
    """A policy whose logits at answer token t are row t of a table, whatever was written."""

    device = torch.device("cpu")
    generation_config = None

    def __init__(self, logits):
        self.logits_TV, self.t = torch.as_tensor(logits, dtype=torch.float32), 0

    def __call__(self, *, input_ids, cache=None, **_):
        self.t = 0 if cache is None else self.t + 1
        row = self.logits_TV[min(self.t, len(self.logits_TV) - 1)]
        cache = SimpleNamespace(layers=[], batch_select_indices=lambda rows: None)
        return SimpleNamespace(logits=row.expand(len(input_ids), 1, -1), cache=cache)


DIGITS = character_tokenizer("01+=")
"""Tokens: 0 padding, 1 end, 2 '0', 3 '1', 4 '+', 5 '='."""
UNIFORM = FixedPolicy(torch.zeros(1, 6))
"""Draws token k of 6 where the uniform number is within [k/6, (k+1)/6)."""


def sample_fixed(logits, draws):
    """Tokens drawn at each of the uniform numbers, one token a row."""
    draws_B1 = np.asarray(draws, dtype=np.float64)[:, None]
    return sample(FixedPolicy([logits]), DIGITS, ["1="], draws_B1)


def write(texts, width):
    """Rollouts in which the uniform policy was made to write these token ids."""
    draws = np.full((len(texts), width), 0.999)
    for b, tokens in enumerate(texts):
        draws[b, : len(tokens)] = (np.array(tokens) + 0.5) / 6
    return sample(UNIFORM, DIGITS, ["1=", "0+1="], draws)


def softmax(logits):
    """In plain Python."""
    highest = max(logits)
    mass = [math.exp(x - highest) for x in logits]
    total = math.fsum(mass)
    return [x / total for x in mass]


def tokens_of(rollouts, b):
    """Prompt and answer of a row without padding."""
    prompt = rollouts.prompt_BT[b][rollouts.prompt_mask_BT[b]].tolist()
    return prompt, rollouts.answer_BT[b][rollouts.answer_mask_BT[b]].tolist()


@pytest.fixture(scope="module")
def rollouts(shipped):
    return sample(*shipped, PROMPTS, uniforms((len(PROMPTS) * G, T), 0, "rollout"))


def check_each_row_alone(model, rollouts):
    """Log-probabilities and entropies against a forward pass without padding and cache."""
    num_rollouts = len(rollouts.is_ended_B)
    recomputed_BT = answer_logprobs(model, rollouts, torch.arange(num_rollouts))
    for b in range(num_rollouts):
        prompt, answer = tokens_of(rollouts, b)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + answer]), use_cache=False).logits[0]
        for t, token in enumerate(answer):
            p = softmax(logits[len(prompt) - 1 + t].tolist())
            entropy = -math.fsum(x * math.log(x) for x in p if x > 0)
            assert rollouts.logprobs_BT[b, t].item() == pytest.approx(math.log(p[token]), abs=1e-5)
            assert recomputed_BT[b, t].item() == pytest.approx(math.log(p[token]), abs=1e-5)
            assert rollouts.entropy_BT[b, t].item() == pytest.approx(entropy, abs=1e-5)


def test_logprobs_and_entropies_are_those_of_each_row_alone(shipped, rollouts):
    check_each_row_alone(shipped[0], rollouts)


def test_so_they_are_for_policies_of_other_families(other_policy, tokenizer):
    draws_BT = uniforms((len(PROMPTS) * 2, T), 0, "rollout")
    check_each_row_alone(other_policy, sample(other_policy, tokenizer, PROMPTS, draws_BT))


def test_prompts_of_several_lengths_and_answers_of_several_lengths_were_compared(rollouts):
    assert len(set(rollouts.prompt_mask_BT.sum(1).tolist())) > 1
    assert len(set(rollouts.answer_mask_BT.sum(1).tolist())) > 3


def test_padding_holds_no_logprob_and_no_entropy(shipped, rollouts):
    recomputed_BT = answer_logprobs(shipped[0], rollouts, torch.arange(len(PROMPTS) * G))
    is_padding_BT = ~rollouts.answer_mask_BT
    assert is_padding_BT.any()
    for values_BT in (rollouts.logprobs_BT, rollouts.entropy_BT, recomputed_BT):
        assert (values_BT[is_padding_BT] == 0).all()
    assert (rollouts.answer_BT[is_padding_BT] == shipped[1].pad_token_id).all()


def test_rows_are_prompt_major(shipped, rollouts):
    texts = [shipped[1].decode(tokens_of(rollouts, b)[0]) for b in range(len(PROMPTS) * G)]
    assert texts == [prompt for prompt in PROMPTS for _ in range(G)]


def test_what_is_sampled_depends_on_the_row_s_own_draws_alone(shipped, rollouts):
    draws_BT = uniforms((len(PROMPTS) * G, T), 0, "rollout")
    for b in range(len(PROMPTS) * G):
        alone = sample(*shipped, [PROMPTS[b // G]], draws_BT[b : b + 1])
        assert tokens_of(alone, 0) == tokens_of(rollouts, b)
    order = [2, 0, 3, 1]
    shuffled = sample(
        *shipped,
        [PROMPTS[i] for i in order],
        draws_BT.reshape(len(PROMPTS), G, T)[order].reshape(-1, T),
    )
    for row, i in enumerate(order):
        for g in range(G):
            assert tokens_of(shuffled, row * G + g) == tokens_of(rollouts, i * G + g)


def test_fewer_new_tokens_cut_the_same_answers(shipped, rollouts):
    draws_BT = uniforms((len(PROMPTS) * G, T), 0, "rollout")
    cut = sample(*shipped, PROMPTS, draws_BT[:, :8])
    for b in range(len(PROMPTS) * G):
        _, answer = tokens_of(rollouts, b)
        assert tokens_of(cut, b)[1] == answer[:8]
        assert cut.is_ended_B[b].item() == (len(answer) <= 8)


def test_sampling_leaves_the_global_generators_alone(shipped):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    sample(*shipped, PROMPTS, uniforms((4, 3), 0, "rollout"))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_a_policy_in_half_precision_gives_logprobs_in_float32(policy, tokenizer):
    draws_BT = uniforms((4, 6), 0, "rollout")
    rollouts = sample(policy.to(torch.bfloat16), tokenizer, PROMPTS, draws_BT)
    recomputed_NT = answer_logprobs(policy, rollouts, torch.arange(4))
    assert rollouts.logprobs_BT.dtype == rollouts.entropy_BT.dtype == torch.float32
    assert recomputed_NT.dtype == torch.float32
    assert (rollouts.logprobs_BT[rollouts.answer_mask_BT] < 0).all()


def test_tokens_are_drawn_as_often_as_the_softmax_says():
    logits, num_draws = [0.3, -1.2, 2.0, 0.0, -4.0, 1.1], 20_000
    rollouts = sample_fixed(logits, uniforms((num_draws,), 1, "test"))
    counts = np.bincount(rollouts.answer_BT[:, 0], minlength=6)
    expected = num_draws * np.array(softmax(logits))
    assert expected.min() > 5
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < chi2.isf(1e-4, df=5)


def test_the_shipped_policy_s_first_token_follows_its_softmax(shipped):
    model, tokenizer = shipped
    num_draws, prompt = 4_000, PROMPTS[0]
    rollouts = sample(model, tokenizer, [prompt], uniforms((num_draws, 1), 2, "test"))
    counts = np.bincount(rollouts.answer_BT[:, 0], minlength=21)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokenizer(prompt)["input_ids"]])).logits[0, -1]
    expected = num_draws * np.array(softmax(logits.tolist()))
    is_common = expected >= 5
    assert is_common.sum() >= 3
    # Rare tokens are counted together, as is usual.
    counts = np.append(counts[is_common], counts[~is_common].sum())
    expected = np.append(expected[is_common], expected[~is_common].sum())
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < chi2.isf(1e-4, df=len(counts) - 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_token_is_the_inverse_of_the_cumulative_distribution(seed):
    rng = np.random.default_rng(seed)
    logits, draws = rng.normal(0, 3, 6).astype(np.float32).tolist(), rng.random(300)
    rollouts = sample_fixed(logits, draws)
    probabilities = softmax(logits)
    for b, draw in enumerate(draws):
        token, logprob = rollouts.answer_BT[b, 0].item(), rollouts.logprobs_BT[b, 0].item()
        # Within the token's own interval, but for roundings of float32 at its ends.
        assert math.fsum(probabilities[:token]) - 1e-6 < draw
        assert draw < math.fsum(probabilities[: token + 1]) + 1e-6
        assert logprob == pytest.approx(math.log(probabilities[token]), abs=1e-5)


@pytest.mark.parametrize("draw", [0.0, 2.0**-53, 0.5, LAST_DRAW])
@pytest.mark.parametrize("allowed", [{2}, {0, 5}, {1, 2, 3}, {3, 4}])
def test_a_token_of_probability_zero_is_never_drawn(draw, allowed):
    logits = [0.0 if token in allowed else -math.inf for token in range(6)]
    rollouts = sample_fixed(logits, [draw])
    token = rollouts.answer_BT[0, 0].item()
    assert token in allowed
    assert rollouts.logprobs_BT[0, 0].item() == pytest.approx(-math.log(len(allowed)), abs=1e-6)
    assert rollouts.entropy_BT[0, 0].item() == pytest.approx(math.log(len(allowed)), abs=1e-6)
    if draw in (0.0, LAST_DRAW):
        assert token == (min(allowed) if draw == 0 else max(allowed))


def test_the_last_draw_gives_a_token_however_the_probabilities_round():
    rng = np.random.default_rng(0)
    for _ in range(200):
        logits = rng.normal(0, 5, 6)
        logits[rng.integers(6)] = -200.0  # below float32: a probability of exactly 0
        logits[5] = -200.0
        token = sample_fixed(logits.tolist(), [LAST_DRAW]).answer_BT[0, 0].item()
        assert softmax(logits.tolist())[token] > 1e-60


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("t", [0, 1])
def test_a_diverged_policy_is_refused_in_one_line(bad, t):
    logits = torch.zeros(2, 6)
    logits[t, 3] = bad
    with pytest.raises(UsageError) as error:
        sample(FixedPolicy(logits), DIGITS, ["1="], np.full((1, 3), 0.5))
    assert str(error.value) == DIVERGED
    assert "\n" not in DIVERGED


def test_answers_end_at_the_end_token_and_are_padded_after():
    rollouts = write([[3, 4, 1], [2, 3, 4, 5], [1], [3, 3, 3, 1]], width=4)
    assert rollouts.answer_BT.tolist() == [[3, 4, 1, 0], [2, 3, 4, 5], [1, 0, 0, 0], [3, 3, 3, 1]]
    assert rollouts.answer_mask_BT.tolist() == [
        [True, True, True, False],
        [True, True, True, True],
        [True, False, False, False],
        [True, True, True, True],
    ]
    assert rollouts.is_ended_B.tolist() == [True, False, True, True]
    assert decode(DIGITS, rollouts) == ["1+", "01+=", "", "111"]
    for values_BT, value in (
        (rollouts.logprobs_BT, -math.log(6)),
        (rollouts.entropy_BT, math.log(6)),
    ):
        expected_BT = torch.where(rollouts.answer_mask_BT, value, 0.0)
        torch.testing.assert_close(values_BT, expected_BT.float())


def test_sampling_stops_when_every_answer_has_ended():
    rollouts = write([[3, 1], [1]], width=50)
    assert rollouts.answer_BT.tolist() == [[3, 1], [1, 0]]
    assert rollouts.is_ended_B.tolist() == [True, True]


def test_what_is_drawn_after_the_end_is_not_written():
    rollouts = write([[1, 3, 3, 1], [3, 3, 3, 3]], width=4)
    assert rollouts.answer_BT[0].tolist() == [1, 0, 0, 0]
    assert rollouts.answer_mask_BT[0].tolist() == [True, False, False, False]


def test_special_tokens_in_the_middle_stay_visible():
    answer_BT = torch.tensor([[3, 0, 4, 3, 1], [0, 1, 0, 0, 0], [2, 3, 0, 0, 0]])
    length_B = torch.tensor([5, 2, 3])
    mask_BT = torch.arange(5) < length_B[:, None]
    zeros_BT = torch.zeros(3, 5)
    rollouts = Rollouts(
        answer_BT, mask_BT, answer_BT, mask_BT, zeros_BT, zeros_BT, torch.tensor([1, 1, 0]) == 1
    )
    assert decode(DIGITS, rollouts) == [f"1{PAD}+1", PAD, f"01{PAD}"]


def test_a_padding_token_that_is_the_end_token_changes_nothing():
    tokenizer = copy.deepcopy(DIGITS)
    tokenizer.pad_token = END
    draws_BT = (np.array([[3, 1, 3], [3, 4, 4]]) + 0.5) / 6
    rollouts = sample(UNIFORM, tokenizer, ["1=", "0+1="], draws_BT)
    assert rollouts.prompt_mask_BT.sum(1).tolist() == [2, 4]
    assert rollouts.answer_mask_BT.sum(1).tolist() == [2, 3]
    assert rollouts.is_ended_B.tolist() == [True, False]
    assert decode(tokenizer, rollouts) == ["1", "1++"]


def test_decoding_does_not_tidy_up_spaces():
    tokenizer = character_tokenizer("1 .,?!")
    tokenizer.clean_up_tokenization_spaces = True
    tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    tokens = tokenizer("1 , 1 .")["input_ids"]
    assert tokenizer.decode(tokens) == "1, 1."
    answer_BT = torch.tensor([tokens])
    mask_BT, zeros_BT = torch.ones_like(answer_BT, dtype=torch.bool), torch.zeros(answer_BT.shape)
    rollouts = Rollouts(
        answer_BT, mask_BT, answer_BT, mask_BT, zeros_BT, zeros_BT, torch.tensor([False])
    )
    assert decode(tokenizer, rollouts) == ["1 , 1 ."]


def test_prompts_are_padded_on_the_left():
    prompt_PT, mask_PT = encode_prompts(DIGITS, ["1=", "0+1="], torch.device("cpu"))
    assert prompt_PT.tolist() == [[0, 0, 3, 5], [2, 4, 3, 5]]
    assert mask_PT.tolist() == [[False, False, True, True], [True] * 4]


def test_mean_entropy_is_over_answer_tokens():
    entropy_BT = torch.tensor([[1.0, 2.0, 50.0], [3.0, 50.0, 50.0]])
    mask_BT = torch.tensor([[True, True, False], [True, False, False]])
    empty = torch.zeros(2, 3)
    rollouts = Rollouts(empty, mask_BT, empty, mask_BT, empty, entropy_BT, mask_BT[:, 0])
    assert rollouts.mean_entropy_nats == 2.0


def test_answer_logprobs_takes_rows_in_any_order_and_carries_the_gradient(policy, rollouts):
    rows = torch.tensor([7, 0, 3])
    every_BT = answer_logprobs(policy, rollouts, torch.arange(len(PROMPTS) * G))
    some_NT = answer_logprobs(policy, rollouts, rows)
    torch.testing.assert_close(some_NT, every_BT[rows], rtol=0, atol=1e-5)
    some_NT.sum().backward()
    for name, parameter in policy.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0 or "k_proj.bias" in name, name


def test_uniforms_are_fixed_by_seed_stream_and_step():
    draws = {
        (seed, stream, step): uniforms((50, 20), seed, stream, step)
        for seed in (0, 1, 2**40)
        for stream in ("rollout", "evaluation")
        for step in (0, 1, 10**6)
    }
    for (seed, stream, step), values in draws.items():
        assert (values == uniforms((50, 20), seed, stream, step)).all()
        assert values.dtype == np.float64
        assert 0 <= values.min() < values.max() < 1
    flat = np.array([values.ravel() for values in draws.values()])
    correlation = np.corrcoef(flat)
    np.fill_diagonal(correlation, 0)
    # Independent streams of 1,000 numbers: 5 standard errors for each of the 153 pairs.
    assert np.abs(correlation).max() < 5 / math.sqrt(1_000)
