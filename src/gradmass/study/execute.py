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
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gradmass.config import Recipe
from gradmass.study.design import Study
from gradmass.study.plan import PlannedRun, recipe_of, trace_placeholder
from gradmass.study.results import Result, distilled
from gradmass.tables import to_toml
from gradmass.tied import tied_to_this_process
from gradmass.weights.controls import Replay

Process: TypeAlias = "subprocess.Popen[str]"

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
        weight: Its weight as the study names it, without the path of a trace.
    """

    run: PlannedRun
    recipe: Recipe
    trace: list[Any] | None
    has_trace: bool
    weight: str


class RunFailed(Exception):
    """A run that ended without a result; the message is the last line it printed."""


class RunInterrupted(Exception):
    """A run that was stopped and can go on."""


def job_of(study: Study, run: PlannedRun, trace: list[Any] | None) -> Job:
    """The job of a run."""
    has_trace = any(arm.trace_of == run.arm for arm in study.arms)
    recipe = recipe_of(study, run, trace_placeholder(study.arm(run.arm)))
    return Job(run, recipe, trace, has_trace, study.arm(run.arm).weight)


def execute(
    job: Job, folder: Path | None = None, on_start: Callable[[Process], object] = lambda _: None
) -> Result:
    """Make a run, or go on with it, and read its result.

    Args:
        job: The run.
        folder: Where its run directory is; None for a temporary one, as on a node of a cluster.
        on_start: Called with the process.

    Raises:
        RunFailed: It ended without a result.
        RunInterrupted: It was stopped by a signal.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        run_dir = folder / job.run.name
        recipe = job.recipe
        if job.trace is not None:
            assert isinstance(recipe.weight, Replay)  # the design says so
            file = (folder / f"{job.run.name}.trace.json").resolve()
            file.write_text(json.dumps(job.trace))
            recipe = replace(recipe, weight=replace(recipe.weight, trace=str(file)))
        recipe_file = folder / f"{job.run.name}.toml"
        recipe_file.write_text(to_toml(recipe))
        status = _train(recipe_file, run_dir, on_start)
        return distilled(job.run, run_dir, status, weight=job.weight, has_trace=job.has_trace)


def remove_run(folder: Path, run: PlannedRun) -> None:
    """Delete what a finished run left: its result is kept elsewhere."""
    shutil.rmtree(folder / run.name, ignore_errors=True)
    for suffix in (".toml", ".trace.json"):
        (folder / f"{run.name}{suffix}").unlink(missing_ok=True)


def _train(
    recipe_file: Path, run_dir: Path, on_start: Callable[[Process], object]
) -> Literal["finished", "diverged"]:
    """Train until there is a result."""
    while True:
        if _is_finished(run_dir):
            return "finished"
        if (run_dir / "state.json").exists():
            flags = ["--resume", "--out", str(run_dir)]
        else:
            shutil.rmtree(run_dir, ignore_errors=True)  # killed before its first checkpoint
            flags = [str(recipe_file), "--out", str(run_dir)]
        process = subprocess.Popen(
            [sys.executable, "-m", "gradmass", "train", *flags, "--json"],
            env=tied_to_this_process(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C is for the study, which then asks each run once: a second signal would kill.
            start_new_session=True,
        )
        on_start(process)
        _, errors = process.communicate()
        if process.returncode == 0:
            return "finished"
        if process.returncode in INTERRUPTED:
            raise RunInterrupted(run_dir.name)
        lines = errors.strip().splitlines() or [f"killed by signal {-process.returncode}"]
        reason = lines[-1].removeprefix("gradmass: error: ")
        if reason.startswith(DIVERGED):
            return "diverged"
        # The runs of a study that was killed end after their step. The next study waits for them,
        # and one may have ended since it was looked at.
        is_gone_on_with = reason.endswith(LOCKED) or _is_finished(run_dir)
        if not is_gone_on_with:
            raise RunFailed(reason)
        time.sleep(1.0)


def _is_finished(run_dir: Path) -> bool:
    file = run_dir / "state.json"
    return file.exists() and json.loads(file.read_text())["status"] == "finished"
