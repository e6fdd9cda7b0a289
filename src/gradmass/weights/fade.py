"""FADE: alpha and delta follow the run's solve rate and entropy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from gradmass.types import Array, State, UsageError
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.power import power_asym_weights
from gradmass.weights.schedules import (
    Constant,
    EntropyAlpha,
    EntropyDelta,
    LogDecay,
    Schedule,
    SolveRateAlpha,
    TargetEntropy,
)


@register_weight("fade")
@dataclass(frozen=True, kw_only=True)
class Fade(Weight):
    """Start with hard problems, and turn to failures when entropy runs low.

    ``w_i = (1 - rbar)^(alpha - 1) (r_i - rbar)``, divided by delta where ``r_i < rbar``: the weight
    ``power_asym`` with parameters from two schedules.

    ``alpha = clip(3 (1 - p_hat) / (2 p_hat), 1, alpha_max)`` from the moving average p_hat of the
    batch solve rate; ``delta = clip(1 + H_hat - H*, delta_min, 1)`` from the moving average H_hat
    of the mean token entropy in nats. A step first moves both averages by its own batch, then
    weighs. Gradient masses for binary rewards, large groups: ``m_S = p (1 - p)^alpha``,
    ``m_F = m_S / delta``. The schedules change the total mass, by up to 6 times within a run.

    Signals: the solve rate comes from ``num_success`` and ``num_scored``, else ``successes_PG``,
    else rewards of 0 and 1; the entropy from ``entropy_nats`` with ``entropy_kind`` and
    ``policy_lag``. Until the first entropy arrives delta is 1.

    State: ``{"alpha": ..., "delta": ...}``, that of each schedule (``schedules.py``).

    Edge cases: 0 for groups of equal rewards and groups of one.

    Source: arXiv 2607.01490, equations (11) to (13). The EMA weight 0.02 is on the new value; the
    paper's pseudo-code read literally has it on the old one, which ``ema=0.98`` reproduces. The
    absolute form of delta is the paper's, the relative form is ours.

    >>> import numpy as np
    >>> fade = Fade()
    >>> weights_PG, state = fade.update(np.array([[1.0, 0.0]]), fade.init(), entropy_nats=2.0)
    >>> fade.report(state)["alpha"], fade.report(state)["delta"]
    (1.5, 1.0)
    >>> weights_PG
    array([[ 0.35355339, -0.35355339]])
    """

    scope: ClassVar = "run"
    domain: ClassVar = "unit"

    alpha_max: float = 3.0
    """Largest alpha, at least 1."""
    delta_min: float = 0.3
    """Smallest delta, in (0, 1]."""
    ema: float = 0.02
    """Weight of the new value in both moving averages, in (0, 1]."""
    target_entropy: TargetEntropy = "half-initial"
    """H*: mean token entropy in nats below which failures gain weight, or half the first one."""
    entropy_form: Literal["absolute", "relative"] = "absolute"
    """Delta from the difference H_hat - H* (the paper's) or from the ratio H_hat / H* (ours)."""
    alpha_schedule: Literal["solve-rate", "entropy", "log-decay", "constant"] = "solve-rate"
    """What alpha follows; the others are the paper's ablations (constant: 1)."""
    delta_schedule: Literal["entropy", "log-decay", "constant"] = "entropy"
    """What delta follows; the others are the paper's ablations (constant: 1)."""

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        if not 1 <= self.alpha_max < math.inf:
            raise UsageError(f"fade needs a finite alpha_max of at least 1, got {self.alpha_max}")
        if not 0 < self.delta_min <= 1:
            raise UsageError(f"fade needs delta_min in (0, 1], got {self.delta_min}")
        if not 0 < self.ema <= 1:
            raise UsageError(f"fade needs ema in (0, 1], got {self.ema}")
        if self.target_entropy != "half-initial" and not (
            isinstance(self.target_entropy, int | float) and 0 < self.target_entropy < math.inf
        ):
            raise UsageError(
                'fade needs target_entropy "half-initial" or a finite number of nats above 0, '
                f"got {self.target_entropy!r}"
            )
        for field, known in (
            ("entropy_form", ("absolute", "relative")),
            ("alpha_schedule", ("solve-rate", "entropy", "log-decay", "constant")),
            ("delta_schedule", ("entropy", "log-decay", "constant")),
        ):
            if getattr(self, field) not in known:
                raise UsageError(
                    f"fade needs {field} one of {', '.join(known)}, got {getattr(self, field)!r}"
                )

    @cached_property
    def alpha(self) -> Schedule:
        """The schedule of alpha."""
        schedules: dict[str, Schedule] = {
            "solve-rate": SolveRateAlpha(alpha_max=self.alpha_max, ema=self.ema),
            "entropy": EntropyAlpha(
                alpha_max=self.alpha_max, ema=self.ema, target_entropy=self.target_entropy
            ),
            "log-decay": LogDecay(start=self.alpha_max, end=1.0),
            "constant": Constant(constant=1.0),
        }
        return schedules[self.alpha_schedule]

    @cached_property
    def delta(self) -> Schedule:
        """The schedule of delta."""
        schedules: dict[str, Schedule] = {
            "entropy": EntropyDelta(
                ema=self.ema,
                target_entropy=self.target_entropy,
                delta_min=self.delta_min,
                form=self.entropy_form,
            ),
            "log-decay": LogDecay(start=1.0, end=self.delta_min),
            "constant": Constant(constant=1.0),
        }
        return schedules[self.delta_schedule]

    @property
    def needs(self) -> tuple[str, ...]:
        """What the schedules in use need."""
        return tuple(dict.fromkeys((*self.alpha.needs, *self.delta.needs)))

    def init(self) -> State:
        """The states of both schedules."""
        return {"alpha": self.alpha.init(), "delta": self.delta.init()}

    def _check_state(self, state: State) -> None:
        super()._check_state(state)
        for key, own in self.init().items():
            if state[key].keys() != own.keys():
                raise UsageError(
                    f"weight {self.label} was given a state whose {key} has {sorted(state[key])}, "
                    f"which is another schedule's; its own has {sorted(own)} (start from init())"
                )

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Show the batch to both schedules."""
        return {
            "alpha": self.alpha.observe(groups, state["alpha"], signals),
            "delta": self.delta.observe(groups, state["delta"], signals),
        }

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return equation (11) with the schedules' values."""
        alpha, delta = self.alpha.value(state["alpha"]), self.delta.value(state["delta"])
        return power_asym_weights(groups, alpha, delta)

    def report(self, state: State) -> dict[str, float | str | None]:
        """Alpha and delta with the averages they follow."""
        return {
            "alpha": self.alpha.value(state["alpha"]),
            "delta": self.delta.value(state["delta"]),
            **state["alpha"],
            **state["delta"],
        }
