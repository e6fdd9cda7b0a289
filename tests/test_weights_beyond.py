"""Weights beyond the paper against plain loops, enumeration and made-up runs."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

from gradmass.types import UsageError
from gradmass.weights import WEIGHTS
from gradmass.weights.open_loop import fit_open_loop

REWARDS = [[1.0, 1.0, 0.0, 0.0, 0.0], [0.0] * 5, [1.0, 0.0, 1.0, 1.0, 1.0], [1.0] * 5]


def literal_apart(rewards, alpha, delta):
    """Objective and sign apart, rollout by rollout."""
    weights = []
    for group in rewards:
        for i, reward in enumerate(group):
            others = group[:i] + group[i + 1 :]
            p = sum(others) / len(others)
            q = 1 - p
            share = delta * q if reward == 1 else -p
            weights.append(q ** (alpha - 1) * share / (delta * q + p) if len(set(group)) > 1 else 0)
    return weights


def literal_average(values, ema):
    """The mean of the first 1 / ema values, and from there on a moving average."""
    first = values[: int(1 / ema)]
    average = sum(first) / len(first) if first else None
    for value in values[int(1 / ema) :]:
        average = (1 - ema) * average + ema * value
    return average


@pytest.mark.parametrize(("alpha", "exponent"), [(1.0, 0.5), (2.5, 0.0), (2.0, 1.0)])
def test_sign_by_noise_follows_the_averages_of_both_squares_and_the_lag(alpha, exponent):
    rng = random.Random(4)
    weight = WEIGHTS["sign_by_noise"](alpha=alpha, lag_exponent=exponent, ema=0.3)
    state, seen = weight.init(), {True: [], False: []}
    for step in range(25):
        squares = [rng.choice([None, rng.uniform(0.5, 40)]), rng.uniform(0.5, 40)]
        squares = [None, None] if step < 2 else squares
        lag = rng.choice([0, 1, 16])
        weights_PG, state = weight.update(
            np.array(REWARDS), state, score_squares=squares, policy_lag=lag
        )
        for side, square in zip((True, False), squares, strict=True):
            if square is not None:
                seen[side].append(square)
        right, wrong = (literal_average(seen[side], 0.3) for side in (True, False))
        ratio = wrong / right if right and wrong else 1.0
        delta = min(10.0, max(0.1, ratio * (1 + lag) ** exponent))
        expected = literal_apart(REWARDS, alpha, delta)
        assert weights_PG.ravel().tolist() == pytest.approx(expected, abs=1e-12)
        assert weight.report(state) == pytest.approx({"delta": delta, "noise_ratio": ratio})


def test_a_ratio_of_one_without_lag_is_rloo_and_a_given_ratio_needs_no_measurement():
    weight = WEIGHTS["sign_by_noise"](noise_ratio=1.0, lag_exponent=0.0)
    assert weight.needs == ()
    found, _ = weight.update(np.array(REWARDS), weight.init())
    rloo, _ = WEIGHTS["rloo"]().update(np.array(REWARDS), {})
    assert found.ravel().tolist() == pytest.approx(rloo.ravel().tolist())
    assert WEIGHTS["sign_by_noise"](noise_ratio=2.0).needs == ("policy_lag",)
    assert WEIGHTS["sign_by_noise"]().needs == ("score_squares", "policy_lag")


@pytest.mark.parametrize("delta", [0.25, 1.0, 4.0])
def test_the_expected_gradient_is_that_of_the_objective_for_every_delta(delta):
    # Groups of 3 enumerated: the score of a success is 1 / p by the solve rate, -1 / q of a
    # failure. Slope q for alpha = 2, exactly, though every group is small.
    p = Fraction(3, 10)
    weight = WEIGHTS["sign_by_noise"](alpha=2.0, noise_ratio=delta, lag_exponent=0.0)
    slope = 0.0
    for group in itertools.product((1, 0), repeat=3):
        chance = math.prod(p if r else 1 - p for r in group)
        weights_PG, _ = weight.update(np.array([group], dtype=float), weight.init())
        scores = [1 / p if r else -1 / (1 - p) for r in group]
        pairs = zip(weights_PG[0].tolist(), scores, strict=True)
        slope += float(chance) * sum(w * float(s) for w, s in pairs) / 3
    # The other two are equal to the third where all are: tied groups have weight 0 anyway.
    assert slope == pytest.approx(0.7)


def test_the_measured_ratio_is_the_delta_of_least_variance():
    # Large groups: second moment p w_S^2 E_S + q w_F^2 E_F with w_S + w_F = 1.
    p, right, wrong = 0.3, 2.0, 7.0

    def energy(delta):
        w_s = delta * (1 - p) / (delta * (1 - p) + p)
        return p * w_s**2 * right + (1 - p) * (1 - w_s) ** 2 * wrong

    weight = WEIGHTS["sign_by_noise"]()
    rewards_PG = np.array([[1.0, 0.0]])
    _, state = weight.update(rewards_PG, weight.init(), score_squares=(right, wrong), policy_lag=0)
    best = weight.delta(state)
    assert best == pytest.approx(3.5)
    assert all(energy(best) < energy(best * factor) for factor in (0.3, 0.9, 0.99, 1.01, 2.0))


@pytest.mark.parametrize("squares", [(1.0,), 3.0, ("x", 1.0), (math.nan, 1.0), (1.0, -2.0)])
def test_squares_that_are_none_are_refused(squares):
    weight = WEIGHTS["sign_by_noise"]()
    with pytest.raises(UsageError, match="score_squares"):
        weight.update(np.array([[1.0, 0.0]]), weight.init(), score_squares=squares, policy_lag=0)


def test_scores_of_zero_have_no_ratio():
    weight = WEIGHTS["sign_by_noise"]()
    signals = {"score_squares": (0.0, 0.0), "policy_lag": 0}
    _, state = weight.update(np.array([[1.0, 0.0]]), weight.init(), **signals)
    assert weight.delta(state) == 1.0


@pytest.mark.parametrize("alpha", [1.0, 2.0, 3.5])
def test_history_takes_the_difficulty_from_earlier_visits(alpha):
    rates = [0.0, 0.25, 0.9, 1.0]
    weights_PG, _ = WEIGHTS["history"](alpha=alpha).update(
        np.array(REWARDS), {}, solve_rate_P=np.array(rates)
    )
    expected = []
    for group, rate in zip(REWARDS, rates, strict=True):
        for i, reward in enumerate(group):
            others = group[:i] + group[i + 1 :]
            expected.append((1 - rate) ** (alpha - 1) * (reward - sum(others) / len(others)))
    assert weights_PG.ravel().tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([0.5], r"solve_rate_P has shape \(1,\)"),
        ([0.5, -0.1, 0.5, 0.5], "solve_rate_P is -0.1 for group 1"),
        (None, "weight history needs the signal 'solve_rate_P', which was not passed"),
    ],
)
def test_history_refuses_what_is_no_history(given, message):
    given_P = None if given is None else np.array(given)
    with pytest.raises(UsageError, match=message):
        WEIGHTS["history"]().update(np.array(REWARDS), {}, solve_rate_P=given_P)


def test_the_open_loop_goes_from_where_fade_starts_on_the_logarithm_of_time():
    weight, fade = WEIGHTS["open_loop"](alpha_end=3.0, delta_end=0.4), WEIGHTS["fade"]()
    assert weight.report(weight.init()) == {
        "alpha": fade.report(fade.init())["alpha"],
        "delta": fade.report(fade.init())["delta"],
    }
    state = weight.init()
    # After 1 + t = 2, 4, 8, 16 the logarithm has gone a quarter of the way, a half, ...
    for step, quarters in ((0, 0), (1, 1), (3, 2), (7, 3), (15, 4)):
        weights_PG, state = weight.update(np.array(REWARDS), state, step=step, num_steps=15)
        alpha, delta = 1.5 + 1.5 * quarters / 4, 1 - 0.6 * quarters / 4
        assert weight.report(state) == pytest.approx({"alpha": alpha, "delta": delta})
        expected, _ = WEIGHTS["power_asym"](alpha=alpha, delta=delta).update(np.array(REWARDS), {})
        assert weights_PG.ravel().tolist() == pytest.approx(expected.ravel().tolist())
    with pytest.raises(UsageError, match="step = 16 is not within 0 to num_steps = 15"):
        weight.update(np.array(REWARDS), state, step=16, num_steps=15)


def planted(alpha, delta, steps, noise=0.0, rng=None):
    """What a run under these ends would record, over 200 updates."""
    share = {t: math.log(1 + t) / math.log(201) for t in steps}
    wobble = (lambda: rng.gauss(0, noise)) if noise else (lambda: 0.0)
    return {
        t: (1.5 + (alpha - 1.5) * s + wobble(), 1 + (delta - 1) * s + wobble())
        for t, s in share.items()
    }


def test_the_fit_recovers_planted_numbers_through_noise_and_over_runs():
    exact = fit_open_loop([planted(2.6, 0.35, range(200))], 200)
    assert (exact.alpha_end, exact.delta_end) == pytest.approx((2.6, 0.35))
    rng = random.Random(5)
    noisy = fit_open_loop([planted(2.6, 0.35, range(200), 0.05, rng) for _ in range(8)], 200)
    assert (noisy.alpha_end, noisy.delta_end) == pytest.approx((2.6, 0.35), rel=0.02)
    # The mean of two runs is that of their ends, and only what both have counts.
    runs = [planted(3.0, 0.5, range(200)), planted(2.0, 0.7, range(50, 90))]
    both = fit_open_loop(runs, 200)
    assert (both.alpha_end, both.delta_end) == pytest.approx((2.5, 0.6))


def test_the_fit_is_the_best_there_is():
    rng = random.Random(6)
    trace = {t: (rng.uniform(1, 3), rng.uniform(0.3, 1)) for t in range(40)}

    def error(alpha, delta):
        share = {t: math.log(1 + t) / math.log(41) for t in trace}
        return sum(
            (1.5 + (alpha - 1.5) * share[t] - a) ** 2 + (1 + (delta - 1) * share[t] - d) ** 2
            for t, (a, d) in trace.items()
        )

    fit = fit_open_loop([trace], 40)
    best = error(fit.alpha_end, fit.delta_end)
    for factor in (0.9, 0.999, 1.001, 1.1):
        assert error(fit.alpha_end * factor, fit.delta_end) > best
        assert error(fit.alpha_end, fit.delta_end * factor) > best


@pytest.mark.parametrize(
    ("traces", "num_steps", "message"),
    [
        ([], 10, "all of the 0 runs have"),
        ([{0: (1.0, 1.0)}], 10, "they have none"),
        ([{1: (1.0, 1.0)}, {2: (1.0, 1.0)}], 10, "they have none"),
        ([{10: (1.0, 1.0)}], 10, "num_steps = 10, but the runs have a batch at 10"),
    ],
)
def test_what_cannot_be_fitted_is_refused(traces, num_steps, message):
    with pytest.raises(UsageError, match=message):
        fit_open_loop(traces, num_steps)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("sign_by_noise", {"alpha": 0.5}),
        ("sign_by_noise", {"noise_ratio": 0.0}),
        ("sign_by_noise", {"noise_ratio": "guessed"}),
        ("sign_by_noise", {"ema": 0.0}),
        ("sign_by_noise", {"delta_max": 0.5}),
        ("sign_by_noise", {"lag_exponent": -1.0}),
        ("history", {"alpha": math.nan}),
        ("open_loop", {"alpha_end": 0.0, "delta_end": 1.0}),
        ("open_loop", {"alpha_end": 2.0, "delta_end": math.inf}),
    ],
)
def test_parameters_out_of_range_are_refused(name, fields):
    with pytest.raises(UsageError, match=f"{name} needs"):
        WEIGHTS[name](**fields)
