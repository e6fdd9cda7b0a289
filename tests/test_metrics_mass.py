"""Gradient masses and group shares against plain loops, and against the theory."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmass.metrics.mass import gradient_mass, group_shares
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

ROLLOUT = st.tuples(st.floats(-5, 5), st.booleans())


@settings(derandomize=True, deadline=None, database=None, max_examples=100)
@given(st.lists(ROLLOUT, min_size=1, max_size=20))
def test_mass_is_the_sum_of_a_sign_over_all_rollouts(rollouts):
    up = math.fsum(weight for weight, success in rollouts if success)
    down = -math.fsum(weight for weight, success in rollouts if not success)
    found = gradient_mass([weight for weight, _ in rollouts], [success for _, success in rollouts])
    assert found == pytest.approx((up / len(rollouts), down / len(rollouts)), abs=1e-14)


def test_mass_of_grpo_is_p_times_q():
    # Mean-only weights: each group has p_hat (1 - p_hat) of both masses.
    successes = np.array([[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=float)
    weight = WEIGHTS["grpo"]()
    weights, _ = weight.update(successes, weight.init())
    m_s, m_f = gradient_mass(weights, successes)
    expected = (0.25 * 0.75 + 0.75 * 0.25 + 0.5 * 0.5 + 0) / 4
    assert (m_s, m_f) == pytest.approx((expected, expected))


def test_the_gradient_is_the_mass_weighted_difference_of_mean_scores():
    # sum(w score) / B = m_S mean score of successes - m_F mean score of failures, for weights that
    # are equal within a side (equation 2).
    scores, successes = [2.0, -1.0, 4.0, 0.5, 3.0], [True, False, True, False, False]
    weights = [0.7 if success else -0.2 for success in successes]
    m_s, m_f = gradient_mass(weights, successes)
    gradient = sum(w * s for w, s in zip(weights, scores, strict=True)) / 5
    assert gradient == pytest.approx(m_s * (2.0 + 4.0) / 2 - m_f * (-1.0 + 0.5 + 3.0) / 3)


def test_unscorable_rollouts_dilute_both_masses():
    weights, successes = [[0.5, -0.5]], [[True, False]]
    assert gradient_mass(weights, successes) == (0.25, 0.25)
    assert gradient_mass([[0.5, -0.5, 0, 0]], [[True, False, False, True]]) == (0.125, 0.125)


def test_the_success_of_a_rollout_without_weight_does_not_matter():
    for unknown in (0.0, 1.0, 0.5, math.nan):
        assert gradient_mass([0.5, -0.5, 0.0], [1.0, 0.0, unknown]) == pytest.approx((1 / 6, 1 / 6))


def test_one_sided_batches_have_one_mass():
    assert gradient_mass([[1.0, 1.0]], [[True, True]]) == (1.0, 0.0)
    assert gradient_mass([[-1.0, -1.0]], [[False, False]]) == (0.0, 1.0)
    assert math.copysign(1, gradient_mass([1.0], [True])[1]) == 1.0


def test_reinforced_failures_have_negative_mass():
    assert gradient_mass([0.5, 0.5], [True, False]) == (0.25, -0.25)


def test_mass_is_summed_in_float64():
    weights = np.full(3_000, 0.1, dtype=np.float16)
    assert gradient_mass(weights, np.ones(3_000))[0] == pytest.approx(float(np.float16(0.1)))


@pytest.mark.parametrize(
    ("weights", "successes", "shown"),
    [
        ([0.5, 0.5], [True], "(2,) and (1,)"),
        ([[0.5, 0.5]], [True, False], "(1, 2) and (2,)"),
        ([], [], "at least one rollout"),
        ([0.5, math.nan], [True, False], "got nan"),
        ([math.inf, 0.5], [True, False], "got inf"),
        ([0.5, 0.5], [1.0, 0.3], "got 0.3"),
        ([0.5, 0.5], [1.0, math.nan], "got nan"),
    ],
)
def test_input_without_a_mass_is_refused(weights, successes, shown):
    with pytest.raises(UsageError) as caught:
        gradient_mass(weights, successes)
    assert shown in str(caught.value)


def shares_by_loops(groups: list[list[tuple[bool, bool]]]) -> tuple[float, float, float]:
    kinds = []
    for group in groups:
        scored = [success for success, is_scored in group if is_scored]
        if scored and all(scored):
            kinds.append("right")
        elif scored and not any(scored):
            kinds.append("wrong")
        elif scored:
            kinds.append("mixed")
    if not kinds:
        return (0.0, 0.0, 0.0)
    return tuple(kinds.count(kind) / len(kinds) for kind in ("right", "wrong", "mixed"))


def test_group_shares_are_those_of_every_pair_of_small_groups():
    cells = list(itertools.product((False, True), repeat=2))
    groups = [list(group) for group in itertools.product(cells, repeat=2)]
    for pair in itertools.product(groups, repeat=2):
        successes = [[success for success, _ in group] for group in pair]
        mask = [[is_scored for _, is_scored in group] for group in pair]
        assert group_shares(successes, mask) == shares_by_loops(list(pair))


def test_group_shares_sum_to_one_where_a_group_is_scored():
    generator = np.random.default_rng(0)
    successes, mask = generator.random((50, 4)) < 0.5, generator.random((50, 4)) < 0.6
    mask[:5] = False
    assert sum(group_shares(successes, mask)) == pytest.approx(1)


def test_unscored_successes_may_be_anything():
    successes, mask = [[1.0, math.nan], [0.0, 0.7]], [[True, False], [True, False]]
    assert group_shares(successes, mask) == (0.5, 0.5, 0.0)


def test_nothing_scored_gives_no_shares():
    assert group_shares([[True, False]], [[False, False]]) == (0.0, 0.0, 0.0)
    assert group_shares(np.zeros((0, 4)), np.zeros((0, 4))) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("successes", "mask", "shown"),
    [
        ([[1, 0]], [[True]], "(1, 2) and (1, 1)"),
        ([1, 0], [True, True], "(2,) and (2,)"),
        ([[1.0, 0.25]], [[True, True]], "got 0.25"),
        ([[1.0, math.nan]], [[True, True]], "got nan"),
    ],
)
def test_input_without_shares_is_refused(successes, mask, shown):
    with pytest.raises(UsageError) as caught:
        group_shares(successes, mask)
    assert shown in str(caught.value)
