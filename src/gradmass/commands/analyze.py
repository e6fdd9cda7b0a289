"""``gradmass analyze``: where does the gradient of this run go, by its rollouts alone?"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gradmass.commands.analyze_tables import page_sections, print_document
from gradmass.commands.arguments import parse
from gradmass.commands.masses import read_weight
from gradmass.commands.progress import RowsProgress
from gradmass.types import UsageError

if TYPE_CHECKING:
    from gradmass.logs import Roles

COMPARED = ("grpo", "grpo_std", "power:alpha=2", "fade")
"""Weights that are compared if none is named."""


@dataclass(frozen=True)
class Arguments:
    """Say where the gradient of a run goes, from its rollout logs.

    gradmass analyze RUN/completions -o report.html. Reads TRL's completions (log_completions=True),
    verl's rollout_data_dir, plain rows in JSON Lines or Parquet, and this package's runs. A weight
    is named as in gradmass masses.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH ...")]
    """Files or folders of one run."""
    format: Literal["auto", "trl", "verl", "jsonl", "parquet"] = "auto"
    """What the files are; told by their columns if not given."""
    weight: str | None = None
    """Weight in use; what was logged if not given."""
    compare: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WEIGHT ...")] = COMPARED
    """Other weights, on the same rollouts."""
    reward: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN[=FACTOR] ...")] = ()
    """Columns of rewards, summed with their factors (1 if not given)."""
    success: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column of verdicts: true and false, 1 and 0, or right, wrong, unparsed, timeout, error."""
    threshold: float | None = None
    """Rewards of at least this count as right."""
    group: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column that the rollouts of one draw of a prompt share."""
    group_size: int | None = None
    """Rollouts of a group where only consecutive rows tell groups apart (TRL)."""
    problem: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column that identifies a problem, such as its prompt."""
    step: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column of the training step."""
    completion: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column of the answers."""
    length: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column of the answers' lengths in tokens."""
    logprobs: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column of log-probabilities of the answers' tokens: lists, or their sums."""
    entropy: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column of mean token entropies in nats."""
    advantage: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column of the weights that the trainer used."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", aliases=("-o",))] = None
    """Write a self-contained HTML page too."""
    json: bool = False
    """Print JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parse(Arguments, "analyze", argv)
    if not arguments.paths:
        raise UsageError("analyze needs a log: a file, or the folder that a trainer wrote")
    in_use = None if arguments.weight is None else read_weight(arguments.weight)
    compared = [read_weight(spec) for spec in arguments.compare]
    if arguments.group_size is not None and arguments.group_size < 1:
        raise UsageError(f"--group-size is at least 1, got {arguments.group_size}")
    if arguments.threshold is not None and not math.isfinite(arguments.threshold):
        raise UsageError(f"--threshold is a finite number, got {arguments.threshold}")
    roles = read_roles(arguments)
    from gradmass.logs import analyse, read_log

    if arguments.out is not None:
        from gradmass.report.writing import check_place

        check_place(arguments.out, "report")  # before anything is read
    with RowsProgress() as progress:
        log = read_log(
            arguments.paths,
            arguments.format,
            roles,
            threshold=arguments.threshold,
            group_size=arguments.group_size,
            on_batch=lambda batch: progress.show(batch.file.name, batch.num_rows),
        )
        progress.doing("computing")
        document = analyse(log, in_use, compared)
    if arguments.out is not None:
        from gradmass.report.log_page import write_log_page

        write_log_page(document, page_sections(document), arguments.out)
    if arguments.json:
        print(json.dumps(document, allow_nan=False))
    else:
        print_document(document)
        if arguments.out is not None:
            print(arguments.out)
    return 0


def read_roles(arguments: Arguments) -> "Roles":
    """The columns that flags name."""
    from gradmass.logs import Roles

    rewards: dict[str, float] = {}
    for text in arguments.reward:
        head, has_factor, tail = text.rpartition("=")
        name, factor = (head, tail) if has_factor else (text, "1")
        try:
            value = float(factor)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value == 0:
            raise UsageError(
                f"--reward is COLUMN or COLUMN=FACTOR with a finite number but 0, got {text!r}"
            )
        if name in rewards:
            raise UsageError(f"--reward names column {name!r} twice")
        rewards[name] = value
    return Roles(
        step=arguments.step,
        group=arguments.group,
        problem=arguments.problem,
        completion=arguments.completion,
        rewards=rewards,
        success=arguments.success,
        advantage=arguments.advantage,
        length=arguments.length,
        logprobs=arguments.logprobs,
        entropy=arguments.entropy,
    )
