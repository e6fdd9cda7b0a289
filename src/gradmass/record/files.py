"""How records are written: rows of JSON, files replaced whole, one writer at a time."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from gradmass.types import UsageError

ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as a line of JSON.

    Raises:
        UsageError: A NaN or infinite value, or what is no plain number or text.
    """
    try:
        return ENCODER.encode(row).encode() + b"\n"
    except ValueError:
        floats = [(key, value) for key, value in row.items() if isinstance(value, float)]
        wrong = [f"{key} = {value}" for key, value in floats if not math.isfinite(value)]
        what = (wrong or ["NaN or infinity within a value"])[0]
        raise UsageError(f"{what} is no number that the record of a run can hold") from None
    except TypeError as error:
        raise UsageError(
            f"the record of a run holds plain numbers and text only: {error}"
        ) from error


def lock(file: IO[bytes], what: str) -> None:
    """Refuse a folder that another process is writing. Windows has none and goes without."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"{what} is being written by another process") from error


def is_locked(path: Path) -> bool:
    """Whether a process writes the folder whose lock is this file; never known on Windows."""
    try:
        import fcntl
    except ImportError:
        return True
    with path.open("rb") as file:
        try:
            # Shared, so that two who only look do not see each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def write_json(file: Path, content: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Replace a file by JSON: whoever reads it sees the old one or the new one, whole."""
    draft = file.with_name(f".{file.name}.draft")
    separators = (",", ":") if indent is None else None
    text = json.dumps(content, indent=indent, separators=separators, allow_nan=False)
    draft.write_text(text + "\n")
    sync(draft)
    draft.replace(file)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk. Windows needs it open for writing and goes without."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
