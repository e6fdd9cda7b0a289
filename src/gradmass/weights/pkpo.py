"""PKPO: unbiased gradients of the expected largest reward among k of the G rollouts (max@k)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.binomial import falling_ratio
from gradmass.weights.checks import check_whole
from gradmass.weights.groups import positive_or_one, sums_after


class Ladder:
    """Groups in ascending order, as steps from each reward to the next.

    Whatever depends on the maximum of a random subset is a sum over steps of height times the
    chance that the subset reaches beyond the step. Equal rewards make steps of height 0, so that
    they get equal weights.
    """

    def __init__(self, groups: Groups) -> None:
        xp = self.xp = groups.xp
        self.num_P1 = groups.num_scored_P1
        # Masked rollouts stand at the top as copies of the largest reward: steps of height 0.
        largest_P1 = xp.where(self.num_P1 > 0, groups.max_P1, 0.0)
        height_PG = xp.where(groups.mask_PG, groups.rewards_PG, largest_P1)
        key_PG = xp.where(groups.mask_PG, groups.rewards_PG, math.inf)
        self.order_PG = xp.argsort(key_PG, axis=1)
        self.rewards_PG = self._pick(height_PG, self.order_PG)
        self.rank_PG = xp.cumulative_sum(xp.ones_like(self.rewards_PG), axis=1) - 1.0

    @cached_property
    def steps_PG(self) -> Array:
        """Each reward minus the one before it in the order; 0 for the first."""
        first_P1 = self.rewards_PG[:, :1]
        steps_PG = self.rewards_PG[:, 1:] - self.rewards_PG[:, :-1]
        return self.xp.concat([self.xp.zeros_like(first_P1), steps_PG], axis=1)

    def below(self, draws: int, spare: int) -> Array:
        """Chance that ``draws`` of the others, ``n - 1`` of them, all lie below each rank.

        ``spare`` of the rollouts below are not among the others.
        """
        return falling_ratio(self.xp, self.rank_PG - spare, self.num_P1 - 1.0, draws)

    def up_to(self, values_PG: Array) -> Array:
        """Sum over the ranks up to each rank, its own included."""
        return self.xp.cumulative_sum(values_PG, axis=1)

    def above(self, values_PG: Array) -> Array:
        """Sum over the ranks above each rank."""
        return sums_after(self.xp, values_PG)

    def in_given_order(self, values_PG: Array) -> Array:
        """Values of the sorted rollouts, back where the rollouts stood."""
        return self._pick(values_PG, self.xp.argsort(self.order_PG, axis=1))

    def _pick(self, values_PG: Array, order_PG: Array) -> Array:
        return self.xp.take_along_axis(values_PG, order_PG, axis=1)


def best_with(ladder: Ladder, k: int) -> Array:
    """Mean over the subsets of k rollouts with rollout i of their largest reward."""
    reach_PG = 1.0 - ladder.below(k - 1, spare=1)
    return ladder.rewards_PG + ladder.above(ladder.steps_PG * reach_PG)


def best_without(ladder: Ladder, k: int) -> Array:
    """Mean over the subsets of k rollouts without rollout i of their largest reward."""
    reach_up_to_PG = ladder.steps_PG * (1.0 - ladder.below(k, spare=0))
    reach_above_PG = ladder.steps_PG * (1.0 - ladder.below(k, spare=1))
    lowest_P1 = ladder.rewards_PG[:, :1]
    return lowest_P1 + ladder.up_to(reach_up_to_PG) + ladder.above(reach_above_PG)


@register_weight("pkpo_s")
@dataclass(frozen=True, kw_only=True)
class PkpoS(Weight):
    """Credit each rollout with the best reward of the groups of k it can be in; no baseline.

    ``w_i = k mean(max(I))`` over the subsets I of k rollouts of the group with rollout i. Gradient
    masses for binary rewards, large groups: ``m_S = k p``,
    ``m_F = -k (1 - p) (1 - (1 - p)^(k - 1))``: failures are pushed up too, which costs variance.
    The expected gradient is that of pass@k, for every G of at least k.

    Published for the sum over rollouts; the factor G makes it one for their mean, as all weights
    here.

    Edge cases: groups of equal rewards r get k r each. 0 for groups of which masks leave fewer than
    k; if no group has k rollouts, ``update`` raises.

    Source: Walder and Karkhanis 2025, arXiv 2505.15201, Listing 1, ``s``.

    >>> import numpy as np
    >>> PkpoS(k=2).update(np.array([[1.0, 0.0, 0.0]]), {})[0]
    array([[2., 1., 1.]])
    """

    on_ties: ClassVar = "value"
    needs_group: ClassVar = False
    keeps_sign: ClassVar = False

    k: int
    """Rollouts of which the best counts, at least 1 and at most the group size."""

    def __post_init__(self) -> None:
        """Refuse k below 1."""
        check_whole("pkpo_s", "k", self.k, 1)

    @property
    def min_group_size(self) -> int:
        """At least k."""
        return self.k

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``k mean(max(I))``."""
        ladder = Ladder(groups)
        return ladder.in_given_order(self.k * best_with(ladder, self.k))


@register_weight("pkpo_sloo")
@dataclass(frozen=True, kw_only=True)
class PkpoSloo(Weight):
    """``pkpo_s`` minus what the other rollouts would be credited with without this one.

    ``w_i = k (mean(max(I)) - G / (G - 1) mean(max(J)))`` over the subsets I of k rollouts with
    rollout i and the subsets J of k without it. Gradient masses for binary rewards, large groups:
    ``m_S = m_F = k p (1 - p)^k``. The expected gradient is that of pass@k, for every G above k.
    The weights of a group do not sum to 0 at finite G: once ``(1 - p)^k < 1 / G`` successes are
    pushed down on average.

    Published for the sum over rollouts; the factor G makes it one for their mean, as all weights
    here.

    Edge cases: groups of equal rewards r get ``-k r / (G - 1)`` each. 0 for groups of which masks
    leave k or fewer; if no group has more than k rollouts, ``update`` raises.

    Source: Walder and Karkhanis 2025, arXiv 2505.15201, Listing 1, ``sloo``.

    >>> import numpy as np
    >>> PkpoSloo(k=2).update(np.array([[1.0, 0.0, 0.0]]), {})[0]
    array([[ 2., -2., -2.]])
    """

    on_ties: ClassVar = "value"
    keeps_sign: ClassVar = False

    k: int
    """Rollouts of which the best counts, at least 1 and below the group size."""

    def __post_init__(self) -> None:
        """Refuse k below 1."""
        check_whole("pkpo_sloo", "k", self.k, 1)

    @property
    def min_group_size(self) -> int:
        """One more than k."""
        return self.k + 1

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``k (mean(max(I)) - G / (G - 1) mean(max(J)))``."""
        ladder = Ladder(groups)
        others_P1 = positive_or_one(groups.xp, ladder.num_P1 - 1.0)
        baseline_PG = ladder.num_P1 / others_P1 * best_without(ladder, self.k)
        return ladder.in_given_order(self.k * (best_with(ladder, self.k) - baseline_PG))


@register_weight("pkpo_sloo_minus_one")
@dataclass(frozen=True, kw_only=True)
class PkpoSlooMinusOne(Weight):
    """Credit each rollout with what it adds to the best reward of the groups of k it can be in.

    ``w_i = k mean(max(I) - max(I without i))`` over the subsets I of k rollouts of the group with
    rollout i; for binary rewards ``k C(f, k - 1) / C(n - 1, k - 1)`` for a success among f failures
    and 0 for a failure. Gradient masses for binary rewards, exactly:
    ``m_S = k p (1 - p)^(k - 1)``, ``m_F = 0``. The expected gradient is that of pass@k, for every G
    of at least k.

    Published for the sum over rollouts; the factor G makes it one for their mean, as all weights
    here.

    Edge cases: 0 for groups of equal rewards and groups of which masks leave fewer than k; if no
    group has k rollouts, ``update`` raises.

    Source: Walder and Karkhanis 2025, arXiv 2505.15201, Listing 1, ``sloo_minus_one``, the form
    the authors recommend. Not ``compute_pkpo_outcome_advantage`` of tajwarfahim/maxrl, which drops
    k and subtracts a second baseline.

    >>> import numpy as np
    >>> PkpoSlooMinusOne(k=2).update(np.array([[1.0, 0.0, 0.5]]), {})[0]
    array([[1.5, 0. , 0.5]])
    """

    k: int
    """Rollouts of which the best counts, at least 2 and at most the group size."""

    def __post_init__(self) -> None:
        """Refuse k below 2, for which nothing is left without rollout i."""
        check_whole("pkpo_sloo_minus_one", "k", self.k, 2)

    @property
    def min_group_size(self) -> int:
        """At least k."""
        return self.k

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``k mean(max(I) - max(I without i))``."""
        ladder = Ladder(groups)
        # Rollout i raises the maximum over each step below it that its k - 1 partners do not pass.
        raised_PG = ladder.up_to(ladder.steps_PG * ladder.below(self.k - 1, spare=0))
        return ladder.in_given_order(self.k * raised_PG)
