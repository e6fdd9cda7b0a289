"""Progress of a study: a bar on a terminal, a line for each finished run elsewhere."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from gradmass.commands.progress import Live
from gradmass.study.design import Study
from gradmass.study.plan import PlannedRun, recipe_of, trace_placeholder
from gradmass.study.results import Result


class StudyProgress(Live):
    """Shows how far the runs of a study are, on stderr, with the time that is left.

    Args:
        study: The study.
        out: Folder of its results.
        is_quiet: Show nothing.
    """

    def __init__(self, study: Study, out: Path, *, is_quiet: bool) -> None:
        super().__init__(is_quiet=is_quiet)
        self._study, self._out = study, out
        self._steps: dict[PlannedRun, int] = {}
        self._ended: set[PlannedRun] = set()
        self._begun, self._made = self._started, 0.0
        self._rich = self._bars(
            TextColumn("{task.fields[kind]}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
        )

    def begin(self, runs: Sequence[PlannedRun]) -> None:
        """A list of runs is begun, some of which may be there."""
        study = self._study
        self._steps = {
            run: recipe_of(study, run, trace_placeholder(study.arm(run.arm))).train.steps
            for run in runs
        }
        self._ended = {run for run in runs if (self._out / f"{run.name}.json").exists()}
        self._begun, self._made = time.monotonic(), 0.0
        kind = "learning rates" if runs and runs[0].kind == "tuning" else "runs"
        self.say(f"{kind}: {len(runs)}, {len(self._ended)} there already")
        if self._rich is not None:
            for task in self._rich.task_ids:
                self._rich.remove_task(task)
            self._rich.add_task("starting", total=len(runs), completed=len(self._ended), kind=kind)

    def ended(self, run: PlannedRun, result: Result | str) -> None:
        """A run ended, with a result or a reason why there is none."""
        self._ended.add(run)
        if isinstance(result, str):
            self.say(f"{run.name} failed: {result}")
            return
        self._made += self._steps.get(run, 0)
        value = f"pass@1 {result.last('pass@1'):.3f} pass@100 {result.last('pass@100'):.3f}"
        self.say(
            f"{len(self._ended)}/{len(self._steps)} {run.name} {result.status} in "
            f"{result.seconds:.0f}s: {value}; {self._left(0.0)}"
        )

    def tick(self, running: Sequence[PlannedRun]) -> None:
        """Look how far the runs under way are."""
        if self._rich is None:
            return
        under_way = sum(self._share(run) * self._steps.get(run, 0) for run in running)
        names = ", ".join(run.name for run in running[:2]) + ("..." if len(running) > 2 else "")
        for task in self._rich.task_ids:
            self._rich.update(
                task, completed=len(self._ended), description=f"{self._left(under_way)}; {names}"
            )

    def _share(self, run: PlannedRun) -> float:
        """How much of a run is done, from the lines of its metrics."""
        try:
            with (self._out / "work" / run.name / "metrics.jsonl").open("rb") as file:
                return min(1.0, sum(1 for _ in file) / self._steps[run])
        except OSError:
            return 0.0

    def _left(self, under_way: float) -> str:
        made = self._made + under_way
        left = sum(steps for run, steps in self._steps.items() if run not in self._ended)
        if made < 1:
            return "time left not known yet"
        seconds = (time.monotonic() - self._begun) / made * max(0.0, left - under_way)
        return f"{seconds / 3600:.1f}h left" if seconds > 3600 else f"{seconds / 60:.0f}min left"
