"""Evaluation: exact where the right answers of a problem can be listed, sampled beside it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradmass.config import Recipe
from gradmass.evaluation import Sampling, Tally, collect
from gradmass.evaluation.tally import pass_at_ks
from gradmass.metrics.entropy import entropy_nats, num_effective
from gradmass.metrics.passk import KS, pass_at_k_from_probability
from gradmass.record import RunWriter
from gradmass.tasks import Problem, Task
from gradmass.tasks.dressed import why_unlisted
from gradmass.training.clock import Clock
from gradmass.training.generate import LocalEngine, default_batch_size
from gradmass.training.model import longest_prompt
from gradmass.training.probes.change import ChangeProbe
from gradmass.training.rollout import DIVERGED, encode_prompts, end_tokens, texts_of
from gradmass.training.terms import prompted_logprobs
from gradmass.types import UsageError

TOKENS_AT_ONCE = 8_192
"""Answer tokens in one forward pass: enough to fill two cores, small enough for any laptop."""


@dataclass(frozen=True)
class ExactEvaluation:
    """What the policy does on problems whose right answers are all known.

    Args:
        solve_probability_N: Probability that one answer sampled at temperature 1 is right.
        answer_entropy_nats_N: Entropy of the distribution over the right answers, given that the
            answer is right.
        num_effective_N: exp of that entropy: how many right answers carry weight.
        longest_answer: Tokens of the longest right answer, end token included.
    """

    solve_probability_N: np.ndarray
    answer_entropy_nats_N: np.ndarray
    num_effective_N: np.ndarray
    longest_answer: int

    def summary(self, ks: Sequence[int] = KS) -> dict[str, float]:
        """Means over problems; pass@k is ``1 - (1 - p)^k`` for each problem."""
        return {
            **{
                f"pass@{k}": float(pass_at_k_from_probability(self.solve_probability_N, k).mean())
                for k in ks
            },
            "answer_entropy_nats": float(self.answer_entropy_nats_N.mean()),
            "num_effective_answers": float(self.num_effective_N.mean()),
        }


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    problems: Sequence[Problem],
    *,
    num_samples: int,
    max_new_tokens: int,
    seed: int,
) -> tuple[dict[str, float], ExactEvaluation | None]:
    """Exact pass@k where the task lists its right answers, and sampled pass@k beside it.

    Args:
        model: The policy.
        tokenizer: Its tokenizer.
        task: What judges the answers.
        problems: What is asked.
        num_samples: Answers sampled for each problem; 0 samples none.
        max_new_tokens: Longest answer, end token included.
        seed: Seed of the sampled answers.

    Returns:
        ``pass@k``, ``answer_entropy_nats`` and ``num_effective_answers`` (exact), and
        ``sampled_pass@k`` with ``_low`` and ``_high`` over the problems with a scorable sample, and
        ``num_unscorable``, the samples that nobody could judge; and what the exact values are means
        of, None where there are none.

    Raises:
        UsageError: Nothing to measure, or a right answer too long to be ever sampled.
    """
    row: dict[str, float] = {}
    exact = None
    if task.solutions(problems[0]) is not None:
        exact = evaluate_exactly(model, tokenizer, task, problems)
        refuse_cut_answers(exact, max_new_tokens)
        row |= exact.summary()
    elif not num_samples:
        raise UsageError(
            f"{why_unlisted(task, problems[0])}: evaluation is by sampling, and eval.num_samples "
            f"must be above 0, got {num_samples}"
        )
    if num_samples:
        num_right_N, num_scorable_N = count_right(
            model, tokenizer, task, problems, num_samples, max_new_tokens, seed
        )
        sampled = sampled_summary(num_right_N, num_scorable_N)
        row |= {f"sampled_{key}": value for key, value in sampled.items()}
        row["num_unscorable"] = len(problems) * num_samples - int(num_scorable_N.sum())
    return row, exact


def refuse_cut_answers(exact: ExactEvaluation, max_new_tokens: int) -> None:
    """Refuse a limit on new tokens under which sampling misses what the exact values count."""
    if exact.longest_answer > max_new_tokens:
        raise UsageError(
            f"max_new_tokens = {max_new_tokens} cuts right answers, which have up to "
            f"{exact.longest_answer} tokens with the end token"
        )


@torch.inference_mode()
def evaluate_exactly(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    problems: Sequence[Problem],
    *,
    prompts: Sequence[str] | None = None,
) -> ExactEvaluation:
    """Sum the probabilities of all right answers of each problem, by teacher forcing.

    An answer's probability is that of its tokens and the end token. Where the tokenizer can spell
    an answer in several ways, its own spelling is counted, so the sum is a lower bound; character
    tokenizers have one.

    Args:
        model: The policy.
        tokenizer: Its tokenizer.
        task: What lists the right answers.
        problems: What is asked.
        prompts: What the model reads of each problem; the problems' own prompts if not given.

    Raises:
        UsageError: The task cannot list its right answers, or the policy gives a NaN.
    """
    answers = [task.solutions(problem) for problem in problems]
    if None in answers:
        raise UsageError(why_unlisted(task, problems[answers.index(None)]))
    tokens = [_encode_answers(tokenizer, texts) for texts in answers]
    if prompts is None:
        prompts = [problem.prompt for problem in problems]
    logprobs = _answer_logprobs(model, tokenizer, prompts, tokens)
    probabilities = [np.exp(np.asarray(logprob)) for logprob in logprobs]
    if any(np.isnan(p).any() for p in probabilities):
        raise UsageError(DIVERGED)
    return ExactEvaluation(
        np.array([min(1.0, math.fsum(p)) for p in probabilities]),
        np.array([entropy_nats(p) for p in probabilities]),
        np.array([num_effective(p) for p in probabilities]),
        max((len(answer) for answers in tokens for answer in answers), default=0),
    )


def check_answers(
    tokenizer: PreTrainedTokenizerFast, task: Task, problems: Sequence[Problem]
) -> None:
    """Refuse lists of right answers of which a sum of probabilities would be wrong.

    Raises:
        UsageError: An answer is listed twice, is not right by the task's own verifier, or loses
            characters in the tokenizer.
    """
    for problem in problems:
        answers = task.solutions(problem)
        if answers is None:
            return
        where = f"task {task.name!r} lists for problem {problem.id!r}"
        if len(set(answers)) < len(answers):
            twice = next(text for text in answers if answers.count(text) > 1)
            raise UsageError(f"{where} the right answer {twice!r} twice")
        seen = texts_of(tokenizer, [tokens[:-1] for tokens in _encode_answers(tokenizer, answers)])
        for answer, read in zip(answers, seen, strict=True):
            if "".join(read.split()) != "".join(answer.split()):
                raise UsageError(f"{where} {answer!r}, which the tokenizer reads as {read!r}")
            if not task.verify(problem, answer).is_right:
                raise UsageError(f"{where} {answer!r}, which its own verifier does not call right")


def _answer_logprobs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    answers: Sequence[Sequence[list[int]]],
) -> list[list[float]]:
    """Log-probability of each answer (its tokens) to each prompt, in nats.

    Each prompt is read once in a batch; its cache is repeated for each of its answers there.
    Answers are taken in order of length, so that little is padding.
    """
    rows = [
        (len(tokens), i, j, tokens)
        for i, problem_answers in enumerate(answers)
        for j, tokens in enumerate(problem_answers)
    ]
    rows.sort(key=lambda row: row[:3])
    logprobs = [[0.0] * len(problem_answers) for problem_answers in answers]
    start = 0
    while start < len(rows):
        longest = rows[min(start + TOKENS_AT_ONCE // rows[start][0], len(rows) - 1)][0]
        batch = rows[start : start + max(1, TOKENS_AT_ONCE // longest)]
        start += len(batch)
        scores = _score_batch(model, tokenizer, prompts, batch)
        for (_, i, j, _), score in zip(batch, scores, strict=True):
            logprobs[i][j] = score
    return logprobs


def _encode_answers(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[str] | None
) -> list[list[int]]:
    if not texts:
        return []
    encoded = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return [[*tokens, tokenizer.eos_token_id] for tokens in encoded]


def _score_batch(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    batch: Sequence[tuple[int, int, int, list[int]]],
) -> list[float]:
    """Log-probability of each answer in a batch of (length, problem, answer, tokens)."""
    which = sorted({i for _, i, _, _ in batch})
    prompt_PT, mask_PT = encode_prompts(tokenizer, [prompts[i] for i in which], model.device)
    position_of = {i: row for row, i in enumerate(which)}
    row_N = torch.tensor([position_of[i] for _, i, _, _ in batch], device=model.device)
    width = max(length for length, _, _, _ in batch)
    answer_NT = torch.tensor(
        [tokens + [tokenizer.pad_token_id] * (width - length) for length, _, _, tokens in batch],
        device=model.device,
    )
    length_N = torch.tensor([length for length, _, _, _ in batch], device=model.device)
    answer_mask_NT = torch.arange(width, device=model.device) < length_N[:, None]
    logprobs_NT = prompted_logprobs(model, prompt_PT, mask_PT, row_N, answer_NT, answer_mask_NT)
    return logprobs_NT.double().sum(1).tolist()


def count_right(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    problems: Sequence[Problem],
    num_samples: int,
    max_new_tokens: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """How many of ``num_samples`` answers to each problem are right, and how many were judged.

    Answers are sampled at temperature 1. One that the verifier's machinery failed on says nothing
    of the policy: it is in neither number.

    Returns:
        Right and scorable answers of each problem, shapes ``[N]``.

    Raises:
        UsageError: No answer to any problem could be judged.
    """
    sampling = Sampling(max_new_tokens=max_new_tokens, seed=seed)
    longest = longest_prompt(tokenizer, [problem.prompt for problem in problems])
    batch_size = default_batch_size(model, longest, max_new_tokens)
    ends = end_tokens(model, tokenizer)
    engine = LocalEngine(model, tokenizer, sampling, batch_size=batch_size, ends=ends)
    tally = Tally([problem.id for problem in problems], num_samples)
    details = _Details()
    collect(task, "", problems, engine, tally, folder=details)
    num_right_N, num_scorable_N = tally.counts()
    if not num_scorable_N.any():
        raise UsageError(
            "the verifier failed on every answer of an evaluation "
            f"({details.of_failure or 'no detail'})"
        )
    return num_right_N, num_scorable_N


class _Details:
    """Keeps nothing of the samples but why the first could not be judged."""

    def __init__(self) -> None:
        self.of_failure = ""

    def keep(self, row: Mapping[str, Any]) -> None:
        """Keep nothing."""

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Remember the first failure of the verifier."""
        failures = (row["detail"] for row in rows if row["correct"] is None)
        self.of_failure = self.of_failure or next(failures, "")


def sampled_summary(num_right_N: np.ndarray, num_scorable_N: np.ndarray) -> dict[str, float]:
    """Unbiased pass@k with its 95% interval for these fixed problems, for each k it can tell.

    Problems without a scorable sample are left out.
    """
    is_scored_N = num_scorable_N > 0
    return pass_at_ks(num_right_N[is_scored_N], num_scorable_N[is_scored_N], KS)


class Evaluator:
    """What is measured of the policy from time to time, always on the same problems.

    Args:
        recipe: The whole run.
        policy: The policy at its start, to which the output head's change is compared.
    """

    def __init__(self, recipe: Recipe, policy: PreTrainedModel) -> None:
        self._recipe = recipe
        self._held_out = {
            split: recipe.task.problems(split, recipe.eval.num_problems)
            for split in recipe.task.splits[1:]
        }
        self.change = ChangeProbe(policy)

    def measure(
        self,
        policy: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        step: int,
        writer: RunWriter,
    ) -> dict[str, Any]:
        """Evaluate every held-out split, exactly and by sampling, and the output head's change."""
        clock = Clock()
        row: dict[str, Any] = {}
        for split, problems in self._held_out.items():
            measured, exact = evaluate(
                policy,
                tokenizer,
                self._recipe.task,
                problems,
                num_samples=self._recipe.eval.num_samples,
                max_new_tokens=self._recipe.train.max_new_tokens,
                seed=self._recipe.seed,
            )
            row |= {f"{split}/{key}": value for key, value in measured.items()}
            if exact is not None:
                writer.log_evaluation(
                    {
                        "step": step,
                        "split": split,
                        "problem_ids": [problem.id for problem in problems],
                        "solve_probability": exact.solve_probability_N.tolist(),
                    }
                )
        row |= self.change.measure(policy)
        clock.lap("time/eval_s")
        return row | clock.laps
