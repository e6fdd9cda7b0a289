"""Aggregation, masking, KL estimates, truncated importance sampling: each against plain loops."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from gradmass.config import LossConfig
from gradmass.training.aggregation import loss_denominators, rollouts_in_loss
from gradmass.training.kl import kl_estimate
from gradmass.training.loss import batch_loss, policy_loss, with_proximal
from gradmass.training.rollout import Rollouts, answer_logprobs, answer_terms, sample, uniforms

LIMIT = 6
MODES = ("constant", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum")


def of_lengths(lengths, is_ended):
    """Rollouts of which only the lengths and the ends matter."""
    mask = torch.tensor([[t < length for t in range(max(lengths))] for length in lengths])
    empty = torch.zeros(mask.shape)
    return Rollouts(empty, mask, empty, mask, empty, empty, torch.tensor(is_ended))


def literal_aggregate(mode, losses, lengths, is_in):
    """One loss from the losses of tokens, as each mode is named."""
    kept = [row[:n] for row, n, is_kept in zip(losses, lengths, is_in, strict=True) if is_kept]
    if not kept:
        return 0.0
    if mode == "token-mean":
        tokens = [value for row in kept for value in row]
        return sum(tokens) / len(tokens)
    if mode == "seq-mean-token-mean":
        return sum(sum(row) / len(row) for row in kept) / len(kept)
    total = sum(sum(row) for row in kept) / len(kept)
    return total / LIMIT if mode == "constant" else total


def random_rows(seed):
    rng = random.Random(seed)
    lengths = [rng.randint(1, LIMIT) for _ in range(5)]
    is_ended = [n < LIMIT or rng.random() < 0.5 for n in lengths]
    losses = [[rng.gauss(0, 1) for _ in range(max(lengths))] for _ in lengths]
    return losses, lengths, is_ended


@pytest.mark.parametrize("truncated", ["count", "mask", "exclude"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(5))
def test_tokens_are_aggregated_as_the_mode_says(mode, truncated, seed):
    losses, lengths, is_ended = random_rows(seed)
    if seed == 4:
        is_ended = [False] * 5  # where truncated ones are masked, nothing is left
    config = LossConfig(aggregation=mode, truncated=truncated)
    rollouts = of_lengths(lengths, is_ended)
    denominator_B = loss_denominators(config, rollouts, LIMIT)
    rows = rollouts_in_loss(config, rollouts).nonzero()[:, 0]
    is_in = [truncated == "count" or ended for ended in is_ended]
    found = sum(sum(losses[i][: lengths[i]]) / float(denominator_B[i]) for i in rows.tolist())
    assert found == pytest.approx(literal_aggregate(mode, losses, lengths, is_in), abs=1e-12)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_a_masked_rollout_is_in_neither_part_of_the_mean(mode):
    # TRL issue 6369: a rollout masked above the line, and counted below it.
    config = LossConfig(aggregation=mode, truncated="mask")
    rollouts = of_lengths([4, 4], [True, False])
    per_token = torch.tensor([[1.0] * 4, [2.0] * 4], dtype=torch.float64)
    mask = rollouts.answer_mask_BT & rollouts_in_loss(config, rollouts)[:, None]
    total_B = (per_token * mask).sum(1)
    assert float((total_B / loss_denominators(config, rollouts, 8)).sum()) == 1.0
    none = of_lengths([4, 4], [False, False])
    assert loss_denominators(config, none, 8).min() >= 1  # 0 over it is 0, not NaN
    assert not rollouts_in_loss(config, none).any()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "splits", [[[0, 1, 2, 3, 4]], [[0], [1], [2], [3], [4]], [[3, 0], [4, 1, 2]]]
)
def test_the_gradient_is_the_same_however_a_batch_is_split(mode, splits):
    # verl issue 3741: a divisor of the micro-batch, not of the batch.
    _, lengths, is_ended = random_rows(1)
    config = LossConfig(aggregation=mode)
    rollouts = of_lengths(lengths, is_ended)
    denominator_B = loss_denominators(config, rollouts, LIMIT)
    generator = torch.Generator().manual_seed(0)
    behaviour = -torch.rand(rollouts.answer_mask_BT.shape, generator=generator).double()
    weights_B = torch.randn(5, generator=generator).double()
    logprobs = (behaviour + 0.05).requires_grad_()
    for rows in splits:
        policy_loss(
            logprobs[rows],
            behaviour[rows],
            weights_B[rows],
            rollouts.answer_mask_BT[rows],
            denominator_N=denominator_B[rows],
            clip_low=0.2,
            clip_high=0.2,
        ).value.backward()
    for i, length in enumerate(lengths):
        for t in range(max(lengths)):
            expected = 0.0
            if t < length:
                divisor = {
                    "constant": 5 * LIMIT,
                    "token-mean": sum(lengths),
                    "seq-mean-token-mean": 5 * length,
                    "seq-mean-token-sum": 5,
                }[mode]
                expected = -float(weights_B[i]) * math.exp(0.05) / divisor
            assert float(logprobs.grad[i, t]) == pytest.approx(expected, abs=1e-15)


def test_masked_tokens_leak_nothing_whatever_they_hold():
    # verl issue 3741's numbers: losses 1, 100 and 1, -50 with the second tokens masked.
    mask = torch.tensor([[True, False], [True, False]])
    logprobs = torch.tensor([[0.0, 100.0], [0.0, -50.0]], dtype=torch.float64, requires_grad=True)
    loss = policy_loss(
        logprobs,
        torch.zeros(2, 2, dtype=torch.float64),
        torch.tensor([-1.0, -1.0], dtype=torch.float64),
        mask,
        denominator_N=torch.tensor([2.0, 2.0]),
        clip_low=0.2,
        clip_high=0.2,
    )
    loss.value.backward()
    assert loss.value.item() == 1.0
    assert logprobs.grad.tolist() == [[0.5, 0.0], [0.5, 0.0]]


# KL


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimates_by_hand(estimator):
    for gap in (-1.5, -0.1, 0.0, 0.3, 2.0):
        by_hand = {"k1": gap, "k2": gap * gap / 2, "k3": math.exp(-gap) - 1 + gap}[estimator]
        found = kl_estimate(torch.tensor(gap, dtype=torch.float64), estimator)
        assert float(found) == pytest.approx(by_hand, rel=1e-12, abs=1e-15)


def softmax(logits):
    total = sum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize(
    ("estimator", "divergence"),
    [
        ("k1", lambda policy, start: 0.0),
        ("k2", lambda policy, start: kl(policy, start)),
        ("k3", lambda policy, start: kl(start, policy)),
    ],
)
def test_the_mean_gradient_of_a_kl_term_is_that_of_its_divergence(estimator, divergence):
    # The mean over tokens drawn from the policy, by enumeration, against finite differences.
    logits, start = [0.4, -0.8, 1.1, 0.0], softmax([0.0, 0.5, -0.3, 0.2])
    theta = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    logprobs = theta.log_softmax(0)
    terms = kl_estimate(logprobs - torch.tensor(start, dtype=torch.float64).log(), estimator)
    (logprobs.detach().exp() * terms).sum().backward()
    for i in range(4):
        values = []
        for shift in (1e-5, -1e-5):
            moved = [x + shift * (j == i) for j, x in enumerate(logits)]
            values.append(divergence(softmax(moved), start))
        assert float(theta.grad[i]) == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-8)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_loss_adds_the_chosen_estimate(estimator):
    new, reference = -1.0, -1.7
    loss = policy_loss(
        torch.tensor([[new]]),
        torch.tensor([[new]]),
        torch.tensor([0.0]),
        torch.tensor([[True]]),
        denominator_N=torch.tensor([2.0]),
        clip_low=0.2,
        clip_high=0.2,
        reference_logprobs_NT=torch.tensor([[reference]]),
        kl_coef=3.0,
        kl_estimator=estimator,
    )
    by_hand = {"k1": 0.7, "k2": 0.245, "k3": math.exp(-0.7) - 1 + 0.7}[estimator]
    assert loss.kl_nats == pytest.approx(by_hand, rel=1e-6)
    assert loss.value.item() == pytest.approx(3.0 * by_hand / 2, rel=1e-6)


# Truncated importance sampling


def literal_truncated(new, proximal, behaviour, weight, low, high, cap):
    """Loss and its derivative by the log-probability of one token."""
    factor = min(math.exp(proximal - behaviour), cap)
    ratio = math.exp(new - proximal)
    if weight > 0 and ratio > 1 + high:
        return -(1 + high) * weight * factor, 0.0
    if weight < 0 and ratio < 1 - low:
        return -(1 - low) * weight * factor, 0.0
    return -ratio * weight * factor, -ratio * weight * factor


@pytest.mark.parametrize("seed", range(30))
def test_truncated_importance_sampling_by_hand(seed):
    rng = random.Random(seed)
    behaviour = [-rng.random() - 0.1 for _ in range(4)]
    proximal = [x + rng.gauss(0, 1) for x in behaviour]
    new = [x + rng.gauss(0, 0.3) for x in proximal]
    weight, cap = rng.choice([-1.5, 0.5]), rng.choice([0.5, 1.0, 2.0])
    logprobs = torch.tensor([new], dtype=torch.float64, requires_grad=True)
    loss = policy_loss(
        logprobs,
        torch.tensor([behaviour], dtype=torch.float64),
        torch.tensor([weight], dtype=torch.float64),
        torch.ones(1, 4, dtype=torch.bool),
        denominator_N=torch.tensor([4.0]),
        clip_low=0.1,
        clip_high=0.2,
        proximal_logprobs_NT=torch.tensor([proximal], dtype=torch.float64),
        importance_cap=cap,
    )
    loss.value.backward()
    literal = [
        literal_truncated(n, p, b, weight, 0.1, 0.2, cap)
        for n, p, b in zip(new, proximal, behaviour, strict=True)
    ]
    assert loss.value.item() == pytest.approx(sum(v for v, _ in literal) / 4, rel=1e-12)
    assert logprobs.grad[0].tolist() == pytest.approx([s / 4 for _, s in literal], rel=1e-12)
    # What reaches the gradient of the weight.
    kept = sum(slope / -weight for _, slope in literal) / 4
    assert float(loss.kept_N[0]) == pytest.approx(kept, rel=1e-12)


def literal_effective(values):
    return sum(values) ** 2 / sum(value**2 for value in values) / len(values)


@pytest.mark.parametrize("spread", [0.0, 0.2, 3.0, 900.0])
def test_effective_shares_of_the_ratios_are_kish_s(spread):
    rng = random.Random(5)
    lengths = [3, 1, 4]
    gaps = [[rng.gauss(0, spread) for _ in range(n)] for n in lengths]
    padded = torch.tensor([row + [7.0] * (4 - len(row)) for row in gaps], dtype=torch.float64)
    mask = torch.tensor([[t < n for t in range(4)] for n in lengths])
    loss = policy_loss(
        padded,
        torch.zeros(3, 4, dtype=torch.float64),
        torch.ones(3, dtype=torch.float64),
        mask,
        denominator_N=torch.ones(3),
        clip_low=0.2,
        clip_high=0.2,
    )
    if spread == 900.0:  # no number holds these ratios
        assert 0 < loss.effective_tokens <= 1
        assert loss.effective_rollouts == pytest.approx(1 / 3)
        return
    by_rollout = [math.exp(sum(row)) for row in gaps]
    by_token = [math.exp(gap) for row in gaps for gap in row]
    assert loss.effective_rollouts == pytest.approx(literal_effective(by_rollout), rel=1e-12)
    assert loss.effective_tokens == pytest.approx(literal_effective(by_token), rel=1e-12)
    if spread == 0.0:
        assert (loss.effective_rollouts, loss.effective_tokens) == (1.0, 1.0)


def test_tokens_that_have_become_impossible_leave_a_share_of_one():
    loss = policy_loss(
        torch.full((2, 2), -math.inf),
        torch.zeros(2, 2),
        torch.tensor([1.0, -1.0]),
        torch.ones(2, 2, dtype=torch.bool),
        denominator_N=torch.ones(2),
        clip_low=0.2,
        clip_high=0.2,
    )
    assert (loss.effective_rollouts, loss.effective_tokens) == (0.5, 0.25)


# On a model


@pytest.fixture(scope="module")
def drawn(shipped):
    model, tokenizer = shipped
    draws = uniforms((12, 20), 3, "rollout")
    return sample(model, tokenizer, ["1,2,3=6:", "4,5,6=9:", "7,8,9=10:"], draws)


def test_entropies_are_those_the_tokens_were_drawn_with(shipped, drawn):
    # The same policy: what was measured as each token was drawn, and what the update measures.
    rows = torch.arange(12)
    logprobs_NT, entropy_NT = answer_terms(shipped[0], drawn, rows, with_entropy=True)
    torch.testing.assert_close(entropy_NT, drawn.entropy_BT, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(logprobs_NT, drawn.logprobs_BT, atol=1e-5, rtol=1e-4)
    assert entropy_NT[~drawn.answer_mask_BT].abs().max() == 0


def test_the_entropy_bonus_is_the_mean_over_tokens_and_has_its_gradient(policy, drawn):
    rows, num_tokens = torch.arange(12), int(drawn.answer_mask_BT.sum())
    denominator_B = torch.full((12,), 99.0)
    plain = batch_loss(LossConfig(), policy, None, drawn, torch.zeros(12), rows, denominator_B)
    assert plain.entropy_nats is None
    loss = batch_loss(
        *(LossConfig(), policy, None, drawn, torch.zeros(12), rows, denominator_B),
        entropy_scale=0.3 / num_tokens,
    )
    assert loss.entropy_nats == pytest.approx(drawn.mean_entropy_nats, rel=1e-4)
    assert loss.value.item() == pytest.approx(-0.3 * drawn.mean_entropy_nats, rel=1e-4)
    loss.value.backward()
    bias = next(p for p in policy.parameters() if p.ndim == 1)
    index, found, values = int(bias.grad.abs().argmax()), bias.grad.clone(), []
    for shift in (1e-3, -1e-3):
        with torch.no_grad():
            bias[index] += shift
            entropy_NT = answer_terms(policy, drawn, rows, with_entropy=True)[1]
            values.append(-0.3 * float(entropy_NT.double().sum()) / num_tokens)
            bias[index] -= shift
    slope = (values[0] - values[1]) / 2e-3
    assert float(found[index]) == pytest.approx(slope, rel=2e-2)


def test_the_policy_at_the_first_update_is_remembered_only_where_it_is_needed(shipped, drawn):
    model = shipped[0]
    assert with_proximal(LossConfig(), model, drawn, 10**9) is drawn
    stale = replace(drawn, logprobs_BT=drawn.logprobs_BT - 0.5 * drawn.answer_mask_BT)
    held = with_proximal(LossConfig(importance_cap=1.2), model, stale, 10**9)
    expected = answer_logprobs(model, drawn, torch.arange(12))
    torch.testing.assert_close(held.proximal_BT, expected.detach())
    assert not held.proximal_BT.requires_grad
    weights_B = torch.tensor(np.linspace(-1, 1, 12), dtype=torch.float32)
    loss = batch_loss(
        *(LossConfig(importance_cap=1.2), model, None, held, weights_B),
        *(torch.arange(12), torch.ones(12)),
    )
    # The ratio to the proximal policy is 1, that to the behaviour exp(0.5), cut at 1.2.
    assert loss.kept_N.tolist() == pytest.approx([1.2] * 12, rel=1e-4)
    assert loss.clip_share == 0.0
    assert loss.effective_tokens == pytest.approx(1.0, rel=1e-4)
