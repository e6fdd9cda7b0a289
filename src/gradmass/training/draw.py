"""Batches: wait for the verdicts of rollouts, weigh them, record them."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from gradmass.config import Recipe
from gradmass.record import RunWriter
from gradmass.rewards import Outcome, Verdict
from gradmass.training.aggregation import rollouts_in_loss
from gradmass.training.batch import Batch
from gradmass.training.clock import Clock
from gradmass.training.learner import Learner
from gradmass.training.probes.batch import batch_row, difficulty
from gradmass.training.probes.gradients import score_squares
from gradmass.training.rollout import DIVERGED, ENTROPY_KIND, Rollouts
from gradmass.training.source import Sampled
from gradmass.types import UsageError
from gradmass.weights.signals import SIGNALS

SCORES_A_BATCH = 2
"""Rollouts of each verdict whose scores are taken one by one, for a weight that asks."""


ON_REQUEST = frozenset({"solve_rate_P", "score_squares"})
"""Signals that are made where the weight in training needs them."""
GIVEN = SIGNALS - ON_REQUEST - {"greedy_rewards_P"}
"""Signals of every batch. No greedy answers are drawn."""


def check_signals(recipe: Recipe) -> None:
    """Refuse weights that need what the batches of the run will not have.

    Raises:
        UsageError: Such a weight, the one in training or one of ``probe.weights``.
    """
    own = recipe.weight
    for need in own.needs:
        if need not in GIVEN | ON_REQUEST:
            known = ", ".join(sorted(GIVEN | ON_REQUEST))
            raise UsageError(
                f"weight {own.label} needs the signal {need!r}, which training does not measure "
                f"(it has {known})"
            )
    for other in recipe.probe.others if recipe.probe.every else ():
        for need in other.needs:
            if need not in GIVEN.union(own.needs):
                raise UsageError(
                    f"probe.weights: {other.label} needs the signal {need!r}, which a run under "
                    f"{own.label} does not measure; leave it out"
                )


def weigh_batch(recipe: Recipe, sampled: Sampled, learner: Learner, writer: RunWriter) -> Batch:
    """Wait for the verdicts of a batch, weigh its rollouts and record them.

    Args:
        recipe: The whole run.
        sampled: The rollouts.
        learner: The policy, the weight's state before the batch and the visits of problems, which
            are added to.
        writer: Where the rollouts are recorded.

    Raises:
        UsageError: The verifier failed on more rollouts than the recipe bears, or on every one; or
            a score that a weight asks for is not finite.
    """
    clock, rollouts, step = Clock(), sampled.rollouts, sampled.step
    verdicts, judging_s = sampled.verdicts()
    clock.lap("time/verify_s")
    shape = (recipe.train.prompts_per_step, recipe.train.group_size)
    successes_PG = np.array([verdict.is_right for verdict in verdicts]).reshape(shape)
    mask_PG = np.array([verdict.is_scorable for verdict in verdicts]).reshape(shape)
    length_B = rollouts.answer_mask_BT.sum(1).cpu().numpy()
    check_errors(verdicts, step, recipe.train.max_error_rate)
    is_in_loss_PG = rollouts_in_loss(recipe.loss, rollouts).cpu().numpy().reshape(shape)
    if recipe.loss.truncated == "exclude":
        mask_PG &= is_in_loss_PG
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
        **asked_signals(recipe, sampled, learner, successes_PG, mask_PG),
    }
    weights_PG, weight_state = recipe.weight.update(
        successes_PG.astype(np.float64), learner.weight_state, mask=mask_PG, **signals
    )
    weights_PG = recipe.weight_factor * np.where(is_in_loss_PG, weights_PG, 0.0)
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
        is_in_loss_PG=is_in_loss_PG,
        weights_PG=weights_PG,
        weights_B=torch.as_tensor(
            weights_PG.reshape(-1), dtype=torch.float32, device=rollouts.answer_mask_BT.device
        ),
        weight_state=weight_state,
        signals=signals,
        row=row | {"time/sampling_s": sampled.sampling_s, "time/judging_s": judging_s},
        laps={"time/rollout_s": sampled.waited_s} | clock.laps,
    )


def asked_signals(
    recipe: Recipe,
    sampled: Sampled,
    learner: Learner,
    successes_PG: np.ndarray,
    mask_PG: np.ndarray,
) -> dict[str, Any]:
    """Signals that are made for a weight that needs them alone.

    ``solve_rate_P``, from the earlier visits of the problems, to which this one is added; and
    ``score_squares`` of the trained policy on a few rollouts of the batch.

    Raises:
        UsageError: A score is not finite: the policy has diverged.
    """
    signals: dict[str, Any] = {}
    if "solve_rate_P" in recipe.weight.needs:
        ids = [problem.id for problem in sampled.problems]
        signals["solve_rate_P"] = learner.visits.solve_rates(ids)
        learner.visits.see(ids, successes_PG, mask_PG)
    if "score_squares" in recipe.weight.needs:
        found = score_squares(
            learner.policy, sampled.rollouts, successes_PG, mask_PG, SCORES_A_BATCH
        )
        if not all(math.isfinite(square) for square in found if square is not None):
            raise UsageError(DIVERGED)
        signals["score_squares"] = found
    return signals


def check_errors(verdicts: Sequence[Verdict], step: int, max_rate: float) -> None:
    """Stop a run whose verifier is down: what it would learn from says nothing of the policy.

    Args:
        verdicts: Those of a batch.
        step: Updates done before it.
        max_rate: Largest share of infrastructure errors that a run goes on with; at a share of 1 it
            stops anyway.

    Raises:
        UsageError: More of them failed.
    """
    failed = [verdict for verdict in verdicts if not verdict.is_scorable]
    if len(failed) <= max_rate * len(verdicts) and len(failed) < len(verdicts):
        return
    is_all = len(failed) == len(verdicts)
    why = "nothing can be learnt" if is_all else f"train.max_error_rate = {max_rate} allows fewer"
    raise UsageError(
        f"the verifier failed on {len(failed)} of {len(verdicts)} rollouts after step {step} "
        f"({failed[0].detail or 'no detail'}): {why}; the last checkpoint is intact, go on with "
        "--resume once the verifier is mended"
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
