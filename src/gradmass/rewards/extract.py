"""Which part of a completion is the answer: a few rules with names, all in linear time."""

import re
from collections.abc import Callable
from typing import NamedTuple

from gradmass.types import UsageError

BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
BETWEEN = re.compile(
    r"(?:[\s$]|\\[(),\][; ]|\\q?quad(?![a-z])"
    r"|(?P<joins>[,;]|\\text\s*\{\s*(?:and|or)\s*\}|and|or))*"
)
BARE_END = re.compile(r"\$|\\\)|\\\]|\n|$")
TOKEN = re.compile(r"(?P<box>\\{1,4}(?:boxed|fbox)(?![a-zA-Z])\s*\{?)|\\.|[{}]", re.DOTALL)
MAX_BARE = 200
"""Characters that a box without braces may hold."""
MATH = re.compile(r"\\[\s\S]|\$\$?")
ANSWER = re.compile(
    r"####|\b(?:final\s+)?answer\b\s*(?:is\s*[:=]?|[:=])|^\W*(?:final\s+)?answer\W*$", re.IGNORECASE
)
SENTENCE_END = re.compile(r"\.(?=\s|$)")
NUMBER = re.compile(
    r"(?:(?<![\w)\]}.])[-+−]\s?)?\\?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
    r"(?:[eE][-+]?\d+)?(?:/\d+)?(?:\s?\\?%)?"
)
OPEN, CLOSE = "<think>", "</think>"


class _Open(NamedTuple):
    """A box that is not closed yet: the depth of its brace, and where it starts."""

    depth: int
    start: int
    inside: int


def last_box(text: str) -> str | None:
    r"""What the last ``\boxed{...}`` (or ``\fbox``) holds; None where it does not close.

    Boxes with nothing but a comma, ``and`` or ``or`` between them are one answer. Without braces,
    as in ``\boxed 5``, a box reaches to the end of the formula or line.

    >>> last_box(r"\boxed{7} no: \boxed{\frac{1}{2}}")
    '\\frac{1}{2}'
    >>> last_box(r"\boxed{-1} and \boxed{5}")
    '-1, 5'
    >>> last_box(r"\boxed{7} no: \boxed{\frac{1}{")
    """
    answers: list[str] = []
    last_end = 0
    for start, end, content in _boxes(text):
        between = BETWEEN.fullmatch(text, last_end, start)
        if between is None or between["joins"] is None:
            answers = []
        if content is None:
            return None
        answers.append(content)
        last_end = end
    return ", ".join(answers) if answers else None


def _boxes(text: str) -> list[tuple[int, int, str | None]]:
    """Start, end and content of the boxes without a box inside, in order; None if one is open.

    One pass, whatever is nested in what.
    """
    opened: list[_Open] = []
    depth, last_start = 0, -1
    found: list[tuple[int, int, str | None]] = []
    for token in TOKEN.finditer(text):
        word = token.group()
        if token["box"]:
            last_start = token.start()
            if word.endswith("{"):
                depth += 1
                opened.append(_Open(depth, last_start, token.end()))
            else:
                end = BARE_END.search(text, token.end(), token.end() + MAX_BARE)
                stop = token.end() + MAX_BARE if end is None else end.start()
                found.append((last_start, stop, text[token.end() : stop]))
        elif word == "{":
            depth += 1
        elif word == "}" and depth:
            if opened and opened[-1].depth == depth:
                box = opened.pop()
                if box.start == last_start:  # none inside
                    found.append((box.start, token.end(), text[box.inside : token.start()]))
            depth -= 1
    found += [(box.start, len(text), None) for box in opened if box.start == last_start]
    return sorted(found, key=lambda entry: entry[0])


def last_box_or_all(text: str) -> str | None:
    """What the last box holds, or the whole text where there is no box."""
    return last_box(text) if BOX.search(text) else text


def last_math(text: str) -> str | None:
    r"""What the last box holds, or else the last formula in ``$``, ``$$``, ``\(`` or ``\[``."""
    if BOX.search(text):
        return last_box(text)
    last, opened, start = None, "", 0
    ends = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}
    for mark in MATH.finditer(text):
        if opened:
            if mark.group() == ends[opened]:
                last, opened = text[start : mark.start()], ""
        elif mark.group() in ends:
            opened, start = mark.group(), mark.end()
    return last


def final_answer_line(text: str) -> str | None:
    r"""What stands behind the last ``Answer:``, ``answer is`` or ``####``, to the sentence's end.

    Bold marks are dropped; where nothing follows on the line, the next line counts; a box in it is
    opened.

    >>> final_answer_line("so 437 + 468 = 905.\n\nFinal Answer: **73**")
    '73'
    """
    lines = [line.replace("**", "").replace("__", "").strip() for line in text.splitlines()]
    for i in range(len(lines) - 1, -1, -1):
        found = None
        for found in ANSWER.finditer(lines[i]):  # noqa: B007, the last one counts
            pass
        if found is None:
            continue
        rest = lines[i][found.end() :].strip()
        rest = rest or next((line for line in lines[i + 1 :] if line), "")
        if BOX.search(rest):
            return last_box(rest)
        end = SENTENCE_END.search(rest)
        return rest[: end.start()] if end is not None else rest
    return None


def last_number(text: str) -> str | None:
    """The last number, with its sign, ``%``, power of ten or ``/denominator``.

    >>> last_number("3 boxes cost $1,200.50 or so.")
    '$1,200.50'
    """
    numbers = NUMBER.findall(text)
    return numbers[-1].rstrip(",") if numbers else None


RULES: dict[str, Callable[[str], str | None]] = {
    "last_box": last_box,
    "last_box_or_all": last_box_or_all,
    "last_math": last_math,
    "final_answer_line": final_answer_line,
    "last_number": last_number,
}
"""The extraction rules by name."""

THINKING = ("skip", "require", "count")
"""What becomes of text between ``<think>`` and ``</think>``."""


def check_rule(rule: str, thinking: str) -> None:
    """Refuse names that are none.

    Raises:
        UsageError: There is no such rule, or no such treatment of thinking.
    """
    if rule not in RULES:
        raise UsageError(f"no extraction rule {rule!r}: take one of {', '.join(RULES)}")
    if thinking not in THINKING:
        raise UsageError(f"thinking cannot be {thinking!r}: take one of {', '.join(THINKING)}")


def extract(completion: str, rule: str, thinking: str = "skip") -> str | None:
    r"""Return the answer in a completion.

    Args:
        completion: What the policy wrote.
        rule: A name in ``RULES``.
        thinking: ``skip`` leaves out what is between ``<think>`` and ``</think>``; what an opened
            block that never closes holds does not count. ``require`` is the same, and without
            ``</think>`` there is no answer (for templates that open the block in the prompt).
            ``count`` looks everywhere.

    Returns:
        The answer without surrounding spaces; None where the rule finds none, or an empty one.

    >>> extract(r"<think>maybe \boxed{5}", "last_box")
    >>> extract(r"<think>maybe \boxed{5}</think> \boxed{6}", "last_box")
    '6'
    """
    if thinking == "require" and CLOSE not in completion:
        return None
    if thinking != "count":
        completion = completion.rpartition(CLOSE)[2].partition(OPEN)[0]
    answer = RULES[rule](completion)
    return (answer or "").strip() or None
