"""``gradmass spectrum``: what changed between two checkpoints, and in how many directions?"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradmass.commands.arguments import check_plot, parse
from gradmass.commands.progress import BytesProgress
from gradmass.record import Run
from gradmass.types import UsageError

SHOWN = 20
"""Matrices in the table; the others are in --json."""


@dataclass(frozen=True)
class Arguments:
    """Compare two checkpoints matrix by matrix: does the update collapse to rank one?

    Both are folders in Hugging Face format, single files, run directories or shipped checkpoints;
    TUNED may be a LoRA adapter. r_1 is the share of a change's energy in its first direction, to be
    read beside its noise value. --keep-rank and --drop-rank write the model with only, or without,
    the first directions of its change: gradmass eval says whether they are the gain or the damage.
    """

    base: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="BASE")]
    """The model before."""
    tuned: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TUNED")]
    """The model after."""
    modules: Annotated[str | None, tyro.conf.arg(metavar="REGEX")] = None
    """Only tensors whose name matches somewhere; shares are then among those."""
    top: Annotated[int, tyro.conf.arg(metavar="INT")] = 8
    """Singular values of each matrix."""
    keep_rank: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Write BASE with the first INT directions of each change."""
    drop_rank: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Write TUNED without the first INT directions of each change."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR", aliases=("-o",))] = None
    """Folder of the model that is written."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Draw r_1 by layer, the spectra and the shares of energy: .svg or .png."""
    json: bool = False
    """Print JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parse(Arguments, "spectrum", argv)
    if arguments.top < 1:
        raise UsageError(f"--top must be at least 1, got {arguments.top}")
    check_plot(arguments.plot)
    part = _part(arguments)
    base, tuned = _resolve(arguments.base), _resolve(arguments.tuned)
    from gradmass.spectra.compare import Split, compare

    split = None
    if part is not None and arguments.out is not None:
        split = Split(*part, out=arguments.out)
    with BytesProgress() as progress:
        comparison = compare(
            base,
            tuned,
            modules=arguments.modules,
            top=arguments.top,
            split=split,
            progress=progress.show,
        )
    entry = comparison.entry()
    if arguments.plot is not None:
        from gradmass.report.mass_plots import save
        from gradmass.report.spectrum_plots import figure_of_spectra

        save(figure_of_spectra(entry), arguments.plot)
    if arguments.json:
        print(json.dumps(entry, allow_nan=False))
        return 0
    print_tables(entry)
    for written in (arguments.plot, arguments.out):
        if written is not None:
            print(f"\nwritten: {written}")
    return 0


def print_tables(entry: Mapping[str, Any]) -> None:
    """Print kinds of modules, then the matrices that changed most, then the notes."""
    console = Console()
    console.print(_modules_table(entry["modules"]))
    changed = [row for row in entry["matrices"] if row["energy_share"]]
    changed.sort(key=lambda row: -float(row["energy_share"]))
    console.print()
    console.print(_matrices_table(changed[:SHOWN]))
    if len(changed) > SHOWN:
        print(f"{len(changed) - SHOWN} more matrices changed less: see --json")
    print()
    for note in entry["notes"]:
        print(f"note: {note}")
    print(
        "r_1 near its noise value: no direction stands out. Far above it: one does, which is no\n"
        "collapse yet; --drop-rank 1 -o DIR, then gradmass eval DIR, say what it is worth."
    )


def _modules_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("module", "r_1", "noise", "rank", "energy", "params", "changed")
    for row in rows:
        rank = "" if row["stable_rank"] is None else f"{row['stable_rank']:.1f}"
        shares = (f"{row[key]:.1%}" for key in ("energy_share", "parameter_share"))
        table.add_row(_name(row), *_r_1(row), rank, *shares, f"{row['changed_fraction']:.1%}")
    return table


def _matrices_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("matrix", "shape", "r_1", "noise", "energy", "changed", "sigma 1, 2")
    for row in rows:
        shape = "x".join(map(str, row["shape"]))
        shares = (f"{row[key]:.1%}" for key in ("energy_share", "changed_fraction"))
        values = " ".join(f"{value:.2g}" for value in row["singular_values"][:2])
        table.add_row(_name(row), shape, *_r_1(row), *shares, values)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _name(row: Mapping[str, Any]) -> str:
    """Without what all names of a model share."""
    return escape(row["name"].removeprefix("model.").removesuffix(".weight"))


def _r_1(row: Mapping[str, Any]) -> tuple[str, str]:
    """r_1, or why there is none, and its noise value."""
    if row["r_1_noise"] is None:
        return "", ""
    if row["r_1"] is not None:
        return f"{row['r_1']:.4f}", f"{row['r_1_noise']:.4f}"
    return "cannot tell" if row["singular_values"] else "no change", f"{row['r_1_noise']:.4f}"


def _part(arguments: Arguments) -> tuple[Literal["keep", "drop"], int] | None:
    """Which part of the change to write, if any."""
    keep, drop = arguments.keep_rank, arguments.drop_rank
    if keep is not None and drop is not None:
        raise UsageError(f"--keep-rank {keep} and --drop-rank {drop} exclude each other")
    rank = drop if keep is None else keep
    if (rank is None) != (arguments.out is None):
        raise UsageError("--keep-rank INT or --drop-rank INT, and -o DIR, need each other")
    if rank is None:
        return None
    if rank < 1:
        raise UsageError(f"--{'drop' if keep is None else 'keep'}-rank is at least 1, got {rank}")
    return ("drop" if keep is None else "keep"), rank


def _resolve(path: str) -> Path:
    """A run's last checkpoint, a shipped checkpoint, or the path itself."""
    if (Path(path) / "state.json").exists():
        return Run(Path(path)).model_dir
    shipped = files("gradmass") / "checkpoints" / path
    return Path(str(shipped)) if shipped.is_dir() and not Path(path).exists() else Path(path)
