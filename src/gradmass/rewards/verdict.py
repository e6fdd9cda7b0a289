"""A reward is a verdict: one of five outcomes, never a bare number."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What became of a rollout's answer."""

    RIGHT = "right"
    """Format and answer are both right."""
    WRONG = "wrong"
    """It could be read, and it is not an answer to the problem."""
    UNPARSED = "unparsed"
    """It does not follow the format (a truncated answer does not)."""
    TIMEOUT = "timeout"
    """Judging it took longer than its limit."""
    ERROR = "error"
    """The verifier's machinery failed; nothing is known about the answer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome with its reason.

    Args:
        outcome: One of the five outcomes.
        detail: Why, in a few words, for a person who reads the rollouts.
        seconds: Wall time the judgement took; None where nobody measured.
        num_passed: Tests the answer passed before judging stopped; None without tests.
        num_tests: Tests of the problem; None without tests.
    """

    outcome: Outcome
    detail: str = ""
    seconds: float | None = None
    num_passed: int | None = None
    num_tests: int | None = None

    @property
    def is_right(self) -> bool:
        """Whether the rollout is a success (what solve rates count)."""
        return self.outcome is Outcome.RIGHT

    @property
    def is_scorable(self) -> bool:
        """Whether the rollout counts at all: an infrastructure error says nothing of the policy.

        Unscorable rollouts stay out of the group's baseline and get weight 0.
        """
        return self.outcome is not Outcome.ERROR
