"""Verdicts of a batch of answers."""

from collections.abc import Sequence

from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem, Task
from gradmass.types import UsageError


def judge(
    task: Task, problems: Sequence[Problem], texts: Sequence[str], is_ended: Sequence[bool]
) -> list[Verdict]:
    """A verdict for each answer; the answers to a problem follow one another.

    An answer that was cut at the limit did not end, so it does not follow the format.
    """
    group_size = len(texts) // len(problems)
    verdicts = [
        task.verify(problems[i // group_size], text)
        if is_ended[i]
        else Verdict(Outcome.UNPARSED, "cut at max_new_tokens")
        for i, text in enumerate(texts)
    ]
    for verdict in verdicts:
        if not isinstance(verdict, Verdict):
            raise UsageError(f"verify of task {task.name!r} must return a Verdict, got {verdict!r}")
    return verdicts
