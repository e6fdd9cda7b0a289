"""GRPO: rewards relative to the mean of the group, with or without division by its spread."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gradmass.types import Array, State, UsageError
from gradmass.weights.base import Groups, Weight, register_weight


@register_weight("grpo")
@dataclass(frozen=True, kw_only=True, repr=False)
class Grpo(Weight):
    """Weigh each rollout by its reward minus the mean of its group; no division.

    ``w_i = r_i - rbar``, with rbar the mean reward of the rollout's own group. Gradient masses for
    binary rewards: ``m_S = m_F = p (1 - p)`` for large groups, ``(G - 1) / G`` of that for groups
    of G; heaviest at p = 1/2. This is what the FADE paper calls GRPO.

    Edge cases: 0 for groups of equal rewards and groups of one.

    Source: arXiv 2607.01490, equation (3); the weight of Dr. GRPO (arXiv 2503.20783). Shao et al.'s
    original (arXiv 2402.03300) divides by the standard deviation: ``grpo_std``.

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
@dataclass(frozen=True, kw_only=True, repr=False)
class GrpoStd(Weight):
    """Weigh each rollout by its reward's distance from the group mean in standard deviations.

    ``w_i = (r_i - rbar) / (std + eps)``, std the standard deviation of the group's rewards with
    ``G - ddof`` in its denominator. Gradient masses for binary rewards, large groups:
    ``m_S = m_F = sqrt(p (1 - p))``, nearly flat in difficulty, twice GRPO's at p = 1/2.

    The engines differ: ddof 1 everywhere but in open-instruct (ddof 0, eps 1e-8); eps 1e-6 in
    verl, SkyRL and slime (the default here), 1e-4 in TRL, 1e-9 in OpenRLHF, 1e-8 in oat.

    Edge cases: 0 for groups of equal rewards and groups of one.

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

    def __post_init__(self) -> None:
        """Refuse other ddof and negative eps."""
        if self.ddof not in (0, 1):
            raise UsageError(f"grpo_std needs ddof 0 or 1, got {self.ddof}")
        if not 0 <= self.eps < float("inf"):
            raise UsageError(f"grpo_std needs a finite eps of at least 0, got {self.eps}")

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(r - rbar) / (std + eps)``."""
        # Tied groups have no spread; the 1 keeps their quotient finite until it is zeroed.
        spread_P1 = groups.xp.where(groups.is_tied_P1, 1.0, groups.std_P1(self.ddof) + self.eps)
        return groups.centred_PG / spread_P1
