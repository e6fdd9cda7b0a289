"""Every weight against published numbers (golden/weights_vectors.json) and exact masses."""

import itertools
import json
import math
import statistics
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradmass.weights import WEIGHTS, Weight
from gradmass.weights.dapo import informative_groups

GOLDEN = json.loads((Path(__file__).parent / "golden" / "weights_vectors.json").read_text())

ARRAY = {
    "numpy": lambda rows: np.array(rows, dtype=np.float64),
    "torch": lambda rows: torch.tensor(rows, dtype=torch.float64),
}

Fields = dict[str, Any]
Vector = dict[str, Any]

WEIGHT_OF_METHOD: dict[str, tuple[str, Fields]] = {
    "reinforce_01": ("reinforce", {}),
    "reinforce_pm1": ("reinforce", {"signed": True}),
    "reinforce_batch_baseline": ("reinforce_batch_baseline", {}),
    "reinforce_plus_plus": ("reinforce_plus_plus", {}),
    "reinforce_plus_plus_baseline": ("reinforce_plus_plus_baseline", {}),
    "rloo": ("rloo", {}),
    "grpo_mean_only": ("grpo", {}),
    "grpo_std_verl": ("grpo_std", {}),  # verl's are the defaults
    "grpo_std_trl": ("grpo_std", {"eps": 1e-4}),
    "grpo_batchstd_trl": ("grpo_batch_std", {}),
    "grpo_std_population": ("grpo_std", {"ddof": 0, "eps": 0.0}),
    "grpo_nemo_default": ("grpo_loo_std", {}),
    "psr": ("psr", {}),
    "nsr": ("nsr", {}),
    "w_reinforce": ("w_reinforce", {"success_weight": 0.1}),
    "passk_tang_loo": ("passk_tang", {}),
    "grpo_passk_verl_nostd": ("grpo_passk", {}),
    "passk_chen_k2": ("passk_chen", {"k": 2}),
    "passk_chen_k4": ("passk_chen", {"k": 4}),
    "pkpo_s_k2": ("pkpo_s", {"k": 2}),
    "pkpo_s_k3": ("pkpo_s", {"k": 3}),
    "pkpo_sloo_k2": ("pkpo_sloo", {"k": 2}),
    "pkpo_sloo_k3": ("pkpo_sloo", {"k": 3}),
    "pkpo_sloo_minus_one_k2": ("pkpo_sloo_minus_one", {"k": 2}),
    "pkpo_sloo_minus_one_k3": ("pkpo_sloo_minus_one", {"k": 3}),
    "rs_grpo_beta1": ("rs_grpo", {"beta": 1.0}),
    "rs_grpo_beta2": ("rs_grpo", {"beta": 2.0}),
    "rs_grpo_beta8": ("rs_grpo", {"beta": 8.0}),
    "entropic_beta2": ("entropic", {"beta": 2.0}),
    "entropic_loo_beta2": ("entropic", {"beta": 2.0, "leave_one_out": True}),
    "asymre": ("asymre", {}),
    "f_grpo_gamma0.5": ("f_grpo", {"gamma": 0.5}),
    "f_grpo_gamma1": ("f_grpo", {"gamma": 1.0}),
    "qae_code_K0.4": ("qae", {"K": 0.4, "interpolation": "linear"}),
    "qae_paper_K0.4": ("qae", {"K": 0.4}),
    "maxrl": ("maxrl", {}),
    "maxrl_primerl": ("maxrl", {"eps": 0.0}),
    "maxrl_vr_cond": ("maxrl_conditional", {}),
    "maclaurin_T2": ("maclaurin", {"T": 2}),
    "maclaurin_T4": ("maclaurin", {"T": 4}),
    "one_sided_grpo": ("one_sided", {}),
    "asymgrpo_gu": ("asym_grpo_power", {"beta_pos": 0.9, "beta_neg": 0.4}),
    "bnpo": ("bnpo", {}),
    "a_grae": ("a_grae", {}),
    "grpo_lead": ("grpo_lead", {}),
    "mgpo_lambda1": ("mgpo", {"sharpness": 1.0, "ddof": 0, "eps": 0.0}),
    "gpg": ("gpg", {}),
    "power_alpha1": ("power", {"alpha": 1.0}),
    "power_alpha2": ("power", {"alpha": 2.0}),
    "power_alpha3": ("power", {"alpha": 3.0}),
    "asymgrpo_delta0.5": ("asym_grpo_delta", {"delta": 0.5}),
    "asymgrpo_delta2": ("asym_grpo_delta", {"delta": 2.0}),
    "power_asym_2_2": ("power_asym", {"alpha": 2.0, "delta": 2.0}),
}
TESTED_APART = {
    "dapo_dynamic_sampling",
    "fade",
    "fade_ema",
    "grpo_passk_verl_std",
    "pkpo_maxrl_repo_k2",
}
"""A filter, a state, and two functions that are not what their names say."""

POPULATION: Fields = {"ddof": 0, "eps": 0.0}
WEIGHT_OF_LIMIT: dict[str, tuple[str, Fields]] = {
    "reinforce01": ("reinforce", {}),
    "reinforce_pm1": ("reinforce", {"signed": True}),
    "batch_baseline(P=.5)": ("reinforce_batch_baseline", {}),
    "grpo_mean": ("grpo", {}),
    "grpo_std": ("grpo_std", POPULATION),
    "psr": ("psr", {}),
    "nsr": ("nsr", {}),
    "w_reinf.1": ("w_reinforce", {}),
    "pkpo_sloo1_k8": ("pkpo_sloo_minus_one", {"k": 8}),
    "pkpo_sloo_k8": ("pkpo_sloo", {"k": 8}),
    "chen_k4": ("passk_chen", {"k": 4, "eps": 0.0}),
    "chen_k8": ("passk_chen", {"k": 8, "eps": 0.0}),
    "rs_b2": ("rs_grpo", {"beta": 2.0}),
    "rs_b8": ("rs_grpo", {"beta": 8.0}),
    "asymre": ("asymre", {}),
    "fgrpo_g.5(std)": ("f_grpo", {"gamma": 0.5, **POPULATION}),
    "fgrpo_g1(std)": ("f_grpo", {"gamma": 1.0, **POPULATION}),
    "qae_.4": ("qae", {"K": 0.4, **POPULATION}),
    "maxrl": ("maxrl", {"eps": 0.0}),
    "one_sided": ("one_sided", {"eps": 0.0}),
    "asymgrpo_gu": ("asym_grpo_power", {"beta_pos": 0.9, "beta_neg": 0.4}),
    "bnpo(a=b=1.5)": ("bnpo", {}),
    "grpo_lead": ("grpo_lead", POPULATION),
    "mgpo_l1": ("mgpo", {"sharpness": 1.0, **POPULATION}),
    "power2": ("power", {"alpha": 2.0}),
    "power3": ("power", {"alpha": 3.0}),
    "asymgrpo_d.5": ("asym_grpo_delta", {"delta": 0.5}),
    "asymgrpo_d2": ("asym_grpo_delta", {"delta": 2.0}),
    "power_asym_2_2": ("power_asym", {"alpha": 2.0, "delta": 2.0}),
    "fade a3 d.3": ("fade", {"target_entropy": 1.0}),
    "thr_hardGRPO": ("surrogate", {"slope": "sqrt((1 - p) / p)"}),
}
# Solve rates of the other groups of the batch, where a weight depends on them.
OTHER_GROUPS: dict[str, dict[float, list[float]]] = {
    "batch_baseline(P=.5)": {p: [1 - p] for p in (0.1, 0.3, 0.5, 0.8)},
    # Of mean 1/2 and variance 1/16 with the group itself, which are those of Beta(3/2, 3/2).
    "bnpo(a=b=1.5)": {
        0.1: [0.9, 0.2, 0.8] + [0.5] * 5,
        0.3: [0.7, 0.1, 0.9, 0.3, 0.7, 0.4, 0.6, 0.5],
        0.5: [0.1, 0.9, 0.2, 0.8] + [0.5] * 4,
        0.8: [0.9, 0.2, 0.1] + [0.5] * 5,
    },
}


def within_rounding(values: float | list[float]) -> Any:
    return pytest.approx(values, rel=0, abs=1e-9)


def fade_state(solve_rate: float, entropy: float) -> dict[str, Any]:
    """The state of a run whose averages are these, as a checkpoint would bring it back."""
    return {
        "alpha": {"solve_rate_ema": solve_rate},
        "delta": {
            "entropy_ema": entropy,
            "entropy_initial": entropy,
            "entropy_kind": None,
            "entropy_lag": None,
        },
    }


def weigh_without_moving_averages(
    fade: Weight, rewards_PG: Any, state: dict[str, Any]
) -> list[list[float]]:
    """FADE's weights at exactly this state.

    No raw count of scored rollouts and no entropy: nothing was measured, so nothing moves.
    """
    weights_PG, after = fade.update(rewards_PG, state, num_success=0, num_scored=0)
    assert after == state
    return weights_PG.tolist()


def test_every_method_of_the_file_is_compared():
    methods = {key for key in GOLDEN if not key.startswith("_")}
    assert methods == {*WEIGHT_OF_METHOD, *TESTED_APART}
    assert set(GOLDEN["_limit_masses"]["values"]) == {*WEIGHT_OF_LIMIT, "tang_k8(sum)"}


def groups_of(vector: Vector, key: str) -> list[list[float]]:
    """Rewards or weights of a vector, a list for each group."""
    return vector[f"batch_{key}"] if f"batch_{key}" in vector else [vector[key]]


def without_float32(rewards: list[float], published: list[float]) -> list[float]:
    """What NeMo-RL would give without rounding the factor n / (n - 1) of variances to float32."""
    exact = []
    for i, weight in enumerate(published):
        others = rewards[:i] + rewards[i + 1 :]
        std, factor = statistics.stdev(others), len(others) / (len(others) - 1)
        rounded_std = std * math.sqrt(float(np.float32(factor)) / factor)
        exact.append(weight * (rounded_std + 1e-6) / (std + 1e-6))
    return exact


@pytest.mark.parametrize("library", ARRAY)
@pytest.mark.parametrize("method", WEIGHT_OF_METHOD)
def test_the_published_weights_are_reproduced(method, library):
    name, fields = WEIGHT_OF_METHOD[method]
    weight = WEIGHTS[name](**fields)
    is_for_sum = GOLDEN[method]["params"].get("convention") == "sum"
    for vector in GOLDEN[method]["vectors"]:
        rewards = groups_of(vector, "rewards")
        weights_PG, _ = weight.update(ARRAY[library](rewards), weight.init())
        factor = len(rewards[0]) if is_for_sum else 1
        published = groups_of(vector, "weights")
        if method == "grpo_nemo_default":
            published = [without_float32(*pair) for pair in zip(rewards, published, strict=True)]
        for weights, expected in zip(weights_PG.tolist(), published, strict=True):
            assert [w / factor for w in weights] == within_rounding(expected), rewards


@pytest.mark.parametrize("library", ARRAY)
def test_dynamic_sampling_keeps_the_groups_with_a_signal_of_the_standard_deviation(library):
    (vector,) = GOLDEN["dapo_dynamic_sampling"]["vectors"]
    rewards_PG = ARRAY[library](vector["batch_rewards"])
    keep_P = informative_groups(rewards_PG)
    assert keep_P.tolist() == [any(weights) for weights in vector["batch_weights"]]
    weights_PG, _ = WEIGHTS["grpo_std"]().update(rewards_PG[keep_P], {})
    kept = [weights for weights in vector["batch_weights"] if any(weights)]
    for weights, published in zip(weights_PG.tolist(), kept, strict=True):
        assert weights == within_rounding(published)


@pytest.mark.parametrize("library", ARRAY)
def test_verl_s_default_pass_at_k_is_the_margin_divided_by_the_deviation(library):
    for vector in GOLDEN["grpo_passk_verl_std"]["vectors"]:
        rewards_PG = ARRAY[library]([vector["rewards"]])
        weights_PG, _ = WEIGHTS["grpo_passk"]().update(rewards_PG, {})
        spread = statistics.stdev(vector["rewards"]) + 1e-6
        assert (weights_PG / spread).tolist()[0] == within_rounding(vector["weights"])
        if any(vector["weights"]):
            assert weights_PG.tolist()[0] != within_rounding(vector["weights"])


@pytest.mark.parametrize("library", ARRAY)
def test_the_pkpo_of_the_maxrl_repository_is_centred_twice_and_lacks_the_factor_k(library):
    for vector in GOLDEN["pkpo_maxrl_repo_k2"]["vectors"]:
        rewards_PG = ARRAY[library]([vector["rewards"]])
        weights_PG, _ = WEIGHTS["pkpo_sloo_minus_one"](k=2).update(rewards_PG, {})
        centred_PG, _ = WEIGHTS["rloo"]().update(weights_PG / 2, {})
        assert centred_PG.tolist()[0] == within_rounding(vector["weights"])
        if any(vector["weights"]):
            assert weights_PG.tolist()[0] != within_rounding(vector["weights"])


@pytest.mark.parametrize("library", ARRAY)
@pytest.mark.parametrize("golden", GOLDEN["fade"]["states"], ids=lambda s: f"p_hat{s['p_hat']}")
def test_fade_restored_into_each_published_state_gives_its_weights(golden, library):
    fade = WEIGHTS["fade"](target_entropy=golden["H_star"])
    state = fade_state(golden["p_hat"], golden["H_hat"])
    power_asym = WEIGHTS["power_asym"](alpha=golden["alpha"], delta=golden["delta"])
    for vector in golden["vectors"]:
        rewards_PG = ARRAY[library]([vector["rewards"]])
        weights_PG = weigh_without_moving_averages(fade, rewards_PG, state)
        assert weights_PG[0] == within_rounding(vector["weights"]), vector["rewards"]
        weights_PG = power_asym.update(rewards_PG, {})[0].tolist()
        assert weights_PG[0] == within_rounding(vector["weights"]), vector["rewards"]
    report = fade.report(state)
    assert report["alpha"] == pytest.approx(golden["alpha"], rel=0, abs=1e-9)
    assert report["delta"] == pytest.approx(golden["delta"], rel=0, abs=1e-9)


@pytest.mark.parametrize("library", ARRAY)
@pytest.mark.parametrize(("mode", "ema"), [("standard", 0.02), ("literal", 0.98)])
def test_fade_follows_the_published_traces_of_its_averages(mode, ema, library):
    (trace,) = [trace for trace in GOLDEN["fade_ema"]["trace"] if trace["mode"] == mode]
    fade = WEIGHTS["fade"](ema=ema, target_entropy=1.0)
    state = fade_state(trace["init"]["p_hat"], trace["init"]["H_hat"])
    for step in trace["steps"]:
        num_success = round(20 * step["rbar"])
        assert num_success == pytest.approx(20 * step["rbar"]), "20 rollouts show this solve rate"
        rewards_PG = ARRAY[library]([[1] * num_success + [0] * (20 - num_success)])
        weights_PG, state = fade.update(rewards_PG, state, entropy_nats=step["H"])
        state = json.loads(json.dumps(state))
        report = fade.report(state)
        assert report["solve_rate_ema"] == pytest.approx(step["p_hat"], rel=0, abs=1e-9)
        assert report["entropy_ema"] == pytest.approx(step["H_hat"], rel=0, abs=1e-9)
        assert report["alpha"] == pytest.approx(step["alpha"], rel=0, abs=1e-9)
        assert report["delta"] == pytest.approx(step["delta"], rel=0, abs=1e-9)
        # The step is weighed with the averages that its own batch has moved.
        solve_rate = step["rbar"]
        factor = (1 - solve_rate) ** (step["alpha"] - 1)
        success, failure = factor * (1 - solve_rate), -factor * solve_rate / step["delta"]
        expected_G = [success] * num_success + [failure] * (20 - num_success)
        assert weights_PG.tolist()[0] == within_rounding(expected_G)


def extrapolated(values: list[float]) -> float:
    """Limit of a sequence at group sizes that double, a power series in 1 / G (Richardson)."""
    for order in range(1, len(values)):
        values = [finer + (finer - coarser) / (2**order - 1) for coarser, finer in pairwise(values)]
    return values[0]


@pytest.mark.parametrize("library", ARRAY)
@pytest.mark.parametrize("method", WEIGHT_OF_LIMIT)
def test_the_weights_of_a_group_at_the_solve_rate_are_those_of_an_infinite_group(method, library):
    name, fields = WEIGHT_OF_LIMIT[method]
    weight = WEIGHTS[name](**fields)
    for limit in GOLDEN["_limit_masses"]["values"][method]:
        solve_rates = [limit["p"], *OTHER_GROUPS.get(method, {}).get(limit["p"], [])]
        successes, failures = [], []
        for size in (80, 160, 320, 640, 1280, 2560, 5120):
            counts = [round(size * p) for p in solve_rates]
            rewards_PG = ARRAY[library]([[1] * n + [0] * (size - n) for n in counts])
            if name == "fade":  # alpha at its largest, delta at its smallest
                weights_PG = weigh_without_moving_averages(weight, rewards_PG, fade_state(0.1, 0.1))
            else:
                weights_PG = weight.update(rewards_PG, {})[0].tolist()
            assert len(set(weights_PG[0][: counts[0]])) == 1
            assert len(set(weights_PG[0][counts[0] :])) == 1
            successes.append(weights_PG[0][0])
            failures.append(-weights_PG[0][-1])
        w_success, w_failure = extrapolated(successes), extrapolated(failures)
        assert w_success == within_rounding(limit["wS"])
        assert w_failure == within_rounding(limit["wF"])
        assert limit["p"] * w_success == within_rounding(limit["mS"])
        assert (1 - limit["p"]) * w_failure == within_rounding(limit["mF"])


# Gradient masses at finite group sizes, from all 2^G outcomes of a group.


@cache
def outcomes(size: int) -> np.ndarray:
    return np.array(list(itertools.product((0.0, 1.0), repeat=size)))


def enumerated_masses(name: str, fields: dict[str, Any], size: int, p: float) -> tuple:
    rewards_PG = outcomes(size)
    weights_PG, _ = WEIGHTS[name](**fields).update(rewards_PG, {})
    is_success_PG = rewards_PG == 1
    num_success_P = is_success_PG.sum(axis=1)
    chance_P = p**num_success_P * (1 - p) ** (size - num_success_P)
    m_success = (chance_P * np.where(is_success_PG, weights_PG, 0).mean(axis=1)).sum()
    m_failure = -(chance_P * np.where(is_success_PG, 0, weights_PG).mean(axis=1)).sum()
    return m_success, m_failure


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_masses_at_finite_group_sizes_have_their_closed_forms(size, p):
    q, bessel = 1 - p, (size - 1) / size
    assert enumerated_masses("reinforce", {}, size, p) == pytest.approx((p, 0))
    assert enumerated_masses("reinforce", {"signed": True}, size, p) == pytest.approx((p, q))
    grpo_mass = p * q * bessel
    assert enumerated_masses("grpo", {}, size, p) == pytest.approx((grpo_mass, grpo_mass))
    delta = {"delta": 0.4}
    assert enumerated_masses("asym_grpo_delta", delta, size, p) == pytest.approx(
        (grpo_mass, grpo_mass / 0.4)
    )
    power_mass = grpo_mass * ((size - 2) * q + 1) / size
    assert enumerated_masses("power", {}, size, p) == pytest.approx((power_mass, power_mass))
    assert enumerated_masses("power_asym", {"alpha": 2.0, **delta}, size, p) == pytest.approx(
        (power_mass, power_mass / 0.4)
    )
    population = enumerated_masses("grpo_std", {"ddof": 0, "eps": 0.0}, size, p)
    sample = enumerated_masses("grpo_std", {"ddof": 1, "eps": 0.0}, size, p)
    assert sample == pytest.approx(tuple(math.sqrt(bessel) * mass for mass in population))
    assert population[0] == pytest.approx(
        sum(
            math.comb(size, s) * p**s * q ** (size - s) * math.sqrt(s * (size - s)) / size
            for s in range(size + 1)
        )
    )
