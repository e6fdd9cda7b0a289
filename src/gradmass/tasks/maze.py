"""Maze: a way through a small grid with walls, at most a few steps longer than the shortest.

The prompt ``S..#./.#.../...#./.#.../...G.:`` is the grid row by row; ``#`` is a wall, ``S`` the
start, ``G`` the goal. An answer is a row of the letters ``U D L R`` (up, down, left, right) that
leads from the start to the goal, never through a wall or out of the grid, never twice to one cell,
in at most ``slack`` steps more than the shortest way takes. So the set of right answers is finite.
"""

import hashlib
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import ClassVar

from gradmass.rewards import Outcome, Verdict
from gradmass.tasks.base import Problem, Task, register_task
from gradmass.types import UsageError

MOVES = {"D": (1, 0), "L": (0, -1), "R": (0, 1), "U": (-1, 0)}
"""Rows and columns a letter moves by, the letters in lexicographic order."""
TEST_SHARE = 0.2
"""Share of the grids that belong to the test split."""
GIVE_UP_AFTER = 1_000_000
"""Candidates in a row without a new grid after which the split is taken to be exhausted."""
MAX_SLACK = 4
"""More slack would make too many ways to list."""


@register_task("maze")
@dataclass(frozen=True, kw_only=True)
class Maze(Task):
    """Walk from S to G on a square grid with walls.

    Candidate i is drawn from the hash of ``(seed, i)``: start and goal are two cells, every other
    cell is a wall with probability ``wall_share``; it is kept if the shortest way has
    ``min_distance`` to ``max_distance`` steps. Which split a grid belongs to follows from the grid
    alone, so no two splits overlap, whatever their seeds; a split lists its candidates in order,
    duplicates skipped.

    Splits: ``train`` (80% of the grids) and ``test``.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    alphabet: ClassVar[str] = ".#SG/:DLRU"

    size: int = 5
    """Cells on a side, 2 to 6."""
    wall_share: float = 0.3
    """Probability of a wall, in [0, 1)."""
    min_distance: int = 4
    """Fewest steps of the shortest way, at least 1."""
    max_distance: int = 8
    """Most steps of the shortest way, min_distance to 12."""
    slack: int = 2
    """Steps by which a right answer may be longer than the shortest way, 0 to 4."""
    seed: int = 0
    """Which stream of candidates; the splits stay disjoint across seeds."""

    def __post_init__(self) -> None:
        """Refuse fields that describe no task."""
        if not 2 <= self.size <= 6:
            raise UsageError(f"maze needs size within 2 to 6, got {self.size}")
        if not 0 <= self.wall_share < 1:
            raise UsageError(f"maze needs wall_share in [0, 1), got {self.wall_share}")
        if not 1 <= self.min_distance <= self.max_distance <= 12:
            raise UsageError(
                "maze needs 1 <= min_distance <= max_distance <= 12, "
                f"got min_distance = {self.min_distance}, max_distance = {self.max_distance}"
            )
        if not 0 <= self.slack <= MAX_SLACK:
            raise UsageError(f"maze needs slack within 0 to {MAX_SLACK}, got {self.slack}")

    def generate(self, split: str) -> Iterator[Problem]:
        """Yield the split's problems in order, each grid once.

        The stream ends when a million candidates in a row bring nothing new.
        """
        seen: set[str] = set()
        last_new = 0
        for i in count():
            if i - last_new > GIVE_UP_AFTER:
                return
            grid = self._candidate(i)
            if grid is not None and grid not in seen and _split_of(grid) == split:
                seen.add(grid)
                last_new = i
                yield self._problem(grid)

    def demonstrations(self, split: str) -> Iterator[tuple[Problem, str]]:
        """Yield problems of the split, each with one of its right answers at random, without end.

        Raises:
            UsageError: Unknown split, or a split without problems (when the first is asked for).
        """
        self.problems(split, 1)  # a stream that can yield nothing would never return
        for i in count():
            grid = self._candidate(i)
            if grid is not None and _split_of(grid) == split:
                problem = self._problem(grid)
                rng = random.Random(f"maze/{self.seed}/{i}/way")
                yield problem, rng.choice(self.solutions(problem))

    def verify(self, problem: Problem, completion: str) -> Verdict:
        """Right if the letters are a way to the goal that is short enough and crosses no cell."""
        grid, limit = problem.data
        if not completion or completion.strip("".join(MOVES)):
            return Verdict(Outcome.UNPARSED, "not a row of the letters U D L R")
        if len(completion) > limit:
            return Verdict(Outcome.WRONG, f"{len(completion)} steps, at most {limit} are allowed")
        walls, cell, goal = _read(grid)
        visited = {cell}
        for number, letter in enumerate(completion, start=1):
            cell = _moved(cell, letter)
            if cell not in walls or walls[cell]:
                return Verdict(Outcome.WRONG, f"step {number} leads into a wall")
            if cell in visited:
                return Verdict(Outcome.WRONG, f"step {number} comes back to a cell")
            visited.add(cell)
        if cell != goal:
            return Verdict(Outcome.WRONG, "does not end at the goal")
        return Verdict(Outcome.RIGHT)

    def solutions(self, problem: Problem) -> tuple[str, ...]:
        """All right answers in lexicographic order."""
        return _ways(*problem.data)

    def _problem(self, grid: str) -> Problem:
        distance = _distance(grid)
        assert distance is not None  # kept candidates have a way
        return Problem(
            id=f"{grid}+{self.slack}", prompt=f"{grid}:", data=(grid, distance + self.slack)
        )

    def _candidate(self, i: int) -> str | None:
        """Candidate i, None where the way is too short, too long, or not there."""
        rng = random.Random(f"maze/{self.seed}/{i}")
        cells = ["#" if rng.random() < self.wall_share else "." for _ in range(self.size**2)]
        start, goal = rng.sample(range(self.size**2), 2)
        cells[start], cells[goal] = "S", "G"
        rows = (cells[k : k + self.size] for k in range(0, self.size**2, self.size))
        grid = "/".join(map("".join, rows))
        distance = _distance(grid)
        if distance is None or not self.min_distance <= distance <= self.max_distance:
            return None
        return grid


Cell = tuple[int, int]
"""Row and column."""


def _split_of(grid: str) -> str:
    digest = hashlib.sha256(f"maze {grid}".encode()).digest()
    return "test" if int.from_bytes(digest[:8]) < TEST_SHARE * 2**64 else "train"


@lru_cache(maxsize=10_000)
def _read(grid: str) -> tuple[dict[Cell, bool], Cell, Cell]:
    """Whether each cell is a wall, the start and the goal."""
    cells = {(i, j): cell for i, row in enumerate(grid.split("/")) for j, cell in enumerate(row)}
    (start,) = (place for place, cell in cells.items() if cell == "S")
    (goal,) = (place for place, cell in cells.items() if cell == "G")
    return {place: cell == "#" for place, cell in cells.items()}, start, goal


def _moved(cell: Cell, letter: str) -> Cell:
    down, right = MOVES[letter]
    return cell[0] + down, cell[1] + right


def _distance(grid: str) -> int | None:
    """Steps of the shortest way, None where there is none."""
    walls, start, goal = _read(grid)
    distance, queue = {start: 0}, deque([start])
    while queue:
        cell = queue.popleft()
        for letter in MOVES:
            after = _moved(cell, letter)
            if after not in distance and not walls.get(after, True):
                distance[after] = distance[cell] + 1
                queue.append(after)
    return distance.get(goal)


@lru_cache(maxsize=10_000)
def _ways(grid: str, limit: int) -> tuple[str, ...]:
    """Ways of at most ``limit`` steps that come to no cell twice, by depth-first search."""
    walls, start, goal = _read(grid)
    found: list[str] = []

    def walk(cell: Cell, way: str, visited: frozenset[Cell]) -> None:
        if cell == goal:
            found.append(way)
            return
        left = limit - len(way)
        for letter in MOVES:
            after = _moved(cell, letter)
            away = abs(after[0] - goal[0]) + abs(after[1] - goal[1])
            if away < left and after not in visited and not walls.get(after, True):
                walk(after, way + letter, visited | {after})

    walk(start, "", frozenset([start]))
    return tuple(sorted(found))
