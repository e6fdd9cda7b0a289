"""``gradmass study``: which weight is better, over seeds, by rules fixed beforehand?"""

import json
import os
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gradmass.commands.arguments import parse
from gradmass.commands.study_progress import StudyProgress
from gradmass.config import Recipe
from gradmass.metrics.curves import mean_under
from gradmass.record import Run
from gradmass.record.files import lock, write_json
from gradmass.study.design import Study, load_study
from gradmass.study.execute import Job, RunFailed, execute
from gradmass.study.plan import (
    PlannedRun,
    Rates,
    best_rates,
    main_runs,
    num_evaluations,
    recipe_of,
    trace_placeholder,
    tuning_runs,
)
from gradmass.study.results import Result, check_same, keep_study
from gradmass.study.schedule import Executor, LocalExecutor, RayExecutor, Scheduler
from gradmass.training.folders import resolve_model
from gradmass.types import UsageError

TIMED_STEPS = 5
"""Updates of the run that --dry-run times."""


@dataclass(frozen=True)
class Arguments:
    """Compare weights over seeds: a grid of runs from one file, and the table of claims.

    First the runs that choose each arm's learning rate, if the study tunes, then those that count.
    Each finished run leaves a small JSON in --out; with --resume, runs that are there are not made
    again and one that broke off goes on. A run that fails is told and stops no other.
    """

    study: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """A TOML file, or the name of a shipped study (study_smoke)."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the results; runs/study-NAME if not given."""
    jobs: Annotated[int, tyro.conf.arg(metavar="INT")] = 0
    """Runs at a time, a CPU thread each; 0 for as many as there are CPUs."""
    resume: bool = False
    """Go on with what is in --out."""
    first_seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Other seeds than the study's, from this one on."""
    executor: Literal["local", "ray"] = "local"
    """Processes on this machine, or a Ray cluster (RAY_ADDRESS)."""
    dry_run: bool = False
    """Print the runs and the hours they take, timed on this machine, and stop."""
    report: Annotated[Path | None, tyro.conf.arg(metavar="FILE.md")] = None
    """Make no run: write the page of claims and figures about what is in --out."""
    replicate: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """For --report: results with other seeds, to see whether what --out says comes out again."""
    json: bool = False
    """Print what became of the runs, or what --dry-run found, as JSON, and no progress."""


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 when all runs are there, 1 when some failed, 130 when interrupted."""
    arguments = parse(Arguments, "study", argv)
    if arguments.jobs < 0:
        raise UsageError(f"--jobs must be at least 0, got {arguments.jobs}")
    if arguments.replicate is not None and arguments.report is None:
        raise UsageError("--replicate is for --report: it adds a section to the page")
    study = load_study(arguments.study)
    if arguments.first_seed is not None:
        study = replace(study, first_seed=arguments.first_seed)
    out = arguments.out or Path("runs") / f"study-{study.name}"
    if arguments.report is not None:
        return _report(study, out, arguments, argv)
    if arguments.executor == "local":
        check_models(study)
    if arguments.dry_run:
        return _dry_run(study, out, arguments)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()) and not arguments.resume:
            raise UsageError(
                f"{out} has results already: go on with --resume, or name another --out"
            )
        lock_file = (out / ".lock").open("ab")
    except OSError as error:
        raise UsageError(f"cannot write to output folder {out}: {error.strerror}") from error
    signal.signal(signal.SIGTERM, _interrupt)
    with lock_file:
        lock(lock_file, f"study {out}")
        keep_study(out, study)
        return _make(study, out, arguments)


def _report(study: Study, out: Path, arguments: Arguments, argv: Sequence[str]) -> int:
    """Write the page about results, which are of this study as far as their folders say."""
    from gradmass.report.study import write_study

    assert arguments.report is not None
    folders = [out] if arguments.replicate is None else [out, arguments.replicate]
    silent = [folder for folder in folders if not check_same(folder, study)]
    command = shlex.join(["gradmass", "study", *argv])
    write_study(study, out, arguments.report, command, arguments.replicate)
    for folder in silent:
        print(
            f"gradmass: note: {folder} has no study.json, so nothing tells whether its results are "
            f"of study {study.name} as it is defined now",
            file=sys.stderr,
        )
    print(arguments.report)
    return 0


def check_models(study: Study) -> None:
    """Look for the checkpoint of every arm in every setting, before any run.

    Raises:
        UsageError: One that is not there.
    """
    for run in main_runs(study, {}):
        if run.seed == study.first_seed:
            recipe = recipe_of(study, run, trace_placeholder(study.arm(run.arm)))
            try:
                resolve_model(recipe.model.path)
            except UsageError as error:
                raise UsageError(
                    f"study {study.name}, setting {run.setting}, arm {run.arm}: {error}"
                ) from error


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _make(study: Study, out: Path, arguments: Arguments) -> int:
    """Make the tuning runs, choose, make the runs that count, and say what became of them."""
    num_jobs = arguments.jobs or os.cpu_count() or 1
    executor: Executor = (
        RayExecutor(arguments.jobs)
        if arguments.executor == "ray"
        else LocalExecutor(num_jobs, out / "work")
    )
    failed: dict[PlannedRun, str] = {}
    rates: Rates = {(rate.setting, rate.arm): rate.lr for rate in study.rates}
    num_done = 0
    try:
        with StudyProgress(study, out, is_quiet=arguments.json) as progress:
            scheduler = Scheduler(study, out, executor, progress.ended)

            def made(runs: Sequence[PlannedRun]) -> dict[PlannedRun, Result]:
                nonlocal num_done
                progress.begin(runs)
                done, lost = scheduler.make(runs, lambda: progress.tick(scheduler.running))
                failed.update(lost)
                num_done += len(done)
                return done

            try:
                if study.tuning.rates:
                    rates = chosen_rates(study, made(tuning_runs(study)))
                if not (failed or scheduler.is_interrupted):
                    made(main_runs(study, rates))
            except KeyboardInterrupt:
                progress.say("stopping: each run saves where it is")
                scheduler.stop()
    finally:
        executor.close()
    again = shlex.join(["gradmass", "study", arguments.study, "--out", str(out), "--resume"])
    write_json(
        out / "state.json",
        {
            "study": study.name,
            "num_done": num_done,
            "rates": [[*key, rate] for key, rate in sorted(rates.items())],
            "failed": {run.name: reason for run, reason in failed.items()},
        },
    )
    if arguments.json:
        print((out / "state.json").read_text(), end="")
    for run, reason in failed.items():
        print(f"{run.name} failed: {reason}", file=sys.stderr)
    if scheduler.is_interrupted:
        print(f"interrupted; continue with: {again}", file=sys.stderr)
        return 130
    if failed:
        print(f"{len(failed)} runs failed; try them again with: {again}", file=sys.stderr)
        return 1
    if not arguments.json:
        print(out)
    return 0


def chosen_rates(study: Study, done: Mapping[PlannedRun, Result]) -> Rates:
    """Each arm's learning rate: the largest mean area under test pass@1 over rollouts."""
    scores = {
        run: (
            None
            if result.status == "diverged"
            else mean_under(result.rollouts, result.curve("pass@1"))
        )
        for run, result in done.items()
    }
    return best_rates(study, scores)


def _dry_run(study: Study, out: Path, arguments: Arguments) -> int:
    """Count the runs and time them."""
    num_jobs = arguments.jobs or os.cpu_count() or 1
    runs = [*tuning_runs(study), *main_runs(study, {})]
    done = len(list(out.glob("*.s*.json"))) if out.is_dir() else 0
    clock = _Stopwatch(study, None if arguments.json else print)
    alike = Counter(replace(run, seed=0) for run in runs)
    hours = sum(clock.seconds(run) * number for run, number in alike.items()) / 3600
    found = {
        "study": study.name,
        "num_runs": len(runs),
        "num_there": done,
        "cpu_hours": hours,
        "hours": hours / num_jobs,
        "jobs": num_jobs,
    }
    if arguments.json:
        print(json.dumps(found))
        return 0
    print(
        f"{study.name}: {len(tuning_runs(study))} runs that choose learning rates and "
        f"{len(main_runs(study, {}))} that count ({len(study.arms)} arms, "
        f"{len(study.settings)} settings, {study.num_seeds} seeds"
        + (f", {len(study.axes)} axes" if study.axes else "")
        + f"); {done} are in {out}\n"
        f"{hours:.1f} CPU hours, {hours / num_jobs:.1f} hours with --jobs {num_jobs}, at the speed "
        "measured now"
    )
    return 0


class _Stopwatch:
    """Seconds of runs, from a short run in each setting: what rollouts and updates cost."""

    def __init__(self, study: Study, say: Callable[[str], None] | None) -> None:
        self._study, self._say = study, say
        self._timed: dict[str, tuple[float, float, float, float]] = {}

    def seconds(self, run: PlannedRun) -> float:
        """Seconds on one CPU, start of the process included."""
        study = self._study
        recipe = recipe_of(study, run, trace_placeholder(study.arm(run.arm)))
        if run.setting not in self._timed:
            self._timed[run.setting] = self._time(run)
        startup, per_rollout, per_update, per_eval = self._timed[run.setting]
        steps = recipe.train.steps
        rollouts = recipe.train.prompts_per_step * recipe.train.group_size
        batches = -(-steps // recipe.train.updates_per_batch)
        return (
            startup
            + batches * rollouts * per_rollout
            + steps * rollouts * per_update
            + num_evaluations(recipe) * per_eval
        )

    def _time(self, run: PlannedRun) -> tuple[float, float, float, float]:
        study = self._study
        arm = next(arm for arm in study.arms if not arm.trace_of)
        run = replace(run, arm=arm.name, kind="main", lr=None)
        recipe: Recipe = recipe_of(study, run)
        recipe = replace(recipe, train=replace(recipe.train, steps=TIMED_STEPS))
        if self._say is not None:
            self._say(f"timing {TIMED_STEPS} updates in setting {run.setting}")
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            result, rows = timed_rows(Job(run, recipe, None, False, arm.weight), Path(folder))
            wall = time.monotonic() - started
        size = recipe.train.prompts_per_step * recipe.train.group_size
        steps = [row for row in rows if row["step"] > 1]
        update = statistics.median(row["time/update_s"] for row in steps)
        step = statistics.median(row["time/step_s"] for row in steps)
        evals = statistics.median(row["time/eval_s"] for row in rows if "time/eval_s" in row)
        return max(0.0, wall - result.seconds), (step - update) / size, update / size, evals


def timed_rows(job: Job, folder: Path) -> tuple[Result, list[dict[str, float]]]:
    """A run's result and its rows of metrics.

    Raises:
        UsageError: It fails.
    """
    try:
        result = execute(job, folder)
    except RunFailed as error:
        raise UsageError(f"run {job.run.name} failed: {error}") from error
    return result, Run(folder / job.run.name).metrics
