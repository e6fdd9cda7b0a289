"""Compare two checkpoints matrix by matrix, and write the model with part of the change."""

import math
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from gradmass.metrics.spectrum import factor_noise_share, noise_share
from gradmass.record import refuse_used
from gradmass.spectra.adapters import is_adapter, open_adapter
from gradmass.spectra.change import (
    Change,
    FactorChange,
    FactorPair,
    read_change,
    read_factors,
)
from gradmass.spectra.files import Checkpoint, open_checkpoint
from gradmass.spectra.pairs import Pair, pair_up
from gradmass.spectra.summary import Comparison, Measured
from gradmass.spectra.vocabulary import other_tokens
from gradmass.spectra.writer import ModelWriter, extra_files
from gradmass.types import UsageError

Progress = Callable[[str, int, int], None]
"""Told the name of a tensor, the bytes done with it, and the bytes of all."""
LOST_SHARE = 0.1


@dataclass(frozen=True)
class Split:
    """Which part of the change to write, and where.

    Args:
        part: ``keep`` the first directions, or ``drop`` them.
        rank: How many.
        out: The folder to make.
    """

    part: Literal["keep", "drop"]
    rank: int
    out: Path


def compare(
    base_path: Path,
    tuned_path: Path,
    *,
    modules: str | None,
    top: int,
    split: Split | None,
    progress: Progress,
) -> Comparison:
    """Measure what changed, one tensor in memory at a time.

    Args:
        base_path: Folder or file of the model before.
        tuned_path: Of the model after, or folder of a LoRA adapter on it.
        modules: Regular expression that the names of tensors must match somewhere.
        top: Singular values of each matrix.
        split: Also write a model with part of the change.
        progress: Called after each tensor.

    Raises:
        UsageError: Input that cannot be compared, in one line; then nothing is written.
    """
    matched = _matched(base_path, tuned_path, modules, is_split=split is not None)
    pairs, notes = matched.pairs, matched.notes
    writer = None if split is None else _writer(split, matched.layout, tuned_path, pairs)
    measured, losses = [], _Losses()
    with ExitStack() as stack:
        # NumPy has small matrices only, and its threads, waiting, would take torch's cores.
        stack.enter_context(threadpool_limits(limits=1, user_api="blas"))
        if writer is not None:
            stack.enter_context(writer)
        num_bytes, done = sum(pair.num_bytes for pair in pairs), 0
        sizes = [math.prod(pair.shape) for pair in pairs if isinstance(pair, Pair)]
        # NumPy's large arrays lie in huge pages where the system has them: a fourth of the faults'
        # time of torch.empty.
        buffer = torch.from_numpy(np.empty(max(sizes, default=0), dtype=np.float32))
        for pair in pairs:
            wanted = top if split is None else max(top, split.rank)
            change = (
                read_factors(pair, top=wanted)
                if isinstance(pair, FactorPair)
                else read_change(pair, buffer, top=wanted)
            )
            measured.append(_measured(pair, change, top))
            if writer is not None and split is not None:
                _write(pair, change, split, writer, matched.layout, losses)
            done += pair.num_bytes
            progress(pair.name, done, num_bytes)
        if not any(row.energy for row in measured):
            raise UsageError(
                f"{base_path} and {tuned_path} hold the same weights: none of the {len(measured)} "
                "tensors compared differs; was the right checkpoint saved?"
            )
    if modules is not None:
        notes.append(f"only what matches {modules!r} was read; shares are among that")
    notes += losses.notes()
    return Comparison(str(base_path), str(tuned_path), measured, matched.num_parameters, notes)


@dataclass(frozen=True)
class _Matched:
    """What is compared with what.

    Args:
        pairs: Tensors before and after.
        layout: The model whose files a written one is like.
        num_parameters: Numbers in what was selected.
        notes: What the user should know.
    """

    pairs: list[Pair | FactorPair]
    layout: Checkpoint
    num_parameters: int
    notes: list[str]


def _matched(base_path: Path, tuned_path: Path, modules: str | None, *, is_split: bool) -> _Matched:
    """Open both checkpoints and match their tensors."""
    is_selected = _selection(modules)
    if is_adapter(base_path):
        raise UsageError(
            f"BASE {base_path} is an adapter: merge it (merge_and_unload), or name its base model"
        )
    base = open_checkpoint(base_path)
    if is_adapter(tuned_path):
        if modules is not None and is_split:
            raise UsageError(
                "--modules with -o needs a merged model, not an adapter: merge_and_unload it first"
            )
        adapter = open_adapter(tuned_path, base, is_selected)
        shapes = [stored.shape for stored in base.tensors.values() if is_selected(stored.name)]
        return _Matched(adapter.pairs, base, sum(map(math.prod, shapes)), adapter.notes)
    tuned = open_checkpoint(tuned_path)
    found, notes = pair_up(base, tuned, is_selected)
    if other := other_tokens(base_path, tuned_path):
        if is_split:
            raise UsageError(f"no model can be made of parts of both: {other}")
        notes.append(other)
    return _Matched(list(found), tuned, sum(math.prod(pair.shape) for pair in found), notes)


def _selection(modules: str | None) -> Callable[[str], bool]:
    try:
        pattern = re.compile(modules or "")
    except re.error as error:
        raise UsageError(f"--modules {modules!r} is no regular expression: {error}") from error
    return lambda name: pattern.search(name) is not None


def _measured(pair: Pair | FactorPair, change: Change | FactorChange, top: int) -> Measured:
    is_matrix = len(pair.shape) == 2
    if isinstance(pair, FactorPair):
        rank: int | None = min(pair.rank, *pair.shape)
        noise = factor_noise_share(pair.shape[0], pair.shape[1], pair.rank)
        shape = pair.shape
    else:
        rank, shape = None, pair.full_shape
        noise = noise_share(pair.shape[0], pair.shape[1]) if is_matrix else 1.0
    spectrum = change.spectrum
    squares_K = () if spectrum is None else tuple(spectrum.squares_K[:top].tolist())
    return Measured(
        name=pair.name,
        shape=shape,
        energy=change.energy,
        rounding_energy=change.rounding_energy,
        num_changed=change.num_changed,
        squares_K=squares_K,
        share_error=(
            0.0
            if spectrum is None
            else float(spectrum.bounds_K[0] - spectrum.squares_K[0]) / change.energy
        ),
        value_error=0.0 if spectrum is None else spectrum.error,
        noise=noise,
        rank=rank,
        dtype=str(pair.base.dtype if isinstance(pair, FactorPair) else pair.tuned.dtype)[6:],
    )


def _writer(
    split: Split, layout: Checkpoint, tuned_path: Path, pairs: list[Pair | FactorPair]
) -> ModelWriter:
    """Prepare to write a model like ``layout``."""
    refuse_used(split.out)
    folder = layout.path if layout.path.is_dir() else layout.path.parent
    files = extra_files(folder)
    if folder != tuned_path:  # an adapter may bring its tokenizer and chat template
        names = {"special_tokens_map.json", "chat_template.jinja", "added_tokens.json"}
        own = [
            file
            for file in sorted(tuned_path.iterdir())
            if file.name in names or file.name.startswith(("tokenizer", "vocab", "merges"))
        ]
        files = [file for file in files if file.name not in {f.name for f in own}] + own
    for pair in pairs:
        stored = pair.base if isinstance(pair, FactorPair) else pair.tuned
        target = layout.tensors.get(_stored_name(pair))
        if target is None:
            raise UsageError(
                f"cannot write {pair.name} apart: it is tied in {layout.path} and not in the other "
                "model; leave it out by --modules, or merge and untie it first"
            )
        if isinstance(pair, Pair) and target.shape != stored.shape:
            raise UsageError(
                f"cannot write {pair.name}: it is {list(stored.shape)} in {stored.file} and "
                f"{list(target.shape)} in {target.file}; merge the adapter (merge_and_unload) first"
            )
    return ModelWriter(split.out, layout.tensors, layout.aliases, files)


def _stored_name(pair: Pair | FactorPair) -> str:
    return re.sub(r"\[\d+\]$", "", pair.name)


class _Losses:
    """How much of what was to be written the dtype rounds away."""

    def __init__(self) -> None:
        self._wanted = self._lost = 0.0
        self._dtypes: set[str] = set()

    def see(self, written: torch.Tensor, exact: torch.Tensor, change: torch.Tensor) -> None:
        """Take note of written rows, the rows before rounding, and their change to BASE."""
        self._wanted += float(change.double().square().sum())
        self._lost += float((written.float() - exact).double().square().sum())
        self._dtypes.add(str(written.dtype)[6:])

    def notes(self) -> list[str]:
        """A line, if it matters."""
        if self._lost <= LOST_SHARE * self._wanted:
            return []
        share = f"{self._lost / self._wanted:.2g} times" if self._wanted else "more than"
        return [
            f"rounding to {' and '.join(sorted(self._dtypes))} moved what was written by {share} "
            "the energy of the change it should carry: the written model does not show it cleanly"
        ]


def _write(
    pair: Pair | FactorPair,
    change: Change | FactorChange,
    split: Split,
    writer: ModelWriter,
    layout: Checkpoint,
    losses: _Losses,
) -> None:
    """Write a tensor with the first directions of its change alone, or without them.

    A vector has one direction, its change itself.
    """
    name = _stored_name(pair)
    if isinstance(pair, Pair):
        base, _ = pair.map()
    else:
        base = pair.base.map()
    num_columns = base.shape[1]
    directions = None
    if change.spectrum is not None:
        directions = torch.from_numpy(change.spectrum.directions_NK[:, : split.rank].copy()).float()
    first = 0 if isinstance(pair, FactorPair) or pair.part is None else pair.part * base.numel()
    for start, block in change.blocks():
        within = block if directions is None else (block @ directions) @ directions.T
        kept = within if split.part == "keep" else block - within
        exact = base[start : start + len(block)].float() + kept
        writer.put(name, first + start * num_columns, exact)
        losses.see(exact.to(layout.tensors[name].dtype), exact, kept)
