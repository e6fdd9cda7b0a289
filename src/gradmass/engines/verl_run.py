"""A recipe on verl: ``gradmass train RECIPE --engine verl`` writes its command and follows its run.

verl trains, samples and saves in processes of its own, under ``verl/`` in the run directory. What
it logs becomes rows of ``metrics.jsonl`` while it runs, and each of its checkpoints one of the
record, with the weight's state. Rollouts stay in its own dump, ``verl/rollouts``, which ``gradmass
analyze`` reads; a model in Hugging Face format is made of a checkpoint by ``verl.model_merger``.
"""

import json
import math
import os
import re
import signal
import subprocess
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from gradmass.config import Recipe
from gradmass.engines.state import read_state
from gradmass.engines.verl_command import command_for, limits_of
from gradmass.record import RunWriter
from gradmass.training.folders import resolve_model
from gradmass.training.interrupt import interruptible
from gradmass.types import UsageError

Row = dict[str, Any]
FOLDER, LOG, METRICS = "verl", "output.log", "metrics.jsonl"
POLL_S = 1.0
PATIENCE_S = 60.0
"""How long verl may take to end after Ctrl-C."""
KEYS = {
    "actor/entropy": "entropy/mean_nats",
    "actor/pg_loss": "loss/value",
    "actor/pg_clipfrac": "loss/clip_share",
    "actor/kl_loss": "loss/kl_nats",
    "actor/grad_norm": "optim/grad_norm",
    "response_length/mean": "rollout/length_mean",
    "response_length/clip_ratio": "rollout/truncated",
    "timing_s/step": "time/step_s",
}
"""verl's metrics that have a name here; the others keep theirs, under ``verl/``."""
OWN = ("mass/", "weight/", "groups/", "rollout/", "entropy/")
"""Families of metrics that the weight's hooks have put in verl's log."""
VALIDATION = re.compile(r"val-core/[^/]+/(?P<split>[^/]+)/acc/mean@\d+")


def train(
    recipe: Recipe, writer: RunWriter | None, folder: Path, on_row: Callable[[Row], None]
) -> bool:
    """Run a recipe to its end, or until Ctrl-C.

    Args:
        recipe: The whole run.
        writer: The run directory: new, or resumed at its last checkpoint.
        folder: The run directory.
        on_row: Called with every row of metrics as it is recorded.

    Returns:
        Whether the run is finished; False if it was interrupted, and can be resumed.

    Raises:
        UsageError: The recipe asks for what verl cannot do, there is no GPU, or verl stopped.
    """
    if writer is None:
        raise UsageError("--engine verl starts its own processes: start it once, not by a launcher")
    num_gpus = torch.cuda.device_count()
    if num_gpus == 0:
        raise UsageError(
            "--engine verl needs a GPU and there is none: verl samples with vLLM; train with "
            "--engine local, or --engine trl"
        )
    command = command_for(recipe, folder, resolve_model(recipe.model.path), num_gpus=num_gpus)
    for limit in limits_of(recipe):
        warnings.warn(f"with --engine verl, {limit}", stacklevel=2)
    follower = Follower(recipe, writer, folder / FOLDER, on_row)
    follower.catch_up()
    with interruptible() as is_interrupted, (folder / FOLDER / LOG).open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None:
                if is_interrupted():
                    process.send_signal(signal.SIGINT)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(PATIENCE_S)
                    break
                follower.follow()
                time.sleep(POLL_S)
        finally:
            # Also what it has started: it leads a group of its own.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        follower.follow()
    if is_interrupted():
        writer.note("interrupted")
        return False
    if process.returncode != 0:
        said = folder / FOLDER / LOG
        raise UsageError(
            f"verl stopped with exit code {process.returncode}: {_last_words(said)} (all it said "
            f"is in {said}); its last checkpoint is intact"
        )
    writer.note("finished")
    return follower.step >= recipe.train.steps


class Follower:
    """Turns what verl leaves on the disk into the record of a run.

    Args:
        recipe: The whole run.
        writer: The run directory.
        folder: Where verl writes.
        on_row: Called with every row of metrics.

    Attributes:
        step: Updates that have been recorded.
    """

    def __init__(
        self, recipe: Recipe, writer: RunWriter, folder: Path, on_row: Callable[[Row], None]
    ) -> None:
        self._recipe, self._writer, self._folder, self._on_row = recipe, writer, folder, on_row
        self._read = 0  # bytes of verl's log
        self._saved = self.step = -1
        if writer.resumed_from is not None:
            self._saved = self.step = writer.resumed_from.step

    def catch_up(self) -> None:
        """Record what an earlier process of verl did after the record ended, and set its log aside.

        verl goes on from its own last checkpoint, and begins its log anew.
        """
        log = self._folder / METRICS
        if log.exists():
            self.follow(last=self._checkpoint_step())
            log.rename(log.with_name(f"metrics-to-{max(0, self.step)}.jsonl"))
        self._read = 0

    def follow(self, last: int | None = None) -> None:
        """Record the rows that are new, and a checkpoint where verl has made one.

        Args:
            last: Step of the last row to take, if not all.
        """
        file = self._folder / METRICS
        if file.exists():
            with file.open("rb") as lines:
                lines.seek(self._read)
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    self._read += len(line)
                    self._take(json.loads(line), last)
                    # Before the next row, so that the record is cut back to here. verl saves
                    # before it logs.
                    if self._saved < self.step == self._checkpoint_step():
                        self._save(self.step)

    def _take(self, logged: Row, last: int | None) -> None:
        step = logged["step"] * self._recipe.train.updates_per_batch
        if step <= self.step or (last is not None and step > last):
            return
        config = self._recipe.train
        row = {"step": step, "rollouts": logged["step"] * config.prompts_per_step}
        row["rollouts"] *= config.group_size
        for key, value in logged["data"].items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                continue
            validation = VALIDATION.fullmatch(key)
            name = KEYS.get(key) or (key if key.startswith(OWN) else f"verl/{key}")
            row[f"{validation['split']}/sampled_pass@1" if validation else name] = value
        # The weight's own entropy stands before verl's average.
        if "entropy/mean_nats" in logged["data"]:
            row["entropy/mean_nats"] = logged["data"]["entropy/mean_nats"]
        self._writer.log(row)
        self._on_row(row)
        self.step = step

    def _checkpoint_step(self) -> int:
        file = self._folder / "checkpoints" / "latest_checkpointed_iteration.txt"
        if not file.exists():
            return -1
        return int(file.read_text()) * self._recipe.train.updates_per_batch

    def _save(self, step: int) -> None:
        number = step // self._recipe.train.updates_per_batch
        own = self._folder / "checkpoints" / f"global_step_{number}"
        saved = read_state(own)
        if saved is None:
            raise UsageError(f"verl's checkpoint {own} lacks the weight's state: it cannot resume")
        note = {"checkpoint": str(own.relative_to(self._folder.parent)), "weight": saved}

        def write(folder: Path) -> None:
            (folder / "verl.json").write_text(json.dumps(note, indent=2) + "\n")

        self._writer.checkpoint(step, saved["weights"][0]["state"], "running", write)
        self._saved = step


def _last_words(log: Path) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")
