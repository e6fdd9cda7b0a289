"""Countdown: its splits, and its solution sets against brute force."""

import dataclasses
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
from fractions import Fraction

import pytest

from gradmass.tasks import Problem
from gradmass.tasks.countdown import Content, Countdown
from gradmass.types import UsageError

NUM_PROBLEMS = 2_000
TINY = Countdown(min_numbers=2, max_numbers=2, max_number=2)
"""Seven contents in all: 1,1=1 1,1=2 1,2=1 1,2=2 1,2=3 2,2=1 2,2=4."""


def problem_of(numbers: tuple[int, ...], target: int) -> Problem:
    text = f"{','.join(map(str, numbers))}={target}"
    return Problem(id=text, prompt=f"{text}:", data=Content(numbers, target))


# The oracle: all trees over all orders of the numbers.


def all_trees(sequence: tuple[int, ...]) -> list[tuple[str, Fraction]]:
    """Each way to put operators and parentheses between numbers in the given order."""
    if len(sequence) == 1:
        return [(str(sequence[0]), Fraction(sequence[0]))]
    found = []
    for cut in range(1, len(sequence)):
        for left, a in all_trees(sequence[:cut]):
            for right, b in all_trees(sequence[cut:]):
                found.append((f"({left}+{right})", a + b))
                found.append((f"({left}-{right})", a - b))
                found.append((f"({left}*{right})", a * b))
                if b != 0:
                    found.append((f"({left}/{right})", a / b))
    return found


def all_values(numbers: tuple[int, ...]) -> list[tuple[str, Fraction]]:
    return [
        (text[1:-1], value)
        for order in set(itertools.permutations(numbers))
        for text, value in all_trees(order)
    ]


def brute_solutions(numbers: tuple[int, ...], target: int) -> set[str]:
    return {text for text, value in all_values(numbers) if value == target}


@pytest.fixture(scope="module")
def splits():
    """The first problems of every split for two seeds."""
    return {
        (seed, split): Countdown(seed=seed).problems(split, NUM_PROBLEMS)
        for seed in (0, 1)
        for split in Countdown.splits
    }


# Splits


GOLDEN = {
    "train": ["4,11,19=12", "13,22,24=59", "1,3,15,16=63", "9,11,22=20", "7,8,21=20"],
    "test": ["3,9,10=2", "19,22,22=63", "10,20,23=13", "4,6,23=47", "7,10,11,11=3"],
    "ood": ["4,7,22,24=156", "2,9,24=108", "2,6,14=112", "2,7,20=142", "4,9,17=104"],
}


@pytest.mark.parametrize("split", Countdown.splits)
def test_the_first_problems_of_a_split_never_change(split):
    problems = Countdown().problems(split, 5)
    assert [problem.id for problem in problems] == GOLDEN[split]
    assert [problem.prompt for problem in problems] == [f"{text}:" for text in GOLDEN[split]]


@pytest.mark.parametrize(
    ("split", "digest"),
    [
        ("train", "5647504a883afc81"),
        ("test", "e1d14d3f1796cbed"),
        ("ood", "29f12426de5692c0"),
    ],
)
def test_thousands_of_problems_never_change(splits, split, digest):
    ids = "\n".join(problem.id for problem in splits[0, split])
    assert hashlib.sha256(ids.encode()).hexdigest()[:16] == digest


def test_the_first_demonstrations_never_change():
    shown = itertools.islice(Countdown().demonstrations("train"), 3)
    assert [(problem.id, answer) for problem, answer in shown] == [
        ("4,11,19=12", "(4+19)-11"),
        ("13,22,24=59", "22+(13+24)"),
        ("1,3,15,16=63", "(16*(1*3))+15"),
    ]


def test_no_problem_is_twice_in_a_split(splits):
    for problems in splits.values():
        assert len({problem.id for problem in problems}) == NUM_PROBLEMS


def test_splits_are_disjoint_within_and_across_seeds(splits):
    for (_, split_a), (_, split_b) in itertools.combinations(splits, 2):
        if split_a == split_b:
            continue
        for seed_a, seed_b in itertools.product((0, 1), repeat=2):
            ids_a = {problem.id for problem in splits[seed_a, split_a]}
            assert ids_a.isdisjoint(problem.id for problem in splits[seed_b, split_b])


def test_another_seed_gives_other_problems(splits):
    for split in Countdown.splits:
        first, second = ({problem.id for problem in splits[seed, split]} for seed in (0, 1))
        assert len(first & second) < NUM_PROBLEMS / 4


def test_fewer_problems_are_a_prefix_of_more(splits):
    for split in Countdown.splits:
        assert Countdown().problems(split, 150) == splits[0, split][:150]


def test_problems_have_the_numbers_and_targets_of_their_split(splits):
    for (_, split), problems in splits.items():
        low, high = (101, 200) if split == "ood" else (1, 100)
        for problem in problems:
            numbers, target = problem.data
            assert len(numbers) in (3, 4)
            assert list(numbers) == sorted(numbers)
            assert all(1 <= number <= 25 for number in numbers)
            assert low <= target <= high
            assert problem.prompt == problem_of(numbers, target).prompt


def test_the_splits_together_hold_every_solvable_content_once():
    task = Countdown(max_numbers=3, max_number=5, max_target=20, max_ood_target=30)
    solvable = {
        (numbers, int(value))
        for numbers in itertools.combinations_with_replacement(range(1, 6), 3)
        for _, value in all_values(numbers)
        if value.denominator == 1 and 1 <= value <= 30
    }
    found = {split: [p.data for p in task.generate(split)] for split in task.splits}
    everything = [content for contents in found.values() for content in contents]
    assert len(everything) == len(set(everything))
    assert set(everything) == solvable
    assert {content.target > 20 for content in found["ood"]} == {True}
    assert {content.target > 20 for content in found["train"] + found["test"]} == {False}
    test_share = len(found["test"]) / len(found["train"] + found["test"])
    assert test_share == pytest.approx(0.2, abs=0.05)


def test_problems_do_not_depend_on_the_process():
    script = (
        "import itertools, json\n"
        "from gradmass.tasks.countdown import Countdown\n"
        "task = Countdown(seed=3)\n"
        "print(json.dumps([[[p.id, p.prompt, list(task.solutions(p))]\n"
        "    for p in task.problems(split, 20)] for split in task.splits]\n"
        "  + [[[p.id, text] for p, text in itertools.islice(task.demonstrations('train'), 20)]]))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    task = Countdown(seed=3)
    assert json.loads(outputs[0])[:3] == [
        [[p.id, p.prompt, list(task.solutions(p))] for p in task.problems(split, 20)]
        for split in task.splits
    ]


def test_more_problems_than_exist_are_refused_at_once():
    assert len(TINY.problems("train", 5)) == 5
    with pytest.raises(UsageError, match=r"'train' .* has only 5 problems, num_problems = 6"):
        TINY.problems("train", 6)
    with pytest.raises(UsageError, match=r"'ood' .* has only 0 problems"):
        TINY.problems("ood", 1)


def test_exhausting_a_small_split_draws_few_candidates_more(monkeypatch):
    num_drawn = 0
    candidate = Countdown._candidate

    def counted(self, i):
        nonlocal num_drawn
        num_drawn += 1
        return candidate(self, i)

    monkeypatch.setattr(Countdown, "_candidate", counted)
    found = [problem.id for split in ("train", "test") for problem in TINY.generate(split)]
    assert sorted(found) == ["1,1=1", "1,1=2", "1,2=1", "1,2=2", "1,2=3", "2,2=1", "2,2=4"]
    assert num_drawn < 20_000


def test_a_large_space_is_not_counted_problem_by_problem():
    assert Countdown()._num_problems("train") is None
    assert TINY._num_problems("train") == 5


@pytest.mark.parametrize("split", ["ood", "valid"])
def test_demonstrations_of_nothing_raise_instead_of_searching_for_ever(split):
    with pytest.raises(UsageError, match=split):
        next(TINY.demonstrations(split))


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"min_numbers": 1}, "min_numbers = 1"),
        ({"max_numbers": 6}, "max_numbers = 6"),
        ({"min_numbers": 4, "max_numbers": 3}, "min_numbers = 4, max_numbers = 3"),
        ({"max_number": 1}, "max_number >= 2, got 1"),
        ({"max_number": -7}, "got -7"),
        ({"max_target": 0}, "max_target = 0"),
        ({"max_target": 200}, "max_target = 200, max_ood_target = 200"),
        ({"max_ood_target": 50}, "max_ood_target = 50"),
    ],
)
def test_bad_fields_raise_one_line_with_the_value(fields, shown):
    with pytest.raises(UsageError) as caught:
        Countdown(**fields)
    assert shown in str(caught.value)
    assert "\n" not in str(caught.value)


# Solutions


@pytest.mark.parametrize("split", Countdown.splits)
def test_solutions_are_those_of_brute_force(split):
    task = Countdown()
    for problem in task.problems(split, 40):
        solutions = task.solutions(problem)
        assert list(solutions) == sorted(brute_solutions(*problem.data))


@pytest.mark.parametrize(
    ("numbers", "target"), [((2, 7), 9), ((1, 1), 1), ((2, 2, 2), 3), ((1, 1, 1, 1), 1)]
)
def test_solutions_with_equal_numbers_are_those_of_brute_force(numbers, target):
    solutions = Countdown().solutions(problem_of(numbers, target))
    assert list(solutions) == sorted(brute_solutions(numbers, target))
    assert len(solutions) > 0


def test_solutions_with_five_numbers_are_those_of_brute_force():
    problem = problem_of((2, 2, 7, 7, 7), 98)
    solutions = Countdown().solutions(problem)
    assert len(solutions) > 100
    assert list(solutions) == sorted(brute_solutions(*problem.data))


def test_an_impossible_target_has_no_solution():
    assert Countdown().solutions(problem_of((1, 1, 1), 50)) == ()


def test_a_problem_of_four_numbers_has_about_sixty_solutions():
    task = Countdown()
    # The splits in the proportions they have among the candidates; ood problems have the fewest.
    numbers_of = {"train": 135, "test": 33, "ood": 32}
    medians, counts = {}, []
    for split, number in numbers_of.items():
        four = [p for p in task.problems(split, 3 * number) if len(p.data.numbers) == 4]
        sizes = [len(task.solutions(problem)) for problem in four[:number]]
        medians[split] = statistics.median(sizes)
        counts += sizes
    assert len(counts) == 200
    assert 45 <= statistics.median(counts) <= 75
    assert medians["ood"] < 45 < medians["train"]


def test_every_solution_is_right(splits):
    task = Countdown()
    for split in Countdown.splits:
        for problem in splits[0, split][:60]:
            for solution in task.solutions(problem):
                assert task.verify(problem, solution).is_right


def test_every_demonstration_is_right_and_they_run_through_the_problems(splits):
    task = Countdown()
    for split in Countdown.splits:
        shown = list(itertools.islice(task.demonstrations(split), 500))
        assert all(task.verify(problem, text).is_right for problem, text in shown)
        first_seen = list(dict.fromkeys(problem.id for problem, _ in shown))
        assert first_seen == [problem.id for problem in splits[0, split][: len(first_seen)]]


def test_a_problem_comes_back_with_other_demonstrations():
    shown = itertools.islice(TINY.demonstrations("train"), 200)
    texts: dict[str, set[str]] = {}
    for problem, text in shown:
        texts.setdefault(problem.id, set()).add(text)
    assert texts == {p.id: brute_solutions(*p.data) for p in TINY.problems("train", 5)}


# Verify


@pytest.mark.parametrize(
    ("numbers", "target", "tokens", "longest"),
    [
        ((1, 2), 2, "12+-*/()", 5),
        ((3, 12), 4, ["3", "12", "+", "-", "*", "/", "(", ")"], 5),
        ((2, 2, 2), 3, "2+/()", 7),
    ],
)
def test_verify_accepts_the_solutions_and_no_other_string(numbers, target, tokens, longest):
    """Judges every string of the tokens up to a length."""
    task, problem = Countdown(), problem_of(numbers, target)
    texts = (
        "".join(parts)
        for length in range(longest + 1)
        for parts in itertools.product(tokens, repeat=length)
    )
    accepted = {text for text in texts if task.verify(problem, text).is_right}
    assert len(accepted) > 0
    assert accepted == {
        text for text in brute_solutions(numbers, target) if set(text) <= set("".join(tokens))
    }


def test_fields_are_the_parameters_of_the_task():
    assert [field.name for field in dataclasses.fields(Countdown)] == [
        "min_numbers",
        "max_numbers",
        "max_number",
        "max_target",
        "max_ood_target",
        "seed",
    ]
