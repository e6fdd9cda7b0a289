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
from gradmass.weights.schedules import Geometric


@register_weight("open_loop")
@dataclass(frozen=True, kw_only=True)
class OpenLoop(Weight):
    """Start with hard problems and end with failures, by the clock alone.

    ``w_i = (1 - rbar)^(alpha - 1) (r_i - rbar)``, divided by delta where ``r_i < rbar``: the weight
    ``power_asym`` with ``alpha = alpha_start^(1 - x)`` and ``delta = delta_end^x``, x the share of
    the updates done, from 0 to 1. Gradient masses for binary rewards, large groups:
    ``m_S = p (1 - p)^alpha``, ``m_F = m_S / delta``. What ``fade`` does without what it measures:
    ``fit_open_loop`` takes both numbers from runs of it.

    Signals: ``step`` and ``num_steps``.

    State: ``share_done``, x.

    Edge cases: 0 for groups of equal rewards and groups of one. Both numbers 1: ``grpo``.

    Source: ours.

    >>> import numpy as np
    >>> weight = OpenLoop(alpha_start=4.0, delta_end=0.25)
    >>> signals = {"step": 50, "num_steps": 100}
    >>> weights_PG, state = weight.update(np.array([[1.0, 0.0]]), weight.init(), **signals)
    >>> weight.report(state)
    {'alpha': 2.0, 'delta': 0.5}
    >>> weights_PG
    array([[ 0.25, -0.5 ]])
    """

    scope: ClassVar = "run"
    domain: ClassVar = "unit"

    alpha_start: float
    """Alpha of the first batch, above 0; the last has 1."""
    delta_end: float
    """Delta of the last batch, above 0; the first has 1."""

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        check_number("open_loop", "alpha_start", self.alpha_start, above=0)
        check_number("open_loop", "delta_end", self.delta_end, above=0)

    @cached_property
    def alpha(self) -> Geometric:
        """The schedule of alpha."""
        return Geometric(start=self.alpha_start, end=1.0)

    @cached_property
    def delta(self) -> Geometric:
        """The schedule of delta."""
        return Geometric(start=1.0, end=self.delta_end)

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

    Least squares on ``log alpha`` and ``log delta`` of the means over the runs, batch by batch:
    ``log alpha_start = sum (1 - x) log alpha / sum (1 - x)^2`` and
    ``log delta_end = sum x log delta / sum x^2``, with ``x = step / num_steps``.

    Args:
        traces: Of each run ``(alpha, delta)`` by the updates done before the batch, as
            ``gradmass.weights.trace.read_trace`` reads them.
        num_steps: Updates of a run.

    Raises:
        UsageError: No batch that all runs have, or none but the first, which says nothing of delta.

    >>> planted = {step: (9 ** (1 - step / 4), 0.25 ** (step / 4)) for step in range(4)}
    >>> fit = fit_open_loop([planted, planted], num_steps=4)
    >>> round(fit.alpha_start, 9), round(fit.delta_end, 9)
    (9.0, 0.25)
    """
    common = sorted(set.intersection(*map(set, traces))) if traces else []
    if not any(common):
        raise UsageError(
            f"a schedule is fitted to batches that all of the {len(traces)} runs have, from step 1 "
            "on; they have none"
        )
    if common[-1] >= num_steps:
        raise UsageError(f"num_steps = {num_steps}, but the runs have a batch at {common[-1]}")

    def fitted(place: int, share_of: Mapping[int, float]) -> float:
        logs = {t: math.log(sum(trace[t][place] for trace in traces) / len(traces)) for t in common}
        product = sum(share_of[t] * logs[t] for t in common)
        return math.exp(product / sum(share_of[t] ** 2 for t in common))

    done = {t: t / num_steps for t in common}
    left = {t: 1.0 - x for t, x in done.items()}
    return OpenLoop(alpha_start=fitted(0, left), delta_end=fitted(1, done))
