"""Exact masses against enumeration, of weights of groups, of batches, and of plain functions."""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradmass.masses import (
    BetaPrior,
    FunctionWeight,
    MeasuredPrior,
    masses_of,
    objective_of,
)
from gradmass.masses.canonical import Canonical, neutral_signals, stratified
from gradmass.masses.priors import binomial_pmf
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

GOLDEN = Path(__file__).parent / "golden"
REQUIRED_FIELDS = json.loads((GOLDEN / "weight_fields.json").read_text())
RATES = np.array([0.02, 0.1, 0.3, 0.5, 0.8])
UNIFORM = BetaPrior()


def build(name: str, **fields: Any) -> Weight:
    return WEIGHTS[name](**REQUIRED_FIELDS.get(name, {}) | fields)


GROUP_WEIGHTS = [name for name in WEIGHTS.names() if build(name).scope == "group"]
BATCH_WEIGHTS = [name for name in WEIGHTS.names() if build(name).scope == "batch"]


# Finite groups


def masses_of_all_outcomes(weight: Weight, group_size: int, p: float) -> tuple[float, float]:
    """Every outcome of a group with its probability, one rollout at a time."""
    outcomes = list(itertools.product((0.0, 1.0), repeat=group_size))
    rewards_PG = np.array(outcomes)
    weights_PG, _ = weight.update(rewards_PG, weight.init(), **neutral_signals(weight, rewards_PG))
    positive, negative = [], []
    for outcome, weights in zip(outcomes, weights_PG.tolist(), strict=True):
        chance = math.prod(p if r else 1 - p for r in outcome) / group_size
        positive += [chance * w for w, r in zip(weights, outcome, strict=True) if r]
        negative += [-chance * w for w, r in zip(weights, outcome, strict=True) if not r]
    return math.fsum(positive), math.fsum(negative)


@pytest.mark.parametrize("name", GROUP_WEIGHTS)
def test_masses_are_the_sums_over_all_outcomes(name):
    weight = build(name)
    for group_size in range(weight.min_group_size, 9):
        masses = masses_of(weight, RATES, group_size)
        for p, m_S, m_F in zip(RATES, masses.m_S_N, masses.m_F_N, strict=True):
            expected = masses_of_all_outcomes(weight, group_size, p)
            assert (m_S, m_F) == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert masses.error == 0
        assert masses.w_S_N * RATES == pytest.approx(masses.m_S_N, rel=1e-15)
        assert masses.w_F_N * (1 - RATES) == pytest.approx(masses.m_F_N, rel=1e-15)


def test_all_group_weights_are_among_those():
    assert len(GROUP_WEIGHTS) > 20
    assert {"grpo", "rloo", "power", "maxrl", "sign_pure"} <= set(GROUP_WEIGHTS)


@pytest.mark.parametrize("name", GROUP_WEIGHTS)
def test_the_objective_is_the_integral_of_its_slope(name):
    weight = build(name)
    group_size = max(6, weight.min_group_size)
    nodes, shares = np.polynomial.legendre.leggauss(group_size)  # exact for its polynomials
    objective_N, zero = objective_of(weight, RATES, group_size)
    assert zero == 0
    for p, objective in zip(RATES, objective_N, strict=True):
        slopes = masses_of(weight, p * (nodes + 1) / 2, group_size).objective_slope_N
        assert objective == pytest.approx(p / 2 * shares @ slopes, rel=1e-11, abs=1e-13)


@pytest.mark.parametrize(("trials", "p"), [(7, 0.3), (64, 0.5), (1023, 0.02), (1024, 0.999)])
def test_binomial_probabilities_are_exact_for_large_groups(trials, p):
    actual = binomial_pmf(np.array([p]), trials)[0]
    exact, q = Fraction(p), 1 - Fraction(p)
    for s in {0, 1, trials // 3, round(p * trials), trials - 1, trials}:
        expected = math.comb(trials, s) * exact**s * q ** (trials - s)
        assert actual[s] == pytest.approx(float(expected), rel=1e-11, abs=1e-300)
    assert binomial_pmf(np.array([0.0, 1.0]), 3).tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("group_size", [1, 2, 100, 1024])
def test_weights_linear_in_the_reward_have_their_closed_form_at_any_group_size(group_size):
    grpo = masses_of(build("grpo"), RATES, group_size)
    expected = RATES * (1 - RATES) * (group_size - 1) / group_size
    assert grpo.m_S_N == pytest.approx(expected, rel=1e-11, abs=1e-15)
    assert grpo.m_F_N == pytest.approx(expected, rel=1e-11, abs=1e-15)
    reinforce = masses_of(build("reinforce", signed=True), RATES, group_size)
    assert reinforce.m_S_N == pytest.approx(RATES, rel=1e-11)
    assert reinforce.m_F_N == pytest.approx(1 - RATES, rel=1e-11)


def test_maxrl_in_groups_of_1024_has_its_closed_form():
    masses = masses_of(build("maxrl", eps=0.0), RATES, 1024)
    q = 1 - RATES
    assert masses.m_S_N == pytest.approx(q - q**1024, rel=1e-11)
    assert masses.objective_slope_N == pytest.approx((1 - q**1023) / RATES, rel=1e-11)


# Weights that depend on the batch, or remember


@pytest.mark.parametrize("group_size", [4, 8, math.inf])
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 1.2), (30.0, 70.0)])
def test_batch_statistics_are_those_of_infinitely_many_problems(a, b, group_size):
    prior, solved = BetaPrior(a, b), a / (a + b)
    p_N = np.array([0.1, 0.5, 0.9])
    tolerance = 1e-5 if group_size < math.inf else 1e-4

    def w(name: str, **fields: Any) -> tuple[np.ndarray, np.ndarray]:
        masses = masses_of(build(name, **fields), p_N, group_size, prior=prior)
        return masses.w_S_N, masses.w_F_N

    baseline = w("reinforce_batch_baseline")
    assert baseline[0] == pytest.approx([1 - solved] * 3, abs=tolerance)
    assert baseline[1] == pytest.approx([solved] * 3, abs=tolerance)
    deviation = math.sqrt(solved * (1 - solved))
    whitened = w("reinforce_plus_plus")
    assert whitened[0] == pytest.approx([(1 - solved) / deviation] * 3, rel=tolerance)
    assert whitened[1] == pytest.approx([solved / deviation] * 3, rel=tolerance)
    shrink = 1 if group_size == math.inf else (group_size - 1) / group_size
    assert w("gpg")[0] == pytest.approx((1 - p_N) * shrink / solved, rel=tolerance)
    assert w("gpg")[1] == pytest.approx(p_N * shrink / solved, rel=tolerance)


def test_a_measured_prior_is_a_mixture_of_its_rates():
    prior = MeasuredPrior((0.2, 0.8, 0.8, 1.0))
    masses = masses_of(build("reinforce_batch_baseline"), RATES, 8, prior=prior)
    assert masses.w_F_N == pytest.approx([0.7] * 5, abs=1e-5)
    assert masses.error < 1e-4


def test_the_stated_error_covers_what_a_larger_batch_changes():
    weight, prior = build("bnpo"), BetaPrior(0.7, 1.9)
    masses = masses_of(weight, RATES, 8, prior=prior)
    assert 0 < masses.error < 1e-5
    full = Canonical(weight, prior=prior).by_successes(8, np.arange(9))
    half = Canonical(weight, prior=prior).by_successes(8, np.arange(9), is_half=True)
    assert full[0] == pytest.approx(half[0], abs=1e-4)
    # A batch drawn at random, of a million rollouts, agrees within its sampling error.
    rng = np.random.default_rng(0)
    solve_rate_P = rng.beta(0.7, 1.9, 125_000)
    rewards_PG = (rng.random((125_000, 8)) < solve_rate_P[:, None]) * 1.0
    weights_PG, _ = weight.update(rewards_PG, {})
    drawn = weights_PG[rewards_PG.sum(1) == 3].max(axis=1).mean()
    assert full[0][3] == pytest.approx(drawn, rel=0.01)


def test_rows_that_no_problem_of_the_prior_gives_do_not_move_the_batch():
    """Groups without success have no share of a batch of easy problems, and are weighed in it."""
    prior = MeasuredPrior((0.97,) * 5)
    success_S, failure_S = Canonical(build("reinforce_batch_baseline"), prior=prior).by_successes(
        64, np.arange(65)
    )
    assert failure_S[:-1] == pytest.approx([0.97] * 64, abs=2e-5)
    assert success_S[1:] == pytest.approx([0.03] * 64, abs=2e-5)


@pytest.mark.parametrize("name", BATCH_WEIGHTS)
def test_a_weight_that_depends_on_the_batch_needs_a_prior(name):
    with pytest.raises(UsageError, match=r"^weight .* depends on the whole batch: give .* prior"):
        masses_of(build(name), RATES, 8)
    masses = masses_of(build(name), RATES, 8, prior=UNIFORM)
    assert np.isfinite(masses.total_N).all()


def test_stratified_batches_follow_the_probabilities():
    pmf_S = np.array([0.5, 0.0, 0.2, 0.3])
    batch = stratified(pmf_S, 7).tolist()
    assert len(batch) == 7
    assert [batch.count(s) for s in range(4)] == [4, 0, 1, 2]
    assert stratified(np.full(9, 1 / 9), 18).tolist() == [s for s in range(9) for _ in range(2)]


def test_a_state_is_held_fixed():
    fade = build("fade", target_entropy=1.0)
    state = fade.update(np.array([[0.0, 0.0, 1.0]]), fade.init(), entropy_nats=0.6)[1]
    alpha, delta = fade.report(state)["alpha"], fade.report(state)["delta"]
    assert (alpha, delta) != (1.5, 1.0)
    before = json.dumps(state)
    for group_size in (8, math.inf):
        actual = masses_of(fade, RATES, group_size, state=state)
        same = masses_of(build("power_asym", alpha=alpha, delta=delta), RATES, group_size)
        assert actual.m_S_N == pytest.approx(same.m_S_N, rel=1e-12)
        assert actual.m_F_N == pytest.approx(same.m_F_N, rel=1e-12)
    assert json.dumps(state) == before
    initial = masses_of(fade, RATES, 8)
    assert initial.m_S_N.tolist() == masses_of(build("power", alpha=1.5), RATES, 8).m_S_N.tolist()
    assert fade.init() == build("fade", target_entropy=1.0).init()


def test_the_state_of_another_weight_is_refused():
    with pytest.raises(UsageError, match=r"^weight fade was given a state with \['x'\]"):
        masses_of(build("fade"), RATES, 8, state={"x": 1})


def test_a_weight_that_remembers_and_depends_on_the_batch_is_seen_through():
    weight = WEIGHTS["constant_mass"](inner=build("fade"))
    assert weight.scope == "run"
    with pytest.raises(UsageError, match="depends on the whole batch"):
        masses_of(weight, RATES, 8)
    assert Canonical(build("fade")).is_by_group
    assert not Canonical(weight).is_by_group


# Functions of the user's, and weights that no number of successes decides


def test_a_plain_function_has_the_masses_of_the_same_weight():
    weight = FunctionWeight(function=lambda r: r - r.mean(), source="mine.py:centred")
    actual, expected = masses_of(weight, RATES, 6), masses_of(build("grpo"), RATES, 6)
    assert actual.label == "mine.py:centred"
    assert actual.m_S_N == pytest.approx(expected.m_S_N, rel=1e-13)
    assert actual.m_F_N == pytest.approx(expected.m_F_N, rel=1e-13)


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (
            lambda r: r / r.std() if r.std() else r * math.nan,
            r"\[0.0, 0.0, 0.0\] it gave \[nan nan",
        ),
        (lambda r: 1.0, r"it gave 1.0$"),
        (lambda r: r[:-1], r"it gave \[0. 0.\]$"),
        (lambda r: "high", r"it gave high$"),
        (lambda r: None, r"it gave None$"),
    ],
)
def test_what_a_function_may_not_return_is_shown(function, shown):
    weight = FunctionWeight(function=function, source="mine.py:f")
    wanted = rf"^mine.py:f must return a finite weight for each rollout; .*{shown}"
    with pytest.raises(UsageError, match=wanted):
        masses_of(weight, RATES, 3)


def test_a_function_that_prefers_a_place_in_the_group_is_refused():
    weight = FunctionWeight(function=lambda r: r * np.arange(len(r)), source="mine.py:f")
    with pytest.raises(UsageError, match=r"^weight mine.py:f gives unequal weights to rollouts"):
        masses_of(weight, RATES, 3)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_solve_rate_that_is_none_is_shown(p):
    with pytest.raises(UsageError, match=rf"^a solve rate p is above 0 and below 1, got {p:g}$"):
        masses_of(build("grpo"), np.array([0.5, p]), 8)


@pytest.mark.parametrize("group_size", [0, -1, 2.5, 4097, math.nan])
def test_a_group_size_that_is_none_is_shown(group_size):
    with pytest.raises(
        UsageError, match=rf"^group size must be .* 4096, or inf, got {group_size}$"
    ):
        masses_of(build("grpo"), RATES, group_size)


def test_a_batch_of_groups_that_would_not_fit_is_refused():
    with pytest.raises(UsageError, match=r"^weight gpg .* up to 1024, or inf, got 1025$"):
        masses_of(build("gpg"), RATES, 1025, prior=UNIFORM)
    large = masses_of(build("gpg"), RATES, 1024, prior=UNIFORM)
    assert large.w_S_N == pytest.approx(2 * (1 - RATES) * 1023 / 1024, rel=1e-4)


def test_the_limit_too_close_to_an_end_is_refused():
    for weight, prior, p in (("grpo", None, 1e-5), ("gpg", UNIFORM, 0.999)):
        with pytest.raises(UsageError, match=rf"^the limit of large groups .* got {p:g}$"):
            masses_of(build(weight), np.array([p]), math.inf, prior=prior)
