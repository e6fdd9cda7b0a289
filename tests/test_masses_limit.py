"""Masses in the limit of large groups, against published formulas and extrapolation."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradmass.masses import (
    BetaPrior,
    finite_group_bias,
    masses_of,
    objective_of,
)
from gradmass.weights import WEIGHTS, Weight

GOLDEN = Path(__file__).parent / "golden"
REQUIRED_FIELDS = json.loads((GOLDEN / "weight_fields.json").read_text())
PUBLISHED = json.loads((GOLDEN / "weights_vectors.json").read_text())
RATES = np.array([0.02, 0.1, 0.3, 0.5, 0.8])
UNIFORM = BetaPrior()


def build(name: str, **fields: Any) -> Weight:
    return WEIGHTS[name](**REQUIRED_FIELDS.get(name, {}) | fields)


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
