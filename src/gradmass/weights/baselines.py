"""Rewards relative to another baseline than the group's own mean."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import device

from gradmass.types import Array, State, UsageError
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_number
from gradmass.weights.groups import positive_or_one
from gradmass.weights.signals import lengths


@register_weight("rloo")
@dataclass(frozen=True, kw_only=True)
class Rloo(Weight):
    """Weigh each rollout by its reward minus the mean of the other rollouts of its group.

    ``w_i = r_i - mean_(j != i) r_j = G / (G - 1) (r_i - rbar)``. Gradient masses for binary
    rewards: ``m_S = m_F = p (1 - p)``, exactly and for every G of at least 2: ``grpo`` without its
    factor ``(G - 1) / G``.

    Edge cases: 0 for groups of equal rewards and groups of one; verl leaves a lone rollout its raw
    reward.

    Source: Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740; verl
    ``compute_rloo_outcome_advantage``.

    >>> import numpy as np
    >>> Rloo().update(np.array([[1.0, 0.0, 0.0]]), {})[0]
    array([[ 1. , -0.5, -0.5]])
    """

    zero_sum: ClassVar = True

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``G / (G - 1) (r - rbar)``."""
        return groups.from_others_PG


@register_weight("opo")
@dataclass(frozen=True, kw_only=True)
class Opo(Weight):
    """Weigh each rollout by its reward minus the group's mean weighted by length.

    ``w_i = r_i - b``, ``b = sum(l_j r_j) / sum(l_j)`` over the group, l the number of tokens: the
    weights of all tokens of a group sum to 0. Gradient masses for binary rewards, large groups:
    ``m_S = p (1 - b)``, ``m_F = (1 - p) b``; b = p where right and wrong rollouts are as long.

    Signals: ``lengths_PG``.

    Edge cases: 0 for groups of equal rewards and groups of one; verl leaves a lone rollout its raw
    reward.

    Source: arXiv 2505.23585; verl ``compute_opo_outcome_advantage``.

    >>> import numpy as np
    >>> Opo().update(np.array([[1.0, 0.0]]), {}, lengths_PG=np.array([[30, 10]]))[0]
    array([[ 0.25, -0.75]])
    """

    @property
    def needs(self) -> tuple[str, ...]:
        """The lengths."""
        return ("lengths_PG",)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``r - sum(l r) / sum(l)``."""
        xp, lengths_PG = groups.xp, lengths(groups, signals)
        total_P1 = xp.sum(lengths_PG, axis=1, keepdims=True)
        weighted_P1 = xp.sum(lengths_PG * groups.rewards_PG, axis=1, keepdims=True)
        return groups.rewards_PG - weighted_P1 / positive_or_one(xp, total_P1)


@register_weight("remax")
@dataclass(frozen=True, kw_only=True)
class Remax(Weight):
    """Weigh each rollout by its reward minus that of the greedy answer to the same prompt.

    ``w_i = r_i - r_greedy``. Gradient masses for binary rewards: ``m_S = p``, ``m_F = 0`` on
    prompts whose greedy answer is wrong, ``m_S = 0``, ``m_F = 1 - p`` on the others.

    Signals: ``greedy_rewards_P``, one a prompt.

    Edge cases: the group plays no part, so a group of one and a group of equal rewards are weighed
    like any other.

    Source: Li et al. 2024, arXiv 2310.10505; verl ``compute_remax_outcome_advantage``.

    >>> import numpy as np
    >>> Remax().update(np.array([[1.0, 0.0]] * 2), {}, greedy_rewards_P=np.array([0.0, 1.0]))[0]
    array([[ 1.,  0.],
           [ 0., -1.]])
    """

    on_ties: ClassVar = "value"
    needs_group: ClassVar = False

    @property
    def needs(self) -> tuple[str, ...]:
        """The rewards of the greedy answers."""
        return ("greedy_rewards_P",)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``r - r_greedy``."""
        xp = groups.xp
        greedy_P = xp.asarray(
            signals["greedy_rewards_P"], dtype=xp.float64, device=device(groups.mask_PG)
        )
        if greedy_P.shape != groups.mask_PG.shape[:1]:
            raise UsageError(
                f"greedy_rewards_P has shape {tuple(greedy_P.shape)}, "
                f"rewards have shape {tuple(groups.mask_PG.shape)}"
            )
        return groups.rewards_PG - greedy_P[:, None]


@register_weight("asymre")
@dataclass(frozen=True, kw_only=True)
class AsymRe(Weight):
    """``grpo`` with its baseline shifted, so that weights sum above 0 (or below) in every group.

    ``w_i = r_i - (rbar + baseline_shift)``. Gradient masses for binary rewards, large groups, d the
    shift: ``m_S = p (1 - p - d)``, ``m_F = (1 - p) (p + d)``. With d below 0 failures are pushed up
    where ``p < -d``. On-policy the expected gradient is GRPO's; the shift is meant for off-policy
    data.

    Edge cases: every rollout of a group of equal rewards gets ``-baseline_shift``. 0 for groups of
    one, where the original takes the raw reward.

    Source: Arnal et al. 2025, arXiv 2506.20520; Trinity-RFT ``ASYMREGroupAdvantage``.

    >>> import numpy as np
    >>> AsymRe().update(np.array([[1.0, 0.0], [0.0, 0.0]]), {})[0]
    array([[ 0.6, -0.4],
           [ 0.1,  0.1]])
    """

    on_ties: ClassVar = "value"
    keeps_sign: ClassVar = False

    baseline_shift: float = -0.1
    """Added to the baseline, in units of the reward."""

    def __post_init__(self) -> None:
        """Refuse infinite shifts."""
        check_number("asymre", "baseline_shift", self.baseline_shift)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``r - rbar - baseline_shift``."""
        xp = groups.xp
        centred_PG = xp.where(groups.is_tied_P1, 0.0, groups.centred_PG)
        return xp.where(groups.num_scored_P1 > 1, centred_PG - self.baseline_shift, 0.0)


@register_weight("gpg")
@dataclass(frozen=True, kw_only=True)
class Gpg(Weight):
    """``grpo`` scaled up by the share of rewards of the batch that are not 0.

    ``w_i = N / max(N_nonzero, 1) (r_i - rbar) / f_norm``, N scored rollouts of the batch. Gradient
    masses for binary rewards, large groups: ``m_S = m_F = p (1 - p) / (P f_norm)``, P the solve
    rate of the batch.

    Edge cases: 0 for groups of equal rewards and groups of one. Rewards of -1 and 1 are never 0,
    so that nothing is scaled.

    Source: verl ``compute_gpg_outcome_advantage``. The paper, arXiv 2504.02546, scales by the share
    of groups with unequal rewards instead.

    >>> import numpy as np
    >>> Gpg().update(np.array([[1.0, 0.0], [0.0, 0.0]]), {})[0]
    array([[ 2., -2.],
           [ 0.,  0.]])
    """

    scope: ClassVar = "batch"
    zero_sum: ClassVar = True

    f_norm: float = 1.0
    """Divisor of all weights, above 0."""

    def __post_init__(self) -> None:
        """Refuse divisors that are not positive."""
        check_number("gpg", "f_norm", self.f_norm, above=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``N / N_nonzero (r - rbar) / f_norm``."""
        xp = groups.xp
        num_nonzero = max(int(xp.sum(xp.astype(groups.rewards_PG != 0, xp.int64))), 1)
        return groups.centred_PG * (float(xp.sum(groups.counts_PG)) / num_nonzero / self.f_norm)
