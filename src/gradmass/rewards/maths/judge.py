"""One verdict on one answer: what the workers of a ``MathsVerifier`` run, and its shortcut."""

import functools
import logging
import re
import warnings
from collections.abc import Generator
from typing import Any

from gradmass.rewards.maths.notation import clean, nesting
from gradmass.rewards.maths.numbers import read_number, same_number
from gradmass.types import shortened

MAX_LENGTH = 2000
"""Characters of the longest answer, and gold, that is read."""
MAX_NESTING = 25
"""Brackets and braces within each other that are read: the parser's time grows with them."""
Judgement = tuple[str, str]
"""Outcome and detail of a verdict."""


def shortcut(gold: str, answer: str) -> Judgement | None:
    """The verdict where both are plain numbers, without units; None where more is needed."""
    if max(len(gold), len(answer)) > MAX_LENGTH:
        return None
    first, second = read_number(clean(gold)), read_number(clean(answer))
    if first is None or second is None:
        return None
    return _judgement(same_number(first, second), answer)


def _judgement(is_same: bool, answer: str) -> Judgement:
    return ("right" if is_same else "wrong"), shortened(" ".join(answer.split()))


def judge(gold: str, answer: str) -> Generator[str, None, Judgement]:
    """Yield ``"gold"`` once the gold is understood; return outcome and detail.

    Args:
        gold: The right answer, as a data set stores it.
        answer: What was extracted from a completion.
    """
    # SymPy is imported by the workers alone.
    from gradmass.rewards.maths.algebra import UnreadableError
    from gradmass.rewards.maths.compare import same_form
    from gradmass.rewards.maths.forms import read

    for name, text, outcome in (("gold", gold, "error"), ("answer", answer, "unparsed")):
        if len(text) > MAX_LENGTH:
            return outcome, f"{name} of {len(text):,} characters: too long, {MAX_LENGTH:,} are read"
        if (depth := nesting(text)) > MAX_NESTING:
            return outcome, f"{name} nested {depth} deep: too deep, {MAX_NESTING} are read"
    try:
        gold_form = _read_gold(gold)
    except UnreadableError as error:
        return "error", f"the gold cannot be read: {error}"
    yield "gold"
    if _squeezed(gold) == _squeezed(answer):
        return "right", shortened(" ".join(answer.split()))
    try:
        return _judgement(same_form(gold_form, read(answer)), answer)
    except UnreadableError as error:
        return "unparsed", str(error)
    except RecursionError:
        return "unparsed", "nested too deep"


def _squeezed(text: str) -> str:
    return re.sub(r"(?<!\d) | (?!\d)", "", clean(text))  # 1 2 is not 12


@functools.lru_cache(maxsize=64)
def _read_gold(gold: str) -> Any:
    """What a gold is, worked out; raises UnreadableError."""
    from gradmass.rewards.maths.algebra import UnreadableError
    from gradmass.rewards.maths.compare import check
    from gradmass.rewards.maths.forms import read

    try:
        form = read(gold)
        check(form)
    except RecursionError as error:
        raise UnreadableError("nested too deep") from error
    return form


def handle(request: Any) -> Generator[str, None, Any]:
    """Judge ``[gold, answer]`` in a worker."""
    gold, answer = request
    return (yield from judge(gold, answer))


def warm_up() -> None:
    """Import and use all that judging needs, once before workers are forked."""
    logging.disable(logging.CRITICAL)  # math-verify warns that its own timeouts are off
    warnings.simplefilter("ignore")
    for gold, answer in (
        (r"\frac{\sqrt{3}}{2}", r"\sqrt{3}/2"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"(-\infty, 3]", r"x \le 3"),
        (r"\{1, 2\}", "1, 2"),
        ("y = 2x + 3", "2x - y + 3 = 0"),
        (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \end{pmatrix}"),
        (r"2\sin(x)\cos(x) + e^{-x}", r"\sin(2x) + \log_{2} 3 + n! + |x|"),
    ):
        for _ in judge(gold, answer):
            pass
