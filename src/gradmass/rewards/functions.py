"""The verifiers under the signatures that TRL and verl call: nothing but the adaptation.

TRL: ``GRPOTrainer(reward_funcs=[maths_reward()], ...)``; a dataset column holds the golds. verl:
``custom_reward_function.path`` is this file, ``custom_reward_function.name`` is ``compute_score``,
or ``compute_scores`` for a reward manager that scores a batch at once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradmass.rewards.code import CodeProblem, CodeVerifier
from gradmass.rewards.maths import MathsVerifier
from gradmass.rewards.shared import shared_verifier
from gradmass.rewards.verdict import Verdict
from gradmass.types import UsageError

RewardFunction = Callable[..., list[float | None]]
"""What TRL calls: ``function(prompts=..., completions=..., **columns)``."""


def maths_reward(column: str = "answer", **settings: Any) -> RewardFunction:
    r"""Make a TRL reward function that judges answers against the golds in a dataset column.

    Args:
        column: Name of the column with the gold answers.
        settings: Arguments of ``MathsVerifier``.

    Returns:
        A function that returns 1 for right, 0 for anything else, and None, which TRL leaves out
        of the reward, where nothing can be said of the answer.

    >>> maths_reward()(completions=[r"\boxed{0.5}", "none"], answer=["1/2", "3"])
    [1.0, 0.0]
    """

    def maths(*, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        golds = _column(columns, column, "maths_reward")
        verifier = shared_verifier(MathsVerifier, **settings)
        return list(map(_value, verifier.verify(golds, list(map(text_of, completions)))))

    return maths


def code_reward(column: str = "problem", **settings: Any) -> RewardFunction:
    """Make a TRL reward function that runs programs against the tests in a dataset column.

    Args:
        column: Name of the column with the problems: JSON text, or objects, as
            ``CodeProblem.from_json`` reads.
        settings: Arguments of ``CodeVerifier``.

    Returns:
        A function that returns 1 for a program that passes all tests, 0 for one that does not, and
        None, which TRL leaves out of the reward, where the sandbox failed.
    """

    def code(*, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        problems = list(map(problem_of, _column(columns, column, "code_reward")))
        verifier = shared_verifier(CodeVerifier, **settings)
        return list(map(_value, verifier.verify(problems, list(map(text_of, completions)))))

    return code


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **_: Any
) -> dict[str, Any]:
    """Judge one answer in verl.

    Args:
        data_source: Ignored: the ground truth says what it is.
        solution_str: What the policy wrote.
        ground_truth: A problem with ``tests`` (JSON text or an object), else a mathematical gold.
        extra_info: Ignored.

    Returns:
        ``score`` (1 right, else 0), ``acc`` (the same as a boolean), ``verdict`` and ``detail``.
        verl cannot leave a rollout out: one that could not be judged has score 0 and verdict
        ``error``.
    """
    (found,) = compute_scores([data_source], [solution_str], [ground_truth], [extra_info])
    return found


def compute_scores(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Any] | None = None,
    **_: Any,
) -> list[dict[str, Any]]:
    """Judge a batch in verl; see ``compute_score``."""
    code: dict[int, CodeProblem] = {}
    maths: dict[int, str] = {}
    for i, truth in enumerate(ground_truths):
        problem = _problem_or_none(truth)
        if problem is None:
            maths[i] = str(truth)
        else:
            code[i] = problem
    verdicts: dict[int, Verdict] = {}
    if code:
        found = shared_verifier(CodeVerifier).verify(
            list(code.values()), [solution_strs[i] for i in code]
        )
        verdicts |= dict(zip(code, found, strict=True))
    if maths:
        found = shared_verifier(MathsVerifier).verify(
            list(maths.values()), [solution_strs[i] for i in maths]
        )
        verdicts |= dict(zip(maths, found, strict=True))
    return [
        {
            "score": float(verdicts[i].is_right),
            "acc": verdicts[i].is_right,
            "verdict": str(verdicts[i].outcome),
            "detail": verdicts[i].detail,
        }
        for i in range(len(solution_strs))
    ]


def text_of(completion: Any) -> str:
    """The text of a completion: a text, or chat messages, of which the last is the answer.

    >>> text_of([{"role": "assistant", "content": "7"}])
    '7'
    """
    if isinstance(completion, str):
        return completion
    return str(completion[-1]["content"])


def problem_of(problem: Any) -> CodeProblem:
    """A problem from JSON text or a decoded object.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(problem, str):
        try:
            problem = json.loads(problem)
        except ValueError as error:
            raise UsageError(f"a problem must be JSON, got {problem[:60]!r}: {error}") from error
    # Parquet gives every object all keys of its column, null where it has none.
    return CodeProblem.from_json({k: v for k, v in dict(problem).items() if v is not None})


def _problem_or_none(truth: Any) -> CodeProblem | None:
    """A ground truth as a problem with tests, None where it is a mathematical gold."""
    if isinstance(truth, Mapping):
        return problem_of(truth)
    is_object = isinstance(truth, str) and truth.lstrip().startswith("{") and '"tests"' in truth
    return problem_of(truth) if is_object else None


def _column(columns: Mapping[str, Any], name: str, what: str) -> list[Any]:
    if name not in columns:
        has = ", ".join(columns) or "none"
        raise UsageError(f"{what} needs the dataset column {name!r} (there is: {has})")
    return list(columns[name])


def _value(verdict: Verdict) -> float | None:
    return float(verdict.is_right) if verdict.is_scorable else None
