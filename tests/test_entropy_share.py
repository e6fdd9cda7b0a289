"""The controller of the entropy's share: against a literal loop, and against made-up policies."""

import math
import random

import numpy as np
import pytest

from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

REWARDS_PG = np.array([[1.0, 1.0, 0.0, 0.0]])


def deltas_of(weight, entropies, num_steps=None):
    """Deltas of a run whose entropies are given, and the weight's last state."""
    state, found = weight.init(), []
    for step, entropy in enumerate(entropies):
        _, state = weight.update(
            REWARDS_PG,
            state,
            entropy_nats=entropy,
            entropy_kind="tokens",
            step=step,
            num_steps=num_steps or len(entropies),
        )
        found.append(weight.report(state)["delta"])
    return found, state


def literal_deltas(entropies, size, every, k_p=4.0, k_i=0.05, share=0.5, ema=0.1, bound=4.0):
    """The controller as it is described, from lists: slopes by NumPy's polynomial fit."""
    logs, deltas, found = [], [], []
    average, integral, effect = None, 0.0, -1.0
    limit = math.log(bound) - size
    for step, entropy in enumerate(entropies):
        average = entropy if average is None else 0.9 * average + 0.1 * entropy
        logs.append(math.log(entropy / entropies[0]))
        done = len(logs) - 1  # batches whose delta had an effect
        if done and done % (2 * every) == 0:
            up = np.polyfit(range(every), logs[-2 * every : -every], 1)[0]
            down = np.polyfit(range(every), logs[-every:], 1)[0]
            found.append((up - down) / (2 * size))
            mean = np.mean(found)
            if len(found) >= 4 and mean * effect < 0:
                error = np.std(found, ddof=1) / math.sqrt(len(found))
                if abs(mean) > 3 * error:
                    effect, integral = -effect, 0.0
        error = math.log(average / entropies[0]) - step / len(entropies) * math.log(share)
        wanted = k_p * error + k_i * (integral + error)
        if abs(wanted) <= limit or (wanted > 0) != (error > 0):
            integral += error
        control = -effect * min(limit, max(-limit, wanted))
        wave = size if (len(logs) - 1) // every % 2 == 0 else -size
        deltas.append(math.exp(control + wave))
    return deltas, effect


@pytest.mark.parametrize("trend", [0.0, -0.01, 0.02])
def test_the_controller_is_what_it_says(trend):
    rng = random.Random(7)
    entropies = [0.5 * math.exp(trend * t + rng.gauss(0, 0.1)) for t in range(200)]
    weight = WEIGHTS["entropy_share"](probe_every=4, probe_size=0.3)
    expected, effect = literal_deltas(entropies, 0.3, 4)
    found, state = deltas_of(weight, entropies)
    assert found == pytest.approx(expected, rel=1e-9)
    assert state["effect"] == effect


def test_weights_are_those_of_sign_pure_at_the_controllers_delta():
    weight = WEIGHTS["entropy_share"]()
    state = weight.init()
    for step, entropy in enumerate((0.5, 0.3, 0.2)):
        weights_PG, state = weight.update(
            REWARDS_PG, state, entropy_nats=entropy, step=step, num_steps=3
        )
    pure_PG, _ = WEIGHTS["sign_pure"](delta=weight.report(state)["delta"]).update(REWARDS_PG, {})
    assert weights_PG.ravel().tolist() == pytest.approx(pure_PG.ravel().tolist())


class MadeUpPolicy:
    """Its log entropy drifts down, and moves by ``effect`` times log delta, with noise."""

    def __init__(self, start, drift, effect, noise, seed):
        self.log_entropy, self.drift, self.effect = math.log(start), drift, effect
        self.noise, self.rng = noise, random.Random(seed)

    def measured(self):
        return math.exp(self.log_entropy + self.rng.gauss(0, self.noise))

    def trained(self, delta):
        self.log_entropy += self.effect * math.log(delta) - self.drift


def controlled(start, *, effect, num_steps=400, drift=0.01, noise=0.02, seed=8, **fields):
    """Shares of the initial entropy of a controlled policy, its deltas, and the last state."""
    weight, policy = (
        WEIGHTS["entropy_share"](**fields),
        MadeUpPolicy(start, drift, effect, noise, seed),
    )
    state, shares, deltas = weight.init(), [], []
    for step in range(num_steps):
        _, state = weight.update(
            REWARDS_PG, state, entropy_nats=policy.measured(), step=step, num_steps=num_steps
        )
        deltas.append(weight.report(state)["delta"])
        policy.trained(deltas[-1])
        shares.append(math.exp(policy.log_entropy) / start)
    return shares, deltas, state


@pytest.mark.parametrize("start", [0.4, 2.0])
def test_one_setting_holds_the_target_from_starts_at_two_fifths_and_at_two_nats(start):
    # Left alone the entropy would end at e^-4 of its start; the target ends at one half.
    shares, _, _ = controlled(start, effect=-0.02)
    targets = [0.5 ** (t / 400) for t in range(400)]
    ratios = [share / target for share, target in zip(shares, targets, strict=True)]
    assert all(0.9 < ratio < 1.1 for ratio in ratios[50:])


def test_no_setting_of_the_absolute_form_of_fade_does_that():
    for target in (0.2, 0.5, 1.0, 1.3):
        ends = []
        for start in (0.4, 2.0):
            fade = WEIGHTS["fade"](target_entropy=target)
            policy, state = MadeUpPolicy(start, 0.01, -0.02, 0.02, 8), fade.init()
            for _ in range(400):
                signals = {"entropy_nats": policy.measured(), "entropy_kind": "x"}
                _, state = fade.update(REWARDS_PG, state, **signals)
                policy.trained(fade.report(state)["delta"])
            ends.append(math.exp(policy.log_entropy) / start)
        assert not all(0.45 < share < 0.55 for share in ends), target


def test_deltas_do_not_know_the_unit_of_the_entropy():
    low, high = (controlled(start, effect=-0.02)[1] for start in (0.4, 2.0))
    assert low == pytest.approx(high, rel=1e-6)


def test_the_controller_turns_round_where_delta_works_the_other_way():
    shares, _, state = controlled(0.5, effect=0.02, num_steps=600)
    assert state["effect"] == 1
    targets = [0.5 ** (t / 600) for t in range(600)]
    assert all(
        0.85 < share / target < 1.15
        for share, target in zip(shares[-100:], targets[-100:], strict=True)
    )
    # Without its probe it would push the wrong way to the end.
    blind, deltas, _ = controlled(0.5, effect=0.02, num_steps=600, probe_size=0.0)
    assert blind[-1] < 0.01
    assert deltas[-1] == pytest.approx(0.25)


@pytest.mark.parametrize("effect", [-0.02, -0.005])
def test_the_effect_that_is_found_is_the_one_there_is(effect):
    _, _, state = controlled(0.5, effect=effect, num_steps=4000, noise=0.005, drift=0.002)
    assert state["effect"] == -1
    assert state["pair_mean"] == pytest.approx(effect, rel=0.3)


def test_noise_alone_rarely_turns_the_controller():
    turned = [controlled(0.5, effect=0.0, drift=0.0, seed=seed)[2]["effect"] for seed in range(40)]
    assert turned.count(1) <= 4


def test_batches_without_entropy_and_starts_without_any_leave_delta_alone():
    weight = WEIGHTS["entropy_share"]()
    assert deltas_of(weight, [None] * 3)[0] == [1.0] * 3
    assert deltas_of(weight, [0.0, 0.0, 0.7])[0] == [1.0] * 3
    deltas, state = deltas_of(weight, [0.5, 0.2, None, None])
    assert deltas[1:] == [deltas[1]] * 3
    assert state["num_batches"] == 2
    # An entropy of 0 later on counts as a thousandth.
    zero, _ = deltas_of(weight, [0.5, 0.0])
    floor, _ = deltas_of(weight, [0.5, 1e-9])
    assert zero == pytest.approx(floor)


@pytest.mark.parametrize(
    "fields",
    [
        {"final_share": 0.0},
        {"k_p": -1.0},
        {"delta_max": 1.0},
        {"probe_every": 1},
        {"probe_size": math.nan},
        {"probe_size": 1.5},
        {"ema": 1.5},
        {"alpha": 0.9},
    ],
)
def test_parameters_out_of_range_are_refused(fields):
    with pytest.raises(UsageError, match="entropy_share needs"):
        WEIGHTS["entropy_share"](**fields)
