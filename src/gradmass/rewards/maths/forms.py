r"""What kind of answer a text is: a value, words, a tuple, set or list, an interval, a relation."""

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gradmass.rewards.maths import algebra
from gradmass.rewards.maths.algebra import UnreadableError
from gradmass.rewards.maths.notation import (
    NAMES,
    brackets,
    clean,
    split_top,
    unwrap_text,
    words,
)
from gradmass.rewards.maths.numbers import Literal, read_number
from gradmass.rewards.maths.units import split_unit

AND_OR = (
    r"(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])"
    r"|\\(?:lor|vee|land|wedge)(?![a-zA-Z]))"
)
SEPARATOR = re.compile(rf"\s*[,;]\s*{AND_OR}|{AND_OR}|[,;]")
SIGN = re.compile(r"=|<|>|\\(?:le|ge|ne|approx|in|equiv)(?![a-zA-Z])")
UNION = re.compile(r"\\cup(?![a-zA-Z])")
BUILDER = re.compile(r"\\mid(?![a-zA-Z])|\||:")
SETS = re.compile(r"\\(?:cap|setminus|mathbb|emptyset|backslash)(?![a-zA-Z])")
NAME = re.compile(
    r"\\?[a-zA-Z]+(?:_\{?\w+\}?)?'?(?:\s*\([\w, ]+\))?|\\(?:angle|text|mathrm|overline)\s*\{?[^=]*"
    r"|[a-zA-Z][a-zA-Z ]+|\|?[A-Z]{2}\|?"
    r"|\([a-zA-Z](?:_\{?\w+\}?)?(?:\s*,\s*[a-zA-Z](?:_\{?\w+\}?)?)+\)"
)
WHOLE_TEXT = re.compile(r"\\(?:text[a-z]*|mathrm|mbox)\s*\{[^{}]*\}")
LABELS = re.compile(r"\\[a-zA-Z]+|_\{[^{}]*\}|_\w")
RATIO = re.compile(r"\d+(?:\s*:\s*\d+)+")
BASE = re.compile(r"(?P<digits>[0-9A-Z]+)_\{?(?:\\text\{)?\s*(?P<base>\d+|[a-z]+)\s*\}*")
CHOICE = re.compile(r"(?:\(\s*([A-J])\s*\)|([A-J])\s*[).:])\s*(?P<rest>\S.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Value:
    """A number or expression, with the unit split off."""

    text: str
    unit: str
    number: Literal | None

    @property
    def expression(self) -> Any:
        """As a SymPy object; raises UnreadableError."""
        return algebra.parse(self.text)


@dataclass(frozen=True, slots=True)
class Words:
    """Text that is no formula, in small letters."""

    text: str


@dataclass(frozen=True, slots=True)
class Choice:
    """An option of a multiple choice with what it says: (C) 13."""

    letter: str
    rest: "Form"


@dataclass(frozen=True, slots=True)
class Group:
    """Several answers.

    A ``tuple`` has order and brackets, a ``set`` neither order nor repetitions, and a ``list`` is
    what stands side by side without brackets, in any order.
    """

    kind: str
    items: tuple["Form", ...]
    brackets: str = ""
    joiner: str = ""


@dataclass(frozen=True, slots=True)
class Equation:
    """``left = right``, with the value that it gives to a name, if ``left`` is one."""

    name: str
    left: str
    right: str
    value: "Form"


@dataclass(frozen=True, slots=True)
class Inequality:
    """A relation other than equality."""

    text: str


@dataclass(frozen=True, slots=True)
class SetText:
    """Sets joined by signs of set theory."""

    pieces: tuple["Form", ...]
    text: str


Form = Value | Words | Choice | Group | Equation | Inequality | SetText


def read(text: str) -> Form:
    """Return what kind of answer a text is.

    Raises:
        UnreadableError: Neither words nor anything the parser understands.
    """
    return _read(clean(text))


def _read(text: str) -> Form:
    if not text:
        raise UnreadableError("nothing there")
    if (number := read_number(text)) is not None:
        return Value(text, "", number)
    plain = unwrap_text(text)
    if m := CHOICE.fullmatch(plain):
        letter = m[1] or m[2]
        rest = _read(m["rest"]) if m["rest"] else Words(letter.lower())
        return Choice(letter, rest)
    is_list = bool(WHOLE_TEXT.fullmatch(text)) and len(split_top(plain, SEPARATOR)[0]) > 1
    if (is_words(text) and not is_list) or text in (r"\ldots", r"\vdots"):
        return Words(words(text))
    # What one text command holds is read as if it stood alone: \text{A and B}.
    return _read_parts(plain if WHOLE_TEXT.fullmatch(text) else text)


def _read_parts(text: str) -> Form:
    parts, joiners = split_top(text, SEPARATOR)
    if "," in joiners and ";" in joiners:  # x = 1, y = 2; x = 3, y = 4
        parts, joiners = split_top(text, re.compile(";"))
    if len(parts) > 1:
        joiner = "or" if any(re.search("or|vee", j) for j in joiners) else "and"
        return Group("list", _items(parts), "", joiner)
    body, unit = split_unit(text)
    if unit and (number := read_number(body)) is not None:
        return Value(body, unit, number)
    if len(split_top(text, UNION)[0]) > 1:
        return SetText(_items(split_top(text, UNION)[0]), text)
    signs = split_top(text, SIGN)
    if signs[1]:
        return _relation(*signs, text)
    pair = brackets(text)
    if pair is not None:
        return _bracketed(*pair, text)
    if r"\pm" in text or r"\mp" in text:
        return Group("list", _both_signs(text), "", "or")
    if SETS.search(text):
        return SetText((), text)
    return _value(text, body, unit)


def _items(parts: list[str]) -> tuple[Form, ...]:
    """Each part read; what stands for two, by a plus or minus, counts as two."""
    items: list[Form] = []
    for part in parts:
        form = _read(part)
        is_two = isinstance(form, Group) and form.kind == "list" and re.search(r"\\[pm]{2}", part)
        items += form.items if is_two and isinstance(form, Group) else [form]
    return tuple(items)


def _both_signs(text: str) -> tuple[Form, ...]:
    upper = text.replace(r"\pm", "+").replace(r"\mp", "-")
    lower = text.replace(r"\pm", "-").replace(r"\mp", "+")
    return _read(re.sub(r"^\s*\+\s*", "", upper)), _read(lower)


def _bracketed(left: str, inside: str, right: str, text: str) -> Form:
    parts, _ = split_top(inside, re.compile("[,;]"))
    if left == r"\{" or (left == "{" and len(parts) > 1):
        condition = split_top(inside, BUILDER)[0]
        if len(condition) == 2 and SIGN.search(condition[1]):
            return _read(condition[1])
        return Group("set", _items(parts) if inside else (), r"\{\}")
    if len(parts) > 1:
        if r"\pm" in inside or r"\mp" in inside:
            return Group("list", _both_signs(text), "", "or")
        return Group("tuple", tuple(_read(p) for p in parts), left + right)
    return _read(inside) if left + right in ("()", "{}", "[]") else _value(text, text, "")


def _relation(parts: list[str], signs: list[str], text: str) -> Form:
    if signs == [r"\in"]:
        return _read(parts[1])
    if r"\approx" in signs:
        # The number that is rounded was meant, the rounding is a help to the reader.
        at = signs.index(r"\approx")
        exact = parts[: at + 1]
        if len(exact) == 1 and NAME.fullmatch(exact[0]):
            exact = [exact[0], parts[at + 1]]
        return _read("=".join(exact))
    if any(sign not in ("=", r"\equiv") for sign in signs):
        return Inequality(text)
    if not parts[0]:
        return _read("=".join(parts[1:]))
    name = re.sub(r"\s", "", parts[0]) if is_name(parts[0]) else ""
    value = _read(parts[-1])
    if isinstance(value, Group) and value.kind == "list":  # x = 1 \pm \sqrt{2}
        return value
    return Equation(name, parts[0], parts[-1], value)


def _value(text: str, body: str, unit: str) -> Form:
    if RATIO.fullmatch(text):
        return Words(re.sub(r"\s", "", text))
    if BASE.fullmatch(text):
        return Value(text, "", None)
    value = Value(body, unit, None)
    try:
        parsed = value.expression
    except UnreadableError:
        plain = unwrap_text(text)
        if re.search(r"\\|[{}^=]", plain) or not re.search("[a-zA-Z]{2}|[a-zA-Z][.]", plain):
            raise
        return Words(words(text))
    if isinstance(parsed, (bool,)) or parsed.is_Matrix is None:
        raise UnreadableError(f"no value: {text[:80]}")
    return value


def is_name(text: str) -> bool:
    r"""Whether the left side of an equation names what the right side is the value of.

    A symbol, f(x), words, a tuple of symbols, or anything of capital letters alone, as lengths,
    angles and areas are called.

    >>> [is_name(text) for text in ("x", "f(x)", r"\frac{AB}{CD}", r"\text{Area}", "x + y", "2x")]
    [True, True, True, True, False, False]
    """
    letters = re.sub("[^a-zA-Z]", "", LABELS.sub("", text))
    return bool(NAME.fullmatch(text)) or letters.isupper()


def is_words(text: str) -> bool:
    r"""Whether cleaned text is words rather than a product of symbols.

    Letters in alphabetical order are a product (``xy``, ``abc``), unless ``\text`` holds them.

    >>> [is_words(t) for t in ("Yes", r"\text{odd}", "no solution", "xy", "C", "pi", "2x")]
    [True, True, True, False, False, False, False]
    """
    plain = unwrap_text(text)
    if re.search(r"[^a-zA-Z\s'.!?\-]", plain) or not re.search("[a-zA-Z]{2}", plain):
        return False
    if re.fullmatch(rf"(?:{NAMES}|sqrt|inf|infinity|infty)(?:\s+\w)?", plain):
        return False
    if re.search(r"\s-\s|(?<![a-zA-Z])[a-zA-Z]?\s*-", plain):
        return False
    letters = re.sub("[^a-z]", "", plain.lower())
    is_product = " " not in plain and all(a < b for a, b in pairwise(letters))
    return plain != text or not is_product or plain.lower() == "no"


def same_ratio(gold: str, answer: str) -> bool:
    """Whether ``a:b`` equals another: number by number, or the gold in lowest terms times one."""
    if not (RATIO.fullmatch(gold) and RATIO.fullmatch(answer)):
        return False
    first, second = ([int(n) for n in text.split(":")] for text in (gold, answer))
    if len(first) != len(second) or 0 in first or math.gcd(*first) != 1:
        return first == second
    return all(a * first[0] == g * second[0] for g, a in zip(first, second, strict=True))
