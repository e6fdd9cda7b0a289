"""The schedule without a controller: two numbers, fitted to what FADE did."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from gradmass.types import Array, State, UsageError
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_number
from gradmass.weights.power import power_asym_weights
from gradmass.weights.schedules import LogDecay

START_ALPHA, START_DELTA = 1.5, 1.0
"""Where FADE starts: its alpha at a solve rate of 1/2, its delta before any entropy."""


@register_weight("open_loop")
@dataclass(frozen=True, kw_only=True)
class OpenLoop(Weight):
    """What FADE does on average, by the clock alone.

    ``w_i = (1 - rbar)^(alpha - 1) (r_i - rbar)``, divided by delta where ``r_i < rbar``: the weight
    ``power_asym`` with ``alpha = 1.5 + (alpha_end - 1.5) s`` and ``delta = 1 + (delta_end - 1) s``,
    ``s = log(1 + t) / log(1 + T)``, t the updates done of T. Gradient masses for binary rewards,
    large groups: ``m_S = p (1 - p)^alpha``, ``m_F = m_S / delta``. It starts where ``fade`` starts
    and measures nothing; ``fit_open_loop`` takes both ends from runs of ``fade``.

    Signals: ``step`` and ``num_steps``.

    State: ``decayed_share``, s.

    Edge cases: 0 for groups of equal rewards and groups of one.

    Source: ours.

    >>> import numpy as np
    >>> weight = OpenLoop(alpha_end=2.5, delta_end=0.5)
    >>> signals = {"step": 9, "num_steps": 99}
    >>> weights_PG, state = weight.update(np.array([[1.0, 0.0]]), weight.init(), **signals)
    >>> weight.report(state)
    {'alpha': 2.0, 'delta': 0.75}
    >>> weights_PG
    array([[ 0.25      , -0.33333333]])
    """

    scope: ClassVar = "run"
    domain: ClassVar = "unit"

    alpha_end: float
    """Alpha towards which it goes from 1.5, above 0."""
    delta_end: float
    """Delta towards which it goes from 1, above 0."""

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        check_number("open_loop", "alpha_end", self.alpha_end, above=0)
        check_number("open_loop", "delta_end", self.delta_end, above=0)

    @cached_property
    def alpha(self) -> LogDecay:
        """The schedule of alpha."""
        return LogDecay(start=START_ALPHA, end=self.alpha_end)

    @cached_property
    def delta(self) -> LogDecay:
        """The schedule of delta."""
        return LogDecay(start=START_DELTA, end=self.delta_end)

    @property
    def needs(self) -> tuple[str, ...]:
        """The time and its end."""
        return self.alpha.needs

    def init(self) -> State:
        """The start of the run."""
        return self.alpha.init()

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Take the time."""
        return self.alpha.observe(groups, state, signals)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return equation (11) with the schedules' values."""
        return power_asym_weights(groups, self.alpha.value(state), self.delta.value(state))

    def report(self, state: State) -> dict[str, float | str | None]:
        """Alpha and delta."""
        return {"alpha": self.alpha.value(state), "delta": self.delta.value(state)}


def fit_open_loop(traces: Sequence[Mapping[int, tuple[float, ...]]], num_steps: int) -> OpenLoop:
    """The open-loop schedule nearest to the mean of what runs did.

    Least squares on the means over the runs, batch by batch, with s the share of the way at the
    batch: ``alpha_end = 1.5 + sum s (alpha - 1.5) / sum s^2``, and likewise for delta from 1.

    Args:
        traces: Of each run ``(alpha, delta)`` by the updates done before the batch, as
            ``gradmass.weights.trace.read_trace`` reads them. Only batches that all runs have count.
        num_steps: Updates of a run.

    Raises:
        UsageError: No batch after the first that all runs have, one beyond ``num_steps``, or an end
            that is not above 0.

    >>> share = [math.log1p(t) / math.log1p(50) for t in range(50)]
    >>> planted = {t: (1.5 + 1.0 * s, 1.0 - 0.6 * s) for t, s in enumerate(share)}
    >>> fit = fit_open_loop([planted, planted], num_steps=50)
    >>> round(fit.alpha_end, 9), round(fit.delta_end, 9)
    (2.5, 0.4)
    """
    common = sorted(set.intersection(*map(set, traces))) if traces else []
    if not any(common):
        raise UsageError(
            f"a schedule is fitted to batches that all of the {len(traces)} runs have, from step 1 "
            "on; they have none"
        )
    if common[-1] >= num_steps:
        raise UsageError(f"num_steps = {num_steps}, but the runs have a batch at {common[-1]}")
    share = {t: math.log1p(t) / math.log1p(num_steps) for t in common}

    def end(place: int, start: float) -> float:
        moved = {t: sum(trace[t][place] for trace in traces) / len(traces) - start for t in common}
        way = sum(share[t] * moved[t] for t in common)
        return start + way / sum(s**2 for s in share.values())

    return OpenLoop(alpha_end=end(0, START_ALPHA), delta_end=end(1, START_DELTA))
