"""Make one run: ``gradmass train`` in a process of its own, then keep what is small.

The process is that of any user, so a run of a study can be made again by hand. It goes on from its
last checkpoint if it was killed. The same function runs here and on the nodes of a cluster.
"""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradmass.config import Recipe
from gradmass.study.design import Study
from gradmass.study.plan import PlannedRun, recipe_of
from gradmass.study.results import Result, distilled
from gradmass.tables import to_toml

LOCKED = "is being written by another process"
DIVERGED = "the policy diverged"
INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)


@dataclass(frozen=True)
class Job:
    """All that a process needs to make a run.

    Args:
        run: Which run.
        recipe: Its recipe; one that replays names a trace that is not there yet.
        trace: What is replayed, if anything.
        has_trace: Whether another arm replays this run.
    """

    run: PlannedRun
    recipe: Recipe
    trace: list[Any] | None
    has_trace: bool


class RunFailed(Exception):
    """A run that ended without a result; the message is the last line it printed."""


class RunInterrupted(Exception):
    """A run that was stopped and can go on."""


def job_of(study: Study, run: PlannedRun, trace: list[Any] | None, folder: Path) -> Job:
    """The job of a run; a trace to replay is written into a folder and named by the recipe."""
    file = None
    if trace is not None:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"{run.name}.trace.json").resolve()
        file.write_text(json.dumps(trace))
    has_trace = any(arm.trace_of == run.arm for arm in study.arms)
    return Job(run, recipe_of(study, run, file), trace, has_trace)


def execute(job: Job, folder: Path | None = None) -> Result:
    """Make a run, or go on with it, and read its result.

    Args:
        job: The run.
        folder: Where its run directory is; None for a temporary one, as on a node of a cluster.

    Raises:
        RunFailed: It ended without a result.
        RunInterrupted: It was stopped by a signal.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        run_dir = folder / job.run.name
        recipe_file = folder / f"{job.run.name}.toml"
        recipe_file.write_text(to_toml(job.recipe))
        trace_file = getattr(job.recipe.weight, "trace", None)
        if job.trace is not None and trace_file is not None and not Path(trace_file).exists():
            Path(trace_file).parent.mkdir(parents=True, exist_ok=True)
            Path(trace_file).write_text(json.dumps(job.trace))
        status = _train(job, recipe_file, run_dir)
        return distilled(job.run, run_dir, status, has_trace=job.has_trace)


def remove_run(folder: Path, run: PlannedRun) -> None:
    """Delete what a finished run left: its result is kept elsewhere."""
    shutil.rmtree(folder / run.name, ignore_errors=True)
    for suffix in (".toml", ".trace.json"):
        (folder / f"{run.name}{suffix}").unlink(missing_ok=True)


def _train(job: Job, recipe_file: Path, run_dir: Path) -> Any:
    """``finished`` or ``diverged``."""
    while True:
        if (run_dir / "state.json").exists():
            if json.loads((run_dir / "state.json").read_text())["status"] == "finished":
                return "finished"
            flags = ["--resume", "--out", str(run_dir)]
        else:
            shutil.rmtree(run_dir, ignore_errors=True)  # killed before its first checkpoint
            flags = [str(recipe_file), "--out", str(run_dir)]
        done = subprocess.run(
            [sys.executable, "-m", "gradmass", "train", *flags, "--json"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return "finished"
        if done.returncode in INTERRUPTED:
            raise RunInterrupted(job.run.name)
        lines = done.stderr.strip().splitlines() or [f"killed by signal {-done.returncode}"]
        reason = lines[-1].removeprefix("gradmass: error: ")
        if reason.startswith(DIVERGED):
            return "diverged"
        # A study that was killed leaves its runs going; the next one waits for them.
        if not reason.endswith(LOCKED):
            raise RunFailed(reason)
        time.sleep(1.0)
