"""Figures of runs. Each function takes runs and returns a matplotlib figure of two columns.

The figures draw what the record holds and compute nothing but rolling means. They use no pyplot and
leave no state behind; ``svg`` makes equal bytes of equal figures. Runs that differ in their seed
alone are one arm: its curves are means over seeds, with a band from the lowest to the highest.
"""

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gradmass.record import Run
from gradmass.report.arms import Arm, arms_of, over_seeds
from gradmass.report.evaluations import SAMPLED, has, pass_key, series, splits_of

Axes: TypeAlias = Any
Columns: TypeAlias = list[list[Axes]]
"""Panels by column, from the top down."""

INK, FAINT = "#222222", "#8a8a8a"
STYLE = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: the layout is the same everywhere
    "font.size": 7.5,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "axes.titlepad": 5.0,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": FAINT,
    "ytick.color": INK,
    "xtick.labelcolor": INK,
    "xtick.major.size": 2.5,
    "ytick.major.size": 0.0,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "gradmass",
}
WIDTH_IN, PANEL_IN, LINE_IN = 7.8, 1.75, 0.155
BAND = "their mean; band: lowest to highest seed, as far as all go"
MAX_POINTS = 1000
"""Most points of a curve of single steps; beyond it only every n-th step is drawn."""


def smoothing_window(runs: Sequence[Run]) -> int:
    """Steps in the rolling means: a twentieth of the longest run, 1 to 50."""
    return max(1, min(50, max(len(run.metrics) for run in runs) // 20))


def drawn_every(runs: Sequence[Run]) -> int:
    """Which steps the curves of single steps show: every n-th, so that none has too many points."""
    return math.ceil(max(1, *(len(run.metrics) for run in runs)) / MAX_POINTS)


def rolling_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of the ``window`` values around each, fewer at both ends.

    >>> rolling_mean([0.0, 3.0, 6.0, 9.0], 3)
    [1.5, 3.0, 6.0, 7.5]
    """
    before, after = (window - 1) // 2, window // 2 + 1
    slices = (values[max(0, i - before) : i + after] for i in range(len(values)))
    return [math.fsum(part) / len(part) for part in slices]


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this module's style, whatever settings a user has, and leave those as they were."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


@styled()
def svg(figure: Figure) -> str:
    """The figure as an SVG document; equal figures give equal text."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


@styled()
def accuracy(runs: Sequence[Run]) -> Figure:
    """Pass@1 and pass@100 against rollouts: exact, and sampled with its interval."""
    note = "Line: exact"
    if any(not arm.has_seeds for arm in arms_of(runs)):
        note += ". Square with bar: sampled, with its 95% interval for these fixed problems"
    figure, columns = canvas(runs, 2, note)
    # Two columns: of more splits the first two are drawn, all are in the tables.
    for panels, split in zip(columns, splits_of(runs), strict=False):
        for panel, k in zip(panels, (1, 100), strict=True):
            key = pass_key(runs, split, k)
            panel.set_title(f"Pass@{k}, {split} problems{_unless_exact(key)}")
            arms = arms_of(runs)
            for place, arm in enumerate(arms):
                aside = (place - (len(arms) - 1) / 2) * 0.006 * end(runs)
                if not arm.has_seeds:
                    _draw_sampled(panel, arm, f"{split}/sampled_pass@{k}", aside)
            draw_evaluations(panel, runs, key)
    return finish(figure, columns, runs)


@styled()
def tradeoff(runs: Sequence[Run]) -> Figure:
    """Pass@100 against pass@1: the path of each run from its start, a mark an evaluation."""
    note, seeds = "Ring: start of a run. Square: its last evaluation", "their mean; thin: each"
    figure, columns = canvas(runs, 1, note, 2.6, seeds)
    for (panel,), split in zip(columns, splits_of(runs), strict=False):
        across, up = (pass_key(runs, split, k) for k in (1, 100))
        panel.set_title(f"Pass@100, {split} problems{_unless_exact(up)}")
        _draw_paths(panel, runs, across, up)
        panel.set_xlabel(f"pass@1, {split} problems")
    return finish(figure, columns, runs, shares_rollouts=False)


@styled()
def groups(runs: Sequence[Run]) -> Figure:
    """Solve rate in training, and the shares of groups that are all right, all wrong, mixed."""
    figure, columns = canvas(runs, 2, steps_note(runs))
    (solve_rate, all_right), (mixed, all_wrong) = columns
    draw_steps(solve_rate, runs, "Solve rate of training rollouts", "rollout/solve_rate")
    draw_steps(mixed, runs, "Share of mixed groups", "groups/mixed")
    draw_steps(all_right, runs, "Share of groups all right", "groups/all_right")
    draw_steps(all_wrong, runs, "Share of groups all wrong", "groups/all_wrong")
    return finish(figure, columns, runs)


@styled()
def entropy(runs: Sequence[Run]) -> Figure:
    """Token entropy and length in training; entropy over right answers at evaluations."""
    figure, columns = canvas(runs, 2, steps_note(runs) + ". Dots: evaluations")
    draw_steps(columns[0][0], runs, "Token entropy in training (nats)", "entropy/mean_nats")
    draw_steps(columns[0][1], runs, "Length of rollouts (tokens)", "rollout/length_mean")
    for panel, split in zip(columns[1], splits_of(runs), strict=False):
        panel.set_title(f"Entropy over right answers, {split} problems (nats)")
        draw_evaluations(panel, runs, f"{split}/answer_entropy_nats")
    return finish(figure, columns, runs)


@styled()
def masses(runs: Sequence[Run]) -> Figure:
    """Gradient masses, and the alpha and delta that the weight used."""
    figure, columns = canvas(runs, 2, steps_note(runs) + ". Alpha and delta as used, unsmoothed")
    (positive, alpha), (negative, delta) = columns
    draw_steps(positive, runs, "Positive mass m_S (weight per rollout)", "mass/positive")
    draw_steps(negative, runs, "Negative mass m_F (weight per rollout)", "mass/negative")
    negative.sharey(positive)
    draw_steps(alpha, runs, "Alpha (1 as in GRPO)", "weight/alpha", window=1)
    draw_steps(delta, runs, "Delta (1: masses balanced)", "weight/delta", window=1)
    return finish(figure, columns, runs)


@styled()
def rank(runs: Sequence[Run]) -> Figure:
    """How much of the output head's change lies in one direction, and how large the change is."""
    note = (
        "Dotted: r₁ of noise of the same shape; the head's share of all parameters. "
        "Ring: first evaluation with a change. Square: last"
    )
    figure, columns = canvas(runs, 2, note)
    (top_share, energy), (norm, path) = columns
    top_share.set_title("r₁: share of the head's change in one direction")
    draw_evaluations(top_share, runs, "rank/head_top1_share", "rank/head_top1_share_noise")
    energy.set_title("Head's share of the change of all parameters")
    draw_evaluations(energy, runs, "rank/head_energy_share", "rank/head_parameter_share")
    norm.set_title("Norm of the head's change")
    draw_evaluations(norm, runs, "rank/head_change_norm")
    path.set_title("r₁ at equal norm")
    _draw_paths(path, runs, "rank/head_change_norm", "rank/head_top1_share")
    finish(figure, [[top_share], [energy], [norm]], runs)
    path.set_xlabel("norm of the head's change")
    return figure


@styled()
def optimisation(runs: Sequence[Run]) -> Figure:
    """Gradient norm, clipped share, loss, and where the seconds go."""
    figure, columns = canvas(runs, 2, steps_note(runs) + ". Bars: means over the run")
    (norm, loss), (clipped, seconds) = columns
    draw_steps(norm, runs, "Gradient norm before clipping", "optim/grad_norm")
    draw_steps(loss, runs, "Loss (its level says nothing of quality)", "loss/value")
    by_trl = "trl/clip_ratio/region_mean"
    draw_steps(clipped, runs, "Share of tokens clipped", "loss/clip_share", instead=by_trl)
    _draw_seconds(seconds, runs)
    return finish(figure, [[norm], [loss], [clipped]], runs)


def canvas(
    runs: Sequence[Run],
    rows: int,
    note: str,
    panel_in: float = PANEL_IN,
    seeds: str = BAND,
) -> tuple[Figure, Columns]:
    """Two columns that a page may part in the middle: legend over the left, note over the right.

    Args:
        runs: What is drawn.
        rows: Panels of a column.
        note: What lines and marks are.
        panel_in: Height of a panel in inches.
        seeds: What is drawn of arms of several seeds, for the note.
    """
    arms = arms_of(runs)
    labels = [textwrap.fill(arm.look.label, 48) for arm in arms]
    abreast = 2 if len(arms) > 3 and max(len(arm.look.label) for arm in arms) <= 20 else 1
    legend_lines = math.ceil(sum(label.count("\n") + 1 for label in labels) / abreast)
    note = textwrap.fill(f"{note}{seeds_note(arms, seeds)}", 58)
    strip_in = LINE_IN * max(legend_lines, note.count("\n") + 1) + 0.1
    figure = Figure(figsize=(WIDTH_IN, strip_in + rows * panel_in), layout="constrained")
    columns: Columns = []
    sides: Any = figure.subfigures(1, 2)
    for side in sides:
        strip, body = side.subfigures(2, 1, height_ratios=(strip_in, rows * panel_in))
        panels: Any = body.subplots(rows, 1, squeeze=False)
        columns.append(list(panels[:, 0]))
        if columns[1:]:
            strip.text(0.03, 0.97, note, va="top", color="#555555", linespacing=1.35)
        else:
            keys = [Line2D([], [], **arm.look.line) for arm in arms]
            strip.legend(
                keys, labels, loc="upper left", ncols=abreast, borderpad=0, labelspacing=0.35
            )
    return figure, columns


def seeds_note(arms: Sequence[Arm], seeds: str) -> str:
    """What is drawn of several seeds, for the note of a figure; empty where none has several."""
    counts = sorted({len(arm.runs) for arm in arms if arm.has_seeds})
    return f". Of {' or '.join(map(str, counts))} seeds: {seeds}" if counts and seeds else ""


def finish(
    figure: Figure, columns: Columns, runs: Sequence[Run], shares_rollouts: bool = True
) -> Figure:
    """Label the axis of rollouts, and say so where a panel has nothing to show."""
    for panels in columns:
        for panel in panels:
            if shares_rollouts:
                panel.set_xlim(0, 1.02 * end(runs))
                panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
                panel.xaxis.set_major_formatter(thousands)
                panel.tick_params(labelbottom=panel is panels[-1])
            if not panel.has_data() or not any(len(line.get_xdata()) for line in panel.lines):
                message = "not recorded in these runs"
                panel.text(0.5, 0.5, message, transform=panel.transAxes, ha="center", color=FAINT)
                panel.set_yticks([])
        if shares_rollouts:
            panels[-1].set_xlabel("rollouts sampled")
    return figure


def _unless_exact(key: str) -> str:
    return " (sampled)" if SAMPLED in key else ""


def steps_note(runs: Sequence[Run]) -> str:
    """What the lines of single steps are, for the note of a figure."""
    window, every = smoothing_window(runs), drawn_every(runs)
    thinned = f" (1 in {every} drawn)" if every > 1 else ""
    if window == 1:
        return f"Line: single steps{thinned}"
    return f"Faint: single steps{thinned}. Line: rolling mean of {window} steps"


def draw_steps(
    panel: Axes,
    runs: Sequence[Run],
    title: str,
    key: str,
    window: int | None = None,
    instead: str = "",
) -> None:
    """A line an arm of a metric of every step, smoothed; over the single steps of a single run.

    ``instead`` is the metric of arms that have no other.
    """
    panel.set_title(title)
    window, every = window or smoothing_window(runs), drawn_every(runs)
    for arm in arms_of(runs):
        x_SN, y_SN = over_seeds(arm, "rollouts", key)
        if instead and not x_SN.size:
            x_SN, y_SN = over_seeds(arm, "rollouts", instead)
        if window > 1 and not arm.has_seeds:
            faint = {"color": arm.look.color, "linewidth": 0.5, "alpha": 0.28}
            panel.plot(x_SN[0, ::every], y_SN[0, ::every], **faint)
        smooth_SN = np.array([rolling_mean(y_N.tolist(), window) for y_N in y_SN])
        draw_arm(panel, arm, x_SN[:, ::every], smooth_SN[:, ::every])


def draw_arm(panel: Axes, arm: Arm, x_SN: np.ndarray, y_SN: np.ndarray, **line: Any) -> None:
    """The mean over seeds as a line, and a band from the lowest to the highest."""
    x_N = x_SN.mean(axis=0)
    panel.plot(x_N, y_SN.mean(axis=0), **{**arm.look.line, **line})
    if arm.has_seeds and len(x_N):
        band = {"color": arm.look.color, "alpha": 0.16, "linewidth": 0}
        panel.fill_between(x_N, y_SN.min(axis=0), y_SN.max(axis=0), **band)


def draw_evaluations(panel: Axes, runs: Sequence[Run], key: str, baseline: str = "") -> None:
    """A line with dots an arm of a metric known now and then, and a dotted one of another."""
    for arm in arms_of(runs):
        draw_arm(panel, arm, *over_seeds(arm, "rollouts", key), marker="o", markersize=2.2)
        if baseline:
            x_SN, y_SN = over_seeds(arm, "rollouts", baseline)
            dotted = {"color": arm.look.color, "linestyle": ":", "linewidth": 1.0}
            panel.plot(x_SN.mean(axis=0), y_SN.mean(axis=0), **dotted)


def _draw_sampled(panel: Axes, arm: Arm, key: str, aside: float) -> None:
    """Sampled values with their intervals, a little aside so that runs do not hide each other."""
    for row in arm.runs[0].metrics:
        if has(row, key) and has(row, f"{key}_low") and has(row, f"{key}_high"):
            x, faint = row["rollouts"] + aside, {"color": arm.look.color, "alpha": 0.3}
            panel.plot([x, x], [row[f"{key}_low"], row[f"{key}_high"]], linewidth=1.0, **faint)
            panel.plot(x, row[key], "s", markersize=2.4, markeredgewidth=0, **faint)


def _draw_paths(panel: Axes, runs: Sequence[Run], x_key: str, y_key: str) -> None:
    """A path an arm; the single ones of its seeds faint, for a band has no place here."""
    for arm in arms_of(runs):
        x_SN, y_SN = over_seeds(arm, x_key, y_key)
        for x_N, y_N in zip(x_SN, y_SN, strict=True) if arm.has_seeds else ():
            panel.plot(x_N, y_N, color=arm.look.color, linewidth=0.6, alpha=0.4)
        x_N, y_N = x_SN.mean(axis=0), y_SN.mean(axis=0)
        panel.plot(x_N, y_N, marker="o", markersize=2.2, **arm.look.line)
        panel.plot(x_N[-1:], y_N[-1:], "s", color=arm.look.color, markersize=5)
        panel.plot(x_N[:1], y_N[:1], "o", color=arm.look.color, markersize=6, mfc="none")


def _draw_seconds(panel: Axes, runs: Sequence[Run]) -> None:
    stages = {
        "sampling": "time/rollout_s",
        "verifying": "time/verify_s",
        "updating": "time/update_s",
        "whole step": "time/step_s",
        "an evaluation": "time/eval_s",
    }
    panel.set_title("Mean seconds by stage")
    arms = arms_of(runs)
    height = 0.8 / len(arms)
    for place, arm in enumerate(arms):
        for row, key in enumerate(stages.values()):
            seconds = [s for run in arm.runs for s in series(run, "rollouts", key)[1]]
            if seconds:
                mean = math.fsum(seconds) / len(seconds)
                y = row + (place - (len(arms) - 1) / 2) * height
                panel.barh(y, mean, height * 0.85, color=arm.look.color)
                if len(arms) <= 3:  # with more, the numbers would lie on each other
                    panel.text(mean, y, f"\N{NO-BREAK SPACE}{mean:.2g}", va="center", size=6)
    panel.set_yticks(range(len(stages)), list(stages))
    panel.set_ylim(len(stages) - 0.5, -0.5)
    panel.grid(axis="y", visible=False)
    panel.margins(x=0.12)
    panel.set_xlabel("seconds")


def end(runs: Sequence[Run]) -> int:
    """Rollouts of the longest run."""
    return max(1, *(int(row["rollouts"]) for run in runs for row in run.metrics))


def thousands(value: float, _: int) -> str:
    """A number of rollouts as short as it goes."""
    return f"{value / 1000:g}k" if value >= 10000 else f"{value:g}"
