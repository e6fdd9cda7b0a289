"""Which part of a completion is the answer."""

import time

import pytest

from gradmass.rewards.extract import RULES, THINKING, check_rule, extract
from gradmass.types import UsageError

LAST_BOX = {
    r"so \boxed{5}.": "5",
    r"\boxed{7} no: \boxed{5}": "5",
    r"\boxed{\frac{1}{2}}": r"\frac{1}{2}",
    r"\boxed{\{1, 2\}}": r"\{1, 2\}",
    r"\boxed{[0, 1\}}": r"[0, 1\}",
    r"\boxed {5}": "5",
    r"\fbox{5}": "5",
    r"\boxed{\boxed{5}}": "5",
    r"\boxed{ 5 }": "5",
    r"A right angle has $\boxed 90^\circ$.": r"90^\circ",
    "\\boxed 5\nand more": "5",
    r"\boxed{1} and \boxed{2}": "1, 2",
    r"\boxed{1}, \boxed{2}, \text{ or } \boxed{3}": "1, 2, 3",
    r"$\boxed{1}$ and $\boxed{2}$": "1, 2",
    r"\boxed{1}\boxed{2}": "2",
    r"\boxed{1} so \boxed{2}": "2",
    "\\boxed{a\nb}": "a\nb",
    r"so \\boxed{5}": "5",  # escaped twice on its way through JSON
    r"a \\\boxed{5}": "5",  # a line break before it
    r"\boxed{}": None,
    r"\boxed{5": None,
    r"\boxed{7} no: \boxed{\frac{1}{": None,
    "the answer is 5": None,
    "": None,
    r"\boxedeq{5}": None,
}


@pytest.mark.parametrize(("text", "answer"), LAST_BOX.items())
def test_the_last_box_is_opened(text, answer):
    assert extract(text, "last_box") == answer


LINES = {
    "#### 31": "31",
    "####31": "31",
    "a\n#### 2,400\n": "2,400",
    "Answer: 12": "12",
    "**Answer:** 12": "12",
    "**Final Answer**: 73": "73",
    "Final Answer: **73**": "73",
    "## Final Answer\n\n42": "42",
    "The answer is 5.": "5",
    "The answer is $x = 2.5$. I hope it is correct.": "$x = 2.5$",
    "the final answer is: \\(7\\)": "\\(7\\)",
    "Final Answer: The final answer is $\\boxed{9}$. I hope": "9",
    "Answer: 1\nAnswer: 2": "2",
    "Answer: 1\nthat is all": "1",
    "ANSWER = 3": "3",
    "no such line": None,
    "Answer:": None,
    "answers are many": None,
}


@pytest.mark.parametrize(("text", "answer"), LINES.items())
def test_the_final_answer_line_is_read(text, answer):
    assert extract(text, "final_answer_line") == answer


NUMBERS = {
    "it is 5": "5",
    "from 3 to -7.": "-7",
    "10-5 = 5 or 10-5": "5",
    "costs $1,200.50 in all": "$1,200.50",
    "about 45%": "45%",
    "3/4 of it": "3/4",
    "1.5e-3 m": "1.5e-3",
    "see .5": ".5",
    "1, 2, 3,": "3",
    "none": None,
}


@pytest.mark.parametrize(("text", "answer"), NUMBERS.items())
def test_the_last_number_is_found(text, answer):
    assert extract(text, "last_number") == answer


MATHS = {
    r"$x$ is $5$": "5",
    r"$$\frac12$$ it is": r"\frac12",
    r"so \(a\) and \[b\]": "b",
    r"$5$ or \boxed{6}": "6",
    r"costs \$5": None,
    r"$5$ and a lone $": "5",
    "5": None,
}


@pytest.mark.parametrize(("text", "answer"), MATHS.items())
def test_the_last_formula_is_found(text, answer):
    assert extract(text, "last_math") == answer


def test_without_a_box_the_whole_text_may_be_the_answer():
    assert extract(" 5 ", "last_box_or_all") == "5"
    assert extract(r"so \boxed{5}", "last_box_or_all") == "5"
    assert extract(r"so \boxed{5", "last_box_or_all") is None


@pytest.mark.parametrize(
    ("text", "skip", "require", "count"),
    [
        (r"<think>\boxed{1}</think>\boxed{2}", "2", "2", "2"),
        (r"<think>\boxed{1}</think> so it is", None, None, "1"),
        (r"<think>\boxed{1}", None, None, "1"),
        (r"\boxed{1}</think>\boxed{2}", "2", "2", "2"),
        (r"\boxed{1}</think> so", None, None, "1"),
        (r"\boxed{1}", "1", None, "1"),
        (r"<think>a</think>\boxed{1}<think>\boxed{2}", "1", "1", "2"),
    ],
)
def test_thinking_is_skipped_required_or_counted(text, skip, require, count):
    assert [extract(text, "last_box", how) for how in THINKING] == [skip, require, count]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 100_000,
        r"\boxed{" * 50_000 + "}" * 50_000,
        r"\boxed " * 100_000,
        r"\boxed{1}," * 100_000,
        "{" * 100_000,
        "answer " * 100_000,
        "answer is\n" * 100_000,
        "final " * 100_000,
        "$" * 100_000,
        "\\" * 100_001,
        " " * 100_000,
        "1," * 100_000,
        "-1e" * 100_000,
        "9" * 100_000,
        "<think>" * 100_000,
        "**" * 100_000,
    ],
    ids=lambda text: text[:8],
)
def test_extraction_takes_linear_time(rule, text):
    start = time.process_time()
    extract(text, rule)
    assert time.process_time() - start < 3


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match="no extraction rule 'first_box': take one of last_box,"):
        check_rule("first_box", "skip")
    with pytest.raises(UsageError, match="thinking cannot be 'maybe': take one of skip, require"):
        check_rule("last_box", "maybe")
