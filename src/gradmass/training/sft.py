"""Supervised start: a tiny model learns the task's format from random solved problems."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from gradmass.config import SftRecipe
from gradmass.tasks import Problem
from gradmass.training.evaluate import evaluate_exactly
from gradmass.training.model import character_tokenizer, save_model, tiny_model
from gradmass.types import UsageError


def supervise(recipe: SftRecipe, out: Path, on_step: Callable[[dict[str, float]], None]) -> None:
    """Train a tiny Qwen2 from nothing and save it in Hugging Face format.

    The loss is the cross-entropy of the answer tokens and the end token; prompts are not learnt.
    The learning rate warms up linearly and falls on a cosine to a tenth.

    Args:
        recipe: The whole run.
        out: Folder to write; must not exist or be empty.
        on_step: Called with a row of metrics after every update; the last has the exact
            ``{split}/pass@k`` and more, if the task lists its right answers.

    Raises:
        UsageError: The task has no alphabet, ``out`` is in use or cannot be written, or a solved
            problem is longer than the model.
    """
    if not recipe.task.alphabet:
        raise UsageError(
            f"task {recipe.task.name!r} has no alphabet, which a character tokenizer is made of"
        )
    _make_folder(out)
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    train = recipe.train
    tokenizer = character_tokenizer(recipe.task.alphabet)
    model = tiny_model(recipe.model, tokenizer, recipe.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=train.lr, betas=(0.9, 0.99), weight_decay=train.weight_decay
    )
    demonstrations = recipe.task.demonstrations(recipe.task.splits[0])
    held_out = {
        split: problems
        for split in recipe.task.splits[1:]
        if (problems := recipe.task.problems(split, train.num_eval_problems))
        and recipe.task.solutions(problems[0]) is not None
    }

    def evaluate() -> dict[str, float]:
        return {
            f"{split}/{key}": value
            for split, problems in held_out.items()
            for key, value in evaluate_exactly(model, tokenizer, recipe.task, problems)
            .summary()
            .items()
        }

    for step in range(1, train.steps + 1):
        tokens_BT, labels_BT = _batch(demonstrations, tokenizer, train.batch_size)
        if tokens_BT.shape[1] > recipe.model.max_positions:
            raise UsageError(
                f"a solved problem has {tokens_BT.shape[1]} tokens, "
                f"model.max_positions = {recipe.model.max_positions} is too few"
            )
        for group in optimizer.param_groups:
            group["lr"] = train.lr * _schedule(step, train.steps, train.warmup_steps)
        logits_BTV = model(input_ids=tokens_BT).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits_BTV.flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=-100
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        row = {"step": step, "loss/value": loss.item()}
        if step == train.steps:
            save_model(model, tokenizer, out)
            row |= evaluate()
        on_step(row)


def _make_folder(out: Path) -> None:
    """Refuse an output that cannot be written before the training, not after it."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"output folder {out} is already used; name another with --out")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to output folder {out}: {error.strerror}") from error


def _batch(
    demonstrations: Iterator[tuple[Problem, str]], tokenizer: PreTrainedTokenizerFast, size: int
) -> tuple[Tensor, Tensor]:
    """Token rows padded on the right, and the same as labels with -100 where nothing is learnt."""
    tokens, labels = [], []
    for problem, answer in islice(demonstrations, size):
        prompt = _tokens(tokenizer, problem.prompt)
        target = [*_tokens(tokenizer, answer), tokenizer.eos_token_id]
        tokens.append(prompt + target)
        labels.append([-100] * len(prompt) + target)
    return _padded(tokens, tokenizer.pad_token_id), _padded(labels, -100)


def _tokens(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _padded(rows: Sequence[list[int]], value: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def _schedule(step: int, steps: int, warmup_steps: int) -> float:
    """Share of the largest learning rate at an update counted from 1."""
    if step <= warmup_steps:
        return step / warmup_steps
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    return 0.1 + 0.45 * (1.0 + math.cos(math.pi * done))
