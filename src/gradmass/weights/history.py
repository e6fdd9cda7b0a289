"""Difficulty from a problem's earlier visits, not from the group that is weighed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_number
from gradmass.weights.signals import solve_rates


@register_weight("history")
@dataclass(frozen=True, kw_only=True)
class History(Weight):
    """Focus on problems that were hard before, whatever this group says.

    ``w_i = F'(p_x) (r_i - mean of the others)``, ``F'(p) = (1 - p)^(alpha - 1)``, p_x the solve
    rate of the problem from its earlier visits. Gradient masses for binary rewards, large groups,
    with p_x the solve rate p: ``m_S = p (1 - p)^alpha``, ``m_F = m_S``. The implied objective is
    that of ``power_unbiased``; where a small group's own mean says little of how hard its problem
    is, the history does, and it does not depend on the rollouts that are weighed.

    Signals: ``solve_rate_P``, within [0, 1]. ``gradmass train`` gives the mean of a Beta posterior
    in which each visit counts a share of the next one (docs/training.md); 1/2 at the first visit,
    so that a run in which no problem comes twice is one of ``rloo`` times a number. So does
    ``gradmass masses``, which knows no visits.

    Edge cases: 0 for groups of equal rewards and groups of one, and where p_x is 1 unless
    alpha = 1, which is ``rloo``.

    Source: ours; a discounted posterior as the baseline is arXiv 2603.18444.

    >>> import numpy as np
    >>> rewards_PG = np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> History().update(rewards_PG, {}, solve_rate_P=np.array([0.25, 0.75]))[0]
    array([[ 0.75, -0.75],
           [ 0.25, -0.25]])
    """

    domain: ClassVar = "unit"
    zero_sum: ClassVar = True

    alpha: float = 2.0
    """Exponent of the objective, at least 1; 1 is the solve rate, more favours hard problems."""

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        check_number("history", "alpha", self.alpha, at_least=1)

    @property
    def needs(self) -> tuple[str, ...]:
        """The history."""
        return ("solve_rate_P",)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(1 - p_x)^(alpha - 1)`` times reward minus mean of the others."""
        failed_P1 = 1.0 - solve_rates(groups, signals["solve_rate_P"])
        return failed_P1 ** (self.alpha - 1.0) * groups.from_others_PG
