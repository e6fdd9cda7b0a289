"""A batch in several forward and backward passes: what memory holds at once, and little padding."""

from collections.abc import Iterator
from dataclasses import fields

import torch
from torch import Tensor

from gradmass.training.rollout import Rollouts


def passes(
    rollouts: Rollouts, rows: Tensor, tokens_at_once: int
) -> Iterator[tuple[Rollouts, Tensor]]:
    """Split rollouts of a batch into passes of bounded size, alike in length.

    The gradients of the passes add up to that of the batch, since a loss divides by what belongs to
    the whole batch. A batch that fits is one pass, in its own order.

    Args:
        rollouts: The batch.
        rows: The rollouts to go through, shape ``[N]``.
        tokens_at_once: Prompt and answer tokens in a pass, padding included; a single rollout may
            have more.

    Yields:
        Rollouts without padding that all of them have, and which rows of the batch they are. Every
        one of ``rows`` is in one pass. The longest come first: if memory is too small, it is at
        once.
    """
    if not len(rows):
        return
    width = rollouts.prompt_BT.shape[1] + rollouts.answer_BT.shape[1]
    if len(rows) * width <= tokens_at_once:
        yield part(rollouts, rows, trim=False), rows
        return
    prompt_N = rollouts.prompt_mask_BT[rows].sum(1)
    answer_N = rollouts.answer_mask_BT[rows].sum(1)
    order = (prompt_N + answer_N).argsort(descending=True, stable=True).tolist()
    prompts, answers = prompt_N.tolist(), answer_N.tolist()
    start = 0
    while start < len(order):
        end, prompt, answer = start, 0, 0
        while end < len(order):
            prompt = max(prompt, prompts[order[end]])
            answer = max(answer, answers[order[end]])
            if end > start and (end - start + 1) * (prompt + answer) > tokens_at_once:
                break
            end += 1
        chosen = rows[torch.tensor(order[start:end], device=rows.device)]
        yield part(rollouts, chosen, trim=True), chosen
        start = end


def part(rollouts: Rollouts, rows: Tensor, *, trim: bool) -> Rollouts:
    """Some rows of a batch; ``trim`` cuts off the padding that all of them have."""
    num_prompt, num_answer = rollouts.prompt_BT.shape[1], rollouts.answer_BT.shape[1]
    if trim:
        num_prompt = int(rollouts.prompt_mask_BT[rows].sum(1).max())
        num_answer = int(rollouts.answer_mask_BT[rows].sum(1).max())

    def cut(name: str, values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        chosen = values[rows]
        if chosen.ndim == 1:
            return chosen
        from_left = name.startswith("prompt")
        return chosen[:, -num_prompt:] if from_left else chosen[:, :num_answer]

    values = {f.name: cut(f.name, getattr(rollouts, f.name)) for f in fields(rollouts)}
    return Rollouts(**values)  # type: ignore[arg-type]
