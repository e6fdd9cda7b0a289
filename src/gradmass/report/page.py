"""One self-contained HTML page about one or several runs: what they show, and what they cannot."""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gradmass.metrics.passk import KS
from gradmass.metrics.seeds import Interval
from gradmass.record import Run
from gradmass.report import diagnostics_plots, plots
from gradmass.report.arms import Arm, arms_of, interval_over_seeds
from gradmass.report.evaluations import (
    Comparison,
    at_equal_pass_at_1,
    compare,
    compare_at_last_common_step,
    pass_key,
    splits_of,
)
from gradmass.report.own_masses import ends_of, obstacles, own_masses
from gradmass.report.sample import (
    MAX_BYTES,
    MAX_STEPS,
    MOST_CHARACTERS,
    ROWS_A_STEP,
    packed,
    read_sample,
)
from gradmass.report.seeds import SeedComparison, compare_over_seeds, compare_with_start
from gradmass.report.summaries import (
    MISSING,
    Summary,
    differing,
    named_runs,
    recipe_of,
    rows_by_key,
    summary_of,
)
from gradmass.report.writing import write_page
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
SVG = "http://www.w3.org/2000/svg"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def write_report(runs: Sequence[Run], out: Path, *, reload_s: float | None = None) -> None:
    """Write a page that compares runs, or shows one; it needs nothing beside itself, no network.

    Runs may be unfinished, of different lengths and of different problems. Runs that differ in
    their seed alone are one arm: one row, one curve with a band. Equal records give equal bytes.
    The page is written beside its place and renamed, so that a reader never sees half of it.

    Args:
        runs: The runs in the order they are listed. The other arms are compared with the first
            whose weight is ``grpo``, else with the first.
        out: The HTML file; its folder is made if need be.
        reload_s: Seconds after which an open page reloads itself, for runs that go on; None: never.

    Raises:
        UsageError: No run, the same run twice, a record that cannot be read, or a file that cannot
            be written.
    """
    if not runs:
        raise UsageError("a report needs at least one run directory, got none")
    for path, times in Counter(run.path.resolve() for run in runs).items():
        if times > 1:
            raise UsageError(f"run {path} is given {times} times; name each run once")
    write_page(out, lambda: render(runs, reload_s), "report")


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


def render(runs: Sequence[Run], reload_s: float | None = None) -> str:
    """The page as text; see ``write_report``."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"signed": signed, "number": number, "plain": plain}
    arms = arms_of(runs)
    items = [summary_of(arm) for arm in arms]
    reference = next((i for i in items if i.arm.runs[0].weight_name == "grpo"), items[0])
    pairs = [(item, *_compared(item.arm, reference.arm)) for item in items if item is not reference]
    if len(items) == 1:
        pairs = [(reference, _from_start(reference), [])]
    comparable = [reference, *(item for item, found, _ in pairs if not found.obstacle)]
    alike = [item for item in items if item in comparable]
    splits = splits_of(runs)
    recipe = rows_by_key(arms, recipe_of)
    named = named_runs(runs)
    samples = {id(one): read_sample(one.run) for one in named}
    ends = [
        ends_of(arm, [samples[id(one)] for one in named if one.run in arm.runs]) for arm in arms
    ]
    figures = {name: draw(runs) for name, draw in FIGURES.items()}
    figures["own-masses"] = own_masses(arms, ends)
    return environment.get_template("template.html.j2").render(
        reload_s=reload_s,
        items=items,
        named=named,
        has_seeds=any(arm.has_seeds for arm in arms),
        reference=reference,
        pairs=pairs,
        alike=alike,
        equal={split: _at_equal_pass_at_1(alike, split) for split in splits},
        recipe=recipe,
        differing=differing(recipe),
        environment=rows_by_key(arms, lambda run: run.env),
        warnings=[(one, diagnostics_plots.warnings_of(one.run)) for one in named],
        judged=[
            (one, diagnostics_plots.weights_judged(one.run))
            for one in named
            if one.run in [arm.runs[0] for arm in arms]
        ],
        without_masses=obstacles(arms, ends),
        rollouts=Markup(packed([one.look.label for one in named], list(samples.values()))),
        bounds={
            "steps": MAX_STEPS,
            "rows": ROWS_A_STEP,
            "characters": MOST_CHARACTERS,
            "bytes": MAX_BYTES,
        },
        figures={name: inline_svg(plots.svg(drawn), name) for name, drawn in figures.items()},
        window=plots.smoothing_window(runs),
        splits=splits,
        keys={(split, k): pass_key(runs, split, k) for split in splits for k in KS},
        ks=KS,
    )


def _compared(arm: Arm, other: Arm) -> tuple[Comparison | SeedComparison, list[str]]:
    """An arm against another, and the fields beyond the weight in which they differ too."""
    rows = differing(rows_by_key([arm, other], recipe_of))
    beyond = [key for key, _ in rows if not key.startswith("weight.")]
    if arm.has_seeds or other.has_seeds:
        # Seeds that only one arm has are said by the number of pairs.
        beyond = [key for key in beyond if key != "seed"]
        return compare_over_seeds(arm, other), beyond
    return compare_at_last_common_step(arm.runs[0], other.runs[0]), beyond


def _from_start(item: Summary) -> Comparison | SeedComparison:
    if item.arm.has_seeds:
        return compare_with_start(item.arm)
    (run,) = item.arm.runs
    return compare(run, run, item.evaluated_step or 0, 0)


def _at_equal_pass_at_1(
    items: Sequence[Summary], split: str
) -> tuple[float | None, list[Interval | None]]:
    """The highest pass@1 that every run reached, and the pass@100 of each arm there."""
    runs = [run for item in items for run in item.arm.runs]
    level, values = at_equal_pass_at_1(runs, split)
    rest = iter(values)
    by_arm = [[next(rest) for _ in item.arm.runs] for item in items]
    return level, [interval_over_seeds(values) for values in by_arm]


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
