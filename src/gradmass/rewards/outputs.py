"""Whether what a program printed or returned is what was expected."""

import decimal
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gradmass.types import UsageError

NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How strictly outputs are compared.

    Args:
        tolerance: How far a number may be from an expected number with a decimal point or an
            exponent, absolutely or relative to it; from an expected integer, absolutely, and only
            if it is no integer itself. Two integers have to be equal. At least 0.
        match_lines: Line breaks count; otherwise they are spaces like others.
        match_case: Upper and lower case differ.

    Raises:
        UsageError: ``tolerance`` is negative or not finite.
    """

    tolerance: float = 1e-6
    match_lines: bool = True
    match_case: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise UsageError(f"tolerance must be finite and at least 0, got {self.tolerance!r}")


def same_text(actual: str, expected: str, comparison: Comparison) -> bool:
    r"""Compare printed text token by token.

    Whitespace at the ends of the text and of lines, and how much of it lies between tokens, never
    counts.

    Args:
        actual: What the program printed.
        expected: What it should have printed.
        comparison: How strictly.

    Source: LiveCodeBench, ``lcb_runner/evaluation/testing_util.py``, which compares stripped lines
    as text, then as exact decimal numbers; here numbers with a decimal point have a tolerance.

    >>> same_text("0.333333 \n", "0.333333333333", Comparison())
    True
    >>> same_text("10000000000000001", "10000000000000000", Comparison())
    False
    """
    if not comparison.match_case:
        actual, expected = actual.lower(), expected.lower()
    if actual == expected:
        return True
    if not comparison.match_lines:
        return _same_tokens(actual, expected, comparison.tolerance)
    expected_lines = expected.strip().split("\n")
    # No further than there is something to compare with: a program may print millions of lines.
    actual_lines = actual.strip().split("\n", len(expected_lines))
    return len(actual_lines) == len(expected_lines) and all(
        line == other or _same_tokens(line, other, comparison.tolerance)
        for line, other in zip(actual_lines, expected_lines, strict=True)
    )


def same_value(actual: Any, expected: Any, comparison: Comparison) -> bool:
    """Compare plain data: lists and tuples by their items, floats with the tolerance.

    Args:
        actual: What the program returned, decoded.
        expected: What it should have returned.
        comparison: How strictly; of its fields, the tolerance.

    >>> same_value((0.1 + 0.2, "a"), [0.3, "a"], Comparison())
    True
    """
    if isinstance(expected, list | tuple):
        return (
            isinstance(actual, list | tuple)
            and len(actual) == len(expected)
            and all(
                same_value(item, other, comparison)
                for item, other in zip(actual, expected, strict=True)
            )
        )
    if isinstance(expected, dict):
        return (
            isinstance(actual, dict)
            and actual.keys() == expected.keys()
            and all(same_value(actual[key], expected[key], comparison) for key in expected)
        )
    is_inexact = isinstance(expected, float) or isinstance(actual, float)
    if is_inexact and isinstance(actual, int | float) and isinstance(expected, int | float):
        return _close(actual, expected, comparison.tolerance)
    return bool(actual == expected)


def _close(actual: float, expected: float, tolerance: float) -> bool:
    if actual == expected or (actual != actual and expected != expected):
        return True
    try:
        scale = max(1.0, abs(expected)) if isinstance(expected, float) else 1.0
        distance = abs(actual - expected)
    except OverflowError:  # an integer beyond all floats
        return False
    return math.isfinite(scale) and distance <= tolerance * scale


def _same_tokens(actual: str, expected: str, tolerance: float) -> bool:
    expected_tokens = expected.split()
    actual_tokens = actual.split(maxsplit=len(expected_tokens))
    return len(actual_tokens) == len(expected_tokens) and all(
        token == other or _same_number(token, other, Decimal(tolerance))
        for token, other in zip(actual_tokens, expected_tokens, strict=True)
    )


def _same_number(actual: str, expected: str, tolerance: Decimal) -> bool:
    """Whether two different tokens are the same number; exact arithmetic, whatever their length."""
    if not (NUMBER.fullmatch(actual) and NUMBER.fullmatch(expected)):
        return False
    is_integer = INTEGER.fullmatch(expected) is not None
    try:
        a, b = Decimal(actual), Decimal(expected)
        if is_integer and INTEGER.fullmatch(actual):
            return a == b
        scale = Decimal(1) if is_integer else max(Decimal(1), b.copy_abs())
        return a == b or (a - b).copy_abs() <= tolerance * scale
    except decimal.DecimalException:  # an exponent beyond any
        return False
