"""Low-rank adapters, by peft: added, saved with checkpoints, read back, merged."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradmass.config import LoraConfig
from gradmass.training.folders import CONFIG_FILE
from gradmass.types import UsageError

WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Before the names of a model's modules in a file of peft."""


def add_adapter(policy: PreTrainedModel, config: LoraConfig, seed: int) -> PreTrainedModel:
    """Freeze the model and give it a new adapter, which changes nothing yet.

    Raises:
        UsageError: peft is not installed, the model has no matrix of those names, or none of that
            rank.
    """
    peft = _peft("lora.rank")
    full = max(min(m.weight.shape) for m in policy.modules() if isinstance(m, torch.nn.Linear))
    if config.rank > full:
        raise UsageError(
            f"lora.rank = {config.rank} is above the rank of any matrix of the model, {full}; "
            "lora.rank = 0 trains all parameters"
        )
    adapter = peft.LoraConfig(
        base_model_name_or_path=str(Path(policy.name_or_path).resolve()),
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
    devices = [policy.device] if policy.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        try:
            peft.inject_adapter_in_model(adapter, policy)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"lora.targets = {list(config.targets)}: {reason[:300]}") from error
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return policy


def _peft(what: str) -> Any:
    try:
        import peft
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{what} needs peft, which is not installed: pip install 'gradmass[lora]'"
        ) from error
    return peft


def load_adapter(policy: PreTrainedModel, folder: Path) -> None:
    """Give the adapter of a policy the values saved in a folder.

    Raises:
        UsageError: The folder holds no adapter of this shape.
    """
    import peft
    from safetensors.torch import load_file

    outcome: Any
    try:
        saved = load_file(folder / WEIGHTS_FILE, device=str(policy.device))
        values = {key.removeprefix(PREFIX): value for key, value in saved.items()}
        outcome = peft.set_peft_model_state_dict(policy, values)
    except Exception as error:  # a damaged file raises whatever the library that reads it does
        raise UsageError(f"cannot resume: the adapter in {folder} is damaged ({error})") from error
    if outcome.unexpected_keys or any("lora_" in key for key in outcome.missing_keys):
        raise UsageError(f"cannot resume: the adapter in {folder} is not that of the recipe")


def save_adapter(policy: PreTrainedModel, folder: Path) -> None:
    """Write the adapter of a policy as peft writes that of a ``PeftModel``."""
    import peft
    from safetensors.torch import save_file

    values = peft.get_peft_model_state_dict(policy)
    named = {f"{PREFIX}{key}": value.contiguous() for key, value in values.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(named, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    policy.peft_config["default"].save_pretrained(str(folder))


def has_adapter(policy: PreTrainedModel) -> bool:
    """Whether a policy trains an adapter."""
    return next(adapted_matrices(policy), None) is not None


def base_path(folder: Path) -> str:
    """What the adapter in a folder was trained on.

    Raises:
        UsageError: Its configuration is damaged or does not say.
    """
    try:
        path = json.loads((folder / CONFIG_FILE).read_text())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{folder / CONFIG_FILE} is damaged: {error}") from error
    if not isinstance(path, str) or not path:
        raise UsageError(f"{folder / CONFIG_FILE} does not say which model it belongs to")
    return path


def merge_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """A model with the adapter of a folder worked into its matrices, in float32.

    Most of an update of RL is smaller than the spacing of bfloat16.

    Raises:
        UsageError: peft is not installed, or the adapter is damaged or of another model.
    """
    peft = _peft("the model is an adapter, which")
    if not any((folder / name).is_file() for name in (WEIGHTS_FILE, "adapter_model.bin")):
        # peft would look for it on the Hugging Face Hub.
        raise UsageError(f"the adapter in {folder} is not whole: it has no {WEIGHTS_FILE}")
    try:
        with warnings.catch_warnings():
            # peft asks transformers for what is called otherwise since.
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            adapted = peft.PeftModel.from_pretrained(model.float(), str(folder))
        merged = adapted.merge_and_unload()
    except Exception as error:  # a damaged file raises whatever the library that reads it does
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"cannot load the adapter in {folder}: {type(error).__name__}: {reason}"
        ) from error
    merged.name_or_path = str(folder)
    return merged


def adapted_matrices(policy: PreTrainedModel) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, frozen weight and its change, of every matrix that has an adapter."""
    for name, module in policy.named_modules():
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer"):
            weight = module.base_layer.weight
            change = sum(module.get_delta_weight(adapter) for adapter in module.active_adapters)
            assert isinstance(change, Tensor)
            yield f"{name}.weight", weight, change
