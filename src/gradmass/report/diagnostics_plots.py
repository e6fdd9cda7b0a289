"""Figures of what was looked at in training: sign, entropy, difficulty, directions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gradmass.metrics.signal import solve_rates_by_problem
from gradmass.record import Run
from gradmass.report.arms import Arm, arms_of
from gradmass.report.plots import (
    FAINT,
    Axes,
    canvas,
    draw_evaluations,
    draw_steps,
    finish,
    steps_note,
    styled,
)

MAX_PROBLEMS, MAX_VISITS = 60, 20
"""Problems in the map of solve rates, the first of the run, and visits of them, evenly chosen."""
LAST_SHARE = 0.2
"""Share of a run, at its end, that distributions are averaged over."""


@styled()
def signs(runs: Sequence[Run]) -> Figure:
    """Masses that reach the gradient, and what clipping took of each side."""
    figure, columns = canvas(runs, 2, steps_note(runs) + ". Dots: looks")
    (positive, clipped_right), (negative, clipped_wrong) = columns
    draw_steps(positive, runs, "Positive mass that reaches the gradient", "mass/reached_positive")
    draw_steps(negative, runs, "Negative mass that reaches the gradient", "mass/reached_negative")
    negative.sharey(positive)
    draw_steps(clipped_right, runs, "Clipped share of weight on right", "mass/clipped_positive")
    draw_steps(clipped_wrong, runs, "Clipped share of weight on wrong", "mass/clipped_negative")
    clipped_wrong.sharey(clipped_right)
    clipped_right.set_ylim(0, max(0.01, clipped_right.get_ylim()[1]))
    return finish(figure, columns, runs)


@styled()
def entropy_change(runs: Sequence[Run]) -> Figure:
    """Both terms of (7), the covariance within contexts, and the measured change."""
    figure, columns = canvas(runs, 2, steps_note(runs) + ". Dots: looks")
    (drift, within), (covariance, change) = columns
    draw_steps(drift, runs, "Drift (m_S − m_F) H, per unit of step", "entropy/drift")
    draw_steps(covariance, runs, "Cov(A, log π), per unit of step", "entropy/covariance")
    draw_steps(within, runs, "Covariance within contexts", "entropy/covariance_within")
    change.set_title("Measured change in one update (nats)")
    draw_evaluations(change, runs, "entropy/change_nats")
    return finish(figure, columns, runs)


@styled()
def difficulty(runs: Sequence[Run]) -> Figure:
    """Effective groups, signal to noise, and solve rates and masses at the start and the end."""
    note = (
        f"{steps_note(runs)}. Dots: looks. Right column: first and last {LAST_SHARE:.0%} of each "
        "run, faint and full"
    )
    figure, columns = canvas(runs, 2, note)
    (effective, snr), (rates, masses) = columns
    draw_steps(effective, runs, "Effective number of groups (Kish)", "groups/effective")
    snr.set_title("Signal to noise of a batch gradient (power)")
    draw_evaluations(snr, runs, "signal/snr")
    rates.set_title("Share of groups by solve rate")
    masses.set_title("Positive mass by decile of solve rate")
    for arm in arms_of(runs):
        for rows, strength in _ends(arm):
            counts_G = np.sum([row["solve_rate_counts"] for row in rows], axis=0)
            rate_G = np.linspace(0, 1, len(counts_G))
            rates.plot(rate_G, counts_G / counts_G.sum(), alpha=strength, **arm.look.line)
            mass_D = np.mean([row["positive_mass_by_decile"] for row in rows], axis=0)
            # Deciles that no share k / G falls into hold nothing, and say nothing.
            size = len(counts_G) - 1
            filled = sorted({min(9, k * 10 // size) for k in range(size + 1)})
            masses.plot(
                np.array(filled) / 10 + 0.05, mass_D[filled], alpha=strength, **arm.look.line
            )
    finish(figure, [[effective, snr]], runs)
    finish(figure, [[rates, masses]], runs, shares_rollouts=False)
    masses.set_xlabel("solve rate of the group")
    return figure


@styled()
def problems(runs: Sequence[Run]) -> Figure:
    """Solve rate of every problem over its visits, for the first run of the first two arms."""
    note = "Dark: solved always. Rows: problems, by their solve rate at the first visit"
    figure, columns = canvas(runs, 1, note, 2.6, seeds="")
    for (panel,), arm in zip(columns, arms_of(runs), strict=False):
        label = f"{arm.look.label}, seed {arm.seeds[0]}" if arm.has_seeds else arm.look.label
        panel.set_title(label if len(label) < 44 else f"{label[:43]}…")
        _draw_problems(panel, arm.runs[0])
    finish(figure, columns, runs, shares_rollouts=False)
    return figure


@styled()
def directions(runs: Sequence[Run]) -> Figure:
    """Gradients by verdict, and how alike the hidden states of each verdict are."""
    figure, columns = canvas(runs, 3, "Dots: looks. Dotted: wrong rollouts, M₂")
    (norms, rho, squares), (cosine, across, parts) = columns
    pairs = [
        (norms, "Gradient norm, right and wrong rollouts", "gradient/{}_norm"),
        (squares, "E|∇ log π|² of a rollout, right and wrong", "gradient/{}_square"),
        (rho, "ρ⊥ of right and wrong rollouts, all pairs", "states/rho_perp_{}"),
        (across, "ρ⊥ across problems", "states/rho_perp_{}_across"),
    ]
    for panel, title, key in pairs:
        panel.set_title(title)
        draw_evaluations(panel, runs, key.format("right"), key.format("wrong"))
    squares.set_yscale("log")
    cosine.set_title("Cosine of the two gradients (−1: they cancel)")
    draw_evaluations(cosine, runs, "gradient/cosine")
    parts.set_title("Norms of M₁ (shared direction) and M₂")
    draw_evaluations(parts, runs, "rank/m1_norm", "rank/m2_norm")
    return finish(figure, columns, runs)


@styled()
def matrices(runs: Sequence[Run]) -> Figure:
    """r_1 of every matrix over its noise value, and the energy of modules over their size."""
    note = "Last look, means over layers. Bars: r₁ of noise; the share of the parameters"
    figure, columns = canvas(runs, 1, note, 3.2, seeds="a dot for each")
    (ranks,), (energies,) = columns
    ranks.set_title("r₁ of the change of each matrix")
    energies.set_title("Share of the change's energy by module")
    arms = arms_of(runs)
    places = [(place, arm, run) for place, arm in enumerate(arms) for run in arm.runs]
    for place, arm, run in places:
        spectra = [row for row in run.diagnostics if row["kind"] == "spectrum"]
        if not spectra:
            continue
        mean_by_module = _means_by_module(spectra[-1]["matrices"])
        names = [_short(module["name"]) for module in spectra[-1]["modules"]]
        aside = (place - (len(arms) - 1) / 2) * 0.16
        for panel, values, markers in (
            (ranks, mean_by_module, ("r_1", "r_1_noise")),
            (
                energies,
                {_short(module["name"]): module for module in spectra[-1]["modules"]},
                ("energy_share", "parameter_share"),
            ),
        ):
            shown = [n for n in names if n in values and values[n][markers[0]] is not None]
            y = [names.index(name) + aside for name in shown]
            for key, style in zip(markers, ("o", "|"), strict=True):
                x = [values[name][key] for name in shown]
                panel.plot(x, y, style, color=arm.look.color, markersize=4, alpha=0.9)
            panel.set_yticks(range(len(names)), names, size=6)
            panel.set_ylim(len(names) - 0.4, -0.6)
    ranks.set_xlim(0, 1)
    return finish(figure, columns, runs, shares_rollouts=False)


FIGURES: dict[str, Callable[[Sequence[Run]], Figure]] = {
    "signs": signs,
    "entropy-change": entropy_change,
    "difficulty": difficulty,
    "problems": problems,
    "directions": directions,
    "matrices": matrices,
}


def warnings_of(run: Run) -> list[tuple[int, dict[str, str]]]:
    """Step and warning, in order."""
    return [(row["step"], warning) for row in run.metrics for warning in row.get("warnings", [])]


def weights_judged(run: Run) -> list[dict[str, Any]]:
    """What the run's rollouts say of each weight: mean signal-to-noise, and the last pooled values.

    The mean is of the looks at which it is known.
    """
    looked = [row["weights"] for row in run.diagnostics if row["kind"] == "signal"]
    if not looked:
        return []
    judged = []
    for place, last in enumerate(looked[-1]):
        ratios = [weights[place]["snr"] for weights in looked]
        known = [ratio for ratio in ratios if ratio is not None]
        mean = math.fsum(known) / len(known) if known else None
        judged.append({**last, "mean_snr": mean, "num_looks": len(known)})
    return judged


def _ends(arm: Arm) -> list[tuple[list[dict[str, Any]], float]]:
    """Rows of difficulty of the first and of the last part of its runs, with their strength."""
    first: list[dict[str, Any]] = []
    last: list[dict[str, Any]] = []
    for run in arm.runs:
        rows = [row for row in run.diagnostics if row["kind"] == "difficulty"]
        num = math.ceil(LAST_SHARE * len(rows))
        first, last = first + rows[:num], last + rows[len(rows) - num :]
    return [(first, 0.35), (last, 1.0)] if first else []


def _draw_problems(panel: Axes, run: Run) -> None:
    visits = list(solve_rates_by_problem(run.rollouts()).values())[:MAX_PROBLEMS]
    visits = sorted((v for v in visits if v), key=lambda v: v[0][1])
    if not visits:
        return
    num_visits = max(map(len, visits))
    every = -(-num_visits // MAX_VISITS)
    shown = range(0, num_visits, every)
    map_PN = np.full((len(visits), len(shown)), np.nan)
    for row, values in enumerate(visits):
        rates = [rate for _, rate in values[::every]]
        map_PN[row, : len(rates)] = rates
    edges_N = np.arange(len(shown) + 1) * every + 0.5
    # Not as an image: the page holds drawings only, which can be saved as they are.
    panel.pcolormesh(
        edges_N, np.arange(len(visits) + 1), np.ma.masked_invalid(map_PN), cmap="Greys", vmin=0,
        vmax=1,
    )  # fmt: skip
    panel.axhline(0, color=FAINT, linewidth=0.5)
    panel.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    panel.set_xlabel("visit of the problem")
    panel.set_ylabel(f"first {len(visits)} problems")
    panel.set_yticks([])
    panel.grid(visible=False)


def _means_by_module(matrices: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Mean r_1 and noise value of the matrices of a module, over layers."""
    values: dict[str, list[dict[str, Any]]] = {}
    for matrix in matrices:
        name = ".".join(part for part in matrix["name"].split(".")[:-1] if not part.isdigit())
        values.setdefault(_short(name), []).append(matrix)
    return {
        name: {
            key: None
            if any(row[key] is None for row in rows)
            else math.fsum(row[key] for row in rows) / len(rows)
            for key in ("r_1", "r_1_noise")
        }
        for name, rows in values.items()
    }


def _short(module: str) -> str:
    """The last part of a module's name."""
    return module.rpartition(".")[2]
