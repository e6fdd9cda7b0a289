"""Masses of the run's own solve rates: what the weight does where the problems really lie."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from gradmass.masses import Masses, MeasuredPrior, masses_of
from gradmass.record import Run
from gradmass.report.arms import Arm
from gradmass.report.plots import Axes, canvas, finish, styled
from gradmass.report.sample import Counts, Sample
from gradmass.tables import from_tables
from gradmass.types import State, UsageError
from gradmass.weights import Weight

P_N = np.arange(1, 100) / 100
"""Solve rates of the curves."""
END_SHARE = 0.2
"""Share of a run at either end that its solve rates are taken from."""


@dataclass(frozen=True)
class End:
    """One end of the runs of an arm.

    Args:
        counts: Its groups by right and judged rollouts.
        masses: Of the weight in the state it had there, for each run; empty where ``obstacle`` is.
        obstacle: Why there are no masses.
    """

    counts: Counts
    masses: tuple[Masses, ...] = ()
    obstacle: str = ""

    @property
    def shares(self) -> dict[float, float]:
        """Share of the groups at each solve rate."""
        total = sum(self.counts.values())
        shares: dict[float, float] = {}
        for (right, judged), number in self.counts.items():
            rate = right / judged
            shares[rate] = shares.get(rate, 0.0) + number / total
        return dict(sorted(shares.items()))


def ends_of(arm: Arm, samples: Sequence[Sample]) -> tuple[End, End]:
    """What the weight of an arm does at its first and its last solve rates."""
    parts: list[list[Counts]] = [[], []]
    for sample in samples:
        steps = sample.counts_by_step
        num = math.ceil(END_SHARE * len(steps))
        parts[0].append(_sum(steps[:num]))
        parts[1].append(_sum(steps[len(steps) - num :]))
    return _end(arm, parts[0], is_last=False), _end(arm, parts[1], is_last=True)


def _sum(steps: Sequence[Counts]) -> Counts:
    return sum(steps, Counter())


def _end(arm: Arm, counts: Sequence[Counts], is_last: bool) -> End:
    whole = _sum(counts)
    if not whole:
        return End(whole, obstacle="no rollout of it is recorded yet")
    try:
        masses = tuple(
            _masses(run, part, run.state["weight"] if is_last else None)
            for run, part in zip(arm.runs, counts, strict=True)
            if part
        )
    except UsageError as error:
        return End(whole, obstacle=str(error))
    return End(whole, masses)


def _masses(run: Run, counts: Counts, state: State | None) -> Masses:
    """Of the weight at the run's group size, among problems of the run's own solve rates."""
    recipe = run.config["recipe"]
    if ":" in recipe["weight"]["type"]:
        # The file may be another by now, and to open a report should run nobody's code.
        raise UsageError("it is a class of a file; gradmass masses draws such")
    size = recipe.get("train", {}).get("group_size")
    if not isinstance(size, int):
        raise UsageError("its recipe names no group size")
    where = str(run.path / "config.json")
    weight = from_tables(Weight, recipe["weight"], where)  # type: ignore[type-abstract]
    rates = [right / judged for right, judged in counts.elements()]
    prior = MeasuredPrior(tuple(rates), "the run's own")
    return masses_of(weight, P_N, size, prior=prior, state=state or None)


def obstacles(arms: Sequence[Arm], ends: Sequence[tuple[End, End]]) -> list[tuple[str, str]]:
    """Label and reason of the arms whose masses are not drawn."""
    return [
        (arm.look.label, last.obstacle or first.obstacle)
        for arm, (first, last) in zip(arms, ends, strict=True)
        if first.obstacle or last.obstacle
    ]


@styled()
def own_masses(arms: Sequence[Arm], ends: Sequence[tuple[End, End]]) -> Figure:
    """m_S and m_F over the solve rates that the problems had at the start and at the end."""
    runs = [run for arm in arms for run in arm.runs]
    note = f"Faint: start. Full: end. Below: groups of the first and last {END_SHARE:.0%} of steps"
    figure, columns = canvas(runs, 2, note, seeds="mean of the masses; groups of all")
    (positive, at_start), (negative, at_end) = columns
    positive.set_title("Positive mass m_S at a solve rate")
    negative.set_title("Negative mass m_F at a solve rate")
    at_start.set_title("Share of groups by solve rate, at the start")
    at_end.set_title("Share of groups by solve rate, at the end")
    for place, (arm, both) in enumerate(zip(arms, ends, strict=True)):
        for end, strength, bars in zip(both, (0.35, 1.0), (at_start, at_end), strict=True):
            aside = (place - (len(arms) - 1) / 2) / len(arms)
            _draw_shares(bars, arm, end, aside, 1 / len(arms))
            if end.masses:
                for panel, name in ((positive, "m_S_N"), (negative, "m_F_N")):
                    mass_N = np.mean([getattr(masses, name) for masses in end.masses], axis=0)
                    panel.plot(P_N, mass_N, alpha=strength, **arm.look.line)
    finish(figure, [[positive], [negative]], runs, shares_rollouts=False)
    negative.sharey(positive)
    at_end.sharey(at_start)
    for panel in (positive, negative, at_start, at_end):
        panel.set_xlim(-0.06, 1.06)
    for panel in (at_start, at_end):
        panel.set_xlabel("solve rate of the group")
    return figure


def _draw_shares(panel: Axes, arm: Arm, end: End, aside: float, part: float) -> None:
    """Bars side by side, each arm's a little off its place."""
    shares = end.shares
    size = max((judged for _, judged in end.counts), default=1)
    width = 0.8 / size
    x = [rate + aside * width for rate in shares]
    panel.bar(x, list(shares.values()), width * part * 0.9, color=arm.look.color)
