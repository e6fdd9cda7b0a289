"""Procedural problems of the library reasoning-gym, under a strict rule of success.

The library's scores are shaped: in many of its datasets a wrong or empty answer earns something.
Here an answer is right at full score, else it is not. Some scorers evaluate the answer as Python,
hang on it or raise; so they run in processes of their own, which are killed at a time limit, and in
which files to write, programs and the network are refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

from gradmass.rewards import Outcome, Verdict
from gradmass.rewards.pool import Failure, Pool, Reply
from gradmass.tasks.base import Problem, Task, register_task
from gradmass.tasks.dataset import is_held_out, question_key
from gradmass.tasks.reasoning_gym_worker import parse_options
from gradmass.types import UsageError

FULL_SCORE = 1 - 1e-9
"""A score below this is no success; the library's full score is 1."""
OPEN, CLOSE = "<answer>", "</answer>"
DRAWN_AT_ONCE = 16
DRAW_LIMIT_S = 600.0
"""Longest wait for items: some take seconds each."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a reasoning-gym dataset.

    Args:
        index: Its number in the dataset.
        question: Its question.
        answer: An answer that is right; None where the library states none.
        entry: The whole item, for the scorer.
    """

    index: int
    question: str
    answer: str | None = field(compare=False)
    entry: str = field(compare=False, repr=False)


@register_task("reasoning_gym")
@dataclass(frozen=True, kw_only=True)
class ReasoningGym(Task):
    """One of reasoning-gym's datasets, by its name there.

    Prompt: the item's question, and where the answer stands between tags, ``instruction``. Without
    an answer the completion is unparsed. Right: the dataset's own ``score_answer`` gives full
    score. Wrong: it gives less, or raises. Problems are the dataset's items in order, each question
    once; the test split holds the questions whose hash says so.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "test")

    dataset: str
    """Name of the dataset, such as countdown, chain_sum or sudoku."""
    options: str = ""
    """Fields of the dataset's own configuration, as in TOML: "min_numbers = 3, max_numbers = 4"."""
    seed: int = 0
    """Seed of the dataset. Most draw item i from seed + i: seeds closer than size share items."""
    size: int = 10_000
    """Items drawn, of which both splits are made."""
    test_share: float = 0.1
    """Share of questions that the hash holds out, from 0 to 1."""
    answer: Literal["tags", "all"] = "tags"
    """Which part of a completion is the answer: between its last tags, or all of it."""
    instruction: str = "\n\nGive the final answer between <answer> and </answer>."
    """Text behind the question where the answer stands between tags."""
    num_workers: int = 2
    """Processes that score."""
    time_limit_s: float = 5.0
    """Seconds that scoring an answer may take; the answer is then a timeout."""

    def __post_init__(self) -> None:
        """Refuse what makes no dataset."""
        if self.size < 1:
            raise UsageError(f"reasoning_gym needs size of at least 1, got {self.size}")
        if not 0 <= self.test_share <= 1:
            raise UsageError(f"reasoning_gym: test_share must be in [0, 1], got {self.test_share}")
        if self.answer not in ("tags", "all"):
            raise UsageError(f"reasoning_gym: answer must be tags or all, got {self.answer!r}")
        if self.num_workers < 1:
            raise UsageError(f"reasoning_gym needs num_workers above 0, got {self.num_workers}")
        if not 0 < self.time_limit_s < float("inf"):
            raise UsageError(f"reasoning_gym needs time_limit_s above 0, got {self.time_limit_s}")
        parse_options(self.options)

    def generate(self, split: str) -> Iterator[Problem]:
        """Yield the items whose question is of the split, each question once.

        Raises:
            UsageError: The library is not installed, or has no such dataset.
        """
        seen: set[str] = set()
        for start in range(0, self.size, DRAWN_AT_ONCE):
            drawn = self._draw(start, min(start + DRAWN_AT_ONCE, self.size))
            for index, (question, answer, entry) in enumerate(drawn, start):
                key = question_key(question)
                if is_held_out(key, self.test_share) == (split == "test") and key not in seen:
                    seen.add(key)
                    item = Item(index, question, answer, entry)
                    yield Problem(key[:16], self._prompt(question), item)

    def _draw(self, start: int, stop: int) -> list[list[Any]]:
        request = ["draw", self.dataset, self.options, self.seed, self.size, start, stop]
        (reply,) = shared_pool(1, DRAW_LIMIT_S).map([request])
        if isinstance(reply.value, dict):
            raise UsageError(reply.value["usage"])
        if reply.failure is not None:
            raise UsageError(
                f"reasoning_gym's {self.dataset} cannot draw items {start} to {stop}: "
                f"{reply.failure} {reply.detail}".rstrip()
            )
        drawn: list[list[Any]] = reply.value
        return drawn

    def _prompt(self, question: str) -> str:
        return question if self.answer == "all" else question.rstrip() + self.instruction

    def verify(self, problem: Problem, completion: str) -> Verdict:
        """Judge one completion."""
        return self.verify_batch([problem], [completion])[0]

    def verify_batch(
        self, problems: Sequence[Problem], completions: Sequence[str]
    ) -> list[Verdict]:
        """Score all answers in worker processes."""
        unparsed = Verdict(Outcome.UNPARSED, f"no answer between {OPEN} and {CLOSE}")
        verdicts = [unparsed for _ in completions]
        requests = {
            i: ["score", self.dataset, self.options, problem.data.entry, answer]
            for i, (problem, completion) in enumerate(zip(problems, completions, strict=True))
            if (answer := self.extract(completion)) is not None
        }
        pool = shared_pool(self.num_workers, self.time_limit_s)
        replies = pool.map(list(requests.values()))
        for i, reply in zip(requests, replies, strict=True):
            verdicts[i] = verdict_of_reply(reply)
        return verdicts

    def extract(self, completion: str) -> str | None:
        """The answer in a completion, without surrounding spaces; None where there is none."""
        if self.answer == "all":
            return completion.strip() or None
        _, opened, rest = completion.rpartition(OPEN)
        text, closed, _ = rest.partition(CLOSE)
        return (text.strip() or None) if opened and closed else None

    def golds(self, problem: Problem) -> tuple[str, ...]:
        """The item's answer, or the example its metadata holds, in the asked form."""
        answer = problem.data.answer
        if answer is None:
            return ()
        return (answer if self.answer == "all" else f"{OPEN}{answer}{CLOSE}",)


def verdict_of_reply(reply: Reply) -> Verdict:
    """A scorer's reply as a verdict."""
    outcome, detail = Outcome.WRONG, ""
    match reply.failure:
        case None if reply.value["error"]:
            # What a model wrote made the scorer raise: that is a wrong answer, not a broken judge.
            detail = f"the scorer raised {reply.value['error']}"
        case None:
            outcome = Outcome.RIGHT if reply.value["score"] >= FULL_SCORE else Outcome.WRONG
            detail = f"score {reply.value['score']:.4g}"
        case Failure.TIMEOUT:
            outcome, detail = Outcome.TIMEOUT, f"scoring took over {reply.seconds:.1f} s"
        case Failure.MEMORY:
            detail = "the scorer ran out of memory"
        case Failure.CRASH:
            detail = f"the scorer crashed ({reply.detail})"
        case Failure.MACHINERY:
            outcome, detail = Outcome.ERROR, f"no scorer: {reply.detail}"
    return Verdict(outcome, detail, reply.seconds)


@lru_cache(maxsize=4)
def shared_pool(num_workers: int, time_limit_s: float) -> Pool:
    """The processes that all tasks of these settings share; they end with this process."""
    if find_spec("reasoning_gym") is None:
        raise UsageError(
            "task reasoning_gym needs reasoning-gym, which is not installed: pip install "
            "'gradmass[tasks]'"
        )
    return Pool(
        "gradmass.tasks.reasoning_gym_worker",
        num_workers=num_workers,
        time_limit_s=time_limit_s,
        memory_mb=1024,
    )
