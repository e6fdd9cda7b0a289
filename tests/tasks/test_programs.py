"""Programs: its grammar and right answers against every string there is, judged by Python."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmass.rewards import Outcome
from gradmass.tasks import TASKS
from gradmass.tasks.programs import HIDDEN, SHOWN, Programs, is_program
from gradmass.types import UsageError

LEAVES = "x123456789"


def pairs(lefts, rights):
    return [f"{a}{op}{b}" for a in lefts for op in "+-*" for b in rights]


TWO = pairs(LEAVES, LEAVES)
IN_BRACKETS = [f"({text})" for text in TWO]
EVERY_PROGRAM = [*TWO, *pairs(LEAVES, IN_BRACKETS), *pairs(IN_BRACKETS, LEAVES)]
"""Every program of at most three leaves."""


def values(text, inputs):
    return tuple(eval(text, {"x": x}) for x in inputs)


@pytest.fixture(scope="module")
def task():
    return Programs()


@pytest.fixture(scope="module")
def problems(task):
    return {split: list(task.generate(split)) for split in task.splits}


def test_the_problems_are_all_functions_that_are_not_constant(problems):
    functions = {values(text, SHOWN + HIDDEN) for text in EVERY_PROGRAM}
    wanted = {f for f in functions if len(set(f)) > 1}
    found = [problem.data for split in problems.values() for problem in split]
    assert len(found) == len(set(found))
    assert set(found) == wanted


def test_the_examples_decide_which_function_is_meant(problems):
    prompts = [problem.prompt for split in problems.values() for problem in split]
    assert len(set(prompts)) == len(prompts)


def test_a_prompt_shows_the_function_at_the_shown_inputs(problems):
    for problem in problems["train"][:50]:
        shown = dict(re.findall(r"(\d+):(-?\d+)", problem.prompt))
        assert {int(x): int(y) for x, y in shown.items()} == dict(
            zip(SHOWN, problem.data, strict=False)
        )


def test_the_right_answers_are_all_programs_that_agree_with_the_tests(task, problems):
    programs = {}
    for text in EVERY_PROGRAM:
        programs.setdefault(values(text, SHOWN + HIDDEN), []).append(text)
    for problem in itertools.chain(*problems.values()):
        assert list(task.solutions(problem)) == sorted(programs[problem.data])


def test_the_split_of_a_function_does_not_depend_on_the_seed():
    first, second = (
        {problem.id for problem in Programs(seed=seed).generate("test")} for seed in (0, 1)
    )
    assert first == second
    orders = [[p.id for p in Programs(seed=seed).generate("test")] for seed in (0, 1)]
    assert orders[0] != orders[1]


def test_four_leaves_hold_every_function_of_three():
    small, large = (
        {p.id for s in ("train", "test") for p in Programs(max_leaves=n).generate(s)}
        for n in (3, 4)
    )
    assert small < large


@given(st.text(alphabet="x129+-*() 0/", max_size=14))
def test_only_the_grammar_is_read(text):
    assert is_program(text, 3) == (text in EVERY_PROGRAM)


@given(st.sampled_from(EVERY_PROGRAM), st.integers(0, 12), st.sampled_from("x1+( 0"))
def test_a_changed_program_is_read_only_if_it_is_another(text, place, letter):
    changed = text[:place] + letter + text[place + 1 :]
    assert is_program(changed, 3) == (changed in EVERY_PROGRAM)


def test_the_sandbox_judges_every_program_by_the_hidden_tests(task, problems):
    chosen = problems["test"][:12]
    asked = [problem for problem in chosen for _ in range(4)]
    answers = []
    for problem in chosen:
        right = task.solutions(problem)[-1]
        answers += [right, "x+1", f"({right})", right]
    verdicts = task.verify_batch(asked, answers)
    for problem, answer, verdict in zip(asked, answers, verdicts, strict=True):
        if answer not in EVERY_PROGRAM:
            assert verdict.outcome is Outcome.UNPARSED
            continue
        is_right = values(answer, HIDDEN) == problem.data[len(SHOWN) :]
        assert verdict.outcome is (Outcome.RIGHT if is_right else Outcome.WRONG)
        assert verdict.num_tests == len(HIDDEN)


def test_demonstrations_are_right_programs_of_the_split(task, problems):
    ids = {problem.id for problem in problems["train"]}
    for problem, text in itertools.islice(task.demonstrations("train"), 600):
        assert problem.id in ids
        assert values(text, SHOWN + HIDDEN) == problem.data


@pytest.mark.parametrize("leaves", [1, 5])
def test_sizes_that_cannot_be_listed_are_refused(leaves):
    with pytest.raises(UsageError, match=rf"2 <= max_leaves <= 4, got {leaves}"):
        TASKS["programs"](max_leaves=leaves)
