"""One self-contained HTML page about one or several runs: what they show, and what they cannot."""

import errno
import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gradmass.record import Run
from gradmass.report import diagnostics_plots, plots
from gradmass.report.evaluations import (
    KS,
    at_equal_pass_at_1,
    compare,
    compare_at_last_common_step,
    is_evaluation,
    pass_key,
    series,
    splits_of,
)
from gradmass.types import UsageError

FIGURES: dict[str, Callable[[Sequence[Run]], Any]] = {
    "accuracy": plots.accuracy,
    "tradeoff": plots.tradeoff,
    "groups": plots.groups,
    "entropy": plots.entropy,
    "masses": plots.masses,
    "rank": plots.rank,
    "optimisation": plots.optimisation,
    **diagnostics_plots.FIGURES,
}
SYMBOLS = {"right": "✓", "wrong": "✗", "unparsed": "?", "timeout": "…", "error": "!"}
SAMPLE_ROWS, MOST_CHARACTERS = 16, 800
MISSING = "–"
SVG = "http://www.w3.org/2000/svg"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def write_report(runs: Sequence[Run], out: Path) -> None:
    """Write a page that compares runs, or shows one; it needs nothing beside itself, no network.

    Runs may be unfinished, of different lengths and of different problems. Equal records give equal
    bytes. The page is written beside its place and renamed, so that a reader never sees half of it.

    Args:
        runs: The runs in the order they are listed. The others are compared with the first whose
            weight is ``grpo``, else with the first.
        out: The HTML file; its folder is made if need be.

    Raises:
        UsageError: No run, the same run twice, a record that cannot be read, or a file that cannot
            be written.
    """
    if not runs:
        raise UsageError("a report needs at least one run directory, got none")
    for path, times in Counter(run.path.resolve() for run in runs).items():
        if times > 1:
            raise UsageError(f"run {path} is given {times} times; name each run once")
    check_place(out)  # before the figures, so that a bad place costs no time
    replace_page(out, render(runs))


def check_place(out: Path) -> None:
    """Refuse a place where no page can be written, or where something else lies.

    Raises:
        UsageError: Its folder cannot be made, it is a folder, or another kind of file.
    """
    with _writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        is_page = not out.exists()
        if not is_page:
            with out.open("rb") as there:
                is_page = there.read(15).lower() == b"<!doctype html>"
    if not is_page:
        raise UsageError(f"{out} is there and no HTML page; name another file for the report")


def replace_page(out: Path, page: str) -> None:
    """Write a page beside its place and rename it, so that a reader never sees half of it.

    Raises:
        UsageError: It cannot be written.
    """
    draft = out.with_name(f".{out.name}.draft")
    with _writing(out):
        draft.write_text(page, encoding="utf-8")
        draft.replace(out)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write the report {out}: {error.strerror}; name another file"
        ) from error


@dataclass(frozen=True)
class Summary:
    """What the tables say of a run.

    Args:
        run: The run.
        look: Its label, colour and dash.
        last: Last row of its metrics.
        evaluated: Last row that holds an evaluation; empty if none does.
    """

    run: Run
    look: plots.Look
    last: dict[str, Any]
    evaluated: dict[str, Any]

    @property
    def status(self) -> str:
        """Running, interrupted, failed or finished; unknown before the first checkpoint."""
        try:
            return str(self.run.state["status"])
        except UsageError:
            return "unknown"

    @property
    def task_name(self) -> str:
        """Registered name of its task."""
        return str(self.run.config["recipe"]["task"]["type"])

    @property
    def model_name(self) -> str:
        """The fields that describe its model."""
        fields = flatten(self.run.config["recipe"].get("model", {}))
        return ", ".join(f"{key} = {value}" for key, value in fields.items())

    @property
    def planned_steps(self) -> int | None:
        """Steps its recipe asks for."""
        steps: int | None = self.run.config["recipe"].get("train", {}).get("steps")
        return steps

    @property
    def num_unscorable(self) -> int:
        """Rollouts that the verifier could not judge, over the whole run."""
        # A batch that several updates were made on has several rows, and one number of rollouts.
        batches = {row["rollouts"]: row.get("rollout/num_unscorable") for row in self.run.metrics}
        return sum(number or 0 for number in batches.values())

    def recent(self, key: str, window: int) -> float | None:
        """Mean of the last values of a key."""
        _, values = series(self.run, "step", key)
        return sum(values[-window:]) / len(values[-window:]) if values else None


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables as dotted keys with their values as JSON (strings bare).

    >>> flatten({"task": {"type": "countdown", "seed": 0}})
    {'task.type': 'countdown', 'task.seed': '0'}
    """
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return flat


def rows_by_key(tables: Iterable[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """A row for each dotted key that any table has, with the value of every table."""
    flat = [flatten(table) for table in tables]
    keys = dict.fromkeys(key for table in flat for key in table)
    return [(key, [table.get(key, MISSING) for table in flat]) for key in keys]


def differing_fields(recipes: Iterable[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """The rows of ``rows_by_key`` whose values are not all alike."""
    return [(key, values) for key, values in rows_by_key(recipes) if len(set(values)) > 1]


def sample_rollouts(run: Run) -> list[dict[str, Any]]:
    """The first rollouts of the first and of the last trained step, with the step's verdicts."""
    first: list[dict[str, Any]] = []
    last: list[dict[str, Any]] = []
    for row in run.rollouts():
        if last and last[0]["step"] != row["step"]:
            first = first or last
            last = []
        last.append(row)
    return [
        {
            "step": rows[0]["step"],
            "rows": rows[:SAMPLE_ROWS],
            "num_rollouts": len(rows),
            "verdicts": Counter(row["verdict"] for row in rows),
        }
        for rows in (first, last)
        if rows
    ]


def inline_svg(document: str, name: str) -> Markup:
    """An SVG document as two halves side by side, which a narrow page stacks.

    The second half shows the same drawing through another window, so nothing is there twice. Ids
    get the figure's name in front, because a page has one space of them; those that nothing refers
    to go, and coordinates keep two decimals (of a point).
    """
    root = ElementTree.fromstring(document)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', document))
    drawing = next(group for group in root if group.get("id") == "figure_1")
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            if key == "id" and value not in used and element is not drawing:
                del element.attrib[key]
            elif key == "id":
                element.set(key, f"{name}-{value}")
            elif key in ("d", "x", "y", "transform"):
                element.set(key, re.sub(r"-?\d+\.\d{3,}", _two_decimals, value))
            else:
                element.set(key, re.sub(r"(^|url\()#", rf"\g<1>#{name}-", value))
    _, _, width, height = (float(number) for number in root.attrib["viewBox"].split())
    inner = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    left = f'<svg viewBox="0 0 {width / 2:g} {height:g}" data-width="{width:g}">{inner}</svg>'
    right = f'<svg viewBox="{width / 2:g} 0 {width / 2:g} {height:g}">'
    return Markup(f'{left}{right}<use href="#{name}-figure_1"/></svg>')


def _two_decimals(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}"


def render(runs: Sequence[Run]) -> str:
    """The page as text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"signed": signed, "number": number, "plain": plain}
    items = [_summary(run, look) for run, look in zip(runs, plots.looks(runs), strict=True)]
    reference = next((item for item in items if item.run.weight_name == "grpo"), items[0])
    base = reference.run
    pairs = [
        (item, compare_at_last_common_step(item.run, base), _fields_beyond_weight(item.run, base))
        for item in items
        if item is not reference
    ]
    if len(items) == 1:
        pairs = [(reference, compare(base, base, reference.evaluated.get("step", 0), 0), [])]
    comparable = [reference, *(item for item, found, _ in pairs if not found.obstacle)]
    alike = [item for item in items if item in comparable]
    splits = splits_of(runs)
    samples = [(item, sample_rollouts(item.run)) for item in items]
    recipe = rows_by_key(run.config["recipe"] for run in runs)
    return environment.get_template("template.html.j2").render(
        items=items,
        reference=reference,
        pairs=pairs,
        alike=alike,
        equal={split: at_equal_pass_at_1([item.run for item in alike], split) for split in splits},
        recipe=recipe,
        differing=differing_fields(run.config["recipe"] for run in runs),
        environment=rows_by_key(run.env for run in runs),
        diagnostics=[
            (
                item,
                diagnostics_plots.warnings_of(item.run),
                diagnostics_plots.weights_judged(item.run),
            )
            for item in items
        ],
        samples=samples,
        shown_verdicts={
            row["verdict"] for _, steps in samples for step in steps for row in step["rows"]
        },
        figures={name: inline_svg(plots.svg(draw(runs)), name) for name, draw in FIGURES.items()},
        window=plots.smoothing_window(runs),
        splits=splits,
        keys={(split, k): pass_key(runs, split, k) for split in splits for k in KS},
        ks=KS,
        symbols=SYMBOLS,
        most_characters=MOST_CHARACTERS,
    )


def _fields_beyond_weight(*runs: Run) -> list[str]:
    fields = differing_fields(run.config["recipe"] for run in runs)
    return [key for key, _ in fields if not key.startswith("weight.")]


def _summary(run: Run, look: plots.Look) -> Summary:
    if not run.metrics:
        raise UsageError(f"run {run.path} has no row of metrics yet; report it once it has started")
    evaluated = [row for row in run.metrics if is_evaluation(row)]
    return Summary(run, look, run.metrics[-1], evaluated[-1] if evaluated else {})


def plain(value: float | None) -> str:
    """A share or difference with three decimals, a true minus sign and no leading zero.

    >>> plain(0.25), plain(-0.25), plain(1.0), plain(None)
    ('.250', '−.250', '1.000', '–')
    """
    if value is None:
        return MISSING
    digits = f"{abs(value):.3f}".removeprefix("0")
    return f"−{digits}" if value < 0 and digits != ".000" else digits


def signed(value: float) -> str:
    """Like ``plain``, with a plus sign on what is above 0.

    >>> signed(0.25), signed(-0.25), signed(0.0001)
    ('+.250', '−.250', '.000')
    """
    text = plain(value)
    return f"+{text}" if value > 0 and text != ".000" else text


def number(value: float | None) -> str:
    """A number with three digits.

    >>> number(0.12345), number(2.0), number(None)
    ('0.123', '2.00', '–')
    """
    return MISSING if value is None else f"{value:#.3g}"
