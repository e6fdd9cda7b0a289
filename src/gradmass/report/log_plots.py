"""Figures of a rollout log, from the document of ``gradmass analyze``; two panels each."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from gradmass.report.arms import DASHES, Look, color_of
from gradmass.report.plots import INK, LINE_IN, WIDTH_IN, styled

PANEL_IN = 2.3
HARD, MIXED, EASY = "#d55e00", "#0072b2", "#009e73"
Document = dict[str, Any]


@styled()
def signal(document: Document) -> Figure:
    """Solve rate over time, and the shares of groups with and without signal."""
    figure, (left, right) = _canvas(3)
    middle = _middles(document)
    rates = [row["mean"] for row in document["solve_rates"]["by_window"]]
    left.plot(middle, rates, color=INK, marker="o", markersize=2.5)
    left.set_title("Share of right answers")
    groups = document["groups"]["by_window"]
    for key, label, color, dash in (
        ("mixed", "mixed: signal", MIXED, DASHES[0]),
        ("too_hard", "all wrong: too hard", HARD, DASHES[1]),
        ("too_easy", "all right: too easy", EASY, DASHES[2]),
    ):
        look = Look(label, color, dash)
        right.plot(
            middle,
            [row[key] for row in groups],
            label=label,
            marker="o",
            markersize=2.5,
            **look.line,
        )
    right.set_title("Share of groups")
    for panel in (left, right):
        panel.set_ylim(0, 1)
        panel.set_xlabel("step")
    return _finished(figure, (left, right), with_legend=right)


@styled()
def solve_rates(document: Document) -> Figure:
    """Solve rates of the groups in the first and the last part of the run."""
    figure, panels = _canvas(0)
    rates = document["solve_rates"]
    windows = document["log"]["windows"]
    chosen = (0, len(windows) - 1)
    for panel, window in zip(panels, chosen, strict=True):
        row = rates["by_window"][window]
        counts = [row["all_wrong"], *row["mixed"], row["all_right"]]
        total = sum(counts) or 1
        colors = [HARD, *[MIXED] * len(row["mixed"]), EASY]
        panel.bar(range(len(counts)), [count / total for count in counts], color=colors, width=0.85)
        first, last = windows[window]
        panel.set_title(f"Groups of steps {first} to {last}" if last > first else f"Step {first}")
        if rates["mixed_by"] == "tenths":
            panel.set_xlabel("all wrong, tenths in between, all right")
            panel.set_xticks([0, len(counts) - 1], ["all wrong", "all right"])
        else:
            panel.set_xlabel(f"right answers of {len(counts) - 1}")
    return _finished(figure, panels)


@styled()
def masses(document: Document) -> Figure:
    """Where each weight puts its masses: by the solve rate of the group."""
    entries = [entry for entry in document["weights"] if "m_S" in entry]
    looks = _looks(entries)
    figure, panels = _canvas(len(entries))
    sides = ("positive_by_solve_rate", "negative_by_solve_rate")
    titles = ("Positive mass m_S", "Negative mass m_F")
    for panel, side, title in zip(panels, sides, titles, strict=True):
        for entry, look in zip(entries, looks, strict=True):
            x = [i / len(entry[side]) for i in range(len(entry[side]))]
            panel.plot(x, entry[side], label=look.label, marker="o", markersize=2.5, **look.line)
        panel.set_title(title)
        panel.set_xlabel("solve rate of the group")
        panel.set_xlim(0, 1)
    return _finished(figure, panels, with_legend=panels[0])


@styled()
def over_time(document: Document) -> Figure:
    """Both masses over time."""
    entries = [entry for entry in document["weights"] if "m_S" in entry]
    looks = _looks(entries)
    figure, panels = _canvas(len(entries))
    pairs = (("m_S", "Positive mass m_S"), ("m_F", "Negative mass m_F"))
    for panel, (key, title) in zip(panels, pairs, strict=True):
        for entry, look in zip(entries, looks, strict=True):
            values = [row[key] for row in entry["by_window"]]
            panel.plot(
                _middles(document),
                values,
                label=look.label,
                marker="o",
                markersize=2.5,
                **look.line,
            )
        panel.set_title(title)
        panel.set_xlabel("step")
    return _finished(figure, panels, with_legend=panels[0])


def _has_verdicts(document: Document) -> bool:
    return document["solve_rates"] is not None


def _has_masses(document: Document) -> bool:
    return any("m_S" in entry for entry in document["weights"])


FIGURES: dict[str, tuple[Callable[[Document], Figure], Callable[[Document], bool]]] = {
    "signal": (signal, _has_verdicts),
    "solve_rates": (solve_rates, _has_verdicts),
    "masses": (masses, _has_masses),
    "over_time": (over_time, _has_masses),
}
"""Each figure, and whether a document has what it shows."""


def _canvas(num_labels: int) -> tuple[Figure, Sequence[Any]]:
    """Two panels, with room for a legend of one label a line above them."""
    height_in = PANEL_IN + (LINE_IN * num_labels + 0.15 if num_labels else 0.0)
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    return figure, figure.subplots(1, 2)


def _finished(figure: Figure, panels: Sequence[Any], with_legend: Any = None) -> Figure:
    """One scale for both panels, each with its numbers: a narrow page stacks the halves."""
    ends = [panel.get_ylim() for panel in panels]
    for panel in panels:
        panel.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    if with_legend is not None:
        handles, labels = with_legend.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=1)
    return figure


def _middles(document: Document) -> list[float]:
    return [(first + last) / 2 for first, last in document["log"]["windows"]]


def _looks(entries: Sequence[dict[str, Any]]) -> list[Look]:
    """A colour for each weight's name; what was logged is drawn in ink."""
    seen: Counter[str] = Counter()
    looks = []
    for entry in entries:
        name = entry["label"].partition("(")[0]
        color = INK if name == "as logged" else color_of(name)
        looks.append(Look(entry["label"], color, DASHES[seen[color] % len(DASHES)]))
        seen[color] += 1
    return looks
