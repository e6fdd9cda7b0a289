"""The coefficient of an entropy bonus, fixed or following the entropy: a rival of FADE."""

from gradmass.config import EntropyConfig
from gradmass.types import State


class EntropyBonus:
    """Gives the coefficient of the mean token entropy that is taken off the loss.

    The adaptive rule, after every update at which the policy had the mean token entropy H:
    ``coef = min(coef + step, max)`` if ``H <= target``, else ``max(coef - step, min)``. The next
    update uses the coefficient if ``H <= target``, and none otherwise; the first one uses none. H
    is of the policy before the update, over all tokens in the loss of the whole batch.

    Args:
        config: Start, target, step and bounds.
        state: ``state`` of an earlier one, to go on from.

    Source: arXiv 2505.22312; the rule as in TRL 1.16 (``GRPOTrainer``, ``use_adaptive_entropy``),
    whose bonus is the mean of the means of micro-batches where this one is over the whole batch.
    """

    def __init__(self, config: EntropyConfig, state: State | None = None) -> None:
        self._config = config
        self._coef: float = config.coef if state is None else state["coef"]
        self._last_nats: float | None = None if state is None else state["last_nats"]

    @property
    def state(self) -> State:
        """``coef``, and ``last_nats``, the entropy seen last; None before the first."""
        return {"coef": self._coef, "last_nats": self._last_nats}

    @property
    def is_on(self) -> bool:
        """Whether entropies of the policy are needed at all."""
        return self._config.is_adaptive or self._config.coef > 0

    @property
    def coef(self) -> float:
        """The coefficient to use in the next update."""
        if not self._config.is_adaptive:
            return self._config.coef
        is_low = self._last_nats is not None and self._last_nats <= self._config.target
        return self._coef if is_low else 0.0

    def see(self, entropy_nats: float) -> None:
        """Move an adaptive coefficient by the mean token entropy at an update."""
        config = self._config
        if config.is_adaptive:
            is_low = entropy_nats <= config.target
            self._coef = (
                min(self._coef + config.step, config.max)
                if is_low
                else max(self._coef - config.step, config.min)
            )
        self._last_nats = entropy_nats
