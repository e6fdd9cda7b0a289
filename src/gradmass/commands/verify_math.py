"""``gradmass verify math``: is an answer the gold answer, and why?"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from gradmass.commands.arguments import parse
from gradmass.rewards.maths import MathsVerifier
from gradmass.rewards.verdict import Outcome
from gradmass.types import UsageError


@dataclass(frozen=True)
class Arguments:
    """Judge one mathematical answer. Exits with 0 if it is right, 1 if not, 2 on bad input."""

    gold: Annotated[str, tyro.conf.arg(metavar="GOLD")]
    """The right answer, bare or in a box. Write --gold=-5 where it starts with a minus."""
    answer: Annotated[str | None, tyro.conf.arg(metavar="ANSWER")] = None
    """The answer, or a completion with the answer in a box; read from the input if left out."""
    extraction: str = "last_box_or_all"
    """Where the answer is: last_box, last_box_or_all, last_math, final_answer_line, last_number."""
    json: bool = False
    """Print JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the command; returns 0 where the answer is right, else 1."""
    arguments = parse(Arguments, "verify math", argv)
    if arguments.answer is None and sys.stdin.isatty():
        raise UsageError(
            "missing ANSWER: give --answer, or pipe it in (gradmass verify math --help)"
        )
    answer = sys.stdin.read() if arguments.answer is None else arguments.answer
    if arguments.answer is None and not answer.strip():
        raise UsageError("missing ANSWER: the input is empty (gradmass verify math --help)")
    with MathsVerifier(num_workers=1, extraction=arguments.extraction) as verifier:
        (verdict,) = verifier.verify([arguments.gold], [answer])
    if verdict.outcome is Outcome.ERROR:
        raise UsageError(verdict.detail)
    if arguments.json:
        entry = {
            "verdict": str(verdict.outcome),
            "detail": verdict.detail,
            "seconds": verdict.seconds,
            "passed": verdict.num_passed,
            "total": verdict.num_tests,
        }
        print(json.dumps(entry))
    else:
        print(f"{verdict.outcome}: {verdict.detail} ({verdict.seconds:.3f} s)")
    return 0 if verdict.is_right else 1
