"""Intervals against enumeration, scipy, exact binomial sums, and their coverage."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from gradmass.metrics.intervals import (
    Difference,
    bootstrap_mean_interval,
    mean_interval_within,
    paired_difference,
)
from gradmass.metrics.passk import pass_at_k, pass_at_k_from_probability
from gradmass.metrics.within import within_variance
from gradmass.types import UsageError

# Bootstrap over problems


def test_the_bootstrap_quantiles_are_those_of_all_resamples():
    values = [0.0, 0.125, 0.5, 1.0]
    means = sorted(
        float(sum(map(Fraction, resample)) / 4) for resample in itertools.product(values, repeat=4)
    )
    for level in (0.5, 0.8, 0.9):
        low, high = bootstrap_mean_interval(values, level=level, num_draws=40_000)
        # The distribution has 256 atoms: allow the neighbours of the exact quantile.
        for bound, share in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
            position = share * 256
            assert means[max(0, int(position) - 5)] <= bound <= means[min(255, int(position) + 5)]


def test_the_bootstrap_agrees_with_scipy():
    values = np.random.default_rng(5).beta(0.5, 1.2, 60)
    ours = bootstrap_mean_interval(values, level=0.9, num_draws=20_000)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, confidence_level=0.9, n_resamples=20_000, method="percentile", rng=7
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.03 * width)


def test_the_bootstrap_covers_the_mean_of_the_population():
    generator = np.random.default_rng(11)
    num_covered = 0
    for seed in range(400):
        low, high = bootstrap_mean_interval(generator.beta(0.5, 1.2, 50), num_draws=500, seed=seed)
        num_covered += low <= 0.5 / 1.7 <= high
    # 95% nominal; the percentile interval of 50 problems is a little short.
    assert 0.90 <= num_covered / 400 <= 0.98


def test_the_bootstrap_is_seeded():
    values = np.random.default_rng(0).random(30)
    first = bootstrap_mean_interval(values, num_draws=300, seed=1)
    assert bootstrap_mean_interval(values, num_draws=300, seed=1) == first
    assert bootstrap_mean_interval(values, num_draws=300, seed=2) != first


def test_many_problems_are_resampled_in_pieces():
    # 300,000 values times 7 draws exceed what is held at once; the half width is 1.96 sd / sqrt(N).
    values = np.arange(300_000) % 2
    low, high = bootstrap_mean_interval(values, num_draws=7)
    assert low < high
    assert abs(low - 0.5) < 0.005
    assert abs(high - 0.5) < 0.005


def test_equal_values_give_an_interval_of_no_width():
    assert bootstrap_mean_interval([0.1] * 7, num_draws=100) == (0.1, 0.1)


def test_a_higher_level_gives_a_wider_interval():
    values = np.random.default_rng(3).random(40)
    widths = [np.diff(bootstrap_mean_interval(values, level=x))[0] for x in (0.5, 0.8, 0.95, 0.99)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1] / 2


def test_resampling_samples_within_problems_would_bias_pass_at_k():
    num_samples, k = 8, 8
    num_correct = np.array([1] * 30 + [0] * 30)
    values = pass_at_k(num_correct, num_samples, k)
    assert values.mean() == 0.5
    generator = np.random.default_rng(0)
    resampled_means = []
    for _ in range(500):
        problems = generator.integers(60, size=60)
        resampled = generator.binomial(num_samples, num_correct[problems] / num_samples)
        resampled_means.append(pass_at_k(resampled, num_samples, k).mean())
    # Half the problems would pass 1 - (7/8)^8 = .66 of the time: a mean of .33 instead of .5.
    expected = 0.5 * (1 - (7 / 8) ** 8)
    assert np.mean(resampled_means) == pytest.approx(expected, abs=0.01)
    low, high = bootstrap_mean_interval(values)
    assert (low + high) / 2 == pytest.approx(0.5, abs=0.01)
    assert expected < low


# Paired difference


def test_a_paired_difference_is_the_bootstrap_of_the_differences():
    generator = np.random.default_rng(2)
    a, b = generator.random(25), generator.random(25)
    found = paired_difference(a, b, level=0.8, num_draws=2_000, seed=4)
    assert found.mean == pytest.approx(sum(a[i] - b[i] for i in range(25)) / 25)
    expected = bootstrap_mean_interval(a - b, level=0.8, num_draws=2_000, seed=4)
    assert (found.low, found.high, found.num_problems) == (*expected, 25)


def test_the_difference_is_the_first_minus_the_second():
    better, worse = [0.9, 0.8, 1.0], [0.5, 0.6, 0.4]
    assert paired_difference(better, worse).low > 0
    assert paired_difference(worse, better).high < 0


def test_pairing_decides_what_separate_intervals_do_not():
    difficulty = np.linspace(0, 0.9, 40)
    a, b = difficulty + 0.05 + 0.02 * (np.arange(40) % 2), difficulty
    low_a, high_b = bootstrap_mean_interval(a)[0], bootstrap_mean_interval(b)[1]
    assert low_a < high_b
    assert paired_difference(a, b).is_decided


@pytest.mark.parametrize(
    ("low", "high", "is_decided"),
    [
        (0.1, 0.2, True),
        (-0.2, -0.1, True),
        (-0.1, 0.1, False),
        (0.0, 0.1, False),
        (0.0, 0.0, False),
    ],
)
def test_a_difference_is_decided_where_its_interval_excludes_zero(low, high, is_decided):
    assert Difference(mean=0.0, low=low, high=high, num_problems=9).is_decided is is_decided


def test_equal_systems_are_not_decided():
    values = np.random.default_rng(1).random(20)
    assert paired_difference(values, values) == Difference(0.0, 0.0, 0.0, 20)
    assert not paired_difference(values, values).is_decided


# Given the sampling within problems


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_within_interval_is_the_normal_one_of_the_summed_variances(k):
    num_correct, num_samples = [0, 1, 3, 6], [4, 6, 6, 6]
    half = 1.6448536269514722 * math.sqrt(within_variance(num_correct, num_samples, k).sum()) / 4
    mean = pass_at_k(num_correct, num_samples, k).mean()
    assert mean_interval_within(num_correct, num_samples, k, level=0.9) == pytest.approx(
        (max(mean - half, 0), min(mean + half, 1)), rel=1e-12
    )


def test_at_k_1_of_equal_problems_the_within_variance_is_that_of_a_share():
    # pass@1 is c / n with variance p (1 - p) / n, and all problems have p = .4.
    low, high = mean_interval_within([40] * 9, [100] * 9, 1)
    assert (high - low) / 2 == pytest.approx(
        1.959963984540054 * math.sqrt(0.4 * 0.6 / 100 / 9), rel=1e-3
    )
    assert (high + low) / 2 == pytest.approx(0.4, rel=1e-12)


@pytest.mark.parametrize(("num_samples", "k"), [(16, 1), (16, 4), (64, 16)])
def test_the_within_interval_covers_the_exact_mean_of_these_problems(num_samples, k):
    generator = np.random.default_rng(num_samples + k)
    probability = generator.beta(0.5, 1.2, 60)
    exact = pass_at_k_from_probability(probability, k).mean()
    num_covered = 0
    for _ in range(300):
        low, high = mean_interval_within(
            generator.binomial(num_samples, probability), num_samples, k
        )
        num_covered += low <= exact <= high
    assert 0.92 <= num_covered / 300 <= 0.995


def test_the_within_interval_is_narrower_than_that_over_problems():
    num_correct = np.random.default_rng(6).binomial(64, np.linspace(0, 1, 50))
    low, high = mean_interval_within(num_correct, 64, 1)
    low_over, high_over = bootstrap_mean_interval(pass_at_k(num_correct, 64, 1))
    assert high - low < (high_over - low_over) / 3


def test_the_within_interval_stays_in_range_and_has_a_width_at_the_ends():
    low, high = mean_interval_within([0, 0], 8, 2)
    assert low == 0.0
    assert 0.0 < high < 1.0
    low, high = mean_interval_within([8, 8], 8, 2)
    assert high == 1.0
    assert 0.0 < low < 1.0


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda: bootstrap_mean_interval([0.5]), "at least 2 problems, got shape (1,)"),
        (lambda: bootstrap_mean_interval([]), "got shape (0,)"),
        (lambda: bootstrap_mean_interval([[0.5, 0.5]]), "got shape (1, 2)"),
        (lambda: bootstrap_mean_interval([0.5, math.nan]), "problem 1 is nan"),
        (lambda: bootstrap_mean_interval([math.inf, 0.5]), "problem 0 is inf"),
        (lambda: bootstrap_mean_interval([0.5, 0.1], level=1.0), "got 1.0"),
        (lambda: bootstrap_mean_interval([0.5, 0.1], level=95), "got 95"),
        (lambda: bootstrap_mean_interval([0.5, 0.1], level=math.nan), "got nan"),
        (lambda: bootstrap_mean_interval([0.5, 0.1], num_draws=0), "got 0"),
        (lambda: paired_difference([0.5, 0.1], [0.5]), "(2,) and (1,)"),
        (lambda: paired_difference([0.5], [0.5]), "at least 2 problems"),
        (lambda: paired_difference([0.5, math.nan], [0.5, 0.1]), "problem 1 is nan"),
        (lambda: mean_interval_within([], [], 1), "at least 1 problem"),
        (lambda: mean_interval_within([1], [4], 5), "k = 5 and 4 samples"),
        (lambda: mean_interval_within([5], [4], 1), "got 5 of 4"),
        (lambda: mean_interval_within([1], [4], 1, level=0), "got 0"),
    ],
)
def test_input_without_an_interval_is_refused(call, shown):
    with pytest.raises(UsageError) as caught:
        call()
    assert shown in str(caught.value)
    assert "\n" not in str(caught.value)
