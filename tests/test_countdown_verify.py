"""What Countdown's verifier calls right, against a regular expression and Python's fractions."""

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmass.rewards import Outcome
from gradmass.tasks import Problem
from gradmass.tasks.countdown import Content, Countdown


def problem_of(numbers: tuple[int, ...], target: int) -> Problem:
    text = f"{','.join(map(str, numbers))}={target}"
    return Problem(id=text, prompt=f"{text}:", data=Content(numbers, target))


# Oracles. The grammar is a regular expression that folds innermost pairs until nothing changes;
# values are Python's own, of fractions.

OPERAND = r"(?:0|[1-9][0-9]*|x)"
PAIR = re.compile(rf"\({OPERAND}[-+*/]{OPERAND}\)")


def is_grammatical(text: str) -> bool:
    if not set(text) <= set("0123456789+-*/()"):
        return False
    while (folded := PAIR.sub("x", text)) != text:
        text = folded
    return re.fullmatch(rf"{OPERAND}[-+*/]{OPERAND}", text) is not None


def value_of(expression: str) -> Fraction | None:
    try:
        return eval(re.sub(r"[0-9]+", r"Fraction(\g<0>)", expression), {"Fraction": Fraction})
    except ZeroDivisionError:
        return None


def judge(numbers: tuple[int, ...], target: int, text: str) -> Outcome:
    if not is_grammatical(text):
        return Outcome.UNPARSED
    uses_numbers = sorted(map(int, re.findall("[0-9]+", text))) == sorted(numbers)
    return Outcome.RIGHT if uses_numbers and value_of(text) == target else Outcome.WRONG


@pytest.mark.parametrize("content", [((2, 3, 4), 14), ((1, 3, 15, 16), 63)])
def test_verify_judges_every_edit_of_a_solution_like_the_oracle(content):
    task, problem = Countdown(), problem_of(*content)
    edits = set()
    for text in task.solutions(problem):
        for i in range(len(text) + 1):
            edits.add(text[:i] + text[i + 1 :])
            for character in "0125+-/() ":
                edits.add(text[:i] + character + text[i:])
                edits.add(text[:i] + character + text[i + 1 :])
    assert len(edits) > 1_000
    for text in edits:
        assert task.verify(problem, text).outcome is judge(*content, text), text


RIGHT, WRONG, UNPARSED = Outcome.RIGHT, Outcome.WRONG, Outcome.UNPARSED


@pytest.mark.parametrize(
    ("completion", "outcome"),
    [
        ("(3+4)*2", RIGHT),
        ("2*(3+4)", RIGHT),
        ("2*(4+3)", RIGHT),
        # Another value, or other numbers.
        ("(3*4)-2", WRONG),
        ("2+(3*4)", RIGHT),
        ("7*2", WRONG),
        ("(7*4)/2", WRONG),
        ("(2+3)+(4+5)", WRONG),
        ("((3+4)*2)/1", WRONG),
        ("((3+4)*2)+0", WRONG),
        ("(3+4)+(3+4)", WRONG),
        ("((2*3)+4)+4", WRONG),
        ("14-(2-2)", WRONG),
        ("2/(3-3)", WRONG),
        ("(3+4)*23", WRONG),
        ("0/0", WRONG),
        ("9" * 5_000 + "+3", WRONG),
        ("(2+3)+" + "4" * 5_000, WRONG),
        ("(" * 10_000 + "1" + "+1)" * 10_000 + "+1", WRONG),
        # Not the grammar.
        ("", UNPARSED),
        ("14", UNPARSED),
        ("2", UNPARSED),
        ("(2)", UNPARSED),
        ("()", UNPARSED),
        ("+", UNPARSED),
        ("2+", UNPARSED),
        ("*2", UNPARSED),
        ("2+3*4", UNPARSED),
        ("3*4+2", UNPARSED),
        ("((3+4)*2)", UNPARSED),
        ("(((3+4))*2)", UNPARSED),
        ("((3+4))*2", UNPARSED),
        ("(3+4)*(2)", UNPARSED),
        ("(3)+(4*2)", UNPARSED),
        ("(3+4)2", UNPARSED),
        ("2(3+4)", UNPARSED),
        ("(3+4)(2+0)", UNPARSED),
        ("(3+4)*2)", UNPARSED),
        ("((3+4)*2", UNPARSED),
        ("(3+4*2", UNPARSED),
        (")3+4(*2", UNPARSED),
        ("(3+4)*2=14", UNPARSED),
        ("(3+4)*2,", UNPARSED),
        ("(3+4)*2:", UNPARSED),
        # Signs.
        ("-2+(3*4)", UNPARSED),
        ("+2+(3*4)", UNPARSED),
        ("(-3+4)*2", UNPARSED),
        ("2*(3+-4)", UNPARSED),
        ("2*(3--4)", UNPARSED),
        ("2*(3+(-4))", UNPARSED),
        ("(3+4)+-2", UNPARSED),
        # Other operators and ways to write a number.
        ("(3+4)**2", UNPARSED),
        ("(3+4)//2", UNPARSED),
        ("(3+4)%2", UNPARSED),
        ("(3+4)^2", UNPARSED),
        ("(3+4)×2", UNPARSED),
        ("(3+4)−2", UNPARSED),
        ("03+4", UNPARSED),
        ("(03+4)*2", UNPARSED),
        ("(3+4)*002", UNPARSED),
        ("00+0", UNPARSED),
        ("(3.0+4)*2", UNPARSED),
        ("(3+4)*2.", UNPARSED),
        ("1e5+2", UNPARSED),
        ("(3e0+4)*2", UNPARSED),
        ("(0x3+4)*2", UNPARSED),
        ("(3_0+4)*2", UNPARSED),
        ("(3j+4)*2", UNPARSED),
        ("[3+4]*2", UNPARSED),
        # Digits and spaces that are not ASCII, and spaces that are.
        ("(٣+4)*2", UNPARSED),
        ("(3+4)*２", UNPARSED),
        ("(3+4)*2２", UNPARSED),
        ("(3٣+4)*2", UNPARSED),
        ("(3+4)*²", UNPARSED),
        ("(3+4)*Ⅱ", UNPARSED),
        ("(三+4)*2", UNPARSED),
        (" (3+4)*2", UNPARSED),
        ("(3+4)*2 ", UNPARSED),
        ("(3 + 4)*2", UNPARSED),
        ("(3+4)*2\n", UNPARSED),
        ("\n(3+4)*2", UNPARSED),
        ("(3+4)*2\r", UNPARSED),
        ("(3+4)*2\t", UNPARSED),
        ("(3+4)*2\x00", UNPARSED),
        ("(3+4)\u00a0*2", UNPARSED),
        ("(3+4)*2\u200b", UNPARSED),
        ("\ufeff(3+4)*2", UNPARSED),
        ("(3+4)*2\ud800", UNPARSED),
        ("(3+4)*2</s>", UNPARSED),
        # Long.
        ("9" * 5_000, UNPARSED),
        ("0" * 5_000 + "+3", UNPARSED),
        ("(" * 10_000, UNPARSED),
        (")" * 10_000, UNPARSED),
        ("(" * 10_000 + "3+4" + ")" * 10_000, UNPARSED),
        ("2+" * 10_000, UNPARSED),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_verify_of_right_wrong_and_malformed_answers(completion, outcome):
    assert Countdown().verify(problem_of((2, 3, 4), 14), completion).outcome is outcome


@pytest.mark.parametrize(
    ("numbers", "target", "completion"),
    [
        ((1, 2, 2), 1, "1/(2-2)"),
        ((1, 2, 2), 1, "(1/(2-2))*1"),
        ((2, 2, 3, 3), 1, "(2-2)/(3-3)"),
        ((1, 1, 2, 2), 1, "((1-1)*2)/(2-2)"),
        ((1, 1, 1, 2), 1, "(1/(1-1))-(2*1)"),
    ],
)
def test_a_division_by_zero_is_wrong_and_no_crash(numbers, target, completion):
    assert Countdown().verify(problem_of(numbers, target), completion).outcome is WRONG


def test_a_fraction_on_the_way_is_exact():
    # In floats (1/49)*49 is not 1.
    task = Countdown()
    assert task.verify(problem_of((1, 3, 4, 6), 24), "6/(1-(3/4))").is_right
    assert task.verify(problem_of((1, 1, 49, 49), 1), "((1/49)*49)*1").is_right


def test_a_verdict_says_why():
    task, problem = Countdown(), problem_of((2, 3, 4), 14)
    assert task.verify(problem, "(2/3)*4").detail == "equals 8/3"
    assert task.verify(problem, "7*2").detail == "does not use each number exactly once"
    assert task.verify(problem, "").detail == "not a fully parenthesised expression"
    assert task.verify(problem_of((1, 2, 2), 1), "1/(2-2)").detail == "divides by zero"


EXPRESSIONS = st.recursive(
    st.sampled_from(["2", "3", "4", "0", "12", "02"]),
    lambda parts: st.builds("({}{}{})".format, parts, st.sampled_from("+-*/"), parts),
    max_leaves=5,
)
TEXTS = st.one_of(
    EXPRESSIONS,
    EXPRESSIONS.map(lambda text: text[1:-1]),
    st.text("234+-*/()", max_size=12),
    st.text(max_size=20),
    st.binary(max_size=40).map(lambda data: data.decode("latin-1")),
    st.binary(max_size=40).map(lambda data: data.decode("utf-8", errors="surrogateescape")),
)


@settings(derandomize=True, deadline=None, database=None, max_examples=500)
@given(TEXTS)
def test_verify_judges_any_text_like_the_oracle(text):
    assert Countdown().verify(problem_of((2, 3, 4), 14), text).outcome is judge((2, 3, 4), 14, text)


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(st.permutations(["2", "3", "4"]), st.lists(st.sampled_from("+-*/"), min_size=2, max_size=2))
def test_verify_judges_every_expression_of_the_numbers_like_the_oracle(order, operators):
    a, b, c = order
    f, g = operators
    for text in (f"({a}{f}{b}){g}{c}", f"{a}{f}({b}{g}{c})"):
        outcome = Countdown().verify(problem_of((2, 3, 4), 14), text).outcome
        assert outcome is judge((2, 3, 4), 14, text)
