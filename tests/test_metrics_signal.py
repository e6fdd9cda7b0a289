"""Effective sizes, signal to noise, quality of updates against loops over their equations."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmass.metrics.signal import (
    Levels,
    effective_size,
    levels_of,
    pooled,
    signal_to_noise,
    update_quality,
)
from gradmass.types import UsageError


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([1, 1, 1, 1], 4), ([5, 0, 0], 1), ([-2, 2], 2), ([3, -1], 16 / 10), ([0, 0], 0), ([], 0)],
)
def test_effective_sizes_by_hand(weights, expected):
    assert effective_size(weights) == pytest.approx(expected, abs=1e-12)
    assert effective_size([1e-170 * w for w in weights]) == pytest.approx(expected, abs=1e-12)


def test_effective_size_of_what_is_no_weight_is_refused():
    with pytest.raises(UsageError, match="flat array of finite weights"):
        effective_size([math.nan])
    with pytest.raises(UsageError, match="flat array"):
        effective_size([[1.0]])


def test_signal_and_noise_are_means_over_pairs():
    gradients = np.random.default_rng(0).normal(size=(5, 3)) + 0.3
    cross, squares = [], []
    for j in range(5):
        for k in range(5):
            (squares if j == k else cross).append(float(gradients[j] @ gradients[k]))
    signal = sum(cross) / 20
    noise = (sum(squares) / 5 - signal) / 5
    found = signal_to_noise(gradients @ gradients.T)
    assert found.signal == pytest.approx(signal, rel=1e-12)
    assert found.noise == pytest.approx(noise, rel=1e-12)
    assert found.ratio == pytest.approx(signal / noise, rel=1e-12)


def test_signal_and_noise_are_unbiased():
    rng = np.random.default_rng(1)
    mean, spread, num = np.array([0.4, -0.2, 0.0]), np.array([1.0, 0.5, 2.0]), 8
    found = []
    for _ in range(4_000):
        gradients = mean + spread * rng.normal(size=(num, 3))
        found.append(signal_to_noise(gradients @ gradients.T))
    for name, expected in (("signal", mean @ mean), ("noise", spread @ spread / num)):
        values = np.array([getattr(x, name) for x in found])
        assert abs(values.mean() - expected) < 4 * values.std() / math.sqrt(len(values))


def test_gradients_without_noise_or_without_parts_have_no_ratio():
    assert signal_to_noise([[1.0, 1.0], [1.0, 1.0]]).ratio is None
    assert signal_to_noise([[1.0]]) is None
    assert signal_to_noise(np.zeros((3, 3))) is None
    with pytest.raises(UsageError, match=r"square matrix, got shape \(1, 2\)"):
        signal_to_noise([[1.0, 2.0]])
    with pytest.raises(UsageError, match="finite"):
        signal_to_noise([[math.nan]])


def literal_quality(groups_by_batch, factor, slope, size):
    """(10) in our reading, in loops: groups are (rate, gradient)."""
    levels = sorted({rate for groups in groups_by_batch for rate, _ in groups if 0 < rate < 1})
    known, total = [], 0
    for p in levels:
        own = [[g for rate, g in groups if rate == p] for groups in groups_by_batch]
        pairs = [a @ b for gs in own for i, a in enumerate(gs) for j, b in enumerate(gs) if i != j]
        squares = [g @ g for gs in own for g in gs]
        total += len(squares)
        if pairs:
            s2 = max(0.0, sum(pairs) / len(pairs))
            v0 = sum(squares) / len(squares) - s2
            if v0 > 0:
                known.append((p, len(squares), s2, v0))
    n = sum(k for _, k, _, _ in known)
    u, signal, noise, first, second = 0.0, 0.0, 0.0, 0.0, 0.0
    for p, k, s2, v0 in known:
        w = factor(p)
        below = w**2 * v0 + s2 * slope(p) ** 2 * p * (1 - p) / size
        u += k / n * (s2 * w**2 / below)
        signal += k / n * w * math.sqrt(s2)
        noise += k / n * below
        first += k * w
        second += k * w**2
    effective = first**2 / second / len(groups_by_batch)
    return effective * u, signal**2 / noise, effective, n / total


@pytest.mark.parametrize(
    ("factor", "slope"),
    [
        (lambda p: 1.0, lambda p: 0.0),
        (lambda p: 1 - p, lambda p: -1.0),
        (lambda p: (1 - p) ** 2, lambda p: -2 * (1 - p)),
    ],
    ids=["grpo", "power 2", "power 3"],
)
def test_quality_is_that_of_the_literal_loop(factor, slope):
    rng, size, batches, parts = np.random.default_rng(2), 4, [], []
    for _ in range(3):
        rates = rng.integers(0, size + 1, size=9) / size
        gradients = [rate * (1 - rate) * (rng.normal(size=6) + 0.5) for rate in rates.tolist()]
        batches.append(list(zip(rates.tolist(), gradients, strict=True)))
        matrix = np.stack(gradients)
        parts.append(levels_of(rates, matrix @ matrix.T))
    levels = pooled(parts)
    found = update_quality(
        levels, [factor(p) for p in levels.rate_L], [slope(p) for p in levels.rate_L], size
    )
    expected = literal_quality(batches, factor, slope, size)
    assert (
        found.quality,
        found.batch_ratio,
        found.num_effective,
        found.known_share,
    ) == pytest.approx(expected, rel=1e-10)


rates = st.lists(st.sampled_from([i / 8 for i in range(1, 8)]), min_size=1, unique=True)


@settings(derandomize=True, deadline=None, database=None, max_examples=100)
@given(rates, st.integers(0, 2**32 - 1))
def test_in_this_reading_a_constant_factor_is_never_beaten(levels, seed):
    rng, num = np.random.default_rng(seed), len(levels)
    counts = rng.integers(2, 9, size=num)
    squares = rng.uniform(1, 5, size=num)
    cross = squares * rng.uniform(0, 0.9, size=num)
    pairs = counts * (counts - 1)
    found = Levels(
        tuple(sorted(levels)),
        tuple(counts.tolist()),
        tuple((squares * counts).tolist()),
        tuple((cross * pairs).tolist()),
        tuple(pairs.tolist()),
    )
    factor, slope = rng.uniform(0.1, 3, size=num), rng.normal(size=num)
    constant = update_quality(found, [1.0] * num, [0.0] * num, 8)
    other = update_quality(found, factor.tolist(), slope.tolist(), 8)
    assert other.quality <= constant.quality * (1 + 1e-12)
    again = update_quality(found, (7 * factor).tolist(), (7 * slope).tolist(), 8)
    assert again.quality == pytest.approx(other.quality, rel=1e-10)  # of no scale


def test_the_ratio_of_a_batch_can_be_won_by_hard_focus():
    # All the signal is at p = 1/4, all groups are alike in noise.
    levels = Levels((0.25, 0.75), (10, 10), (200.0, 100.0), (900.0, 0.0), (90, 90))
    grpo = update_quality(levels, [1.0, 1.0], [0.0, 0.0], 64)
    power = update_quality(levels, [0.75, 0.25], [-1.0, -1.0], 64)
    assert power.quality < grpo.quality
    assert power.batch_ratio > 1.3 * grpo.batch_ratio


def test_what_nothing_is_known_of_has_no_quality():
    alone = Levels((0.5,), (1,), (2.0,), (0.0,), (0,))
    assert update_quality(alone, [1.0], [0.0], 8) is None
    known = Levels((0.5,), (2,), (4.0,), (2.0,), (2,))
    assert update_quality(known, [0.0], [0.0], 8) is None
    both = update_quality(pooled([alone, known]), [1.0], [0.0], 8)
    assert both.known_share == 1.0  # pooled: three groups of a level with a pair
    with pytest.raises(UsageError, match="1 levels need as many factors"):
        update_quality(known, [1.0, 2.0], [0.0, 0.0], 8)
    with pytest.raises(UsageError, match="a row of inner products for each group"):
        levels_of([0.5], np.zeros((2, 2)))


def test_pooling_adds_levels_of_different_rates():
    a = Levels((0.25, 0.5), (2, 1), (2.0, 1.0), (1.0, 0.0), (2, 0))
    b = Levels((0.5, 0.75), (3, 2), (6.0, 4.0), (1.5, 0.5), (6, 2))
    assert pooled([a, b]) == Levels(
        (0.25, 0.5, 0.75), (2, 4, 2), (2.0, 7.0, 4.0), (1.0, 1.5, 0.5), (2, 6, 2), 2
    )
