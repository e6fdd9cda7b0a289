"""Verdicts of a batch of answers."""

import threading
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor

from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem, Task
from gradmass.types import UsageError

ONE_AT_A_TIME = threading.Lock()
"""A verifier sees one batch at a time, though with a policy lag from a thread of its own."""


def judge(
    task: Task, problems: Sequence[Problem], texts: Sequence[str], is_ended: Sequence[bool]
) -> list[Verdict]:
    """A verdict for each answer; the answers to a problem follow one another.

    The task sees all answers that ended at once. One that was cut at the limit did not end, so it
    does not follow the format, and nothing is spent on judging it.

    Raises:
        UsageError: The task returns something else than a verdict for each answer, or the processes
            and connections it judges with broke down.
    """
    group_size = len(texts) // len(problems)
    verdicts = [Verdict(Outcome.UNPARSED, "cut at max_new_tokens") for _ in texts]
    ended = [i for i in range(len(texts)) if is_ended[i]]
    with ONE_AT_A_TIME:
        try:
            judged = task.verify_batch(
                [problems[i // group_size] for i in ended], [texts[i] for i in ended]
            )
        except (BrokenExecutor, EOFError, OSError) as error:
            raise UsageError(
                f"the verifier of task {task.name!r} broke down: {error or type(error).__name__}"
            ) from error
    if len(judged) != len(ended):
        raise UsageError(
            f"verify_batch of task {task.name!r} must return a verdict for each of {len(ended)} "
            f"answers, got {len(judged)}"
        )
    for i, verdict in zip(ended, judged, strict=True):
        if not isinstance(verdict, Verdict):
            raise UsageError(f"verify of task {task.name!r} must return a Verdict, got {verdict!r}")
        verdicts[i] = verdict
    return verdicts
