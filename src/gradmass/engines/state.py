"""The state of a weight in an engine's checkpoint: one JSON file, whole or not there."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradmass.record.files import write_json
from gradmass.types import UsageError

STATE_FILE = "gradmass_state.json"
"""Beside the model in every checkpoint; the same in every engine."""


def write_state(folder: Path, saved: Mapping[str, Any]) -> None:
    """Write the file, or leave the one that is there as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / STATE_FILE, saved)


def read_state(folder: Path) -> dict[str, Any] | None:
    """What ``write_state`` wrote; None where the checkpoint has no such file.

    Raises:
        UsageError: The file is there and is not JSON.
    """
    file = folder / STATE_FILE
    if not file.exists():
        return None
    try:
        saved = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{file} is damaged ({error}): resume from an older checkpoint, or delete the file to "
            "start the weight from its initial state"
        ) from error
    if not isinstance(saved, dict):
        raise UsageError(f"{file} is damaged: it holds {type(saved).__name__}, not a table")
    return saved
