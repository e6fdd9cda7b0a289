"""pass@k against enumeration with exact fractions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmass.metrics.passk import pass_at_k, pass_at_k_from_probability
from gradmass.types import UsageError


def enumerated(num_correct: int, num_samples: int, k: int) -> Fraction:
    """Share of the k-subsets of the samples with a right one among them, by listing them all."""
    is_right = [i < num_correct for i in range(num_samples)]
    subsets = list(itertools.combinations(is_right, k))
    return Fraction(sum(any(subset) for subset in subsets), len(subsets))


def by_fractions(num_correct: int, num_samples: int, k: int) -> Fraction:
    """1 - prod_{i<k} (n - c - i) / (n - i): no right one in k draws without replacement."""
    missed = Fraction(1)
    for i in range(k):
        missed *= Fraction(max(num_samples - num_correct - i, 0), num_samples - i)
    return 1 - missed


@pytest.mark.parametrize("num_samples", range(1, 13))
def test_pass_at_k_is_the_share_of_subsets_for_every_count(num_samples):
    counts = list(range(num_samples + 1))
    for k in range(1, num_samples + 1):
        expected = [float(enumerated(c, num_samples, k)) for c in counts]
        assert pass_at_k(counts, num_samples, k).tolist() == expected


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(st.data())
def test_pass_at_k_is_the_nearest_float_to_the_fraction(data):
    num_samples = data.draw(st.integers(1, 300))
    num_correct = data.draw(st.integers(0, num_samples))
    k = data.draw(st.integers(1, num_samples))
    expected = float(by_fractions(num_correct, num_samples, k))
    assert pass_at_k([num_correct], [num_samples], k).tolist() == [expected]


def test_pass_at_k_keeps_its_digits_for_large_n():
    # Chen et al.'s binomials overflow a float here; the value is that of exact integers.
    assert pass_at_k([3], [10_000], 5_000).tolist() == [0.875037503750375]
    assert pass_at_k([1], [10**9], 1).tolist() == [1e-9]
    assert pass_at_k([1], [10**9], 7).tolist() == [7e-9]
    assert pass_at_k([10**6], [10**9], 2).tolist() == [float(by_fractions(10**6, 10**9, 2))]


def test_problems_may_have_different_numbers_of_samples():
    assert pass_at_k([1, 1, 0], [4, 2, 9], 2).tolist() == [0.5, 1.0, 0.0]


def test_pass_at_1_is_the_share_of_right_samples():
    counts = np.arange(65)
    assert pass_at_k(counts, 64, 1).tolist() == [c / 64 for c in range(65)]
    assert pass_at_k([1], 200, 1).tolist() == [0.005]


def test_pass_at_n_is_whether_any_sample_is_right():
    assert pass_at_k([0, 1, 5, 8], 8, 8).tolist() == [0.0, 1.0, 1.0, 1.0]


def test_pass_at_k_rises_with_k_and_with_c():
    table = np.array([pass_at_k(range(51), 50, k) for k in range(1, 51)])
    assert (np.diff(table, axis=0) >= 0).all()
    assert (np.diff(table, axis=1) >= 0).all()
    assert ((table >= 0) & (table <= 1)).all()


def test_pass_at_k_is_unbiased_for_every_solve_probability():
    num_samples = 9
    for p in (Fraction(1, 100), Fraction(1, 3), Fraction(9, 10)):
        for k in (1, 3, 9):
            values = pass_at_k(range(num_samples + 1), num_samples, k).tolist()
            expectation = sum(
                math.comb(num_samples, c)
                * p**c
                * (1 - p) ** (num_samples - c)
                * Fraction(values[c])
                for c in range(num_samples + 1)
            )
            assert float(expectation) == pytest.approx(float(1 - (1 - p) ** k), rel=1e-14)


def test_pass_at_k_takes_whole_floats_and_no_problems():
    assert pass_at_k(np.array([1.0, 2.0]), np.array([4.0, 4.0]), 2).tolist() == [0.5, 5 / 6]
    assert pass_at_k([], [], 2).shape == (0,)
    assert pass_at_k([], 4, 2).dtype == np.float64


@pytest.mark.parametrize(
    ("num_correct", "num_samples", "k", "shown"),
    [
        ([0], [2], 5, "k = 5 and 2 samples of problem 0"),
        ([1, 1], [8, 3], 4, "k = 4 and 3 samples of problem 1"),
        ([1], [4], 0, "at least 1, got 0"),
        ([1], [4], -2, "at least 1, got -2"),
        ([1], [4], 2.0, "got 2.0"),
        ([1], [4], True, "got True"),
        ([1, 5], [4, 4], 2, "got 5 of 4 for problem 1"),
        ([-1], [4], 2, "got -1 of 4 for problem 0"),
        ([1.5], [4], 2, "num_correct must be whole numbers, got 1.5"),
        ([1], [math.nan], 2, "num_samples must be whole numbers, got nan"),
        ([math.inf], [4], 2, "num_correct must be whole numbers, got inf"),
        ([True], [4], 2, "num_correct must be whole numbers, got True"),
        (["1"], [4], 2, "num_correct must be whole numbers, got '1'"),
        ([1, 2], [4, 4, 4], 2, "(2,) and (3,)"),
        ([[1, 2]], [[4, 4]], 2, "(1, 2) and (1, 2)"),
        (1, 4, 2, "() and ()"),
    ],
)
def test_counts_that_make_no_pass_at_k_are_refused(num_correct, num_samples, k, shown):
    with pytest.raises(UsageError) as caught:
        pass_at_k(num_correct, num_samples, k)
    assert shown in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pass_at_k_from_probability_is_the_fraction():
    for p in (Fraction(0), Fraction(1, 7), Fraction(1, 2), Fraction(999, 1000), Fraction(1)):
        for k in (1, 2, 10, 100):
            value = pass_at_k_from_probability([float(p)], k)[0]
            assert value == pytest.approx(float(1 - (1 - Fraction(float(p))) ** k), rel=1e-14)


@pytest.mark.parametrize("p", [1e-6, 1e-12, 1e-18, 1e-200, 5e-324])
def test_pass_at_k_from_probability_keeps_its_digits_for_tiny_p(p):
    exact = 1 - (1 - Fraction(p)) ** 3
    assert pass_at_k_from_probability([p], 3)[0] == pytest.approx(float(exact), rel=1e-14, abs=0)


def test_pass_at_k_from_probability_agrees_with_many_samples():
    # With c = p n of a huge n, drawing without replacement is drawing with.
    sampled = pass_at_k([300_000], [1_000_000], 4)[0]
    assert pass_at_k_from_probability([0.3], 4)[0] == pytest.approx(sampled, abs=1e-6)


def test_a_sum_of_probabilities_may_exceed_1_by_rounding():
    assert pass_at_k_from_probability([1 + 5e-7, np.float32(1) + 2e-7], 1).tolist() == [1.0, 1.0]


def test_probabilities_in_float32_are_computed_in_float64():
    value = pass_at_k_from_probability(np.array([0.1], dtype=np.float32), 2)
    assert value.dtype == np.float64
    assert value[0] == pytest.approx(1 - (1 - float(np.float32(0.1))) ** 2, rel=1e-14)


@pytest.mark.parametrize("p", [1.00001, -1e-9, math.nan, math.inf, -math.inf, 55.0])
def test_a_number_that_is_no_probability_is_refused(p):
    with pytest.raises(UsageError, match="within 0 to 1, got") as caught:
        pass_at_k_from_probability([0.5, p], 2)
    assert repr(p) in str(caught.value)


def test_pass_at_k_from_probability_needs_a_k():
    with pytest.raises(UsageError, match="at least 1, got 0"):
        pass_at_k_from_probability([0.5], 0)
