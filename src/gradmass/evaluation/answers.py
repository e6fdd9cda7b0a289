"""What is asked of a model and what comes back, whoever runs the model."""

import hashlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from gradmass.tasks import Problem
from gradmass.types import UsageError

PromptFormat: TypeAlias = Literal["chat", "plain"]
"""The prompt as a user's turn in the model's chat template, or the bare text to be continued."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How answers are drawn.

    Args:
        temperature: Divides the logits; 0 takes the likeliest token.
        top_p: Tokens are drawn from the fewest whose probabilities sum to at least this.
        max_new_tokens: Longest answer, end token included; a longer one is cut.
        seed: Seed of the draws.
        stop: Texts before which an answer ends.

    Raises:
        UsageError: A number out of range, or an empty stop text.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what samples nothing."""
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature must be finite and at least 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if self.seed < 0:
            raise UsageError(f"seed must be at least 0, got {self.seed}")
        if not all(self.stop):
            raise UsageError("a text to stop at must not be empty")

    @property
    def is_whole_distribution(self) -> bool:
        """Whether answers are drawn from the model's own distribution."""
        return self.temperature == 1 and self.top_p == 1 and not self.stop


@dataclass(frozen=True, slots=True)
class Question:
    """A problem, asked for the ``sample``-th time (from 0)."""

    problem: Problem
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model wrote.

    Args:
        problem_id: Of the problem.
        sample: Which of the problem's samples.
        completion: The text, without end token or stop text.
        is_truncated: Whether it was cut at the limit on new tokens.
        num_tokens: Tokens, end token included; None where the server does not say.
        reasoning: What a server parted from the answer as reasoning; not judged.
        failure: Why there is nothing to judge, where the machinery kept the answer back.
    """

    problem_id: str
    sample: int
    completion: str
    is_truncated: bool
    num_tokens: int | None
    reasoning: str | None = None
    failure: str | None = None

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Answer":
        """Invert ``row``."""
        fields: dict[str, Any] = {name: row.get(name) for name in cls.__slots__}
        return cls(**fields)

    def row(self) -> dict[str, Any]:
        """The fields for a record; what is None by default is left out."""
        optional = ("reasoning", "failure")
        values = {name: getattr(self, name) for name in self.__slots__}
        return {k: v for k, v in values.items() if not (k in optional and v is None)}


class Engine(Protocol):
    """What asks a model: on this machine, or behind an address."""

    def answers(
        self,
        questions: Iterable[Question],
        is_done: Callable[[Question], bool],
        keep: Callable[[Answer], None],
    ) -> Generator[list[Answer], None, None]:
        """Yield answers as they come, some at a time, each question's once.

        Args:
            questions: All that is asked, in order, also what is answered already: how questions
                are put together may not depend on where an evaluation was interrupted.
            is_done: Whether a question is answered already; such a one is not asked again.
            keep: To be called with each answer the moment it is there, from any thread.
        """
        ...


def stream_key(seed: int, problem_id: str) -> int:
    """128 bits that name the random draws of a problem under a seed."""
    name = f"evaluation {seed} {problem_id}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:16], "big")


def request_seed(seed: int, problem_id: str, sample: int) -> int:
    """The seed that a server is sent with one question, below 2^31.

    >>> request_seed(0, "a", 0) == request_seed(0, "a", 0) != request_seed(0, "a", 1)
    True
    """
    name = f"{stream_key(seed, problem_id)} {sample}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:4], "big") >> 1
