"""A task of this package as TRL wants it: a data set of prompts and a reward function."""

from collections.abc import Sequence
from typing import Any

from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem, Task
from gradmass.types import UsageError


class TaskReward:
    """A task's verifier as a reward function of TRL: 1 right, 0 not, None unscorable.

    An answer cut at the longest length does not follow the format, whatever its text.

    Args:
        task: Whose verifier judges.
        problems: Every problem that may be asked, found by the column ``problem_id``.
        tokenizer: Of the policy: decodes the answers, and knows the end token.

    >>> from gradmass.tasks.countdown import Countdown
    >>> problems = Countdown().problems("train", 2)
    >>> TaskReward(Countdown(), problems, None).__name__
    'countdown'
    """

    def __init__(self, task: Task, problems: Sequence[Problem], tokenizer: Any) -> None:
        self.task, self.tokenizer = task, tokenizer
        self.problems = {problem.id: problem for problem in problems}
        self.__name__ = task.name.rpartition(":")[2]
        """What TRL calls it in its logs: ``rewards/NAME/mean``."""

    def judge(
        self, problem_ids: Sequence[str], completion_ids: Sequence[Sequence[int]]
    ) -> list[Verdict]:
        """A verdict for each answer, given as tokens with the end token if it ended."""
        end = self.tokenizer.eos_token_id
        verdicts = []
        for problem_id, tokens in zip(problem_ids, completion_ids, strict=True):
            tokens = list(tokens)
            if not tokens or tokens[-1] != end:
                verdicts.append(Verdict(Outcome.UNPARSED, "cut at max_completion_length"))
                continue
            text = self.tokenizer.decode(tokens[:-1], clean_up_tokenization_spaces=False)
            verdict = self.task.verify(self.problems[problem_id], text)
            if not isinstance(verdict, Verdict):
                raise UsageError(
                    f"verify of task {self.task.name!r} must return a Verdict, got {verdict!r}"
                )
            verdicts.append(verdict)
        return verdicts

    def __call__(
        self,
        completion_ids: Sequence[Sequence[int]],
        problem_id: Sequence[str],
        **columns: Any,
    ) -> list[float | None]:
        """The rewards of a batch; TRL passes prompts, completions and columns by name."""
        verdicts = self.judge(problem_id, completion_ids)
        return [float(v.is_right) if v.is_scorable else None for v in verdicts]


def task_rows(problems: Sequence[Problem]) -> list[dict[str, str]]:
    """Rows of a data set (``datasets.Dataset.from_list``): prompt and problem id.

    >>> from gradmass.tasks.countdown import Countdown
    >>> sorted(task_rows(Countdown().problems("train", 1))[0])
    ['problem_id', 'prompt']
    """
    return [{"prompt": problem.prompt, "problem_id": problem.id} for problem in problems]
