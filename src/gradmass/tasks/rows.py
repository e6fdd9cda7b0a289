"""Rows of a dataset: JSON Lines, JSON and Parquet files, folders, `datasets` folders, the hub.

Every row knows its file and its number there, so that one line can say what is wrong with it.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradmass.registry import nearest
from gradmass.types import UsageError, shortened

HUB = "hub:"
"""What a path begins with that ``datasets.load_dataset`` shall read."""
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
PARQUET_ROWS_AT_ONCE = 64


class RowError(UsageError):
    """A row that makes no problem: the line names its file, its number and what is wrong."""


@dataclass(frozen=True)
class Row:
    """A row of a dataset; ``row["column"]`` is its value, or an error that names the row.

    Args:
        file: Where it comes from, as shown to a person.
        number: Its number there, from 1 (the line of a JSON Lines file).
        fields: Its columns by name, those that were asked for.
        names: All of its columns.
        defect: Why it could not be read; None where it could.
    """

    file: str
    number: int
    fields: Mapping[str, Any] = field(hash=False)
    names: tuple[str, ...] = ()
    defect: str | None = None

    @property
    def where(self) -> str:
        """File and number."""
        return f"{self.file}, row {self.number}"

    def error(self, what: str) -> RowError:
        """What is wrong with this row, as an exception to raise."""
        return RowError(f"{self.where}: {what}")

    def __contains__(self, name: str) -> bool:
        """Whether the row has a column."""
        return name in self.fields

    def __getitem__(self, name: str) -> Any:
        """The value of a column.

        Raises:
            RowError: The row has no such column.
        """
        if name not in self.fields:
            raise self.error(f"has no field {name!r} (it has: {', '.join(self.names) or 'none'})")
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a column, or the default where the row does not have it."""
        return self.fields.get(name, default)

    def text(self, name: str) -> str:
        """The value of a column that must be a text with something in it.

        Raises:
            RowError: There is none, it is no text, or it is blank or no Unicode.
        """
        value = self[name]
        if not isinstance(value, str):
            raise self.error(f"field {name!r} must be a text, got {shortened(repr(value))}")
        if not value.strip():
            raise self.error(f"field {name!r} is empty")
        try:
            value.encode()
        except UnicodeEncodeError as error:  # JSON may hold half of a pair of escapes
            half = value[error.start]
            raise self.error(f"field {name!r} is no Unicode text: it has {half!r} alone") from None
        return value

    def first_of(self, *names: str) -> str:
        """The first of some columns that the row has, letter case aside.

        Raises:
            RowError: It has none of them.
        """
        lower = {name.lower(): name for name in reversed(list(self.fields))}
        for name in names:
            if name in lower:
                return lower[name]
        wanted, has = " or ".join(map(repr, names)), ", ".join(self.names) or "none"
        raise self.error(f"has no field {wanted} (it has: {has})")

    def json(self, name: str, kind: type) -> Any:
        """The value of a column that holds JSON of a kind as a text.

        Raises:
            RowError: There is no such column, it is empty, no JSON, or JSON of another kind.
        """
        try:
            value = json.loads(self.text(name))
        except (ValueError, RecursionError) as error:
            if isinstance(error, RowError):
                raise
            raise self.error(f"field {name!r} is no JSON ({error})") from error
        if not isinstance(value, kind):
            what = "list" if kind is list else "object"
            raise self.error(
                f"field {name!r} must hold a JSON {what}, got {shortened(repr(value))}"
            )
        return value


def read_rows(path: str, split: str = "", columns: Collection[str] | None = None) -> Iterator[Row]:
    """Read the rows of a file, a folder or a hub dataset in their fixed order.

    Args:
        path: A file (``.jsonl``, ``.json``, both also with ``.gz``, ``.parquet``), a folder of such
            files in alphabetical order, a folder that ``datasets`` saved, or ``hub:NAME`` or
            ``hub:NAME:CONFIG`` for ``datasets.load_dataset``.
        split: Which split. In a folder of files: those whose name, or a folder of theirs, is the
            split's name, also followed by anything but a letter (``train.jsonl``,
            ``train-00000-of-00002.parquet``, ``train/algebra/1.json``). Empty: all files.
        columns: Columns to read, in lower case; all where None. Of Parquet files, the others are
            not even loaded.

    Yields:
        Rows; one that is no JSON object has a ``defect`` and no fields.

    Raises:
        UsageError: There is no such file or split, a file as a whole cannot be read, or a library
            that reads it is not installed.
    """
    if path.startswith(HUB):
        yield from _hub_rows(path, split, columns)
        return
    root = Path(path)
    if (root / "dataset_dict.json").is_file() or (root / "state.json").is_file():
        yield from _saved_rows(root, split, columns)
        return
    for file in _files(root, split):
        if file.suffix == ".parquet":
            yield from _parquet_rows(file, columns)
        else:
            yield from _json_rows(file, columns)


def _files(root: Path, split: str) -> list[Path]:
    if root.is_file():
        if not root.name.endswith(SUFFIXES):
            raise UsageError(f"{root}: a file of rows ends in {', '.join(SUFFIXES)}")
        return [root]
    if not root.is_dir():
        raise UsageError(
            f"there is no file or folder {str(root)!r} (hub:OWNER/NAME reads from the Hugging Face "
            "hub)"
        )
    files = [file for file in sorted(root.rglob("*")) if file.name.endswith(SUFFIXES)]
    begins = re.compile(re.escape(split) + r"(?![^\W\d_])")
    if split:
        files = [
            file
            for file in files
            if any(begins.match(part) for part in file.relative_to(root).parts)
        ]
    if not files:
        of_split = f" of split {split!r}" if split else ""
        raise UsageError(f"folder {root} has no file{of_split} that ends in {', '.join(SUFFIXES)}")
    return files


def _json_rows(file: Path, columns: Collection[str] | None) -> Iterator[Row]:
    opener: Callable[..., Any] = gzip.open if file.suffix == ".gz" else io.open
    try:
        with opener(file, "rb") as stream:
            if ".jsonl" in file.suffixes:
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        yield _row(str(file), number, *_decode(line), columns)
                return
            value, defect = _decode(stream.read())
            if defect is not None:
                raise UsageError(f"{file}: {defect}")
            # A file of one object is one row: MATH has a file for each problem.
            for number, item in enumerate(value if isinstance(value, list) else [value], 1):
                yield _row(str(file), number, item, None, columns)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot read {file}: {error}") from error


def _decode(data: bytes) -> tuple[Any, str | None]:
    """A value and no defect, or nothing and what is wrong."""
    try:
        return json.loads(data), None
    except (ValueError, RecursionError) as error:
        return None, f"is no JSON ({error})"


def _row(
    file: str, number: int, value: Any, defect: str | None, columns: Collection[str] | None
) -> Row:
    if defect is None and not isinstance(value, dict):
        defect = f"must be a JSON object, got {shortened(repr(value))}"
    if defect is not None:
        return Row(file, number, {}, (), defect)
    kept = {key: value[key] for key in value if columns is None or key.lower() in columns}
    return Row(file, number, kept, tuple(value))


def _parquet_rows(file: Path, columns: Collection[str] | None) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise _not_installed(str(file), error) from error
    try:
        with pyarrow.parquet.ParquetFile(file) as parquet:
            names = tuple(parquet.schema_arrow.names)
            kept = [name for name in names if columns is None or name.lower() in columns]
            number = 0
            for batch in parquet.iter_batches(PARQUET_ROWS_AT_ONCE, columns=kept):
                for fields in batch.to_pylist():
                    number += 1
                    yield Row(str(file), number, fields, names)
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(f"cannot read {file}: {' '.join(str(error).split())}") from error


def _saved_rows(root: Path, split: str, columns: Collection[str] | None) -> Iterator[Row]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise _not_installed(str(root), error) from error
    try:
        data = datasets.load_from_disk(str(root))
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"cannot read {root}: {' '.join(str(error).split())}") from error
    yield from _dataset_rows(data, str(root), split, columns)


def _hub_rows(path: str, split: str, columns: Collection[str] | None) -> Iterator[Row]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise _not_installed(path, error) from error
    name, _, config = path.removeprefix(HUB).partition(":")
    try:
        data = datasets.load_dataset(name, config or None)
    except Exception as error:  # the hub, the network, the cache, a builder: each has its own kind
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"cannot load {path}: {reason}") from error
    yield from _dataset_rows(data, path, split, columns)


def _dataset_rows(
    data: Any, place: str, split: str, columns: Collection[str] | None
) -> Iterator[Row]:
    """Rows of a ``Dataset``, or of one of a ``DatasetDict``."""
    if isinstance(data, dict):
        if split not in data and len(data) > 1:
            what = f"has no split {split!r}" if split else "has several splits: name one"
            raise UsageError(f"{place} {what}{nearest(split, data)}")
        if split and split not in data:
            raise UsageError(f"{place} has no split {split!r}{nearest(split, data)}")
        split = split or next(iter(data))
        place, data = f"{place} ({split})", data[split]
    elif split:
        raise UsageError(f"{place} has no splits, got split {split!r}")
    names = tuple(data.column_names)
    data = data.select_columns([n for n in names if columns is None or n.lower() in columns])
    for number, fields in enumerate(data, 1):
        yield Row(place, number, fields, names)


def _not_installed(place: str, error: ModuleNotFoundError) -> UsageError:
    return UsageError(
        f"reading {place} needs {error.name}, which is not installed: pip install 'gradmass[tasks]'"
    )
