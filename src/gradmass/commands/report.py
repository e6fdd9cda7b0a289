"""``gradmass report``: what happened in these runs, on one page?"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gradmass.commands.arguments import parse
from gradmass.record import Run


@dataclass(frozen=True)
class Arguments:
    """Write one self-contained HTML page about one run or several side by side."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    """Run directories."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE", aliases=("-o",))] = Path("report.html")
    """The page; an existing one is replaced."""
    json: bool = False
    """Print the path as JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parse(Arguments, "report", argv)
    from gradmass.report.page import write_report

    write_report([Run(path) for path in arguments.runs], arguments.out)
    print(json.dumps({"report": str(arguments.out)}) if arguments.json else arguments.out)
    return 0
