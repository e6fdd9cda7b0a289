"""``gradmass report``: what happened in these runs, on one page?"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gradmass.commands.arguments import parse
from gradmass.record import Run

WATCH_S = 5.0
"""Seconds between looks at a run that is watched."""


@dataclass(frozen=True)
class Arguments:
    """Write one self-contained HTML page about one run or several side by side."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    """Run directories."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE", aliases=("-o",))] = Path("report.html")
    """The page; an existing one is replaced."""
    watch: bool = False
    """Write the page anew whenever a run has more rows, until none is being trained; a browser that
    has it open shows the new one by itself."""
    json: bool = False
    """Print the path as JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parse(Arguments, "report", argv)
    from gradmass.report.page import write_report

    if arguments.watch:
        _watch(arguments.runs, arguments.out)
    else:
        write_report([Run(path) for path in arguments.runs], arguments.out)
    print(json.dumps({"report": str(arguments.out)}) if arguments.json else arguments.out)
    return 0


def _watch(paths: Sequence[Path], out: Path) -> None:
    """Follow runs until none is being written; each page but the last reloads itself."""
    from gradmass.report.page import write_report

    shown: list[int] = []
    while True:
        # New objects: a Run reads its record once.
        runs = [Run(path) for path in paths]
        is_going = any(run.is_being_written for run in runs)
        rows = [len(run.metrics) for run in runs]
        is_waiting = is_going and not all(rows)
        if is_waiting and not shown:
            print("waiting for the first row of every run (Ctrl-C stops)", file=sys.stderr)
        elif not is_waiting and (rows != shown or not is_going):
            write_report(runs, out, reload_s=WATCH_S if is_going else None)
            steps = ", ".join(f"{run.path} at step {run.metrics[-1]['step']}" for run in runs)
            print(f"{out}: {steps}", file=sys.stderr, flush=True)
        if not is_going:
            return
        shown = rows
        time.sleep(WATCH_S)
