"""Hold the entropy at a falling share of what it was: a controller that knows no nats."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from gradmass.types import Array, State, UsageError
from gradmass.weights.apart import apart_weights
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_number, check_whole
from gradmass.weights.schedules import EntropySchedule, TargetEntropy, clip
from gradmass.weights.signals import time_of

LOWEST_SHARE = 1e-3
"""Of the initial entropy: below, its logarithm says no more."""
SURE = 3.0
"""Standard errors from 0 at which the sign of the effect of delta counts as seen."""
FEWEST_PAIRS = 4
"""Below, a standard error is itself too uncertain."""


@dataclass(frozen=True, kw_only=True)
class SharePi(EntropySchedule):
    """``log delta = -effect clip(k_p e + k_i I, -L, L) + probe_size s``.

    ``e = log(H_hat / H_0) - x log(final_share)``, x the share of the updates done, is the error;
    I the sum of errors, held where the control is at its bound; ``L + probe_size`` is
    ``log(delta_max)``, so that the probe moves delta in full even there.

    ``s`` is 1 for ``probe_every`` batches, then -1 for as many, and so on. The slopes of ``log H``
    over the two, fitted by least squares, differ by ``2 probe_size`` times what log delta does to
    it in an update; whatever changes the entropy besides is in both. ``effect`` is the sign of the
    mean over such pairs, once there are ``FEWEST_PAIRS`` and it is ``SURE`` standard errors from 0;
    until then -1, the paper's: less delta, more entropy. Where it turns, I starts anew.

    State: that of an entropy schedule; ``integral``; ``log_delta``; ``effect``; and of the probing
    ``num_batches``, ``moment`` (the slope's sum so far), ``first_slope``, ``num_pairs``,
    ``pair_mean``, ``pair_squares`` (sum of squared deviations).
    """

    target_entropy: TargetEntropy = "half-initial"
    final_share: float
    k_p: float
    k_i: float
    delta_max: float
    probe_size: float
    probe_every: int

    @property
    def needs(self) -> tuple[str, ...]:
        """The time and its end."""
        return ("step", "num_steps")

    def init(self) -> State:
        """Delta is 1, the effect the paper's."""
        zeros = ("integral", "log_delta", "moment", "pair_mean", "pair_squares")
        return {
            **super().init(),
            **dict.fromkeys(zeros, 0.0),
            "effect": -1,
            "num_batches": 0,
            "num_pairs": 0,
            "first_slope": None,
        }

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Take the batch's entropy, if it was measured: see what the probe did, then control."""
        step, num_steps = time_of(signals)
        state = {**state, **super().observe(groups, state, signals)}
        if signals.get("entropy_nats") is None or state["entropy_initial"] == 0:
            return state
        now = self._log_share(float(signals["entropy_nats"]), state)
        state = self._probed(state, now)
        error = self._log_share(state["entropy_ema"], state)
        error -= step / num_steps * math.log(self.final_share)
        bound = math.log(self.delta_max) - self.probe_size
        integral = state["integral"]
        wanted = self.k_p * error + self.k_i * (integral + error)
        if abs(wanted) <= bound or wanted * error < 0:
            integral += error  # not further into a bound
        control = -state["effect"] * clip(wanted, -bound, bound)
        is_up = state["num_batches"] // self.probe_every % 2 == 0
        dither = self.probe_size if is_up else -self.probe_size
        return {
            **state,
            "integral": integral,
            "log_delta": control + dither,
            "num_batches": state["num_batches"] + 1,
        }

    def _log_share(self, entropy: float, state: State) -> float:
        return math.log(max(entropy / state["entropy_initial"], LOWEST_SHARE))

    def _probed(self, state: State, log_share: float) -> State:
        """Add a batch to the slope; at the end of a pair of half periods judge the effect.

        The entropy of a batch was made by the deltas of those before it, so the slope over the
        batches 1 to ``probe_every`` after a turn belongs to the half period that began there.
        """
        size, batch = self.probe_every, state["num_batches"]
        if batch == 0 or self.probe_size == 0:
            return state
        place = (batch - 1) % size
        moment = state["moment"] + (place - (size - 1) / 2) * log_share
        if place < size - 1:
            return {**state, "moment": moment}
        slope = moment * 12 / (size * (size**2 - 1))
        if state["first_slope"] is None:
            return {**state, "moment": 0.0, "first_slope": slope}
        found = (state["first_slope"] - slope) / (2 * self.probe_size)
        num = state["num_pairs"] + 1
        mean = state["pair_mean"] + (found - state["pair_mean"]) / num
        squares = state["pair_squares"] + (found - state["pair_mean"]) * (found - mean)
        error = math.sqrt(squares / (num * (num - 1))) if num >= FEWEST_PAIRS else math.inf
        effect, integral = state["effect"], state["integral"]
        if mean * effect < 0 and abs(mean) > SURE * error:
            effect, integral = -effect, 0.0
        return {
            **state,
            "moment": 0.0,
            "first_slope": None,
            "num_pairs": num,
            "pair_mean": mean,
            "pair_squares": squares,
            "effect": effect,
            "integral": integral,
        }

    def value(self, state: State) -> float:
        """Delta of the batch observed last."""
        return math.exp(state["log_delta"])


@register_weight("entropy_share")
@dataclass(frozen=True, kw_only=True)
class EntropyShare(Weight):
    """A controller of delta holds the entropy at an annealed share of the initial one.

    ``w_i = F'(p) delta q / (delta q + p)`` for a success, ``-F'(p) p / (delta q + p)`` for a
    failure, with ``F'(p) = q^(alpha - 1)``, ``q = 1 - p`` and p the mean of the other rollouts of
    the group: delta moves the balance of the signs, never the objective or the total pull.
    Gradient masses for binary rewards, large groups: ``m_S = F'(p) delta p q / (delta q + p)``,
    ``m_F = m_S / delta``.

    The target is ``H_0 final_share^x``, H_0 the first entropy received and x the share of the
    updates done. ``log delta`` is a proportional-integral controller's answer to the error of
    ``log(H_hat / H_0)``, H_hat the moving average of the mean token entropy, plus a small square
    wave that shows which way delta moves the entropy: the controller turns round where that is
    not the way it took it to be. Entropies in another unit, or of a start five times as high, give
    the same deltas.

    Signals: ``step``, ``num_steps``, and ``entropy_nats`` with ``entropy_kind`` and ``policy_lag``.
    Until the first entropy arrives delta is 1; a batch without one leaves it.

    State: that of the controller (``SharePi``).

    Edge cases: 0 for groups of equal rewards and groups of one. A first entropy of 0 has no shares:
    delta stays 1. A share below 1/1000 counts as that.

    Source: ours.

    >>> import numpy as np
    >>> weight = EntropyShare(probe_size=0.0)
    >>> rewards_PG, state = np.array([[1.0, 1.0, 0.0]]), weight.init()
    >>> for entropy in (2.0, 1.0):
    ...     signals = {"entropy_nats": entropy, "entropy_kind": "tokens", "step": 0, "num_steps": 9}
    ...     weights_PG, state = weight.update(rewards_PG, state, **signals)
    >>> weights_PG.round(3)
    array([[ 0.448,  0.448, -1.   ]])
    """

    scope: ClassVar = "run"
    domain: ClassVar = "binary"

    alpha: float = 1.0
    """Exponent of the objective, at least 1; 1 is the solve rate, more favours hard problems."""
    final_share: float = 0.5
    """Share of the initial entropy that is the target at the end, above 0."""
    k_p: float = 4.0
    """Gain of the error of the logarithm, at least 0."""
    k_i: float = 0.05
    """Gain of the sum of errors, at least 0."""
    ema: float = 0.1
    """Weight of the new value in the average of the entropy, in (0, 1]."""
    delta_max: float = 4.0
    """Largest delta, and one over the smallest; above 1."""
    probe_size: float = 0.2
    """How far log delta is moved up and down to see its effect, at least 0 and below
    log(delta_max); 0 trusts the paper."""
    probe_every: int = 10
    """Batches between turns of that, at least 2."""

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        check_number("entropy_share", "alpha", self.alpha, at_least=1)
        check_number("entropy_share", "final_share", self.final_share, above=0)
        for name in ("k_p", "k_i", "probe_size"):
            check_number("entropy_share", name, getattr(self, name), at_least=0)
        check_number("entropy_share", "delta_max", self.delta_max, above=1)
        if self.probe_size >= math.log(self.delta_max):
            raise UsageError(
                f"entropy_share needs probe_size below log(delta_max) = "
                f"{math.log(self.delta_max):.3g}, got {self.probe_size}"
            )
        check_whole("entropy_share", "probe_every", self.probe_every, at_least=2)
        if not 0 < self.ema <= 1:
            raise UsageError(f"entropy_share needs ema in (0, 1], got {self.ema}")

    @cached_property
    def delta(self) -> SharePi:
        """The controller of delta."""
        return SharePi(
            ema=self.ema,
            final_share=self.final_share,
            k_p=self.k_p,
            k_i=self.k_i,
            delta_max=self.delta_max,
            probe_size=self.probe_size,
            probe_every=self.probe_every,
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """The time and its end."""
        return self.delta.needs

    def init(self) -> State:
        """The controller's state."""
        return self.delta.init()

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Show the batch to the controller."""
        return self.delta.observe(groups, state, signals)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return the weights with the controller's delta."""
        return apart_weights(groups, self.alpha, self.delta.value(state))

    def report(self, state: State) -> dict[str, float | str | None]:
        """Delta, the average of the entropy, and what the probe has found."""
        return {
            "delta": self.delta.value(state),
            "entropy_ema": state["entropy_ema"],
            "entropy_initial": state["entropy_initial"],
            "integral": state["integral"],
            "effect": state["effect"],
            "effect_per_update": state["pair_mean"],
        }
