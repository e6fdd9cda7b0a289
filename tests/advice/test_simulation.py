"""The simulation climbs the gradient it should, and differences are between like and like."""

import math

import numpy as np
import pytest
from scipy import stats

from gradmass.advice import Setup, simulate, simulation
from gradmass.advice.intervals import T975, mean_interval
from gradmass.masses import BetaPrior, MeasuredPrior
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

SMALL = Setup(4, seeds=2, steps=12, problems=8, batch=4, answers=6, features=3)


def objective(logits_PA, old_PA, answer_PG, weight_PG, clip):
    """The clipped objective of PPO, in loops."""
    total = 0.0
    for p, logits_A in enumerate(logits_PA):
        log_total = math.log(sum(math.exp(x) for x in logits_A))
        for answer, weight in zip(answer_PG[p], weight_PG[p], strict=True):
            ratio = math.exp(logits_A[answer] - log_total - old_PA[p][answer])
            clipped = min(max(ratio, 1 - clip), 1 + clip)
            total += min(ratio * weight, clipped * weight)
    return total / weight_PG.size


def test_the_slope_is_that_of_the_clipped_objective():
    rng = np.random.default_rng(0)
    logits_PA, answer_PG = rng.normal(size=(3, 5)), rng.integers(0, 5, (3, 4))
    before_PA = logits_PA + 0.2 * rng.normal(size=(3, 5))
    old_PA = before_PA - np.log(np.exp(before_PA).sum(1, keepdims=True))
    weight_PG = rng.normal(size=(3, 4))
    found_PA = simulation._slope(logits_PA, old_PA, answer_PG, weight_PG, 0.2)
    step = 1e-6
    for place in np.ndindex(3, 5):
        ends = []
        for sign in (1, -1):
            moved = logits_PA.copy()
            moved[place] += sign * step
            ends.append(objective(moved, old_PA, answer_PG, weight_PG, 0.2))
        assert found_PA[place] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-7)


def test_starts_have_the_solve_rates_asked_for():
    prior = MeasuredPrior((0.1, 0.1, 0.6, 0.9))
    world = simulation._World.make(Setup(4, problems=8), prior, np.random.default_rng(0))
    policy = np.exp(world.start_NA)
    policy /= policy.sum(1, keepdims=True)
    rates = (policy * world.is_right_NA).sum(1)
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.6, 0.6, 0.9, 0.9])
    assert simulation._rates(BetaPrior(), 4) == pytest.approx(
        [1 / 8, 3 / 8, 5 / 8, 7 / 8], abs=0.05
    )


def test_a_weight_against_itself_differs_in_nothing():
    (entry,) = simulate([WEIGHTS["grpo"]()], WEIGHTS["grpo"](), SMALL, BetaPrior())
    for key in ("pass@1", "pass@100", "entropy_nats", "rank_top1_share"):
        assert entry[key]["difference"] == entry[key]["low"] == entry[key]["high"] == 0
        assert entry[key]["sign"] == 0


def test_successes_alone_concentrate_and_failures_alone_spread():
    setup = Setup(8, seeds=3, steps=60)
    weights = [WEIGHTS["psr"](), WEIGHTS["nsr"](), WEIGHTS["grpo"]()]
    seen = []
    psr, nsr, grpo = simulate(weights, WEIGHTS["grpo"](), setup, BetaPrior(), seen.append)
    assert psr["entropy_nats"]["sign"] == -1
    assert nsr["entropy_nats"]["sign"] == 1
    assert grpo["pass@1"]["mean"] > 0.6  # from 0.5
    assert seen == list(range(1, 13))


def test_lag_and_updates_do_what_they_say():
    def end(**changes):
        setup = Setup(4, seeds=2, steps=12, problems=8, batch=4, answers=6, features=3, **changes)
        (entry,) = simulate([WEIGHTS["grpo"]()], WEIGHTS["grpo"](), setup, BetaPrior())
        return entry["pass@1"]["mean"]

    plain = end()
    assert end(lag=3) != plain
    assert end(updates_per_batch=3) > plain  # more steps on what was drawn


def test_a_weight_that_refuses_is_said_and_stops_nothing():
    weights = [WEIGHTS["pkpo_sloo"](k=8), WEIGHTS["grpo_std"]()]
    refused, fine = simulate(weights, WEIGHTS["grpo"](), SMALL, BetaPrior())
    assert "needs groups of at least 9" in refused["not_computed"]
    assert "pass@1" in fine


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 0}, "group size is at least 1, got 0"),
        ({"group_size": 4, "lag": -1}, "lag is at least 0, got -1"),
        ({"group_size": 4, "updates_per_batch": 0}, "updates per batch is at least 1, got 0"),
        ({"group_size": 4, "seeds": 1}, "seeds is at least 2, got 1"),
    ],
)
def test_a_setup_out_of_range_is_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        Setup(**changes)


def test_intervals_are_those_of_student():
    expected = stats.t.ppf(0.975, range(1, 31))
    assert list(T975) == pytest.approx(expected, abs=6e-4)
    values = np.array([0.3, -0.1, 0.4, 0.2])
    low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert mean_interval(values) == pytest.approx((0.2, low, high), abs=1e-3)
    with pytest.raises(UsageError, match="at least two values, got 1"):
        mean_interval(values[:1])
