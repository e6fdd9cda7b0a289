"""Logs of inspect_ai: ``.eval`` archives, Zstandard-compressed since 2026, and ``.json``."""

import io
import json
import math
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradmass.record.judged.tally import NOT_GIVEN, Judged, Tally
from gradmass.record.judged.tools import choose
from gradmass.types import UsageError

ZSTANDARD = 93
"""Method of a zip member that Python's own zipfile reads from 3.14 on."""
LETTERS: dict[Any, Any] = {"C": True, "I": False, "N": False, "P": 0.5}
"""Correct, incorrect, no answer, partial."""


def read_inspect(path: Path, score: str | None, threshold: float | None) -> list[Judged]:
    """Read an ``.eval`` archive; ``score`` is the name of a scorer.

    Epochs are the samples of a problem. A sample without a score, or with NaN, is unscorable. Of
    members with one name the last holds.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            status = "started"
            if "header.json" in members:
                status = _member(path, archive, members["header.json"])["status"]
            samples = _samples(path, archive, members)
    except (zipfile.BadZipFile, ValueError, struct.error, EOFError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} is no log of inspect that can be read: {error}") from error
    return _judge(path, samples, status, score, threshold)


def read_inspect_json(
    path: Path, content: Mapping[str, Any], score: str | None, threshold: float | None
) -> list[Judged]:
    """Read a log in its form as one JSON document."""
    return _judge(path, content["samples"], content["status"], score, threshold)


def _samples(
    path: Path, archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]
) -> list[Mapping[str, Any]]:
    """Short records of the samples where the log has them, else the samples themselves."""
    if "summaries.json" in members:
        found = _member(path, archive, members["summaries.json"])
        return list(found)
    parts = [name for name in members if name.startswith("_journal/summaries/")]
    if parts:
        lists = (_member(path, archive, members[name]) for name in sorted(parts))
        return [sample for part in lists for sample in part]
    names = [name for name in members if name.startswith("samples/") and name.endswith(".json")]
    return [_member(path, archive, members[name]) for name in names]


def _judge(
    path: Path,
    samples: Iterable[Mapping[str, Any]],
    status: str,
    score: str | None,
    threshold: float | None,
) -> list[Judged]:
    by_place = {(sample["id"], sample["epoch"]): sample for sample in samples}
    names = sorted({name for sample in by_place.values() for name in sample.get("scores") or {}})
    if not names:
        raise UsageError(f"{path} has no scored sample")
    name = choose(path, score, names)
    tally = Tally(path, threshold)
    for (problem_id, epoch), sample in by_place.items():
        where = f"{path}, sample {problem_id!r} in epoch {epoch}"
        found = (sample.get("scores") or {}).get(name) or {}
        value = found.get("value")
        if isinstance(value, float) and math.isnan(value):
            value = None
        if isinstance(value, str):
            value = LETTERS.get(value, value)
        if isinstance(value, list | dict):
            raise UsageError(f"{where}: scorer {name!r} gives several values, not one verdict")
        answer = found.get("answer", NOT_GIVEN)
        tally.add(problem_id, value, where, sample=epoch, answer=answer)
    note = "" if status == "success" else f"the log's status is {status}: samples may be missing"
    return [tally.judged(name, note)]


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    """A member of the archive, parsed (NaN included)."""
    if info.compress_type != ZSTANDARD:
        return json.loads(archive.read(info))
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{path} is compressed by Zstandard: pip install 'gradmass[eval]' to read it"
        ) from error
    assert archive.fp is not None
    archive.fp.seek(info.header_offset)
    # The local header: 30 bytes, of which the last four are the lengths of a name and of extras.
    name_length, extra_length = struct.unpack("<26xHH", archive.fp.read(30))
    archive.fp.seek(name_length + extra_length, io.SEEK_CUR)
    packed = archive.fp.read(info.compress_size)
    try:
        with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as stream:
            return json.loads(stream.read())
    except zstandard.ZstdError as error:
        raise UsageError(f"{path}: {info.filename} is damaged: {error}") from error
