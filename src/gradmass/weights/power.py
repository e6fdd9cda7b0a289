"""The difficulty and the sign probe of the paper, and both at once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.types import Array, State, UsageError
from gradmass.weights.base import Groups, Weight, register_weight


def power_asym_weights(groups: Groups, alpha: float, delta: float) -> Array:
    """Equation (11): ``(1 - rbar)^(alpha - 1) (r - rbar)``, divided by delta where ``r < rbar``."""
    xp, centred_PG = groups.xp, groups.centred_PG
    if delta != 1.0:
        centred_PG = xp.where(centred_PG >= 0, centred_PG, centred_PG / delta)
    if alpha == 1.0:
        return centred_PG
    # Only a tied group has no failure to raise to a power that may be negative; it is zeroed later.
    return xp.where(groups.is_tied_P1, 1.0, 1.0 - groups.mean_P1) ** (alpha - 1.0) * centred_PG


def check_exponent(name: str, field: str, value: float) -> None:
    """Raise unless the value is a positive finite number."""
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{name} needs a finite {field} above 0, got {value}")


@register_weight("power")
@dataclass(frozen=True, kw_only=True, repr=False)
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
        check_exponent("power", "alpha", self.alpha)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return equation (11) with delta = 1."""
        return power_asym_weights(groups, self.alpha, 1.0)

    def report(self, state: State) -> dict[str, float | str | None]:
        """Alpha and delta."""
        return {"alpha": self.alpha, "delta": 1.0}


@register_weight("asym_grpo_delta")
@dataclass(frozen=True, kw_only=True, repr=False)
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
        check_exponent("asym_grpo_delta", "delta", self.delta)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return equation (11) with alpha = 1."""
        return power_asym_weights(groups, 1.0, self.delta)

    def report(self, state: State) -> dict[str, float | str | None]:
        """Alpha and delta."""
        return {"alpha": 1.0, "delta": self.delta}


@register_weight("power_asym")
@dataclass(frozen=True, kw_only=True, repr=False)
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
        check_exponent("power_asym", "alpha", self.alpha)
        check_exponent("power_asym", "delta", self.delta)

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return equation (11)."""
        return power_asym_weights(groups, self.alpha, self.delta)

    def report(self, state: State) -> dict[str, float | str | None]:
        """Alpha and delta."""
        return {"alpha": self.alpha, "delta": self.delta}
