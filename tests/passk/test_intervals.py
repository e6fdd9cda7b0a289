"""Both intervals: literal bootstrap, exact bounds, closed-form variances, and coverage."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from gradmass.metrics.intervals import interval_like_these, mean_interval_within
from gradmass.metrics.passk import pass_at_k, pass_at_k_from_probability
from gradmass.metrics.resampling import resampled_sums
from gradmass.metrics.within import fit_beta, within_variance
from gradmass.types import UsageError

# Problems like these


def test_the_interval_is_that_of_a_plain_bootstrap_t():
    values = np.random.default_rng(3).beta(0.5, 1.2, 40)
    mean, se = values.mean(), values.std() / math.sqrt(39)
    generator, ts = np.random.default_rng(8), []
    for _ in range(20_000):
        drawn = generator.choice(values, 40)
        ts.append((drawn.mean() - mean) / (drawn.std() / math.sqrt(39)))
    low_t, high_t = np.quantile(ts, [0.025, 0.975])
    low, high = interval_like_these(values[:, None], num_draws=20_000)
    assert low[0] == pytest.approx(mean - high_t * se, abs=0.08 * se)
    assert high[0] == pytest.approx(mean - low_t * se, abs=0.08 * se)
    assert high_t + low_t < -0.2  # skewed: by percentiles or t, the test would fail


@pytest.mark.parametrize("num_distinct", [3, 500])
def test_sums_are_those_of_drawn_problems_whether_few_or_all_are_distinct(num_distinct):
    # Multinomial counts for 3 distinct values of 500, drawn indices for 500.
    generator = np.random.default_rng(1)
    columns = generator.random((num_distinct, 2))
    counts = np.full(num_distinct, 500 // num_distinct)
    counts[0] += 500 - counts.sum()
    rows = generator.permutation(np.repeat(np.arange(num_distinct), counts))
    found = resampled_sums(columns, rows, 4_000, seed=0)
    population = columns[rows]
    assert found.mean(axis=0) == pytest.approx(population.sum(axis=0), rel=0.003)
    covariance = 500 * np.cov(population.T, bias=True)
    assert np.cov(found.T) == pytest.approx(covariance, abs=0.1 * covariance.max())


def test_the_interval_does_not_depend_on_the_number_of_cores(monkeypatch):
    values = np.random.default_rng(0).random((3_000, 2))
    first = interval_like_these(values, num_draws=2_000)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert np.array_equal(interval_like_these(values, num_draws=2_000), first)
    assert not np.array_equal(interval_like_these(values, num_draws=2_000, seed=1), first)


@pytest.mark.parametrize("values", [[0, 1], [0.25, -0.5, 0], [0.1] * 30 + [-0.3] * 30 + [0.0]])
def test_negated_values_have_the_mirrored_interval(values):
    values_NK = np.stack([values, np.square(values)], axis=1)
    for level in (0.5, 0.9, 0.95):
        low, high = interval_like_these(values_NK, (-1.0, 1.0), level=level, num_draws=1_000)
        again = interval_like_these(-values_NK, (-1.0, 1.0), level=level, num_draws=1_000)
        assert np.array_equal(again, (-high, -low))


def test_of_several_most_frequent_values_the_widest_ends_hold():
    # Two of three problems differ from each value: Clopper and Pearson's bound for 1 of 2 of them.
    share = scipy.stats.binomtest(2, 4).proportion_ci(method="exact").high
    low, high = interval_like_these(np.array([[0.4], [0.4], [0.6], [0.6]]))
    assert low[0] >= 0.4 - share * 0.4 - 1e-9
    assert high[0] <= 0.6 + share * 0.4 + 1e-9
    assert (low[0], high[0]) == pytest.approx((0.4 - share * 0.4, 0.6 + share * 0.4), rel=1e-9)


def test_many_k_in_one_pass_are_each_k_alone():
    values = np.random.default_rng(2).random((50, 3)).round(1)
    low, high = interval_like_these(values, num_draws=40_000)
    for i in range(3):
        alone = interval_like_these(values[:, i : i + 1], num_draws=40_000)
        assert (low[i], high[i]) == pytest.approx((alone[0][0], alone[1][0]), abs=0.004)


def test_where_all_problems_are_solved_the_interval_has_the_width_of_an_exact_bound():
    low, high = interval_like_these(np.ones((30, 1)))
    assert (low[0], high[0]) == (pytest.approx(0.025 ** (1 / 30), rel=1e-9), 1.0)
    low, high = interval_like_these(np.zeros((30, 1)), (-1.0, 1.0))
    assert low[0] == -high[0] == pytest.approx(0.025 ** (1 / 30) - 1, rel=1e-9)


def test_one_odd_problem_is_bounded_by_clopper_and_pearson():
    values = np.zeros((30, 1))
    values[7] = 0.5
    low, high = interval_like_these(values)
    bound = scipy.stats.binomtest(1, 30).proportion_ci(method="exact").high
    assert 0.0 <= low[0] < 0.5 / 30
    assert high[0] == pytest.approx(bound, rel=1e-9)


def test_resampling_samples_within_problems_would_bias_pass_at_k_downwards():
    """Resampling samples too repeats some, so fewer of them are distinct."""
    generator, n, k = np.random.default_rng(4), 16, 8
    is_right = generator.random((60, n)) < generator.beta(0.3, 2, 60)[:, None]
    value = pass_at_k(is_right.sum(axis=1), n, k).mean()
    means = []
    for _ in range(300):
        problems = generator.integers(60, size=60)
        samples = generator.integers(n, size=(60, n))
        resampled = np.take_along_axis(is_right[problems], samples, axis=1)
        means.append(pass_at_k(resampled.sum(axis=1), n, k).mean())
    low, high = interval_like_these(pass_at_k(is_right.sum(axis=1), n, k)[:, None])
    assert np.mean(means) < value - 0.03
    assert low[0] < value < high[0]


def true_pass_at_k(a: float, b: float, k: int) -> float:
    return 1 - math.prod((b + i) / (a + b + i) for i in range(k))


@pytest.mark.parametrize("n", [16, 32])
def test_intervals_of_100_problems_hold_the_truth_as_often_as_they_say(n):
    a, b, ks, repeats = 0.5, 1.2, (1, n // 8), 250
    generator = np.random.default_rng(n)
    by_count = np.stack([pass_at_k(range(n + 1), n, k) for k in ks], axis=1)
    truth = [true_pass_at_k(a, b, k) for k in ks]
    held = np.zeros((2, 2))
    for seed in range(repeats):
        p = generator.beta(a, b, 100)
        c = generator.binomial(n, p)
        low, high = interval_like_these(by_count[c], num_draws=400, seed=seed)
        held[0] += (low <= truth) & (truth <= high)
        for i, k in enumerate(ks):
            ends = mean_interval_within(c, n, k)
            held[1, i] += ends[0] <= pass_at_k_from_probability(p, k).mean() <= ends[1]
    # .95 give or take three standard errors of 250 data sets; benchmarks/passk.py has 2,000.
    assert np.abs(held / repeats - 0.95).max() < 0.042


@pytest.mark.parametrize(
    ("values", "options", "shown"),
    [
        ([[0.5]], {}, "at least 2 problems, got shape (1, 1)"),
        ([0.5, 0.5], {}, "got shape (2,)"),
        ([[0.5], [1.5]], {}, "within 0 to 1, got 1.5"),
        ([[0.5], [math.nan]], {}, "within 0 to 1, got nan"),
        ([[-0.5], [0.5]], {}, "within 0 to 1, got -0.5"),
        ([[0.5], [0.1]], {"num_draws": 99}, "num_draws must be at least 100, got 99"),
        ([[0.5], [0.1]], {"level": 1.0}, "got 1.0"),
    ],
)
def test_values_without_an_interval_are_refused(values, options, shown):
    with pytest.raises(UsageError) as caught:
        interval_like_these(values, **options)
    assert shown in str(caught.value)


# These problems


def variance_given(p: float, n: int, k: int) -> float:
    """Variance of the estimate by summing over every count."""
    values = [
        1 - sum(1 for s in itertools.combinations(range(n), k) if min(s) >= c) / math.comb(n, k)
        for c in range(n + 1)
    ]
    masses = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    mean = sum(m * v for m, v in zip(masses, values, strict=True))
    return sum(m * (v - mean) ** 2 for m, v in zip(masses, values, strict=True))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_variance_within_is_the_mean_over_what_the_samples_say_of_p(k):
    num_correct, num_samples = np.array([0, 1, 3, 6, 5]), np.array([5, 6, 6, 6, 8])
    a, b = fit_beta(num_correct, num_samples)
    for c, n, found in zip(
        num_correct, num_samples, within_variance(num_correct, num_samples, k), strict=True
    ):
        posterior = scipy.stats.beta(a + c, b + n - c)
        expected, _ = scipy.integrate.quad(
            lambda p, n=n, posterior=posterior: variance_given(p, n, k) * posterior.pdf(p), 0, 1
        )
        assert found == pytest.approx(expected, rel=1e-6)


def test_the_fitted_beta_has_the_moments_of_the_counts():
    num_correct, num_samples = [0, 1, 4, 8, 8, 2], [8, 8, 8, 8, 10, 4]
    pairs = list(zip(num_correct, num_samples, strict=True))
    mean = Fraction(2 * sum(num_correct) + 1, 2 * (sum(num_samples) + 1))
    square = sum(Fraction(c * (c - 1), n * (n - 1)) for c, n in pairs) / 6
    products = [
        Fraction(c, n) * Fraction(d, m) for (c, n), (d, m) in itertools.permutations(pairs, 2)
    ]
    rho = (square - sum(products) / len(products)) / (mean * (1 - mean))
    a, b = fit_beta(np.array(num_correct), np.array(num_samples))
    assert a / (a + b) == pytest.approx(float(mean), rel=1e-12)
    assert 1 / (a + b + 1) == pytest.approx(float(rho), rel=1e-12)


@pytest.mark.parametrize("counts", [([3], [4]), ([0, 1, 1], [1, 1, 1]), ([2, 2, 2], [4, 4, 4])])
def test_where_problems_do_not_seem_to_differ_all_share_one_solve_rate(counts):
    a, b = fit_beta(*map(np.array, counts))
    assert 1 / (a + b + 1) == pytest.approx(1e-4)


def test_where_nothing_scatters_the_ends_are_exact():
    # 10 problems x 8 samples all wrong: the largest share that shows this in .025 of data sets.
    low, high = mean_interval_within([0] * 10, 8, 1)
    assert (low, high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 80)))
    assert mean_interval_within([8] * 10, 8, 4) == (pytest.approx(0.025 ** (1 / 80)), 1.0)
    low, high = mean_interval_within([8, 0, 0, 0], [8, 8, 8, 4], 2)
    assert low == pytest.approx(0.25 * 0.025 ** (1 / 8))
    assert high == pytest.approx(0.25 + 0.75 * (1 - 0.025 ** (2 / 12)))


def test_at_k_equal_to_n_the_interval_has_a_width():
    low, high = mean_interval_within([0, 1, 3, 4], 4, 4)
    assert 0 < low < 0.75 < high <= 1


def test_no_problem_has_no_variance():
    assert within_variance([], [], 1).shape == (0,)
