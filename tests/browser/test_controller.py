"""The controller on the page takes the steps of the library's, to 1e-9."""

import itertools
import random

import numpy as np
import pytest

from gradmass.weights.fade import Fade

pytestmark = pytest.mark.browser

REWARDS = np.array([[1.0, 0.0]])
FORMS = list(
    itertools.product(
        ("absolute", "relative"),
        ("solve-rate", "entropy", "log-decay", "constant"),
        ("entropy", "log-decay", "constant"),
        ("half-initial", 0.4),
    )
)


def measurements(seed, num_steps):
    """Rates and entropies that fall and rise, with gaps, and none of either at first."""
    draw = random.Random(seed)
    rates = [None if draw.random() < 0.1 else draw.random() ** 3 for _ in range(num_steps)]
    entropies = [None if draw.random() < 0.2 else 2 * draw.random() ** 2 for _ in range(num_steps)]
    return [None, *rates], [None, None, *entropies[1:]]


def in_library(fade, rates, entropies, planned):
    state, alphas, deltas = fade.init(), [], []
    for step, (rate, entropy) in enumerate(zip(rates, entropies, strict=True)):
        scored = 0 if rate is None else 10**9
        signals = {"step": step, "num_steps": planned, "num_scored": scored}
        signals["num_success"] = 0 if rate is None else rate * scored
        _, state = fade.update(REWARDS, state, entropy_nats=entropy, **signals)
        report = fade.report(state)
        alphas.append(report["alpha"])
        deltas.append(report["delta"])
    return alphas, deltas


@pytest.mark.parametrize("seed", range(3))
def test_alpha_and_delta_follow_as_in_the_library(page, seed):
    rates, entropies = measurements(seed, 60)
    run = {
        "step": list(range(len(rates))),
        "num_steps": len(rates),
        "solve_rate": rates,
        "entropy_nats": entropies,
    }
    for form, alpha, delta, target in FORMS:
        settings = {
            "alpha_max": 2.5,
            "delta_min": 0.35,
            "ema": (0.02, 0.3, 1.0)[seed],
            "entropy_form": form,
            "alpha_schedule": alpha,
            "delta_schedule": delta,
            "target_entropy": target,
        }
        played = page.js("playController(args[0], args[1])", run, settings)
        alphas, deltas = in_library(Fade(**settings), rates, entropies, len(rates))
        np.testing.assert_allclose(played["alpha"], alphas, rtol=1e-9)
        np.testing.assert_allclose(played["delta"], deltas, rtol=1e-9)


def test_a_run_without_entropies_keeps_delta_at_one(page):
    run = {"step": [0, 1], "num_steps": 2, "solve_rate": [0.1, 0.2], "entropy_nats": [None, None]}
    played = page.js("playController(args[0], firstState().fade)", run)
    assert played["delta"] == [1, 1]
    assert played["target"] is None
