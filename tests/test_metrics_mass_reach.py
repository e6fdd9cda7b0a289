"""Masses after clipping and aggregation, by solve rate, and their ratios: loops and fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from gradmass.metrics.mass import (
    gradient_mass,
    group_shares,
    mass_by_solve_rate,
    reaching_mass,
    sign_ratios,
    solve_rate_counts,
)
from gradmass.types import UsageError


def random_batch(seed, num=12):
    """Weights, verdicts, and for each token of each rollout its ratio."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=num)
    weights[::5] = 0.0
    ratios = [np.exp(0.3 * rng.normal(size=rng.integers(1, 7))).tolist() for _ in range(num)]
    return weights.tolist(), (rng.random(num) < 0.5).tolist(), ratios


def literal_reach(weights, successes, ratios, low, high, aggregation):
    """From the coefficient of every token's score in the gradient of the clipped loss."""
    num = len(weights)
    mean_length = sum(map(len, ratios)) / num
    masses = {True: 0.0, False: 0.0}
    removed, whole = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    for weight, is_right, tokens in zip(weights, successes, ratios, strict=True):
        for ratio in tokens:
            is_clipped = (weight > 0 and ratio > 1 + high) or (weight < 0 and ratio < 1 - low)
            scale = 1 / mean_length if aggregation == "token-mean" else 1 / len(tokens)
            masses[is_right] += (0.0 if is_clipped else weight * ratio) * scale / num
            whole[is_right] += abs(weight) * scale
            removed[is_right] += abs(weight) * scale * is_clipped
    shares = {side: removed[side] / whole[side] if whole[side] else None for side in whole}
    return masses[True], -masses[False], shares[True], shares[False]


@pytest.mark.parametrize("aggregation", ["constant", "token-mean"])
@pytest.mark.parametrize("seed", range(4))
def test_what_reaches_the_gradient_is_summed_from_the_coefficient_of_every_token(seed, aggregation):
    weights, successes, ratios = random_batch(seed)
    low, high = 0.1, 0.2
    kept, clipped = [], []
    for weight, tokens in zip(weights, ratios, strict=True):
        gone = [(weight > 0 and r > 1 + high) or (weight < 0 and r < 1 - low) for r in tokens]
        kept.append(sum(r for r, g in zip(tokens, gone, strict=True) if not g) / len(tokens))
        clipped.append(sum(gone) / len(tokens))
    lengths = [len(tokens) for tokens in ratios]
    found = reaching_mass(weights, successes, kept, clipped, lengths, aggregation)
    expected = literal_reach(weights, successes, ratios, low, high, aggregation)
    assert (
        found.m_success,
        found.m_failure,
        found.clipped_success,
        found.clipped_failure,
    ) == pytest.approx(expected, rel=1e-12)


def test_on_policy_under_a_constant_all_mass_reaches_the_gradient():
    weights, successes, ratios = random_batch(0)
    ones, none = [1.0] * len(weights), [0.0] * len(weights)
    found = reaching_mass(weights, successes, ones, none, list(map(len, ratios)))
    expected = gradient_mass(np.array(weights), np.array(successes))
    assert (found.m_success, found.m_failure) == pytest.approx(expected, rel=1e-12)
    assert (found.clipped_success, found.clipped_failure) == (0.0, 0.0)


def test_the_token_mean_weighs_the_masses_by_length():
    # m_S E[len | S] / E[len]: right answers of 2 tokens, wrong ones of 6.
    found = reaching_mass([1.0, -1.0], [1, 0], [1, 1], [0, 0], [2, 6], "token-mean")
    assert (found.m_success, found.m_failure) == (0.5 * 2 / 4, 0.5 * 6 / 4)


def test_a_verdict_without_weight_has_no_clipped_share():
    found = reaching_mass([0.0, -1.0], [1, 0], [1, 0.25], [0, 0.75], [4, 4])
    assert found.clipped_success is None
    assert found.clipped_failure == 0.75


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"kept_B": [1.0]}, r"kept and clipped shares and lengths, got shapes \(1,\)"),
        ({"lengths_B": [4, 0]}, "got a length of 0"),
        ({"aggregation": "mean"}, "one of constant, .*, got 'mean'"),
        ({"weights_B": [1.0, math.inf]}, "finite weights, got inf"),
        ({"successes_B": [1, 0.5]}, "got 0.5"),
    ],
)
def test_what_reaches_no_gradient_is_refused(change, shown):
    given = {
        "weights_B": [1.0, -1.0],
        "successes_B": [1, 0],
        "kept_B": [1.0, 1.0],
        "clipped_B": [0.0, 0.0],
        "lengths_B": [4, 4],
    }
    with pytest.raises(UsageError, match=shown):
        reaching_mass(**(given | change))


@pytest.mark.parametrize(
    ("m_success", "m_failure", "solve_rate", "expected"),
    [
        (0.25, 0.5, 0.75, (0.5, 1.5)),
        (0.2, 0.2, 0.5, (1.0, 1.0)),
        (0.0, 0.5, 0.25, (0.0, 0.0)),
        (0.5, 0.0, 0.25, (None, None)),
        (0.5, 0.25, 1.0, (2.0, None)),
        (0.0, 0.0, 0.0, (None, None)),
    ],
)
def test_both_sign_ratios_by_hand(m_success, m_failure, solve_rate, expected):
    assert sign_ratios(m_success, m_failure, solve_rate) == pytest.approx(expected)


@pytest.mark.parametrize("group_size", [3, 8, 10])
@pytest.mark.parametrize("num_bins", [1, 4, 10])
def test_mass_by_solve_rate_is_the_mass_of_the_groups_in_each_bin(group_size, num_bins):
    rng = np.random.default_rng(group_size)
    successes = rng.random((40, group_size)) < rng.random((40, 1))
    mask = rng.random((40, group_size)) < 0.9
    weights = np.where(mask, rng.normal(size=successes.shape), 0.0)
    positive, negative = [0.0] * num_bins, [0.0] * num_bins
    for right, scored, row in zip(successes.tolist(), mask.tolist(), weights.tolist(), strict=True):
        if not any(scored):
            continue
        rate = Fraction(sum(r and s for r, s in zip(right, scored, strict=True)), sum(scored))
        place = min(num_bins - 1, math.floor(rate * num_bins))
        for is_right, weight in zip(right, row, strict=True):
            positive[place] += weight / weights.size * is_right
            negative[place] -= weight / weights.size * (not is_right)
    found = mass_by_solve_rate(weights, successes, mask, num_bins)
    np.testing.assert_allclose(found, (positive, negative), atol=1e-15)
    totals = gradient_mass(weights, successes)
    np.testing.assert_allclose((sum(found[0]), sum(found[1])), totals, atol=1e-15)


def test_solve_rates_are_counted_by_their_number_of_successes():
    groups = [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 1, 1]]
    assert solve_rate_counts(groups, np.ones((5, 4))) == [1, 1, 2, 0, 1]


def test_a_group_with_masked_rollouts_counts_at_the_nearest_solve_rate():
    # 1 of 2 is 2 of 4; 1 of 3 is 1.33 of 4; 2 of 3 is 2.67 of 4; none scored counts nowhere.
    groups = [[1, 0, 1, 1], [1, 0, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1]]
    masks = [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert solve_rate_counts(groups, masks) == [0, 1, 1, 1, 0]


def test_partial_credit_is_refused_and_counted_by_the_threshold_of_the_task():
    rewards, scored = np.array([[0.95, 0.98], [0.05, 0.02]]), np.ones((2, 2))
    for function in (group_shares, solve_rate_counts):
        with pytest.raises(
            UsageError, match=r"got 0.95; a shaped reward is not a verdict .*thresh"
        ):
            function(rewards, scored)
    assert group_shares(rewards >= 0.9, scored) == (0.5, 0.5, 0.0)
    assert solve_rate_counts(rewards >= 0.9, scored) == [1, 0, 1]
