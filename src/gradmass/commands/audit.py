"""``gradmass audit``: can a task's verifier be trusted before anything is trained on it?"""

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro
from rich.console import Console

from gradmass.commands.arguments import parse, split_recipe_flags
from gradmass.commands.progress import Progress
from gradmass.config import Recipe
from gradmass.tables import Tables, from_spec, load_recipe, split_spec, to_tables
from gradmass.tasks import Task
from gradmass.tasks.audit import NUM_EXAMPLES, Audit, audit
from gradmass.tasks.countdown import Countdown
from gradmass.types import UsageError

SECONDS_BETWEEN_LINES = 2.0
LEFT_OUT = {
    "repeated": "repeated",
    "contradicts": "repeated with another answer",
    "overlap": "a test problem",
    "unusable": "no problem",
    "unmeasured": "without a solve rate",
    "filtered": "outside the solve rates asked for",
}
"""What became of rows, by the names that ``Tally`` counts under."""


@dataclass(frozen=True)
class Arguments:
    """Ask of a task's verifier what has to hold before a policy is trained on it.

    TASK is a task's name with its fields, gsm8k:path=train.jsonl, or path/to/file.py:Name, or a
    recipe's .toml file; --task.FIELD V says otherwise. Golds are right; golds cut in half and junk
    are not; no problem is without tests; order and threads change no verdict; no problem is there
    twice or in two splits. Exit code 0 if all of it holds, 1 if not, 2 if the data cannot be read.
    """

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """The task."""
    n: Annotated[int, tyro.conf.arg(metavar="INT")] = 100
    """Problems of each split whose answers are judged; all problems are read."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Sections:
    """What can be set by dotted flags."""

    task: Task = field(default_factory=Countdown)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    task_flags, rest = split_recipe_flags(Sections, argv)
    arguments = parse(Arguments, "audit", rest)
    if arguments.n < 1:
        raise UsageError(f"--n must be at least 1, got {arguments.n}")
    task = _task(arguments.task, task_flags)
    with _Counter() as counter:
        found = audit(task, arguments.n, counter.show)
    if arguments.json:
        print(json.dumps(_as_json(task, found), ensure_ascii=False))
    else:
        print("\n".join(_lines(task, found)))
    return 0 if found.is_passed else 1


def _task(spec: str, flags: Sequence[str]) -> Task:
    if spec.endswith(".toml"):
        return load_recipe(Recipe, spec, flags).task
    name, fields = split_spec(spec)
    start: Tables = {"type": name}
    if fields:
        start = to_tables(from_spec(Task, spec))  # type: ignore[type-abstract]
    return load_recipe(Sections, None, flags, start={"task": start}).task


class _Counter:
    """Progress over verdicts: a live line on a terminal, else a plain one every few seconds."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._said = time.monotonic()
        self._reading = Console(stderr=True).status("reading the problems")

    def __enter__(self) -> "_Counter":
        """Say that the problems are read."""
        self._reading.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave no live line behind."""
        self._reading.stop()
        if self._progress is not None:
            self._progress.__exit__(None, None, None)

    def show(self, num_done: int, num_all: int) -> None:
        """Show how many verdicts there are."""
        if self._progress is None:
            self._reading.stop()
            self._progress = Progress(num_all, (), labels=("verdicts",)).__enter__()
        if sys.stderr.isatty() or time.monotonic() - self._said > SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            self._progress.show({"step": num_done}, "verdicts")


def _as_json(task: Task, found: Audit) -> dict[str, Any]:
    checks = [
        {
            "name": check.name,
            "passed": check.is_passed,
            "num_checked": check.num_checked,
            "num_failed": len(check.failures),
            "failures": check.failures,
        }
        for check in found.checks
    ]
    numbers = {
        name: getattr(found, name)
        for name in (
            "num_golds",
            "num_without_gold",
            "num_unscorable",
            "num_lookalike",
            "num_shared",
            "seconds_per_verdict",
            "slowest_s",
        )
    }
    splits = {name: dataclasses.asdict(split) for name, split in found.splits.items()}
    what = {"task": to_tables(task), "passed": found.is_passed, "checks": checks}
    return {**what, "splits": splits, **numbers}


def _lines(task: Task, found: Audit) -> list[str]:
    """The report for a person."""
    lines = [f"audit of {_label(task)}", ""]
    for name, split in found.splits.items():
        count = f"{split.num_problems:,}" if split.is_all else f"the first {split.num_problems:,}"
        lines.append(f"  {name}: {count} problems")
        for kind, number in split.left_out.items():
            first = split.first_left_out[kind]
            lines.append(f"    left out as {LEFT_OUT[kind]}: {number:,}; the first: {first}")
    lines.append("")
    for check in found.checks:
        mark = "-" if not check.num_checked else "ok" if check.is_passed else "FAIL"
        said = f"{check.num_checked:,} checked" if check.num_checked else "nothing to check"
        if check.failures:
            said = f"{len(check.failures):,} of {said}"
        lines.append(f"  {mark:4}  {check.name:34} {said}")
        lines += [f"          {failure}" for failure in check.failures[:NUM_EXAMPLES]]
        if len(check.failures) > NUM_EXAMPLES:
            lines.append(f"          and {len(check.failures) - NUM_EXAMPLES:,} more (--json)")
    return [*lines, "", *_numbers(found), "", "passed" if found.is_passed else "failed"]


def _label(task: Task) -> str:
    """A task with the fields that were set."""
    shown = [
        f"{f.name} = {getattr(task, f.name)!r}"
        for f in dataclasses.fields(task)
        if getattr(task, f.name) != f.default
    ]
    return ", ".join([f"task {task.spec or task.name}", *shown])


def _numbers(found: Audit) -> list[str]:
    lines = []
    if found.num_golds:
        share = found.num_unscorable / found.num_golds
        lines.append(f"  {share:.1%} of {found.num_golds:,} golds cannot be scored")
        shared = found.num_shared / found.num_golds
        lines.append(f"  {shared:.1%} of them are right for the next problem too")
    if found.num_without_gold:
        lines.append(f"  {found.num_without_gold:,} audited problems have no gold to try")
    if found.num_lookalike:
        lines.append(
            f"  {found.num_lookalike:,} test problems look like a training problem, case, spaces "
            "and punctuation aside"
        )
    slowest = "" if found.slowest_s is None else f", the slowest {found.slowest_s:.2f} s"
    lines.append(f"  {1000 * found.seconds_per_verdict:.2f} ms a verdict{slowest}")
    return lines
