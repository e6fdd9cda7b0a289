"""Objective and sign apart: what is climbed, and how its gradient is split over the verdicts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from gradmass.types import Array, State, UsageError
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_number
from gradmass.weights.schedules import clip
from gradmass.weights.signals import score_squares

NoiseRatio: TypeAlias = float | Literal["measured"]


def apart_weights(groups: Groups, alpha: float, delta: float) -> Array:
    """``F'(p) delta q / (delta q + p)`` for a success, ``-F'(p) p / (delta q + p)`` for a failure.

    ``F'(p) = q^(alpha - 1)``, q = 1 - p, p the mean of the other rollouts of the group. A rollout
    does not depend on its own p, so the expected gradient is ``E F'(p)`` times that of the solve
    rate for every delta, at every group size.

    Args:
        groups: Rewards of 0 and 1.
        alpha: At least 1.
        delta: Ratio of positive to negative mass, above 0.
    """
    xp, solved_PG = groups.xp, groups.others_mean_PG
    failed_PG = 1.0 - solved_PG
    weights_PG = xp.where(groups.rewards_PG == 1, delta * failed_PG, -solved_PG)
    return failed_PG ** (alpha - 1.0) * weights_PG / (delta * failed_PG + solved_PG)


@register_weight("sign_by_noise")
@dataclass(frozen=True, kw_only=True)
class SignByNoise(Weight):
    """Give the less noisy verdict more of the gradient, and failures less where they are stale.

    ``w_i = F'(p) delta q / (delta q + p)`` for a success, ``-F'(p) p / (delta q + p)`` for a
    failure, with ``F'(p) = q^(alpha - 1)``, ``q = 1 - p`` and p the mean of the other rollouts of
    the group. Gradient masses for binary rewards, large groups:
    ``m_S = F'(p) delta p q / (delta q + p)``, ``m_F = m_S / delta``. The implied objective is that
    of ``power_unbiased`` for every delta: its slope is ``w_S + w_F = F'(p)``.

    ``delta = ratio (1 + lag)^lag_exponent``, within ``[1 / delta_max, delta_max]``. The ratio is
    ``E |g|^2`` of wrong rollouts over that of right ones, ``g = grad log pi(answer)`` without any
    weight: in large groups it makes ``b = p / (delta q + p)`` the baseline of least variance,
    ``E r |g|^2 / E |g|^2``. The factor of the lag is ours: a failure of a policy that is
    gone is pushed down for what the present one may no longer say.

    Signals: ``score_squares``, both squared norms of a batch, where the ratio is measured; each has
    a moving average, which is the plain mean of its first ``1 / ema`` values, since one batch
    measures few rollouts. ``policy_lag``, in updates, unless the exponent is 0. The ratio is 1
    until both squares were seen.

    State: ``right_square``, ``wrong_square``, the averages; ``num_right``, ``num_wrong``, values in
    them; ``lag``.

    Edge cases: 0 for groups of equal rewards and groups of one. A batch without right rollouts
    says nothing of theirs. alpha = 1, ratio = 1, lag_exponent = 0 is ``rloo``.

    Source: ours.

    >>> import numpy as np
    >>> weight = SignByNoise()
    >>> rewards_PG = np.array([[1.0, 1.0, 0.0]])
    >>> signals = {"score_squares": (1.0, 2.0), "policy_lag": 0}
    >>> weight.update(rewards_PG, weight.init(), **signals)[0]
    array([[ 0.66666667,  0.66666667, -1.        ]])
    """

    scope: ClassVar = "run"
    domain: ClassVar = "binary"

    alpha: float = 1.0
    """Exponent of the objective, at least 1; 1 is the solve rate, more favours hard problems."""
    noise_ratio: NoiseRatio = "measured"
    """E |g|^2 of wrong over right rollouts: measured, or a number above 0."""
    ema: float = 0.02
    """Weight of the new value in the averages of both squares, in (0, 1]."""
    lag_exponent: float = 0.5
    """How delta rises with the policy's lag, at least 0; 0: not at all."""
    delta_max: float = 10.0
    """Largest delta, and one over the smallest; at least 1."""

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        check_number("sign_by_noise", "alpha", self.alpha, at_least=1)
        check_number("sign_by_noise", "lag_exponent", self.lag_exponent, at_least=0)
        check_number("sign_by_noise", "delta_max", self.delta_max, at_least=1)
        if not 0 < self.ema <= 1:
            raise UsageError(f"sign_by_noise needs ema in (0, 1], got {self.ema}")
        if self.noise_ratio != "measured":
            if not isinstance(self.noise_ratio, int | float):
                raise UsageError(
                    'sign_by_noise needs noise_ratio "measured" or a number above 0, '
                    f"got {self.noise_ratio!r}"
                )
            check_number("sign_by_noise", "noise_ratio", self.noise_ratio, above=0)

    @property
    def needs(self) -> tuple[str, ...]:
        """The squares where they are measured, the lag where it counts."""
        needed = {"score_squares": self.noise_ratio == "measured", "policy_lag": self.lag_exponent}
        return tuple(name for name, is_needed in needed.items() if is_needed)

    def init(self) -> State:
        """Nothing is measured yet."""
        averages = {"right_square": 0.0, "wrong_square": 0.0, "lag": 0.0}
        return {**averages, "num_right": 0, "num_wrong": 0}

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Move the averages towards the batch's squares, and take its lag."""
        after = dict(state)
        if self.noise_ratio == "measured":
            for side, value in zip(("right", "wrong"), score_squares(signals), strict=True):
                if value is not None:
                    square, num = state[f"{side}_square"], state[f"num_{side}"] + 1
                    after[f"num_{side}"] = num
                    after[f"{side}_square"] = square + max(self.ema, 1 / num) * (value - square)
        if self.lag_exponent:
            lag = float(signals["policy_lag"])
            check_number("sign_by_noise", "policy_lag", lag, at_least=0)
            after["lag"] = lag
        return after

    def ratio(self, state: State) -> float:
        """``E |g|^2`` of wrong over right rollouts; 1 where it is not known."""
        if self.noise_ratio != "measured":
            return float(self.noise_ratio)
        right, wrong = state["right_square"], state["wrong_square"]
        # A policy that is sure of every token has scores of 0, and its noise no ratio.
        return float(wrong / right) if right and wrong else 1.0

    def delta(self, state: State) -> float:
        """The ratio, raised with the lag, within its bounds."""
        raised = self.ratio(state) * (1.0 + state["lag"]) ** self.lag_exponent
        return clip(raised, 1.0 / self.delta_max, self.delta_max)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return the weights with the delta of the state."""
        return apart_weights(groups, self.alpha, self.delta(state))

    def report(self, state: State) -> dict[str, float | str | None]:
        """Delta, and the ratio it was made of."""
        return {"delta": self.delta(state), "noise_ratio": self.ratio(state)}
