"""Gradients by verdict, by rollout and by problem, against one backward pass a rollout."""

import copy
import math

import numpy as np
import pytest
import torch

from gradmass.config import LossConfig, Recipe
from gradmass.evaluation.judge import judge
from gradmass.tables import load_recipe
from gradmass.tasks.countdown import Countdown
from gradmass.training.batch import Batch
from gradmass.training.loss import batch_loss
from gradmass.training.probes.gradients import (
    _flat,
    group_gradients,
    score_squares,
    verdict_gradients,
)
from gradmass.training.probes.others import (
    centred,
    factor_of,
    group_levels,
    judge_weight,
    weigh_again,
)
from gradmass.training.rollout import answer_logprobs, decode, sample, uniforms
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

P, G, T = 6, 4, 20
DENOMINATOR = float(P * G * T)
DENOMINATOR_B = torch.full((P * G,), DENOMINATOR, dtype=torch.float64)


def make_batch(policy, tokenizer, weights_PG=None, mask_PG=None, drift=0.0):
    """A batch of the policy, or of one that has drifted by some noise in its log-probabilities."""
    problems = Countdown().problems("train", P)
    draws = uniforms((P * G, T), 3, "rollout")
    rollouts = sample(policy, tokenizer, [problem.prompt for problem in problems], draws)
    if drift:
        noise = torch.randn(rollouts.logprobs_BT.shape, generator=torch.Generator().manual_seed(0))
        logprobs = (rollouts.logprobs_BT + drift * noise) * rollouts.answer_mask_BT
        rollouts = type(rollouts)(**(vars(rollouts) | {"logprobs_BT": logprobs}))
    verdicts = judge(
        Countdown(), problems, decode(tokenizer, rollouts), rollouts.is_ended_B.tolist()
    )
    successes_PG = np.array([verdict.is_right for verdict in verdicts]).reshape(P, G)
    mask_PG = np.ones((P, G), dtype=bool) if mask_PG is None else mask_PG
    if weights_PG is None:
        weights_PG, _ = WEIGHTS["grpo"]().update(successes_PG.astype(float), {}, mask=mask_PG)
    signals = {
        "successes_PG": successes_PG,
        "num_success": int(successes_PG.sum()),
        "num_scored": int(mask_PG.sum()),
        "entropy_nats": rollouts.mean_entropy_nats,
        "entropy_kind": "test",
        "lengths_PG": rollouts.answer_mask_BT.sum(1).numpy().reshape(P, G),
        "policy_lag": 0,
        "step": 0,
        "num_steps": 10,
    }
    weights_B = torch.as_tensor(weights_PG.reshape(-1), dtype=torch.float32)
    in_loss_PG = np.ones((P, G), dtype=bool)
    return Batch(
        0, rollouts, successes_PG, mask_PG, in_loss_PG, weights_PG, weights_B, {}, signals, {}, {}
    )


def token_coefficients(policy, batch, weight, i, config):
    """Coefficient of every token's score in the clipped loss's gradient, without denominator."""
    row = torch.tensor([i])
    with torch.no_grad():
        gap = answer_logprobs(policy, batch.rollouts, row) - batch.rollouts.logprobs_BT[row]
    out = []
    for ratio, is_answer in zip(
        gap[0].exp().tolist(), batch.rollouts.answer_mask_BT[i].tolist(), strict=True
    ):
        clipped = (weight > 0 and ratio > 1 + config.clip_high) or (
            weight < 0 and ratio < 1 - config.clip_low
        )
        out.append(weight * ratio if is_answer and not clipped else 0.0)
    return torch.tensor(out)


def gradient(policy, batch, coefficients_by_rollout):
    """Sum over rollouts of coefficients times scores, flat, by one backward pass a rollout."""
    total = 0.0
    for i, coefficients in coefficients_by_rollout.items():
        policy.zero_grad()
        logprobs = answer_logprobs(policy, batch.rollouts, torch.tensor([i]))[0]
        (coefficients * logprobs).sum().backward()
        total = total + torch.cat([p.grad.double().reshape(-1) for p in policy.parameters()])
    policy.zero_grad(set_to_none=True)
    return total


@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_the_parts_by_verdict_are_those_of_the_loss(policy, tokenizer, drift):
    config = LossConfig()
    batch = make_batch(policy, tokenizer, drift=drift)
    parts = {}
    for side in (True, False):
        parts[side] = -gradient(
            policy,
            batch,
            {
                i: token_coefficients(policy, batch, float(batch.weights_B[i]), i, config)
                for i in range(P * G)
                if bool(batch.successes_PG.reshape(-1)[i]) == side and batch.weights_B[i] != 0
            },
        )
        parts[side] /= DENOMINATOR
    row = verdict_gradients(config, policy, None, batch, DENOMINATOR_B)
    right, wrong = (float(parts[side].norm()) for side in (True, False))
    assert row["gradient/right_norm"] == pytest.approx(right, rel=1e-4)
    assert row["gradient/wrong_norm"] == pytest.approx(wrong, rel=1e-4)
    cosine = float(parts[True] @ parts[False]) / (right * wrong)
    assert row["gradient/cosine"] == pytest.approx(cosine, abs=1e-4)
    # They sum to the gradient of the update.
    rows = (batch.weights_B != 0).nonzero()[:, 0]
    loss = batch_loss(config, policy, None, batch.rollouts, batch.weights_B, rows, DENOMINATOR_B)
    loss.value.backward()
    whole = torch.cat([p.grad.double().reshape(-1) for p in policy.parameters()])
    assert float((parts[True] + parts[False] - whole).norm()) < 1e-4 * float(whole.norm())
    expected = math.sqrt(right**2 + wrong**2 + 2 * cosine * right * wrong)
    assert float(whole.norm()) == pytest.approx(expected, rel=1e-4)


def test_a_kl_term_pushes_rollouts_without_weight_and_is_reported_apart(policy, tokenizer):
    # All groups tied: the weights are 0, and the policy gradient too.
    batch = make_batch(policy, tokenizer, weights_PG=np.zeros((P, G)))
    config = LossConfig(kl_coef=0.1)
    start = make_shifted(policy)
    row = verdict_gradients(config, policy, start, batch, DENOMINATOR_B)
    assert row["gradient/right_norm"] == row["gradient/wrong_norm"] == 0
    assert row["gradient/cosine"] is None
    assert row["gradient/kl_norm"] > 0
    # Twice the coefficient, twice the gradient; none where both policies agree.
    twice = verdict_gradients(LossConfig(kl_coef=0.2), policy, start, batch, DENOMINATOR_B)
    assert twice["gradient/kl_norm"] == pytest.approx(2 * row["gradient/kl_norm"], rel=1e-5)
    same = verdict_gradients(config, policy, policy, batch, DENOMINATOR_B)
    assert same["gradient/kl_norm"] == pytest.approx(0, abs=1e-6)
    assert "gradient/kl_norm" not in verdict_gradients(config, policy, None, batch, DENOMINATOR_B)


def make_shifted(policy):
    start = copy.deepcopy(policy)
    with torch.no_grad():
        start.lm_head.weight += 0.1 * torch.randn(
            start.lm_head.weight.shape, generator=torch.Generator().manual_seed(1)
        )
    return start


@pytest.mark.parametrize("most", [1, 2, 8])
def test_score_squares_are_means_over_rollouts_of_a_verdict(policy, tokenizer, most):
    mask = np.ones((P, G), dtype=bool)
    mask[0] = False
    batch = make_batch(policy, tokenizer, mask_PG=mask)
    found = score_squares(policy, batch.rollouts, batch.successes_PG, mask, most)
    for square, side in zip(found, (True, False), strict=True):
        chosen = [
            i
            for i in range(P * G)
            if batch.successes_PG.reshape(-1)[i] == side and mask.reshape(-1)[i]
        ][:most]
        squares = [
            float(
                gradient(policy, batch, {i: torch.ones(batch.rollouts.answer_BT.shape[1])}).norm()
            )
            ** 2
            for i in chosen
        ]
        assert square == pytest.approx(np.mean(squares), rel=1e-4)


def test_a_verdict_without_rollouts_has_no_square(policy, tokenizer):
    batch = make_batch(policy, tokenizer)
    none, every = np.zeros((P, G), dtype=bool), np.ones((P, G), dtype=bool)
    right, wrong = score_squares(policy, batch.rollouts, none, every)
    assert (right, wrong > 0) == (None, True)


def brute_dots(policy, batch, weights_PG, config):
    groups = []
    for problem, weights in enumerate(weights_PG):
        coefficients = {
            problem * G + i: token_coefficients(policy, batch, float(w), problem * G + i, config)
            for i, w in enumerate(weights)
            if w != 0
        }
        found = gradient(policy, batch, coefficients)
        size = sum(p.numel() for p in policy.parameters())
        groups.append(found / G if coefficients else torch.zeros(size, dtype=torch.float64))
    matrix = torch.stack(groups)
    return (matrix @ matrix.T).numpy()


OTHERS = {
    "grpo": {},
    "power": {"alpha": 3.0},
    "asym_grpo_delta": {"delta": 0.5},
    "reinforce": {"signed": True},
}


@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_gradients_of_groups_under_any_weight_are_those_of_its_rollouts(policy, tokenizer, drift):
    config = LossConfig()
    batch = make_batch(policy, tokenizer, drift=drift)
    rng = np.random.default_rng(0)
    weights = {
        name: weigh_again(WEIGHTS[name](**fields), batch)[0] for name, fields in OTHERS.items()
    }
    # Different weights for equal verdicts, and successes pushed down: columns of their own.
    weights["scattered"] = rng.normal(size=(P, G))
    weights["reversed"] = -weights["grpo"]
    found = group_gradients(config, policy, batch, list(weights.values()))
    for name, weights_PG in weights.items():
        expected = brute_dots(policy, batch, weights_PG, config)
        np.testing.assert_allclose(
            found.dots(weights_PG), expected, rtol=1e-3, atol=1e-4 * expected.max(), err_msg=name
        )
        np.testing.assert_allclose(
            found.dots(2.5 * weights_PG), 6.25 * expected, rtol=1e-3, atol=1e-3 * expected.max()
        )
    assert found.dots(rng.normal(size=(P, G))) is None


def test_levels_are_of_groups_with_a_gradient(policy, tokenizer):
    batch = make_batch(policy, tokenizer)
    rate_P, centred_PG = centred(batch)
    found = group_gradients(LossConfig(), policy, batch, [centred_PG])
    levels = group_levels(found, batch)
    expected = brute_dots(policy, batch, centred_PG, LossConfig())
    is_mixed = (rate_P > 0) & (rate_P < 1)
    assert sum(levels.num_L) == is_mixed.sum()
    assert sum(levels.square_L) == pytest.approx(np.trace(expected), rel=1e-3)
    np.testing.assert_array_equal(centred_PG, batch.successes_PG - rate_P[:, None])


def test_a_long_gradient_is_folded_with_little_loss():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(200_000, generator=generator) for _ in range(2))
    c = 0.5 * a + b
    folded = [_flat([x[:150_000], x[150_000:]], size=20_000) for x in (a, b, c)]
    assert all(len(x) == 20_000 for x in folded)
    for x, y, fx, fy in ((a, a, 0, 0), (a, b, 0, 1), (a, c, 0, 2)):
        error = abs(float(folded[fx] @ folded[fy]) - float(x @ y))
        assert error < 4 * math.sqrt(2 / 20_000) * float(x.norm() * y.norm())
    torch.testing.assert_close(folded[2], 0.5 * folded[0] + folded[1], atol=1e-3, rtol=1e-3)


# Weights of the form factor(rbar) x (r - rbar)


@pytest.mark.parametrize(
    ("name", "fields", "factor"),
    [
        ("grpo", {}, lambda p: 1.0),
        ("power", {"alpha": 3.0}, lambda p: (1 - p) ** 2),
        ("grpo_std", {"ddof": 0, "eps": 0.0}, lambda p: 1 / math.sqrt(p * (1 - p))),
        ("fade", {"target_entropy": 0.001}, lambda p: (1 - p) ** 0.5),
        ("asym_grpo_delta", {}, None),
        ("reinforce", {}, None),
        ("bnpo", {}, None),
    ],
)
def test_the_factor_of_a_weight_is_found_where_it_has_one(policy, tokenizer, name, fields, factor):
    batch = make_batch(policy, tokenizer)
    weight = WEIGHTS[name](**fields)
    weights_PG, state = weigh_again(weight, batch)
    found = factor_of(weight, state, weights_PG, batch)
    if factor is None:
        assert found is None
        return
    expected = [factor(k / G) for k in range(1, G)]
    if name == "fade":
        alpha = weight.report(state)["alpha"]
        expected = [(1 - k / G) ** (alpha - 1) for k in range(1, G)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_weight_that_looks_at_lengths_has_no_factor(policy, tokenizer):
    batch = make_batch(policy, tokenizer)
    weight = WEIGHTS["grpo"]()
    by_length = batch.weights_PG * batch.signals["lengths_PG"]
    assert factor_of(weight, {}, batch.weights_PG, batch) is not None
    assert factor_of(weight, {}, by_length, batch) is None


def test_judging_the_weight_in_use_and_another_agrees_with_the_literal_split(policy, tokenizer):
    batch = make_batch(policy, tokenizer)
    _, centred_PG = centred(batch)
    power = WEIGHTS["power"](alpha=2.0)
    other_PG, state = weigh_again(power, batch)
    gradients = group_gradients(LossConfig(), policy, batch, [centred_PG, other_PG])
    levels = group_levels(gradients, batch)
    for weight, weights_PG in ((WEIGHTS["grpo"](), batch.weights_PG), (power, other_PG)):
        row = judge_weight(weight, state, weights_PG, gradients, [levels], batch)
        dots = brute_dots(policy, batch, weights_PG, LossConfig())
        cross = (dots.sum() - np.trace(dots)) / (P * (P - 1))
        noise = (np.trace(dots) / P - cross) / P
        assert row["snr"] == pytest.approx(cross / noise, rel=1e-2, abs=1e-3)
        assert row["label"] == weight.label
        tenfold = judge_weight(weight, state, 10 * weights_PG, gradients, [levels], batch)
        assert tenfold["snr"] == pytest.approx(row["snr"], rel=1e-6)
        assert tenfold["quality"] == row["quality"]
    asym = WEIGHTS["asym_grpo_delta"]()
    weights_PG, state = weigh_again(asym, batch)
    row = judge_weight(asym, state, weights_PG, gradients, [levels], batch)
    assert row["quality"] is None
    assert row["snr"] is not None


def test_a_probe_needs_weights_that_exist_and_groups_large_enough_for_them():
    with pytest.raises(UsageError, match=r"unknown weight 'pwoer'; did you mean 'power'"):
        load_recipe(Recipe, None, ['--probe.weights=["pwoer"]'])
    with pytest.raises(UsageError, match=r"power_unbiased.* groups of at least 10"):
        load_recipe(Recipe, None, ['--probe.weights=["power_unbiased:alpha=9"]'])
    recipe = load_recipe(Recipe, None, ['--probe.weights=["power:alpha=3", "maxrl"]'])
    assert [w.label for w in recipe.probe.others] == ["power(alpha=3.0)", "maxrl"]
    assert load_recipe(Recipe, None, ["--probe.weights=[]"]).probe.others == ()
    with pytest.raises(UsageError, match=r"probe.every must be at least 0, got -1"):
        load_recipe(Recipe, None, ["--probe.every=-1"])
    with pytest.raises(UsageError, match=r"probe.weights must be a list, each a text"):
        load_recipe(Recipe, None, ["--probe.weights=grpo"])
