"""Comparing outputs, by pairs whose answer is plain to see."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmass.rewards.outputs import Comparison, same_text, same_value
from gradmass.types import UsageError

DEFAULT = Comparison()


@pytest.mark.parametrize(
    ("actual", "expected", "is_same"),
    [
        ("3", "3\n", True),
        (" 3 \r\n", "3", True),
        ("1 2 3 \n", "1 2 3", True),
        ("1   2", "1 2", True),
        ("1\n2", "1 2", False),
        ("1\n\n2", "1\n2", False),
        ("", "", True),
        ("", "0", False),
        ("YES", "Yes", False),
        ("0.333333", "0.333333333333", True),
        ("0.333333333333", "0.333333", True),
        ("0.33", "0.333333", False),
        ("3.0000001 2.9999999", "3 3", True),
        ("3 3", "3.0000001 2.9999999", True),
        ("3.1", "3", False),
        ("10000000000000001", "10000000000000000", False),
        ("1000000001.0", "1000000000", False),
        ("1000000001", "1000000000.0", True),
        ("007", "7", True),
        ("-0", "0", True),
        ("1e3", "1000", True),
        ("1e999999999999", "1e999999999998", False),
        ("nan", "0.5", False),
        ("0x10", "16", False),
        ("1_000", "1000", False),
        ("\u0661", "1", False),
        ("7" * 1_000_000 + "x", "7", False),
        ("7" * 1_000_000 + "x", "7" * 1_000_000 + "y", False),
        ("1 " * 1_000_000, "1", False),
        ("1\n" * 1_000_000, "1", False),
        ("7" * 100_000, "7" * 99_999 + "8", False),
    ],
)
def test_text_is_compared_by_lines_tokens_and_numbers(actual, expected, is_same):
    assert same_text(actual, expected, DEFAULT) is is_same


@pytest.mark.parametrize(
    ("actual", "expected", "options"),
    [
        ("1\n2", "1 2", {"match_lines": False}),
        ("YES", "Yes", {"match_case": False}),
        ("0.33", "0.333", {"tolerance": 0.01}),
    ],
)
def test_what_a_problem_may_relax(actual, expected, options):
    assert not same_text(actual, expected, DEFAULT)
    assert same_text(actual, expected, Comparison(**options))


@pytest.mark.parametrize(
    ("actual", "expected", "is_same"),
    [
        ((1, 2), [1, 2], True),
        ([1, [2.0000001]], [1, [2.0]], True),
        ([1, 2], [1, 2, 3], False),
        ("12", [1, 2], False),
        ({"a": 0.30000000000000004}, {"a": 0.3}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({1, 2}, {2, 1}, True),
        (True, 1, True),
        (None, None, True),
        (None, 0, False),
        (3.0000001, 3, True),
        (1000000001.0, 1000000000, False),
        (10**400, 1.5, False),
        (float("nan"), float("nan"), True),
        (float("inf"), float("inf"), True),
        (1e300, float("inf"), False),
        ("3", 3, False),
    ],
)
def test_values_are_compared_as_plain_data(actual, expected, is_same):
    assert same_value(actual, expected, DEFAULT) is is_same


@given(st.integers(), st.integers())
def test_integers_are_the_same_only_if_they_are_equal(a, b):
    assert same_text(str(a), str(b), DEFAULT) == (a == b)
    assert same_value(a, b, DEFAULT) == (a == b)


@given(st.decimals(-1000, 1000, places=8), st.decimals(-1000, 1000, places=8))
def test_decimals_are_the_same_within_the_tolerance(a, b):
    distance, scale = abs(Fraction(a) - Fraction(b)), max(1, abs(Fraction(b)))
    expected = distance <= Fraction(1e-6) * scale
    assert same_text(f"{a:.8f}", f"{b:.8f}", DEFAULT) == expected


@pytest.mark.parametrize("tolerance", [-1.0, float("nan"), float("inf")])
def test_a_tolerance_out_of_range_is_refused(tolerance):
    with pytest.raises(UsageError, match="tolerance"):
        Comparison(tolerance=tolerance)
