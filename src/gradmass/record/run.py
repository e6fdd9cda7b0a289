"""The run directory is the record of a run; plots, reports and resumption read nothing else.

config.json         the resolved recipe, label and engine, SHA-256 of the user's files it names,
                    and what the run is called in a tracker that it is shown to
env.json            versions, machine, command, start time
metrics.jsonl       a row a step, flat keys "family/name"; row 0 is the start, before any update
evaluations.jsonl   a row an evaluation and split: the solve probability of every problem
diagnostics.jsonl   rows of lists and tables: "kind" difficulty, signal or spectrum
rollouts.jsonl.gz   every rollout trained on, with verdict and weight; a gzip member a step
state.json          step, status, the weight's state, and how much of the above belongs to it
checkpoints/        step-000123/: model and tokenizer in Hugging Face format, trainer state
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from gradmass.lines import whole_lines
from gradmass.record.files import is_locked
from gradmass.types import UsageError

SCHEMA = 1
"""Version of the layout; a directory of another version is refused."""

Status = Literal["running", "interrupted", "failed", "finished"]


@dataclass(frozen=True)
class Run:
    """A run directory, for reading.

    Args:
        path: The directory.

    Raises:
        UsageError: On reading, where a file is missing or is not what it should be.
    """

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """``{"schema", "label", "engine", "recipe", "files"}``, and ``tracked`` if it is."""
        return self._json("config.json")

    @cached_property
    def env(self) -> dict[str, Any]:
        """Versions, machine, command and start time."""
        return self._json("env.json")

    @property
    def state(self) -> dict[str, Any]:
        """``{"schema", "step", "status", "weight", "sizes"}`` as of the last checkpoint.

        ``weight`` is None until the first one.
        """
        state = self._json("state.json")
        for key in ("step", "status", "weight", "sizes"):
            if key not in state:
                raise UsageError(f"{self.path / 'state.json'} is damaged: it has no {key!r}")
        return state

    @property
    def label(self) -> str:
        """The weight with the fields that differ from their defaults."""
        return str(self.config["label"])

    @property
    def weight_name(self) -> str:
        """Registered name of the weight."""
        return str(self.config["recipe"]["weight"]["type"])

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """Rows of ``metrics.jsonl`` in order of their step."""
        return list(self._rows("metrics.jsonl"))

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Rows ``{"step", "split", "problem_ids", "solve_probability"}``."""
        return list(self._rows("evaluations.jsonl"))

    @cached_property
    def diagnostics(self) -> list[dict[str, Any]]:
        """Rows ``{"step", "kind", ...}``; none in a run that was recorded before there were any."""
        name = "diagnostics.jsonl"
        return list(self._rows(name)) if (self.path / name).exists() else []

    def rollouts(self) -> Iterator[dict[str, Any]]:
        """Yield the rollouts in the order they were trained on."""
        yield from self._rows("rollouts.jsonl.gz")

    @property
    def is_being_written(self) -> bool:
        """Whether a process is training it now."""
        file = self.path / "metrics.jsonl"
        return self.state["status"] == "running" and file.exists() and is_locked(file)

    @property
    def model_dir(self) -> Path:
        """Folder of the last checkpoint, loadable by transformers.

        Raises:
            UsageError: No checkpoint was written yet.
        """
        folder = checkpoint_dir(self.path, self.state["step"])
        if not folder.is_dir():
            if self.state["weight"] is not None:
                raise UsageError(f"the checkpoint {folder} of run {self.path} is missing")
            raise UsageError(f"run {self.path} has no checkpoint yet (step 0)")
        return folder

    def _json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            content = json.loads(file.read_text())
        except OSError as error:
            raise self._unreadable(name, error) from error
        except ValueError as error:
            raise UsageError(f"{file} is damaged: {error}") from error
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            found = content.get("schema") if isinstance(content, dict) else content
            raise UsageError(f"{file} has schema {found!r}, this version reads schema {SCHEMA}")
        if content.get("kind") == "evaluation":
            raise UsageError(
                f"{self.path} is an evaluation, not a run (gradmass passk and compare read it)"
            )
        return content

    def _rows(self, name: str) -> Iterator[dict[str, Any]]:
        file = self.path / name
        number = 0
        try:
            for line in whole_lines(file):
                number += 1
                yield json.loads(line)
        except (ValueError, OSError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:  # gzip's own have none
                raise self._unreadable(name, error) from error
            raise UsageError(f"{file} is damaged at row {number}: {error}") from error

    def _unreadable(self, name: str, error: OSError) -> UsageError:
        """Why a file is not to be had, and the run that was perhaps meant."""
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            return UsageError(f"cannot read {self.path / name}: {error.strerror}")
        if not self.path.exists():
            reason = "there is no such folder"
        else:
            reason = f"it has no {name}" if self.path.is_dir() else "it is a file"
        around = [folder for folder in self.path.parents if (folder / "state.json").is_file()]
        hint = f"; did you mean {around[0]}?" if around else ""
        return UsageError(f"{self.path} is no run directory: {reason}{hint}")


def checkpoint_dir(run: Path, step: int) -> Path:
    """Where the checkpoint after ``step`` updates lies."""
    return run / "checkpoints" / f"step-{step:06d}"
