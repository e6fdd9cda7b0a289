"""REINFORCE: the reward itself, no baseline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight


@register_weight("reinforce")
@dataclass(frozen=True, kw_only=True, repr=False)
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
