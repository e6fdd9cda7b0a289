"""The training loop, read top to bottom.

Sample G rollouts of each problem, verify them, weigh them, make clipped policy-gradient updates,
evaluate, record. Every random draw is fixed by the seed and the step, so the same recipe gives the
same rows, and a run that was interrupted goes on as if it had not been.
"""

import copy
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradmass.config import LossConfig, OptimConfig, Recipe
from gradmass.evaluation.judge import judge
from gradmass.metrics.mass import gradient_mass, group_shares
from gradmass.record import RunWriter
from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem
from gradmass.training.clock import Clock
from gradmass.training.evaluate import Evaluator, check_answers
from gradmass.training.interrupt import interruptible
from gradmass.training.loss import policy_loss
from gradmass.training.model import check_fit, load_model, save_model
from gradmass.training.rollout import (
    ENTROPY_KIND,
    Rollouts,
    answer_logprobs,
    decode,
    sample,
    uniforms,
)
from gradmass.types import State, UsageError

Row = dict[str, Any]
TRAINER_FILE = "trainer.pt"
"""Optimiser state and past policies, beside the model in a checkpoint."""


@dataclass(frozen=True)
class Batch:
    """Rollouts and what was made of them.

    Args:
        rollouts: The sampled answers.
        weights_B: The policy weight of each.
        row: The metrics that describe them.
        laps: Seconds that drawing, judging and weighing them took.
    """

    rollouts: Rollouts
    weights_B: Tensor
    row: Row
    laps: dict[str, float]


def train(recipe: Recipe, writer: RunWriter, on_row: Callable[[Row], None]) -> bool:
    """Run a recipe to its end, or until Ctrl-C.

    Args:
        recipe: The whole run.
        writer: The run directory: new, or resumed at its last checkpoint.
        on_row: Called with every row of metrics as it is recorded.

    Returns:
        Whether the run is finished; False if it was interrupted, and can be resumed.

    Raises:
        UsageError: The policy diverged, or the recipe does not fit the model or the task.
    """
    config, task, weight = recipe.train, recipe.task, recipe.weight
    torch.set_num_threads(resolve_threads(recipe).train.threads)
    problems = task.problems(task.splits[0], config.num_problems)
    policy, tokenizer = load_model(recipe.model.path)
    # An update of RL is smaller than the spacing of bf16: parameters are trained in float32.
    policy = policy.float()
    asked = [task.problems(split, recipe.eval.num_problems) for split in task.splits[1:]]
    prompts = [problem.prompt for split in (problems, *asked) for problem in split]
    check_fit(policy, tokenizer, prompts, config.max_new_tokens)
    for split in asked:
        check_answers(tokenizer, task, split)
    start_policy = copy.deepcopy(policy) if recipe.loss.kl_coef > 0 else None
    evaluator = Evaluator(recipe, policy)
    # Copies of the policy after the last updates, oldest first; batches are drawn from the oldest.
    past: deque[dict[str, Tensor]] = deque(maxlen=config.policy_lag + 1)

    if writer.resumed_from is None:
        step, weight_state = 0, weight.init()
        optimizer = make_optimizer(recipe.optim, policy)
    else:
        step, weight_state = writer.resumed_from.step, writer.resumed_from.weight_state
        policy, _ = load_model(str(writer.resumed_from.folder))
        optimizer = make_optimizer(recipe.optim, policy)
        file = writer.resumed_from.folder / TRAINER_FILE
        try:
            saved = torch.load(file, weights_only=True)
            optimizer.load_state_dict(saved["optimizer"])
            past.extend(saved["past"])
        except Exception as error:  # what torch raises depends on where the file is damaged
            raise UsageError(f"cannot resume: {file} is missing or damaged") from error
    sampler = copy.deepcopy(policy) if config.policy_lag else policy

    def save(folder: Path) -> None:
        trainer = {"optimizer": optimizer.state_dict(), "past": list(past)}
        try:
            save_model(policy, tokenizer, folder)
            torch.save(trainer, folder / TRAINER_FILE)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise UsageError(
                f"cannot save the checkpoint after step {step} in {writer.path}: {error}; make "
                "room and go on with --resume"
            ) from error

    def record(row: Row) -> None:
        writer.log(row)
        on_row(row)

    with interruptible() as is_interrupted:
        if writer.resumed_from is None:
            if config.policy_lag:
                past.append(copy_parameters(policy))
            record({"step": 0, "rollouts": 0} | evaluator.measure(policy, tokenizer, 0, writer))
            writer.checkpoint(0, weight_state, "running", save)
        while step < config.steps and not is_interrupted():
            if config.policy_lag:
                sampler.load_state_dict(past[0])
            policy_step = step - max(0, len(past) - 1)
            batch, weight_state = draw_batch(
                recipe, sampler, tokenizer, problems, weight_state, step, policy_step, writer
            )
            before = step
            for _ in range(min(config.updates_per_batch, config.steps - step)):
                row = update(recipe, policy, start_policy, optimizer, batch)
                # Drawing a batch takes time once, however many updates are made on it.
                drawing = batch.laps if step == before else {}
                row = {"policy/lag": step - policy_step} | batch.row | drawing | row
                seconds = row["time/update_s"] + sum(drawing.values())
                row |= {
                    "time/step_s": seconds,
                    "time/rollouts_per_s": len(batch.weights_B) / seconds,
                }
                step += 1
                if config.policy_lag:
                    past.append(copy_parameters(policy))
                if step == config.steps or (recipe.eval.every and step % recipe.eval.every == 0):
                    row |= evaluator.measure(policy, tokenizer, step, writer)
                record({"step": step} | row)
            if (
                step < config.steps
                and before // config.checkpoint_every != step // config.checkpoint_every
            ):
                writer.checkpoint(step, weight_state, "running", save)
        is_finished = step >= config.steps
        writer.checkpoint(step, weight_state, "finished" if is_finished else "interrupted", save)
    return is_finished


def resolve_threads(recipe: Recipe) -> Recipe:
    """The recipe with torch's own number of threads where it gives none: results depend on it."""
    threads = recipe.train.threads or torch.get_num_threads()
    return replace(recipe, train=replace(recipe.train, threads=threads))


def draw_batch(
    recipe: Recipe,
    sampler: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    weight_state: State,
    step: int,
    policy_step: int,
    writer: RunWriter,
) -> tuple[Batch, State]:
    """Sample, verify, weigh and record the batch that follows ``step`` updates.

    Args:
        recipe: The whole run.
        sampler: The policy that answers.
        tokenizer: Its tokenizer.
        problems: The training problems in their order.
        weight_state: State of the weight before the batch.
        step: Updates done.
        policy_step: Updates the sampler has had.
        writer: Where the rollouts are recorded.

    Returns:
        The batch, and the state of the weight after it.
    """
    config, weight = recipe.train, recipe.weight
    num_prompts, group_size = config.prompts_per_step, config.group_size
    num_rollouts = num_prompts * group_size
    batch_idx = step // config.updates_per_batch
    chosen = [problems[(batch_idx * num_prompts + i) % len(problems)] for i in range(num_prompts)]
    clock = Clock()
    draws_BT = uniforms((num_rollouts, config.max_new_tokens), recipe.seed, "rollout", batch_idx)
    rollouts = sample(sampler, tokenizer, [problem.prompt for problem in chosen], draws_BT)
    clock.lap("time/rollout_s")
    texts = decode(tokenizer, rollouts)
    verdicts = judge(recipe.task, chosen, texts, rollouts.is_ended_B.tolist())
    clock.lap("time/verify_s")

    shape = (num_prompts, group_size)
    successes_PG = np.array([verdict.is_right for verdict in verdicts]).reshape(shape)
    mask_PG = np.array([verdict.is_scorable for verdict in verdicts]).reshape(shape)
    length_B = rollouts.answer_mask_BT.sum(1).cpu().numpy()
    num_success, num_scored = int(successes_PG.sum()), int(mask_PG.sum())
    if num_scored == 0:
        raise UsageError(
            f"the verifier failed on all {num_rollouts} rollouts after step {step} "
            f"({verdicts[0].detail or 'no detail'}): nothing can be learnt; the last checkpoint is "
            "intact"
        )
    # A weight ignores the signals it does not need.
    weights_PG, weight_state = weight.update(
        successes_PG.astype(np.float64),
        weight_state,
        mask=mask_PG,
        successes_PG=successes_PG,
        num_success=num_success,
        num_scored=num_scored,
        entropy_nats=rollouts.mean_entropy_nats,
        entropy_kind=ENTROPY_KIND,
        lengths_PG=length_B.reshape(shape),
        policy_lag=step - policy_step,
        step=step,
        num_steps=config.steps,
    )
    weights_PG = recipe.weight_factor * weights_PG
    weights_B = weights_PG.reshape(-1)
    m_success, m_failure = gradient_mass(weights_PG, successes_PG)
    all_right, all_wrong, mixed = group_shares(successes_PG, mask_PG)
    outcomes = [verdict.outcome for verdict in verdicts]
    row = {
        "rollouts": (batch_idx + 1) * num_rollouts,
        "rollout/solve_rate": num_success / num_scored,
        "rollout/truncated": 1.0 - float(rollouts.is_ended_B.double().mean()),
        "rollout/unparsed": outcomes.count(Outcome.UNPARSED) / num_rollouts,
        "rollout/num_unscorable": num_rollouts - num_scored,
        "rollout/length_mean": float(length_B.mean()),
        "groups/all_right": all_right,
        "groups/all_wrong": all_wrong,
        "groups/mixed": mixed,
        "entropy/mean_nats": rollouts.mean_entropy_nats,
        "mass/positive": m_success,
        "mass/negative": m_failure,
        **{f"weight/{key}": value for key, value in weight.report(weight_state).items()},
        **({} if recipe.equalise == "none" else {"weight/factor": recipe.weight_factor}),
    }
    first_group = batch_idx * num_prompts
    writer.log_rollouts(
        {"step": step + 1, "policy_step": policy_step, **record}
        for record in rollout_records(chosen, texts, verdicts, weights_B, length_B, first_group)
    )
    clock.lap("time/weigh_s")
    weights = torch.as_tensor(weights_B, dtype=torch.float32, device=sampler.device)
    return Batch(rollouts, weights, row, clock.laps), weight_state


def rollout_records(
    problems: Sequence[Problem],
    texts: Sequence[str],
    verdicts: Sequence[Verdict],
    weights_B: np.ndarray,
    length_B: np.ndarray,
    first_group: int,
) -> Iterator[Row]:
    """What is kept of each rollout of a batch, the rollouts of a problem one after the other."""
    group_size = len(texts) // len(problems)
    for i, (text, verdict) in enumerate(zip(texts, verdicts, strict=True)):
        problem = problems[i // group_size]
        yield {
            "problem_id": problem.id,
            "group": first_group + i // group_size,
            "prompt": problem.prompt,
            "completion": text,
            "verdict": verdict.outcome,
            "detail": verdict.detail,
            "weight": float(weights_B[i]),
            "num_tokens": int(length_B[i]),
        }


def update(
    recipe: Recipe,
    policy: PreTrainedModel,
    start_policy: PreTrainedModel | None,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
) -> Row:
    """One update of the policy on a batch.

    Rollouts of weight 0 have no gradient unless a KL term is on; they are left out of the forward
    pass, and still count in the loss's denominator.

    Raises:
        UsageError: The loss or the gradient is not finite; the policy is as before the update.
    """
    clock, rollouts = Clock(), batch.rollouts
    is_used_B = (
        batch.weights_B != 0 if start_policy is None else torch.ones_like(rollouts.is_ended_B)
    )
    rows = is_used_B.nonzero()[:, 0]
    # A gradient of zeros, not of None: the optimiser's averages decay on a batch without signal.
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    row: Row = {"loss/value": 0.0, "loss/clip_share": 0.0, "loss/num_trained": len(rows)}
    if len(rows):
        reference = None
        if start_policy is not None:
            with torch.no_grad():
                reference = answer_logprobs(start_policy, rollouts, rows)
        loss = policy_loss(
            answer_logprobs(policy, rollouts, rows),
            rollouts.logprobs_BT[rows],
            batch.weights_B[rows],
            rollouts.answer_mask_BT[rows],
            denominator=loss_denominator(recipe.loss, rollouts, recipe.train.max_new_tokens),
            clip_low=recipe.loss.clip_low,
            clip_high=recipe.loss.clip_high,
            reference_logprobs_NT=reference,
            kl_coef=recipe.loss.kl_coef,
        )
        loss.value.backward()
        row |= {"loss/value": loss.value.item(), "loss/clip_share": loss.clip_share}
        if start_policy is not None:
            row["loss/kl_nats"] = loss.kl_nats
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), recipe.optim.max_grad_norm)
    row["optim/grad_norm"] = float(norm)
    if not (math.isfinite(row["loss/value"]) and math.isfinite(row["optim/grad_norm"])):
        raise UsageError(
            f"the policy diverged: loss {row['loss/value']}, gradient norm "
            f"{row['optim/grad_norm']} (try a smaller optim.lr); the last checkpoint is intact"
        )
    optimizer.step()
    clock.lap("time/update_s")
    return row | clock.laps


def loss_denominator(config: LossConfig, rollouts: Rollouts, max_new_tokens: int) -> float:
    """What the token sum of the loss is divided by."""
    if config.aggregation == "token-mean":
        return float(rollouts.answer_mask_BT.sum())
    return float(len(rollouts.is_ended_B) * max_new_tokens)


def make_optimizer(config: OptimConfig, policy: PreTrainedModel) -> torch.optim.Optimizer:
    """AdamW, or gradient descent without momentum."""
    if config.type == "adamw":
        return torch.optim.AdamW(
            policy.parameters(),
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=True,
        )
    return torch.optim.SGD(policy.parameters(), lr=config.lr, weight_decay=config.weight_decay)


def copy_parameters(model: PreTrainedModel) -> dict[str, Tensor]:
    """The parameters as they are now."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
