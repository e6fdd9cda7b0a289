"""Supervised start: a model learns the form of answers from solved problems."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradmass.config import OptimConfig, SftRecipe
from gradmass.record import refuse_used
from gradmass.training.evaluate import evaluate_exactly
from gradmass.training.masters import make_optimizer, trained_parameters
from gradmass.training.model import character_tokenizer, save_model, tiny_model
from gradmass.training.passes import passes
from gradmass.training.policy import device, dressed_task, load_policy, prompt_renderer
from gradmass.training.rollout import Rollouts, answer_logprobs, end_tokens
from gradmass.training.solved import Rows, Solved, from_task
from gradmass.types import UsageError

BETAS = (0.9, 0.99)
"""AdamW's decay rates."""


def supervise(recipe: SftRecipe, out: Path, on_step: Callable[[dict[str, float]], None]) -> None:
    """Train a tiny Qwen2 from nothing, or another model further, and save it.

    The loss is the cross-entropy of the answer tokens and the end token, a mean over those of the
    batch; prompts are not learnt. The learning rate warms up linearly and falls on a cosine to a
    tenth.

    Args:
        recipe: The whole run.
        out: Folder to write, in Hugging Face format, or peft's with an adapter; must not exist or
            be empty.
        on_step: Called with a row of metrics after every update; the last has the exact
            ``{split}/pass@k`` and more, if the task lists its right answers.

    Raises:
        UsageError: There is no such model or data, the task has no alphabet for a tiny one, ``out``
            is in use or cannot be written, a solved problem is longer than the model, or the model
            diverged.
    """
    train = recipe.train
    if not recipe.start.path and not recipe.task.alphabet:
        raise UsageError(
            f"task {recipe.task.name!r} has no alphabet, which a character tokenizer is made of"
        )
    _make_folder(out)
    if train.threads:
        torch.set_num_threads(train.threads)
    model, tokenizer = _start(recipe)
    recipe = replace(
        recipe, task=dressed_task(recipe.prompt, recipe.task, tokenizer, recipe.start.path)
    )
    stream = _stream(recipe, model, tokenizer)
    config = OptimConfig(lr=train.lr, betas=BETAS, weight_decay=train.weight_decay)
    optimizer = make_optimizer(config, model)
    for step in range(1, train.steps + 1):
        batch = list(islice(stream, train.batch_size))
        _check_length(batch, model, is_tiny=not recipe.start.path)
        for group in optimizer.param_groups:
            group["lr"] = train.lr * _schedule(step, train.steps, train.warmup_steps)
        row = {"step": step, "loss/value": _update(batch, model, tokenizer, optimizer, recipe)}
        if step == train.steps:
            _save(model, tokenizer, out)
            row |= _evaluate(recipe, model, tokenizer)
        on_step(row)


def _start(recipe: SftRecipe) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    if recipe.start.path:
        model, tokenizer, _ = load_policy(recipe.start, recipe.lora, recipe.seed)
        return model, tokenizer
    tokenizer = character_tokenizer(recipe.task.alphabet)
    return tiny_model(recipe.model, tokenizer, recipe.seed).to(device()), tokenizer


def _stream(
    recipe: SftRecipe, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> Iterator[Solved]:
    """Solved problems without end, of the user's rows or of the task."""
    if not recipe.data.path:
        return from_task(recipe.task.demonstrations(recipe.task.splits[0]), tokenizer)
    render = prompt_renderer(recipe.prompt, tokenizer, recipe.start.path)
    rows = Rows(recipe.data.path, tokenizer, render, end_tokens(model, tokenizer))
    return rows.shuffled(recipe.seed)


def _update(
    batch: Sequence[Solved],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    optimizer: torch.optim.Optimizer,
    recipe: SftRecipe,
) -> float:
    """One update; the loss before it."""
    rollouts = _as_rollouts(batch, tokenizer, model.device)
    num_tokens = int(rollouts.answer_mask_BT.sum())
    optimizer.zero_grad()
    value = 0.0
    for part, rows in passes(
        rollouts, torch.arange(len(batch), device=model.device), recipe.train.tokens_at_once
    ):
        every = torch.arange(len(rows), device=model.device)
        loss = -answer_logprobs(model, part, every).sum() / num_tokens
        loss.backward()
        value += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(trained_parameters(optimizer), 1.0)
    if not (math.isfinite(value) and math.isfinite(norm)):
        raise UsageError(
            f"the model diverged: loss {value}, gradient norm {float(norm)} "
            "(try a smaller train.lr)"
        )
    optimizer.step()
    return value


def _evaluate(
    recipe: SftRecipe, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> dict[str, float]:
    """Exact values on the held-out splits of a task that lists its right answers."""
    row: dict[str, float] = {}
    if recipe.data.path or not recipe.train.num_eval_problems:
        return row
    for split in recipe.task.splits[1:]:
        problems = recipe.task.problems(split, recipe.train.num_eval_problems)
        if recipe.task.solutions(problems[0]) is not None:
            exact = evaluate_exactly(model, tokenizer, recipe.task, problems)
            row |= {f"{split}/{key}": value for key, value in exact.summary().items()}
    return row


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the model whole or not at all."""
    draft = out / ".draft"
    try:
        save_model(model, tokenizer, draft)
        for file in draft.iterdir():
            file.rename(out / file.name)
        draft.rmdir()
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"cannot save the model in {out}: {error}") from error


def _make_folder(out: Path) -> None:
    """Refuse an output that cannot be written before the training, not after it."""
    try:
        refuse_used(out)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to output folder {out}: {error.strerror}") from error


def _check_length(batch: Sequence[Solved], model: PreTrainedModel, *, is_tiny: bool) -> None:
    """Refuse solved problems that are longer than the model."""
    positions = getattr(model.config, "max_position_embeddings", math.inf)
    longest = max(batch, key=lambda solved: len(solved.prompt) + len(solved.target))
    length = len(longest.prompt) + len(longest.target)
    if length > positions:
        limit = f"model.max_positions = {positions} is too few"
        raise UsageError(
            f"{longest.where} has {length} tokens, "
            + (limit if is_tiny else f"the model has {positions} positions")
        )


def _as_rollouts(
    batch: Sequence[Solved], tokenizer: PreTrainedTokenizerFast, device: torch.device
) -> Rollouts:
    """Prompts padded on the left and targets on the right, as answers of which no more is known."""
    num_prompt = max(len(solved.prompt) for solved in batch)
    num_target = max(len(solved.target) for solved in batch)
    pad = tokenizer.pad_token_id
    prompts = [[pad] * (num_prompt - len(s.prompt)) + s.prompt for s in batch]
    targets = [s.target + [pad] * (num_target - len(s.target)) for s in batch]
    prompt_B1 = torch.tensor([[len(s.prompt)] for s in batch], device=device)
    target_B1 = torch.tensor([[len(s.target)] for s in batch], device=device)
    nothing_BT = torch.zeros((len(batch), num_target), device=device)
    return Rollouts(
        prompt_BT=torch.tensor(prompts, device=device),
        prompt_mask_BT=torch.arange(num_prompt, device=device) >= num_prompt - prompt_B1,
        answer_BT=torch.tensor(targets, device=device),
        answer_mask_BT=torch.arange(num_target, device=device) < target_B1,
        logprobs_BT=nothing_BT,
        entropy_BT=nothing_BT,
        is_ended_B=torch.ones(len(batch), dtype=torch.bool, device=device),
    )


def _schedule(step: int, steps: int, warmup_steps: int) -> float:
    """Share of the largest learning rate at an update counted from 1."""
    if step <= warmup_steps:
        return step / warmup_steps
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    return 0.1 + 0.45 * (1.0 + math.cos(math.pi * done))
