"""Read a LoRA adapter as PEFT writes it: what it adds to which tensor of the base model."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradmass.spectra.change import FactorPair
from gradmass.spectra.files import Checkpoint, StoredTensor, open_checkpoint, read_json
from gradmass.spectra.pairs import HEAD, Pair, embedding_of, pairs_of, same_values
from gradmass.types import UsageError

CONFIG = "adapter_config.json"
PREFIX = "base_model.model."
FACTORS = re.compile(r"(.*)\.(lora_(?:embedding_)?)([AB])(?:\.weight)?$")
OWN_BASE = ".base_layer.weight"
TOKEN_ROWS = ".token_adapter.trainable_tokens_delta"
OTHER_METHODS = (
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "alora_invocation_tokens",
    "layer_replication",
    "arrow_config",
    "monteclora_config",
    "kasa_config",
    "target_parameters",
)
"""Settings under which the change is not the scaled product of the stored factors alone."""
MOVED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that change the base model's weights, so that B A is not the change to them."""


@dataclass(frozen=True)
class Adapter:
    """What an adapter changes.

    Args:
        path: Its folder.
        pairs: The changes, in factors or as whole tensors.
        notes: What is not as one would expect.
    """

    path: Path
    pairs: list[Pair | FactorPair]
    notes: list[str] = field(default_factory=list)


def is_adapter(path: Path) -> bool:
    """Whether a folder holds an adapter rather than a model."""
    return (path / CONFIG).is_file()


def open_adapter(path: Path, base: Checkpoint, is_selected: Callable[[str], bool]) -> Adapter:
    """Match an adapter with the model it was trained on.

    Args:
        path: Folder with ``adapter_config.json`` and ``adapter_model.safetensors`` (or ``.bin``).
        base: The model.
        is_selected: Which names to compare.

    Raises:
        UsageError: Another method than LoRA, DoRA among them; an initialisation that moves the
            base; tensors that are missing, damaged, or do not fit the base.
    """
    config = read_json(path / CONFIG)
    _refuse_other_methods(path, config)
    stored = _tensors_of(path)
    notes: list[str] = []
    pairs = [pair for pair in _match(path, config, stored, base, notes) if is_selected(pair.name)]
    if not pairs:
        raise UsageError(f"--modules selects nothing that the adapter {path} changes")
    return Adapter(path, pairs, notes)


def _tensors_of(path: Path) -> dict[str, StoredTensor]:
    for name in ("adapter_model.safetensors", "adapter_model.bin"):
        if (path / name).exists():
            return open_checkpoint(path / name).tensors
    raise UsageError(f"{path} has an {CONFIG} but no adapter_model.safetensors or .bin")


def _refuse_other_methods(path: Path, config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise UsageError(f"{path} is an adapter of type {config.get('peft_type')!r}, not LORA")
    used = [key for key in OTHER_METHODS if config.get(key)]
    init = str(config.get("init_lora_weights", True)).lower()
    if init.startswith(MOVED_BASE):
        used.append(f"init_lora_weights = {init}")
    if used:
        raise UsageError(
            f"{path} uses {used[0]}, whose change is not its scaled B A alone: merge the adapter "
            "(merge_and_unload) and compare the merged model"
        )


def _match(
    path: Path,
    config: dict[str, Any],
    stored: dict[str, StoredTensor],
    base: Checkpoint,
    notes: list[str],
) -> Iterator[Pair | FactorPair]:
    factors: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        short = name.removeprefix(PREFIX)
        if found := FACTORS.match(short):
            factors.setdefault(found[1], {})[found[2] + found[3]] = tensor
        elif short.endswith(OWN_BASE):
            own = _base_tensor(base, short.removesuffix(OWN_BASE) + ".weight", path)
            if not same_values(own, tensor):
                raise UsageError(
                    f"{name} in {tensor.file} is not {own.name} of {base.path}: the adapter was "
                    "made on another model"
                )
        elif short.endswith(TOKEN_ROWS):
            yield _token_rows(config, short.removesuffix(TOKEN_ROWS), tensor, base, path)
        else:
            short = short.replace(".base_layer.", ".").replace(".modules_to_save.", ".")
            own = _base_tensor(base, short, path)
            if own.name != short:
                notes.append(
                    f"{short} is tied to {own.name} in {base.path}, and no longer in TUNED"
                )
            yield from pairs_of(short, own, tensor, notes)
    for module, found_factors in factors.items():
        yield _factor_pair(config, module, found_factors, base, path)


def _factor_pair(
    config: dict[str, Any],
    module: str,
    found: dict[str, StoredTensor],
    base: Checkpoint,
    path: Path,
) -> FactorPair:
    name = f"{module}.weight"
    is_embedding = "lora_embedding_A" in found or "lora_embedding_B" in found
    kind = "lora_embedding_" if is_embedding else "lora_"
    if found.keys() != {f"{kind}A", f"{kind}B"}:
        raise UsageError(f"{path} has only {', '.join(sorted(found))} of {module}")
    left, right, own = found[f"{kind}B"], found[f"{kind}A"], _base_tensor(base, name, path)
    rank = right.shape[0]
    alpha = float(_by_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha", 8)))
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    is_transposed = is_embedding or bool(config.get("fan_in_fan_out"))
    product = (left.shape[0], *right.shape[1:])
    if len(right.shape) != 2 or left.shape != (left.shape[0], rank):
        raise UsageError(
            f"{module} in {path} has factors of shapes {list(left.shape)} and {list(right.shape)}; "
            "merge the adapter (merge_and_unload) and compare the merged model"
        )
    if own.shape != (product[::-1] if is_transposed else product):
        raise UsageError(
            f"different architectures: {path} changes {name} by a matrix of {list(product)}, in "
            f"{base.path} it is {list(own.shape)}"
        )
    return FactorPair(name, own, left, right, scale, is_transposed)


def _token_rows(
    config: dict[str, Any], module: str, tensor: StoredTensor, base: Checkpoint, path: Path
) -> Pair:
    """New values of some rows of the embedding (a delta only by their name)."""
    indices = config.get("trainable_token_indices")
    if isinstance(indices, dict):
        indices = _by_pattern(indices, module, None)
    own = _base_tensor(base, f"{module}.weight", path)
    rows = tuple(indices) if isinstance(indices, list) else ()
    is_fitting = len(rows) == tensor.shape[0] and all(0 <= row < own.shape[0] for row in rows)
    if not is_fitting or tensor.shape[1:] != own.shape[1:]:
        raise UsageError(
            f"{tensor.name} in {tensor.file} is {list(tensor.shape)}, which fits neither "
            f"trainable_token_indices = {indices} nor {own.name}, {list(own.shape)}"
        )
    return Pair(f"{module}.weight", own, tensor, (len(rows), own.shape[1]), rows=rows)


def _by_pattern(patterns: Any, module: str, default: Any) -> Any:
    """The value of the first pattern that fits the end of a module's name, as PEFT reads it."""
    for pattern, value in (patterns or {}).items():
        if re.match(pattern if pattern.startswith("^") else rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _base_tensor(base: Checkpoint, name: str, path: Path) -> StoredTensor:
    if name in base.tensors:
        return base.tensors[name]
    embedding = embedding_of(base)
    if HEAD.search(name) and embedding is not None:
        return embedding
    raise UsageError(f"different architectures: {path} changes {name}, which {base.path} has not")
