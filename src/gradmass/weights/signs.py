"""Weights that treat successes and failures apart."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gradmass.types import Array, State, UsageError
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_choice, check_number
from gradmass.weights.groups import positive_or_one


@register_weight("psr")
@dataclass(frozen=True, kw_only=True)
class Psr(Weight):
    """Push successes up and ignore failures (positive sample reinforcement).

    ``w_i = 1`` for a success, 0 for a failure. Gradient masses for binary rewards: ``m_S = p``,
    ``m_F = 0``. Expected gradient of the solve rate p, as ``nsr`` and ``grpo``.

    Edge cases: the group plays no part, so a group of one and a group of equal rewards are weighed
    like any other. Only 0 and 1 are rewards; for real ones see ``reinforce``.

    Source: Zhu et al. 2025, arXiv 2506.01347; RLVR-Decomposed
    ``compute_psr_nsr_outcome_advantage``. The original drops failures from the batch before the
    loss, so that its mean is over successes alone; here they keep their place with weight 0.

    >>> import numpy as np
    >>> Psr().update(np.array([[1.0, 0.0]]), {})[0]
    array([[1., 0.]])
    """

    on_ties: ClassVar = "value"
    domain: ClassVar = "binary"
    needs_group: ClassVar = False

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``r``."""
        return groups.rewards_PG


@register_weight("nsr")
@dataclass(frozen=True, kw_only=True)
class Nsr(Weight):
    """Push failures down and ignore successes (negative sample reinforcement).

    ``w_i = 0`` for a success, -1 for a failure. Gradient masses for binary rewards: ``m_S = 0``,
    ``m_F = 1 - p``. Expected gradient of the solve rate p, as ``psr`` and ``grpo``.

    Edge cases: the group plays no part, so a group of one and a group of equal rewards are weighed
    like any other.

    Source: Zhu et al. 2025, arXiv 2506.01347; RLVR-Decomposed
    ``compute_psr_nsr_outcome_advantage``. The original drops successes from the batch before the
    loss, so that its mean is over failures alone; here they keep their place with weight 0.

    >>> import numpy as np
    >>> Nsr().update(np.array([[1.0, 0.0]]), {})[0]
    array([[ 0., -1.]])
    """

    on_ties: ClassVar = "value"
    domain: ClassVar = "binary"
    needs_group: ClassVar = False

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``r - 1``."""
        return groups.rewards_PG - 1.0


@register_weight("w_reinforce")
@dataclass(frozen=True, kw_only=True)
class WReinforce(Weight):
    """``nsr`` with a little of ``psr``.

    ``w_i = success_weight`` for a success, -1 for a failure. Gradient masses for binary rewards, L
    the success weight: ``m_S = L p``, ``m_F = 1 - p``. Expected gradient of ``(1 + L) p``.

    Edge cases: the group plays no part, so a group of one and a group of equal rewards are weighed
    like any other.

    Source: Zhu et al. 2025, arXiv 2506.01347, lambda = 0.1; RLVR-Decomposed
    ``compute_psr_nsr_outcome_advantage``, whose configuration has lambda = 1.

    >>> import numpy as np
    >>> WReinforce().update(np.array([[1.0, 0.0]]), {})[0]
    array([[ 0.1, -1. ]])
    """

    on_ties: ClassVar = "value"
    domain: ClassVar = "binary"
    needs_group: ClassVar = False

    success_weight: float = 0.1
    """Weight of a success, the paper's lambda; above 0 (0 is ``nsr``)."""

    def __post_init__(self) -> None:
        """Refuse success weights that are not positive."""
        check_number("w_reinforce", "success_weight", self.success_weight, above=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``success_weight`` or -1."""
        return groups.rewards_PG * self.success_weight - (1.0 - groups.rewards_PG)


@register_weight("asym_grpo_power")
@dataclass(frozen=True, kw_only=True)
class AsymGrpoPower(Weight):
    """``grpo_std`` with an exponent of its own for successes and for failures.

    ``w_i = ((1 - rbar) / rbar)^beta_pos`` for a success, ``-(rbar / (1 - rbar))^beta_neg`` for a
    failure. Gradient masses for binary rewards, large groups, a = beta_pos and b = beta_neg:
    ``m_S = p^(1 - a) (1 - p)^a``, ``m_F = p^b (1 - p)^(1 - b)``; equal where a + b = 1. Both 1/2:
    ``grpo_std``; both 0: weights 1 and -1.

    Edge cases: 0 for groups of equal rewards and groups of one.

    Source: Gu 2026, arXiv 2604.04894, with the published exponents; no code is public. Not the
    AsymGRPO of arXiv 2607.01490, which is ``asym_grpo_delta``.

    >>> import numpy as np
    >>> AsymGrpoPower(beta_pos=1.0, beta_neg=2.0).update(np.array([[1.0, 0.0, 0.0]]), {})[0]
    array([[ 2.  , -0.25, -0.25]])
    """

    domain: ClassVar = "binary"

    beta_pos: float = 0.9
    """Exponent of successes, at least 0."""
    beta_neg: float = 0.4
    """Exponent of failures, at least 0."""

    def __post_init__(self) -> None:
        """Refuse negative exponents."""
        check_number("asym_grpo_power", "beta_pos", self.beta_pos, at_least=0)
        check_number("asym_grpo_power", "beta_neg", self.beta_neg, at_least=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return the powers of the odds."""
        xp = groups.xp
        odds_P1 = groups.inner_mean_P1 / (1.0 - groups.inner_mean_P1)
        return xp.where(groups.rewards_PG == 1, odds_P1**-self.beta_pos, -(odds_P1**self.beta_neg))


@register_weight("qae")
@dataclass(frozen=True, kw_only=True)
class Qae(Weight):
    """``grpo_std`` with a quantile of the group instead of its mean as baseline.

    ``w_i = (r_i - quantile_K) / (std + eps)``. Gradient masses for binary rewards, large groups:
    ``m_S = sqrt(p / (1 - p))``, ``m_F = 0`` where ``p <= 1 - K``, ``m_S = 0``,
    ``m_F = sqrt((1 - p) / p)`` above: hard problems push successes alone, easy ones failures alone.

    The paper's quantile is the smallest reward below or at which a share K of the group lies; the
    code's interpolates between rewards, so that some groups of mixed rewards have both signs.

    Edge cases: 0 for groups of equal rewards and groups of one.

    Source: Wu et al. 2025, arXiv 2509.22611; junkangwu/QAE (``torch.quantile`` in verl's GRPO).

    >>> import numpy as np
    >>> Qae(eps=0.0).update(np.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]), {})[0]
    array([[ 2.,  0.,  0.,  0.],
           [ 0.,  0.,  0., -2.]])
    """

    K: float = 0.4
    """Order of the quantile, in (0, 1)."""
    interpolation: Literal["paper", "linear"] = "paper"
    """The quantile of the paper's text, or the interpolated one of its code."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom taken from the group size: 1 (Bessel) or 0 (population)."""
    eps: float = 1e-6
    """Added to the standard deviation, in units of the reward; at least 0."""

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        if not 0 < self.K < 1:
            raise UsageError(f"qae needs K in (0, 1), got {self.K}")
        check_choice("qae", "interpolation", self.interpolation, ("paper", "linear"))
        check_choice("qae", "ddof", self.ddof, (0, 1))
        check_number("qae", "eps", self.eps, at_least=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(r - quantile) / (std + eps)``."""
        spread_P1 = positive_or_one(groups.xp, groups.std_P1(self.ddof) + self.eps)
        return (groups.rewards_PG - self._quantile_P1(groups)) / spread_P1

    def _quantile_P1(self, groups: Groups) -> Array:
        xp, num_P1 = groups.xp, groups.num_scored_P1
        # Masked rollouts are sorted to the end, beyond every position.
        sorted_PG = xp.sort(xp.where(groups.mask_PG, groups.rewards_PG, math.inf), axis=1)
        rank_PG = xp.cumulative_sum(xp.ones_like(groups.rewards_PG), axis=1) - 1.0

        def at_rank(wanted_P1: Array) -> Array:
            is_there_PG = (rank_PG == wanted_P1) & (rank_PG < num_P1)
            return xp.sum(xp.where(is_there_PG, sorted_PG, 0.0), axis=1, keepdims=True)

        if self.interpolation == "paper":
            # Counted, since K n is rounded: the ranks whose share of the group stays below K.
            is_below_PG = (rank_PG + 1.0) / positive_or_one(xp, num_P1) < self.K
            return at_rank(xp.sum(is_below_PG, axis=1, keepdims=True, dtype=xp.float64))
        last_P1 = xp.where(num_P1 > 0, num_P1 - 1.0, 0.0)
        low_P1 = xp.floor(self.K * last_P1)
        low, high = at_rank(low_P1), at_rank(xp.where(low_P1 < last_P1, low_P1 + 1.0, last_P1))
        return low + (self.K * last_P1 - low_P1) * (high - low)


@register_weight("a_grae")
@dataclass(frozen=True, kw_only=True)
class AGrae(Weight):
    """``grpo_std`` that turns from hard to easy problems, and from failures, as the batch improves.

    With z the weight of ``grpo_std`` and M the mean over groups of rbar:
    ``a_i = z_i / 2 ((1 - M) / (1 - sqrt(rbar)) + M / sqrt(rbar))``, and ``w_i = a_i min(1, M /
    alpha)`` where ``a_i > 0``, else a_i. Gradient masses for binary rewards, large groups:
    ``m_S = min(1, M / alpha) m_F``,
    ``m_F = sqrt(p (1 - p)) / 2 ((1 - M) / (1 - sqrt(p)) + M / sqrt(p))``.

    Edge cases: 0 for groups of equal rewards and groups of one.

    Source: arXiv 2602.05548; Yu7-code/A-GRAE ``compute_grpo_outcome_advantage`` with
    ``grpo_weight = 2``.

    >>> import numpy as np
    >>> AGrae(eps=0.0).update(np.array([[1.0, 0.0, 0.0, 0.0]]), {})[0]
    array([[ 0.375, -0.5  , -0.5  , -0.5  ]])
    """

    scope: ClassVar = "batch"
    domain: ClassVar = "unit"

    alpha: float = 1.0
    """Solve rate of the batch from which successes have full weight, above 0; the original takes 1
    for mathematics, 0.5 elsewhere."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom taken from the group size: 1 (Bessel) or 0 (population)."""
    eps: float = 1e-6
    """Added to each divisor, in units of the reward; at least 0."""

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        check_number("a_grae", "alpha", self.alpha, above=0)
        check_choice("a_grae", "ddof", self.ddof, (0, 1))
        check_number("a_grae", "eps", self.eps, at_least=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return the reweighted distances, successes damped."""
        xp, is_scored_P1 = groups.xp, groups.num_scored_P1 > 0
        num_groups = max(float(xp.sum(is_scored_P1, dtype=xp.float64)), 1.0)
        solved = float(xp.sum(groups.mean_P1)) / num_groups
        root_P1 = xp.sqrt(groups.mean_P1)
        hard_P1 = (1.0 - solved) / positive_or_one(xp, 1.0 - root_P1 + self.eps)
        easy_P1 = solved / positive_or_one(xp, root_P1 + self.eps)
        spread_P1 = positive_or_one(xp, groups.std_P1(self.ddof) + self.eps)
        weights_PG = groups.centred_PG * ((hard_P1 + easy_P1) / (2.0 * spread_P1))
        return xp.where(weights_PG > 0, weights_PG * min(1.0, solved / self.alpha), weights_PG)
