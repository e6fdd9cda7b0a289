"""Figures of runs. Each function takes runs and returns a matplotlib figure of two columns.

The figures draw what the record holds and compute nothing but rolling means. They use no pyplot and
leave no state behind; ``svg`` makes equal bytes of equal figures. A colour belongs to the name of a
weight, in every figure and every report; runs of the same colour differ in their dashes.
"""

import io
import math
import textwrap
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gradmass.record import Run
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
COLORS = {
    "fade": "#d55e00",
    "grpo": "#0072b2",
    "power": "#009e73",
    "asym_grpo_delta": "#cc79a7",
    "power_asym": "#e69f00",
    "grpo_std": "#56b4e9",
    "reinforce": "#4d4d4d",
}
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
OTHER_COLORS = ("#332288", "#882255", "#999933", "#44aa99", "#117733", "#aa4499")
"""Tol's muted colours; any other name keeps the one its checksum picks."""
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.8), (1.2, 1.4), (6, 1.6, 1.2, 1.6))
WIDTH_IN, PANEL_IN, LINE_IN = 7.8, 1.75, 0.155
MAX_POINTS = 1000
"""Most points of a curve of single steps; beyond it only every n-th step is drawn."""


@dataclass(frozen=True)
class Look:
    """How a run looks in every figure and table.

    Args:
        label: The run's label, with its folder where two runs share the label.
        color: Of its weight's name.
        dash: Lengths of strokes and gaps in points; empty for a solid line.
    """

    label: str
    color: str
    dash: tuple[float, ...]

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of a matplotlib line."""
        return {"color": self.color, "linestyle": (0, self.dash) if self.dash else "-"}


def color_of(weight_name: str) -> str:
    """The fixed colour of a weight's name.

    >>> color_of("fade")
    '#d55e00'
    """
    number = zlib.crc32(weight_name.encode())
    return COLORS.get(weight_name, OTHER_COLORS[number % len(OTHER_COLORS)])


def looks(runs: Sequence[Run]) -> list[Look]:
    """A label, colour and dash for each run; no two runs share all of colour, dash and label."""
    labels = Counter(run.label for run in runs)
    folders = Counter((run.label, run.path.resolve().name) for run in runs)
    seen: Counter[str] = Counter()
    found = []
    for run in runs:
        label, folder, color = run.label, run.path.resolve().name, color_of(run.weight_name)
        if labels[label] > 1:
            label += f" ({folder if folders[label, folder] == 1 else run.path})"
        found.append(Look(label, color, DASHES[seen[color] % len(DASHES)]))
        seen[color] += 1
    return found


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
    note = "Line: exact. Square with bar: sampled, with its 95% interval for these fixed problems"
    figure, columns = _canvas(runs, 2, note)
    # Two columns: of more splits the first two are drawn, all are in the tables.
    for panels, split in zip(columns, splits_of(runs), strict=False):
        for panel, k in zip(panels, (1, 100), strict=True):
            key = pass_key(runs, split, k)
            panel.set_title(f"Pass@{k}, {split} problems{_unless_exact(key)}")
            for place, (run, look) in enumerate(zip(runs, looks(runs), strict=True)):
                aside = (place - (len(runs) - 1) / 2) * 0.006 * _end(runs)
                _draw_sampled(panel, run, look, f"{split}/sampled_pass@{k}", aside)
                x, y = series(run, "rollouts", key)
                panel.plot(x, y, marker="o", markersize=2.2, **look.line)
    return _finish(figure, columns, runs)


@styled()
def tradeoff(runs: Sequence[Run]) -> Figure:
    """Pass@100 against pass@1: the path of each run from its start, a mark an evaluation."""
    figure, columns = _canvas(runs, 1, "Ring: start of a run. Square: its last evaluation", 2.6)
    for (panel,), split in zip(columns, splits_of(runs), strict=False):
        across, up = (pass_key(runs, split, k) for k in (1, 100))
        panel.set_title(f"Pass@100, {split} problems{_unless_exact(up)}")
        _draw_paths(panel, runs, across, up)
        panel.set_xlabel(f"pass@1, {split} problems")
    return _finish(figure, columns, runs, shares_rollouts=False)


@styled()
def groups(runs: Sequence[Run]) -> Figure:
    """Solve rate in training, and the shares of groups that are all right, all wrong, mixed."""
    figure, columns = _canvas(runs, 2, _steps_note(runs))
    (solve_rate, all_right), (mixed, all_wrong) = columns
    _draw_steps(solve_rate, runs, "Solve rate of training rollouts", "rollout/solve_rate")
    _draw_steps(mixed, runs, "Share of mixed groups", "groups/mixed")
    _draw_steps(all_right, runs, "Share of groups all right", "groups/all_right")
    _draw_steps(all_wrong, runs, "Share of groups all wrong", "groups/all_wrong")
    return _finish(figure, columns, runs)


@styled()
def entropy(runs: Sequence[Run]) -> Figure:
    """Token entropy and length in training; entropy over right answers at evaluations."""
    figure, columns = _canvas(runs, 2, _steps_note(runs) + ". Dots: evaluations")
    _draw_steps(columns[0][0], runs, "Token entropy in training (nats)", "entropy/mean_nats")
    _draw_steps(columns[0][1], runs, "Length of rollouts (tokens)", "rollout/length_mean")
    for panel, split in zip(columns[1], splits_of(runs), strict=False):
        panel.set_title(f"Entropy over right answers, {split} problems (nats)")
        _draw_evaluations(panel, runs, f"{split}/answer_entropy_nats")
    return _finish(figure, columns, runs)


@styled()
def masses(runs: Sequence[Run]) -> Figure:
    """Gradient masses, and the alpha and delta that the weight used."""
    figure, columns = _canvas(runs, 2, _steps_note(runs) + ". Alpha and delta as used, unsmoothed")
    (positive, alpha), (negative, delta) = columns
    _draw_steps(positive, runs, "Positive mass m_S (weight per rollout)", "mass/positive")
    _draw_steps(negative, runs, "Negative mass m_F (weight per rollout)", "mass/negative")
    negative.sharey(positive)
    _draw_steps(alpha, runs, "Alpha (1 as in GRPO)", "weight/alpha", window=1)
    _draw_steps(delta, runs, "Delta (1: masses balanced)", "weight/delta", window=1)
    return _finish(figure, columns, runs)


@styled()
def rank(runs: Sequence[Run]) -> Figure:
    """How much of the output head's change lies in one direction, and how large the change is."""
    note = (
        "Dotted: r₁ of noise of the same shape; the head's share of all parameters. "
        "Ring: first evaluation with a change. Square: last"
    )
    figure, columns = _canvas(runs, 2, note)
    (top_share, energy), (norm, path) = columns
    top_share.set_title("r₁: share of the head's change in one direction")
    _draw_evaluations(top_share, runs, "rank/head_top1_share", "rank/head_top1_share_noise")
    energy.set_title("Head's share of the change of all parameters")
    _draw_evaluations(energy, runs, "rank/head_energy_share", "rank/head_parameter_share")
    norm.set_title("Norm of the head's change")
    _draw_evaluations(norm, runs, "rank/head_change_norm")
    path.set_title("r₁ at equal norm")
    _draw_paths(path, runs, "rank/head_change_norm", "rank/head_top1_share")
    _finish(figure, [[top_share], [energy], [norm]], runs)
    path.set_xlabel("norm of the head's change")
    return figure


@styled()
def optimisation(runs: Sequence[Run]) -> Figure:
    """Gradient norm, clipped share, loss, and where the seconds go."""
    figure, columns = _canvas(runs, 2, _steps_note(runs) + ". Bars: means over the run")
    (norm, loss), (clipped, seconds) = columns
    _draw_steps(norm, runs, "Gradient norm before clipping", "optim/grad_norm")
    _draw_steps(loss, runs, "Loss (its level says nothing of quality)", "loss/value")
    _draw_steps(clipped, runs, "Share of tokens clipped", "loss/clip_share")
    _draw_seconds(seconds, runs)
    return _finish(figure, [[norm], [loss], [clipped]], runs)


def _canvas(
    runs: Sequence[Run], rows: int, note: str, panel_in: float = PANEL_IN
) -> tuple[Figure, Columns]:
    """Two columns that a page may part in the middle: legend over the left, note over the right."""
    labels = [textwrap.fill(look.label, 48) for look in looks(runs)]
    abreast = 2 if len(runs) > 3 and max(len(look.label) for look in looks(runs)) <= 20 else 1
    legend_lines = math.ceil(sum(label.count("\n") + 1 for label in labels) / abreast)
    note = textwrap.fill(note, 58)
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
            keys = [Line2D([], [], **look.line) for look in looks(runs)]
            strip.legend(
                keys, labels, loc="upper left", ncols=abreast, borderpad=0, labelspacing=0.35
            )
    return figure, columns


def _finish(
    figure: Figure, columns: Columns, runs: Sequence[Run], shares_rollouts: bool = True
) -> Figure:
    """Label the axis of rollouts, and say so where a panel has nothing to show."""
    for panels in columns:
        for panel in panels:
            if shares_rollouts:
                panel.set_xlim(0, 1.02 * _end(runs))
                panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
                panel.xaxis.set_major_formatter(_thousands)
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


def _steps_note(runs: Sequence[Run]) -> str:
    window, every = smoothing_window(runs), drawn_every(runs)
    thinned = f" (1 in {every} drawn)" if every > 1 else ""
    if window == 1:
        return f"Line: single steps{thinned}"
    return f"Faint: single steps{thinned}. Line: rolling mean of {window} steps"


def _draw_steps(
    panel: Axes, runs: Sequence[Run], title: str, key: str, window: int | None = None
) -> None:
    panel.set_title(title)
    window, every = window or smoothing_window(runs), drawn_every(runs)
    for run, look in zip(runs, looks(runs), strict=True):
        x, y = series(run, "rollouts", key)
        if window > 1:
            panel.plot(x[::every], y[::every], color=look.color, linewidth=0.5, alpha=0.28)
        panel.plot(x[::every], rolling_mean(y, window)[::every], **look.line)


def _draw_evaluations(panel: Axes, runs: Sequence[Run], key: str, baseline: str = "") -> None:
    for run, look in zip(runs, looks(runs), strict=True):
        x, y = series(run, "rollouts", key)
        panel.plot(x, y, marker="o", markersize=2.2, **look.line)
        if baseline:
            x, y = series(run, "rollouts", baseline)
            panel.plot(x, y, color=look.color, linestyle=":", linewidth=1.0)


def _draw_sampled(panel: Axes, run: Run, look: Look, key: str, aside: float) -> None:
    """Sampled values with their intervals, a little aside so that runs do not hide each other."""
    for row in run.metrics:
        if has(row, key) and has(row, f"{key}_low") and has(row, f"{key}_high"):
            x, faint = row["rollouts"] + aside, {"color": look.color, "alpha": 0.3}
            panel.plot([x, x], [row[f"{key}_low"], row[f"{key}_high"]], linewidth=1.0, **faint)
            panel.plot(x, row[key], "s", markersize=2.4, markeredgewidth=0, **faint)


def _draw_paths(panel: Axes, runs: Sequence[Run], x_key: str, y_key: str) -> None:
    for run, look in zip(runs, looks(runs), strict=True):
        x, y = series(run, x_key, y_key)
        panel.plot(x, y, marker="o", markersize=2.2, **look.line)
        panel.plot(x[-1:], y[-1:], "s", color=look.color, markersize=5)
        panel.plot(x[:1], y[:1], "o", color=look.color, markersize=6, markerfacecolor="none")


def _draw_seconds(panel: Axes, runs: Sequence[Run]) -> None:
    stages = {
        "sampling": "time/rollout_s",
        "verifying": "time/verify_s",
        "updating": "time/update_s",
        "whole step": "time/step_s",
        "an evaluation": "time/eval_s",
    }
    panel.set_title("Mean seconds by stage")
    height = 0.8 / len(runs)
    for place, (run, look) in enumerate(zip(runs, looks(runs), strict=True)):
        for row, key in enumerate(stages.values()):
            _, seconds = series(run, "rollouts", key)
            if seconds:
                mean = math.fsum(seconds) / len(seconds)
                y = row + (place - (len(runs) - 1) / 2) * height
                panel.barh(y, mean, height * 0.85, color=look.color)
                if len(runs) <= 3:  # with more, the numbers would lie on each other
                    panel.text(mean, y, f"\N{NO-BREAK SPACE}{mean:.2g}", va="center", size=6)
    panel.set_yticks(range(len(stages)), list(stages))
    panel.set_ylim(len(stages) - 0.5, -0.5)
    panel.grid(axis="y", visible=False)
    panel.margins(x=0.12)
    panel.set_xlabel("seconds")


def _end(runs: Sequence[Run]) -> int:
    return max(1, *(int(row["rollouts"]) for run in runs for row in run.metrics))


def _thousands(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if value >= 10000 else f"{value:g}"
