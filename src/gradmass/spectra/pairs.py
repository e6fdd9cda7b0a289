"""Which tensor of one checkpoint belongs to which of the other."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from gradmass.spectra.files import FLOATS, Checkpoint, StoredTensor
from gradmass.types import UsageError

HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output)\.weight$")
EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in)\.weight$")
VOCABULARY = re.compile(r"embed|wte\.|shared\.|lm_head|(^|\.)output\.")
"""Tensors whose first side is the vocabulary, which a tokenizer with new tokens makes longer."""
BUFFER = re.compile(r"(rotary_emb\.inv_freq|\.masked_bias)$")
"""Constants that older versions of transformers stored beside the weights."""
EXPERTS = re.compile(r"\.experts\.\w+$")
"""Weights of all experts of a layer in one tensor of three sides, one matrix an expert."""


@dataclass(frozen=True)
class Pair:
    """A matrix or vector that is in both checkpoints.

    Args:
        name: As it is reported: TUNED's name, with the expert's number where there is one.
        base: The tensor before.
        tuned: The tensor after.
        shape: Sides of what is compared: a matrix has two, a vector one.
        part: Number of the expert.
        rows: Rows of ``base`` that ``tuned`` holds, where it does not hold the first ones.
    """

    name: str
    base: StoredTensor
    tuned: StoredTensor
    shape: tuple[int, ...]
    part: int | None = None
    rows: tuple[int, ...] | None = None

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Sides of the matrix whose change it is."""
        return self.shape if self.rows is None else (self.base.shape[0], *self.shape[1:])

    @property
    def num_bytes(self) -> int:
        """What has to be read."""
        return math.prod(self.shape) * (self.base.dtype.itemsize + self.tuned.dtype.itemsize)

    def map(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Both as matrices (a vector as a row), mapped from their files."""
        base, tuned = self.base.map(), self.tuned.map()
        if self.part is not None:
            base, tuned = base[self.part], tuned[self.part]
        if self.rows is not None:
            base = base[list(self.rows)]
        if len(self.shape) == 1:
            num = self.shape[0]
            return base.reshape(-1)[:num].reshape(1, num), tuned.reshape(-1)[:num].reshape(1, num)
        num_rows, num_columns = self.shape
        return (
            base[:num_rows].reshape(num_rows, num_columns),
            tuned[:num_rows].reshape(num_rows, num_columns),
        )


def pair_up(
    base: Checkpoint, tuned: Checkpoint, is_selected: Callable[[str], bool]
) -> tuple[list[Pair], list[str]]:
    """Pairs in the order of their names, and notes on what is not compared as one would expect.

    A head that is stored on one side and tied to the embedding on the other is compared with that
    embedding; one that equals the embedding on both sides is counted once. Of vocabularies of
    different sizes the shared rows are compared.

    Args:
        base: The checkpoint before.
        tuned: The checkpoint after.
        is_selected: Which names to compare.

    Raises:
        UsageError: A tensor without a partner, sides that do not fit, or quantised weights.
    """
    names = sorted(filter(is_selected, {*tuned.tensors, *base.tensors}), key=_natural)
    names = [name for name in names if BUFFER.search(name) is None]
    if not names:
        raise UsageError(f"--modules selects none of the {len(tuned.tensors)} tensors")
    pairs: list[Pair] = []
    notes: list[str] = []
    unmatched: list[tuple[str, Checkpoint]] = []
    for name in names:
        before, after = _find(base, name), _find(tuned, name)
        if before is None or after is None:
            unmatched.append((name, base if before is None else tuned))
            continue
        if not (_is_float(before) and _is_float(after)):
            notes.append(f"{name} is {after.dtype}, no weight: not compared")
            continue
        if HEAD.search(name) and _is_tied(base, before) and _is_tied(tuned, after):
            notes.append(f"{name} equals the embedding in both: tied, and counted once")
            continue
        for side, found in ((base, before), (tuned, after)):
            if found.name != name:
                notes.append(
                    f"{name} is tied to {found.name} in {side.path} and compared with that"
                )
        pairs += pairs_of(name, before, after, notes)
    if unmatched:
        raise UsageError(_mismatch(unmatched, base, tuned))
    return pairs, notes


def pairs_of(
    name: str, before: StoredTensor, after: StoredTensor, notes: list[str]
) -> Iterable[Pair]:
    """What to compare of two tensors: a matrix, a vector, or a matrix for each expert."""
    shape = after.shape
    if before.shape != shape:
        can_resize = VOCABULARY.search(name) and len(before.shape) == len(shape)
        if not can_resize or before.shape[1:] != shape[1:]:
            raise UsageError(
                f"different architectures: {name} is {list(before.shape)} in {before.file} and "
                f"{list(shape)} in {after.file}"
            )
        shape = (min(before.shape[0], shape[0]), *shape[1:])
        notes.append(
            f"{name} has {before.shape[0]} rows in BASE and {after.shape[0]} in TUNED: the first "
            f"{shape[0]} are compared"
        )
    if math.prod(shape) == 0:
        return
    if len(shape) < 2:
        yield Pair(name, before, after, (math.prod(shape),))
    elif len(shape) == 3 and EXPERTS.search(name):
        for number in range(shape[0]):
            yield Pair(f"{name}[{number}]", before, after, shape[1:], part=number)
    else:
        # Of a convolution, the filters are the rows.
        yield Pair(name, before, after, (shape[0], math.prod(shape[1:])))


def embedding_of(checkpoint: Checkpoint) -> StoredTensor | None:
    """The embedding of the tokens, to which a head may be tied."""
    found = [name for name in checkpoint.tensors if EMBEDDING.search(name)]
    return checkpoint.tensors[found[0]] if len(found) == 1 else None


def same_values(first: StoredTensor, second: StoredTensor) -> bool:
    """Whether two tensors are equal, entry by entry."""
    if first == second:
        return True
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    a, b = first.map(), second.map()
    # The first rows tell nearly always, without reading the rest.
    return bool(torch.equal(a[:16], b[:16]) and torch.equal(a, b))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which layer 2 comes before layer 10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]


def _find(checkpoint: Checkpoint, name: str) -> StoredTensor | None:
    """The tensor of a name, or that to which it is tied."""
    name = checkpoint.aliases.get(name, name)
    if name in checkpoint.tensors:
        return checkpoint.tensors[name]
    return embedding_of(checkpoint) if HEAD.search(name) else None


def _is_tied(checkpoint: Checkpoint, head: StoredTensor) -> bool:
    embedding = embedding_of(checkpoint)
    return embedding is not None and same_values(head, embedding)


def _is_float(tensor: StoredTensor) -> bool:
    if tensor.dtype in FLOATS:
        return True
    if tensor.dtype.is_floating_point or (tensor.name.endswith("weight") and len(tensor.shape) > 1):
        raise UsageError(
            f"{tensor.name} in {tensor.file} is {tensor.dtype}, quantised; compare checkpoints in "
            "bf16, fp16 or fp32"
        )
    return False


def _mismatch(unmatched: list[tuple[str, Checkpoint]], base: Checkpoint, tuned: Checkpoint) -> str:
    name, side = unmatched[0]
    more = f" (and {len(unmatched) - 1} more such tensors)" if len(unmatched) > 1 else ""
    types = {str(c.config["model_type"]) for c in (base, tuned) if "model_type" in c.config}
    kinds = f"; {' and '.join(sorted(types))}" if len(types) == 2 else ""
    return (
        f"different architectures: {side.path} has no {name}{more}{kinds}; --modules REGEX "
        "compares a part"
    )
