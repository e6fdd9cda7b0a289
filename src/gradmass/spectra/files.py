"""Read the tensors of a checkpoint one by one, whatever files it lies in.

A tensor is mapped, not read: its bytes come from the disk where they are looked at, and leave
memory when it is dropped. Files are opened anew for each tensor for that reason.
"""

import json
import pickle
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from gradmass.types import UsageError

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
WHOLE = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
"""Where transformers looks first, in this order; then ``pytorch_model.bin.index.json``."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Args:
        name: Its name there.
        file: The file.
        shape: Its sides.
        dtype: As it is stored.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()

    def map(self) -> torch.Tensor:
        """The tensor, mapped from its file.

        Raises:
            UsageError: The file is gone or damaged.
        """
        if self.file.suffix != ".safetensors":
            return _unpickle(self.file)[self.name]
        try:
            with safe_open(self.file, "pt") as file:
                tensor: torch.Tensor = file.get_tensor(self.name)
        except (SafetensorError, OSError) as error:
            raise UsageError(f"cannot read {self.name} from {self.file}: {error}") from error
        return tensor


@dataclass(frozen=True)
class Checkpoint:
    """Names and places of a model's tensors.

    Args:
        path: Folder or file.
        tensors: By name, in the order of the files.
        aliases: Other names of tensors, as the files' metadata says.
        config: ``config.json`` of a folder, empty where there is none.
    """

    path: Path
    tensors: dict[str, StoredTensor]
    aliases: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


def open_checkpoint(path: Path) -> Checkpoint:
    """Find the tensors of a folder in Hugging Face format, or of a single file.

    Args:
        path: A folder with ``model.safetensors`` or ``pytorch_model.bin``, whole or in shards, or a
            file in either format. Pickles are read with ``weights_only``: no code of theirs runs.

    Raises:
        UsageError: Nothing there that holds tensors, a shard or a tensor is missing, or a file is
            damaged.
    """
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise UsageError(f"{path} is no checkpoint: a file ends in {', '.join(SUFFIXES)}")
        tensors, aliases = _read_index([path])
        return Checkpoint(path, tensors, aliases)
    if not path.is_dir():
        raise UsageError(f"no checkpoint at {str(path)!r}: neither a folder nor a file")
    files, placed = _files_of(path)
    tensors, aliases = _read_index(files)
    for name, file in placed.items():
        if name not in tensors or tensors[name].file != file:
            raise UsageError(f"{file} lacks {name}, which the index of {path} places there")
    return Checkpoint(path, tensors, aliases, read_json(path / "config.json", or_empty=True))


def read_json(file: Path, *, or_empty: bool = False) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        UsageError: No such file (unless ``or_empty``), or no JSON object in it.
    """
    if or_empty and not file.exists():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file} holds no JSON object")
    return content


def _files_of(folder: Path) -> tuple[list[Path], dict[str, Path]]:
    """The files with a folder's tensors, and where its index places each tensor."""
    for name in (*WHOLE, "pytorch_model.bin.index.json"):
        found = folder / name
        if not found.exists():
            continue
        if found.suffix != ".json":
            return [found], {}
        placed = read_json(found).get("weight_map")
        if not isinstance(placed, dict) or not placed:
            raise UsageError(f"{found} has no weight_map, which says where each tensor is")
        places = {name: folder / str(file) for name, file in placed.items()}
        return list(dict.fromkeys(places.values())), places
    files = sorted(folder.glob("*.safetensors"))
    _refuse_gaps(folder, files)
    if not files:
        raise UsageError(
            f"{folder} is no model: it has no model.safetensors or pytorch_model.bin, whole or in "
            "shards with their index"
        )
    return files, {}


def _refuse_gaps(folder: Path, files: Iterable[Path]) -> None:
    """Refuse shards without an index of which one is missing, as their names say."""
    names = {file.name for file in files}
    for name in sorted(names):
        numbers = re.fullmatch(r"(.*)-(\d+)-of-(\d+)\.safetensors", name)
        if numbers is None:
            continue
        stem, digits, last = numbers[1], len(numbers[2]), int(numbers[3])
        for number in range(1, last + 1):
            wanted = f"{stem}-{number:0{digits}}-of-{numbers[3]}.safetensors"
            if wanted not in names:
                raise UsageError(f"the shard {folder / wanted} is missing")


def _read_index(files: Iterable[Path]) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """All tensors of some files, and the aliases that their metadata names."""
    tensors: dict[str, StoredTensor] = {}
    aliases: dict[str, str] = {}
    for file in files:
        if not file.exists():
            raise UsageError(f"the shard {file} is missing")
        if file.suffix == ".safetensors":
            found, named = _index_safetensors(file)
            aliases |= named
        else:
            found = {
                name: StoredTensor(name, file, tuple(tensor.shape), tensor.dtype)
                for name, tensor in _unpickle(file).items()
            }
        if twice := sorted(found.keys() & tensors.keys()):
            raise UsageError(f"{twice[0]} is both in {tensors[twice[0]].file} and in {file}")
        tensors |= found
    return tensors, aliases


def _index_safetensors(file: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    tensors = {}
    try:
        with safe_open(file, "pt") as opened:
            for name in sorted(opened.keys()):
                tensor = opened.get_slice(name)
                dtype = SAFETENSORS_DTYPES.get(tensor.get_dtype())
                if dtype is None:
                    raise UsageError(
                        f"{name} in {file} is {tensor.get_dtype()}, which this command cannot read"
                    )
                tensors[name] = StoredTensor(name, file, tuple(tensor.get_shape()), dtype)
            metadata = opened.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{file} is damaged or cut short: {error}") from error
    aliases = {name: kept for name, kept in metadata.items() if kept in tensors}
    return tensors, aliases


def _unpickle(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file that torch.save wrote, mapped where its format allows it."""
    try:
        # Before torch 1.6, torch.save wrote no zip archive; such a file cannot be mapped.
        content = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except pickle.UnpicklingError as error:
        reason = "it holds more than tensors, or is damaged"
        raise UsageError(f"cannot read {file}: {reason}") from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{file} is damaged or cut short: {reason}") from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content:
        raise UsageError(f"{file} holds no tensors by name")
    for name, tensor in content.items():
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(
                f"{file} holds no tensors by name: {name!r} is {type(tensor).__name__}"
            )
    return content
