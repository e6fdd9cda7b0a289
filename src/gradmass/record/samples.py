"""The folder of an evaluation: what was asked, every sample with its verdict, and the results.

    config.json         what was asked, of which model
    env.json            versions, machine, command, start time; a continuation under "resumed"
    samples.jsonl.gz    a row a sample; a gzip member for each batch of verdicts
    waiting.jsonl       answers that are not judged yet; gone when the evaluation is finished
    results.json        the results, once everything asked is there

An answer is in ``waiting.jsonl`` from the moment it arrives until its row is in
``samples.jsonl.gz``, so whenever the process dies, what was answered is not asked again. Half a row
or half a gzip member at the end of a file, which a kill may leave, is cut off on opening. Where a
user's file that judges has changed, all samples become waiting answers and are judged anew.
"""

import gzip
import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from gradmass.record.files import json_line, lock, write_json
from gradmass.types import UsageError, shortened

SCHEMA = 1
"""Version of the layout; a folder of another version is refused."""
GROWS = "num_samples"
"""The one number of ``config.json`` that a continuation may raise."""
MAY_CHANGE = ("model", "endpoint", "batch_size", "files")
"""Where a model is found and how it is run (what it is, is in the other keys), and how answers are
judged: SHA-256 of the user's files by their paths."""
READ_BYTES = 1 << 20
"""How much of a compressed file is read at once."""


class SamplesWriter:
    """An evaluation's folder, for writing. Made by ``open``.

    Args:
        path: The folder.

    Attributes:
        waiting: Rows that were answered before a kill and still have no verdict.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: list[dict[str, Any]] = []
        self._samples: IO[bytes] = (path / "samples.jsonl.gz").open("ab+")
        self._waiting: IO[bytes] = (path / "waiting.jsonl").open("ab+")
        self._num_waiting = 0
        # Answers come in on one thread while another writes verdicts.
        self._mutex = threading.Lock()

    @classmethod
    def open(
        cls,
        path: Path,
        config: Mapping[str, Any],
        env: Mapping[str, Any],
        on_row: Callable[[dict[str, Any]], None],
    ) -> "SamplesWriter":
        """Make a folder, or continue the evaluation in it.

        Args:
            path: The folder; missing, empty, or that of the same evaluation.
            config: What is asked. A continuation may raise ``num_samples`` and change the keys of
                ``MAY_CHANGE``; all else must be as it was.
            env: What it runs on.
            on_row: Called with each sample that is there already.

        Raises:
            UsageError: The folder holds something else, another evaluation, or one that another
                process is writing; or it cannot be written.
        """
        config = {"schema": SCHEMA, "kind": "evaluation", **config}
        try:
            is_new, is_stale = _is_free(path), False
            if not is_new:
                before = read_config(path)
                _check_same(path, before, config)
                files = config.get("files", {})
                is_stale = any(
                    files.get(file, digest) != digest
                    for file, digest in before.get("files", {}).items()
                )
            path.mkdir(parents=True, exist_ok=True)
            writer = cls(path)
        except OSError as error:
            raise UsageError(f"cannot write to output folder {path}: {error.strerror}") from error
        try:
            lock(writer._samples, f"evaluation {path}")
            writer._recover(on_row, is_stale)
            stored = None if is_new else json.loads((path / "env.json").read_text())
            write_json(path / "env.json", _env_with(stored, env))
            (path / "results.json").unlink(missing_ok=True)
            # Last: a folder without it holds no evaluation and may be started anew.
            write_json(path / "config.json", config)
        except BaseException:
            writer.close()
            raise
        return writer

    def keep(self, row: Mapping[str, Any]) -> None:
        """Keep an answer that has no verdict yet; may be called from any thread."""
        with self._mutex:
            self._waiting.write(json_line(row))
            self._waiting.flush()
            self._num_waiting += 1

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append judged samples, each of which was kept before."""
        text = b"".join(json_line(row) for row in rows)
        # mtime 0, so that equal samples make equal files.
        data = gzip.compress(text, compresslevel=5, mtime=0)
        with self._mutex:
            self._samples.write(data)
            self._samples.flush()
            self._num_waiting -= len(rows)
            if self._num_waiting == 0:
                self._waiting.truncate(0)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Write the results of a complete evaluation."""
        write_json(self.path / "results.json", {"schema": SCHEMA, **results})
        (self.path / "waiting.jsonl").unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files."""
        self._samples.close()
        self._waiting.close()

    def _recover(self, on_row: Callable[[dict[str, Any]], None], is_stale: bool) -> None:
        """Read what is there, and cut off what a kill left half-written."""
        self._waiting.seek(0)
        kept = [json.loads(line) for line in self._waiting.read().split(b"\n")[:-1]]
        waiting = {_key(row): row for row in kept}
        whole = 0
        for text, end in _whole_members(self._samples, self.path / "samples.jsonl.gz"):
            whole = end
            for line in text.splitlines():
                row = json.loads(line)
                if is_stale:
                    waiting[_key(row)] = row
                    continue
                # A kill between writing verdicts and emptying the file leaves answers that have
                # theirs.
                waiting.pop(_key(row), None)
                on_row(row)
        self.waiting = list(waiting.values())
        self._num_waiting = len(self.waiting)
        self._waiting.truncate(0)
        self._waiting.write(b"".join(json_line(row) for row in self.waiting))
        self._waiting.flush()
        # Last: until then every answer is in one of the files, whenever the process dies.
        self._samples.truncate(0 if is_stale else whole)


def read_config(path: Path) -> dict[str, Any]:
    """``config.json`` of an evaluation's folder.

    Raises:
        UsageError: The folder is that of no evaluation, or of another version.
    """
    file = path / "config.json"
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"output folder {path} is already used, by no evaluation; name another with --out"
        ) from error
    if not isinstance(config, dict) or config.get("kind") != "evaluation":
        raise UsageError(
            f"output folder {path} is already used, by no evaluation; name another with --out"
        )
    if config.get("schema") != SCHEMA:
        raise UsageError(
            f"{file} has schema {config.get('schema')!r}, this version reads schema {SCHEMA}"
        )
    return config


def _is_free(path: Path) -> bool:
    """Whether a folder is missing, empty, or was left before its evaluation began."""
    if not path.exists():
        return True
    names = {entry.name for entry in path.iterdir()}
    begun = {"samples.jsonl.gz", "waiting.jsonl", "env.json", ".env.json.draft"}
    return names <= {*begun, ".config.json.draft"}


def _key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["split"], row["problem_id"], row["sample"]


def _check_same(path: Path, stored: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuse to continue an evaluation by another one."""
    may_differ = (GROWS, *MAY_CHANGE)
    was, now = (
        _flat({key: value for key, value in table.items() if key not in may_differ})
        for table in (stored, config)
    )
    for key in sorted({*was, *now}):
        old, new = was.get(key), now.get(key)
        if old != new:
            raise UsageError(
                f"{path} holds an evaluation with {key} = {shortened(repr(old))}, here it is "
                f"{shortened(repr(new))}; name another folder with --out"
            )
    if stored[GROWS] > config[GROWS]:
        raise UsageError(
            f"{path} holds an evaluation with {stored[GROWS]} samples of each problem; "
            f"num_samples = {config[GROWS]} would leave some out: ask as many or more"
        )


def _flat(table: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Nested tables under dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{place}{key}.") if isinstance(value, dict) else {place + key: value}
    return flat


def _env_with(stored: Any, env: Mapping[str, Any]) -> dict[str, Any]:
    """The first environment, with those of continuations."""
    if not stored:
        return {"schema": SCHEMA, **env, "resumed": []}
    return {**stored, "resumed": [*stored["resumed"], dict(env)]}


def _whole_members(file: IO[bytes], path: Path) -> Iterator[tuple[bytes, int]]:
    """The gzip members of a file, unpacked, each with the place where it ends."""
    file.seek(0)
    end, parts, unpacker = 0, [], zlib.decompressobj(wbits=31)
    num_packed = 0
    try:
        while data := file.read(READ_BYTES):
            while data:
                parts.append(unpacker.decompress(data))
                rest = unpacker.unused_data if unpacker.eof else b""
                num_packed += len(data) - len(rest)
                data = rest
                if unpacker.eof:
                    end += num_packed
                    yield b"".join(parts), end
                    num_packed, parts, unpacker = 0, [], zlib.decompressobj(wbits=31)
    except zlib.error as error:
        raise UsageError(f"{path} is damaged after byte {end}: {error}") from error
