"""The training loop, read top to bottom.

Sample G rollouts of each problem, verify them, weigh them, make clipped policy-gradient updates,
evaluate, record. Every random draw is fixed by the seed and the step, so the same recipe gives the
same rows, and a run that was interrupted goes on as if it had not been.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from gradmass.config import Recipe
from gradmass.record import Run, RunWriter
from gradmass.training.batch import Batch
from gradmass.training.clock import Clock
from gradmass.training.draw import BatchSource, weigh_batch
from gradmass.training.evaluate import Evaluator, check_answers
from gradmass.training.interrupt import interruptible
from gradmass.training.loss import batch_loss, loss_denominator
from gradmass.training.masters import make_optimizer, trained_parameters
from gradmass.training.model import check_fit, save_model
from gradmass.training.policy import copy_policy, dressed_task, load_policy
from gradmass.training.probes import Probes
from gradmass.training.probes.batch import reach_row
from gradmass.types import UsageError

Row = dict[str, Any]
TRAINER_FILE = "trainer.pt"
"""Optimiser state and past policies, beside the model in a checkpoint."""


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
    if config.threads:
        torch.set_num_threads(config.threads)
    policy, tokenizer, stored_dtype = load_policy(recipe.model, recipe.lora, recipe.seed)
    task = dressed_task(recipe.prompt, task, tokenizer, recipe.model.path)
    recipe = replace(recipe, task=task)
    problems = task.problems(task.splits[0], config.num_problems)
    asked = [task.problems(split, recipe.eval.num_problems) for split in task.splits[1:]]
    prompts = [problem.prompt for split in (problems, *asked) for problem in split]
    check_fit(policy, tokenizer, prompts, config.max_new_tokens)
    for split in asked:
        check_answers(tokenizer, task, split)
    start_policy = copy_policy(policy) if recipe.loss.kl_coef > 0 else None
    evaluator = Evaluator(recipe, policy)
    # Copies of the policy after the last updates, oldest first; batches are drawn from the oldest.
    past: deque[dict[str, Tensor]] = deque(maxlen=config.policy_lag + 1)

    if writer.resumed_from is None:
        step, weight_state = 0, weight.init()
        optimizer = make_optimizer(recipe.optim, policy)
    else:
        step, weight_state = writer.resumed_from.step, writer.resumed_from.weight_state
        saved_at = writer.resumed_from.folder
        policy, *_ = load_policy(recipe.model, recipe.lora, recipe.seed, saved_at)
        optimizer = make_optimizer(recipe.optim, policy)
        file = writer.resumed_from.folder / TRAINER_FILE
        try:
            saved = torch.load(file, weights_only=True, map_location=policy.device)
            optimizer.load_state_dict(saved["optimizer"])
            past.extend(saved["past"])
        except Exception as error:  # what torch raises depends on where the file is damaged
            raise UsageError(f"cannot resume: {file} is missing or damaged") from error
    sampler = copy_policy(policy) if config.policy_lag else policy
    recorded = Run(writer.path)
    probes = Probes(
        recipe,
        start_policy,
        evaluator.change,
        stored_dtype,
        recorded.metrics,
        recorded.diagnostics,
    )

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

    source = BatchSource(recipe, sampler, tokenizer, problems, past)
    with interruptible() as is_interrupted, source:
        if writer.resumed_from is None:
            if config.policy_lag:
                past.append(copy_parameters(policy))
            record({"step": 0, "rollouts": 0} | evaluator.measure(policy, tokenizer, 0, writer))
            writer.checkpoint(0, weight_state, "running", save)
        while step < config.steps and not is_interrupted():
            batch = weigh_batch(recipe, source.draw(step), weight_state, writer)
            weight_state, before = batch.weight_state, step
            for _ in range(min(config.updates_per_batch, config.steps - step)):
                seen = probes.before_update(step + 1, policy, batch)
                row = seen | update(recipe, policy, start_policy, optimizer, batch)
                row |= probes.after_update(step + 1, policy, batch, row)
                # Drawing a batch takes time once, however many updates are made on it.
                drawing = batch.laps if step == before else {}
                row = {"policy/lag": step - batch.policy_step} | batch.row | drawing | row
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
                writer.log_diagnostics({"step": step, **details} for details in probes.details)
                record({"step": step} | row | probes.warnings(row))
            if (
                step < config.steps
                and before // config.checkpoint_every != step // config.checkpoint_every
            ):
                writer.checkpoint(step, weight_state, "running", save)
        is_finished = step >= config.steps
        writer.checkpoint(step, weight_state, "finished" if is_finished else "interrupted", save)
    return is_finished


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
    parameters = trained_parameters(optimizer)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    row: Row = {"loss/value": 0.0, "loss/clip_share": 0.0, "loss/num_trained": len(rows)}
    loss = None
    if len(rows):
        loss = batch_loss(
            recipe.loss,
            policy,
            start_policy,
            rollouts,
            batch.weights_B,
            rows,
            loss_denominator(recipe.loss, rollouts, recipe.train.max_new_tokens),
        )
        loss.value.backward()
        row |= {"loss/value": loss.value.item(), "loss/clip_share": loss.clip_share}
        if start_policy is not None:
            row["loss/kl_nats"] = loss.kl_nats
    norm = torch.nn.utils.clip_grad_norm_(parameters, recipe.optim.max_grad_norm)
    row["optim/grad_norm"] = float(norm)
    if not (math.isfinite(row["loss/value"]) and math.isfinite(row["optim/grad_norm"])):
        raise UsageError(
            f"the policy diverged: loss {row['loss/value']}, gradient norm "
            f"{row['optim/grad_norm']} (try a smaller optim.lr); the last checkpoint is intact"
        )
    row |= reach_row(
        recipe.loss, rollouts, batch.weights_PG, batch.successes_PG, loss, rows.cpu().numpy()
    )
    optimizer.step()
    clock.lap("time/update_s")
    return row | clock.laps


def copy_parameters(model: PreTrainedModel) -> dict[str, Tensor]:
    """The parameters that are trained, as they are now."""
    return {
        name: tensor.detach().clone()
        for name, tensor in model.named_parameters()
        if tensor.requires_grad
    }
