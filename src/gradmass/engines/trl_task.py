"""A task of this package as TRL wants it: a data set of prompts and a reward function."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradmass.evaluation.judge import judge
from gradmass.rewards import Verdict
from gradmass.tasks import Problem, Task


@dataclass(frozen=True)
class Judged:
    """An answer with its verdict, and its length with the end token if it ended."""

    text: str
    verdict: Verdict
    num_tokens: int


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
        self.judged: list[Judged] = []
        """The last batch."""

    def judge(
        self, problem_ids: Sequence[str], completion_ids: Sequence[Sequence[int]]
    ) -> list[Judged]:
        """Judge answers given as tokens, with the end token where they ended."""
        end = self.tokenizer.eos_token_id
        tokens_B = [list(tokens) for tokens in completion_ids]
        ended_B = [bool(tokens) and tokens[-1] == end for tokens in tokens_B]
        texts_B = [
            self.tokenizer.decode(
                tokens[:-1] if is_ended else tokens, clean_up_tokenization_spaces=False
            )
            for tokens, is_ended in zip(tokens_B, ended_B, strict=True)
        ]
        problems_B = [self.problems[key] for key in problem_ids]
        verdicts_B = judge(self.task, problems_B, texts_B, ended_B)
        return [
            Judged(text, verdict, len(tokens))
            for text, verdict, tokens in zip(texts_B, verdicts_B, tokens_B, strict=True)
        ]

    def __call__(
        self,
        completion_ids: Sequence[Sequence[int]],
        problem_id: Sequence[str],
        **columns: Any,
    ) -> list[float | None]:
        """The rewards of a batch; TRL passes prompts, completions and columns by name."""
        self.judged = self.judge(problem_id, completion_ids)
        verdicts_B = [judged.verdict for judged in self.judged]
        return [float(v.is_right) if v.is_scorable else None for v in verdicts_B]


def task_rows(problems: Sequence[Problem]) -> list[dict[str, str]]:
    """Rows of a data set (``datasets.Dataset.from_list``): prompt and problem id.

    >>> from gradmass.tasks.countdown import Countdown
    >>> sorted(task_rows(Countdown().problems("train", 1))[0])
    ['problem_id', 'prompt']
    """
    return [{"prompt": problem.prompt, "problem_id": problem.id} for problem in problems]
