"""Rivals of FADE that follow the entropy: EntroPIC's weight, and the adaptive entropy bonus."""

import random

import numpy as np
import pytest

from gradmass.config import EntropyConfig
from gradmass.training.entropy_bonus import EntropyBonus
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS


def literal_entropic(entropies, k_p, k_i, target):
    """Controls of EntroPIC, batch by batch: use the integral, then add the error to it."""
    integral, controls = 0.0, []
    for entropy in entropies:
        error = entropy - target
        control = k_p * error + k_i * integral
        controls.append(min(1.0, max(-1.0, control)))
        integral += error
    return controls


@pytest.mark.parametrize(("k_p", "k_i", "target"), [(1, 0.01, 0.1), (0.3, 0.2, 0.6), (0, 1, 0)])
def test_entropic_controls_by_the_error_and_the_sum_of_earlier_ones(k_p, k_i, target):
    rng = random.Random(1)
    entropies = [rng.uniform(0, 1.5) for _ in range(30)]
    rewards = np.array([[1.0, 1.0, 0.0, 0.0, 0.0], [0.0] * 5, [1.0, 0.0, 0.0, 0.0, 1.0]])
    weight = WEIGHTS["entropy_pi"](k_p=k_p, k_i=k_i, target_entropy=target)
    inner_PG, _ = WEIGHTS["grpo_std"]().update(rewards, {})
    state = weight.init()
    for entropy, a in zip(entropies, literal_entropic(entropies, k_p, k_i, target), strict=True):
        weights_PG, state = weight.update(rewards, state, entropy_nats=entropy, entropy_kind="x")
        for found, inner, reward in zip(
            weights_PG.ravel(), inner_PG.ravel(), rewards.ravel(), strict=True
        ):
            factor = 1 + a if reward == 1 else 1 - a
            assert found == pytest.approx(factor * inner, abs=1e-12)
        assert weight.report(state)["control"] == pytest.approx(a)


def test_entropic_pushes_against_the_error():
    rewards = np.array([[1.0, 0.0]])
    weight = WEIGHTS["entropy_pi"](inner=WEIGHTS["grpo"](), target_entropy=0.5)
    low, _ = weight.update(rewards, weight.init(), entropy_nats=0.25)
    high, _ = weight.update(rewards, weight.init(), entropy_nats=0.75)
    none, state = weight.update(rewards, weight.init())
    assert low.tolist() == [[0.375, -0.625]]
    assert high.tolist() == [[0.625, -0.375]]
    assert (none.tolist(), state) == ([[0.5, -0.5]], weight.init())
    collapsed, _ = weight.update(rewards, weight.init(), entropy_nats=3.0)
    assert collapsed.tolist() == [[1.0, 0.0]]  # at the bound failures have no weight


def test_entropic_keeps_the_state_of_its_inner_weight():
    weight = WEIGHTS["entropy_pi"](inner=WEIGHTS["fade"]())
    state = weight.init()
    _, state = weight.update(np.array([[1.0, 0.0]]), state, entropy_nats=0.5, entropy_kind="x")
    _, fade = WEIGHTS["fade"]().update(
        np.array([[1.0, 0.0]]), WEIGHTS["fade"]().init(), entropy_nats=0.5, entropy_kind="x"
    )
    assert state["inner"] == fade
    with pytest.raises(UsageError, match="entropy_kind 'y' differs from 'x'"):
        weight.update(np.array([[1.0, 0.0]]), state, entropy_nats=0.5, entropy_kind="y")


@pytest.mark.parametrize("fields", [{"k_p": -1.0}, {"k_i": float("nan")}, {"target_entropy": -0.1}])
def test_entropic_refuses_gains_and_targets_that_are_none(fields):
    with pytest.raises(UsageError, match=f"entropy_pi needs a finite {next(iter(fields))} of at"):
        WEIGHTS["entropy_pi"](**fields)


def literal_trl(entropies, coef, step, low, high, target):
    """TRL 1.16's ``use_adaptive_entropy``: coefficients applied, and after each update kept."""
    last_world_entropy, applied, kept = float("inf"), [], []
    for world_entropy in entropies:
        applied.append(coef if last_world_entropy <= target else 0.0)
        is_low = world_entropy <= target
        coef = min(coef + step, high) if is_low else max(coef - step, low)
        last_world_entropy = world_entropy
        kept.append(coef)
    return applied, kept


@pytest.mark.parametrize("start", [0.0, 0.02])
@pytest.mark.parametrize("cut", [0, 7, 39])
def test_the_adaptive_bonus_follows_trl_s_rule_across_a_checkpoint(start, cut):
    rng = random.Random(3)
    entropies = [rng.uniform(0.1, 0.35) for _ in range(20)]
    entropies[5:5] = [0.2] * 10  # exactly the target counts as low
    entropies += [0.21] * 10
    config = EntropyConfig(coef=start, is_adaptive=True, step=0.007, max=0.05, target=0.2)
    applied, kept = literal_trl(entropies, start, 0.007, 0.0, 0.05, 0.2)
    bonus = EntropyBonus(config)
    for i, entropy in enumerate(entropies):
        if i == cut:
            bonus = EntropyBonus(config, bonus.state)
        assert bonus.coef == pytest.approx(applied[i])
        bonus.see(entropy)
        assert bonus.state["coef"] == pytest.approx(kept[i])
    assert {0.0, 0.05} <= {round(value, 9) for value in kept}, "both bounds are reached"
    assert bonus.is_on


def test_a_fixed_bonus_is_fixed_and_none_is_off():
    bonus = EntropyBonus(EntropyConfig(coef=0.03))
    for entropy in (0.0, 5.0):
        bonus.see(entropy)
        assert bonus.coef == 0.03
    assert bonus.is_on
    assert not EntropyBonus(EntropyConfig()).is_on


def test_bounds_that_leave_no_room_are_refused():
    with pytest.raises(UsageError, match=r"entropy.coef = 2.0 must lie within entropy.min = 0.0"):
        EntropyConfig(coef=2.0, is_adaptive=True)
    with pytest.raises(UsageError, match=r"entropy.target must be finite and at least 0, got -1"):
        EntropyConfig(target=-1)
