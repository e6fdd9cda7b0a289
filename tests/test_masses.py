"""Exact masses against enumeration, limits against closed forms, axes against their definitions."""

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from gradmass.masses import (
    BetaPrior,
    FunctionWeight,
    MeasuredPrior,
    axes_of,
    equalise_factor,
    finite_group_bias,
    masses_of,
    objective_of,
    parse_prior,
)
from gradmass.masses.canonical import Canonical, neutral_signals, stratified
from gradmass.masses.priors import binomial_pmf
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

GOLDEN = Path(__file__).parent / "golden"
REQUIRED_FIELDS = json.loads((GOLDEN / "weight_fields.json").read_text())
PUBLISHED = json.loads((GOLDEN / "weights_vectors.json").read_text())
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


# The limit of large groups


LIMITS: dict[str, Weight] = {
    "reinforce01": build("reinforce"),
    "reinforce_pm1": build("reinforce", signed=True),
    "batch_baseline(P=.5)": build("reinforce_batch_baseline"),
    "grpo_mean": build("grpo"),
    "grpo_std": build("grpo_std", eps=0.0),
    "psr": build("psr"),
    "nsr": build("nsr"),
    "w_reinf.1": build("w_reinforce"),
    "pkpo_sloo1_k8": build("pkpo_sloo_minus_one", k=8),
    "pkpo_sloo_k8": build("pkpo_sloo", k=8),
    "chen_k4": build("passk_chen", k=4, eps=0.0),
    "chen_k8": build("passk_chen", k=8, eps=0.0),
    "rs_b2": build("rs_grpo", beta=2.0),
    "rs_b8": build("rs_grpo", beta=8.0),
    "asymre": build("asymre"),
    "fgrpo_g.5(std)": build("f_grpo", gamma=0.5, eps=0.0),
    "fgrpo_g1(std)": build("f_grpo", gamma=1.0, eps=0.0),
    "qae_.4": build("qae", eps=0.0),
    "maxrl": build("maxrl", eps=0.0),
    "one_sided": build("one_sided"),
    "asymgrpo_gu": build("asym_grpo_power"),
    "grpo_lead": build("grpo_lead"),
    "mgpo_l1": build("mgpo"),
    "power2": build("power", alpha=2.0),
    "power3": build("power", alpha=3.0),
    "asymgrpo_d.5": build("asym_grpo_delta", delta=0.5),
    "asymgrpo_d2": build("asym_grpo_delta", delta=2.0),
    "power_asym_2_2": build("power_asym", alpha=2.0, delta=2.0),
    "fade a3 d.3": build("power_asym", alpha=3.0, delta=0.3),
    "thr_hardGRPO": build("f_grpo", gamma=1.0, eps=0.0),
}
ELSEWHERE = {"tang_k8(sum)": "at k = G, so not a limit", "bnpo(a=b=1.5)": "its own prior, below"}


def test_every_published_limit_is_compared():
    assert {*LIMITS, *ELSEWHERE} == set(PUBLISHED["_limit_masses"]["values"])


@pytest.mark.parametrize("method", LIMITS)
def test_the_limit_of_large_groups_is_the_published_one(method):
    rows = PUBLISHED["_limit_masses"]["values"][method]
    p_N = np.array([row["p"] for row in rows])
    masses = masses_of(LIMITS[method], p_N, math.inf, prior=UNIFORM)
    # Rounding of the published numbers, and an eps of 1e-6 where a weight has one.
    assert masses.m_S_N == pytest.approx([row["mS"] for row in rows], abs=2e-6)
    assert masses.m_F_N == pytest.approx([row["mF"] for row in rows], abs=2e-6)
    assert masses.error < 1e-5


def test_the_limit_of_bnpo_under_the_prior_that_gives_its_beta():
    rows = PUBLISHED["_limit_masses"]["values"]["bnpo(a=b=1.5)"]
    p_N = np.array([row["p"] for row in rows])
    masses = masses_of(build("bnpo"), p_N, math.inf, prior=BetaPrior(1.5, 1.5))
    assert masses.m_S_N == pytest.approx([row["mS"] for row in rows], abs=1e-4)


@pytest.mark.parametrize("p", [1e-4, 0.0123456, 1 / 3, 0.7071, 0.99987])
@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_the_limit_is_found_between_the_whole_numbers_of_successes(p, alpha):
    masses = masses_of(build("power", alpha=alpha), np.array([p]), math.inf)
    assert masses.m_S_N[0] == pytest.approx(p * (1 - p) ** alpha, rel=1e-7)
    assert masses.m_F_N[0] == pytest.approx(p * (1 - p) ** alpha, rel=1e-7)


def test_corrections_for_finite_groups_are_extrapolated_away():
    p_N = np.array([0.1, 0.25, 0.9])
    for weight in (build("rloo"), build("grpo_loo_std"), build("pkpo_sloo", k=8)):
        limit = masses_of(weight, p_N, math.inf)
        large = masses_of(weight, p_N, 4096)
        assert 0 < limit.error < 1e-4
        # At 4096 what is left falls by half with every doubling; the limit is where it falls to.
        half = masses_of(weight, p_N, 2048)
        expected = 2 * large.m_S_N - half.m_S_N
        assert limit.m_S_N == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_limit_at_a_jump_is_the_side_the_weight_takes():
    masses = masses_of(build("qae", eps=0.0), np.array([0.6, 0.61]), math.inf)
    assert masses.m_S_N.tolist() == pytest.approx([math.sqrt(1.5), 0], abs=1e-6)
    assert masses.m_F_N.tolist() == pytest.approx([0, math.sqrt(0.39 / 0.61)], abs=1e-6)


@pytest.mark.parametrize(
    ("weight", "objective", "zero", "tolerance"),
    [
        (build("grpo"), lambda p: p, 0, 1e-9),
        (build("w_reinforce"), lambda p: 1.1 * p, 0, 1e-9),
        (build("grpo_std", eps=0.0), lambda p: 2 * math.asin(math.sqrt(p)), 0, 1e-3),
        (build("one_sided"), lambda p: 2 * math.sqrt(p), 0, 1e-3),
        (build("power", alpha=3.0), lambda p: (1 - (1 - p) ** 3) / 3, 0, 1e-3),
        (build("power", alpha=0.5), lambda p: (1 - (1 - p) ** 0.5) / 0.5, 0, 1e-3),
        (build("rs_grpo", beta=2.0), lambda p: math.log(1 + p * math.expm1(2)) / 2, 0, 1e-3),
        (build("rs_grpo", beta=8.0), lambda p: math.log(1 + p * math.expm1(8)) / 8, 0, 1e-2),
        (build("pkpo_sloo_minus_one", k=4), lambda p: 1 - (1 - p) ** 4, 0, 1e-3),
        (
            build("passk_chen", k=4, eps=0.0),
            lambda p: math.asin(math.sqrt(1 - (1 - p) ** 4)) / 2,
            0,
            1e-3,
        ),
        (
            build("f_grpo", gamma=1.0, eps=0.0),
            lambda p: math.asin(math.sqrt(p)) + math.sqrt(p * (1 - p)),
            0,
            1e-3,
        ),
        (build("maxrl", eps=0.0), math.log, 1, 1e-3),
        (build("surrogate", slope="1/(p*(1-p))"), lambda p: math.log(p / (1 - p)), 0.5, 1e-3),
    ],
    ids=lambda value: getattr(value, "label", ""),
)
def test_the_objective_in_the_limit_is_the_known_one(weight, objective, zero, tolerance):
    p_N = np.array([0.001, 0.1, 0.5, 0.9])
    objective_N, actual_zero = objective_of(weight, p_N, math.inf)
    assert actual_zero == zero
    assert objective_N == pytest.approx([objective(p) for p in p_N], abs=tolerance)


def test_the_bias_of_finite_groups_is_that_of_plug_in_weights():
    def bias(weight: Weight) -> np.ndarray:
        return finite_group_bias(weight, masses_of(weight, RATES, 8))

    assert bias(build("grpo")) == pytest.approx([-1 / 8] * 5, abs=1e-9)
    for unbiased in (build("rloo"), build("pkpo_sloo", k=3), build("power_unbiased", alpha=2)):
        assert bias(unbiased) == pytest.approx([0] * 5, abs=1e-6)
    q = 1 - RATES
    power_2 = 7 / 64 * (6 * q + 1) - q  # (G - 1) / G^2 ((G - 2) q + 1) - q
    assert bias(build("power", alpha=2.0)) == pytest.approx(power_2, abs=1e-9)
    near_end = masses_of(build("power"), np.array([1e-5, 0.5]), 8)
    assert np.isnan(finite_group_bias(build("power"), near_end)).tolist() == [True, False]


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


# Priors


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 1.2), (0.05, 3.0), (400.0, 20.0)])
def test_a_beta_prior_gives_the_beta_binomial_distribution(a, b):
    prior = BetaPrior(a, b)
    for group_size in (1, 8, 200):
        successes = np.arange(group_size + 1)
        pmf_S = stats.betabinom(group_size, a, b).pmf(successes)
        assert prior.success_pmf(group_size) == pytest.approx(pmf_S, rel=1e-9, abs=1e-15)
        mean_S = prior.mean_given_successes(group_size)
        assert prior.success_pmf(group_size) @ mean_S == pytest.approx(a / (a + b), rel=1e-12)
    p_N, share_N = prior.nodes()
    assert share_N @ p_N == pytest.approx(a / (a + b), rel=1e-9)
    root = stats.beta(a, b).expect(np.sqrt) if a > 0.1 else None
    if root is not None:
        assert share_N @ np.sqrt(p_N) == pytest.approx(root, rel=1e-6)


def test_a_measured_prior_counts_its_rates():
    prior = MeasuredPrior((0.0, 0.5, 0.5, 1.0))
    assert prior.success_pmf(2) == pytest.approx([0.25 + 0.125, 0.25, 0.25 + 0.125])
    assert prior.mean_given_successes(2) == pytest.approx([0.0625 / 0.375, 0.5, 0.3125 / 0.375])
    assert [array.tolist() for array in prior.nodes()] == [[0, 0.5, 1], [0.25, 0.5, 0.25]]
    many = MeasuredPrior(tuple(np.linspace(0, 1, 5001)))
    p_N, share_N = many.nodes()
    assert len(p_N) <= 1001
    assert share_N @ p_N == pytest.approx(0.5)
    assert p_N[0] == 0
    assert p_N[-1] == 1


def test_priors_are_read_from_text_and_files(tmp_path):
    assert parse_prior("uniform") == UNIFORM
    assert parse_prior("beta:0.5,1.2") == BetaPrior(0.5, 1.2)
    assert parse_prior("beta:0.5,1.2").label == "beta:0.5,1.2"
    lines, listed = tmp_path / "rates.txt", tmp_path / "rates.json"
    lines.write_text("0.25\n0.5\n\n1\n")
    listed.write_text("[0.25, 0.5, 1]")
    assert parse_prior(str(lines)) == MeasuredPrior((0.25, 0.5, 1.0), str(lines))
    assert parse_prior(str(listed)).label == str(listed)


@pytest.mark.parametrize(
    ("text", "content", "wanted"),
    [
        ("beta:1", None, "prior 'beta:1' is not beta:a,b with two numbers"),
        ("beta:1,x", None, "prior 'beta:1,x' is not beta:a,b"),
        ("beta:0,1", None, "a Beta prior needs a from 0.001 to 1e6, got 0"),
        ("beta:1,nan", None, "a Beta prior needs b from 0.001 to 1e6, got nan"),
        ("normal", None, "prior 'normal' is neither uniform nor beta:a,b nor a file"),
        ("FILE", "0.5 1.5", "FILE: a solve rate is within 0 to 1, got 1.5"),
        ("FILE", "0.5 high", "FILE must hold solve rates, a JSON list or one a line: "),
        ("FILE", "[0.5, null]", "FILE must hold solve rates, a JSON list or one a line: "),
        ("FILE", "", "FILE has no solve rates"),
        ("FILE", "[nan]", "FILE must hold solve rates, a JSON list or one a line: "),
    ],
)
def test_a_prior_that_is_none_is_shown(tmp_path, text, content, wanted):
    file = str(tmp_path / "rates")
    if content is not None:
        Path(file).write_text(content)
    with pytest.raises(UsageError) as raised:
        parse_prior(text.replace("FILE", file))
    assert str(raised.value).startswith(wanted.replace("FILE", file))
    assert "\n" not in str(raised.value)


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
