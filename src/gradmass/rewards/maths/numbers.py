r"""Numbers as people write them, read exactly, and when a rounded one equals an exact one."""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 400
"""Longest number, and largest power of ten, that is read here."""
MIN_SIGNIFICANT = 6
"""Digits that a decimal must show to stand for a number it only rounds."""
NOISE_DIGITS = 15
"""Significant digits beyond which a decimal's digits are those of binary floating point."""

SIGN = r"(?P<sign>[-+]?)\s*"
DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
DECIMAL = re.compile(
    rf"{SIGN}(?P<whole>{DIGITS})?(?:\.(?P<decimals>\d*))?"
    r"(?:\s*(?:[eE](?P<e>[-+]?\d+)"
    r"|(?:\\times|\\cdot|[*x])\s*10\s*\^\s*(?:\{\s*(?P<brace>[-+]?\s*\d+)\s*\}|(?P<bare>[-+]?\d+))))?"
)
POWER_OF_TEN = re.compile(r"10\s*\^\s*(?:\{\s*(?P<brace>[-+]?\s*\d+)\s*\}|(?P<bare>[-+]?\d+))")
FRACTION = re.compile(
    rf"{SIGN}(?:(?P<whole>\d+)\s*)?\\frac\s*(?:\{{\s*(?P<top>[-+]?\s*\d+)\s*\}}|(?P<top1>\d))"
    r"\s*(?:\{\s*(?P<low>\d+)\s*\}|(?P<low1>\d))"
)
SLASH = re.compile(rf"{SIGN}(?:(?P<whole>\d+)\s+)?(?P<top>{DIGITS})\s*/\s*(?P<low>{DIGITS})")
REPEATING = re.compile(rf"{SIGN}(?P<whole>\d*)\.(?P<decimals>\d*)\\overline\s*\{{(?P<again>\d+)\}}")


@dataclass(frozen=True, slots=True)
class Literal:
    """A number as it was written.

    Args:
        value: Exactly.
        unit: Of its last digit (``Fraction(1, 100)`` for 2.50) where it has a decimal point or a
            power of ten, and so may be rounded; None for integers and fractions, which never are.
    """

    value: Fraction
    unit: Fraction | None = None


def read_number(text: str) -> Literal | None:
    r"""Return the number that the text is, or None where it is anything else.

    Integers, decimals, thousands in groups of three (``2,400``), ``1.5e-3``,
    ``1.5 \times 10^{-3}``, ``10^{-3}``, ``\frac{1}{2}``, ``1/2``, mixed numbers
    (``1\frac{1}{2}``, ``1 1/2``), and ``0.1\overline{6}``.

    >>> read_number("2,400.0").value
    Fraction(2400, 1)
    >>> read_number("1, 2")
    """
    if len(text) > MAX_DIGITS:
        return None
    if (m := DECIMAL.fullmatch(text)) and (m["whole"] or m["decimals"]):
        return _decimal(m)
    if m := POWER_OF_TEN.fullmatch(text):
        power = _power(m["brace"] or m["bare"])
        return None if power is None else Literal(power)
    for pattern in (FRACTION, SLASH):
        if m := pattern.fullmatch(text):
            return _fraction(m.groupdict())
    if m := REPEATING.fullmatch(text):
        shift, length = 10 ** len(m["decimals"]), len(m["again"])
        value = Fraction(int((m["whole"] or "0") + m["decimals"]), shift)
        value += Fraction(int(m["again"]), shift * (10**length - 1))
        return Literal(-value if m["sign"] == "-" else value)
    return None


def _decimal(m: re.Match[str]) -> Literal | None:
    decimals = m["decimals"] or ""
    power = _power(m["e"] or m["brace"] or m["bare"] or "0")
    if power is None:
        return None
    whole = re.sub("[, ]", "", m["whole"] or "0")
    unit = power / 10 ** len(decimals)
    value = int(whole + decimals) * unit
    is_exact = m["decimals"] is None and power == 1
    return Literal(-value if m["sign"] == "-" else value, None if is_exact else unit)


def _power(exponent: str) -> Fraction | None:
    number = int(exponent.replace(" ", ""))
    return Fraction(10) ** number if abs(number) <= MAX_DIGITS else None


def _fraction(m: dict[str, str | None]) -> Literal | None:
    top = int(re.sub("[, ]", "", m["top"] or m.get("top1") or ""))
    low = int(re.sub("[, ]", "", m["low"] or m.get("low1") or ""))
    if low == 0 or (m["whole"] and top < 0):
        return None
    value = int(m["whole"] or 0) + Fraction(top, low)
    return Literal(-value if m["sign"] == "-" else value)


def same_number(first: Literal, second: Literal) -> bool:
    """Whether two numbers are equal, or one is the other correctly rounded (``is_rounding``)."""
    return (
        first.value == second.value
        or is_rounding(first, second.value)
        or is_rounding(second, first.value)
    )


def is_rounding(literal: Literal, value: Fraction) -> bool:
    """Whether a decimal is a number correctly rounded to the digits it shows.

    It must show at least 6 significant digits, of which the first 15 count. Whole numbers are never
    rounded: for them only what lies beyond the 15th digit is forgiven, as floating point leaves it.

    >>> third = Fraction(1, 3)
    >>> [is_rounding(read_number(text), third) for text in ("0.333333", "0.3333", "0.333334")]
    [True, False, False]
    >>> is_rounding(read_number("1234567.4"), Fraction(1234567))
    False
    >>> is_rounding(read_number("100000000000000.0"), Fraction(99_999_999_999_999))
    False
    """
    if literal.unit is None or literal.value == 0:
        return False
    num_shown = significant_digits(literal)
    if value.denominator == 1:
        last = literal.unit * Fraction(10) ** (num_shown - NOISE_DIGITS)
        return num_shown >= NOISE_DIGITS and abs(literal.value - value) <= last / 2
    if num_shown < MIN_SIGNIFICANT:
        return False
    noise = abs(literal.value) / 10 ** (NOISE_DIGITS - 1)
    tolerance = literal.unit / 2 if num_shown < NOISE_DIGITS else noise
    return abs(literal.value - value) <= tolerance


def significant_digits(literal: Literal) -> int:
    """How many digits a decimal shows, without leading zeros."""
    assert literal.unit is not None
    return len(str(abs(int(literal.value / literal.unit))))
