"""How a run directory is written; what it holds is in ``run.py``.

Rows are flushed as they come. A checkpoint is written beside its final place, flushed to the disk
and renamed, then ``state.json`` is replaced likewise: whenever a run dies, or the machine, both are
whole, and resuming cuts the row files back to what ``state.json`` says.
"""

import gzip
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradmass.record.files import json_line, lock, sync, write_json
from gradmass.record.run import SCHEMA, Run, Status, checkpoint_dir
from gradmass.types import State, UsageError

ROW_FILES = ("metrics.jsonl", "evaluations.jsonl", "diagnostics.jsonl", "rollouts.jsonl.gz")


@dataclass(frozen=True)
class Checkpoint:
    """Where a run can be taken up: updates done, the weight's state, and the saved model."""

    step: int
    weight_state: State
    folder: Path


class RunWriter:
    """A run directory, for the trainer. Made by ``create`` or ``resume``.

    Args:
        path: The directory.
        resumed_from: The checkpoint to go on from, None for a new run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.resumed_from: Checkpoint | None = None
        self._saved_step = -1
        self._files = {name: (path / name).open("ab") for name in ROW_FILES}
        try:
            lock(self._files["metrics.jsonl"], f"run {path}")
        except UsageError:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, config: dict[str, Any], env: dict[str, Any]) -> "RunWriter":
        """Make a new directory.

        Raises:
            UsageError: The path exists with something in it, or cannot be written.
        """
        try:
            refuse_used(path, can_resume=True)
            # Made beside its place: a run that is killed while it is made leaves the name free. A
            # folder that is there already may be a volume, which cannot be replaced.
            is_there = path.exists()
            draft = path if is_there else path.with_name(f".{path.name}.{os.getpid()}")
            if not is_there:
                shutil.rmtree(draft, ignore_errors=True)  # of a process that is gone
            # Fails if another process has made it since.
            (draft / "checkpoints").mkdir(parents=True)
            write_json(draft / "config.json", {"schema": SCHEMA, **config})
            write_json(draft / "env.json", {"schema": SCHEMA, **env, "resumed": []})
            writer = cls(draft)
            writer._write_state(0, None, "running")
            if not is_there:
                draft.rename(path)
                writer.path = path
            return writer
        except OSError as error:
            raise UsageError(f"cannot write to output folder {path}: {error.strerror}") from error

    @classmethod
    def resume(cls, path: Path, env: dict[str, Any]) -> "RunWriter":
        """Open an unfinished run and cut its rows back to the last checkpoint.

        A run that broke off before its first checkpoint starts again.

        Args:
            path: The directory.
            env: What the rest runs on; kept in ``env.json`` under ``resumed``.

        Raises:
            UsageError: Not a run directory, one that is finished, or one being written.
        """
        run = Run(path)
        # Read before any file is opened, and so made, in a folder that is no run directory.
        _, first_env = run.state, run.env
        try:
            writer = cls(path)
        except OSError as error:
            raise UsageError(f"cannot write to run {path}: {error.strerror}") from error
        try:
            # Read under the lock: until it was had, another process may have gone on.
            state = run.state
            if state["status"] == "finished":
                raise UsageError(
                    f"run {path} is finished (step {state['step']}); there is nothing to do"
                )
            if state["weight"] is not None:
                writer.resumed_from = Checkpoint(state["step"], state["weight"], run.model_dir)
                writer._saved_step = state["step"]
            writer._cut_back(state["sizes"])
            resumed = [*first_env["resumed"], {"step": state["step"], **env}]
            write_json(path / "env.json", {**first_env, "resumed": resumed})
        except OSError as error:
            writer.close()
            raise UsageError(f"cannot write to run {path}: {error.strerror}") from error
        except UsageError:
            writer.close()
            raise
        return writer

    def log(self, row: dict[str, Any]) -> None:
        """Append a row of metrics.

        Raises:
            UsageError: A NaN or infinite value: the record holds no such number.
        """
        self._append("metrics.jsonl", json_line(row))

    def log_evaluation(self, row: dict[str, Any]) -> None:
        """Append the solve probabilities of one split."""
        self._append("evaluations.jsonl", json_line(row))

    def log_diagnostics(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows of diagnostics, each with its ``step`` and ``kind``."""
        self._append("diagnostics.jsonl", b"".join(json_line(row) for row in rows))

    def log_rollouts(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append the rollouts of a batch."""
        text = b"".join(json_line(row) for row in rows)
        # mtime 0, so that equal rollouts make equal files.
        self._append("rollouts.jsonl.gz", gzip.compress(text, compresslevel=5, mtime=0))

    def checkpoint(
        self, step: int, weight_state: State, status: Status, save: Callable[[Path], None]
    ) -> None:
        """Save a checkpoint whole or not at all, then drop the ones before it.

        Args:
            step: Updates done.
            weight_state: The policy weight's state.
            status: What the run is doing.
            save: Writes model and trainer state into the folder it is given.

        Raises:
            UsageError: It cannot be written, as on a full disk; the one before is as it was.
        """
        with self._writing():
            self._checkpoint(step, weight_state, status, save)

    def _checkpoint(
        self, step: int, weight_state: State, status: Status, save: Callable[[Path], None]
    ) -> None:
        final = checkpoint_dir(self.path, step)
        if step != self._saved_step:
            draft = final.with_name(f"{final.name}.draft")
            # Left by a run that was killed before it wrote its state.
            shutil.rmtree(draft, ignore_errors=True)
            shutil.rmtree(final, ignore_errors=True)
            try:
                draft.mkdir()
                save(draft)
                for file in draft.rglob("*"):
                    sync(file)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
            draft.rename(final)
            sync(final.parent)
            self._saved_step = step
        self._write_state(step, weight_state, status)
        for folder in (self.path / "checkpoints").glob("step-*"):
            if folder != final:
                shutil.rmtree(folder)

    def fail(self) -> None:
        """Note that the run broke off; what its last checkpoint holds stays as it is.

        A new run that has no checkpoint yet holds nothing and is removed: its name is free again.
        On a full disk the note is left out, and the run is as if it had been killed.
        """
        run = Run(self.path)
        if run.state["weight"] is not None or run.env["resumed"]:
            with suppress(OSError):
                self.note("failed")
            return
        self.close()
        for entry in self.path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        with suppress(OSError):  # the working directory cannot be removed
            self.path.rmdir()

    def note(self, status: Status) -> None:
        """Note how the run ended; what belongs to its last checkpoint stays what it is."""
        write_json(self.path / "state.json", {**Run(self.path).state, "status": status})

    def close(self) -> None:
        """Close the files; what a full disk did not take is cut off on resuming anyway."""
        for file in self._files.values():
            with suppress(OSError):
                file.close()

    def _cut_back(self, sizes: dict[str, int]) -> None:
        """Cut the row files to their size at a checkpoint; none is cut if one is too short."""
        for name, size in sizes.items():
            if self._files[name].seek(0, os.SEEK_END) < size:
                raise UsageError(f"{self.path / name} is shorter than its checkpoint says")
        for name, size in sizes.items():
            self._files[name].truncate(size)
            self._files[name].seek(size)

    def _write_state(self, step: int, weight_state: State | None, status: Status) -> None:
        for file in self._files.values():
            os.fsync(file.fileno())
        state = {
            "schema": SCHEMA,
            "step": step,
            "status": status,
            "weight": weight_state,
            "sizes": {name: file.tell() for name, file in self._files.items()},
        }
        try:
            write_json(self.path / "state.json", state)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"the weight's state {weight_state} cannot be stored ({error}); it has to be plain "
                "JSON"
            ) from error

    def _append(self, name: str, data: bytes) -> None:
        with self._writing():
            self._files[name].write(data)
            self._files[name].flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say in one line what keeps the record from being written, and that nothing is lost."""
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"cannot write to run {self.path}: {error.strerror or error}; the last checkpoint "
                "is intact: make room and go on with --resume"
            ) from error


def refuse_used(path: Path, *, can_resume: bool = False) -> None:
    """Refuse an output path at which something is but an empty folder.

    Args:
        path: The path.
        can_resume: Whether a run that is there can be gone on with, which the message then says.

    Raises:
        UsageError: It is used.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        is_run = can_resume and (path / "state.json").exists()
        raise UsageError(
            f"output folder {path} is already used; name another with --out"
            + ", or continue it with --resume" * is_run
        )
