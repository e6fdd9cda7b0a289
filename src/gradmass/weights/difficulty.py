"""GRPO with standard deviation, times a factor that follows the solve rate of the prompt."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_choice, check_number
from gradmass.weights.groups import positive_or_one


@dataclass(frozen=True, kw_only=True)
class OnStandardScores(Weight):
    """What these weights share: standard scores of the group, and how they are taken."""

    domain: ClassVar = "unit"

    ddof: Literal[0, 1] = 1
    """Degrees of freedom taken from the group size: 1 (Bessel) or 0 (population)."""
    eps: float = 1e-6
    """Added to the standard deviation, in units of the reward; at least 0."""

    def __post_init__(self) -> None:
        """Refuse other ddof and a negative eps."""
        check_choice(self.name, "ddof", self.ddof, (0, 1))
        check_number(self.name, "eps", self.eps, at_least=0)

    def scores_PG(self, groups: Groups) -> Array:
        """``(r - rbar) / (std + eps)``."""
        spread_P1 = groups.std_P1(self.ddof) + self.eps
        return groups.centred_PG / positive_or_one(groups.xp, spread_P1)


@register_weight("f_grpo")
@dataclass(frozen=True, kw_only=True)
class FGrpo(OnStandardScores):
    """``grpo_std`` with its mass moved to hard problems.

    ``w_i = (1 - rbar)^gamma (r_i - rbar) / (std + eps)``. Gradient masses for binary rewards, large
    groups: ``m_S = m_F = sqrt(p (1 - p)) (1 - p)^gamma``, heaviest at ``p = 1 / (2 + 2 gamma)``.

    Edge cases: 0 for groups of equal rewards and groups of one. gamma = 0 is ``grpo_std``.

    Source: Plyusov et al. 2026, arXiv 2602.06717, equations 12 and 13, gamma 0.5 or 1.

    >>> import numpy as np
    >>> FGrpo(ddof=0, eps=0.0).update(np.array([[1.0, 0.0]]), {})[0]
    array([[ 0.5, -0.5]])
    """

    zero_sum: ClassVar = True

    gamma: float = 1.0
    """Exponent of the failure rate, at least 0."""

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        super().__post_init__()
        check_number("f_grpo", "gamma", self.gamma, at_least=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(1 - rbar)^gamma`` times the scores."""
        # A mean that rounds above 1 is that of a tied group.
        failure_P1 = groups.xp.where(groups.mean_P1 < 1, 1.0 - groups.mean_P1, 0.0)
        return failure_P1**self.gamma * self.scores_PG(groups)


@register_weight("grpo_lead")
@dataclass(frozen=True, kw_only=True)
class GrpoLead(OnStandardScores):
    """``grpo_std`` whose successes weigh more on hard problems and failures more on easy ones.

    ``w_i = z_i h(rbar)`` where the standard score z_i is above 0, else ``z_i h(1 - rbar)``, with
    the logistic ``h(x) = low + (high - low) / (1 + exp(steepness (x - midpoint)))``. Gradient
    masses for binary rewards, large groups: ``m_S = sqrt(p (1 - p)) h(p)``,
    ``m_F = sqrt(p (1 - p)) h(1 - p)``.

    Edge cases: 0 for groups of equal rewards and groups of one.

    Source: arXiv 2504.09696; aeroplanepaper/GRPO-LEAD ``logistic_reweight``, whose A, B, x0 and k
    are low, high, midpoint and steepness. Without the original's bonus for short answers, which is
    one of rewards.

    >>> import numpy as np
    >>> GrpoLead(low=1.0, high=3.0, midpoint=0.5).update(np.array([[1.0, 0.0]]), {})[0].round(4)
    array([[ 1.4142, -1.4142]])
    """

    low: float = 0.4
    """Factor far above the midpoint, at least 0."""
    high: float = 1.5
    """Factor far below the midpoint, at least 0."""
    midpoint: float = 0.75
    """Solve rate at which the factor is the mean of both."""
    steepness: float = 10.0
    """How sharply it falls there: by ``steepness (high - low) / 4`` a unit of solve rate."""

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        super().__post_init__()
        check_number("grpo_lead", "low", self.low, at_least=0)
        check_number("grpo_lead", "high", self.high, at_least=0)
        check_number("grpo_lead", "midpoint", self.midpoint)
        check_number("grpo_lead", "steepness", self.steepness)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return the scores times the logistic of the solve or of the failure rate."""
        scores_PG, solved_P1 = self.scores_PG(groups), groups.mean_P1
        factor_PG = groups.xp.where(
            scores_PG > 0, self._factor(groups, solved_P1), self._factor(groups, 1.0 - solved_P1)
        )
        return scores_PG * factor_PG

    def _factor(self, groups: Groups, rate_P1: Array) -> Array:
        # The logistic by tanh, which no steepness overflows.
        height_P1 = 0.5 - 0.5 * groups.xp.tanh(0.5 * self.steepness * (rate_P1 - self.midpoint))
        return self.low + (self.high - self.low) * height_P1


@register_weight("mgpo")
@dataclass(frozen=True, kw_only=True)
class Mgpo(OnStandardScores):
    """``grpo_std`` narrowed around problems of solve rate 1/2.

    ``w_i = exp(-sharpness KL(rbar || 1/2)) (r_i - rbar) / (std + eps)``, KL in nats between coins.
    Gradient masses for binary rewards, large groups:
    ``m_S = m_F = sqrt(p (1 - p)) exp(-sharpness KL(p || 1/2))``, heaviest at p = 1/2.

    Edge cases: 0 for groups of equal rewards and groups of one. sharpness = 0 is ``grpo_std``.

    Source: VibeThinker, Xu et al. 2025, arXiv 2511.06221; its value of lambda, here sharpness, and
    its standard deviation are not known for sure.

    >>> import numpy as np
    >>> Mgpo(ddof=0, eps=0.0).update(np.array([[1.0, 0.0]]), {})[0]
    array([[ 1., -1.]])
    """

    zero_sum: ClassVar = True

    sharpness: float = 1.0
    """How fast mass falls with the divergence from 1/2, at least 0."""

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        super().__post_init__()
        check_number("mgpo", "sharpness", self.sharpness, at_least=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``exp(-sharpness KL)`` times the scores."""
        xp = groups.xp
        solved_P1 = groups.inner_mean_P1
        failed_P1 = 1.0 - solved_P1
        divergence_P1 = (
            math.log(2.0) + solved_P1 * xp.log(solved_P1) + failed_P1 * xp.log(failed_P1)
        )
        return xp.exp(-self.sharpness * divergence_P1) * self.scores_PG(groups)
