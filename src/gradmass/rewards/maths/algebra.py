r"""Whether two expressions are equal: exactly, at points, or by math-verify for what is no number.

math-verify compares numbers by absolute precision (1/2004! equals 1/2006!) and lets ``simplify``
decide the rest. Here numbers are compared by their difference, however small, and expressions with
variables at points where both are real. Matrices, sets and functions that neither decides go to
math-verify. All of it may take for ever: it runs in workers that can be killed.
"""

import functools
import random
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify
from math_verify.grader import should_treat_as_complex
from sympy.core.evalf import PrecisionExhausted
from sympy.core.function import AppliedUndef

from gradmass.rewards.maths.notation import to_latex
from gradmass.rewards.maths.numbers import Literal, is_rounding

NUM_DIGITS = 40
"""Decimal digits of values at points."""
EXACT_DIGITS = 400
"""Two constants are equal when their difference has no digit within this many."""
MIN_POINTS = 3
"""Points at which two expressions must both be real to be judged by them."""


class UnreadableError(ValueError):
    """Text that is no mathematical expression."""


@functools.lru_cache(maxsize=256)
def parse(text: str) -> Any:
    """Return the SymPy object that cleaned text stands for, unevaluated.

    Raises:
        UnreadableError: The parser does not understand it.
    """
    latex = to_latex(text)
    if not latex:
        raise UnreadableError("nothing there")
    if re.search(r"\d\s+\d", latex):  # the parser would join them
        raise UnreadableError(f"numbers side by side: {text[:80]}")
    try:
        parsed = latex2sympy(
            latex,
            is_real=not should_treat_as_complex(latex),
            convert_degrees=False,
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )
    except MemoryError:
        raise
    except Exception as error:  # the parser raises Exception itself, and what SymPy raises
        raise UnreadableError(f"not understood: {text[:80]}") from error
    if not isinstance(parsed, sympy.Basic | sympy.MatrixBase):
        raise UnreadableError(f"no expression: {text[:80]}")
    return _plain_symbols(parsed)


def _plain_symbols(expression: Any) -> Any:
    """The expression with symbols that differ by their assumptions made one; i is imaginary."""
    symbols = expression.free_symbols
    plain = {s: sympy.Symbol(s.name, real=True) for s in symbols if s.name != "i"}
    return expression.xreplace(plain | {s: sympy.I for s in symbols if s.name == "i"})


def is_number(expression: Any) -> bool:
    """Whether this is an expression without variables."""
    return isinstance(expression, sympy.Expr) and not expression.free_symbols


def same(gold: Any, answer: Any) -> bool:
    """Whether two SymPy objects are equal."""
    if gold == answer:
        return gold not in (sympy.nan, sympy.zoo)
    if isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase):
        return gold.shape == answer.shape and all(map(same, gold.flat(), answer.flat()))
    if isinstance(gold, sympy.Set) and isinstance(answer, sympy.Set):
        return same_set(gold, answer)
    if not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr)):
        return bool(verify(gold, answer, timeout_seconds=None))
    gold, answer = _without_functions(gold.doit()), _without_functions(answer.doit())
    if is_number(gold) and is_number(answer):
        return same_constant(gold, answer)
    verdict = same_at_points(gold, answer)
    return bool(verify(gold, answer, timeout_seconds=None)) if verdict is None else verdict


def same_constant(gold: Any, answer: Any) -> bool:
    """Whether two numbers are equal: rationals exactly, others to 400 digits."""
    if gold.is_Rational and answer.is_Rational:
        return bool(gold == answer)
    if any(x.has(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan) for x in (gold, answer)):
        return bool(gold == answer and gold.is_infinite)
    try:
        (gold - answer).evalf(2, maxn=EXACT_DIGITS, strict=True)
    except PrecisionExhausted:
        return True  # no digit of the difference is known: it is 0
    return bool((gold - answer).evalf(2, maxn=EXACT_DIGITS) == 0)


def value_of(expression: Any) -> Fraction | None:
    """A real constant to 40 digits, whole where it is whole to all of them; else None."""
    if not is_number(expression):
        return None
    value = _evaluated(expression.doit())
    if not isinstance(value, sympy.Float | sympy.Rational):
        return None
    exact = Fraction(str(value)) if isinstance(value, sympy.Float) else Fraction(value.p, value.q)
    nearest = round(exact)
    return Fraction(nearest) if abs(exact - nearest) * 10**30 < abs(exact) else exact


def rounds(literal: Literal, expression: Any) -> bool:
    """Whether a decimal is a constant correctly rounded (``numbers.is_rounding``)."""
    value = None if literal.unit is None else value_of(expression)
    return value is not None and is_rounding(literal, value)


def same_at_points(gold: Any, answer: Any) -> bool | None:
    """Whether two expressions agree wherever both are real; None where no point could tell.

    sqrt(1/n) and 1/sqrt(n) do, |x| and x do not.
    """
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    real: list[bool] = []
    other: list[bool] = []
    for point in _points(len(symbols)):
        values = dict(zip(symbols, point, strict=True))
        pair = [_evaluated(expression.subs(values)) for expression in (gold, answer)]
        if any(value is None for value in pair):
            continue
        is_real = all(value.is_real for value in pair)
        (real if is_real else other).append(_near(*pair))
        if is_real and not real[-1]:
            return False
    if len(real) >= MIN_POINTS:
        return True
    return all(other) if len(other) >= MIN_POINTS else None


def _points(num_symbols: int) -> Sequence[tuple[Any, ...]]:
    """Points of mixed size, sign and wholeness, the same in every process."""
    draw = random.Random(num_symbols)
    ranges = [(1, 99)] * 3 + [(101, 499)] * 2 + [(-499, 499)] * 4 + [(1000, 9000)] * 2
    points = [
        tuple(sympy.Rational(draw.choice(range(low, high)), 101) for _ in range(num_symbols))
        for low, high in ranges
    ]
    whole = [tuple(draw.choice(range(2, 8)) for _ in range(num_symbols)) for _ in range(3)]
    return points + [tuple(map(sympy.Integer, point)) for point in whole]


def _evaluated(expression: Any) -> Any:
    """The value to 40 digits, exactly 0 where no digit is known; None where there is none."""
    try:
        value = expression.evalf(NUM_DIGITS, strict=True)
    except PrecisionExhausted:
        return sympy.Integer(0)
    except (TypeError, ValueError, ArithmeticError, AttributeError, NotImplementedError):
        return None
    return value if value.is_number and value.is_finite else None


def _near(first: Any, second: Any) -> bool:
    difference, size = abs(first - second), max(abs(first), abs(second))
    return bool(difference <= size * sympy.Float(10) ** -(NUM_DIGITS - 10))


def _without_functions(expression: Any) -> Any:
    """Put a symbol for each value of an unknown function, so that f(x) + 1 has values."""
    found = expression.atoms(AppliedUndef)
    return expression.xreplace({f: sympy.Symbol(f"_{f}", real=True) for f in found})


def same_set(gold: Any, answer: Any) -> bool:
    """Whether two sets are equal: piece by piece, else by math-verify."""
    pieces = [s.args if isinstance(s, sympy.Union) else (s,) for s in (gold, answer)]
    if all(isinstance(piece, sympy.Interval) for side in pieces for piece in side):
        return len(pieces[0]) == len(pieces[1]) and all(
            (g.left_open, g.right_open) == (a.left_open, a.right_open)
            and same(g.start, a.start)
            and same(g.end, a.end)
            for g, a in zip(*pieces, strict=True)
        )
    if isinstance(gold, sympy.FiniteSet) and isinstance(answer, sympy.FiniteSet):
        return all(any(same(g, a) for a in answer) for g in gold) and all(
            any(same(g, a) for g in gold) for a in answer
        )
    return bool(verify(gold, answer, timeout_seconds=None))


def same_zero_set(gold: Any, answer: Any, *, keeps_sign: bool) -> bool | None:
    """Whether one expression is a constant times the other, above 0 if the sign has to stay."""
    ratio = gold / answer
    symbols = sorted(ratio.free_symbols, key=str)
    values = []
    for point in _points(len(symbols)):
        value = _evaluated(ratio.subs(dict(zip(symbols, point, strict=True))))
        if value is not None and value.is_real and value != 0:
            values.append(value)
    if len(values) < MIN_POINTS:
        return None
    return all(_near(value, values[0]) for value in values) and not (keeps_sign and values[0] < 0)


def relation_set(text: str) -> Any:
    """The real numbers for which an inequality in one variable holds; None if it is no such."""
    try:
        relation = _without_functions(parse(text))
        variables = relation.free_symbols
        if len(variables) != 1 or not hasattr(relation, "as_set"):
            return None
        return relation.as_set()
    except (UnreadableError, NotImplementedError, TypeError, ValueError, AttributeError):
        return None
