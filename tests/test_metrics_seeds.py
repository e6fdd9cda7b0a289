"""Statistics over seeds against enumeration, scipy and simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gradmass.metrics.seeds import (
    crossed_interval,
    detectable_effect,
    equivalence_p,
    holm,
    power,
    replicate_interval,
    sign_flip_p,
    t_interval,
)
from gradmass.types import UsageError

DIFFERENCES = st.lists(st.integers(-50, 50), min_size=1, max_size=8)


@given(DIFFERENCES)
def test_the_sign_flip_test_lists_every_assignment(differences):
    total = sum(differences)
    flips = itertools.product([1, -1], repeat=len(differences))
    sums = [sum(s * abs(d) for s, d in zip(signs, differences, strict=True)) for signs in flips]
    assert sign_flip_p(differences) == sum(s >= total for s in sums) / len(sums)


def test_the_sign_flip_test_is_scipys_permutation_test():
    d_S = np.random.default_rng(1).normal(0.4, 1.0, size=10)
    found = stats.permutation_test(
        (d_S,),
        np.mean,
        permutation_type="samples",
        alternative="greater",
        n_resamples=np.inf,
    )
    assert sign_flip_p(d_S) == pytest.approx(found.pvalue)


@given(DIFFERENCES, st.integers(-20, 20))
def test_equal_sums_count_as_equal_whatever_the_scale(differences, exponent):
    scaled = [d * 10.0**exponent for d in differences]
    assert sign_flip_p(scaled) == sign_flip_p(differences)


def test_the_sign_flip_test_keeps_its_level():
    draws = np.random.default_rng(0).normal(size=(2000, 8))
    share = np.mean([sign_flip_p(d_S) <= 0.05 for d_S in draws])
    assert share == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / 2000))


def test_the_t_interval_is_scipys():
    value_S = [0.1, 0.4, 0.35, 0.8]
    low, high = stats.ttest_1samp(value_S, 0).confidence_interval(0.95)
    found = t_interval(value_S)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert t_interval([0.3]).high == math.inf


def test_equivalence_needs_both_sides():
    assert equivalence_p([0.01, -0.01, 0.0, 0.02, -0.02, 0.01], 0.1) == 1 / 64
    assert equivalence_p([0.11, 0.12, 0.1, 0.13, 0.12, 0.11], 0.1) > 0.9  # clearly above the margin
    d_S = [0.02, -0.05, 0.04, 0.01]
    by_hand = max(sign_flip_p([d + 0.03 for d in d_S]), sign_flip_p([0.03 - d for d in d_S]))
    assert equivalence_p(d_S, 0.03) == by_hand


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_holm_rejects_what_the_step_down_rule_rejects(ps):
    named = {str(i): p for i, p in enumerate(ps)}
    adjusted = holm(named)
    for alpha in (0.01, 0.05, 0.3):
        rejected: set[str] = set()
        for rank, (name, p) in enumerate(sorted(named.items(), key=lambda pair: pair[1])):
            if p * (len(ps) - rank) > alpha:
                break
            rejected.add(name)
        assert {name for name, p in adjusted.items() if p <= alpha} == rejected


def test_power_is_the_share_of_simulated_tests():
    draws = np.random.default_rng(3).normal(0.9, 1.0, size=(4000, 10))
    t_D = draws.mean(1) / (draws.std(1, ddof=1) / math.sqrt(10))
    share = float(np.mean(t_D > stats.t.ppf(0.975, 9)))
    assert power(0.9, 1.0, 10) == pytest.approx(share, abs=0.03)
    assert power(detectable_effect(2.5, 14), 2.5, 14) == pytest.approx(0.8)


def test_the_crossed_interval_is_that_of_a_two_way_layout_by_loops():
    value_SN = np.random.default_rng(5).normal(size=(4, 6)) + np.arange(6) + np.arange(4)[:, None]
    s, n = value_SN.shape
    mean = sum(sum(row) for row in value_SN) / (s * n)
    rows = [sum(row) / n for row in value_SN]
    columns = [sum(value_SN[i][j] for i in range(s)) / s for j in range(n)]
    ms_s = n * sum((r - mean) ** 2 for r in rows) / (s - 1)
    ms_n = s * sum((c - mean) ** 2 for c in columns) / (n - 1)
    ms_e = sum(
        (value_SN[i][j] - rows[i] - columns[j] + mean) ** 2 for i in range(s) for j in range(n)
    ) / ((s - 1) * (n - 1))
    total = ms_s + ms_n - ms_e
    freedom = total**2 / (ms_s**2 / (s - 1) + ms_n**2 / (n - 1) + ms_e**2 / ((s - 1) * (n - 1)))
    half = stats.t.ppf(0.975, freedom) * math.sqrt(total / (s * n))
    found = crossed_interval(value_SN)
    assert (found.mean, found.low, found.high) == pytest.approx((mean, mean - half, mean + half))


def test_the_crossed_interval_covers_the_mean_of_other_seeds_and_problems():
    rng, hits = np.random.default_rng(7), 0
    for _ in range(400):
        value_SN = rng.normal(size=(8, 1)) + rng.normal(size=(1, 12)) + rng.normal(size=(8, 12))
        found = crossed_interval(value_SN)
        hits += found.low <= 0 <= found.high
    assert 0.92 <= hits / 400 <= 0.99


def test_a_replicate_falls_within_its_interval_as_often_as_said():
    rng, hits = np.random.default_rng(8), 0
    for _ in range(1000):
        first, second = rng.normal(size=(2, 14))
        interval = replicate_interval(first)
        hits += interval.low <= second.mean() <= interval.high
    assert 0.92 <= hits / 1000 <= 0.98


@settings(max_examples=20)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=6))
def test_a_constant_shift_moves_the_interval_and_nothing_else(values):
    here, there = t_interval(values), t_interval([v + 2.0 for v in values])
    assert there.low == pytest.approx(here.low + 2.0)
    assert there.high == pytest.approx(here.high + 2.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sign_flip_p([]), "a finite number a seed is needed"),
        (lambda: sign_flip_p([math.nan]), "a finite number a seed is needed"),
        (lambda: sign_flip_p([1.0] * 21), "at most 2\\^20 signs, got 21 seeds"),
        (lambda: equivalence_p([1.0], 0.0), "margin must be finite and above 0, got 0.0"),
        (lambda: crossed_interval([[1.0, 2.0]]), "two of each, got \\(1, 2\\)"),
        (lambda: power(1.0, 0.0, 5), "a spread above 0"),
        (lambda: detectable_effect(1.0, 1), "at least 2 seeds, got 1"),
    ],
)
def test_what_cannot_be_tested_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()
