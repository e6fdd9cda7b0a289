"""Estimates that say what they rest on, and paired comparisons."""

import math

import numpy as np
import pytest

from gradmass.metrics.estimates import (
    Exact,
    Sampled,
    compare_pass_at_k,
    estimate_pass_at_k,
    num_problems_needed,
)
from gradmass.metrics.intervals import interval_like_these, mean_interval_within
from gradmass.metrics.passk import pass_at_k
from gradmass.types import UsageError


def test_problems_with_different_numbers_of_samples_count_alike():
    (found,) = estimate_pass_at_k(Sampled(np.array([1, 1]), np.array([4, 2]), 3), [2])
    assert found.value == 0.75  # .5 and 1; pooled samples would give 1 - C(4,2)/C(6,2) = .6
    assert (found.k, found.num_problems) == (2, 2)
    assert (found.num_samples, found.num_unscorable) == ((2, 4), 3)


def test_one_right_of_200_is_half_a_percent():
    (found,) = estimate_pass_at_k(Sampled([1], 200), [1], interval="these-problems")
    assert found.value == 0.005


def test_k_above_n_is_refused_and_never_1():
    with pytest.raises(UsageError, match="k = 5 and 2 samples"):
        estimate_pass_at_k(Sampled([0], 2), [5], interval="these-problems")


def test_large_n_neither_overflows_nor_cancels():
    (found,) = estimate_pass_at_k(Sampled([3], 10_000), [5_000], interval="these-problems")
    assert found.value == 0.875037503750375


def test_the_curve_of_one_step_of_training_comes_from_the_samples_drawn_for_it():
    num_right, group_size = np.array([0, 3, 8, 1, 0, 5, 2, 8]), 8
    found = estimate_pass_at_k(Sampled(num_right, group_size), [1, 2, 4, 8])
    assert found[0].value == num_right.sum() / 64
    assert found[3].value == np.mean(num_right > 0)
    assert all(e.low < e.value < e.high for e in found)
    assert [e.num_problems for e in found] == [8] * 4


def test_both_intervals_are_named_and_are_those_of_their_functions():
    counts = np.random.default_rng(0).binomial(16, np.linspace(0, 1, 40))
    (like,) = estimate_pass_at_k(Sampled(counts, 16), [4])
    (these,) = estimate_pass_at_k(Sampled(counts, 16), [4], interval="these-problems")
    low, high = interval_like_these(pass_at_k(counts, 16, 4)[:, None])
    assert (like.low, like.high, like.interval) == (low[0], high[0], "problems-like-these")
    assert (these.low, these.high) == mean_interval_within(counts, 16, 4)
    assert these.interval == "these-problems"
    assert these.high - these.low < like.high - like.low


def test_exact_probabilities_have_no_sampling_noise():
    (found,) = estimate_pass_at_k(Exact([0.5, 0.1]), [2], interval="these-problems")
    assert found.value == found.low == found.high == pytest.approx((0.75 + 0.19) / 2)
    assert found.num_samples is None
    (like,) = estimate_pass_at_k(Exact(np.linspace(0, 1, 30)), [2])
    assert like.low < like.value < like.high


def test_no_problem_and_no_k_are_refused():
    with pytest.raises(UsageError, match="at least 1 problem, got 0"):
        estimate_pass_at_k(Sampled([], 4), [1])
    with pytest.raises(UsageError, match="needs at least one k"):
        estimate_pass_at_k(Sampled([1], 4), [])


def test_the_paired_interval_is_that_of_the_differences_and_decides_what_two_do_not():
    generator = np.random.default_rng(5)
    difficulty = generator.beta(0.5, 0.8, 100)
    a, b = Exact(np.minimum(difficulty + 0.04, 1)), Exact(difficulty)
    (found,) = compare_pass_at_k(a, b, [1])
    differences = np.minimum(difficulty + 0.04, 1) - difficulty
    low, high = interval_like_these(differences[:, None], (-1.0, 1.0))
    assert (found.low, found.high) == pytest.approx((low[0], high[0]), abs=1e-9)
    assert found.is_decided
    assert found.difference == pytest.approx(found.a - found.b)
    (of_a,), (of_b,) = estimate_pass_at_k(a, [1]), estimate_pass_at_k(b, [1])
    assert of_b.high > of_a.low


def test_a_model_compared_with_itself_is_not_told_apart():
    counts = np.random.default_rng(0).binomial(16, 0.3, 30)
    for interval in ("problems-like-these", "these-problems"):
        (found,) = compare_pass_at_k(
            Sampled(counts, 16), Sampled(counts, 16), [4], interval=interval
        )
        assert found.low < 0 < found.high
        assert not found.is_decided
        assert found.num_problems_needed is None


@pytest.mark.parametrize("interval", ["problems-like-these", "these-problems"])
def test_exchanging_the_models_mirrors_everything_exactly(interval):
    generator = np.random.default_rng(6)
    for _ in range(60):
        num_problems = int(generator.integers(2, 40))
        n_a, n_b = (int(n) for n in generator.integers(2, 7, size=2))
        a = Sampled(generator.integers(n_a + 1, size=num_problems), n_a)
        b = Sampled(generator.integers(n_b + 1, size=num_problems), n_b)
        ks, options = range(1, min(n_a, n_b) + 1), {"interval": interval}
        ab = compare_pass_at_k(a, b, ks, **options)
        ba = compare_pass_at_k(b, a, ks, **options)
        for one, other in zip(ab, ba, strict=True):
            mirrored = (-other.difference, -other.high, -other.low)
            assert (one.difference, one.low, one.high) == mirrored
            assert one.num_problems_needed == other.num_problems_needed


def test_an_undecided_comparison_never_needs_fewer_problems_than_it_has():
    generator, below = np.random.default_rng(7), 0
    for _ in range(100):
        num_problems = int(generator.integers(2, 13))
        b = generator.integers(4, size=num_problems)
        a = b + generator.integers(2) if generator.random() < 0.5 else generator.permutation(b)
        for found in compare_pass_at_k(Sampled(a, 4), Sampled(b, 4), [1, 2]):
            if found.is_decided or found.num_problems_needed is None:
                continue
            alone = num_problems_needed(
                pass_at_k(a, 4, found.k) - pass_at_k(b, 4, found.k), level=0.95
            )
            below += alone <= num_problems
            least = num_problems + 1
            assert found.num_problems_needed == (alone if alone > num_problems else least)
    assert below > 3  # that the rule was needed


def test_on_these_problems_the_variances_of_both_models_add():
    generator = np.random.default_rng(1)
    a, b = generator.binomial(64, 0.5, 50), generator.binomial(16, 0.4, 50)
    (found,) = compare_pass_at_k(Sampled(a, 64), Sampled(b, 16), [2], interval="these-problems")
    halves = [np.diff(mean_interval_within(c, n, 2))[0] / 2 for c, n in ((a, 64), (b, 16))]
    assert (found.high - found.low) / 2 == pytest.approx(math.hypot(*halves))
    assert (found.high + found.low) / 2 == pytest.approx(found.difference)


def test_comparisons_on_these_problems_hold_the_truth_as_often_as_they_say():
    generator, held, repeats = np.random.default_rng(2), 0, 250
    for _ in range(repeats):
        p = generator.beta(0.5, 1.2, 60)
        q = np.clip(p + generator.normal(0, 0.1, 60), 0, 1)
        a, b = Sampled(generator.binomial(32, p), 32), Sampled(generator.binomial(32, q), 32)
        (found,) = compare_pass_at_k(a, b, [4], interval="these-problems")
        truth = np.mean(1 - (1 - p) ** 4) - np.mean(1 - (1 - q) ** 4)
        held += found.low <= truth <= found.high
    assert held / repeats == pytest.approx(0.95, abs=0.042)


def test_that_many_problems_tell_two_models_apart_four_times_in_five():
    generator = np.random.default_rng(3)
    pilot = generator.choice([-0.2, 0.1, 0.3], 3_000, p=[0.3, 0.5, 0.2])
    needed = num_problems_needed(pilot)
    decided = 0
    for _ in range(300):
        drawn = generator.choice(pilot, needed)
        low, high = interval_like_these(drawn[:, None], (-1.0, 1.0))
        decided += low[0] > 0 or high[0] < 0
    assert decided / 300 == pytest.approx(0.8, abs=0.08)


def test_no_number_of_problems_tells_equal_means_apart():
    assert num_problems_needed([0.1, -0.1]) is None


def test_problems_that_all_agree_are_told_from_0_once_an_unseen_one_cannot_undo_it():
    # 1.96 / n <= .2 n / (n + 1) from n = 11 on, by the normal approximation.
    assert num_problems_needed([0.2, 0.2, 0.2]) == 11
    low, _ = interval_like_these([[0.2]] * 14, (-1.0, 1.0))
    too_low, _ = interval_like_these([[0.2]] * 10, (-1.0, 1.0))
    assert too_low[0] < 0 < low[0]


def test_different_numbers_of_problems_cannot_be_paired():
    with pytest.raises(UsageError, match="the same problems on both sides, got 2 and 1"):
        compare_pass_at_k(Exact([0.1, 0.2]), Exact([0.1]), [1])
