"""The maze: its verifier and its solution sets against a walk by hand and against brute force."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmass.rewards import Outcome
from gradmass.tasks import Problem
from gradmass.tasks.maze import Maze
from gradmass.types import UsageError

SMALL = Maze(size=3, min_distance=2, max_distance=4, slack=2)


def problem_of(grid: str, limit: int) -> Problem:
    return Problem(id=grid, prompt=f"{grid}:", data=(grid, limit))


def judge(grid: str, limit: int, way: str) -> Outcome:
    """Walk on the rows as written; shares nothing with the task."""
    if way == "" or any(letter not in "UDLR" for letter in way):
        return Outcome.UNPARSED
    rows = grid.split("/")
    row = next(i for i, text in enumerate(rows) if "S" in text)
    column = rows[row].index("S")
    been = [(row, column)]
    for letter in way:
        row += (letter == "D") - (letter == "U")
        column += (letter == "R") - (letter == "L")
        if not (0 <= row < len(rows) and 0 <= column < len(rows)):
            return Outcome.WRONG
        if rows[row][column] == "#" or (row, column) in been:
            return Outcome.WRONG
        been.append((row, column))
    return Outcome.RIGHT if rows[row][column] == "G" and len(way) <= limit else Outcome.WRONG


def all_ways(limit: int) -> list[str]:
    return [
        "".join(letters)
        for length in range(limit + 1)
        for letters in itertools.product("DLRU", repeat=length)
    ]


def test_a_grid_judged_by_hand():
    problem = problem_of("S.#/#../..G", 6)
    assert SMALL.solutions(problem) == ("RDDR", "RDRD")
    for way, outcome in {
        "RDRD": Outcome.RIGHT,
        "RDDR": Outcome.RIGHT,
        "RDR": Outcome.WRONG,  # does not end at the goal
        "RDRDU": Outcome.WRONG,  # ends elsewhere
        "RLRDRD": Outcome.WRONG,  # comes back to the start
        "DRRD": Outcome.WRONG,  # through a wall
        "URDRD": Outcome.WRONG,  # out of the grid
        "": Outcome.UNPARSED,
        "rdrd": Outcome.UNPARSED,
        "RDRD ": Outcome.UNPARSED,
        "R" * 100_000: Outcome.WRONG,
    }.items():
        assert SMALL.verify(problem, way).outcome is outcome, way


@pytest.mark.parametrize("index", range(8))
def test_solutions_are_every_string_that_is_right(index):
    problem = SMALL.problems("train", 8)[index]
    grid, limit = problem.data
    ways = all_ways(limit)
    right = [way for way in ways if judge(grid, limit, way) is Outcome.RIGHT]
    assert SMALL.solutions(problem) == tuple(sorted(right))
    for way in random.Random(index).sample(ways, 200):
        assert SMALL.verify(problem, way).outcome is judge(grid, limit, way), way


@given(st.integers(0, 199), st.text("UDLR", max_size=11))
def test_any_row_of_letters_is_judged_as_by_hand(index, way):
    problem = LARGE[index]
    assert Maze().verify(problem, way).outcome is judge(*problem.data, way)


LARGE = Maze().problems("train", 200)


def test_the_shortest_way_is_within_the_bounds_and_the_limit_is_slack_above_it():
    for task in (Maze(), Maze(min_distance=1, max_distance=2, slack=0, seed=3)):
        for problem in task.problems("test", 50):
            shortest = min(map(len, task.solutions(problem)))
            assert task.min_distance <= shortest <= task.max_distance
            assert problem.data[1] == shortest + task.slack


def test_no_grid_is_in_two_splits_whatever_the_seed():
    train = {problem.id for problem in Maze(seed=1).problems("train", 500)}
    assert not train & {problem.id for problem in Maze(seed=2).problems("test", 500)}
    tiny = [Maze(size=2, min_distance=1, max_distance=2, seed=seed) for seed in (1, 2)]
    sets = [{p.id for p in itertools.islice(tiny[0].generate("train"), 3)}]
    sets.append({p.id for p in itertools.islice(tiny[1].generate("test"), 3)})
    assert not sets[0] & sets[1]


def test_demonstrations_show_all_right_answers_of_a_grid():
    task = Maze(size=2, min_distance=2, max_distance=2, wall_share=0.0)
    shown: dict[str, set[str]] = {}
    for problem, way in itertools.islice(task.demonstrations("train"), 200):
        assert task.verify(problem, way).is_right
        shown.setdefault(problem.id, set()).add(way)
    for problem in itertools.islice(task.generate("train"), len(shown)):
        assert shown[problem.id] == set(task.solutions(problem))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 1}, "size within 2 to 6, got 1"),
        ({"size": 7}, "size within 2 to 6, got 7"),
        ({"wall_share": 1.0}, "wall_share in \\[0, 1\\), got 1.0"),
        ({"wall_share": float("nan")}, "wall_share in \\[0, 1\\), got nan"),
        ({"min_distance": 0}, "got min_distance = 0"),
        ({"min_distance": 5, "max_distance": 4}, "max_distance = 4"),
        ({"slack": -1}, "slack within 0 to 4, got -1"),
    ],
)
def test_fields_out_of_range_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        Maze(**fields)
