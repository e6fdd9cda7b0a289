"""A task of this package as verl wants it: a data set of prompts and a reward manager.

``reward.reward_manager.source=importlib``, ``.module.path=pkg://gradmass.engines.verl_task`` and
``.name=TaskRewardManager``. A reward function of verl is given text alone; a manager sees the
tokens, and so whether an answer ended.
"""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradmass.engines.trl_task import TaskReward
from gradmass.rewards import Verdict
from gradmass.tables import from_tables
from gradmass.tasks import Problem, Task
from gradmass.tasks.dressed import dress

if TYPE_CHECKING:
    TaskRewardManager: Any

TASK_FILE = "task.json"


def task_rows(
    problems: Iterable[tuple[str, Problem]], task: Task, file: Path
) -> list[dict[str, Any]]:
    """Rows of verl's data set.

    Args:
        problems: Each with its split.
        task: Theirs.
        file: Where the task is described for the manager, which runs in other processes.
    """
    return [
        {
            "prompt": [{"role": "user", "content": problem.prompt}],
            "data_source": f"{task.name.rpartition(':')[2]}/{split}",
            "reward_model": {"style": "rule", "ground_truth": problem.id},
            "extra_info": {"index": i, "split": split, "task": str(file)},
        }
        for i, (split, problem) in enumerate(problems)
    ]


@lru_cache(maxsize=4)
def _reward(file: str, split: str) -> tuple[Task, tuple[Problem, ...]]:
    described = json.loads(Path(file).read_text(encoding="utf-8"))
    kind: type[Task] = Task  # type: ignore[type-abstract]
    # Prompts were rendered when the rows were written; what is judged here has only the form.
    task = dress(from_tables(kind, described["task"], file), str, described["format"])
    return task, task.problems(split, described["num_problems"][split])


def judge(
    problem_id: str, extra_info: dict[str, Any], tokens: Sequence[int], tokenizer: Any
) -> Verdict:
    """A verdict on an answer given as tokens, with the end token if it ended."""
    task, problems = _reward(str(extra_info["task"]), str(extra_info["split"]))
    (judged,) = TaskReward(task, problems, tokenizer).judge([problem_id], [tokens])
    return judged.verdict


def result_of(verdict: Verdict) -> dict[str, Any]:
    """What a reward manager returns: the reward, and what is kept beside it.

    An answer that nobody could judge has reward 0, and the trainers ``gradmass_*`` leave it out.
    """
    return {
        "reward_score": float(verdict.is_right),
        "reward_extra_info": {
            "acc": verdict.is_right,
            "verdict": str(verdict.outcome),
            "detail": verdict.detail,
        },
    }


def _make_manager() -> Any:
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

    class Manager(RewardManagerBase):
        """Judges the answers of one of this package's tasks."""

        async def run_single(self, data: Any) -> dict[str, Any]:
            """Judge the last output of a session, in a thread beside verl's loop."""
            item = data[-1:][0]
            response_T = item.batch["responses"]
            num_tokens = int(item.batch["attention_mask"][-len(response_T) :].sum())
            extra_info = item.non_tensor_batch["extra_info"]
            problem_id = item.non_tensor_batch["reward_model"]["ground_truth"]
            tokens = response_T[:num_tokens].tolist()
            verdict = await self.loop.run_in_executor(
                None, judge, problem_id, extra_info, tokens, self.tokenizer
            )
            return result_of(verdict)

    Manager.__name__ = Manager.__qualname__ = "TaskRewardManager"
    return Manager


def __getattr__(name: str) -> Any:
    if name != "TaskRewardManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    cls = globals()[name] = _make_manager()
    return cls
