"""The figure of a comparison of checkpoints: r_1 by layer, spectra, and shares of the energy."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gradmass.report.plots import FAINT, INK, LINE_IN, WIDTH_IN, Axes, styled

COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7f7f7f",
    "#8c564b",
    "#b8a800",
)
MARKERS = "os^Dv"
PANEL_IN = 2.6


@styled()
def figure_of_spectra(comparison: Mapping[str, Any]) -> Figure:
    """Draw what ``gradmass spectrum --json`` prints: what is shown is in there, number by number.

    Left r_1 of each matrix over its layer, with its noise value (dashed); matrices outside the
    layers stand at the end, and where bf16 hides r_1 there is no mark. Middle the share of each
    direction in the energy of a kind of module. Right the share of each kind in the energy of the
    change, beside its share of the parameters.
    """
    modules = [row for row in comparison["modules"] if row["singular_values"]]
    modules.sort(key=lambda row: -float(row["energy_share"]))
    looks = {
        row["name"]: {
            "color": COLORS[i % len(COLORS)],
            "marker": MARKERS[i // len(COLORS) % len(MARKERS)],
        }
        for i, row in enumerate(modules)
    }
    legend_in = LINE_IN * math.ceil(len(modules) / 3) + 0.15
    figure = Figure(figsize=(WIDTH_IN, PANEL_IN + legend_in), layout="constrained")
    by_layer, spectra, shares = figure.subplots(1, 3, width_ratios=(1.2, 1, 1))
    _draw_layers(by_layer, comparison["matrices"], looks)
    _draw_spectra(spectra, modules, looks)
    _draw_shares(shares, modules, looks)
    handles, labels = spectra.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3)
    return figure


def _draw_layers(
    panel: Axes, matrices: Sequence[Mapping[str, Any]], looks: Mapping[str, Any]
) -> None:
    layers = [number for row in matrices if (number := _layer(row["name"])) is not None]
    after = max(layers, default=-1) + 1
    for module, look in looks.items():
        rows = [row for row in matrices if _module(row["name"]) == module]
        places = [after if (layer := _layer(row["name"])) is None else layer for row in rows]
        told = [
            (x, row["r_1"]) for x, row in zip(places, rows, strict=True) if row["r_1"] is not None
        ]
        if told:
            panel.plot(*zip(*told, strict=True), **look, markersize=3, linewidth=0.8)
        noise = [row["r_1_noise"] for row in rows]
        line = {"linestyle": "--", "linewidth": 0.6} if len(rows) > 1 else {"marker": "_"}
        panel.plot(places, noise, color=look["color"], alpha=0.6, **line)
    panel.set_yscale("log")
    panel.set_ylim(top=1.3)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_title("r$_1$ of each matrix (dashed: of noise)")
    panel.set_xlabel(f"layer ({after}: outside the layers)" if layers else "")


def _draw_spectra(
    panel: Axes, modules: Sequence[Mapping[str, Any]], looks: Mapping[str, Any]
) -> None:
    for row in modules:
        # r_1 is None where rounding hides it; its spectrum is as little to be trusted.
        if row["r_1"] is None:
            label = f"{row['name']} (cannot tell)"
            panel.plot([], [], label=label, **looks[row["name"]], markersize=3)
            continue
        first = row["singular_values"][0]
        shares = [row["r_1"] * (value / first) ** 2 for value in row["singular_values"]]
        panel.plot(
            range(1, len(shares) + 1), shares, label=row["name"], **looks[row["name"]], markersize=3
        )
    panel.set_yscale("log")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_title("Energy by direction")
    panel.set_xlabel("direction")


def _draw_shares(
    panel: Axes, modules: Sequence[Mapping[str, Any]], looks: Mapping[str, Any]
) -> None:
    places = list(range(len(modules)))[::-1]
    energies = [row["energy_share"] for row in modules]
    parameters = [row["parameter_share"] for row in modules]
    panel.barh(places, energies, color=[looks[row["name"]]["color"] for row in modules], height=0.7)
    panel.plot(parameters, places, "|", color=INK, markersize=8, markeredgewidth=1.2)
    panel.set_yticks([])
    panel.set_xlim(left=0)
    panel.grid(axis="y", visible=False)
    panel.set_title("Energy (bar), parameters (line)")
    panel.set_xlabel("share")
    panel.axvline(0, color=FAINT, linewidth=0.6)


def _layer(name: str) -> int | None:
    found = re.search(r"\.(\d+)\.", name)
    return None if found is None else int(found[1])


def _module(name: str) -> str:
    return re.sub(r"(?<=[.\[])\d+(?=[.\]]|$)", "*", name).removesuffix(".weight")
