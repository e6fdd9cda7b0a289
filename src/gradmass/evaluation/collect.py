"""The loop of an evaluation: ask, keep, judge, write, count."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol

from gradmass.evaluation.answers import Answer, Engine, Question
from gradmass.evaluation.judge import judge
from gradmass.evaluation.tally import Tally
from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem, Task

AT_ONCE = 1_000
"""Answers of an earlier process that are judged together."""


class Folder(Protocol):
    """Where samples are kept."""

    def keep(self, row: dict[str, Any]) -> None:
        """Keep an answer that has no verdict yet."""

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Keep samples with their verdicts."""


def collect(
    task: Task,
    split: str,
    problems: Sequence[Problem],
    engine: Engine,
    tally: Tally,
    *,
    folder: Folder | None = None,
    waiting: Sequence[Answer] = (),
    on_samples: Callable[[int], None] = lambda number: None,
) -> None:
    """Ask all questions of a split that are not done, and judge the answers.

    Args:
        task: What judges.
        split: Name of the split, for the rows.
        problems: What is asked.
        engine: What asks.
        tally: What is done already; counts what comes.
        folder: Where samples are kept; None keeps none.
        waiting: Answers that came before an interruption and have no verdict yet.
        on_samples: Called with the number of new samples, as they come.

    Raises:
        UsageError: From the engine, or a verifier that returns no verdict.
    """
    problem_of = {problem.id: problem for problem in problems}

    def finish(answers: Sequence[Answer]) -> None:
        verdicts = judge_answers(task, [problem_of[a.problem_id] for a in answers], answers)
        rows = [sample_row(split, *pair) for pair in zip(answers, verdicts, strict=True)]
        if folder is not None:
            folder.write(rows)
        for row in rows:
            tally.add(row)
        on_samples(len(rows))

    def keep(answer: Answer) -> None:
        if folder is not None:
            folder.keep({"split": split, **answer.row()})

    for start in range(0, len(waiting), AT_ONCE):
        finish(waiting[start : start + AT_ONCE])
    if tally.num_done < tally.num_asked:
        questions = _questions(problems, tally)
        # Closed also where the verifier fails: no more is asked then.
        with closing(engine.answers(questions, tally.is_done, keep)) as stream:
            for answers in stream:
                finish(answers)


def _questions(problems: Sequence[Problem], tally: Tally) -> Iterator[Question]:
    for problem in problems:
        for sample in range(tally.num_samples):
            yield Question(problem, sample)


def judge_answers(
    task: Task, problems: Sequence[Problem], answers: Sequence[Answer]
) -> list[Verdict]:
    """A verdict for each answer, in order; one that the machinery kept back is an error.

    Raises:
        UsageError: The task returned something else than a verdict for each.
    """
    is_whole = [not answer.is_truncated and answer.failure is None for answer in answers]
    verdicts = judge(task, problems, [answer.completion for answer in answers], is_whole)
    return [
        verdict if answer.failure is None else Verdict(Outcome.ERROR, answer.failure)
        for answer, verdict in zip(answers, verdicts, strict=True)
    ]


def sample_row(split: str, answer: Answer, verdict: Verdict) -> dict[str, Any]:
    """A row of ``samples.jsonl.gz``; ``correct`` is None where nothing is known of the answer."""
    tests = {"num_passed": verdict.num_passed, "num_tests": verdict.num_tests}
    return {
        "split": split,
        **answer.row(),
        "correct": verdict.is_right if verdict.is_scorable else None,
        "outcome": str(verdict.outcome),
        "detail": verdict.detail,
        **{name: value for name, value in tests.items() if value is not None},
    }
