"""Programs: from a few input/output examples write a Python expression in x; unit tests judge it.

The prompt ``0:3,1:4,2:7,10:103=`` asks for an expression whose value is 3 where x is 0, and so on;
``(x*x)+3`` is one. The tests are at inputs that the prompt does not show. There is one canonical
grammar, so that the right programs of a problem can be listed:

    program := operand op operand             (no outer pair of parentheses)
    operand := "x" | digit | "(" operand op operand ")"
    op      := "+" | "-" | "*"
    digit   := "1" | ... | "9"

Fully parenthesised, no spaces, at most ``max_leaves`` of x and digits. Anything else is *unparsed*
and never run; what follows the grammar is run by the sandbox, and only its tests decide.
"""

import hashlib
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import ClassVar, NamedTuple, TypeAlias

from gradmass.rewards import Outcome, Verdict
from gradmass.rewards.code import CallTest, CodeProblem, CodeVerifier, Executor
from gradmass.rewards.sandbox import Isolation
from gradmass.rewards.shared import shared_verifier
from gradmass.tasks.base import Problem, Task, register_task
from gradmass.types import UsageError

Values: TypeAlias = tuple[int, ...]
"""What an expression is worth at each of INPUTS."""

SHOWN = (0, 1, 2, 10)
"""Inputs of the examples in the prompt."""
HIDDEN = (3, 4, 5, 6, 7, 8, 9)
"""Inputs of the unit tests. Four values of a cubic fix the others, so a problem has one answer."""
INPUTS = SHOWN + HIDDEN
OPERATORS = "+-*"
LEAF = re.compile(r"[x1-9]")
INNERMOST = re.compile(r"\([x1-9][-+*][x1-9]\)")
TEST_SHARE = 0.2
"""Share of the functions that belong to the test split."""
LARGEST_SHOWN = 9999
"""Functions with a larger value in the prompt are left out, so that prompts stay short."""


class Split(NamedTuple):
    """One way to make an expression's values: two operands, by number of leaves and values."""

    left: tuple[int, Values]
    operator: str
    right: tuple[int, Values]


@register_task("programs")
@dataclass(frozen=True, kw_only=True)
class Programs(Task):
    """Write a program that agrees with examples, and with tests at inputs that are not shown.

    A problem is a function that some program of the grammar computes and that is not constant.
    Which split it belongs to follows from its examples alone: 80% ``train``, 20% ``test``. The
    order is random with the seed, functions of many right programs earlier on average. With three
    leaves there are 626 functions, half of them with at least 4 right programs; with four,
    7,849 and 12.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    alphabet: ClassVar[str] = "0123456789+-*()x,:="

    max_leaves: int = 3
    """Most leaves (x or a digit) of a program, 2 to 4."""
    seed: int = 0
    """Order of the problems; the splits are the same for all."""
    num_workers: int = 2
    """Programs that run at once."""
    isolation: Isolation = "bubblewrap"
    """How programs are kept apart from this machine (process: hardly; see docs/security.md)."""
    executor: Executor = "local"
    """Where programs run: on this machine, or on a ray cluster (see docs/verifiers.md)."""

    def __post_init__(self) -> None:
        """Refuse sizes whose programs are too few or too many to list."""
        if not 2 <= self.max_leaves <= 4:
            raise UsageError(f"programs needs 2 <= max_leaves <= 4, got {self.max_leaves}")

    def generate(self, split: str) -> Iterator[Problem]:
        """Yield the functions of the split, each once."""
        return iter(_problems(self.max_leaves, self.seed, split))

    def demonstrations(self, split: str) -> Iterator[tuple[Problem, str]]:
        """Yield the functions of the split in turn, each with a random right program, without end.

        Raises:
            UsageError: Unknown split.
        """
        self.problems(split, 1)
        problems = _problems(self.max_leaves, self.seed, split)
        for i in count():
            problem = problems[i % len(problems)]
            rng = random.Random(f"programs/{self.seed}/{i}")
            yield problem, rng.choice(self.solutions(problem))

    def verify(self, problem: Problem, completion: str) -> Verdict:
        """Right if the completion is a program of the grammar that passes the hidden tests."""
        return self.verify_batch([problem], [completion])[0]

    def verify_batch(
        self, problems: Sequence[Problem], completions: Sequence[str]
    ) -> list[Verdict]:
        """Verdicts of completions in their order; what follows the grammar runs in the sandbox."""
        verdicts: list[Verdict | None] = [
            None
            if is_program(text, self.max_leaves)
            else Verdict(Outcome.UNPARSED, "not a program of the grammar")
            for text in completions
        ]
        # A policy writes the same program many times: each is run once a batch.
        runs = {
            (problem.id, text): (_code_problem(problem.data), as_function(text))
            for problem, text, verdict in zip(problems, completions, verdicts, strict=True)
            if verdict is None
        }
        code_problems, programs = zip(*runs.values(), strict=True) if runs else ((), ())
        verifier = shared_verifier(
            CodeVerifier,
            num_workers=self.num_workers,
            isolation=self.isolation,
            code_block="whole",
            executor=self.executor,
        )
        found = dict(zip(runs, verifier.verify(code_problems, programs), strict=True))
        return [
            found[problem.id, text] if verdict is None else verdict
            for problem, text, verdict in zip(problems, completions, verdicts, strict=True)
        ]

    def solutions(self, problem: Problem) -> tuple[str, ...]:
        """All right programs in lexicographic order."""
        return _solutions(self.max_leaves, problem.data)


def is_program(text: str, max_leaves: int) -> bool:
    """Whether a text is a program of the grammar.

    >>> [is_program(text, 4) for text in ("(x*x)+3", "x+1", "x", "x+1+2", "(x+1)", "x + 1", "x/2")]
    [True, True, False, False, False, False, False]
    """
    if len(LEAF.findall(text)) > max_leaves:
        return False
    folded = f"({text})"
    while (shorter := INNERMOST.sub("x", folded)) != folded:
        folded = shorter
    return folded == "x"


def as_function(text: str) -> str:
    """The program as the sandbox runs it."""
    return f"def f(x):\n    return {text}\n"


def _code_problem(values: Values) -> CodeProblem:
    pairs = zip(INPUTS, values, strict=True)
    tests = tuple(CallTest(args=(x,), expected=y) for x, y in pairs if x in HIDDEN)
    return CodeProblem(tests=tests, entry_point="f")


@lru_cache(maxsize=3)
def _table(max_leaves: int) -> dict[int, dict[Values, list[Split]]]:
    """By number of leaves: the values that an expression can have, and every way to make them."""
    leaves = [INPUTS, *(tuple([digit] * len(INPUTS)) for digit in range(1, 10))]
    table: dict[int, dict[Values, list[Split]]] = {1: {values: [] for values in leaves}}
    for size in range(2, max_leaves + 1):
        made: dict[Values, list[Split]] = {}
        for left_size in range(1, size):
            for a in table[left_size]:
                for b in table[size - left_size]:
                    for operator in OPERATORS:
                        split = Split((left_size, a), operator, (size - left_size, b))
                        made.setdefault(_apply(a, operator, b), []).append(split)
        table[size] = made
    return table


def _apply(a: Values, operator: str, b: Values) -> Values:
    pairs = zip(a, b, strict=True)
    if operator == "+":
        return tuple(x + y for x, y in pairs)
    if operator == "-":
        return tuple(x - y for x, y in pairs)
    return tuple(x * y for x, y in pairs)


@lru_cache(maxsize=8)
def _problems(max_leaves: int, seed: int, split: str) -> tuple[Problem, ...]:
    table = _table(max_leaves)
    functions = {values for size in range(2, max_leaves + 1) for values in table[size]}
    problems = [
        _problem(values)
        for values in functions
        if len(set(values)) > 1 and max(map(abs, values[: len(SHOWN)])) <= LARGEST_SHOWN
    ]
    mine = [problem for problem in problems if _split_of(problem) == split]

    def arrival(problem: Problem) -> float:
        uniform = (_hash(f"{seed}/{problem.id}") + 1) / 2**64
        return -math.log(uniform) / len(_solutions(max_leaves, problem.data))

    return tuple(sorted(mine, key=arrival))


def _problem(values: Values) -> Problem:
    text = ",".join(f"{x}:{y}" for x, y in zip(SHOWN, values, strict=False))
    return Problem(id=text, prompt=f"{text}=", data=values)


def _split_of(problem: Problem) -> str:
    return "test" if _hash(problem.id) < TEST_SHARE * 2**64 else "train"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


@lru_cache(maxsize=16384)
def _solutions(max_leaves: int, values: Values) -> tuple[str, ...]:
    sizes = range(2, max_leaves + 1)
    return tuple(sorted(text for size in sizes for text in _texts(max_leaves, size, values)))


@lru_cache(maxsize=65536)
def _texts(max_leaves: int, size: int, values: Values) -> tuple[str, ...]:
    """Every expression of that many leaves and those values, without outer parentheses."""
    if size == 1:
        return ("x" if values == INPUTS else str(values[0]),)
    return tuple(
        f"{x}{operator}{y}"
        for left, operator, right in _table(max_leaves)[size].get(values, ())
        for x in _operands(max_leaves, *left)
        for y in _operands(max_leaves, *right)
    )


def _operands(max_leaves: int, size: int, values: Values) -> tuple[str, ...]:
    texts = _texts(max_leaves, size, values)
    return texts if size == 1 else tuple(f"({text})" for text in texts)
