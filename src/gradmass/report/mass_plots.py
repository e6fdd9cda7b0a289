"""The figure of gradient masses over the solve rate: Figure 2 of the paper for any weights."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from gradmass.report.arms import DASHES, Look, color_of
from gradmass.report.plots import LINE_IN, WIDTH_IN, styled, svg

PANEL_IN = 2.5


@dataclass(frozen=True)
class Curve:
    """The masses of one weight.

    Args:
        label: The weight's label.
        weight_name: Its registered name, which decides the colour.
        p: Solve rates.
        m_S: Positive mass at each.
        m_F: Negative mass at each.
    """

    label: str
    weight_name: str
    p: Sequence[float]
    m_S: Sequence[float]
    m_F: Sequence[float]


@styled()
def figure_of_masses(curves: Sequence[Curve]) -> Figure:
    """Positive mass on the left, negative on the right, on one scale."""
    seen: Counter[str] = Counter()
    looks = []
    for curve in curves:
        color = color_of(curve.weight_name)
        looks.append(Look(curve.label, color, DASHES[seen[color] % len(DASHES)]))
        seen[color] += 1
    columns = 1 if max(len(look.label) for look in looks) > 40 else 3
    legend_in = LINE_IN * math.ceil(len(looks) / columns) + 0.15
    figure = Figure(figsize=(WIDTH_IN, legend_in + PANEL_IN), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, title, name in zip(
        panels, ("Positive mass m_S", "Negative mass m_F"), ("m_S", "m_F"), strict=True
    ):
        for curve, look in zip(curves, looks, strict=True):
            panel.plot(curve.p, getattr(curve, name), label=look.label, **look.line)
        panel.set_title(title)
        panel.set_xlabel("solve rate p")
        panel.set_xlim(0, 1)
    if min(min(*curve.m_S, *curve.m_F) for curve in curves) >= 0:
        panels[0].set_ylim(bottom=0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=columns)
    return figure


def save(figure: Figure, file: Path) -> None:
    """Write the figure as its suffix says, ``.svg`` or ``.png``."""
    if file.suffix == ".svg":
        file.write_text(svg(figure), encoding="utf-8")
        return
    with styled():
        figure.savefig(file, dpi=200)
