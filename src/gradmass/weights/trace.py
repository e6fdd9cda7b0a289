"""What a weight did at each step of a run, from the run's metrics or a list."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from gradmass.types import UsageError

What = Literal["alpha_delta", "mass"]
KEYS = {
    "alpha_delta": ("weight/alpha", "weight/delta"),
    "mass": ("mass/positive", "mass/negative"),
}


def read_trace(file: str, what: What) -> dict[int, tuple[float, ...]]:
    """Read ``(alpha, delta)``, or ``(total mass,)``, by the number of updates before the batch.

    Args:
        file: A run's ``metrics.jsonl``, whose row of step t + 1 tells of the batch after t updates;
            or a JSON list with an entry a batch, ``[alpha, delta]`` or the total mass.
        what: Which of the two.

    Raises:
        UsageError: The file is neither, or has none of these numbers or one out of range.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            found = dict(enumerate(json.loads(text)))
        else:
            rows = [json.loads(line) for line in text.splitlines()]
            found = {row["step"] - 1: _of_row(row, what) for row in rows}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"trace {file} is neither a metrics.jsonl nor a JSON list: "
            f"{type(error).__name__}: {error}"
        ) from error
    entries = {
        step: _checked(file, what, step, entry)
        for step, entry in found.items()
        if entry is not None
    }
    if not entries:
        raise UsageError(f"trace {file} has no {' and '.join(KEYS[what])}")
    return entries


def _of_row(row: Mapping[str, Any], what: What) -> Any:
    """The entry of a row of metrics; None where it has none, as the row of the start."""
    values = [row.get(key) for key in KEYS[what]]
    if None in values:
        return None
    return values if what == "alpha_delta" else sum(values)


def _checked(file: str, what: What, step: int, entry: Any) -> tuple[float, ...]:
    values = entry if isinstance(entry, list) else [entry]
    is_number = [
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    ]
    if what == "alpha_delta":
        is_entry = len(values) == 2 and all(is_number) and min(values) > 0
        wanted = "[alpha, delta], both above 0"
    else:
        is_entry = len(values) == 1 and all(is_number) and min(values) >= 0
        wanted = "a total mass of at least 0"
    if not is_entry:
        raise UsageError(f"trace {file} needs {wanted} for each batch, got {entry!r} at {step}")
    return tuple(map(float, values))
