"""Read judged samples of whatever tool, told by what is in the file."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradmass.record.judged.inspect_log import read_inspect, read_inspect_json
from gradmass.record.judged.rows import first_row, read_human_eval, read_rollouts, read_rows, short
from gradmass.record.judged.tally import Judged, counted
from gradmass.record.judged.tools import read_evalplus, read_livecodebench, read_lm_eval
from gradmass.types import UsageError

SAMPLES_FILE = "samples.jsonl.gz"
"""Of the output folder of an evaluation."""
FORMATS = (
    'rows {"problem_id", "correct"} (.jsonl, .jsonl.gz), a folder written by gradmass eval, '
    "rollouts of a run, and results of human-eval, evalplus, LiveCodeBench, lm-eval or inspect"
)
"""What can be read."""


def read_judged(
    path: Path, *, score: str | None = None, threshold: float | None = None
) -> list[Judged]:
    """Read judged samples; one result for each part (split, step) of the file.

    Args:
        path: File, or folder written by ``gradmass eval``.
        score: Which verdict to count where the file has several: ``base`` or ``plus`` of evalplus,
            METRIC,FILTER of lm-eval, a scorer of inspect.
        threshold: Scores of at least this count as right; None refuses all but 0 and 1. Verdicts
            that are true or false stay what they are, and the result's note says so.

    Raises:
        UsageError: The threshold is not finite; the file is not there, is of no known format, or
            has something in it that cannot be read; the message names the file and the place.
    """
    check_threshold(threshold)
    if path.is_dir():
        if not (path / SAMPLES_FILE).is_file():
            raise UsageError(f"folder {path} has no {SAMPLES_FILE}; name a file, or another folder")
        path = path / SAMPLES_FILE
    if not path.exists():
        raise UsageError(f"there is no file {path}")
    try:
        if path.suffix == ".eval":
            found = read_inspect(path, score, threshold)
        elif path.suffix == ".json":
            found = _read_document(path, score, threshold)
        else:
            found = _read_lines(path, score, threshold)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        # The format was told by its outer form, and something within is not of that form.
        raise UsageError(f"{path} is not what its tool writes: {error!r}") from error
    if score is not None and found[0].score != score:
        raise UsageError(
            f"{path} has one verdict a sample, {found[0].score!r}: --score is not for it"
        )
    return found if threshold is None else [_with_threshold_noted(judged) for judged in found]


def check_threshold(threshold: float | None) -> None:
    """Refuse a threshold that no score, or every one, would reach.

    Raises:
        UsageError: It is NaN or infinite.
    """
    if threshold is not None and not math.isfinite(threshold):
        raise UsageError(f"--threshold must be a finite number such as 0.5, got {threshold}")


def _with_threshold_noted(judged: Judged) -> Judged:
    num_clear = int(judged.num_samples_N.sum()) - judged.num_graded
    if num_clear == 0:
        return judged
    which = "the verdicts are"
    if judged.num_graded:
        which = f"{counted(num_clear, 'verdict')} {'is' if num_clear == 1 else 'are'}"
    note = f"{which} true or false, not graded by --threshold"
    return replace(judged, note=f"{judged.note}; {note}" if judged.note else note)


def _read_lines(path: Path, score: str | None, threshold: float | None) -> list[Judged]:
    row = first_row(path)
    if row is None:
        raise UsageError(f"{path} has no rows")
    keys = row.keys()
    if {"doc_id", "resps", "filter"} <= keys:
        return read_lm_eval(path, score, threshold)
    if {"task_id", "passed"} <= keys:
        return read_human_eval(path)
    if {"group", "step", "verdict"} <= keys:
        return read_rollouts(path)
    if "task_id" in keys and keys & {"completion", "solution"}:
        raise UsageError(
            f"{path} has answers without verdicts; give the file that its grader wrote "
            "(*_results.jsonl of human-eval, *eval_results.json of evalplus)"
        )
    return read_rows(path, threshold)


def _read_document(path: Path, score: str | None, threshold: float | None) -> list[Judged]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON ({error})") from error
    if isinstance(content, Mapping):
        if isinstance(content.get("eval"), Mapping) and "samples" in content:
            return read_inspect_json(path, content, score, threshold)
        if isinstance(content.get("eval"), Mapping) and content.keys() & {"hash", "pass_at_k"}:
            return read_evalplus(path, content, score)
        if "results" in content and "configs" in content:
            raise UsageError(f"{path} has lm-eval's means; give samples_*.jsonl beside it")
    elif isinstance(content, list) and content:
        is_by_position = len(content) == 3 and _is_mapping_with("detail", content[0])
        if is_by_position or all(_is_mapping_with("graded_list", item) for item in content):
            return read_livecodebench(path, content)
        if all(_is_mapping_with("code_list", item) for item in content):
            raise UsageError(
                f"{path} has programs without verdicts; give *_eval_all.json beside it"
            )
    raise UsageError(f"{path} is of no known format, it holds {short(content)}; known: {FORMATS}")


def _is_mapping_with(key: str, item: Any) -> bool:
    return isinstance(item, Mapping) and key in item
