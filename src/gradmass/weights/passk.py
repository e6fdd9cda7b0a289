"""Weights for the best of a whole group, and the analytic pass@k of the group."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.binomial import falling_ratio
from gradmass.weights.checks import check_number, check_whole
from gradmass.weights.groups import positive_or_one


def margin_over_others(groups: Groups) -> Array:
    """How much each rollout adds to the largest reward of its group, 0 without other rollouts."""
    xp, others_PG = groups.xp, groups.max_of_others_PG
    is_above_PG = (groups.rewards_PG > others_PG) & (groups.num_scored_P1 > 1)
    return xp.where(is_above_PG, groups.rewards_PG - xp.where(is_above_PG, others_PG, 0.0), 0.0)


@register_weight("passk_tang")
@dataclass(frozen=True, kw_only=True)
class PasskTang(Weight):
    """Weigh each rollout by what it adds to the best reward of its group: pass@k with k = G.

    ``w_i = G (max(r) - max(r without r_i))``. Gradient masses for binary rewards, exactly:
    ``m_S = G p (1 - p)^(G - 1)``, ``m_F = 0``, so the expected gradient is that of pass@G. Only a
    sole success is weighed: few groups give any signal.

    Published for the sum over rollouts; the factor G makes it one for their mean, as all weights
    here. For k below G see ``pkpo_sloo_minus_one``, which this is at k = G.

    Edge cases: 0 for groups of equal rewards and groups of one. Where masks leave n of G rollouts
    the factor is n.

    Source: Tang et al. 2025, arXiv 2503.19595, section 3.1.

    >>> import numpy as np
    >>> PasskTang().update(np.array([[1.0, 0.0, 0.25], [1.0, 1.0, 0.0]]), {})[0]
    array([[2.25, 0.  , 0.  ],
           [0.  , 0.  , 0.  ]])
    """

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``G (max(r) - max(r without r_i))``."""
        return groups.num_scored_P1 * margin_over_others(groups)


@register_weight("grpo_passk")
@dataclass(frozen=True, kw_only=True)
class GrpoPassk(Weight):
    """Weigh the best rollout of each group by its lead over the second best, others by 0.

    ``w_i = max(r) - second(r)`` where r_i is the largest, else 0: ``passk_tang`` without the factor
    G. Gradient masses for binary rewards, exactly: ``m_S = p (1 - p)^(G - 1)``, ``m_F = 0``.

    Edge cases: 0 for groups of equal rewards and groups of one, and where the two best are equal.

    Source: verl ``compute_grpo_passk_outcome_advantage`` with ``norm_adv_by_std_in_grpo = False``.
    verl's default divides by the group's standard deviation, which is no pass@k gradient.

    >>> import numpy as np
    >>> GrpoPassk().update(np.array([[1.0, 0.5, 0.25]]), {})[0]
    array([[0.5, 0. , 0. ]])
    """

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return the lead of the best."""
        return margin_over_others(groups)


@register_weight("passk_chen")
@dataclass(frozen=True, kw_only=True)
class PasskChen(Weight):
    """GRPO with standard deviation on groups of k drawn from the group, averaged analytically.

    With f failures among n rollouts, ``R = 1 - C(f, k) / C(n, k)`` and
    ``sigma = sqrt(R (1 - R))``: ``w_i = C(f - 1, k - 1) / C(n - 1, k - 1) (r_i - rbar) / (sigma +
    eps)``. For a success that is ``(1 - R) / (sigma + eps)``. Gradient masses for binary rewards,
    large groups: ``m_S = m_F = p sqrt((1 - p)^k / (1 - (1 - p)^k))``.

    Edge cases: 0 for groups of equal rewards, for groups with fewer than k failures (for all groups
    if k = G), and for groups of which masks leave fewer than k; if no group has k rollouts,
    ``update`` raises.

    Source: Chen et al. 2025, arXiv 2508.10751; RUCAIBox/Passk_Training ``calc_adv``, which leaves
    rewards other than 0 and 1 as they are; here they are refused.

    >>> import numpy as np
    >>> PasskChen(k=2, eps=0.0).update(np.array([[1.0, 0.0, 0.0, 0.0]]), {})[0]
    array([[ 1.        , -0.33333333, -0.33333333, -0.33333333]])
    """

    zero_sum: ClassVar = True
    domain: ClassVar = "binary"

    k: int
    """Rollouts a drawn group has, at least 1 and at most the group size."""
    eps: float = 1e-6
    """Added to sigma; at least 0."""

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        check_whole("passk_chen", "k", self.k, 1)
        check_number("passk_chen", "eps", self.eps, at_least=0)

    @property
    def min_group_size(self) -> int:
        """At least k."""
        return self.k

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``C(f - 1, k - 1) / C(n - 1, k - 1) (r - rbar) / (sigma + eps)``."""
        xp, num_P1 = groups.xp, groups.num_scored_P1
        failures_P1 = num_P1 - xp.sum(groups.rewards_PG, axis=1, keepdims=True)
        missed_P1 = falling_ratio(xp, failures_P1, num_P1, self.k)
        share_P1 = falling_ratio(xp, failures_P1 - 1.0, num_P1 - 1.0, self.k - 1)
        spread_P1 = xp.sqrt(missed_P1 * (1.0 - missed_P1)) + self.eps
        share_P1 = xp.where(failures_P1 > 0, share_P1, 0.0)
        return groups.centred_PG * (share_P1 / positive_or_one(xp, spread_P1))
