"""Rows of JSON Lines, of a file that may be growing while it is read."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path


def whole_lines(file: Path, on_cut: Callable[[], object] = lambda: None) -> Iterator[bytes]:
    """Yield the lines of a file, plain or gzip, but for a last one that is cut.

    A writer that is at it, or was killed, leaves half a last line, or half a gzip member. A last
    line without its newline that is JSON is whole; half an object never is JSON. What is cut
    elsewhere is damage, and is left to whoever reads the lines.

    Args:
        file: The file; gzip where its name ends in ``.gz``.
        on_cut: Called at the end if the last line was cut.

    Raises:
        OSError: The file cannot be read, or is no gzip.
        zlib.error: It is damaged gzip.
    """
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        try:
            for line in opened:
                if line.endswith(b"\n") or _is_json(line):
                    yield line
                elif line.strip():
                    on_cut()
        except EOFError:
            on_cut()


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
