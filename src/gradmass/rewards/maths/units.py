r"""Units of an answer: told apart from its value, and converted where both sides name one."""

import re
from fractions import Fraction

LENGTH = {
    "mm": "1/1000 millimeter millimetre",
    "cm": "1/100 centimeter centimetre",
    "m": "1 meter metre",
    "km": "1000 kilometer kilometre",
    "in": "127/5000 inch inche",
    "ft": "381/1250 foot feet",
    "yd": "1143/1250 yard",
    "mi": "201168/125 mile",
}
TIME = {
    "s": "1 sec second",
    "min": "60 minute",
    "h": "3600 hr hour",
    "day": "86400",
    "week": "604800",
}
MASS = {
    "mg": "1/1000000 milligram",
    "g": "1/1000 gram",
    "kg": "1 kilogram",
    "lb": "45359237/100000000 pound",
    "oz": "45359237/1600000000 ounce",
}
VOLUME = {"ml": "1/1000 milliliter millilitre", "l": "1 liter litre"}
MONEY = {"$": "1 dollar usd", "cent": "1/100 ¢"}
EURO = {"€": "1 euro"}
POUND = {"£": "1"}
PERCENT = {"%": "1 percent percentage pct"}
ANGLE = {"°": "1 degree deg"}


def _table() -> dict[str, tuple[str, Fraction]]:
    table = {}
    groups = (LENGTH, TIME, MASS, VOLUME, MONEY, EURO, POUND, PERCENT, ANGLE)
    for group in groups:
        dimension = next(iter(group))
        for name, line in group.items():
            factor, *others = line.split()
            for spelling in (name, *others):
                table[spelling] = (dimension, Fraction(factor))
    return table


TABLE = _table()
"""Dimension and size of each unit, by its spellings in the singular, in small letters."""
TEXT = r"\\(?:text[a-z]*|mathrm|mbox|mathbf|operatorname)\s*\{([^{}]*)\}"
POWER = r"(?:\s*\^\s*\{?\s*([23])\s*\}?)?"
TAIL_TEXT = re.compile(rf"^(?P<body>.*[^\s\\])\s*{TEXT}{POWER}$", re.DOTALL)
TAIL_WORDS = re.compile(
    r"^(?P<body>.*[\d}])(?:\s+([a-zA-Z]+(?:[ /]+[a-zA-Z]+)*)|\s*([a-zA-Z]{2,}))\.?" + POWER + "$",
    re.DOTALL,
)
TAIL_SIGN = re.compile(
    r"^(?P<body>.*[^\s\\])\s*(\\?%|\^\s*\{?\s*\\circ\s*\}?|\\degree|€|£|¢)$", re.DOTALL
)
HEAD_SIGN = re.compile(r"^(?P<minus>-?)\s*(\\\$|€|£)\s*(?P<body>.*\S)$", re.DOTALL)
TRIGONOMETRY = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")


def split_unit(text: str) -> tuple[str, str]:
    r"""Return the value and the unit, normalised; an empty unit where there is none.

    >>> split_unit(r"12\text{ square inches}"), split_unit("5 apples"), split_unit(r"\$5")
    (('12', 'in^2'), ('5', 'apple'), ('5', '$'))
    >>> split_unit("5x"), split_unit(r"\sin 30^\circ")
    (('5x', ''), ('\\sin 30^\\circ', ''))
    """
    if m := HEAD_SIGN.match(text):
        return m["minus"] + m["body"], m[2].lstrip("\\")
    if (m := TAIL_SIGN.match(text)) and not TRIGONOMETRY.search(text):
        return m["body"], "°" if "circ" in m[2] or "degree" in m[2] else m[2].lstrip("\\")
    if m := TAIL_TEXT.match(text):
        unit = normal_unit(m[2], m[3])
        if unit and (unit.partition("^")[0] in TABLE or re.search(r"\d|\\pi", m["body"])):
            return m["body"], unit
    if (m := TAIL_WORDS.match(text)) and (m["body"][-1].isdigit() or "}" in m["body"]):
        words = m[2] or m[3]
        unit = normal_unit(words, m[4])
        is_known = unit.partition("^")[0] in TABLE
        is_word = len(words) > 1 and not re.fullmatch("[eE]|and|or|pi|mod", words)
        if is_known or (is_word and m[2] and "\\" not in m["body"]):
            return m["body"], unit
    return text, ""


def normal_unit(words: str, power: str | None = None) -> str:
    """A unit in one spelling: singular, short where it is known, ``^2`` and ``^3`` for powers."""
    words = words.strip().lower().rstrip(".")
    for name, number in (("square", "2"), ("sq", "2"), ("cubic", "3"), ("cu", "3")):
        if re.match(rf"{name}\.?\s+\S", words):
            words, power = re.sub(rf"^{name}\.?\s+", "", words), number
    singular = words[:-1] if re.search("[a-z][a-z]s$", words) else words
    for spelling in (words, singular):
        if spelling in TABLE:
            singular = next(name for name in TABLE if TABLE[name] == TABLE[spelling])
    return f"{singular}^{power}" if power else singular


def conversion(gold: str, answer: str) -> Fraction | None:
    """By what an answer's value is multiplied to be in the gold's unit; None: never comparable.

    A unit that one side leaves out, or that is not in the table, is taken for the other's.
    """
    if not gold or not answer or gold == answer:
        return Fraction(1)
    if gold.startswith("mod ") or answer.startswith("mod "):
        return None
    (gold_name, _, gold_power), (name, _, power) = gold.partition("^"), answer.partition("^")
    if gold_name not in TABLE or name not in TABLE:
        return Fraction(1)
    (dimension, size), (other, other_size) = TABLE[gold_name], TABLE[name]
    if dimension != other or gold_power != power:
        return None
    return (other_size / size) ** int(power or 1)
