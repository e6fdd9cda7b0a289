"""Arrow columns to NumPy: numbers with their gaps, texts as hashes and lengths."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gradmass.logs.files import Batch
from gradmass.types import UsageError

SHOWN = 60
"""Characters of a prompt that are kept to be shown."""


def numbers(batch: Batch, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A column of numbers in float64, NaN where there is none, and where there is none.

    Raises:
        UsageError: The column holds something else.
    """
    column = batch.columns[name]
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan), np.ones(len(column), dtype=bool)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise UsageError(
            f"{batch.file}, row {batch.first_row}: expected numbers in {name!r}, found "
            f"{_shown(column)}"
        )
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    # Integers beyond 2^53 are rounded, which is as far as a reward or a length matters.
    values: np.ndarray = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values, is_null


def texts(batch: Batch, name: str) -> list[str]:
    """A column as texts: of a chat the contents of its messages, of anything else its own form."""
    column = batch.columns[name]
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ["" if text is None else text for text in column.to_pylist()]
    if _is_list(kind) and pa.types.is_struct(kind.value_type):
        contents = _contents(column)
        if contents is not None:
            return contents
    return [str(value) for value in column.to_pylist()]


def hashes(values: list[str]) -> np.ndarray:
    """A number for each text, equal for equal ones; collisions are one in 10^19 pairs."""
    return np.fromiter(map(hash, values), dtype=np.int64, count=len(values))


def lengths(values: list[str]) -> np.ndarray:
    """Characters of each text."""
    return np.fromiter(map(len, values), dtype=np.int64, count=len(values))


def coded(
    batch: Batch, name: str, codes: dict[int, int], gold: str | None = None
) -> tuple[np.ndarray, list[str]]:
    """A whole number for each distinct text of a column, new ones appended to ``codes``.

    Args:
        batch: Rows.
        name: The column.
        codes: Numbers of the texts met so far; by hash, so that no text is kept.
        gold: A second column that tells equal texts apart.

    Returns:
        The numbers, and the beginnings of the texts that are new, in their order.
    """
    column = batch.columns[name]
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if is_text and gold is None:
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        distinct = ["" if text is None else text for text in encoded.dictionary.to_pylist()]
        place_B = encoded.indices.to_numpy(zero_copy_only=False)
    else:
        values = texts(batch, name)
        if gold is not None:
            values = [f"{a}\0{b}" for a, b in zip(values, texts(batch, gold), strict=True)]
        first: dict[str, int] = {}
        place_B = np.fromiter(
            (first.setdefault(text, len(first)) for text in values), np.int64, len(values)
        )
        distinct = list(first)
    fresh = []
    code_D = np.empty(len(distinct), dtype=np.int64)
    for place, text in enumerate(distinct):
        key = hash(text)
        if key not in codes:
            codes[key] = len(codes)
            fresh.append(" ".join(text.partition("\0")[0][: 4 * SHOWN].split())[:SHOWN])
        code_D[place] = codes[key]
    return code_D[place_B], fresh


def sums_of_lists(batch: Batch, name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Sum of each list of numbers and its length; of plain numbers themselves, and None."""
    column = batch.columns[name]
    if not _is_list(column.type):
        return numbers(batch, name)[0], None
    length_B = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    flat, _ = numbers(Batch(batch.file, batch.first_row, {name: column.flatten()}), name)
    row_B = np.repeat(np.arange(len(length_B)), length_B)
    sum_B = np.bincount(row_B, weights=flat, minlength=len(length_B))
    return np.where(length_B > 0, sum_B, np.nan), length_B.astype(np.float64)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _contents(column: Any) -> list[str] | None:
    """Contents of the messages of each chat; None where they are no texts."""
    kind = column.type.value_type
    if kind.get_field_index("content") < 0 or column.null_count:
        return None
    content = column.flatten().field("content")
    if not (pa.types.is_string(content.type) or pa.types.is_large_string(content.type)):
        return None
    flat = ["" if text is None else text for text in content.to_pylist()]
    end_B = np.cumsum(pc.list_value_length(column).to_numpy(zero_copy_only=False)).tolist()
    return ["\n".join(flat[start:end]) for start, end in zip([0, *end_B[:-1]], end_B, strict=True)]


def _shown(column: Any) -> str:
    value = next((item for item in column.to_pylist() if item is not None), None)
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
