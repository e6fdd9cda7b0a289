"""The difficulty and the sign probe of the paper, both at once, and an unbiased form."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.binomial import falling_ratio
from gradmass.weights.checks import check_number, check_whole


def power_asym_weights(groups: Groups, alpha: float, delta: float) -> Array:
    """Equation (11): ``(1 - rbar)^(alpha - 1) (r - rbar)``, divided by delta where ``r < rbar``."""
    xp, centred_PG = groups.xp, groups.centred_PG
    if delta != 1.0:
        centred_PG = xp.where(centred_PG >= 0, centred_PG, centred_PG / delta)
    if alpha == 1.0:
        return centred_PG
    # 0 to a negative power is infinite. A mean of 1 is that of a tied group, which is zeroed later,
    # or was rounded up, and then all of centred_PG is within rounding of 0.
    failure_P1 = 1.0 - groups.mean_P1
    return xp.where(failure_P1 > 0, failure_P1, 1.0) ** (alpha - 1.0) * centred_PG


@register_weight("power")
@dataclass(frozen=True, kw_only=True)
class Power(Weight):
    """GRPO with its mass moved to hard problems (alpha > 1) or easy ones (alpha < 1).

    ``w_i = (1 - rbar)^(alpha - 1) (r_i - rbar)``. Gradient masses for binary rewards, large
    groups: ``m_S = m_F = p (1 - p)^alpha``, heaviest at ``p = 1 / (1 + alpha)``. In expectation
    the gradient of pass@alpha divided by alpha; the plug-in is biased at finite group sizes.

    Edge cases: 0 for groups of equal rewards and groups of one. alpha = 1 is ``grpo``. The scale
    falls with alpha: at p = 1/2 the mass is ``2^(1 - alpha)`` of GRPO's.

    Source: arXiv 2607.01490, equation (4) with C = 1.

    >>> import numpy as np
    >>> Power(alpha=3.0).update(np.array([[1.0, 0.0]]), {})[0]
    array([[ 0.125, -0.125]])
    """

    zero_sum: ClassVar = True
    domain: ClassVar = "unit"

    alpha: float = 2.0
    """Exponent of the failure rate in the masses, above 0."""

    def __post_init__(self) -> None:
        """Refuse exponents that are not positive."""
        check_number("power", "alpha", self.alpha, above=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return equation (11) with delta = 1."""
        return power_asym_weights(groups, self.alpha, 1.0)

    def report(self, state: State) -> dict[str, float | str | None]:
        """Alpha and delta."""
        return {"alpha": self.alpha, "delta": 1.0}


@register_weight("asym_grpo_delta")
@dataclass(frozen=True, kw_only=True)
class AsymGrpoDelta(Weight):
    """GRPO with the weights of failures divided by delta.

    ``w_i = r_i - rbar`` for ``r_i >= rbar``, else ``(r_i - rbar) / delta``. Gradient masses for
    binary rewards, large groups: ``m_S = p (1 - p)``, ``m_F = p (1 - p) / delta``: delta above 1
    favours successes, below 1 failures. Not a pure sign probe: the expected gradient is that of an
    objective with slope ``(1 - p) + p / delta``, so difficulty and scale move too.

    Edge cases: 0 for groups of equal rewards and groups of one. delta = 1 is ``grpo``.

    Source: arXiv 2607.01490, equation (5). Not the AsymGRPO of arXiv 2604.04894.

    >>> import numpy as np
    >>> AsymGrpoDelta(delta=0.5).update(np.array([[1.0, 0.0]]), {})[0]
    array([[ 0.5, -1. ]])
    """

    delta: float = 0.5
    """Ratio of positive to negative mass, above 0."""

    def __post_init__(self) -> None:
        """Refuse ratios that are not positive."""
        check_number("asym_grpo_delta", "delta", self.delta, above=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return equation (11) with alpha = 1."""
        return power_asym_weights(groups, 1.0, self.delta)

    def report(self, state: State) -> dict[str, float | str | None]:
        """Alpha and delta."""
        return {"alpha": 1.0, "delta": self.delta}


@register_weight("power_asym")
@dataclass(frozen=True, kw_only=True)
class PowerAsym(Weight):
    """``power`` and ``asym_grpo_delta`` at once, both parameters by name.

    ``w_i = (1 - rbar)^(alpha - 1) (r_i - rbar)``, divided by delta where ``r_i < rbar``. Gradient
    masses for binary rewards, large groups: ``m_S = p (1 - p)^alpha``, ``m_F = m_S / delta``.

    The pair "(2, 2)" in the paper's tables is ambiguous: by equation (5) delta = 2 weakens
    failures, while the text treats the pair as the aggressive recipe, which delta = 1/2 would be.
    Hence no defaults and no positional arguments.

    Edge cases: 0 for groups of equal rewards and groups of one.

    Source: arXiv 2607.01490, equations (6) and (11).

    >>> import numpy as np
    >>> PowerAsym(alpha=2.0, delta=0.5).update(np.array([[1.0, 0.0]]), {})[0]
    array([[ 0.25, -0.5 ]])
    """

    domain: ClassVar = "unit"

    alpha: float
    """Exponent of the failure rate in the masses, above 0."""
    delta: float
    """Ratio of positive to negative mass, above 0."""

    def __post_init__(self) -> None:
        """Refuse parameters that are not positive."""
        check_number("power_asym", "alpha", self.alpha, above=0)
        check_number("power_asym", "delta", self.delta, above=0)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return equation (11)."""
        return power_asym_weights(groups, self.alpha, self.delta)

    def report(self, state: State) -> dict[str, float | str | None]:
        """Alpha and delta."""
        return {"alpha": self.alpha, "delta": self.delta}


@register_weight("power_unbiased")
@dataclass(frozen=True, kw_only=True)
class PowerUnbiased(Weight):
    """``power`` for a whole alpha without the bias of small groups.

    With s successes and f failures among the n scored rollouts of a group: successes get
    ``f (f - 1) .. (f - alpha + 1) / ((n - 1) (n - 2) .. (n - alpha))``, failures minus s / f of
    that. Gradient masses for binary rewards, exactly and for every G above alpha:
    ``m_S = m_F = p (1 - p)^alpha``, so the expected gradient is that of pass@alpha divided by
    alpha. alpha = 1 is ``rloo``.

    Edge cases: 0 for groups of equal rewards, for groups with fewer than alpha failures, and for
    groups of which masks leave alpha or fewer; if no group has more than alpha rollouts,
    ``update`` raises.

    Source: arXiv 2607.01490, equation (4) with C = 1, whose plug-in estimate
    ``rbar (1 - rbar)^alpha`` of the mass is replaced by falling factorials, its unbiased estimate.

    >>> import numpy as np
    >>> PowerUnbiased(alpha=2).update(np.array([[1.0, 0.0, 0.0, 0.0]]), {})[0]
    array([[ 1.        , -0.33333333, -0.33333333, -0.33333333]])
    """

    zero_sum: ClassVar = True
    domain: ClassVar = "binary"

    alpha: int = 2
    """Exponent of the failure rate in the masses, a whole number of at least 1."""

    def __post_init__(self) -> None:
        """Refuse exponents that are not whole and positive."""
        check_whole("power_unbiased", "alpha", self.alpha, 1)

    @property
    def min_group_size(self) -> int:
        """One more than alpha."""
        return self.alpha + 1

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(f)_alpha / (n - 1)_alpha`` and minus ``s / f`` of it."""
        xp, num_P1 = groups.xp, groups.num_scored_P1
        failures_P1 = num_P1 - xp.sum(groups.rewards_PG, axis=1, keepdims=True)
        share_P1 = falling_ratio(xp, failures_P1, num_P1 - 1.0, self.alpha)
        # Of the mass share * s / n, each success has n / s parts and each failure n / f.
        per_reward_P1 = share_P1 * num_P1 / xp.where(failures_P1 > 0, failures_P1, 1.0)
        return per_reward_P1 * groups.centred_PG
