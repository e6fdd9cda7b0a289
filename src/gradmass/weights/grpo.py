"""GRPO: rewards relative to the mean of the group, and the ways to divide by a spread."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_choice, check_number
from gradmass.weights.groups import batch_moments, positive_or_one


@register_weight("grpo")
@dataclass(frozen=True, kw_only=True)
class Grpo(Weight):
    """Weigh each rollout by its reward minus the mean of its group; no division.

    ``w_i = r_i - rbar``, with rbar the mean reward of the rollout's own group. Gradient masses for
    binary rewards: ``m_S = m_F = p (1 - p)`` for large groups, ``(G - 1) / G`` of that for groups
    of G; heaviest at p = 1/2. This is what the FADE paper calls GRPO.

    Edge cases: 0 for groups of equal rewards and groups of one.

    Dr. GRPO (arXiv 2503.20783) is this weight with a loss that sums over tokens and divides by a
    constant, the recipe's default; it needs no weight of its own.

    Source: arXiv 2607.01490, equation (3). Shao et al.'s original (arXiv 2402.03300) divides by
    the standard deviation: ``grpo_std``.

    >>> import numpy as np
    >>> Grpo().update(np.array([[1.0, 0.0, 0.0, 0.0]]), {})[0]
    array([[ 0.75, -0.25, -0.25, -0.25]])
    """

    zero_sum: ClassVar = True

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``r - rbar``."""
        return groups.centred_PG

    def report(self, state: State) -> dict[str, float | str | None]:
        """Alpha and delta: GRPO is equation (11) with both at 1."""
        return {"alpha": 1.0, "delta": 1.0}


@register_weight("grpo_std")
@dataclass(frozen=True, kw_only=True)
class GrpoStd(Weight):
    """Weigh each rollout by its reward's distance from the group mean in standard deviations.

    ``w_i = (r_i - rbar) / (std + eps)``, std the standard deviation of the group's rewards with
    ``G - ddof`` in its denominator. Gradient masses for binary rewards, large groups:
    ``m_S = m_F = sqrt(p (1 - p))``, nearly flat in difficulty, twice GRPO's at p = 1/2.

    The engines differ: ddof 1 everywhere but in open-instruct (ddof 0, eps 1e-8); eps 1e-6 in
    verl, SkyRL and slime (the default here), 1e-4 in TRL, 1e-9 in OpenRLHF, 1e-8 in oat.

    Edge cases: 0 for groups of equal rewards and groups of one. A reward that differs by little
    weighs as much as one that differs by a lot, unless ``std_floor`` is above the spread of such
    groups.

    Source: Shao et al. 2024, arXiv 2402.03300; verl ``compute_grpo_outcome_advantage``, TRL
    ``GRPOTrainer`` with ``scale_rewards="group"``.

    >>> import numpy as np
    >>> GrpoStd(ddof=0, eps=0.0).update(np.array([[1.0, 0.0]]), {})[0]
    array([[ 1., -1.]])
    """

    zero_sum: ClassVar = True

    ddof: Literal[0, 1] = 1
    """Degrees of freedom taken from the group size: 1 (Bessel) or 0 (population)."""
    eps: float = 1e-6
    """Added to the standard deviation, in units of the reward; at least 0."""
    std_floor: float = 0.0
    """Least standard deviation to divide by, in units of the reward; at least 0."""

    def __post_init__(self) -> None:
        """Refuse other ddof, and a negative eps or floor."""
        check_choice("grpo_std", "ddof", self.ddof, (0, 1))
        check_number("grpo_std", "eps", self.eps, at_least=0)
        check_number("grpo_std", "std_floor", self.std_floor, at_least=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(r - rbar) / (std + eps)``."""
        xp, std_P1 = groups.xp, groups.std_P1(self.ddof)
        std_P1 = xp.where(std_P1 > self.std_floor, std_P1, self.std_floor)
        return groups.centred_PG / positive_or_one(xp, std_P1 + self.eps)


@register_weight("grpo_loo_std")
@dataclass(frozen=True, kw_only=True)
class GrpoLooStd(Weight):
    """Weigh each rollout by its distance from the other rollouts' mean in their deviations.

    ``w_i = (r_i - mean_(-i)) / (std_(-i) + eps)``, both over the group without rollout i, std with
    Bessel's correction. Where the others are all equal there is no division: ``w_i`` is the
    difference itself. Gradient masses for binary rewards, large groups:
    ``m_S = m_F = sqrt(p (1 - p))``, those of ``grpo_std``; small groups differ: a sole success gets
    1 and each of its failures ``-1 / sqrt(G - 1)``, so that together failures outweigh it; a sole
    failure is outweighed likewise.

    Edge cases: 0 for groups of equal rewards and groups of one; no division in groups of two. Not
    zero-sum.

    Source: NVIDIA NeMo-RL, ``GRPOAdvantageEstimator`` with
    ``calculate_baseline_and_std_per_prompt``, its default; Shao et al. 2024, arXiv 2402.03300, use
    the whole group.

    >>> import numpy as np
    >>> GrpoLooStd(eps=0.0).update(np.array([[1.0, 0.0, 0.0, 0.0]]), {})[0]
    array([[ 1.        , -0.57735027, -0.57735027, -0.57735027]])
    """

    eps: float = 1e-6
    """Added to the standard deviation, in units of the reward; at least 0."""

    def __post_init__(self) -> None:
        """Refuse a negative eps."""
        check_number("grpo_loo_std", "eps", self.eps, at_least=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(r - mean_(-i)) / (std_(-i) + eps)``."""
        xp, num_P1 = groups.xp, groups.num_scored_P1
        from_others_PG = groups.from_others_PG
        centred_PG = xp.where(groups.mask_PG, groups.centred_PG, 0.0)
        squares_P1 = xp.sum(centred_PG**2, axis=1, keepdims=True)
        squares_of_others_PG = squares_P1 - centred_PG * from_others_PG
        variance_PG = squares_of_others_PG / xp.where(num_P1 > 2, num_P1 - 2.0, 1.0)
        # The difference of squares rounds: whether the others are equal is read off their rewards.
        lowest_PG = -groups.mirrored.max_of_others_PG
        is_spread_PG = (groups.max_of_others_PG > lowest_PG) & (variance_PG > 0)
        std_PG = xp.sqrt(xp.where(is_spread_PG, variance_PG, 1.0))
        return from_others_PG / xp.where(is_spread_PG, std_PG + self.eps, 1.0)


@register_weight("grpo_batch_std")
@dataclass(frozen=True, kw_only=True)
class GrpoBatchStd(Weight):
    """``grpo`` divided by the standard deviation of all rewards of the batch.

    ``w_i = (r_i - rbar) / (std_batch + eps)``, rbar of the group, std with Bessel's correction over
    all scored rewards. Gradient masses for binary rewards, large groups:
    ``m_S = m_F = p (1 - p) / sqrt(P (1 - P))``, P the solve rate of the batch.

    Edge cases: 0 for groups of equal rewards and groups of one.

    Source: TRL ``GRPOTrainer`` with ``scale_rewards="batch"``, whose eps is the default here.

    >>> import numpy as np
    >>> GrpoBatchStd(eps=0.0).update(np.array([[1.0, 0.0], [0.5, 0.5]]), {})[0].round(4)
    array([[ 1.2247, -1.2247],
           [ 0.    ,  0.    ]])
    """

    scope: ClassVar = "batch"
    zero_sum: ClassVar = True

    eps: float = 1e-4
    """Added to the standard deviation, in units of the reward; at least 0."""

    def __post_init__(self) -> None:
        """Refuse a negative eps."""
        check_number("grpo_batch_std", "eps", self.eps, at_least=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(r - rbar) / (std_batch + eps)``."""
        _, variance = batch_moments(groups, groups.rewards_PG, groups.counts_PG)
        spread = math.sqrt(variance) + self.eps
        return groups.centred_PG / (spread if spread > 0 else 1.0)
