"""What masses mean for gradients, by enumerating every draw of a small softmax policy."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from gradmass.masses import masses_of, objective_of
from gradmass.masses.canonical import neutral_signals
from gradmass.weights import WEIGHTS, Weight

LOGITS = [0.3, -0.8, 1.1, 0.2]
IS_RIGHT = [True, False, False, True]
ANSWERS = range(len(LOGITS))


def policy() -> list[float]:
    total = sum(map(math.exp, LOGITS))
    return [math.exp(logit) / total for logit in LOGITS]


def score(answer: int) -> list[float]:
    """Gradient of log pi(answer) by the logits."""
    return [float(answer == other) - chance for other, chance in enumerate(policy())]


def expected_gradient(weight: Weight, group_size: int) -> list[float]:
    """Mean over all draws of a group of the mean over its rollouts of weight times score."""
    chances, scores = policy(), [score(answer) for answer in ANSWERS]
    gradient = [0.0] * len(LOGITS)
    for draw in itertools.product(ANSWERS, repeat=group_size):
        rewards_PG = np.array([[float(IS_RIGHT[answer]) for answer in draw]])
        signals = neutral_signals(weight, rewards_PG)
        weights = weight.update(rewards_PG, weight.init(), **signals)[0][0].tolist()
        chance = math.prod(chances[answer] for answer in draw)
        for answer, w in zip(draw, weights, strict=True):
            for i in ANSWERS:
                gradient[i] += chance * w / group_size * scores[answer][i]
    return gradient


def solve_rate() -> float:
    return sum(chance for chance, right in zip(policy(), IS_RIGHT, strict=True) if right)


def gradient_of_solve_rate() -> list[float]:
    """Of p = sum over right answers of pi, by the logits."""
    p = solve_rate()
    return [chance * (float(right) - p) for chance, right in zip(policy(), IS_RIGHT, strict=True)]


CASES: list[tuple[str, dict[str, Any]]] = [
    ("grpo", {}),
    ("grpo_std", {}),
    ("reinforce", {"signed": True}),
    ("rloo", {}),
    ("power", {"alpha": 2.5}),
    ("power_asym", {"alpha": 2.0, "delta": 0.3}),
    ("asym_grpo_delta", {"delta": 3.0}),
    ("sign_pure", {"delta": 0.2}),
    ("maxrl", {}),
    ("maxrl_conditional", {}),
    ("asymre", {}),
    ("nsr", {}),
    ("w_reinforce", {}),
    ("pkpo_s", {"k": 2}),
    ("pkpo_sloo", {"k": 2}),
    ("passk_tang", {}),
    ("entropic", {"leave_one_out": True}),
    ("qae", {"interpolation": "linear"}),
    ("opo", {}),
]


@pytest.mark.parametrize("group_size", [3, 4])
@pytest.mark.parametrize(("name", "fields"), CASES)
def test_the_expected_gradient_is_the_slope_times_the_gradient_of_the_solve_rate(
    name, fields, group_size
):
    weight, p = WEIGHTS[name](**fields), solve_rate()
    masses = masses_of(weight, np.array([p]), group_size)
    slope = float(masses.m_S_N[0] / p + masses.m_F_N[0] / (1 - p))
    assert slope == pytest.approx(masses.objective_slope_N[0], rel=1e-14)
    expected = [slope * part for part in gradient_of_solve_rate()]
    assert expected_gradient(weight, group_size) == pytest.approx(expected, rel=1e-11, abs=1e-13)


def test_the_expected_gradient_of_fade_is_that_of_its_state():
    fade = WEIGHTS["fade"]()
    masses = masses_of(fade, np.array([solve_rate()]), 3)
    slope = float(masses.objective_slope_N[0])
    # With its own update p_hat moves by 0.02 of each draw, so the frozen state is compared.
    frozen = WEIGHTS["power"](alpha=1.5)
    expected = [slope * part for part in gradient_of_solve_rate()]
    assert expected_gradient(frozen, 3) == pytest.approx(expected, rel=1e-11)


RATES = np.array([0.05, 0.3, 0.5, 0.9])


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 3.0, 4.5])
def test_power_alpha_is_the_gradient_of_pass_at_alpha_over_alpha(alpha):
    masses = masses_of(WEIGHTS["power"](alpha=alpha), RATES, math.inf)
    assert masses.objective_slope_N == pytest.approx((1 - RATES) ** (alpha - 1), rel=1e-9)
    objective_N, zero = objective_of(WEIGHTS["power"](alpha=alpha), RATES, math.inf)
    assert zero == 0
    assert objective_N == pytest.approx((1 - (1 - RATES) ** alpha) / alpha, abs=1e-3)


@pytest.mark.parametrize("alpha", [1, 2, 3])
@pytest.mark.parametrize("group_size", [4, 8, 64])
def test_the_counted_form_of_power_has_no_bias(alpha, group_size):
    weight = WEIGHTS["power_unbiased"](alpha=alpha)
    masses = masses_of(weight, RATES, group_size)
    assert masses.m_S_N == pytest.approx(RATES * (1 - RATES) ** alpha, rel=1e-11)
    assert masses.m_F_N == pytest.approx(RATES * (1 - RATES) ** alpha, rel=1e-11)
    objective_N, _ = objective_of(weight, RATES, group_size)
    assert objective_N == pytest.approx((1 - (1 - RATES) ** alpha) / alpha, rel=1e-11)


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("name", ["pkpo_s", "pkpo_sloo", "pkpo_sloo_minus_one"])
def test_the_forms_of_pkpo_share_the_objective_pass_at_k(name, k):
    for group_size in (5, 8):
        objective_N, _ = objective_of(WEIGHTS[name](k=k), RATES, group_size)
        assert objective_N == pytest.approx(1 - (1 - RATES) ** k, rel=1e-11)


def test_one_gradient_may_have_any_signs():
    """Successes alone, failures alone, and both: the same expected gradient."""
    for name in ("psr", "nsr", "rloo"):
        masses = masses_of(WEIGHTS[name](), RATES, 8)
        assert masses.objective_slope_N == pytest.approx([1.0] * 4, rel=1e-12)
    assert masses_of(WEIGHTS["psr"](), RATES, 8).m_F_N.tolist() == [0.0] * 4
    assert masses_of(WEIGHTS["nsr"](), RATES, 8).m_S_N.tolist() == [0.0] * 4


@pytest.mark.parametrize("delta", [0.1, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("group_size", [2, 3, 8, 100])
def test_sign_pure_has_the_solve_rate_as_objective_at_any_group_size(delta, group_size):
    weight = WEIGHTS["sign_pure"](delta=delta)
    masses = masses_of(weight, RATES, group_size)
    assert masses.objective_slope_N == pytest.approx([1.0] * 4, rel=1e-12)
    assert objective_of(weight, RATES, group_size)[0] == pytest.approx(RATES, rel=1e-12)


@pytest.mark.parametrize("delta", [0.1, 0.5, 1.0, 4.0])
def test_sign_pure_has_the_ratio_delta_in_the_limit(delta):
    masses = masses_of(WEIGHTS["sign_pure"](delta=delta), RATES, math.inf)
    assert masses.objective_slope_N == pytest.approx([1.0] * 4, rel=1e-7)
    assert masses.m_S_N / masses.m_F_N == pytest.approx([delta] * 4, rel=1e-6)
    q = 1 - RATES
    assert masses.m_F_N == pytest.approx(RATES * q / (delta * q + RATES), rel=1e-6)


@pytest.mark.parametrize("delta", [0.5, 2.0])
def test_asym_grpo_delta_is_no_pure_sign_probe(delta):
    masses = masses_of(WEIGHTS["asym_grpo_delta"](delta=delta), RATES, math.inf)
    assert masses.objective_slope_N == pytest.approx(1 - RATES + RATES / delta, rel=1e-9)
