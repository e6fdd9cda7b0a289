"""``gradmass demo``: what is this about, in four minutes on a laptop?"""

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated

import tyro

from gradmass.commands.arguments import parse, split_recipe_flags
from gradmass.commands.progress import Progress
from gradmass.config import Recipe
from gradmass.record import Run, refuse_used
from gradmass.tables import load_recipe
from gradmass.tied import tied_to_this_process
from gradmass.types import UsageError

WEIGHTS: dict[str, list[str]] = {"fade": [], "grpo": ["--weight", "grpo"]}
"""The runs, and how each differs from the recipe ``demo``, whose weight is FADE."""
INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)
SHOWN = ("rollout/solve_rate", "entropy/mean_nats", "weight/alpha", "weight/delta", "test/pass@1")


@dataclass(frozen=True)
class Arguments:
    """Train a tiny language model on Countdown with FADE and with GRPO, and write a report.

    Both start from the same checkpoint and the same random draws, and run side by side on one CPU
    thread each. Any other field of the recipe is a flag too, for both: --train.steps 100.
    """

    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder to write; runs/demo-TIME if not given."""


def main(argv: Sequence[str]) -> int:
    """Run the command; the path of the report is the last line."""
    recipe_flags, rest = split_recipe_flags(Recipe, argv)
    arguments = parse(Arguments, "demo", rest, Recipe)
    if any(flag.startswith("--weight") for flag in recipe_flags):
        raise UsageError(
            f"demo compares {' and '.join(WEIGHTS)} as they are; for another weight: "
            "gradmass train demo --weight NAME"
        )
    out = arguments.out or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    refuse_used(out)
    from gradmass.report.page import write_report

    recipes = {
        label: load_recipe(Recipe, "demo", [*flags, *recipe_flags])
        for label, flags in WEIGHTS.items()
    }
    processes = {
        label: subprocess.Popen(
            [
                *(sys.executable, "-m", "gradmass", "train", "demo", *flags, *recipe_flags),
                *("--json", "--out", str(out / label)),
            ],
            env=tied_to_this_process(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for label, flags in WEIGHTS.items()
    }
    errors: dict[str, str] = {}
    try:
        num_steps = recipes["fade"].train.steps
        with Progress(num_steps, SHOWN, labels=tuple(WEIGHTS)) as progress:
            _follow(processes, out, progress)
    except KeyboardInterrupt:
        pass  # Ctrl-C reaches the runs too; what became of them is told below
    finally:
        for label, process in processes.items():
            if process.poll() is None:
                process.terminate()
            _, errors[label] = process.communicate()
    for label, process in processes.items():
        if process.returncode not in (0, *INTERRUPTED):
            reason = (errors[label].strip().splitlines() or ["it was killed"])[-1]
            raise UsageError(f"the {label} run failed: {reason.removeprefix('gradmass: error: ')}")
    if any(process.returncode for process in processes.values()):
        for label, process in processes.items():
            if process.returncode and (out / label / "state.json").exists():
                again = f"gradmass train --resume --out {shlex.quote(str(out / label))}"
                print(f"{label} was interrupted; continue with: {again}", file=sys.stderr)
        return 130
    report = out / "report.html"
    write_report([Run(out / label) for label in WEIGHTS], report)
    print(report.resolve())
    return 0


def _follow(processes: dict[str, "subprocess.Popen[str]"], out: Path, progress: Progress) -> None:
    """Show the rows of every run as it writes them, until all have ended or one was stopped."""
    files: dict[str, IO[str]] = {}
    half_lines = dict.fromkeys(processes, "")
    is_over = False
    while not is_over:
        codes = [process.poll() for process in processes.values()]
        is_over = None not in codes or any(codes)
        for label in processes:
            file = out / label / "metrics.jsonl"
            if label not in files and file.exists():
                files[label] = file.open()
            if label in files:
                *lines, half_lines[label] = (half_lines[label] + files[label].read()).split("\n")
                for line in lines:
                    progress.show(json.loads(line), label)
        time.sleep(0.2)
    for opened in files.values():
        opened.close()
