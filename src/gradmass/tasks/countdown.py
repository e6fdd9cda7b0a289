"""Countdown: write an expression that uses each of three or four numbers once and hits a target.

The prompt ``3,7,25,50=132:`` asks for an expression such as ``((3+7)*25)-50``. There is one
canonical grammar, so that the set of right answers of a problem is finite and can be listed:

    answer     := operand op operand            (no outer pair of parentheses)
    operand    := number | "(" operand op operand ")"
    op         := "+" | "-" | "*" | "/"

Fully parenthesised, no spaces, no signs, no leading zeros. Anything else is *unparsed*. Values are
exact rationals; nothing is ever passed to ``eval``.
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement, count
from math import comb
from typing import ClassVar, NamedTuple, TypeAlias

from gradmass.rewards import Outcome, Verdict
from gradmass.tasks.base import Problem, Task, register_task
from gradmass.types import UsageError

Tree: TypeAlias = str | tuple["Tree", str, "Tree"]
"""An expression: a number as written, or (left, operator, right)."""
Value: TypeAlias = int | Fraction
"""An exact value; fractions take ten times as long, and few are needed."""

TOKEN = re.compile(r"0|[1-9][0-9]*|[-+*/()]")
OPERATORS = ("+", "-", "*", "/")
TEST_SHARE = 0.2
"""Share of the contents with targets up to ``max_target`` that belong to the test split."""
COUNT_AFTER = 5_000
"""Barren candidates in a row after which the problems of the split are counted, if they are few."""
GIVE_UP_AFTER = 1_000_000
"""Barren candidates in a row after which the split is taken to be exhausted."""
MAX_COUNTING_WORK = 100_000
"""Largest work of counting problems, in number sets of size 2 (two seconds or so in all)."""


class Content(NamedTuple):
    """What makes a problem: its numbers in ascending order, and the target."""

    numbers: tuple[int, ...]
    target: int


@register_task("countdown")
@dataclass(frozen=True, kw_only=True)
class Countdown(Task):
    """Reach a target with each number used exactly once.

    Candidate i is drawn from the hash of ``(seed, i)``: numbers uniform, combined in random order
    by random operators, kept if the value is a whole number in range (so every problem has a
    solution). Which split a candidate belongs to follows from its content alone, so no two splits
    overlap, whatever their seeds; a split lists its candidates in order, duplicates skipped.

    Splits: ``train`` and ``test`` share targets 1 to ``max_target`` (80 and 20% of the contents);
    ``ood`` has the larger targets, up to ``max_ood_target``.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "test", "ood")
    alphabet: ClassVar[str] = "0123456789+-*/(),=:"

    min_numbers: int = 3
    """Fewest numbers in a problem, 2 to 5."""
    max_numbers: int = 4
    """Most numbers in a problem, min_numbers to 5."""
    max_number: int = 25
    """Largest number; numbers are drawn from 1 to this."""
    max_target: int = 100
    """Largest target of the train and test splits."""
    max_ood_target: int = 200
    """Largest target of the out-of-distribution split; above max_target."""
    seed: int = 0
    """Which stream of candidates; the splits stay disjoint across seeds."""

    def __post_init__(self) -> None:
        """Refuse fields that describe no task."""
        if not 2 <= self.min_numbers <= self.max_numbers <= 5:
            raise UsageError(
                "countdown needs 2 <= min_numbers <= max_numbers <= 5, "
                f"got min_numbers = {self.min_numbers}, max_numbers = {self.max_numbers}"
            )
        if self.max_number < 2:
            raise UsageError(f"countdown needs max_number >= 2, got {self.max_number}")
        if not 1 <= self.max_target < self.max_ood_target:
            raise UsageError(
                "countdown needs 1 <= max_target < max_ood_target, "
                f"got max_target = {self.max_target}, max_ood_target = {self.max_ood_target}"
            )

    def generate(self, split: str) -> Iterator[Problem]:
        """Yield the split's problems in order, each content once.

        The stream ends after the last content of the split where there are few enough to count
        them; elsewhere when a million candidates in a row bring nothing new.
        """
        seen: set[str] = set()
        num_problems: int | None = None
        last_new = 0
        for i in count():
            if i - last_new == COUNT_AFTER and num_problems is None:
                num_problems = self._num_problems(split)
            if len(seen) == num_problems or i - last_new > GIVE_UP_AFTER:
                return
            content, _ = self._candidate(i)
            if content is None or self._split_of(content) != split:
                continue
            problem = _problem(content)
            if problem.id not in seen:
                seen.add(problem.id)
                last_new = i
                yield problem

    def demonstrations(self, split: str) -> Iterator[tuple[Problem, str]]:
        """Yield problems of the split, each with the expression it was made from, without end.

        A content comes back with another expression, so the right answers of a problem are learnt
        in all their variety. The stream is that of ``generate`` with duplicates kept.

        Raises:
            UsageError: Unknown split, or a split without problems (when the first is asked for).
        """
        self.problems(split, 1)  # a stream that can yield nothing would never return
        for i in count():
            content, expression = self._candidate(i)
            if content is not None and self._split_of(content) == split:
                yield _problem(content), expression

    def verify(self, problem: Problem, completion: str) -> Verdict:
        """Right if the completion follows the grammar, uses each number once, hits the target."""
        numbers, target = problem.data
        tree = parse(completion)
        if tree is None:
            return Verdict(Outcome.UNPARSED, "not a fully parenthesised expression")
        # Literals are compared as text before anything is computed: a number of a million digits
        # is wrong without being read.
        if sorted(_literals(tree)) != sorted(map(str, numbers)):
            return Verdict(Outcome.WRONG, "does not use each number exactly once")
        value = _evaluate(tree)
        if value is None:
            return Verdict(Outcome.WRONG, "divides by zero")
        if value != target:
            return Verdict(Outcome.WRONG, f"equals {value}")
        return Verdict(Outcome.RIGHT)

    def solutions(self, problem: Problem) -> tuple[str, ...]:
        """All right answers in lexicographic order: every string of the grammar that is right."""
        numbers, target = problem.data
        return _solutions(numbers, target)

    def _candidate(self, i: int) -> tuple[Content | None, str]:
        """Candidate i and the expression it was made from; content None where out of range."""
        rng = random.Random(f"countdown/{self.seed}/{i}")
        numbers = [
            rng.randint(1, self.max_number)
            for _ in range(rng.randint(self.min_numbers, self.max_numbers))
        ]
        parts: list[tuple[Value, str]] = [(number, str(number)) for number in numbers]
        while len(parts) > 1:
            (a, left), (b, right) = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
            operator = rng.choice(OPERATORS)
            value = _apply(a, operator, b)
            if value is None:
                return None, ""
            parts.append((value, f"({left}{operator}{right})"))
        value, expression = parts[0]
        if value.denominator != 1 or not 1 <= value <= self.max_ood_target:
            return None, ""
        return Content(tuple(sorted(numbers)), int(value)), expression[1:-1]

    def _num_problems(self, split: str) -> int | None:
        """Exact number of problems of a split, or None where counting takes too long."""
        sizes = range(self.min_numbers, self.max_numbers + 1)
        # A number more makes a set some 20 times as much work.
        work = sum(comb(self.max_number + size - 1, size) * 20 ** (size - 2) for size in sizes)
        if work > MAX_COUNTING_WORK:
            return None
        return sum(
            value.denominator == 1
            and 1 <= value <= self.max_ood_target
            and self._split_of(Content(numbers, int(value))) == split
            for size in sizes
            for numbers in combinations_with_replacement(range(1, self.max_number + 1), size)
            for value in _values(numbers)
        )

    def _split_of(self, content: Content) -> str:
        if content.target > self.max_target:
            return "ood"
        digest = hashlib.sha256(_problem(content).id.encode()).digest()
        return "test" if int.from_bytes(digest[:8]) < TEST_SHARE * 2**64 else "train"


def parse(text: str) -> Tree | None:
    """The expression a text writes in the canonical grammar, or None.

    >>> parse("(3+7)*25")
    (('3', '+', '7'), '*', '25')
    >>> [parse(text) for text in ("3+7+25", "((3+7)*25)", "3 +7", "(3)+7", "-3+7", "03+7")]
    [None, None, None, None, None, None]
    """
    tokens = TOKEN.findall(text)
    if "".join(tokens) != text:
        return None
    stack: list[Tree] = []
    for token in tokens:  # "03" is two tokens, which no operator joins
        if token != ")":
            stack.append(token)
        elif len(stack) >= 4 and stack[-4] == "(" and _is_binary(stack[-3:]):
            left, operator, right = stack[-3:]
            assert isinstance(operator, str)
            stack[-4:] = [(left, operator, right)]
        else:
            return None
    if not _is_binary(stack):
        return None
    left, operator, right = stack
    assert isinstance(operator, str)
    return (left, operator, right)


def _is_binary(items: list[Tree]) -> bool:
    """Whether the items are operand, operator, operand."""
    if len(items) != 3:
        return False
    left, operator, right = items
    return operator in OPERATORS and _is_operand(left) and _is_operand(right)


def _is_operand(item: Tree) -> bool:
    return isinstance(item, tuple) or item.isdigit()


def _literals(tree: Tree) -> list[str]:
    """The numbers of an expression as written, in any order; iterative, for any depth."""
    found, open_trees = [], [tree]
    while open_trees:
        item = open_trees.pop()
        if isinstance(item, str):
            found.append(item)
        else:
            open_trees += [item[0], item[2]]
    return found


def _evaluate(tree: Tree) -> Value | None:
    """The exact value, or None where it divides by zero. Depth is bounded by the literals."""
    if isinstance(tree, str):
        return int(tree)
    left, right = _evaluate(tree[0]), _evaluate(tree[2])
    return None if left is None or right is None else _apply(left, tree[1], right)


def _apply(a: Value, operator: str, b: Value) -> Value | None:
    if operator == "+":
        return a + b
    if operator == "-":
        return a - b
    if operator == "*":
        return a * b
    return Fraction(a, b) if b else None


@lru_cache(maxsize=1024)
def _values(numbers: tuple[int, ...]) -> frozenset[Value]:
    """Every value that the numbers can make, each used once."""
    if len(numbers) == 1:
        return frozenset(numbers)
    made: set[Value | None] = set()
    for chosen in range(1, 2 ** len(numbers) - 1):
        left = tuple(n for i, n in enumerate(numbers) if chosen >> i & 1)
        right = tuple(n for i, n in enumerate(numbers) if not chosen >> i & 1)
        made.update(
            _apply(a, op, b) for a in _values(left) for b in _values(right) for op in OPERATORS
        )
    return frozenset(value for value in made if value is not None)


def _problem(content: Content) -> Problem:
    text = f"{','.join(map(str, content.numbers))}={content.target}"
    return Problem(id=text, prompt=f"{text}:", data=content)


@lru_cache(maxsize=4096)
def _solutions(numbers: tuple[int, ...], target: int) -> tuple[str, ...]:
    """All right answers of one problem.

    Values of proper subsets are listed; at the root only the one right operand that makes the
    target is looked up, which saves the bulk of the work.
    """
    values = _subset_values(numbers)
    everything = (1 << len(numbers)) - 1
    goal = Fraction(target)
    found: set[str] = set()
    for left_set in range(1, everything):
        right_values = values[everything ^ left_set]
        for a, lefts in values[left_set].items():
            for operator, b in _right_operands(a, goal):
                rights = right_values.get(b, ())
                found.update(f"{x}{operator}{y}" for x in lefts for y in rights)
    return tuple(sorted(found))


def _right_operands(a: Value, goal: Fraction) -> Iterator[tuple[str, Fraction]]:
    """Each operator with the one b that solves ``a operator b = goal``."""
    yield "+", goal - a
    yield "-", a - goal
    # The goal is at least 1, so a = 0 solves neither product nor quotient.
    if a:
        yield "*", goal / a
        yield "/", a / goal


def _subset_values(numbers: tuple[int, ...]) -> dict[int, dict[Value, set[str]]]:
    """For each proper subset (a bit mask): the values it can make, with the operands that do."""
    values: dict[int, dict[Value, set[str]]] = {}
    everything = (1 << len(numbers)) - 1
    for subset in range(1, everything):
        made: dict[Value, set[str]] = {}
        if subset & (subset - 1) == 0:
            number = numbers[subset.bit_length() - 1]
            made[number] = {str(number)}
        left_set = (subset - 1) & subset
        while left_set:
            for a, lefts in values[left_set].items():
                for b, rights in values[subset ^ left_set].items():
                    for operator in OPERATORS:
                        value = _apply(a, operator, b)
                        if value is not None:
                            texts = made.setdefault(value, set())
                            texts.update(f"({x}{operator}{y})" for x in lefts for y in rights)
            left_set = (left_set - 1) & subset
        values[subset] = made
    return values
