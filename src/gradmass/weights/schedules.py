"""Schedules: one number (alpha or delta) a step, from what the run has measured so far.

A schedule is pure, like a weight: ``init`` gives a state of plain JSON, ``observe`` the state after
a batch, ``value`` the number. FADE is equation (11) with two of them; each ablation of the paper
exchanges one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gradmass.types import State, UsageError
from gradmass.weights.groups import Groups
from gradmass.weights.signals import success_counts, time_of

TargetEntropy: TypeAlias = float | Literal["half-initial"]


def clip(value: float, low: float, high: float) -> float:
    """Limit a number to an interval."""
    return max(low, min(high, value))


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A number that may follow the run."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Signals without which there is no value."""
        return ()

    def init(self) -> State:
        """State before the first batch."""
        return {}

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """State after a batch."""
        return state

    @abstractmethod
    def value(self, state: State) -> float:
        """The number to use for the batch observed last."""


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The same number all along."""

    constant: float

    def value(self, state: State) -> float:
        """Return the constant."""
        return self.constant


@dataclass(frozen=True, kw_only=True)
class SolveRateAlpha(Schedule):
    """Alpha from the solve rate: hard problems first, GRPO once most rollouts succeed.

    ``alpha = clip(3 (1 - p_hat) / (2 p_hat), 1, alpha_max)``; ``p_hat`` is the moving average
    ``(1 - ema) p_hat + ema p`` of the batch solve rate p, starting at 0.5. A batch in which no
    rollout is scored leaves it alone.

    Source: arXiv 2607.01490, equation (12).
    """

    alpha_max: float
    ema: float

    def init(self) -> State:
        """``solve_rate_ema``, a share, starts at one half."""
        return {"solve_rate_ema": 0.5}

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Move the average towards the batch's solve rate."""
        num_success, num_scored = success_counts(groups, signals)
        if num_scored == 0:
            return state
        average = (1 - self.ema) * state["solve_rate_ema"] + self.ema * num_success / num_scored
        return {**state, "solve_rate_ema": average}

    def value(self, state: State) -> float:
        """Equation (12); ``alpha_max`` while nothing was ever solved."""
        p = state["solve_rate_ema"]
        return self.alpha_max if p <= 0 else clip(1.5 * (1 - p) / p, 1.0, self.alpha_max)


@dataclass(frozen=True, kw_only=True)
class EntropySchedule(Schedule):
    """The moving average of the mean token entropy, and the target it is held against.

    ``H_hat`` starts at the first entropy received and moves by ``(1 - ema) H_hat + ema H``. Its
    kind (temperature, tokens, aggregation) is kept beside it: a number of another kind raises.

    State, in nats: ``entropy_ema`` and ``entropy_initial``, None until the first entropy;
    ``entropy_kind``; ``entropy_lag``, the updates between the measured policy and the trained one.
    """

    ema: float
    target_entropy: TargetEntropy

    def init(self) -> State:
        """Nothing is measured yet."""
        return dict.fromkeys(("entropy_ema", "entropy_initial", "entropy_kind", "entropy_lag"))

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Move the average towards the batch's entropy, if it was measured."""
        entropy, kind = signals.get("entropy_nats"), signals.get("entropy_kind")
        lag = signals.get("policy_lag")
        if entropy is None:
            return state
        if not (math.isfinite(entropy) and entropy >= 0):
            raise UsageError(f"entropy_nats must be finite and at least 0, got {entropy}")
        known_kind = state["entropy_kind"]
        if state["entropy_ema"] is not None and kind != known_kind:
            raise UsageError(
                f"entropy_kind {kind!r} differs from {known_kind!r}, which the average so far is "
                "made of; measure it as before, or start from a fresh state"
            )
        before = float(entropy) if state["entropy_ema"] is None else state["entropy_ema"]
        initial = state["entropy_initial"]
        return {
            "entropy_ema": (1 - self.ema) * before + self.ema * float(entropy),
            "entropy_initial": before if initial is None else initial,
            "entropy_kind": kind,
            "entropy_lag": None if lag is None else float(lag),
        }

    def target(self, state: State) -> float:
        """H* in nats: the number given, or half the first entropy received."""
        if self.target_entropy == "half-initial":
            return float(state["entropy_initial"]) / 2
        return self.target_entropy


@dataclass(frozen=True, kw_only=True)
class EntropyDelta(EntropySchedule):
    """Delta from the entropy: failures weigh more as the entropy falls below its target.

    Absolute form: ``delta = clip(1 + H_hat - H*, delta_min, 1)``. It is not scale-free: delta
    cannot fall below ``1 - H*``. Relative form (ours, not the paper's):
    ``delta = clip(H_hat / H*, delta_min, 1)``. Delta is 1 until the first entropy arrives.

    Source: arXiv 2607.01490, equation (13), for the absolute form.
    """

    delta_min: float
    form: Literal["absolute", "relative"]

    def value(self, state: State) -> float:
        """Equation (13) or its relative form."""
        average = state["entropy_ema"]
        if average is None:
            return 1.0
        target = self.target(state)
        if self.form == "absolute":
            return clip(1.0 + average - target, self.delta_min, 1.0)
        # A policy that starts without entropy cannot fall below half of it.
        return 1.0 if target == 0 else clip(average / target, self.delta_min, 1.0)


@dataclass(frozen=True, kw_only=True)
class EntropyAlpha(EntropySchedule):
    """Alpha from the entropy, for the ablation that drives alpha and delta by it.

    ``alpha = 1 + (alpha_max - 1) clip((H_hat - H*) / (H_0 - H*), 0, 1)`` with H_0 the first
    entropy received; ``alpha_max`` until it arrives, and 1 where H_0 is not above H*. The paper's
    own form is not public; this one is ours.
    """

    alpha_max: float

    def value(self, state: State) -> float:
        """Fall from ``alpha_max`` to 1 as the entropy falls to its target."""
        average = state["entropy_ema"]
        if average is None:
            return self.alpha_max
        initial, target = state["entropy_initial"], self.target(state)
        share = clip((average - target) / (initial - target), 0.0, 1.0) if initial > target else 0.0
        return 1.0 + (self.alpha_max - 1.0) * share


@dataclass(frozen=True, kw_only=True)
class LogDecay(Schedule):
    """From ``start`` to ``end`` by a fixed logarithmic decay, for the open-loop ablation.

    ``start - (start - end) log(1 + t) / log(1 + T)`` with t the updates done (signal ``step``) and
    T their number (``num_steps``). The paper's own form is not public; this one is ours.
    """

    start: float
    end: float

    @property
    def needs(self) -> tuple[str, ...]:
        """The time and its end."""
        return ("step", "num_steps")

    def init(self) -> State:
        """The share of the way that is gone, 0 to 1."""
        return {"decayed_share": 0.0}

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Take the time."""
        step, num_steps = time_of(signals)
        return {"decayed_share": math.log1p(step) / math.log1p(num_steps)}

    def value(self, state: State) -> float:
        """Interpolate on the logarithm of time."""
        return self.start - (self.start - self.end) * float(state["decayed_share"])
