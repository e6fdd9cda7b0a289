"""Golds of public data sets, in their own columns: right for their solutions, wrong for others."""

import json
from pathlib import Path

import pytest

from gradmass.rewards import Outcome
from gradmass.rewards.extract import extract
from gradmass.rewards.maths import MathsVerifier

FOLDER = Path(__file__).parent / "fixtures"


def rows(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    return json.loads(text) if name.endswith(".json") else list(map(json.loads, text.splitlines()))


def perturbed(answer):
    """Another answer of the same kind."""
    for digit in reversed(answer):
        if digit.isdigit():
            at = answer.rindex(digit)
            return answer[:at] + str((int(digit) + 1) % 10) + answer[at + 1 :]
    return answer.replace("Ana", "Ben")


def check(rule, triples):
    """Judge solutions, and the same solutions with the answer's last occurrence perturbed."""
    golds = [gold for gold, _, _ in triples]
    good = [solution for _, solution, _ in triples]
    bad = []
    for _, solution, answer in triples:
        before, _, after = solution.rpartition(answer)
        bad.append(before + perturbed(answer) + after)
    assert all(a != b for a, b in zip(good, bad, strict=True))
    with MathsVerifier(extraction=rule) as verifier:
        assert [str(v.outcome) for v in verifier.verify(golds, good)] == ["right"] * len(golds)
        assert [str(v.outcome) for v in verifier.verify(golds, bad)] == ["wrong"] * len(golds)


def test_math_500():
    check("last_box", [(r["answer"], r["solution"], r["answer"]) for r in rows("math500.jsonl")])


def test_math_whose_answer_is_the_last_box_of_the_solution():
    golds = [extract(row["solution"], "last_box") for row in rows("math.jsonl")]
    assert golds == [r"\frac{3}{4}", r"\{-2,2\}", r"90^\circ"]
    solutions = [row["solution"] for row in rows("math.jsonl")]
    check("last_box", list(zip(golds, solutions, golds, strict=True)))


@pytest.mark.parametrize("name", ["gsm8k.jsonl", "gsm8k_socratic.jsonl"])
def test_gsm8k_whose_answer_follows_a_mark(name):
    answers = [row["answer"] for row in rows(name)]
    golds = [answer.rpartition("#### ")[2] for answer in answers]
    check("final_answer_line", list(zip(golds, answers, golds, strict=True)))
    check("last_number", list(zip(golds, answers, golds, strict=True)))


def test_aime():
    golds = [row["answer"] for row in rows("aime25.jsonl")]
    assert golds == ["343", "3"]
    boxes = [rf"so the answer is $\boxed{{{int(gold):03d}}}$" for gold in golds]
    check("last_box", [(g, b, f"{int(g):03d}") for g, b in zip(golds, boxes, strict=True)])


def test_deepscaler_with_a_row_without_answer():
    golds = [row["answer"] for row in rows("deepscaler.json")]
    boxes = [row["solution"] or rf"\boxed{{{row['answer']}}}" for row in rows("deepscaler.json")]
    check("last_box", list(zip(golds, boxes, golds, strict=True))[:2])
    with MathsVerifier() as verifier:
        (verdict,) = verifier.verify(golds[2:], boxes[2:])
    assert verdict.outcome is Outcome.ERROR
    assert verdict.detail == "no answer in the gold ''"
