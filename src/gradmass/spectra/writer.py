"""Write a model tensor by tensor, in any order, whole or not at all."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from gradmass.spectra.files import SAFETENSORS_DTYPES, SUFFIXES, StoredTensor
from gradmass.types import UsageError

COPIED_BYTES = 2**26
TRAINER_STATE = ("trainer_state.json", "optimizer", "scheduler", "rng_state", "training_args")


class ModelWriter:
    """A folder in Hugging Face format that appears when all of it is written.

    The layout is that of the model it is made from: the same files, names, sides and dtypes, in
    safetensors. Use as a context: leaving it by an error leaves nothing behind.

    Args:
        out: The folder to make.
        tensors: What it will hold, and from which file each comes.
        aliases: Other names of tensors, kept in the files' metadata.
        extra_files: Configuration and tokenizer, copied as they are.
    """

    def __init__(
        self,
        out: Path,
        tensors: Mapping[str, StoredTensor],
        aliases: Mapping[str, str],
        extra_files: Iterable[Path],
    ) -> None:
        self._out, self._tensors = out, tensors
        self._draft = out.with_name(f".{out.name}.draft")
        self._places: dict[str, tuple[Path, int]] = {}
        self._aliases = aliases
        self._extra_files = list(extra_files)
        self._done: dict[str, int] = dict.fromkeys(tensors, 0)

    def __enter__(self) -> "ModelWriter":
        """Lay out the files."""
        shutil.rmtree(self._draft, ignore_errors=True)
        self._draft.mkdir(parents=True)
        by_file: dict[str, list[StoredTensor]] = {}
        for tensor in self._tensors.values():
            by_file.setdefault(_new_name(tensor.file), []).append(tensor)
        for name, tensors in by_file.items():
            self._lay_out(self._draft / name, tensors)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish, or remove what was written."""
        try:
            if error is None:
                self._finish()
        finally:
            shutil.rmtree(self._draft, ignore_errors=True)

    def put(self, name: str, first_entry: int, rows: torch.Tensor) -> None:
        """Write consecutive entries of a tensor, in its dtype, from an entry of it on."""
        tensor = self._tensors[name]
        file, start = self._places[name]
        flat = rows.to(tensor.dtype).contiguous().reshape(-1)
        with file.open("r+b") as opened:
            opened.seek(start + first_entry * tensor.dtype.itemsize)
            opened.write(flat.view(torch.uint8).numpy().data)
        self._done[name] += flat.numel()

    def _copy_rest(self) -> None:
        """Copy what was not written entry by entry; of vocabularies, the rows not compared."""
        for name, tensor in self._tensors.items():
            num = torch.Size(tensor.shape).numel()
            if self._done[name] == num:
                continue
            flat = tensor.map().reshape(-1)
            step = COPIED_BYTES // tensor.dtype.itemsize
            for start in range(self._done[name], num, step):
                self.put(name, start, flat[start : start + step])

    def _finish(self) -> None:
        self._copy_rest()
        for file in self._extra_files:
            shutil.copyfile(file, self._draft / file.name)
        files = {name: place[0].name for name, place in self._places.items()}
        if len(set(files.values())) > 1:
            total = sum(tensor.num_bytes for tensor in self._tensors.values())
            index = {"metadata": {"total_size": total}, "weight_map": files}
            (self._draft / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
        if self._out.exists():
            self._out.rmdir()  # an empty folder, as refuse_used has seen
        self._draft.rename(self._out)

    def _lay_out(self, file: Path, tensors: Iterable[StoredTensor]) -> None:
        """Write the header of a safetensors file, and leave room for its tensors."""
        names = {dtype: code for code, dtype in SAFETENSORS_DTYPES.items()}
        header: dict[str, Any] = {"__metadata__": {"format": "pt", **self._aliases}}
        offset = 0
        # Wide types first, as safetensors does, so that every tensor is aligned.
        tensors = sorted(tensors, key=lambda tensor: (-tensor.dtype.itemsize, tensor.name))
        for tensor in tensors:
            if tensor.dtype not in names:
                raise UsageError(
                    f"{tensor.name} in {tensor.file} is {tensor.dtype}: cannot copy it"
                )
            header[tensor.name] = {
                "dtype": names[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [offset, offset + tensor.num_bytes],
            }
            offset += tensor.num_bytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        start = 8 + len(text)
        with file.open("wb") as opened:
            opened.write(len(text).to_bytes(8, "little") + text)
            opened.truncate(start + offset)
        for tensor in tensors:
            self._places[tensor.name] = (file, start + header[tensor.name]["data_offsets"][0])


def extra_files(folder: Path) -> list[Path]:
    """Files of a model's folder besides its weights: configuration, tokenizer, code.

    Raises:
        UsageError: It has no ``config.json``, so that what is written could not be loaded.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"{folder} has no config.json: a model is written from a folder in Hugging Face format"
        )
    return [
        file
        for file in sorted(folder.iterdir())
        if file.is_file()
        and file.suffix not in SUFFIXES
        and not file.name.endswith(".index.json")
        and not file.name.startswith(TRAINER_STATE)
    ]


def _new_name(file: Path) -> str:
    """Name of the safetensors file that takes a file's place, one that transformers looks for."""
    if file.suffix == ".safetensors":
        return file.name
    return f"{file.stem.replace('pytorch_model', 'model')}.safetensors"
