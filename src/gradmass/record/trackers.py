"""A mirror of a run's metrics in an experiment tracker; the run directory stays the record.

trackio and wandb take the same calls. What they do with them (local files, a server) is set as
always by their own environment variables.
"""

import importlib
import sys
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Literal

from gradmass.types import UsageError

Tracker = Literal["trackio", "wandb"]
Row = Mapping[str, Any]
PROJECT = "gradmass"


def tracked_run(tracker: Tracker, path: Path) -> dict[str, str]:
    """What a run is called in a tracker, for ``config.json``; no two runs share a name.

    Args:
        tracker: Name of the package.
        path: The run directory.

    Raises:
        UsageError: The package is not installed.
    """
    _module(tracker)
    name = f"{path.resolve().name}-{uuid.uuid4().hex[:6]}"
    return {"tracker": tracker, "project": PROJECT, "name": name}


class Mirror:
    """Shows rows of metrics to a tracker. A tracker that fails is warned of once, then left alone.

    Args:
        target: As ``tracked_run`` gave it.
        config: What the tracker keeps beside the metrics: label, engine and recipe.
        recorded: Rows of a run that goes on. Those that the tracker has not seen are shown first;
            new ones that it has seen, before the run broke off, are not shown again.
    """

    def __init__(
        self, target: Mapping[str, str], config: Mapping[str, Any], recorded: Sequence[Row] = ()
    ) -> None:
        self._name = target["tracker"]
        self._module: Any = None
        self._run: Any = None
        self._next_step = 0

        def start() -> None:
            self._module = _module(self._name)
            # An id of its own is what wandb finds a run by; trackio goes by the name.
            by_id = {"id": target["name"]} if self._name == "wandb" else {}
            self._run = self._module.init(
                project=target["project"],
                name=target["name"],
                config=dict(config),
                resume="allow",
                **by_id,
            )
            self._next_step = next_step(self._run)

        self._try(start)
        for row in recorded:
            self.log(row)

    def log(self, row: Row) -> None:
        """Show the numbers of a row at its step; lists and tables stay in the record."""
        step = int(row["step"])
        if self._run is None or step < self._next_step:
            return
        numbers = {
            key: value
            for key, value in row.items()
            if key != "step" and isinstance(value, int | float)
        }
        self._try(lambda: self._run.log(numbers, step=step))

    def finish(self) -> None:
        """Let the tracker write what it still holds."""
        if self._run is not None:
            # Not the run's own: the module would finish it once more at the end, on stdout.
            self._try(self._module.finish)

    def _try(self, call: Callable[[], object]) -> None:
        """Call the tracker, with its words on stderr: stdout is for what the command prints."""
        try:
            with redirect_stdout(sys.stderr):
                call()
        # Whatever it raises, from a full disk to a server that is down, is not worth the run.
        except Exception as error:
            self._run = None
            reason = " ".join(str(error).split())
            warnings.warn(
                f"{self._name} failed ({type(error).__name__}: {reason}); the run goes on and is "
                "recorded without it",
                stacklevel=3,
            )


def next_step(run: Any) -> int:
    """The step after the last that a tracked run holds.

    wandb has it as ``step``. trackio (0.43) counts it too, and gives it under no public name: its
    ``Api`` and ``Run`` have none, so the private one is read.
    """
    held = getattr(run, "step", None)
    return int(held if held is not None else run._next_step)


def _module(tracker: str) -> Any:
    try:
        return importlib.import_module(tracker)
    except ImportError as error:
        raise UsageError(
            f"--track {tracker} needs {tracker}, which is not installed: pip install {tracker}"
        ) from error
