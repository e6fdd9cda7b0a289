r"""Whether an answer is the gold answer. The gold says what kind of answer is asked for."""

import itertools
import re
from fractions import Fraction
from typing import Any

import sympy

from gradmass.rewards.maths import algebra
from gradmass.rewards.maths.algebra import UnreadableError
from gradmass.rewards.maths.forms import (
    BASE,
    Choice,
    Equation,
    Form,
    Group,
    Inequality,
    SetText,
    Value,
    Words,
    same_ratio,
)
from gradmass.rewards.maths.notation import split_top, unwrap_text, words
from gradmass.rewards.maths.numbers import Literal, same_number
from gradmass.rewards.maths.units import conversion

ORDER = re.compile(r"<|>|\\(?:le|ge)(?![a-zA-Z])")
FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


def same_form(gold: Form, answer: Form) -> bool:
    """Whether the answer, as read, is the gold."""
    if gold == answer:
        return True
    gold, answer = _single(gold), _single(answer)
    if not (isinstance(gold, Group) and isinstance(answer, Group)):
        gold, answer = _single(gold, "set"), _single(answer, "set")
    if isinstance(gold, Choice) or isinstance(answer, Choice):
        return _same_choice(gold, answer)
    if isinstance(gold, Equation) or isinstance(answer, Equation):
        return _same_equation(gold, answer)
    if isinstance(gold, Words):
        return _same_words(gold.text, _text(answer))
    if isinstance(gold, Value) and isinstance(answer, Words):
        return _same_words(words(gold.text), answer.text) or _same_as_value(gold, answer)
    if isinstance(gold, Value) and isinstance(answer, Value):
        return _same_value(gold, answer)
    if _is_set_text(gold) or _is_set_text(answer):
        return _same_sets(gold, answer)
    if isinstance(gold, Group) and isinstance(answer, Group):
        return _same_group(gold, answer)
    return False


def check(form: Form) -> None:
    """Work a gold out as far as comparing would, so that a hopeless one is known as such.

    Raises:
        UnreadableError: Some part of it has no value.
    """
    if isinstance(form, Value):
        if form.number is None and not BASE.fullmatch(form.text):
            expression = form.expression
            if algebra.is_number(expression):
                algebra.value_of(expression)
    elif isinstance(form, Group):
        for item in form.items:
            check(item)
    elif isinstance(form, Equation):
        check(form.value)
    elif isinstance(form, Choice):
        check(form.rest)
    elif isinstance(form, Inequality):
        algebra.parse(form.text)
    elif isinstance(form, SetText) and _as_set(form) is None:
        raise UnreadableError(f"no set: {form.text[:80]}")


def _single(form: Form, kind: str = "list") -> Form:
    """The only item of a list, or of a set."""
    while isinstance(form, Group) and form.kind == kind and len(form.items) == 1:
        (form,) = form.items
    return form


def _text(form: Form) -> str:
    match form:
        case Words(text=text):
            return text
        case Value(text=text, unit=unit):
            return words(f"{text} {unit}" if unit else text)
        case Inequality(text=text) | SetText(text=text):
            return words(text)
    return ""


def _same_words(gold: str, answer: str) -> bool:
    def squeeze(text: str) -> str:
        return re.sub(r"^(?:the|an?) (?=\w)|[\s()]|^\$|\$$", "", text)

    return squeeze(gold) == squeeze(answer) != "" or same_ratio(gold, answer)


def _same_as_value(gold: Value, answer: Words) -> bool:
    """3:4 for the gold 3/4; yx, which looked like a word, for the gold xy."""
    parts = answer.text.split(":")
    if len(parts) == 2 and gold.number is not None and all(p.isdigit() for p in parts):
        return int(parts[1]) != 0 and gold.number.value == Fraction(int(parts[0]), int(parts[1]))
    letters = sorted(answer.text)
    return "".join(letters).isalpha() and letters == sorted(gold.text)


def _same_choice(gold: Form, answer: Form) -> bool:
    """A letter, or what the option says; both where both say both."""
    if isinstance(gold, Choice) and isinstance(answer, Choice):
        is_same = gold.letter == answer.letter
        both_say = Words(gold.letter.lower()) != gold.rest and (
            Words(answer.letter.lower()) != answer.rest
        )
        return is_same and (not both_say or same_form(gold.rest, answer.rest))
    choice, other = (gold, answer) if isinstance(gold, Choice) else (answer, gold)
    assert isinstance(choice, Choice)
    if isinstance(other, Value) and unwrap_text(other.text) == choice.letter:
        return True
    if isinstance(other, Words) and other.text == choice.letter.lower():
        return True
    return isinstance(gold, Choice) and same_form(choice.rest, other)


def _same_value(gold: Value, answer: Value) -> bool:
    if BASE.fullmatch(gold.text) or BASE.fullmatch(answer.text):
        return _same_in_base(gold.text, answer.text)
    return any(_same_scaled(gold, answer, factor) for factor in factors(gold, answer))


def factors(gold: Value, answer: Value) -> list[Any]:
    """What an answer's value may be multiplied by, for its unit to be the gold's.

    The gold declares the unit; an answer without one is taken to be in it. An answer that names
    percent where the gold has none is that percentage, and its number too where the gold is above 1
    and so no proportion; one in degrees is so many degrees or its value in radians.
    """
    if answer.unit == "%" and not gold.unit:
        is_above_one = gold.number is not None and gold.number.value > 1
        return [Fraction(1, 100), Fraction(1)] if is_above_one else [Fraction(1, 100)]
    if answer.unit == "°" and not gold.unit:
        return [Fraction(1), sympy.pi / 180]
    factor = conversion(gold.unit, answer.unit)
    return [] if factor is None else [factor]


def _same_scaled(gold: Value, answer: Value, factor: Any) -> bool:
    number = answer.number
    if isinstance(factor, Fraction):
        if number is not None:
            unit = None if number.unit is None else number.unit * factor
            number = Literal(number.value * factor, unit)
        if gold.number is not None and number is not None:
            return same_number(gold.number, number)
        factor = sympy.Rational(factor.numerator, factor.denominator)
    first = _expression(gold)
    second = _expression(answer)
    if factor != 1:
        second = second * factor
    if number is not None and algebra.rounds(number, first):
        return True
    if gold.number is not None and algebra.rounds(gold.number, second):
        return True
    return algebra.same(first, second)


def _expression(value: Value) -> Any:
    if value.number is None:
        return value.expression
    return sympy.Rational(value.number.value.numerator, value.number.value.denominator)


def _same_in_base(gold: str, answer: str) -> bool:
    """Digits and base; one side may leave the base out."""
    pair = [BASE.fullmatch(text) for text in (gold, answer)]
    digits = [
        m["digits"] if m is not None else text.strip()
        for m, text in zip(pair, (gold, answer), strict=True)
    ]
    bases = {m["base"] for m in pair if m is not None}
    if digits[0].isalpha():  # x_1: a symbol with an index
        return re.sub(r"[\s{}]", "", gold) == re.sub(r"[\s{}]", "", answer)
    return digits[0].lstrip("0") == digits[1].lstrip("0") and len(bases) == 1


def _same_group(gold: Group, answer: Group) -> bool:
    if gold.kind == "tuple" or answer.kind == "tuple":
        if _is_named(gold) or _is_named(answer):
            pair = [_in_order(gold), _in_order(answer)]
            return all(p is not None for p in pair) and _same_items(*pair)  # type: ignore[arg-type]
        is_same_kind = gold.kind == answer.kind and gold.brackets == answer.brackets
        return is_same_kind and _same_items(gold.items, answer.items)
    if any(item == Words("ldots") for group in (gold, answer) for item in group.items):
        return _same_items(gold.items, answer.items)
    is_repeated = any(same_form(a, b) for a, b in itertools.combinations(gold.items, 2))
    if gold.kind == "set" or not is_repeated:
        return all(any(same_form(g, a) for a in answer.items) for g in gold.items) and all(
            any(same_form(g, a) for g in gold.items) for a in answer.items
        )
    rest = list(answer.items)
    for item in gold.items:
        found = next((i for i, other in enumerate(rest) if same_form(item, other)), None)
        if found is None:
            return False
        del rest[found]
    return not rest


def _same_items(gold: tuple[Form, ...], answer: tuple[Form, ...]) -> bool:
    return len(gold) == len(answer) and all(map(same_form, gold, answer))


def _is_named(group: Group) -> bool:
    """Whether this is x = 1, y = 2: a value for each of several names."""
    names = [item.name for item in group.items if isinstance(item, Equation)]
    return len(names) == len(group.items) == len(set(names)) and all(names)


def _in_order(group: Group) -> tuple[Form, ...] | None:
    """The values of a tuple, or of names in alphabetical order."""
    if group.kind == "tuple":
        return group.items
    if not _is_named(group):
        return None
    equations = [item for item in group.items if isinstance(item, Equation)]
    return tuple(item.value for item in sorted(equations, key=lambda item: item.name))


def _same_equation(gold: Form, answer: Form) -> bool:
    if isinstance(gold, Equation) and isinstance(answer, Equation):
        if gold.name and answer.name and same_form(gold.value, answer.value):
            # x = 1 is not y = 1; longer names are spelled in too many ways to tell.
            is_single = len(gold.name) == len(answer.name) == 1
            return gold.name == answer.name or not is_single
        return _same_curve(gold, answer)
    if isinstance(gold, Equation):
        return bool(gold.name) and same_form(gold.value, answer)
    assert isinstance(answer, Equation)
    is_value = answer.name or not re.fullmatch(r"\s*0\s*", answer.right)
    return bool(is_value) and same_form(gold, answer.value)


def _same_curve(gold: Equation, answer: Equation) -> bool:
    sides = [[algebra.parse(text) for text in (e.left, e.right)] for e in (gold, answer)]
    if not all(isinstance(side, sympy.Expr) for pair in sides for side in pair):
        return False
    first, second = (left - right for left, right in sides)
    verdict = algebra.same_zero_set(first, second, keeps_sign=False)
    if verdict is not None:
        return verdict
    return algebra.same(*(sympy.Eq(*pair, evaluate=False) for pair in sides))


def _is_set_text(form: Form) -> bool:
    if isinstance(form, SetText | Inequality):
        return True
    items = form.items if isinstance(form, Group) and form.kind == "list" else ()
    return bool(items) and all(isinstance(item, Inequality) for item in items)


def _same_sets(gold: Form, answer: Form) -> bool:
    if isinstance(gold, Inequality) and isinstance(answer, Inequality):
        verdict = _same_inequality(gold.text, answer.text)
        if verdict is not None:
            return verdict
    first, second = _as_set(gold), _as_set(answer)
    return first is not None and second is not None and algebra.same_set(first, second)


def _same_inequality(gold: str, answer: str) -> bool | None:
    """Of two expressions, by their difference; None where that does not apply."""
    differences = []
    for text in (gold, answer):
        parts, signs = split_top(text, ORDER)
        if len(parts) != 2 or r"\ne" in text:
            return None
        left, right = (algebra.parse(part) for part in parts)
        (sign,) = signs
        if sign in (">", r"\ge"):
            left, right, sign = right, left, FLIPPED[sign]
        differences.append((left - right, sign))
    (first, first_sign), (second, second_sign) = differences
    verdict = algebra.same_zero_set(first, second, keeps_sign=True)
    if verdict is None or (not verdict and len(first.free_symbols) == 1):
        return None
    return verdict and first_sign == second_sign


def _as_set(form: Form) -> Any:
    """The SymPy set that a form stands for, of the real line where it is an inequality."""
    match form:
        case Inequality(text=text):
            return algebra.relation_set(text)
        case SetText(pieces=(), text=text):
            parsed = algebra.parse(text)
            return parsed if isinstance(parsed, sympy.Set) else None
        case SetText(pieces=pieces):
            sets = [_as_set(piece) for piece in pieces]
            return None if None in sets else sympy.Union(*sets)
        case Group(kind="tuple", items=(Value() as low, Value() as high), brackets=pair):
            ends = [_expression(end) for end in (low, high)]
            if not all(algebra.is_number(end) for end in ends):
                return None
            return sympy.Interval(*(e.doit() for e in ends), pair[0] == "(", pair[1] == ")")
        case Group(kind="set", items=items):
            values = [_expression(item) for item in items if isinstance(item, Value)]
            return sympy.FiniteSet(*values) if len(values) == len(items) else None
        case Group(kind="list", items=items, joiner=joiner):
            sets = [_as_set(item) for item in items]
            if None in sets:
                return None
            return sympy.Union(*sets) if joiner == "or" else sympy.Intersection(*sets)
        case Value(text=text, number=None):
            parsed = algebra.parse(text)
            return parsed if isinstance(parsed, sympy.Set) else None
    return None
