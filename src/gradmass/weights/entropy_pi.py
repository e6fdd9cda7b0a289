"""EntroPIC: a proportional-integral controller of the entropy turns the balance of the signs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_number
from gradmass.weights.grpo import GrpoStd
from gradmass.weights.schedules import EntropySchedule, TargetEntropy, clip
from gradmass.weights.wrapper import Wrapper

GRPO_STD = GrpoStd()


@dataclass(frozen=True, kw_only=True)
class EntropyControl(EntropySchedule):
    """``a = clip(k_p e + k_i I, -1, 1)``, ``e = H - H*``, I the sum of earlier errors.

    The entropy H of each batch is used as it is. a is 0 until the first one arrives. I is not
    bounded: it goes on growing while a is at a bound.

    State: that of an entropy schedule, ``integral`` I for the next batch, and ``control`` a.
    """

    ema: float = 1.0
    k_p: float
    k_i: float

    def init(self) -> State:
        """No error so far."""
        return {**super().init(), "integral": 0.0, "control": 0.0}

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Take the batch's entropy, if it was measured: control by it, then add its error."""
        if signals.get("entropy_nats") is None:
            return state
        measured = super().observe(groups, state, signals)
        error = measured["entropy_ema"] - self.target(measured)
        integral = state["integral"]
        return {
            **measured,
            "integral": integral + error,
            "control": clip(self.k_p * error + self.k_i * integral, -1.0, 1.0),
        }

    def value(self, state: State) -> float:
        """The control a of the batch observed last."""
        return float(state["control"])


@register_weight("entropy_pi")
@dataclass(frozen=True, kw_only=True)
class EntropyPi(Wrapper):
    """EntroPIC: failures gain weight while the entropy is below its target, successes above it.

    ``w_i = (1 + a) v_i`` where the inner weight v is above 0, ``(1 - a) v_i`` where it is below,
    with the control ``a = clip(k_p e + k_i I, -1, 1)``, ``e = H - H*`` the error of the batch's
    mean token entropy in nats, and I the sum of the errors of earlier batches. Gradient masses:
    ``m_S = (1 + a) m_S(v)``, ``m_F = (1 - a) m_F(v)``. In FADE's terms delta is multiplied by
    ``(1 + a) / (1 - a)``, which has no bounds, and the scale of successes by ``1 + a``.

    Signals: ``entropy_nats`` with ``entropy_kind`` and ``policy_lag``, and those of the inner
    weight. Until the first entropy arrives a is 0.

    State: ``control``, that of the controller; the inner weight's under ``inner``.

    Edge cases: at a = -1 successes have weight 0, at a = 1 failures. I is not bounded.

    Source: arXiv 2511.15248 and its code (yk7333/EntroPIC), whose gains, target and inner weight
    are the defaults here. There the factors act on tokens with a probability above 0.95 alone, and
    outside the clip; a weight sees no token, so here they act on all, as in arXiv 2604.26326.

    >>> import numpy as np
    >>> weight = EntropyPi(target_entropy=1.0)
    >>> rewards_PG = np.array([[1.0, 0.0]])
    >>> weights_PG, state = weight.update(rewards_PG, weight.init(), entropy_nats=0.5)
    >>> weights_PG.round(3)
    array([[ 0.354, -1.061]])
    """

    own_scope: ClassVar = "run"

    inner: Weight = GRPO_STD
    """The weight whose signs are turned."""
    k_p: float = 1.0
    """Gain of the error, per nat, at least 0."""
    k_i: float = 0.01
    """Gain of the sum of earlier errors, per nat, at least 0."""
    target_entropy: TargetEntropy = 0.1
    """H*: mean token entropy in nats, at least 0, or half the first one."""

    def __post_init__(self) -> None:
        """Take over what the inner weight declares; refuse gains and targets below 0."""
        super().__post_init__()
        check_number("entropy_pi", "k_p", self.k_p, at_least=0)
        check_number("entropy_pi", "k_i", self.k_i, at_least=0)
        if self.target_entropy != "half-initial":
            check_number("entropy_pi", "target_entropy", self.target_entropy, at_least=0)
        object.__setattr__(self, "zero_sum", False)

    @cached_property
    def controller(self) -> EntropyControl:
        """The controller of a."""
        return EntropyControl(k_p=self.k_p, k_i=self.k_i, target_entropy=self.target_entropy)

    def init(self) -> State:
        """The controller's state, and the inner weight's."""
        return {"control": self.controller.init(), **super().init()}

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Show the batch to the controller and to the inner weight."""
        inner = {name: value for name, value in state.items() if name != "control"}
        return {
            "control": self.controller.observe(groups, state["control"], signals),
            **super().observe(groups, inner, signals),
        }

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``(1 + a) max(v, 0) + (1 - a) min(v, 0)``."""
        control = self.controller.value(state["control"])
        weights_PG = self.weigh_part("inner", groups, state, signals)
        raised_PG, lowered_PG = (1.0 + control) * weights_PG, (1.0 - control) * weights_PG
        return groups.xp.where(weights_PG > 0, raised_PG, lowered_PG)

    def report(self, state: State) -> dict[str, float | str | None]:
        """The control, the entropy and the integral, and what the inner weight reports."""
        known = state["control"]
        return {
            **super().report(state),
            "control": known["control"],
            "entropy": known["entropy_ema"],
            "integral": known["integral"],
        }
