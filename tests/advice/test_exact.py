"""Alignment and exact advice against sums by hand."""

import math
from fractions import Fraction

import pytest

from gradmass.advice import exact_advice
from gradmass.masses import BetaPrior, MeasuredPrior
from gradmass.masses.alignment import alignment
from gradmass.metrics.passk import KS
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

RATES = (0.1, 0.25, 0.5, 0.8)


def slope_of_grpo_divided_by(factor, p, size):
    """``w_S + w_F`` of a weight ``factor(s / G) (r - s / G)``, by the definition."""
    success = failure = 0.0
    for others in range(size):
        chance = math.comb(size - 1, others) * p**others * (1 - p) ** (size - 1 - others)
        mean = (others + 1) / size
        success += chance * factor(mean) * (1 - mean)
        mean = others / size
        failure += chance * factor(mean) * mean
    return success + failure


@pytest.mark.parametrize("k", [1, 4, 100])
@pytest.mark.parametrize(
    ("weight", "factor"),
    [
        (WEIGHTS["grpo"](), lambda mean: 1.0),
        (WEIGHTS["power"](alpha=3.0), lambda mean: (1 - mean) ** 2),
        (WEIGHTS["maxrl"](), lambda mean: 1 / mean if mean else 0.0),
    ],
    ids=["grpo", "power", "maxrl"],
)
def test_the_alignment_is_the_cosine_of_two_gradients_in_logits(weight, factor, k):
    own = [slope_of_grpo_divided_by(factor, p, 6) * p * (1 - p) for p in RATES]
    wanted = [k * (1 - p) ** (k - 1) * p * (1 - p) for p in RATES]
    cosine = sum(a * b for a, b in zip(own, wanted, strict=True)) / math.sqrt(
        sum(a * a for a in own) * sum(b * b for b in wanted)
    )
    assert alignment(weight, k, 6, MeasuredPrior(RATES)) == pytest.approx(cosine, rel=1e-5)


def test_over_uniform_solve_rates_grpo_and_pass_at_k_have_an_angle_of_beta_functions():
    # Integrals of p^2 (1-p)^(k+1), p^2 (1-p)^2 and p^2 (1-p)^(2k).
    def beta(a, b):
        return Fraction(math.factorial(a - 1) * math.factorial(b - 1), math.factorial(a + b - 1))

    for k in (1, 2, 10):
        square = beta(3, k + 2) ** 2 / (Fraction(1, 30) * beta(3, 2 * k + 1))
        found = alignment(WEIGHTS["grpo"](), k, 8, BetaPrior())
        assert found == pytest.approx(math.sqrt(square), rel=1e-6)


def test_pkpo_ascends_its_own_pass_at_k_and_the_scale_of_a_weight_has_no_part():
    prior = MeasuredPrior(RATES)
    assert alignment(WEIGHTS["pkpo_sloo"](k=3), 3, 8, prior) == pytest.approx(1, rel=1e-9)
    both = [alignment(WEIGHTS[name](), 10, 8, prior) for name in ("grpo", "rloo")]
    assert both[0] == pytest.approx(both[1], rel=1e-9)


def test_problems_that_are_always_or_never_solved_do_not_move():
    only = alignment(WEIGHTS["power"](), 10, 8, MeasuredPrior(RATES))
    among = alignment(WEIGHTS["power"](), 10, 8, MeasuredPrior((0.0, *RATES, 1.0)))
    assert among == pytest.approx(only)
    assert math.isnan(alignment(WEIGHTS["grpo"](), 1, 8, MeasuredPrior((0.0, 1.0))))
    with pytest.raises(UsageError, match="k of at least 1, got 0"):
        alignment(WEIGHTS["grpo"](), 0, 8, BetaPrior())


def test_exact_advice_of_grpo_by_hand():
    advice = exact_advice(WEIGHTS["grpo"](), 4, MeasuredPrior((0.0, 0.5)))
    # A coin of four throws is mixed in 14 of 16 cases, and half of the problems are hopeless.
    assert advice["useful_groups"] == pytest.approx(0.5 * 14 / 16)
    assert advice["learning_rate_factor"] == pytest.approx(1)
    # 1/4 of the gradient goes into the own share of the baseline.
    assert advice["m_S"] == pytest.approx([0.75 * p * (1 - p) for p in advice["p"]])
    assert advice["slope_bias"] == pytest.approx([-0.25] * 5)
    assert list(advice["alignment"]) == [str(k) for k in KS]


def test_what_cannot_be_computed_is_said():
    advice = exact_advice(WEIGHTS["pkpo_sloo"](k=8), 4, BetaPrior())
    assert advice["label"] == "pkpo_sloo(k=8)"
    assert "needs groups of at least 9" in advice["not_computed"]
