"""Weights that tilt rewards exponentially: risk-seeking above beta = 0, risk-averse below."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_number
from gradmass.weights.groups import positive_or_one, sums_after, sums_before

SMALLEST_MEAN = 1e-300
"""Below this a quotient overflows."""


def exponents(groups: Groups, beta: float) -> Array:
    """``beta r_i``, shifted so that the largest of each group is 0; 0 where not scored."""
    xp = groups.xp
    best_P1 = groups.max_P1 if beta > 0 else -groups.mirrored.max_P1
    return beta * xp.where(groups.mask_PG, groups.rewards_PG - best_P1, 0.0)


def mean_tilt(groups: Groups, beta: float) -> Array:
    """``exp(beta r_i) / mean(exp(beta r)) - 1``, the mean over the group."""
    xp = groups.xp
    # All as differences from 1, which a small beta leaves little of.
    tilt_PG = xp.expm1(exponents(groups, beta))
    mean_P1 = xp.sum(tilt_PG, axis=1, keepdims=True) / positive_or_one(xp, groups.num_scored_P1)
    return (tilt_PG - mean_P1) / (1.0 + mean_P1)


@register_weight("rs_grpo")
@dataclass(frozen=True, kw_only=True)
class RsGrpo(Weight):
    """Risk-sensitive GRPO: the gradient of log-mean-exp of the rewards.

    ``w_i = (exp(beta r_i) / mean(exp(beta r)) - 1) / beta``. Gradient masses for binary rewards,
    large groups, ``a = e^beta - 1``: ``m_S = m_F = a p (1 - p) / (beta (1 + a p))``, heaviest at
    ``p = 1 / (1 + e^(beta / 2))``. Objective: ``log(1 + a p) / beta``, which is p at beta = 0,
    where the weight is ``grpo``.

    Edge cases: 0 for groups of equal rewards and groups of one. Exponents are taken from the
    largest of the group, so that no beta overflows.

    Source: Jiang et al. 2025, arXiv 2509.24261; Jackory/RS-GRPO, whose default beta is 2.

    >>> import numpy as np
    >>> RsGrpo(beta=np.log(3)).update(np.array([[1.0, 0.0]]), {})[0].round(4)
    array([[ 0.4551, -0.4551]])
    """

    zero_sum: ClassVar = True

    beta: float = 2.0
    """Sensitivity to risk per unit of reward; negative turns to easy problems."""

    def __post_init__(self) -> None:
        """Refuse an infinite beta."""
        check_number("rs_grpo", "beta", self.beta)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(exp(beta r) / mean(exp(beta r)) - 1) / beta``."""
        if self.beta == 0:
            return groups.centred_PG
        return mean_tilt(groups, self.beta) / self.beta


@register_weight("entropic")
@dataclass(frozen=True, kw_only=True)
class Entropic(Weight):
    """``rs_grpo`` times beta: the tilted reward relative to the group's mean, or to the others'.

    ``w_i = exp(beta r_i) / Z - 1``, Z the mean of ``exp(beta r)`` over the group, or over the other
    rollouts if ``leave_one_out``. Gradient masses for binary rewards, large groups,
    ``a = e^beta - 1``: ``m_S = m_F = a p (1 - p) / (1 + a p)``. With ``leave_one_out`` a sole
    success weighs ``e^beta - 1``, without bound.

    Edge cases: 0 for groups of equal rewards and groups of one. Left-one-out weights beyond the
    range of floats raise.

    Source: the entropic objective of TTT-Discover (2026), whose beta is adapted to a divergence of
    log 2 from uniform; here beta is given.

    >>> import numpy as np
    >>> Entropic(beta=np.log(3)).update(np.array([[1.0, 0.0]]), {})[0].round(4)
    array([[ 0.5, -0.5]])
    >>> Entropic(beta=np.log(3), leave_one_out=True).update(np.array([[1.0, 0.0]]), {})[0].round(4)
    array([[ 2.    , -0.6667]])
    """

    beta: float = 2.0
    """Sensitivity to risk per unit of reward, above 0."""
    leave_one_out: bool = False
    """Whether Z leaves out the rollout weighed."""

    def __post_init__(self) -> None:
        """Refuse a beta that is not positive."""
        check_number("entropic", "beta", self.beta, above=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``exp(beta r) / Z - 1``."""
        if not self.leave_one_out:
            return mean_tilt(groups, self.beta)
        xp = groups.xp
        factor_PG = xp.where(groups.mask_PG, xp.exp(exponents(groups, self.beta)), 0.0)
        # Summed without the rollout, not by difference: a dominant one would drown the others.
        others_PG = sums_before(xp, factor_PG) + sums_after(xp, factor_PG)
        mean_PG = others_PG / positive_or_one(xp, groups.num_scored_P1 - 1.0)
        return factor_PG / xp.where(mean_PG > SMALLEST_MEAN, mean_PG, xp.nan) - 1.0
