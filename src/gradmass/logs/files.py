"""Files of a rollout log, and their rows in batches of the Arrow columns that are needed."""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from gradmass.lines import whole_lines
from gradmass.types import UsageError

Format = Literal["trl", "verl", "jsonl", "parquet"]
TRL = {"step", "prompt", "completion", "advantage"}
"""Columns of TRL's completions that plain Parquet does not happen to have together."""
VERL = {"input", "output", "gts", "score", "step"}
"""Keys of verl's rollout and validation dumps."""
JSON_LINES = (".jsonl", ".jsonl.gz")
EXPECTED = (
    "TRL's completions (.parquet), verl's rollouts (.jsonl), or plain rows (.jsonl, .jsonl.gz, "
    ".parquet)"
)
BATCH_ROWS = 1 << 15
"""Rows read at once."""
MOST_SHOWN = 12
"""Columns that a message names."""


@dataclass(frozen=True)
class Batch:
    """Rows of one file that follow each other.

    Args:
        file: Where they come from.
        first_row: Number of the first, from 1.
        columns: The columns that were asked for, as Arrow arrays.
    """

    file: Path
    first_row: int
    columns: dict[str, Any]

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class Source:
    """Files of one format with the same columns.

    Args:
        format: Of all of them.
        files: In the order they are read.
        names: Their columns; of JSON Lines the keys of each file's first row.
    """

    format: Format
    files: tuple[Path, ...]
    names: tuple[str, ...]

    @property
    def float_columns(self) -> list[str]:
        """Columns of Parquet files that hold fractional numbers; none of JSON Lines."""
        if self.files[0].suffix != ".parquet":
            return []
        with _opened(self.files[0]) as opened:
            schema = opened.schema_arrow
        return [item.name for item in schema if pa.types.is_floating(item.type)]

    def batches(
        self, wanted: Sequence[str], on_cut: Callable[[Path], object] = lambda _: None
    ) -> Iterator[Batch]:
        """Read the named columns of all rows.

        Args:
            wanted: Names of columns.
            on_cut: Called with each file of JSON Lines whose last line is cut, which is left out.

        Raises:
            UsageError: A file that is damaged, or a row of JSON Lines that is no object, lacks a
                column or holds values of several kinds in it.
        """
        for file in self.files:
            if file.suffix == ".parquet":
                yield from _parquet_batches(file, wanted)
            else:
                yield from _json_batches(file, wanted, on_cut)


def find(paths: Sequence[Path], asked: Format | Literal["auto"] = "auto") -> Source:
    """Find the files of a log and their format.

    Args:
        paths: Files, or folders: of TRL's completions or the output folder above them, of verl's
            steps, or a run directory of this package.
        asked: The format, or ``auto`` to tell it by the columns.

    Raises:
        UsageError: Nothing is there, files of several formats or with different columns, an empty
            file, one that is damaged, or one that is not of the format asked for.
    """
    files = [file for path in paths for file in _files_of(path)]
    for file, times in Counter(file.resolve() for file in files).items():
        if times > 1:
            raise UsageError(f"{file} is given twice; name each file once")
    named = {file: _names_of(file) for file in files}
    filled = [(file, names) for file, names in named.items() if names]
    if not filled:
        raise UsageError(f"{files[0]}: expected rollouts, found no whole row")
    if empty := [file for file, names in named.items() if names is None]:
        raise UsageError(
            f"{empty[0]}: expected rollouts as in {filled[0][0]}, found no row; leave the file out"
        )
    first, names = filled[0]
    format = _format_of(first, names)
    for file, other in filled[1:]:
        if _format_of(file, other) != format:
            raise UsageError(
                f"{file}: expected {format} as {first} is, found {_format_of(file, other)}; "
                "analyse one log at a time"
            )
        if set(other) != set(names):
            raise UsageError(
                f"{file}: expected the columns of {first} ({enumerated(names)}), found "
                f"{enumerated(other)}; analyse one log at a time"
            )
    if asked not in ("auto", format):
        if _family(asked) != _family(format):
            raise UsageError(
                f"{first}: expected {asked}, found a {first.suffix} file with the columns "
                f"{enumerated(names)}"
            )
        if asked in ("trl", "verl"):
            missing = sorted((TRL if asked == "trl" else VERL) - set(names))
            raise UsageError(
                f"{first}: expected {asked} with the columns {', '.join(missing)} too, found "
                f"{enumerated(names)}"
            )
    kind: Format = format if asked == "auto" else asked
    return Source(kind, tuple(files), names)


def _files_of(path: Path) -> list[Path]:
    """The files of a log in the order of their steps."""
    if path.is_file():
        if not path.name.endswith((*JSON_LINES, ".parquet")):
            raise UsageError(f"{path}: expected {EXPECTED}, found a file called {path.name!r}")
        return [path]
    if not path.is_dir():
        raise UsageError(f"there is no file or folder {path}")
    if (path / "rollouts.jsonl.gz").is_file():
        return [path / "rollouts.jsonl.gz"]
    if (path / "metrics.jsonl").is_file() and (path / "state.json").is_file():
        raise UsageError(
            f"run directory {path} has no rollouts.jsonl.gz, which analyze reads: put it back, or "
            f"see its metrics with gradmass report {path}"
        )
    for folder in (path, path / "completions"):
        if not folder.is_dir():
            continue
        found = [
            file
            for suffix in (*JSON_LINES, ".parquet")
            for file in folder.iterdir()
            if file.name.endswith(suffix) and file.is_file()
        ]
        kinds = {file.suffix == ".parquet" for file in found}
        if len(kinds) == 2:
            raise UsageError(
                f"{folder}: expected files of one format, found .parquet and .jsonl; name the files"
            )
        if found:
            return sorted(found, key=_by_number)
    raise UsageError(f"folder {path}: expected {EXPECTED}, found none")


def _by_number(file: Path) -> tuple[str, int, str]:
    """Order ``2.jsonl`` before ``10.jsonl``."""
    stem = file.name.partition(".")[0]
    head = stem.rstrip("0123456789")
    return head, int(stem[len(head) :] or 0), file.name


def _family(format: str) -> str:
    return {"trl": "parquet", "verl": "jsonl"}.get(format, format)


def _format_of(file: Path, names: Sequence[str]) -> Format:
    if file.suffix == ".parquet":
        return "trl" if set(names) >= TRL else "parquet"
    return "verl" if set(names) >= VERL else "jsonl"


def _names_of(file: Path) -> tuple[str, ...] | None:
    """Columns of a file; none where its only row is cut, None where it has no row."""
    if file.suffix == ".parquet":
        with _opened(file) as opened:
            return tuple(opened.schema_arrow.names) if opened.metadata.num_rows else None
    cut: list[Path] = []
    for line in _lines(file, cut.append):
        if line.strip():
            return tuple(_object(file, 1, line))
    return () if cut else None


def _opened(file: Path) -> Any:
    try:
        return pq.ParquetFile(file)
    except OSError as error:
        if error.errno is not None:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from error
        raise UsageError(_no_parquet(file, error)) from error
    except pa.ArrowException as error:
        raise UsageError(_no_parquet(file, error)) from error


def _no_parquet(file: Path, error: Exception) -> str:
    size = file.stat().st_size
    what = f"{size:,} bytes without a footer: cut off, or still being written"
    return f"{file}: expected a Parquet file, found {what} ({_one_line(error)})"


def _parquet_batches(file: Path, wanted: Sequence[str]) -> Iterator[Batch]:
    first_row = 1
    with _opened(file) as opened:
        try:
            for batch in opened.iter_batches(batch_size=BATCH_ROWS, columns=list(wanted)):
                yield Batch(file, first_row, {name: batch.column(name) for name in wanted})
                first_row += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise UsageError(
                f"{file}, after row {first_row - 1}: expected Parquet data, found a damaged part "
                f"({_one_line(error)})"
            ) from error


def _json_batches(
    file: Path, wanted: Sequence[str], on_cut: Callable[[Path], object]
) -> Iterator[Batch]:
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    appends = [(name, column.append) for name, column in columns.items()]
    first_row, number = 1, 0
    for line in _lines(file, on_cut):
        if not line.strip():
            continue
        number += 1
        row = _object(file, number, line)
        try:
            for name, append in appends:
                append(row[name])
        except KeyError as error:
            raise UsageError(
                f"{file}, row {number}: expected the columns of the first row, found none called "
                f"{error.args[0]!r} (it has: {enumerated(list(row))})"
            ) from None
        if number - first_row == BATCH_ROWS - 1:
            yield _as_arrow(file, first_row, columns)
            for column in columns.values():
                column.clear()
            first_row = number + 1
    if number >= first_row:
        yield _as_arrow(file, first_row, columns)


def _as_arrow(file: Path, first_row: int, columns: dict[str, list[Any]]) -> Batch:
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = _array(values)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            kinds = sorted({type(value).__name__ for value in values})
            raise UsageError(
                f"{file}, rows {first_row} to {first_row + len(values) - 1}: expected values of "
                f"one kind in {name!r}, found {', '.join(kinds)} ({_one_line(error)})"
            ) from error
    return Batch(file, first_row, arrays)


def _array(values: list[Any]) -> Any:
    """Values of one kind; numbers of several kinds, or beyond 64 bits, as fractional ones."""
    try:
        return pa.array(values)
    except UnicodeEncodeError:
        # Half a pair of escapes, as of a completion cut within an emoji, is no Unicode text.
        return pa.array(_whole_text(values))
    except (pa.ArrowException, OverflowError):
        if not all(isinstance(value, int | float | None) for value in values):
            raise
        return pa.array([None if v is None else float(v) for v in values], pa.float64())


def _whole_text(value: Any) -> Any:
    """Lone surrogates of a value, however deep, as U+FFFD, the sign for what cannot be read."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole_text(item) for item in value]
    if isinstance(value, dict):
        return {_whole_text(key): _whole_text(item) for key, item in value.items()}
    return value


def _lines(file: Path, on_cut: Callable[[Path], object]) -> Iterator[bytes]:
    number = 0
    try:
        for line in whole_lines(file, lambda: on_cut(file)):
            number += 1
            yield line
    except (zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(
            f"{file}, after row {number}: expected gzip data, found a part that is damaged "
            f"({_one_line(error)})"
        ) from error
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def _object(file: Path, number: int, line: bytes) -> dict[str, Any]:
    """A row; NaN and infinity, which Python's json writes, are read too."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            shown = line[:60].decode("utf-8", "replace").rstrip()
            raise UsageError(
                f"{file}, row {number}: expected a JSON object, found {shown!r} "
                f"({_one_line(error)})"
            ) from error
    if not isinstance(row, dict):
        raise UsageError(
            f"{file}, row {number}: expected a JSON object, found {type(row).__name__}"
        )
    return row


def enumerated(names: Sequence[str]) -> str:
    """Names of columns for a message, the first of very many.

    >>> enumerated(["a", "b"]), enumerated(list("abcdefghijklmn")), enumerated([])
    ('a, b', 'a, b, c, d, e, f, g, h, i, j, k, l and 2 more', 'none')
    """
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return ", ".join(names[:MOST_SHOWN]) + more or "none"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else f"{text[:117]}..."
