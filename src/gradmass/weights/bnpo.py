"""BNPO: GRPO divided by a Beta density of solve rates, fitted to the batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.groups import batch_moments

LARGEST_FACTOR = 1e6
"""What the reciprocal density is limited to, as in the original."""


@register_weight("bnpo")
@dataclass(frozen=True, kw_only=True)
class Bnpo(Weight):
    """GRPO divided by how common the solve rate of the group is in the batch.

    ``w_i = (r_i - rbar) / f(rbar)``, f the density of Beta(a', b'), ``a' = max(1, 1 + a / 3)``,
    ``b' = max(1, 1 + b / 3)``, where Beta(a, b) has the mean M and the variance V (Bessel) of the
    groups' rbar: ``a = (M (1 - M) / V - 1) M``, ``b = (M (1 - M) / V - 1) (1 - M)``. Gradient
    masses for binary rewards, large groups: ``m_S = m_F = p (1 - p) / f(p)``; between ``grpo``
    (a' = b' = 1) and the shape of ``grpo_std`` (3/2).

    Edge cases: 0 for groups of equal rewards and groups of one. f = 1 for a batch of one group, as
    in the original, and where all groups have the same mean, for which the original divides by 0.

    Source: Xiao et al. 2025, arXiv 2506.02864; changyi7231/BNPO ``compute_bnpo_outcome_advantage``.
    Not TRL's ``loss_type="bnpo"``, which is a normalisation of the loss.

    Means of 1/4, 1/2 and 3/4 have V = 1/16, so that a' = b' = 3/2, ``f(p) = 8 / pi sqrt(p q)``:

    >>> import numpy as np
    >>> rewards_PG = np.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    >>> (Bnpo().update(rewards_PG, {})[0] / (np.pi / 8)).round(4)
    array([[ 1.7321, -0.5774, -0.5774, -0.5774],
           [ 1.    ,  1.    , -1.    , -1.    ],
           [ 0.5774,  0.5774,  0.5774, -1.7321]])
    """

    scope: ClassVar = "batch"
    zero_sum: ClassVar = True
    domain: ClassVar = "unit"

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(r - rbar) / f(rbar)``."""
        xp = groups.xp
        one, other = _shape(groups)
        solved_P1 = groups.inner_mean_P1
        log_density_P1 = (
            (one - 1.0) * xp.log(solved_P1)
            + (other - 1.0) * xp.log(1.0 - solved_P1)
            + (math.lgamma(one + other) - math.lgamma(one) - math.lgamma(other))
        )
        limit = math.log(LARGEST_FACTOR)
        log_factor_P1 = xp.where(-log_density_P1 < limit, -log_density_P1, limit)
        return xp.exp(log_factor_P1) * groups.centred_PG


def _shape(groups: Groups) -> tuple[float, float]:
    """The parameters a', b' of the density; 1 and 1 where the means do not vary."""
    is_scored_P1 = groups.num_scored_P1 > 0
    per_group = Groups(groups.mean_P1, is_scored_P1, groups.xp)
    mean, variance = batch_moments(per_group, groups.mean_P1, per_group.counts_PG)
    if variance == 0:
        return 1.0, 1.0
    size = (mean * (1.0 - mean) / variance - 1.0) / 3.0
    return max(1.0, 1.0 + size * mean), max(1.0, 1.0 + size * (1.0 - mean))
