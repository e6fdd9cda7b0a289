"""Problems from a dataset: disjoint splits by the question's hash, each question once, no overlap.

A reader of one dataset's format says what a row asks (``entry``) and judges answers
(``verify_all``); splits, repeated questions, overlap, the filter by solve rate, rows that make no
problem, the prompt's text and a reward function of the user's are handled here.
"""

import hashlib
import math
import unicodedata
import warnings
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from gradmass.registry import load_object
from gradmass.rewards import Outcome, Verdict
from gradmass.tasks.base import Problem, Task, register_task
from gradmass.tasks.rows import HUB, Row, RowError, read_rows
from gradmass.tasks.solve_rates import read_solve_rates
from gradmass.types import UsageError

PLACE = "{prompt}"
"""What a template puts the question in place of."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a row asks.

    Args:
        question: What is asked, without instructions; its hash decides the split.
        data: What the verifier needs.
        id: The dataset's own name of the problem where it is unique; empty for the hash.
        answer: The stored answer as text where there is one, to see whether repeated questions
            agree.
        form: What the prompt says of the answer's form between question and instruction.
    """

    question: str
    data: Any
    id: str = ""
    answer: str = ""
    form: str = ""


@dataclass
class Tally:
    """What became of the rows of a split: counts, and the first row of each kind left out."""

    num_rows: int = 0
    num_problems: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    is_told: bool = True
    """Whether the first row left out of each kind is told in a warning."""

    def leave_out(self, kind: str, what: str) -> None:
        """Count a row that makes no problem."""
        self.left_out[kind] = self.left_out.get(kind, 0) + 1
        if kind not in self.first:
            self.first[kind] = what
            if self.is_told:
                warnings.warn(what, stacklevel=2)


def question_key(question: str) -> str:
    """32 hexadecimal digits that equal questions share, white space and Unicode form aside.

    The first 32 of SHA-256 of the question in Unicode's form NFC with runs of white space as one
    space. Letter case and punctuation count: ``x+1`` is not ``x-1``.

    >>> question_key("What is  2+2? ") == question_key("What is 2+2?")
    True
    >>> question_key("What is 2+2?") == question_key("What is 2-2?")
    False
    """
    text = " ".join(unicodedata.normalize("NFC", question).split())
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def is_held_out(key: str, test_share: float) -> bool:
    """Whether the question of a key is in the test split when it is drawn by hash.

    The key's first 13 digits as a fraction of their range, below ``test_share``. A question held
    out at one share is held out at every larger one, whatever else is in the data.

    >>> is_held_out("0" * 32, 0.1), is_held_out("f" * 32, 0.1), is_held_out("f" * 32, 1.0)
    (True, False, True)
    """
    return int(key[:13], 16) / 16**13 < test_share


@dataclass(frozen=True, kw_only=True)
class DatasetTask(Task):
    """A task whose problems are rows of a dataset.

    Splits: without ``test_path`` and ``test_split``, the test split is the ``test_share`` of
    questions whose hash says so, and the rest is trained on. With either, all of those rows are the
    test split, and no question of theirs is trained on. Repeated questions are used once.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    columns: ClassVar[Collection[str] | None] = None
    """The columns the reader looks at, in lower case; None for all."""

    path: str
    """A .jsonl, .json (also .gz) or .parquet file, a folder of them, a folder that the library
    datasets saved, or hub:OWNER/NAME or hub:OWNER/NAME:CONFIG on the Hugging Face hub."""
    split: str = ""
    """Which split of that to train on: of a hub dataset or saved folder, or files so named in a
    folder; empty for all there is."""
    test_path: str = ""
    """Where the test problems are; empty: in path."""
    test_split: str = ""
    """Which split of that they are; with test_path empty too, the test split is drawn by hash."""
    test_share: float = 0.1
    """Share of questions that the hash holds out, from 0 to 1 (1: all are test problems)."""
    unusable: Literal["refuse", "skip"] = "refuse"
    """What happens to a row that makes no problem: stop with its file, number and reason, or leave
    such rows out and say so."""
    solve_rates: str = ""
    """File with rows {"problem_id", "solve_rate"}, or a row for each sampled answer, {"problem_id",
    "correct"} or {"problem_id", "verdict"} (a run's rollouts.jsonl.gz); empty: no filter."""
    min_solve_rate: float = 0.0
    """Training problems solved less often than this are left out."""
    max_solve_rate: float = 1.0
    """Training problems solved more often than this are left out."""
    instruction: str = ""
    """Text behind the question in the prompt."""
    template: str = PLACE
    """The prompt, with {prompt} where question and instruction stand: a chat model's turn marks."""
    reward: str = ""
    """Your own verifier, path/to/file.py:function, called with (completion, problem); empty: the
    task's own. It returns true or false, a Verdict, or None where it cannot tell."""

    def __post_init__(self) -> None:
        """Refuse numbers and texts that make no task, and make paths absolute for the record."""
        place = f"task {self.name or type(self).__name__}"
        for name in ("test_share", "min_solve_rate", "max_solve_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{place}: {name} must be in [0, 1], got {getattr(self, name)}")
        if self.min_solve_rate > self.max_solve_rate:
            raise UsageError(
                f"{place}: min_solve_rate = {self.min_solve_rate} is above "
                f"max_solve_rate = {self.max_solve_rate}"
            )
        if (self.min_solve_rate, self.max_solve_rate) != (0.0, 1.0) and not self.solve_rates:
            raise UsageError(f"{place}: a filter by solve rate needs solve_rates, a file of them")
        if self.template.count(PLACE) != 1:
            raise UsageError(f"{place}: template must hold {PLACE} once, got {self.template!r}")
        if not self.path:
            raise UsageError(f"{place} needs path, where its data is")
        for name in ("path", "test_path", "solve_rates"):
            value = getattr(self, name)
            if value and not value.startswith(HUB):
                object.__setattr__(self, name, str(Path(value).absolute()))
        if self.reward:
            file, _, function = self.reward.rpartition(":")
            object.__setattr__(self, "reward", f"{Path(file).absolute()}:{function}")
            if not callable(load_object("reward", self.reward)):
                raise UsageError(f"reward {self.reward!r}: {file} has no function {function!r}")

    @abstractmethod
    def entry(self, row: Row) -> Entry:
        """What a row asks.

        Raises:
            RowError: It makes no problem.
        """

    @abstractmethod
    def verify_all(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        """The task's own verdict on each completion."""

    def verify(self, problem: Problem, completion: str) -> Verdict:
        """Judge one completion."""
        return self.verify_batch([problem], [completion])[0]

    def verify_batch(
        self, problems: Sequence[Problem], completions: Sequence[str]
    ) -> list[Verdict]:
        """Judge each completion, by the user's reward function where there is one."""
        if self.reward:
            function = load_object("reward", self.reward)
            assert callable(function)
            return [
                verdict_of(function(completion, problem), self.reward, problem.id)
                for problem, completion in zip(problems, completions, strict=True)
            ]
        return self.verify_all(problems, completions)

    def generate(self, split: str) -> Iterator[Problem]:
        """Yield the problems of a split in the order of the data, each question once.

        The first row left out for each reason is told in a warning.
        """
        return self.walk(split, Tally())

    def census(self, split: str) -> Tally:
        """Count what becomes of all rows of a split."""
        tally = Tally(is_told=False)
        for _ in self.walk(split, tally):
            pass
        return tally

    def walk(self, split: str, tally: Tally) -> Iterator[Problem]:
        """Yield the problems of a split, and count what is left out.

        Raises:
            UsageError: A row makes no problem and ``unusable`` is ``refuse``; the data cannot be
                read.
        """
        has_own_test = bool(self.test_path or self.test_split)
        held_out = _keys_of_test(self) if has_own_test and split == "train" else frozenset()
        rates = _rates_of(self) if split == "train" else None
        seen: dict[str, tuple[str, str]] = {}
        for row, entry in self._entries(split, tally):
            key = question_key(entry.question)
            if not has_own_test and is_held_out(key, self.test_share) != (split == "test"):
                continue
            tally.num_rows += 1
            problem = Problem(entry.id or key[:16], self._prompt(entry), entry.data)
            if key in seen:
                where, answer = seen[key]
                kind = "repeated" if answer == entry.answer else "contradicts"
                but = "" if answer == entry.answer else f" but answers {entry.answer!r}"
                tally.leave_out(
                    kind, f"{row.where} asks what {where} asks{but}; a question is used once"
                )
            elif key in held_out:
                tally.leave_out(
                    "overlap",
                    f"{row.where} asks what a test problem asks; such problems are not trained on",
                )
            elif rates is not None and problem.id not in rates:
                tally.leave_out(
                    "unmeasured",
                    f"problem {problem.id} ({row.where}) has no solve rate in {self.solve_rates}; "
                    "such problems are left out",
                )
            elif rates is not None and not (
                self.min_solve_rate <= rates[problem.id] <= self.max_solve_rate
            ):
                tally.leave_out(
                    "filtered",
                    f"problem {problem.id} is solved {rates[problem.id]:.3f} of the time; those "
                    f"outside [{self.min_solve_rate}, {self.max_solve_rate}] are left out",
                )
            else:
                tally.num_problems += 1
                yield problem
            seen.setdefault(key, (row.where, entry.answer))

    def _prompt(self, entry: Entry) -> str:
        return self.template.replace(PLACE, entry.question + entry.form + self.instruction)

    def _entries(self, split: str, tally: Tally) -> Iterator[tuple[Row, Entry]]:
        """Every row of the files of a split that makes a problem, with what it asks."""
        path, name = self.path, self.split
        if split == "test" and (self.test_path or self.test_split):
            path, name = self.test_path or self.path, self.test_split
        for row in read_rows(path, name, self.columns):
            try:
                if row.defect is not None:
                    raise row.error(row.defect)
                yield row, self.entry(row)
            except RowError as error:
                if self.unusable == "refuse":
                    raise UsageError(
                        f'{error}; task.unusable = "skip" leaves such rows out'
                    ) from error
                tally.leave_out("unusable", f"{error}; such rows are left out")


@lru_cache(maxsize=4)
def _keys_of_test(task: DatasetTask) -> frozenset[str]:
    """Keys of all questions of a task's own test data."""
    entries = task._entries("test", Tally(is_told=False))
    return frozenset(question_key(entry.question) for _, entry in entries)


def _rates_of(task: DatasetTask) -> dict[str, float] | None:
    return read_solve_rates(task.solve_rates) if task.solve_rates else None


def verdict_of(value: Any, reward: str, problem_id: str) -> Verdict:
    """What a reward function returned, as a verdict.

    True or 1 is right, false or 0 wrong; None says that it cannot tell, which leaves the rollout
    out of its group. A shaped number is refused: solve rates count successes, and a length penalty
    would turn into one.

    Raises:
        UsageError: It returned something else.

    >>> verdict_of(None, "my.py:score", "p1").outcome
    <Outcome.ERROR: 'error'>
    """
    if isinstance(value, Verdict):
        return value
    if value is None:
        return Verdict(Outcome.ERROR, "the reward function cannot tell")
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if number not in (0.0, 1.0):
        raise UsageError(
            f"reward {reward} must return true or false, a Verdict or None, got {value!r} for "
            f"problem {problem_id}"
        )
    return Verdict(Outcome.RIGHT if number else Outcome.WRONG, "by the reward function")


@register_task("dataset")
@dataclass(frozen=True, kw_only=True)
class Dataset(DatasetTask):
    """Any dataset, judged by a reward function of yours.

    ``reward`` is called with the completion and the problem, whose ``data`` is the row:
    ``problem.data["answer"]`` is its column ``answer``.
    """

    question: str = "question"
    """The column that holds the question: a text, or a list of chat messages, of which the last is
    taken."""

    def __post_init__(self) -> None:
        """Refuse a task without a verifier."""
        super().__post_init__()
        if not self.reward:
            raise UsageError("task dataset needs reward, your verifier as path/to/file.py:function")

    def entry(self, row: Row) -> Entry:
        """The named column."""
        return Entry(question_of(row, self.question), row)

    def verify_all(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        """Never called: there is always a reward function."""
        raise AssertionError("a dataset without a reward function was refused")


def question_of(row: Row, column: str) -> str:
    """The text of a column that holds a question, or chat messages that end in one.

    Raises:
        RowError: It holds neither.
    """
    value = row[column]
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    if not isinstance(value, str) or not value.strip():
        raise row.error(f"field {column!r} holds no question")
    return value
