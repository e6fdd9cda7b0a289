"""Axes of a weight, equal scale, and rollouts of different lengths."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from gradmass.masses import (
    BetaPrior,
    MeasuredPrior,
    axes_of,
    equalise_factor,
    masses_of,
)
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

GOLDEN = Path(__file__).parent / "golden"
REQUIRED_FIELDS = json.loads((GOLDEN / "weight_fields.json").read_text())
RATES = np.array([0.02, 0.1, 0.3, 0.5, 0.8])


def build(name: str, **fields: Any) -> Weight:
    return WEIGHTS[name](**REQUIRED_FIELDS.get(name, {}) | fields)


# Axes


def axes(name: str, group_size: float, prior: Any = None, p: float = 0.3, **fields: Any) -> Any:
    weight = build(name, **fields)
    masses = masses_of(weight, np.array([p]), group_size, prior=prior)
    return axes_of(weight, masses, prior=prior)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 3.0])
def test_the_difficulty_axis_of_power_in_the_limit(alpha):
    found = axes("power", math.inf, alpha=alpha)
    for sign in ("S", "F"):
        assert getattr(found, f"peak_{sign}") == pytest.approx(1 / (1 + alpha), abs=2e-4)
        assert getattr(found, f"centroid_{sign}") == pytest.approx(2 / (alpha + 3), rel=1e-5)
    assert found.scale_at_half == pytest.approx(2 ** (1 - alpha), rel=1e-9)
    assert found.learning_rate_factor == pytest.approx(2 ** (alpha - 1), rel=1e-9)
    assert found.scale_mean is found.useful_groups is found.effective_groups is None


def test_the_peaks_at_finite_group_sizes():
    for alpha, size in itertools.product((2.0, 3.0), (4, 8, 16)):

        def falling(p: float, alpha: float = alpha, size: int = size) -> float:
            chances = (math.comb(size, s) * p**s * (1 - p) ** (size - s) for s in range(size + 1))
            return -sum(c * s / size * (1 - s / size) ** alpha for s, c in enumerate(chances))

        peak = optimize.minimize_scalar(falling, bounds=(0, 1), method="bounded").x
        assert axes("power", size, alpha=alpha).peak_S == pytest.approx(peak, abs=1e-4)
    for size in (4, 8):
        best_of_all, maxrl = axes("passk_tang", size), axes("maxrl", size, eps=0.0)
        assert best_of_all.peak_S == pytest.approx(1 / size, abs=1e-4)
        assert maxrl.peak_S == pytest.approx(1 - size ** (-1 / (size - 1)), abs=1e-4)
    assert axes("psr", 8).peak_S == 1
    assert axes("nsr", 8).peak_F == 0
    assert axes("psr", 8).peak_F is axes("nsr", 8).peak_S is None
    assert axes("psr", 8).centroid_F is None
    assert axes("asymre", 8).centroid_F is None, "its negative mass is below 0 for hard problems"


def test_the_sign_axis():
    assert axes("psr", 8).sign_ratio == (None,)
    assert axes("asym_grpo_delta", 8, delta=0.25).sign_ratio == pytest.approx((0.25,))
    odds = 0.3 / 0.7
    found = axes("asym_grpo_delta", 8, delta=0.25)
    assert found.sign_ratio_fig4 == pytest.approx((0.25 * odds,))
    assert axes("reinforce", 8, signed=True).sign_ratio == pytest.approx((odds,))
    assert axes("pkpo_s", 8, k=2).sign_ratio[0] < 0, "failures are pushed up"


def test_useful_and_effective_groups_by_enumeration():
    group_size, weight = 5, build("power", alpha=3.0)
    rewards_PG = np.array([[1.0] * s + [0.0] * (5 - s) for s in range(6)])
    weights_PG = weight.update(rewards_PG, {})[0].tolist()
    for a, b in ((1, 1), (2, 3)):
        prior, useful, first, second = BetaPrior(a, b), 0.0, 0.0, 0.0
        for s, weights in enumerate(weights_PG):
            share = stats.beta(a, b).expect(
                lambda p, s=s: math.comb(5, s) * p**s * (1 - p) ** (5 - s)
            )
            size = sum(map(abs, weights)) / group_size
            useful += share * (size > 0)
            first += share * size
            second += share * size**2
        found = axes("power", group_size, prior, alpha=3.0)
        assert found.useful_groups == pytest.approx(useful, rel=1e-7)
        assert found.effective_groups == pytest.approx(first**2 / second, rel=1e-7)
        assert found.effective_groups < found.useful_groups


def test_means_over_problems_in_the_limit():
    a, b = 0.5, 1.2
    density = stats.beta(a, b)
    found = axes("maxrl", math.inf, BetaPrior(a, b), eps=0.0)
    grpo = density.expect(lambda p: p * (1 - p))
    assert found.scale_mean == pytest.approx(density.expect(lambda p: 1 - p) / grpo, rel=1e-4)
    assert found.centroid_S == pytest.approx(grpo / density.expect(lambda p: 1 - p), rel=3e-4)
    square = density.expect(lambda p: (1 - p) ** 2)
    effective = density.expect(lambda p: 1 - p) ** 2 / square
    assert found.effective_groups == pytest.approx(effective, rel=1e-4)
    assert found.useful_groups == pytest.approx(1)
    measured = axes("grpo", math.inf, MeasuredPrior((0.0, 0.5, 1.0)))
    assert measured.useful_groups == pytest.approx(1 / 3)


def test_the_scale_that_hides_in_fade():
    """Alpha 3 at a mean solve rate of .3, and alpha 1 with delta .3, against GRPO."""
    start = axes("power_asym", 8, BetaPrior(0.5, 1.2), alpha=3.0, delta=1.0)
    assert start.scale_mean == pytest.approx(0.37, abs=0.005)
    end = axes("power_asym", 8, BetaPrior(2.0, 1.0), alpha=1.0, delta=0.3)
    assert end.scale_mean == pytest.approx((1 + 1 / 0.3) / 2, rel=1e-9)


# Equal scale


@pytest.mark.parametrize("group_size", [4, 8, math.inf])
@pytest.mark.parametrize("name", ["power", "maxrl", "fade", "gpg", "reinforce", "w_reinforce"])
def test_equalised_weights_have_the_mass_of_grpo(name, group_size):
    prior, weight = BetaPrior(0.5, 1.2), build(name)
    at_half = equalise_factor(weight, "mass_at_half", group_size, prior=prior)
    half = np.array([0.5])
    own = masses_of(weight, half, group_size, prior=prior).scaled(at_half).total_N[0]
    assert own == pytest.approx(masses_of(build("grpo"), half, group_size).total_N[0], rel=1e-9)
    mean = equalise_factor(weight, "mean_mass", group_size, prior=prior)
    masses = masses_of(weight, half, group_size, prior=prior).scaled(mean)
    found = axes_of(weight, masses, prior=prior, factor=mean)
    assert found.scale_mean == pytest.approx(1, rel=1e-9)
    assert found.learning_rate_factor == pytest.approx(1, rel=1e-9)
    assert equalise_factor(weight, "none", group_size) == 1


def test_the_mean_mass_is_the_mean_over_the_prior():
    actual = equalise_factor(build("power", alpha=2.0), "mean_mass", 8, prior=BetaPrior(2, 3))
    grpo = power = 0.0
    for p, share in zip(*np.polynomial.legendre.leggauss(20), strict=True):
        rate = np.array([(p + 1) / 2])
        share *= stats.beta(2, 3).pdf(rate[0])
        grpo += share * masses_of(build("grpo"), rate, 8).total_N[0]
        power += share * masses_of(build("power", alpha=2.0), rate, 8).total_N[0]
    assert actual == pytest.approx(grpo / power, rel=1e-9)


def test_what_cannot_be_equalised_is_refused():
    for equalise, weight, size, wanted in (
        ("mean_mass", build("grpo"), 8, "equalise = mean_mass needs the solve rates"),
        ("mass", build("grpo"), 8, "equalise is none, mass_at_half or mean_mass, got 'mass'"),
        ("mass_at_half", build("grpo"), 1, "equalise = mass_at_half: the total mass of grpo at p"),
        ("mass_at_half", build("curverl"), 8, "equalise = mass_at_half: the total mass of curverl"),
    ):
        with pytest.raises(UsageError) as raised:
            equalise_factor(weight, equalise, size)
        assert str(raised.value).startswith(wanted)


# Right and wrong rollouts of different lengths


def test_masses_by_tokens_are_the_sums_over_all_outcomes():
    """Token-mean: the weights of all tokens of a large batch over the number of its tokens."""
    right, wrong, group_size, p = 120.0, 300.0, 4, 0.35
    weight = build("power_asym", alpha=2.0, delta=0.5)
    positive = negative = tokens = 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=group_size):
        chance = math.prod(p if r else 1 - p for r in outcome)
        weights = weight.update(np.array([outcome]), {})[0][0].tolist()
        for r, w in zip(outcome, weights, strict=True):
            length = right if r else wrong
            tokens += chance * length
            positive += chance * length * w * r
            negative -= chance * length * w * (1 - r)
    m_S_N, m_F_N = masses_of(weight, np.array([p]), group_size).token_mean(right, wrong)
    assert m_S_N[0] == pytest.approx(positive / tokens, rel=1e-12)
    assert m_F_N[0] == pytest.approx(negative / tokens, rel=1e-12)


def test_masses_by_tokens_of_equal_lengths_are_the_masses():
    masses = masses_of(build("fade"), RATES, 8)
    m_S_N, m_F_N = masses.token_mean(50, 50)
    assert m_S_N == pytest.approx(masses.m_S_N, rel=1e-15)
    assert m_F_N == pytest.approx(masses.m_F_N, rel=1e-15)
    for length in (0, -1, math.inf, math.nan):
        with pytest.raises(UsageError, match=rf"above 0, got {length}$"):
            masses.token_mean(50, length)
