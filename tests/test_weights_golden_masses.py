"""Every weight's exact gradient masses at finite group sizes against published ones."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradmass.weights import WEIGHTS

GOLDEN = json.loads((Path(__file__).parent / "golden" / "weights_vectors.json").read_text())

ARRAY = {
    "numpy": lambda rows: np.array(rows, dtype=np.float64),
    "torch": lambda rows: torch.tensor(rows, dtype=torch.float64),
}

WEIGHT_OF_MASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo_mean": ("grpo", {}),
    "rloo": ("rloo", {}),
    "grpo_std_pop": ("grpo_std", {"ddof": 0, "eps": 0.0}),
    "maxrl": ("maxrl", {"eps": 0.0}),
    "maxrl_vr": ("maxrl_conditional", {}),
    "power2": ("power", {"alpha": 2.0}),
    "power3": ("power", {"alpha": 3.0}),
    "tang(k=G)": ("passk_tang", {}),
    "rs_b8": ("rs_grpo", {"beta": 8.0}),
    "entropic_loo_b8": ("entropic", {"beta": 8.0, "leave_one_out": True}),
    "asymgrpo_gu": ("asym_grpo_power", {"beta_pos": 0.9, "beta_neg": 0.4}),
    "qae_paper_.4": ("qae", {"K": 0.4, "eps": 0.0}),
    "chen_k4": ("passk_chen", {"k": 4, "eps": 0.0}),
    "pkpo_sloo1_k4(xG)": ("pkpo_sloo_minus_one", {"k": 4}),
    "pkpo_sloo_k4(xG)": ("pkpo_sloo", {"k": 4}),
}


def test_every_method_of_the_file_is_compared():
    assert set(GOLDEN["_finite_G_masses"]["values"]) == set(WEIGHT_OF_MASSES)


@cache
def weights_by_successes(library: str, method: str, size: int) -> list[tuple[float, float]]:
    """Weight of a success and of a failure in groups of 0, 1 .. size successes.

    But for their order these are all outcomes of a group.
    """
    name, fields = WEIGHT_OF_MASSES[method]
    rewards_PG = ARRAY[library]([[1] * s + [0] * (size - s) for s in range(size + 1)])
    weights_PG = WEIGHTS[name](**fields).update(rewards_PG, {})[0].tolist()
    return [(weights[0], weights[-1]) for weights in weights_PG]


def masses(library: str, method: str, size: int, p: float) -> tuple[float, float]:
    m_success = m_failure = 0.0
    for s, (success, failure) in enumerate(weights_by_successes(library, method, size)):
        chance = math.comb(size, s) * p**s * (1 - p) ** (size - s)
        m_success += chance * s / size * success
        m_failure -= chance * (size - s) / size * failure
    return m_success, m_failure


@pytest.mark.parametrize("library", ARRAY)
@pytest.mark.parametrize("method", WEIGHT_OF_MASSES)
def test_the_published_masses_at_finite_group_sizes_are_reproduced(method, library):
    entries = GOLDEN["_finite_G_masses"]["values"][method]
    assert {entry["G"] for entry in entries} >= {8, 16}
    for entry in entries:
        factor = entry["G"] if method == "tang(k=G)" else 1
        expected = (factor * entry["mS"], factor * entry["mF"])
        actual = masses(library, method, entry["G"], entry["p"])
        assert actual == pytest.approx(expected, rel=1e-11, abs=1e-9)


@pytest.mark.parametrize("library", ARRAY)
def test_the_limit_of_the_best_of_eight_is_that_of_groups_of_eight(library):
    for limit in GOLDEN["_limit_masses"]["values"]["tang_k8(sum)"]:
        m_success, m_failure = masses(library, "tang(k=G)", 8, limit["p"])
        assert m_success / 8 == pytest.approx(limit["mS"], rel=0, abs=1e-9)
        assert m_failure == limit["mF"] == limit["wF"]
        assert m_success / 8 / limit["p"] == pytest.approx(limit["wS"], rel=0, abs=1e-9)
