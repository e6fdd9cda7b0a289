"""Answers that math-verify or a trainer judged wrongly in the field, and others of their kind.

The sources are in the ids: hf is an issue of huggingface/Math-Verify, trl of huggingface/trl, nemo
of NVIDIA-NeMo. A pair marked True is the gold answer, one marked False is not.
"""

import numpy as np
import pytest

from gradmass.rewards import Outcome, Verdict
from gradmass.rewards.extract import extract
from gradmass.rewards.maths import MathsVerifier
from gradmass.weights import WEIGHTS

CASES = {
    "tiny numbers are not all equal, hf 14": [
        (r"$\frac{1}{2004!}$", r"$\frac{1}{2006!}$", False),
        (r"$\frac{1}{2004!}$", r"$\frac{2005}{2005!}$", True),
        (r"$\frac{1}{2^{99}}$", r"$\frac{1}{2^{98}}$", False),
        (r"$\frac{1}{2^{99}}$", r"$\frac{2}{2^{100}}$", True),
        (r"$\frac{2^{2005}+1}{3 \cdot 2^{2006}}$", r"$\frac{1}{3 \cdot 2^{2006}}$", False),
        (r"10^{-12}\sqrt{2}", r"10^{-12}\sqrt{3}", False),
        (r"\frac{\pi}{10^{50}}", r"\frac{2\pi}{2\cdot 10^{50}}", True),
        (r"\sqrt{2^{400}+1}", r"2^{200}", False),
        ("1e-40", "2e-40", False),
        (r"\{10^{-20}, 1\}", r"\{10^{-21}, 1\}", False),
        (r"(10^{-20}, 1)", r"(10^{-21}, 1)", False),
        (r"[0, 10^{-20}]", r"[0, 10^{-21}]", False),
    ],
    "sequences are equal member by member, hf 14": [
        (r"$1, 2, \ldots, n$", r"$1, 3, 5, \ldots, 2n-1$", False),
        (r"$1, 2, \ldots, n$", r"$1, 2, \dots, n$", True),
        (r"1, 2, \ldots, n", r"2, 1, \ldots, n", False),
    ],
    "equations without formula marks, hf 60": [
        ("3*x-1*y+13=0", "3x + 4y + 14=0", False),
        ("3*x-1*y+13=0", "y = 3x + 13", True),
        ("0", "3x + 4y + 14=0", False),
    ],
    "bare LaTeX, hf 56 and 29": [
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \frac{\pi}{2})", True),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \frac{\pi}{3})", False),
        (r"\dfrac{9}{7}", r"\boxed{\frac{9}{7}}", True),
        (r"\sqrt{17}", r"\boxed{\sqrt{17}}", True),
    ],
    "one part of several is not enough, hf 47": [
        ("1331 and 1728", "1728", False),
        ("1331 and 1728", "1331", False),
        ("1331 and 1728", "1728 and 1331", True),
        (r"1331 \text{ or } 1728", "1331, 1728", True),
    ],
    "equal for positive variables, hf 64": [
        (r"$\sqrt{1/n}$", r"$\frac{1}{\sqrt{n}}$", True),
        (r"\sqrt{a^2 b}", r"a\sqrt{b}", False),  # not for a below 0
        (r"\ln\frac{x}{y}", r"\ln x - \ln y", True),
    ],
    "half-lines and intervals as inequalities, hf 49": [
        (r"\boxed{(-\infty, 3]}", r"\boxed{x \le 3}", True),
        (r"\boxed{(-\infty, 3]}", r"\boxed{x < 3}", False),
        (r"x \le 3", r"(-\infty, 3]", True),
        (r"[1, 2)", r"1 \le x < 2", True),
        (r"[1, 2)", r"1 \le x \le 2", False),
    ],
    "the gold says tuple, set or list, OpenThoughts-Agent 129": [
        (r"\boxed{(1,2)}", r"\boxed{\{1,2\}}", False),
        (r"\boxed{(-2,3)}", r"\boxed{-2,3}", False),
        (r"\boxed{\{1,2\}}", r"\boxed{(1,2)}", False),
        (r"\boxed{\{1,2\}}", r"\boxed{2,1}", True),
        (r"\boxed{(1,2)}", r"\boxed{(2,1)}", False),
    ],
    "the last box counts, hf 57": [
        (r"\boxed{5}", r"\boxed{7} no: \boxed{5}", True),
        (r"\boxed{5}", r"\boxed{5} no: \boxed{7}", False),
        (r"\boxed{5}", r"\boxed{7}" + " well" * 200 + r" \boxed{5}", True),
        (r"\boxed{5}", r"\boxed{7}, \boxed{5}", False),  # both at once is no answer
    ],
    "percent is a unit that the gold declares, latex2sympy2_extended 3": [
        (r"\boxed{50\%}", r"\boxed{50}", True),
        (r"\boxed{50\%}", r"\boxed{0.5}", False),
        ("0.5", r"50\%", True),
        ("0.5", "50", False),
        ("0.5", r"0.5\%", False),
        ("50", r"50\%", True),
    ],
    "leading zeros, nemo-skills 1074 and verl 2446": [
        (r"\boxed{025}", r"\boxed{25}", True),
        ("25", "025", True),
        ("025", "250", False),
    ],
    "scientific notation, hf 14": [
        (r"\boxed{1e-10}", r"\boxed{0}", False),
        (r"\boxed{1e-10}", r"\boxed{10^{-10}}", True),
        (r"\boxed{1e-10}", r"\boxed{1 \times 10^{-10}}", True),
        ("2.5E3", "2500", True),
    ],
    "golds that TRL's reward cannot read, hf 70 and 27": [
        (r"\dfrac{9}{7}", r"\boxed{\frac{9}{7}}", True),
        ("Yes", r"\boxed{Yes}", True),
        ("C", r"\boxed{\text{(C)}}", True),
        ("C", r"\boxed{\text{(B)}}", False),
        ("Yes", r"\boxed{eYs}", False),
    ],
    "rounding to six significant digits, hf 20": [
        ("1/3", "0.333333", True),
        ("1/3", "0.3333", False),
        ("2*pi", "6.283185", True),
        ("pi", "3.14", False),
        ("pi", "3.141594", False),
        ("1234567", "1234567.4", False),
        (r"\frac{1}{7} \cdot 10^{-9}", r"1.42857 \times 10^{-10}", True),
        (r"\frac{1}{7} \cdot 10^{-9}", r"1.42858 \times 10^{-10}", False),
    ],
}


@pytest.mark.parametrize("cases", CASES.values(), ids=list(CASES))
def test_answers_misjudged_in_the_field_are_judged_as_they_should(outcomes, cases):
    found = outcomes([case[:2] for case in cases])
    expected = [is_right for *_, is_right in cases]
    assert [outcome == "right" for outcome in found] == expected


@pytest.fixture(scope="module")
def line_verifier():
    with MathsVerifier(extraction="final_answer_line") as made:
        yield made


def test_bold_around_the_answer_is_dropped(line_verifier):  # hf 76
    text = "... 437 + 468 = 905 ... is **73**.\n\nFinal Answer: **73**"
    (verdict,) = line_verifier.verify(["73"], [text])
    assert verdict.is_right


def test_a_strict_and_a_lenient_rule_differ_and_say_so(line_verifier):  # hf 56
    golds, texts = ["5", "5"], ["The answer is 5", "The answer is $5$"]
    with MathsVerifier(extraction="last_math") as strict:
        first, second = strict.verify(golds, texts)
    assert (first.outcome, second.outcome) == (Outcome.UNPARSED, Outcome.RIGHT)
    assert first.detail == "no answer by last_math; by final_answer_line it is right: 5"
    assert [v.outcome for v in line_verifier.verify(golds, texts)] == [Outcome.RIGHT] * 2


def test_one_broken_answer_moves_no_other():  # nemo-rl 3635
    golds = ["1", "2", "3"]
    texts = [r"\boxed{1}", "I don't know.", r"\boxed{3}"]
    with MathsVerifier() as verifier:
        verdicts = verifier.verify(golds, texts)
    assert [str(verdict.outcome) for verdict in verdicts] == ["right", "unparsed", "right"]
    assert [extract(text, "last_box") for text in texts] == ["1", None, "3"]
    assert extract(r"\boxed{137}", "last_box") == "137"


def test_an_unclosed_think_block_holds_no_answer():  # trl 4563
    text = r"<think>maybe \boxed{5}"
    found = {}
    for thinking in ("skip", "require", "count"):
        with MathsVerifier(thinking=thinking) as verifier:
            (verdict,) = verifier.verify(["5"], [text])
        found[thinking] = str(verdict.outcome)
    assert found == {"skip": "unparsed", "require": "unparsed", "count": "right"}


def test_failures_of_the_machinery_stay_out_of_the_baseline():  # nemo-rl 431
    outcomes = [Outcome.RIGHT, Outcome.ERROR, Outcome.WRONG, Outcome.ERROR]
    verdicts = [Verdict(outcome) for outcome in outcomes]
    rewards = np.array([[float(verdict.is_right) for verdict in verdicts]])
    mask = np.array([[verdict.is_scorable for verdict in verdicts]])
    weights, _ = WEIGHTS["grpo"]().update(rewards, {}, mask=mask)
    assert weights.tolist() == [[0.5, 0.0, -0.5, 0.0]]
