"""Batches: sample G rollouts of each problem, have them judged, weigh them.

With a policy lag the batch after the next update is known before it: the policy that answers is
already there. So it is sampled ahead, and its verdicts are reached in the background while the
policy is updated. Which rollouts a batch holds does not depend on that.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradmass.config import Recipe
from gradmass.evaluation.judge import judge
from gradmass.record import RunWriter
from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem
from gradmass.training.batch import Batch
from gradmass.training.clock import Clock
from gradmass.training.probes.batch import batch_row, difficulty
from gradmass.training.rollout import ENTROPY_KIND, Rollouts, decode, sample, uniforms
from gradmass.types import State, UsageError


@dataclass(frozen=True)
class Sampled:
    """Rollouts whose verdicts may still be on their way.

    Args:
        step: Updates done before the batch is trained on.
        policy_step: Updates that the policy which answered has had.
        problems: P problems.
        first_group: Number of the first in the run, where every draw of a problem counts.
        rollouts: G answers to each, B = P * G in all.
        texts: The answers.
        verdicts: Gives what is said of them, and the seconds that judging took.
        sampling_s: Seconds that sampling took.
    """

    step: int
    policy_step: int
    problems: Sequence[Problem]
    first_group: int
    rollouts: Rollouts
    texts: Sequence[str]
    verdicts: Callable[[], tuple[list[Verdict], float]]
    sampling_s: float


class BatchSource:
    """Samples the batches of a run in order.

    Args:
        recipe: The whole run.
        sampler: The policy that answers; with a lag, a model of its own.
        tokenizer: Its tokenizer.
        problems: The training problems in their order.
        past: With a lag, the parameters after the last updates, oldest first, the newest last; the
            loop adds to it after every update.
    """

    def __init__(
        self,
        recipe: Recipe,
        sampler: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        problems: Sequence[Problem],
        past: deque[dict[str, Tensor]],
    ) -> None:
        self._recipe, self._sampler, self._tokenizer = recipe, sampler, tokenizer
        self._problems, self._past = problems, past
        self._judging = ThreadPoolExecutor(1, thread_name_prefix="judging")
        self._ahead: Sampled | None = None

    def __enter__(self) -> "BatchSource":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What is being judged is lost: whoever interrupts does not wait for it.
        self._judging.shutdown(wait=False, cancel_futures=True)

    def draw(self, step: int) -> Sampled:
        """The batch that follows ``step`` updates."""
        config = self._recipe.train
        sampled = self._ahead or self._sample(step, step)
        following = step + config.updates_per_batch
        is_known = config.policy_lag >= config.updates_per_batch and following < config.steps
        self._ahead = self._sample(following, step) if is_known else None
        return sampled

    def _sample(self, step: int, updates_done: int) -> Sampled:
        """Sample the batch that follows ``step`` updates, ``updates_done`` of them made."""
        recipe, config, clock = self._recipe, self._recipe.train, Clock()
        policy_step = max(0, step - config.policy_lag)
        if config.policy_lag:
            past = self._past[policy_step - updates_done - 1]
            self._sampler.load_state_dict(past, strict=False)  # what is not trained stays
        num_prompts = config.prompts_per_step
        batch_idx = step // config.updates_per_batch
        first = batch_idx * num_prompts
        chosen = [self._problems[(first + i) % len(self._problems)] for i in range(num_prompts)]
        shape = (num_prompts * config.group_size, config.max_new_tokens)
        draws_BT = uniforms(shape, recipe.seed, "rollout", batch_idx)
        prompts = [problem.prompt for problem in chosen]
        rollouts = sample(self._sampler, self._tokenizer, prompts, draws_BT)
        texts = decode(self._tokenizer, rollouts)
        clock.lap("sampling")

        def verdicts() -> tuple[list[Verdict], float]:
            clock = Clock()
            found = judge(recipe.task, chosen, texts, rollouts.is_ended_B.tolist())
            clock.lap("judging")
            return found, clock.laps["judging"]

        return Sampled(
            step=step,
            policy_step=policy_step,
            problems=chosen,
            first_group=first,
            rollouts=rollouts,
            texts=texts,
            # Not ahead, nothing goes on meanwhile, and a verifier may want the main thread.
            verdicts=self._judging.submit(verdicts).result if step > updates_done else verdicts,
            sampling_s=clock.laps["sampling"],
        )


def weigh_batch(recipe: Recipe, sampled: Sampled, weight_state: State, writer: RunWriter) -> Batch:
    """Wait for the verdicts of a batch, weigh its rollouts and record them.

    Args:
        recipe: The whole run.
        sampled: The rollouts.
        weight_state: State of the weight before the batch.
        writer: Where the rollouts are recorded.

    Raises:
        UsageError: The verifier failed on every rollout.
    """
    clock, rollouts, step = Clock(), sampled.rollouts, sampled.step
    verdicts, judging_s = sampled.verdicts()
    clock.lap("time/verify_s")
    shape = (recipe.train.prompts_per_step, recipe.train.group_size)
    successes_PG = np.array([verdict.is_right for verdict in verdicts]).reshape(shape)
    mask_PG = np.array([verdict.is_scorable for verdict in verdicts]).reshape(shape)
    length_B = rollouts.answer_mask_BT.sum(1).cpu().numpy()
    if not mask_PG.any():
        raise UsageError(
            f"the verifier failed on all {len(verdicts)} rollouts after step {step} "
            f"({verdicts[0].detail or 'no detail'}): nothing can be learnt; the last checkpoint is "
            "intact"
        )
    # A weight ignores the signals it does not need.
    signals = {
        "successes_PG": successes_PG,
        "num_success": int(successes_PG.sum()),
        "num_scored": int(mask_PG.sum()),
        "entropy_nats": rollouts.mean_entropy_nats,
        "entropy_kind": ENTROPY_KIND,
        "lengths_PG": length_B.reshape(shape),
        "policy_lag": step - sampled.policy_step,
        "step": step,
        "num_steps": recipe.train.steps,
    }
    weights_PG, weight_state = recipe.weight.update(
        successes_PG.astype(np.float64), weight_state, mask=mask_PG, **signals
    )
    weights_PG = recipe.weight_factor * weights_PG
    batch_idx = step // recipe.train.updates_per_batch
    row = {
        "rollouts": (batch_idx + 1) * len(verdicts),
        **rollout_row(verdicts, rollouts, length_B),
        **batch_row(rollouts, weights_PG, successes_PG, mask_PG),
        **{f"weight/{key}": value for key, value in recipe.weight.report(weight_state).items()},
        **({} if recipe.equalise == "none" else {"weight/factor": recipe.weight_factor}),
    }
    writer.log_rollouts(rollout_records(sampled, verdicts, weights_PG.reshape(-1), length_B))
    writer.log_diagnostics([{"step": step + 1} | difficulty(weights_PG, successes_PG, mask_PG)])
    clock.lap("time/weigh_s")
    return Batch(
        policy_step=sampled.policy_step,
        rollouts=rollouts,
        successes_PG=successes_PG,
        mask_PG=mask_PG,
        weights_PG=weights_PG,
        weights_B=torch.as_tensor(
            weights_PG.reshape(-1), dtype=torch.float32, device=rollouts.answer_mask_BT.device
        ),
        weight_state=weight_state,
        signals=signals,
        row=row | {"time/judging_s": judging_s},
        laps={"time/rollout_s": sampled.sampling_s} | clock.laps,
    )


def rollout_row(
    verdicts: Sequence[Verdict], rollouts: Rollouts, length_B: np.ndarray
) -> dict[str, float]:
    """The metrics that say how the rollouts of a batch ended."""
    outcomes = [verdict.outcome for verdict in verdicts]
    num_scored = sum(verdict.is_scorable for verdict in verdicts)
    return {
        "rollout/solve_rate": outcomes.count(Outcome.RIGHT) / num_scored,
        "rollout/truncated": 1.0 - float(rollouts.is_ended_B.double().mean()),
        "rollout/unparsed": outcomes.count(Outcome.UNPARSED) / len(verdicts),
        "rollout/num_unscorable": len(verdicts) - num_scored,
        "rollout/length_mean": float(length_B.mean()),
    }


def rollout_records(
    sampled: Sampled, verdicts: Sequence[Verdict], weights_B: np.ndarray, length_B: np.ndarray
) -> Iterator[dict[str, Any]]:
    """What is kept of each rollout of a batch, the rollouts of a problem one after the other."""
    group_size = len(sampled.texts) // len(sampled.problems)
    for i, (text, verdict) in enumerate(zip(sampled.texts, verdicts, strict=True)):
        problem = sampled.problems[i // group_size]
        yield {
            "step": sampled.step + 1,
            "policy_step": sampled.policy_step,
            "problem_id": problem.id,
            "group": sampled.first_group + i // group_size,
            "prompt": problem.prompt,
            "completion": text,
            "verdict": verdict.outcome,
            "detail": verdict.detail,
            "weight": float(weights_B[i]),
            "num_tokens": int(length_B[i]),
        }
