"""A plain function of a group's rewards as a weight, to see its masses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gradmass.types import Array, State, UsageError, shortened
from gradmass.weights import Groups, Weight


@dataclass(frozen=True, kw_only=True)
class FunctionWeight(Weight):
    """A function that takes the rewards of one group and returns a weight for each.

    ``w = function(r)`` with ``r`` a NumPy array of shape ``[G]``. NumPy only; what the function
    gives to groups of equal rewards is kept.

    >>> import numpy as np
    >>> weight = FunctionWeight(function=lambda rewards: rewards - rewards.mean(), source="mine")
    >>> weight.update(np.array([[1.0, 0.0]]), {})[0]
    array([[ 0.5, -0.5]])
    """

    on_ties: ClassVar = "value"
    needs_group: ClassVar = False
    keeps_sign: ClassVar = False

    function: Callable[[np.ndarray], Any]
    """From rewards ``[G]`` to weights ``[G]``."""
    source: str
    """What the function is called, for messages and labels."""

    @property
    def label(self) -> str:
        """The source."""
        return self.source

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Call the function for each group.

        Raises:
            UsageError: What it returns is not a finite number for each rollout.
        """
        weights_PG = np.zeros(groups.rewards_PG.shape)
        for weights_G, rewards_G, mask_G in zip(
            weights_PG, groups.rewards_PG, groups.mask_PG, strict=True
        ):
            weights_G[mask_G] = self._call(rewards_G[mask_G])
        return weights_PG

    def _call(self, rewards_N: np.ndarray) -> np.ndarray:
        given = self.function(rewards_N.copy())
        try:
            weights_N = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError):
            weights_N = np.array(np.nan)
        if weights_N.shape != rewards_N.shape or not np.isfinite(weights_N).all():
            shown = " ".join(str(given).split())
            raise UsageError(
                f"{self.source} must return a finite weight for each rollout; for the rewards "
                f"{shortened(str(rewards_N.tolist()))} it gave {shortened(shown)}"
            )
        return weights_N
