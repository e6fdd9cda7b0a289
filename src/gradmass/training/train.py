"""The training loop, read top to bottom.

Sample G rollouts of each problem, verify them, weigh them, make clipped policy-gradient updates,
evaluate, record. Every random draw is fixed by the seed and the step, so the same recipe gives the
same rows, and a run that was interrupted goes on as if it had not been.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradmass.config import Recipe
from gradmass.record import Run, RunWriter, Status
from gradmass.tasks import Problem
from gradmass.training.aggregation import loss_denominators, rollouts_in_loss
from gradmass.training.batch import Batch
from gradmass.training.clock import Clock
from gradmass.training.draw import check_signals, weigh_batch
from gradmass.training.evaluate import Evaluator, check_answers
from gradmass.training.interrupt import interruptible
from gradmass.training.learner import Learner, new_learner, save_learner, saved_learner
from gradmass.training.loss import Loss, batch_loss, joined, with_proximal
from gradmass.training.masters import trained_parameters
from gradmass.training.model import check_fit
from gradmass.training.passes import passes
from gradmass.training.policy import copy_policy, dressed_task, load_policy
from gradmass.training.probes import Probes
from gradmass.training.probes.batch import reach_row
from gradmass.training.source import BatchSource
from gradmass.types import UsageError

Row = dict[str, Any]


def train(recipe: Recipe, writer: RunWriter, on_row: Callable[[Row], None]) -> bool:
    """Run a recipe to its end, or until Ctrl-C.

    Args:
        recipe: The whole run.
        writer: The run directory: new, or resumed at its last checkpoint.
        on_row: Called with every row of metrics as it is recorded.

    Returns:
        Whether the run is finished; False if it was interrupted, and can be resumed.

    Raises:
        UsageError: The policy diverged, the verifier is down, the record cannot be written, or the
            recipe does not fit the model or the task, or a weight needs what is not measured.
    """
    check_signals(recipe)
    config = recipe.train
    if config.threads:
        torch.set_num_threads(config.threads)
    policy, tokenizer, stored_dtype = load_policy(recipe.model, recipe.lora, recipe.seed)
    task = dressed_task(recipe.prompt, recipe.task, tokenizer, recipe.model.path)
    recipe = replace(recipe, task=task)
    problems = task.problems(task.splits[0], config.num_problems)
    check_problems(recipe, policy, tokenizer, problems)
    start_policy = copy_policy(policy) if recipe.loss.kl_coef > 0 else None
    evaluator = Evaluator(recipe, policy)
    if writer.resumed_from is None:
        learner, past = new_learner(recipe, policy)
    else:
        learner, past = saved_learner(recipe, writer.resumed_from)
    recorded = Run(writer.path)
    probes = Probes(
        recipe,
        start_policy,
        evaluator.change,
        stored_dtype,
        recorded.metrics,
        recorded.diagnostics,
    )
    source = BatchSource(recipe, learner.policy, tokenizer, problems, past)

    def record(row: Row) -> None:
        writer.log(row)
        on_row(row)

    def checkpoint(status: Status) -> None:
        def save(folder: Path) -> None:
            save_learner(recipe, learner, source.past, tokenizer, folder)

        writer.checkpoint(learner.step, learner.weight_state, status, save)

    with interruptible() as is_interrupted, source:
        if writer.resumed_from is None:
            row = evaluator.measure(learner.policy, tokenizer, 0, writer)
            record({"step": 0, "rollouts": 0} | row)
            checkpoint("running")
        source.start(learner.step)
        while learner.step < config.steps and not is_interrupted():
            before = learner.step
            batch = weigh_batch(recipe, source.draw(before), learner, writer)
            learner.weight_state = batch.weight_state
            rollouts = with_proximal(
                recipe.loss, learner.policy, batch.rollouts, config.tokens_at_once
            )
            batch = replace(batch, rollouts=rollouts)
            for _ in range(min(config.updates_per_batch, config.steps - before)):
                row = step_row(recipe, learner, start_policy, probes, batch, before)
                step = learner.step
                source.updated(step)
                if step == config.steps or (recipe.eval.every and step % recipe.eval.every == 0):
                    row |= evaluator.measure(learner.policy, tokenizer, step, writer)
                writer.log_diagnostics({"step": step, **details} for details in probes.details)
                record({"step": step} | row | probes.warnings(row))
            every = config.checkpoint_every
            if learner.step < config.steps and before // every != learner.step // every:
                checkpoint("running")
        is_finished = learner.step >= config.steps
        checkpoint("finished" if is_finished else "interrupted")
    return is_finished


def check_problems(
    recipe: Recipe,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
) -> None:
    """Refuse problems that the model cannot read, or not answer within its limits.

    Raises:
        UsageError: Such a problem, of training or of an evaluation.
    """
    task = recipe.task
    asked = [task.problems(split, recipe.eval.num_problems) for split in task.splits[1:]]
    prompts = [problem.prompt for split in (problems, *asked) for problem in split]
    check_fit(policy, tokenizer, prompts, recipe.train.max_new_tokens)
    for split in asked:
        check_answers(tokenizer, task, split)


def step_row(
    recipe: Recipe,
    learner: Learner,
    start_policy: PreTrainedModel | None,
    probes: Probes,
    batch: Batch,
    first_step: int,
) -> Row:
    """Make an update on a batch and say all there is to say of it.

    Args:
        recipe: The whole run.
        learner: What is updated.
        start_policy: The policy of the KL term, None without one.
        probes: What looks at the policy before and after.
        batch: The batch.
        first_step: Updates that had been made before the first one on this batch.
    """
    step = learner.step
    row = probes.before_update(step + 1, learner.policy, batch)
    row |= update(recipe, learner, start_policy, batch)
    row |= probes.after_update(step + 1, learner.policy, batch, row)
    # Drawing a batch takes time once, however many updates are made on it.
    drawing = batch.laps if step == first_step else {}
    row = {"policy/lag": step - batch.policy_step} | batch.row | drawing | row
    seconds = row["time/update_s"] + sum(drawing.values())
    learner.step += 1
    return row | {
        "time/step_s": seconds,
        "time/rollouts_per_s": len(batch.weights_B) / seconds,
    }


def update(
    recipe: Recipe, learner: Learner, start_policy: PreTrainedModel | None, batch: Batch
) -> Row:
    """One update of the policy on a batch.

    Rollouts of weight 0 have no gradient unless a KL term or an entropy bonus is on; they are left
    out of the forward pass, and still count in the loss's denominator.

    Raises:
        UsageError: The loss or the gradient is not finite; the policy is as before the update.
    """
    clock, rollouts, policy, bonus = Clock(), batch.rollouts, learner.policy, learner.bonus
    is_used_B = rollouts_in_loss(recipe.loss, rollouts)
    num_tokens = float(rollouts.answer_mask_BT[is_used_B].sum())
    if start_policy is None and not bonus.is_on:
        is_used_B = is_used_B & (batch.weights_B != 0)
    rows = is_used_B.nonzero()[:, 0]
    # A gradient of zeros, not of None: the optimiser's averages decay on a batch without signal.
    parameters = trained_parameters(learner.optimizer)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    denominator_B = loss_denominators(recipe.loss, rollouts, recipe.train.max_new_tokens)
    parts, order = [], []
    for part, chosen in passes(rollouts, rows, recipe.train.tokens_at_once):
        loss = batch_loss(
            recipe.loss,
            policy,
            start_policy,
            part,
            batch.weights_B[chosen],
            torch.arange(len(chosen), device=chosen.device),
            denominator_B[chosen],
            entropy_scale=bonus.coef / num_tokens if bonus.is_on else None,
        )
        loss.value.backward()
        parts.append(loss)
        order.append(chosen)
    whole = joined(parts) if parts else None
    row = loss_row(whole, has_kl=start_policy is not None)
    norm = torch.nn.utils.clip_grad_norm_(parameters, recipe.optim.max_grad_norm)
    row["optim/grad_norm"] = float(norm)
    if not (math.isfinite(row["loss/value"]) and math.isfinite(row["optim/grad_norm"])):
        raise UsageError(
            f"the policy diverged: loss {row['loss/value']}, gradient norm "
            f"{row['optim/grad_norm']} (try a smaller optim.lr); the last checkpoint is intact"
        )
    used = torch.cat(order).cpu().numpy() if order else rows.cpu().numpy()
    row |= reach_row(recipe.loss, rollouts, batch.weights_PG, batch.successes_PG, whole, used)
    if whole is not None and whole.entropy_nats is not None:
        row |= {"entropy/bonus_coef": bonus.coef, "entropy/update_nats": whole.entropy_nats}
        bonus.see(whole.entropy_nats)
    learner.optimizer.step()
    clock.lap("time/update_s")
    return row | clock.laps


def loss_row(loss: Loss | None, *, has_kl: bool) -> Row:
    """The metrics of a loss; None where no rollout was trained on."""
    if loss is None:
        return {"loss/value": 0.0, "loss/clip_share": 0.0, "loss/num_trained": 0}
    row: Row = {
        "loss/value": loss.value.item(),
        "loss/clip_share": loss.clip_share,
        "loss/num_trained": len(loss.length_N),
        "policy/effective_rollouts": loss.effective_rollouts,
        "policy/effective_tokens": loss.effective_tokens,
    }
    return row | {"loss/kl_nats": loss.kl_nats} if has_kl else row
