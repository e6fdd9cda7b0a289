"""The policy of a run: on its device, in its numbers, with an adapter or without."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_layers import GradientCheckpointingLayer

from gradmass.config import LoraConfig, ModelConfig, PromptConfig
from gradmass.tasks import Task
from gradmass.tasks.dressed import dress
from gradmass.training.generate import chat_renderer, start_text
from gradmass.training.lora import add_adapter, load_adapter
from gradmass.training.model import load_model

Model = TypeVar("Model", bound=PreTrainedModel)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def device() -> torch.device:
    """The first CUDA GPU, where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_policy(
    config: ModelConfig, lora: LoraConfig, seed: int, saved: Path | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, torch.dtype]:
    """A policy to train.

    With an adapter the model under it is frozen, in the numbers it computes with, and the adapter
    is in float32. Without one every parameter is trained (see ``make_optimizer`` for bfloat16).

    Args:
        config: Which model, and how it computes.
        lora: The adapter.
        seed: Of a new adapter.
        saved: A checkpoint of a run to go on from; None starts from ``config.path``.

    Returns:
        The policy, its tokenizer, and what the parameters at its start are stored in.

    Raises:
        UsageError: The model cannot be loaded, or takes no such adapter.
    """
    has_adapter = lora.rank > 0
    path = config.path if has_adapter or saved is None else str(saved)
    policy, tokenizer = load_model(path)
    stored_dtype = policy.dtype
    policy = policy.to(device=device(), dtype=DTYPES[config.dtype])
    if has_adapter:
        policy = add_adapter(policy, lora, seed)
        if saved is not None:
            load_adapter(policy, saved)
    if config.gradient_checkpointing:
        policy.activation_checkpointing_enable({"use_reentrant": False})
        # Blocks look at this before they forget what they computed; to what is in them, dropout
        # included, the model is in evaluation all along.
        for module in policy.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = True
    return policy, tokenizer, stored_dtype


def copy_policy(policy: Model) -> Model:
    """A second policy that shares what is not trained: of a LoRA run, nearly everything."""
    shared = {id(p): p for p in policy.parameters() if not p.requires_grad}
    # What is in the memo is taken for copied already.
    return copy.deepcopy(policy, memo=shared)  # type: ignore[arg-type]


def prompt_renderer(
    config: PromptConfig, tokenizer: PreTrainedTokenizerFast, name: str
) -> Callable[[str], str]:
    """What makes the text that the model reads of a problem's prompt.

    Raises:
        UsageError: A chat is asked for, and the tokenizer has no template, or one without a system
            message's place.
    """
    start = start_text(tokenizer)
    if config.template == "plain" and not start and not config.instruction:
        return str
    chat = chat_renderer(tokenizer, name, config.system) if config.template == "chat" else None

    def render(prompt: str) -> str:
        text = f"{prompt}\n{config.instruction}" if config.instruction else prompt
        return start + text if chat is None else chat(text)

    return render


def dressed_task(
    config: PromptConfig, task: Task, tokenizer: PreTrainedTokenizerFast, name: str
) -> Task:
    """The task as the model sees it: prompts rendered, answers in the recipe's format."""
    return dress(task, prompt_renderer(config, tokenizer, name), config.format)
