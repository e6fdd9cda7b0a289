"""REINFORCE: the reward itself, or its distance from the mean of the batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_number
from gradmass.weights.groups import batch_moments
from gradmass.weights.signals import lengths


@register_weight("reinforce")
@dataclass(frozen=True, kw_only=True)
class Reinforce(Weight):
    """Weigh each rollout by its reward alone; with rewards of 0 and 1, successes only.

    ``w_i = r_i``, or ``w_i = 2 r_i - 1`` if ``signed``. Gradient masses for binary rewards:
    ``m_S = p``, ``m_F = 0``, or ``m_F = 1 - p`` if signed. Both have the expected gradient of the
    solve rate p (twice that if signed).

    Edge cases: the group plays no part, so a group of one and a group of equal rewards are weighed
    like any other.

    Source: Williams (1992); with 0/1 rewards equal to the positive part (PSR) of arXiv 2506.01347.

    >>> import numpy as np
    >>> Reinforce(signed=True).update(np.array([[1.0, 0.0]]), {})[0]
    array([[ 1., -1.]])
    """

    on_ties: ClassVar = "value"
    needs_group: ClassVar = False

    signed: bool = False
    """Count failures as -1 instead of 0."""

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``r`` or ``2 r - 1``."""
        return 2.0 * groups.rewards_PG - 1.0 if self.signed else groups.rewards_PG


@register_weight("reinforce_batch_baseline")
@dataclass(frozen=True, kw_only=True)
class ReinforceBatchBaseline(Weight):
    """Weigh each rollout by its reward minus the mean reward of the whole batch.

    ``w_i = r_i - mean_batch``. Gradient masses for binary rewards, P the solve rate of the batch:
    ``m_S = p (1 - P)``, ``m_F = (1 - p) P``: equal only on prompts with p = P, easier ones are
    pushed up as a whole and harder ones down. Expected gradient of the solve rate p, as ``grpo``.

    Edge cases: the group plays no part, so a group of one and a group of equal rewards are weighed
    like any other. 0 where all rewards of the batch are equal.

    Source: Williams (1992), with the batch mean as baseline.

    >>> import numpy as np
    >>> ReinforceBatchBaseline().update(np.array([[1.0, 1.0], [0.0, 0.0]]), {})[0]
    array([[ 0.5,  0.5],
           [-0.5, -0.5]])
    """

    scope: ClassVar = "batch"
    on_ties: ClassVar = "value"
    needs_group: ClassVar = False

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``r - mean_batch``."""
        mean, _ = batch_moments(groups, groups.rewards_PG, groups.counts_PG)
        return groups.rewards_PG - mean


@register_weight("reinforce_plus_plus")
@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlus(Weight):
    """Whiten the rewards of the batch: mean 0 and variance 1 over its tokens.

    ``w_i = (r_i - mean) / sqrt(var + eps)``, mean and var (Bessel) over the batch with each rollout
    counted once for each of its tokens. Gradient masses for binary rewards, P the solve rate of the
    batch, rollouts of one length: ``m_S = p sqrt((1 - P) / P)``,
    ``m_F = (1 - p) sqrt(P / (1 - P))``.

    Signals: ``lengths_PG``; without it each rollout counts once.

    Edge cases: the group plays no part, so a group of one and a group of equal rewards are weighed
    like any other. 0 where all rewards of the batch are equal.

    Source: Hu 2025, arXiv 2501.03262; verl ``compute_reinforce_plus_plus_outcome_advantage`` with
    gamma = 1. OpenRLHF takes the population variance.

    >>> import numpy as np
    >>> ReinforcePlusPlus(eps=0.0).update(np.array([[1.0], [1.0], [0.0], [0.0]]), {})[0].round(4)
    array([[ 0.866],
           [ 0.866],
           [-0.866],
           [-0.866]])
    """

    scope: ClassVar = "batch"
    on_ties: ClassVar = "value"
    needs_group: ClassVar = False

    eps: float = 1e-8
    """Added to the variance, in units of the reward squared; at least 0."""

    def __post_init__(self) -> None:
        """Refuse a negative eps."""
        check_number("reinforce_plus_plus", "eps", self.eps, at_least=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(r - mean) / sqrt(var + eps)``."""
        mean, variance = batch_moments(groups, groups.rewards_PG, _tokens(groups, signals))
        return (groups.rewards_PG - mean) / _root_or_one(variance + self.eps)


@register_weight("reinforce_plus_plus_baseline")
@dataclass(frozen=True, kw_only=True)
class ReinforcePlusPlusBaseline(Weight):
    """``grpo`` whitened over the tokens of the batch.

    ``w_i = (c_i - mean) / sqrt(var + eps)`` with ``c_i = r_i - rbar``, rbar of the group, mean and
    var (Bessel) over the batch with each rollout counted once for each of its tokens. Gradient
    masses for binary rewards, large groups, rollouts of one length:
    ``m_S = m_F = p (1 - p) / sqrt(mean of p (1 - p) over the batch)``.

    Signals: ``lengths_PG``; without it each rollout counts once, and the mean is 0.

    Edge cases: with lengths, groups of equal rewards and groups of one are shifted like the others;
    verl leaves a lone rollout its raw reward before whitening. 0 where all groups are tied.

    Source: Hu 2025, arXiv 2501.03262; verl
    ``compute_reinforce_plus_plus_baseline_outcome_advantage``.

    >>> import numpy as np
    >>> ReinforcePlusPlusBaseline().update(np.array([[1.0, 0.0], [0.0, 0.0]]), {})[0].round(4)
    array([[ 1.2247, -1.2247],
           [ 0.    ,  0.    ]])
    """

    scope: ClassVar = "batch"
    on_ties: ClassVar = "value"
    keeps_sign: ClassVar = False

    eps: float = 1e-8
    """Added to the variance, in units of the reward squared; at least 0."""

    def __post_init__(self) -> None:
        """Refuse a negative eps."""
        check_number("reinforce_plus_plus_baseline", "eps", self.eps, at_least=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(c - mean) / sqrt(var + eps)``."""
        centred_PG = groups.xp.where(groups.is_tied_P1, 0.0, groups.centred_PG)
        mean, variance = batch_moments(groups, centred_PG, _tokens(groups, signals))
        if signals.get("lengths_PG") is None:
            mean = 0.0  # what groups sum to, without the rounding
        return (centred_PG - mean) / _root_or_one(variance + self.eps)


def _tokens(groups: Groups, signals: Mapping[str, Any]) -> Array:
    if signals.get("lengths_PG") is None:
        return groups.counts_PG
    return lengths(groups, signals)


def _root_or_one(variance: float) -> float:
    return math.sqrt(variance) if variance > 0 else 1.0
