"""Figures of a study in the paper's forms: means over seeds with 95% intervals."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from gradmass.metrics.seeds import t_interval
from gradmass.report.arms import COLORS, OTHER_COLORS
from gradmass.report.plots import WIDTH_IN, styled, thousands
from gradmass.study import PlannedRun, Result, Study
from gradmass.study.design import Setting
from gradmass.study.measures import excess_r_1
from gradmass.study.plan import settings_of

Panel: TypeAlias = Any
Runs: TypeAlias = dict[str, list[Result]]
"""Finished runs that count, by arm."""
PALETTE = (*COLORS.values(), *OTHER_COLORS)
DASHES = ((), (4, 1.8), (1.2, 1.4))
PANEL_IN = 1.9
MOST_ABREAST = 5


@styled()
def figures(study: Study, results: Mapping[PlannedRun, Result]) -> list[tuple[str, Figure]]:
    """Each figure with its caption; those without data are left out."""
    return list(_figures(study, results))


def _figures(study: Study, results: Mapping[PlannedRun, Result]) -> Iterator[tuple[str, Figure]]:
    if study.axes:
        yield _over_axis(study, results)
        return
    places = {
        setting.name: _by_arm(study, results, setting, axes) for setting, axes in settings_of(study)
    }
    places = {name: runs for name, runs in places.items() if runs}
    if not places:
        return
    for caption, names in (
        (
            "As Figure 1 of the paper: pass@k on test problems, exact.",
            ("pass@1", "pass@10", "pass@100"),
        ),
        ("As Figure 2: gradient masses of successes and failures.", ("m_S", "m_F")),
        (
            "As Figure 3: entropy in nats, and r_1 of the head's change over its noise value.",
            ("entropy", "r_1 over noise"),
        ),
        ("As Figure 8: what the controller does.", ("alpha", "delta")),
    ):
        yield caption, _over_rollouts(study, places, names)
    yield (
        "As Figure 3, right: mean pairwise correlation of hidden states beside the shared "
        "direction at the last update, right against wrong rollouts.",
        _scatter(study, places, "rho_right", "rho_wrong"),
    )
    yield (
        "As Figure 4: entropy at the end against the sign ratio m_S p / (m_F q).",
        _scatter(study, places, "sign_ratio", "entropy", log_x=True),
    )
    yield "As Figure 5: gain in pass@1 by solve rate at the start.", _by_difficulty(study, places)
    yield (
        "As Figure 9: pass@100 against pass@1 at the end.",
        _scatter(study, places, "pass@1", "pass@100"),
    )


def _by_arm(
    study: Study, results: Mapping[PlannedRun, Result], setting: Setting, axes: Sequence[Any]
) -> Runs:
    runs: Runs = {}
    for arm in study.arms:
        for run, result in results.items():
            where = (run.kind, run.setting, run.axes, run.arm)
            is_here = where == ("main", setting.name, tuple(axes), arm.name)
            if is_here and result.status == "finished":
                runs.setdefault(arm.name, []).append(result)
    return runs


def _look(study: Study, arm: str) -> dict[str, Any]:
    index = [other.name for other in study.arms].index(arm)
    dash = DASHES[index // len(PALETTE) % len(DASHES)]
    return {"color": PALETTE[index % len(PALETTE)], "dashes": dash or (None, None)}


def _canvas(study: Study, arms: Sequence[str], rows: int, columns: int) -> tuple[Figure, Any]:
    lines = -(-len(arms) // MOST_ABREAST)
    figure = Figure(figsize=(WIDTH_IN, 0.2 * lines + 0.2 + rows * PANEL_IN), layout="constrained")
    panels: Any = figure.subplots(rows, columns, squeeze=False)
    keys = [Line2D([], [], **_look(study, arm)) for arm in arms]
    figure.legend(keys, list(arms), loc="outside upper left", ncols=MOST_ABREAST)
    return figure, panels


def _arms_in(study: Study, places: Mapping[str, Runs]) -> list[str]:
    return [arm.name for arm in study.arms if any(arm.name in runs for runs in places.values())]


def _curve(result: Result, name: str) -> np.ndarray:
    return excess_r_1(result) if name == "r_1 over noise" else result.curve(name)


def _over_rollouts(study: Study, places: Mapping[str, Runs], names: Sequence[str]) -> Figure:
    figure, panels = _canvas(study, _arms_in(study, places), len(places), len(names))
    for row, (place, runs) in zip(panels, places.items(), strict=True):
        for panel, name in zip(row, names, strict=True):
            panel.set_title(f"{name}, {place}")
            panel.xaxis.set_major_formatter(thousands)
            for arm, found in runs.items():
                _draw(panel, found, name, _look(study, arm))
    for panel in panels[-1]:
        panel.set_xlabel("rollouts sampled")
    return figure


def _draw(panel: Panel, runs: Sequence[Result], name: str, look: Mapping[str, Any]) -> None:
    value_SE = np.array([_curve(run, name) for run in runs])
    keep_E = ~np.isnan(value_SE).any(axis=0)
    if not keep_E.any():
        return
    x_E = runs[0].rollouts[keep_E]
    intervals = [t_interval(value_S) for value_S in value_SE[:, keep_E].T]
    panel.plot(x_E, [interval.mean for interval in intervals], **look)
    if len(runs) > 1:
        low, high = ([getattr(i, end) for i in intervals] for end in ("low", "high"))
        panel.fill_between(x_E, low, high, color=look["color"], alpha=0.12, linewidth=0)


def _scatter(
    study: Study, places: Mapping[str, Runs], x: str, y: str, *, log_x: bool = False
) -> Figure:
    figure, panels = _canvas(study, _arms_in(study, places), 1, len(places))
    for panel, (place, runs) in zip(panels[0], places.items(), strict=True):
        panel.set_title(place)
        panel.set_xlabel(x.replace("_", " "))
        panel.set_ylabel(y.replace("_", " "))
        if log_x:
            panel.set_xscale("log")
            panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            panel.xaxis.set_major_formatter(FormatStrFormatter("%g"))
            panel.xaxis.set_minor_formatter(NullFormatter())
        for arm, found in runs.items():
            points = np.array([[run.last(x), run.last(y)] for run in found])
            color = _look(study, arm)["color"]
            panel.scatter(*points.T, s=6, color=color, alpha=0.35, linewidths=0)
            panel.scatter(*points.mean(0), s=36, color=color, marker="D", linewidths=0)
    return figure


def _by_difficulty(study: Study, places: Mapping[str, Runs]) -> Figure:
    """Gain of each third of the test problems, sorted by the solve rate at the start."""
    figure, panels = _canvas(study, _arms_in(study, places), 1, len(places))
    for panel, (place, runs) in zip(panels[0], places.items(), strict=True):
        panel.set_title(place)
        panel.set_xticks(range(3), ["hardest third", "middle", "easiest third"])
        panel.set_ylabel("gain in pass@1")
        for number, (arm, found) in enumerate(runs.items()):
            start_N = np.array(found[0].solve_probability_EN[0])
            thirds = np.array_split(np.argsort(start_N, kind="stable"), 3)
            gain_SN = np.array([run.solve_probability_EN[-1] for run in found]) - start_N
            shift = (number - (len(runs) - 1) / 2) * 0.8 / len(runs)
            for place_of_third, third in enumerate(thirds):
                interval = t_interval(gain_SN[:, third].mean(axis=1))
                half = interval.high - interval.mean if len(found) > 1 else 0.0
                panel.errorbar(
                    place_of_third + shift,
                    interval.mean,
                    yerr=half,
                    color=_look(study, arm)["color"],
                    marker="o",
                    markersize=3,
                )
    return figure


def _over_axis(study: Study, results: Mapping[PlannedRun, Result]) -> tuple[str, Figure]:
    """What is left at the end along the first axis, for each setting."""
    names = ("pass@1", "pass@100", "entropy", "r_1 over noise")
    axis = study.axes[0]
    arms = [arm.name for arm in study.arms]
    figure, panels = _canvas(study, arms, len(study.settings), len(names))
    for row, setting in zip(panels, study.settings, strict=True):
        for panel, name in zip(row, names, strict=True):
            panel.set_title(f"{name}, {setting.name}")
            panel.set_xticks(range(len(axis.values)), [str(value) for value in axis.values])
            for arm in arms:
                means = []
                for value in axis.values:
                    found = [
                        float(_curve(result, name)[-1])
                        for run, result in results.items()
                        if (run.kind, run.setting, run.arm) == ("main", setting.name, arm)
                        and (axis.field, value) in run.axes
                        and result.status == "finished"
                    ]
                    means.append(np.mean(found) if found else np.nan)
                panel.plot(range(len(means)), means, marker="o", markersize=3, **_look(study, arm))
    for panel in panels[-1]:
        panel.set_xlabel(axis.field)
    return f"At the end, by {axis.field}: means over seeds.", figure
