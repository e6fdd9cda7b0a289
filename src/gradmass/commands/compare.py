"""``gradmass compare``: does one model pass more than another on the same problems?"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from gradmass.commands.arguments import parse
from gradmass.commands.measured import Model, check_interval, checked_ks, load_all
from gradmass.commands.passk import MEANING
from gradmass.metrics.estimates import (
    Exact,
    Interval,
    PairedPassAtK,
    compare_pass_at_k,
)
from gradmass.record import Run
from gradmass.types import UsageError


@dataclass(frozen=True)
class Arguments:
    """Compare pass@k of two models on the same problems, paired, with 95% intervals.

    A and B are what gradmass passk reads: files of judged samples, folders written by gradmass
    eval, run directories. The numbers of samples may differ, the problems may not.
    """

    a: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="A")]
    """Judged samples of the first model."""
    b: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="B")]
    """Judged samples of the second."""
    k: Annotated[tuple[str, ...], tyro.conf.arg(metavar="K [K ...]")] = ()
    """Numbers of tries; if not given, powers of two up to the fewest samples of a problem."""
    interval: Interval = "problems-like-these"
    """What the interval is for: another set of such problems, or these very ones sampled again."""
    score: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Which verdict to count where a file has several, as in gradmass passk."""
    threshold: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Graded scores of at least this count as right."""
    json: bool = False
    """Print JSON: an object, or a list of them for several splits."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parse(Arguments, "compare", argv)
    ours, theirs = load_all([arguments.a, arguments.b], arguments.score, arguments.threshold)
    if isinstance(ours[0].measured, Exact) and isinstance(theirs[0].measured, Exact):
        _check_same_task(arguments.a, arguments.b)
    pairs = _pairs(ours, theirs)
    found = []
    for a, b in pairs:
        check_interval([a, b], arguments.interval)
        ks = checked_ks([a, b], arguments.k)
        paired = compare_pass_at_k(a.measured, b.measured, ks, interval=arguments.interval)
        found.append((a, b, paired))
    if arguments.json:
        entries = [_entry(*comparison) for comparison in found]
        print(json.dumps(entries[0] if len(entries) == 1 else entries, allow_nan=False))
    else:
        print_comparisons(found, arguments.interval)
    return 0


def _pairs(ours: Sequence[Model], theirs: Sequence[Model]) -> list[tuple[Model, Model]]:
    """The models of both sides by their part, on the problems that both could score."""
    parts_a, parts_b = [model.part for model in ours], [model.part for model in theirs]
    if sorted(parts_a) != sorted(parts_b) and not len(ours) == len(theirs) == 1:
        raise UsageError(
            f"{ours[0].source} has {', '.join(parts_a) or 'no part'}, {theirs[0].source} has "
            f"{', '.join(parts_b) or 'no part'}: only the same parts can be compared"
        )
    if len(ours) == 1:
        return [_same_problems(ours[0], theirs[0])]
    by_part = {model.part: model for model in theirs}
    return [_same_problems(model, by_part[model.part]) for model in ours]


def _check_same_task(first: Path, second: Path) -> None:
    """Refuse two runs of different tasks: an id names a problem within its task alone."""
    a, b = (Run(path).config["recipe"]["task"] for path in (first, second))
    if a != b:
        key = next(key for key in {**a, **b} if a.get(key) != b.get(key))
        raise UsageError(
            f"{first} and {second} were evaluated on different problems: task.{key} is "
            f"{a.get(key)!r} and {b.get(key)!r}"
        )


def _same_problems(a: Model, b: Model) -> tuple[Model, Model]:
    """Both models on the same problems in one order.

    Raises:
        UsageError: A problem that only one of them was asked.
    """
    for mine, other in ((a, b), (b, a)):
        known = {*other.problem_ids, *other.unscored_ids}
        extra = [name for name in (*mine.problem_ids, *mine.unscored_ids) if name not in known]
        if extra:
            raise UsageError(
                f"{mine.place_of(extra[0])}: problem {extra[0]!r} is not in {other.source}; "
                f"{len(extra)} of {len(mine.problem_ids) + len(mine.unscored_ids)} problems are in "
                "only this one, and a comparison needs the same problems on both sides"
            )
    shared = sorted({*a.problem_ids} & {*b.problem_ids})
    if not shared:
        raise UsageError(f"{a.source} and {b.source} have no problem that both could score")
    return a.on(shared), b.on(shared)


def _entry(a: Model, b: Model, paired: Sequence[PairedPassAtK]) -> dict[str, Any]:
    """Plain JSON."""
    return {
        "a": {"label": a.label, "source": str(a.source), **_rests_on(a)},
        "b": {"label": b.label, "source": str(b.source), **_rests_on(b)},
        "part": a.part,
        "level": paired[0].level,
        "num_problems": paired[0].num_problems,
        "num_problems_left_out": len({*a.unscored_ids, *b.unscored_ids}),
        "differences": [
            {
                "k": found.k,
                "a": found.a,
                "b": found.b,
                "difference": found.difference,
                "low": found.low,
                "high": found.high,
                "interval": found.interval,
                "is_decided": found.is_decided,
                "num_problems_needed": found.num_problems_needed,
            }
            for found in paired
        ],
    }


def _rests_on(model: Model) -> dict[str, Any]:
    return {
        "samples_per_problem": model.measured.num_samples_range,
        "num_unscorable": model.measured.num_unscorable,
        "note": model.note,
    }


def print_comparisons(
    found: Sequence[tuple[Model, Model, Sequence[PairedPassAtK]]], interval: Interval
) -> None:
    """Print a table for each pair."""
    console = Console()
    if not console.is_terminal:
        console.width = 120
    for a, b, paired in found:
        for letter, model in (("A", a), ("B", b)):
            text = f"{letter}: {model.label}, {model.what}"
            console.print(text, markup=False, highlight=False)
        headers = ["k", "A", "B", "A - B", "95% interval", ""]
        if interval == "problems-like-these":
            headers.append("problems needed")
        table = Table(*headers, box=None)
        for row in paired:
            verdict = "not told apart"
            if row.is_decided:
                verdict = "A passes more" if row.difference > 0 else "B passes more"
            needed = "-" if row.num_problems_needed is None else f"{row.num_problems_needed:,}"
            table.add_row(
                str(row.k),
                f"{row.a:.3f}",
                f"{row.b:.3f}",
                f"{row.difference:+.3f}",
                f"[{row.low:+.3f}, {row.high:+.3f}]",
                verdict,
                *[needed] * (interval == "problems-like-these"),
            )
        console.print(table, highlight=False, markup=False)
        console.print()
    console.print(f"95% interval of A - B for {MEANING[interval]}.", highlight=False)
    if interval == "problems-like-these":
        text = (
            "Problems needed: so many like these would tell A from B four times in five, if the "
            "true difference and scatter are those seen; where A and B are not told apart, more "
            "than there are now."
        )
        console.print(text, highlight=False)
