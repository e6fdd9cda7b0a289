"""Weights that follow the likelihood of a success: the log of the solve rate, or part of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.binomial import falling_ratio
from gradmass.weights.checks import check_number, check_whole
from gradmass.weights.groups import positive_or_one


@register_weight("maxrl")
@dataclass(frozen=True, kw_only=True)
class MaxRl(Weight):
    """GRPO divided by the mean of the group: maximum likelihood as far as G rollouts show it.

    ``w_i = (r_i - rbar) / (rbar + eps)``. Gradient masses for binary rewards:
    ``m_S = m_F = 1 - p`` for large groups, ``(1 - p) - (1 - p)^G`` for groups of G. The objective
    is log p, truncated at finite G to the first G - 1 terms of its series in ``1 - p``.

    Edge cases: 0 for groups of equal rewards, groups without a success among them, and groups of
    one. Another function: ``advantage_type = "maxrl"`` of the original's MISC estimator, which
    divides ``grpo_std`` by the mean.

    Source: Tajwar et al. 2026, arXiv 2602.02710; tajwarfahim/maxrl
    ``compute_maxrl_outcome_advantage``. ``eps=0`` is prime-rl's ``max_rl``.

    >>> import numpy as np
    >>> MaxRl(eps=0.0).update(np.array([[1.0, 0.0, 0.0, 0.0]]), {})[0]
    array([[ 3., -1., -1., -1.]])
    """

    zero_sum: ClassVar = True
    domain: ClassVar = "unit"

    eps: float = 1e-6
    """Added to the mean, in units of the reward; at least 0."""

    def __post_init__(self) -> None:
        """Refuse a negative eps."""
        check_number("maxrl", "eps", self.eps, at_least=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(r - rbar) / (rbar + eps)``."""
        return groups.centred_PG / positive_or_one(groups.xp, groups.mean_P1 + self.eps)


@register_weight("maxrl_conditional")
@dataclass(frozen=True, kw_only=True)
class MaxRlConditional(Weight):
    """``maxrl`` that pushes failures down in groups without a success too.

    With s successes and f failures: ``w_i = f / s`` for a success, -1 for a failure. Gradient
    masses for binary rewards: ``m_S = (1 - p) - (1 - p)^G``, ``m_F = 1 - p``. The objective is the
    first G terms of the series of log p in ``1 - p``, one more than ``maxrl`` has.

    Published for the sum over rollouts; the factor G makes it one for their mean, as all weights
    here.

    Edge cases: 0 for groups of successes, -1 for each rollout of a group of failures, of one too.

    Source: Tajwar et al. 2026, arXiv 2602.02710; tajwarfahim/maxrl ``vr_cond_weights``.

    >>> import numpy as np
    >>> MaxRlConditional().update(np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), {})[0]
    array([[ 2., -1., -1.],
           [-1., -1., -1.]])
    """

    on_ties: ClassVar = "value"
    domain: ClassVar = "binary"
    needs_group: ClassVar = False

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``f / s`` or -1."""
        xp = groups.xp
        num_success_P1 = xp.sum(groups.rewards_PG, axis=1, keepdims=True)
        num_failure_P1 = groups.num_scored_P1 - num_success_P1
        odds_P1 = num_failure_P1 / positive_or_one(xp, num_success_P1)
        return xp.where(groups.rewards_PG == 1, odds_P1, -1.0)


@register_weight("maclaurin")
@dataclass(frozen=True, kw_only=True)
class Maclaurin(Weight):
    """The first T terms of the series of log p in ``1 - p``, without bias and without baseline.

    ``w_i = 1`` for a success, ``-sum_(0 < t < T) C(f - 1, t) / C(n - 1, t)`` for a failure,
    f failures among n rollouts. Gradient masses for binary rewards, exactly for G of at least T:
    ``m_S = p``, ``m_F = sum_(0 < t < T) (1 - p)^(t + 1)``.

    Published for the sum over rollouts; the factor G makes it one for their mean, as all weights
    here.

    Edge cases: groups of equal rewards and groups of one are weighed like any other; all failures
    get ``-(T - 1)`` each. A group of fewer than T rollouts gives as many terms as it has rollouts.

    Source: Tajwar et al. 2026, arXiv 2602.02710; tajwarfahim/maxrl ``maclaurin_weights``.

    >>> import numpy as np
    >>> Maclaurin(T=2).update(np.array([[1.0, 0.0, 0.0]]), {})[0]
    array([[ 1. , -0.5, -0.5]])
    """

    on_ties: ClassVar = "value"
    domain: ClassVar = "binary"
    needs_group: ClassVar = False

    T: int
    """Terms of the series, at least 1 (which is ``psr``)."""

    def __post_init__(self) -> None:
        """Refuse T below 1."""
        check_whole("maclaurin", "T", self.T, 1)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return 1 or minus the sum of the terms."""
        xp, num_P1 = groups.xp, groups.num_scored_P1
        failures_P1 = num_P1 - xp.sum(groups.rewards_PG, axis=1, keepdims=True)
        sum_P1 = xp.zeros_like(num_P1)
        for t in range(1, min(self.T, groups.rewards_PG.shape[1])):
            sum_P1 = sum_P1 + falling_ratio(xp, failures_P1 - 1.0, num_P1 - 1.0, t)
        return xp.where(groups.rewards_PG == 1, 1.0, -sum_P1)


@register_weight("one_sided")
@dataclass(frozen=True, kw_only=True)
class OneSided(Weight):
    """GRPO divided by the root of the mean of the group: between ``grpo_std`` and ``maxrl``.

    ``w_i = (r_i - rbar) / (sqrt(rbar) + eps)``. Gradient masses for binary rewards, large groups:
    ``m_S = m_F = sqrt(p) (1 - p)``, heaviest at p = 1/3. Objective: ``2 sqrt(p)``.

    Edge cases: 0 for groups of equal rewards and groups of one.

    Source: tajwarfahim/maxrl ``compute_one_sided_grpo_outcome_advantage``.

    >>> import numpy as np
    >>> OneSided(eps=0.0).update(np.array([[1.0, 0.0, 0.0, 0.0]]), {})[0]
    array([[ 1.5, -0.5, -0.5, -0.5]])
    """

    zero_sum: ClassVar = True
    domain: ClassVar = "unit"

    eps: float = 1e-6
    """Added to the root of the mean; at least 0."""

    def __post_init__(self) -> None:
        """Refuse a negative eps."""
        check_number("one_sided", "eps", self.eps, at_least=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(r - rbar) / (sqrt(rbar) + eps)``."""
        xp = groups.xp
        return groups.centred_PG / positive_or_one(xp, xp.sqrt(groups.mean_P1) + self.eps)
