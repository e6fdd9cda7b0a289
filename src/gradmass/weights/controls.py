"""Controls: what else changes when a weight changes, held still.

``sign_pure`` moves the sign axis alone. The others are made of weights: ``constant_mass`` removes
a weight's scale and its schedule, ``replay`` gives a run the parameters or the scale that another
run had, ``mix`` and ``clip`` interpolate and limit. In a recipe the inner weight is a table of its
own:

    [weight]
    type = "constant_mass"
    [weight.inner]
    type = "fade"
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from gradmass.types import Array, State, UsageError
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_choice, check_number
from gradmass.weights.fade import Fade
from gradmass.weights.grpo import Grpo
from gradmass.weights.maxrl import MaxRl
from gradmass.weights.power import Power, power_asym_weights
from gradmass.weights.signals import solve_rates
from gradmass.weights.trace import read_trace
from gradmass.weights.wrapper import Wrapper, scaled_to

FADE, GRPO, MAXRL, POWER = Fade(), Grpo(), MaxRl(), Power()


@register_weight("sign_pure")
@dataclass(frozen=True, kw_only=True)
class SignPure(Weight):
    """The sign axis alone: delta moves mass between the signs, the expected gradient stays.

    ``w_i = delta (1 - p) / (delta (1 - p) + p)`` for a success, ``-p / (delta (1 - p) + p)`` for a
    failure, p the solve rate of the problem. Gradient masses for binary rewards, large groups:
    ``m_S = delta p (1 - p) / (delta (1 - p) + p)``, ``m_F = m_S / delta``. The implied objective is
    the solve rate itself, ``F' = w_S + w_F = 1`` for every delta, where ``asym_grpo_delta`` changes
    F with delta. delta = 1 is ``rloo``.

    p is never taken from the rollout weighed: it is the signal ``solve_rate_P``, a problem's
    history, or the mean of the other rollouts of the group. With the latter ``F' = 1`` is exact at
    every group size, ``m_S / m_F = delta`` nearly so.

    Signals: ``solve_rate_P``, within [0, 1], if there is one.

    Edge cases: without history, 0 for groups of equal rewards and groups of one. With it the group
    plays no part.

    Source: ours.

    >>> import numpy as np
    >>> SignPure(delta=2.0).update(np.array([[1.0, 1.0, 0.0]]), {})[0]
    array([[ 0.66666667,  0.66666667, -1.        ]])
    >>> SignPure(delta=2.0).update(np.array([[1.0]]), {}, solve_rate_P=np.array([0.5]))[0]
    array([[0.66666667]])
    """

    domain: ClassVar = "binary"
    on_ties: ClassVar = "value"
    needs_group: ClassVar = False

    delta: float = 0.5
    """Ratio of positive to negative mass, above 0."""

    def __post_init__(self) -> None:
        """Refuse ratios that are not positive."""
        check_number("sign_pure", "delta", self.delta, above=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(delta (1 - p) r - p (1 - r)) / (delta (1 - p) + p)``."""
        xp, rewards_PG = groups.xp, groups.rewards_PG
        solved = self._solve_rate(groups, signals)
        weights_PG = xp.where(rewards_PG == 1, self.delta * (1.0 - solved), -solved)
        weights_PG = weights_PG / (self.delta * (1.0 - solved) + solved)
        if signals.get("solve_rate_P") is None:
            weights_PG = xp.where(groups.num_scored_P1 > 1, weights_PG, 0.0)
        return weights_PG

    def _solve_rate(self, groups: Groups, signals: Mapping[str, Any]) -> Array:
        """Solve rate of the problem, for each rollout."""
        history_P = signals.get("solve_rate_P")
        return groups.others_mean_PG if history_P is None else solve_rates(groups, history_P)


@register_weight("constant_mass")
@dataclass(frozen=True, kw_only=True)
class ConstantMass(Wrapper):
    """Another weight with its total mass held at that of mean-only GRPO, batch by batch.

    ``w_i = c v_i``, v the inner weight and ``c = sum_j |r_j - rbar| / sum_j |v_j|`` over the scored
    rollouts of the batch. Gradient masses for binary rewards: ``m_S = c m_S(v)``,
    ``m_F = c m_F(v)``, which add up to ``2 mean(rbar (1 - rbar))`` over the groups of the batch.
    What is left of the inner weight is its sign and its difficulty; its scale is gone, and with it
    any schedule of the learning rate that hides in it.

    Signals and state: those of the inner weight, the state under ``inner``.

    Edge cases: 0 where the inner weight is 0 for the whole batch, whatever GRPO's mass, and in
    batches of groups of equal rewards, where GRPO has none.

    Source: ours.

    >>> import numpy as np
    >>> from gradmass.weights.reinforce import Reinforce
    >>> rewards_PG = np.array([[1.0, 0.0], [0.0, 0.0]])
    >>> ConstantMass(inner=Reinforce()).update(rewards_PG, {})[0]
    array([[1., 0.],
           [0., 0.]])
    """

    own_scope: ClassVar = "batch"

    inner: Weight = FADE
    """The weight whose mass is held."""

    def __post_init__(self) -> None:
        """Take over what the inner weight declares; groups of one have no mass to hold."""
        super().__post_init__()
        object.__setattr__(self, "needs_group", True)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``v sum |r - rbar| / sum |v|``."""
        xp = groups.xp
        is_weighed_PG = groups.mask_PG & ~groups.is_tied_P1
        grpo = float(xp.sum(xp.where(is_weighed_PG, xp.abs(groups.centred_PG), 0.0)))
        return scaled_to(groups, self.weigh_part("inner", groups, state, signals), grpo)


@register_weight("replay")
@dataclass(frozen=True, kw_only=True)
class Replay(Wrapper):
    """What another run's weight did at each step, whatever this run's measurements say.

    ``what = "alpha_delta"``: ``w_i = (1 - rbar)^(alpha - 1) (r_i - rbar)``, divided by delta where
    ``r_i < rbar``, with the alpha and delta that the other run used at this step: the yoked arm,
    which has FADE's schedule without its feedback. ``what = "mass"``: the inner weight times the
    number that makes the batch's mean absolute weight the other run's total mass at this step: the
    scale-matched arm. Gradient masses for binary rewards, large groups: ``m_S = p (1 - p)^alpha``,
    ``m_F = m_S / delta``, or those of the inner weight times a number.

    ``trace`` is the ``metrics.jsonl`` of a run (``weight/alpha`` and ``weight/delta``, or
    ``mass/positive`` plus ``mass/negative``; the row of step t + 1 tells of the batch that followed
    t updates), or a JSON list with an entry a batch from step 0: ``[alpha, delta]``, or the total
    mass.

    Signals: ``step``, and those of the inner weight.

    State: ``step``, updates done, and the inner weight's under ``inner``.

    Edge cases: the mean absolute weight is over scored rollouts; it is the total mass for weights
    above 0 on successes and below 0 on failures. 0 where the inner weight is 0 for the whole batch.
    A step that the trace does not have raises.

    Source: ours.
    """

    own_scope: ClassVar = "run"

    trace: str
    """Path of the other run's ``metrics.jsonl``, or of a JSON list."""
    what: Literal["alpha_delta", "mass"] = "alpha_delta"
    """What is taken from the other run: alpha and delta, or the total mass."""
    inner: Weight = GRPO
    """The weight whose total mass is set, where ``what`` is ``mass``."""

    def __post_init__(self) -> None:
        """Read the trace."""
        super().__post_init__()
        check_choice("replay", "what", self.what, ("alpha_delta", "mass"))
        if self.what == "alpha_delta":
            if self.inner != GRPO:
                raise UsageError(
                    f"replay of alpha and delta has no inner weight, got {self.inner.label}; it "
                    'belongs to what = "mass"'
                )
            object.__setattr__(self, "domain", "unit")
        _ = self.entries  # read now: a bad trace is refused at once

    @cached_property
    def entries(self) -> dict[int, tuple[float, ...]]:
        """Alpha and delta, or the total mass, by updates done before the batch."""
        return read_trace(self.trace, self.what)

    @property
    def needs(self) -> tuple[str, ...]:
        """The step, and what the inner weight needs."""
        return tuple(dict.fromkeys(("step", *super().needs)))

    def init(self) -> State:
        """The start of the trace."""
        return {"step": 0, **super().init()}

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Take the time, and show the batch to the inner weight."""
        inner = {name: value for name, value in state.items() if name != "step"}
        return {"step": int(signals["step"]), **super().observe(groups, inner, signals)}

    def _at(self, state: State) -> tuple[float, ...]:
        if state["step"] not in self.entries:
            steps = sorted(self.entries)
            raise UsageError(
                f"replay: {self.trace} has nothing for step {state['step']}, only for "
                f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
            )
        return self.entries[state["step"]]

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return equation (11) with the trace's parameters, or the inner weight at its mass."""
        if self.what == "alpha_delta":
            alpha, delta = self._at(state)
            return power_asym_weights(groups, alpha, delta)
        (mass,) = self._at(state)
        weights_PG = self.weigh_part("inner", groups, state, signals)
        return scaled_to(groups, weights_PG, mass * float(groups.xp.sum(groups.num_scored_P1)))

    def report(self, state: State) -> dict[str, float | str | None]:
        """Alpha and delta, or the total mass, taken from the trace."""
        names = ("alpha", "delta") if self.what == "alpha_delta" else ("mass",)
        return {**super().report(state), **dict(zip(names, self._at(state), strict=True))}


@register_weight("mix")
@dataclass(frozen=True, kw_only=True)
class Mix(Wrapper):
    """The sum of two weights, each times a number.

    ``w_i = a u_i + b v_i``. Gradient masses: ``m_S = a m_S(u) + b m_S(v)``,
    ``m_F = a m_F(u) + b m_F(v)``.

    Signals and state: those of the two, the states under ``first`` and ``second``.

    Edge cases: those of the two.

    Source: ours; with a and b that sum to 1 the path from one weight to another.

    >>> import numpy as np
    >>> from gradmass.weights.reinforce import Reinforce
    >>> mix = Mix(first=Grpo(), second=Reinforce(), first_factor=2.0, second_factor=1.0)
    >>> mix.update(np.array([[1.0, 0.0]]), mix.init())[0]
    array([[ 2., -1.]])
    """

    first: Weight = GRPO
    """The weight u."""
    second: Weight = POWER
    """The weight v."""
    first_factor: float = 0.5
    """The number a."""
    second_factor: float = 0.5
    """The number b."""

    def __post_init__(self) -> None:
        """Take over what the two declare."""
        super().__post_init__()
        check_number("mix", "first_factor", self.first_factor)
        check_number("mix", "second_factor", self.second_factor)
        is_kept = self.keeps_sign and min(self.first_factor, self.second_factor) >= 0
        object.__setattr__(self, "keeps_sign", is_kept)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``a u + b v``."""
        first_PG = self.weigh_part("first", groups, state, signals)
        second_PG = self.weigh_part("second", groups, state, signals)
        return self.first_factor * first_PG + self.second_factor * second_PG


@register_weight("clip")
@dataclass(frozen=True, kw_only=True)
class Clip(Wrapper):
    """Another weight, limited to an interval.

    ``w_i = min(max(v_i, low), high)``. Gradient masses for binary rewards, large groups:
    ``m_S = p min(v_S, high)``, ``m_F = (1 - p) min(v_F, -low)``, with ``v_S`` and ``-v_F`` the
    inner weights of successes and failures. Most weights are largest for the rare outcome.

    Signals and state: those of the inner weight, the state under ``inner``.

    Edge cases: those of the inner weight; 0 stays 0.

    Source: ours.

    >>> import numpy as np
    >>> Clip(inner=MaxRl(eps=0.0)).update(np.array([[1.0, 0.0, 0.0, 0.0]]), {})[0]
    array([[ 1., -1., -1., -1.]])
    """

    inner: Weight = MAXRL
    """The weight that is limited."""
    low: float = -1.0
    """Lowest weight, at most 0."""
    high: float = 1.0
    """Highest weight, at least 0."""

    def __post_init__(self) -> None:
        """Take over what the inner weight declares; refuse intervals without 0."""
        super().__post_init__()
        check_number("clip", "high", self.high, at_least=0)
        if not -math.inf < self.low <= 0:
            raise UsageError(f"clip needs a finite low of at most 0, got {self.low}")

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return the inner weight within its limits."""
        weights_PG = self.weigh_part("inner", groups, state, signals)
        return groups.xp.clip(weights_PG, self.low, self.high)
