"""``gradmass weights``: which policy weights are there, and what is each?"""

import dataclasses
import inspect
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradmass.commands.arguments import parse
from gradmass.commands.chart import side_by_side
from gradmass.masses import BetaPrior, masses_of
from gradmass.masses.canonical import Canonical
from gradmass.tables import field_docs, from_spec, split_spec
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

CHART_WIDTH, CHART_HEIGHT = 36, 5
"""Characters and lines of each panel."""


@dataclass(frozen=True)
class Arguments:
    """List the policy weights, or show one with its formula, fields and source."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    """A registered weight, or path/to/file.py:Name; with NAME:field=value for its chart."""
    json: bool = False
    """Print JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parse(Arguments, "weights", argv)
    names = WEIGHTS.names() if arguments.name is None else [split_spec(arguments.name)[0]]
    entries = [describe(WEIGHTS[name]) for name in names]
    if arguments.json:
        print(json.dumps(entries if arguments.name is None else entries[0]))
    elif arguments.name is None:
        table = Table("weight", "depends on its", "what it does", box=None)
        for entry in entries:
            table.add_row(entry["name"], entry["scope"], escape(entry["summary"]))
        Console().print(table)
        print("\ngradmass weights NAME shows the formula, the fields and the source.")
    else:
        print(_card(entries[0]))
        chart = _chart(arguments.name, entries[0])
        if chart:
            print("\n" + textwrap.indent(chart, "  "))
    return 0


def describe(cls: type[Weight]) -> dict[str, Any]:
    """Everything the class says of itself, as plain JSON."""
    doc = inspect.getdoc(cls) or ""
    docs = field_docs(cls)
    return {
        "name": cls.name,
        "summary": " ".join(doc.partition("\n\n")[0].split()),
        "description": doc.partition("\n\n>>>")[0],
        "scope": cls.scope,
        "domain": cls.domain,
        "on_ties": cls.on_ties,
        "zero_sum": cls.zero_sum,
        "needs_group": cls.needs_group,
        "fields": [
            {
                "name": f.name,
                "default": _plain(f.default),
                "is_required": f.default is dataclasses.MISSING,
                "meaning": docs.get(f.name, ""),
            }
            for f in dataclasses.fields(cls)
        ],
    }


def _plain(default: Any) -> Any:
    """A field's default as JSON: of an inner weight its label, None where there is none."""
    if default is dataclasses.MISSING:
        return None
    return default.label if isinstance(default, Weight) else default


def _card(entry: dict[str, Any]) -> str:
    lines = [entry["name"], "", textwrap.indent(entry["description"], "  "), ""]
    for f in entry["fields"]:
        default = "required" if f["is_required"] else f"default {f['default']}"
        lines += textwrap.wrap(
            f"--weight.{f['name'].replace('_', '-')} ({default}): {f['meaning']}",
            width=96,
            initial_indent="  ",
            subsequent_indent="      ",
        )
    return "\n".join(lines).rstrip()


def _chart(spec: str, entry: dict[str, Any]) -> str:
    """Gradient masses over the solve rate; nothing where fields without default are not given."""
    if spec == entry["name"] and any(f["is_required"] for f in entry["fields"]):
        return ""
    try:
        weight = from_spec(Weight, spec)  # type: ignore[type-abstract]
        group_size, prior = max(8, weight.min_group_size), BetaPrior()
        masses = masses_of(weight, np.arange(1, 50) / 50, group_size, prior=prior)
    except UsageError as error:
        return f"no chart of its masses: {error}"
    if not masses.total_N.any():
        return "its masses are 0 in its initial state: gradmass masses takes another by --state"
    notes = [f"groups of {group_size}"]
    if not Canonical(weight).is_by_group:
        notes.append("among problems of uniform solve rates")
    if weight.init():
        notes.append("initial state")
    report = weight.report(weight.init())
    notes += [f"{key} {report[key]:g}" for key in ("alpha", "delta") if key in report]
    head = f"gradient masses of {weight.label} ({', '.join(notes)}):"
    lines = side_by_side(
        masses.m_S_N.tolist(),
        masses.m_F_N.tolist(),
        titles=("m_S", "m_F"),
        width=CHART_WIDTH,
        height=CHART_HEIGHT,
    )
    return "\n".join([*textwrap.wrap(head, width=96), *lines])
