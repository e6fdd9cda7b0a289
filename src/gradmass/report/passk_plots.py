"""The figure of pass@k over k for several models, with bands: as Figure 1 of the paper."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, ScalarFormatter

from gradmass.metrics.estimates import PassAtK
from gradmass.report.arms import COLORS, DASHES, OTHER_COLORS, Look
from gradmass.report.plots import FAINT, LINE_IN, styled
from gradmass.types import UsageError

WIDTH_IN, PANEL_IN = 4.6, 2.7
PALETTE = (*COLORS.values(), *OTHER_COLORS)
MOST_TICKS = 9
MEANING = {
    "problems-like-these": "another set of such problems",
    "these-problems": "these very problems, sampled again",
}


@dataclass(frozen=True)
class Curve:
    """pass@k of one model.

    Args:
        label: What the legend says.
        estimates: In order of k.
    """

    label: str
    estimates: Sequence[PassAtK]


@styled()
def figure_of_pass_at_k(curves: Sequence[Curve]) -> Figure:
    """A line with its band for each model, k on a logarithmic axis.

    Raises:
        UsageError: More models than there are colours.
    """
    if len(curves) > len(PALETTE):
        raise UsageError(f"a figure shows up to {len(PALETTE)} models, got {len(curves)}")
    columns = 1 if max(len(curve.label) for curve in curves) > 22 else 2
    legend_in = LINE_IN * (math.ceil(len(curves) / columns) + 1) + 0.2
    colors = _colors([curve.label for curve in curves])
    figure = Figure(figsize=(WIDTH_IN, legend_in + PANEL_IN), layout="constrained")
    panel = figure.subplots()
    for i, curve in enumerate(curves):
        look = Look(curve.label, colors[i], DASHES[i % len(DASHES)])
        ks = [estimate.k for estimate in curve.estimates]
        low, high = ([getattr(e, end) for e in curve.estimates] for end in ("low", "high"))
        panel.fill_between(ks, low, high, color=look.color, alpha=0.15, linewidth=0)
        if len(ks) == 1:  # a band of one k has no width
            panel.vlines(ks, low, high, color=look.color, alpha=0.5)
        values = [estimate.value for estimate in curve.estimates]
        panel.plot(ks, values, marker="o", markersize=2.5, label=look.label, **look.line)
    first = curves[0].estimates[0]
    panel.set_xscale("log")
    ticks = sorted({estimate.k for curve in curves for estimate in curve.estimates})
    panel.xaxis.set_major_locator(FixedLocator(ticks[:: math.ceil(len(ticks) / MOST_TICKS)]))
    panel.xaxis.set_major_formatter(ScalarFormatter())
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel("k")
    panel.set_title("pass@k")
    if min(e.low for curve in curves for e in curve.estimates) < 0.25:
        panel.set_ylim(bottom=0)
    figure.legend(loc="outside upper left", ncols=columns)
    figure.supxlabel(
        f"Band: {first.level:.0%} interval for {MEANING[first.interval]}",
        fontsize="small",
        color=FAINT,
        x=0.01,
        ha="left",
    )
    return figure


def _colors(labels: Sequence[str]) -> list[str]:
    """A colour for each label: a weight's own where a label is its name, else one not yet used."""
    own = [COLORS.get(label.split(" ")[0]) for label in labels]
    free = iter(color for color in PALETTE if color not in own)
    found: list[str] = []
    for color in own:
        found.append(color if color is not None and color not in found else next(free))
    return found
