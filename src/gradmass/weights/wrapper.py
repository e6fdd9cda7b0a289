"""Weights made of other weights: what they declare, need and remember follows from those."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.types import Array, State, UsageError
from gradmass.weights.base import Groups, Weight

SCOPES = ("group", "batch", "run")
DOMAINS = ("real", "unit", "binary")
"""From the widest to the narrowest."""


@dataclass(frozen=True, kw_only=True)
class Wrapper(Weight):
    """A weight made of others.

    What its class declares holds of any inner weights; an instance declares what follows from the
    ones it has. Its state holds theirs by field, where they have any.
    """

    scope: ClassVar = "run"
    on_ties: ClassVar = "value"
    needs_group: ClassVar = False
    keeps_sign: ClassVar = False

    own_scope: ClassVar = "group"
    """What the wrapper itself depends on, beyond its inner weights."""

    def __post_init__(self) -> None:
        """Take over what the inner weights declare."""
        inner = self.parts.values()
        declared = {
            "scope": max([self.own_scope, *(w.scope for w in inner)], key=SCOPES.index),
            "domain": max((w.domain for w in inner), key=DOMAINS.index),
            "on_ties": "value" if any(w.on_ties == "value" for w in inner) else "zero",
            "needs_group": all(w.needs_group for w in inner),
            "keeps_sign": all(w.keeps_sign for w in inner),
        }
        for name, value in declared.items():
            object.__setattr__(self, name, value)

    @property
    def parts(self) -> dict[str, Weight]:
        """The inner weights by field."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Weight)}

    @property
    def needs(self) -> tuple[str, ...]:
        """What the inner weights need."""
        return tuple(dict.fromkeys(need for part in self.parts.values() for need in part.needs))

    @property
    def min_group_size(self) -> int:
        """That of the most demanding inner weight."""
        return max(part.min_group_size for part in self.parts.values())

    def init(self) -> State:
        """The states of the inner weights."""
        states = {name: part.init() for name, part in self.parts.items()}
        return {name: state for name, state in states.items() if state}

    def _check_state(self, state: State) -> None:
        super()._check_state(state)
        for name, part in self.parts.items():
            inner_state = state.get(name, {})
            if not isinstance(inner_state, Mapping):
                raise UsageError(
                    f"weight {self.label} was given a state whose {name} is {inner_state!r}, "
                    "no table (start from init())"
                )
            part._check_state(dict(inner_state))

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Show the batch to the inner weights."""
        return {name: self.parts[name].observe(groups, state[name], signals) for name in state}

    def weigh_part(
        self, name: str, groups: Groups, state: State, signals: Mapping[str, Any]
    ) -> Array:
        """Weights that the inner weight of a field gives, in float64."""
        return self.parts[name].weigh_groups(groups, state.get(name, {}), signals)

    def report(self, state: State) -> dict[str, float | str | None]:
        """What the inner weights report; by field if there are several."""
        parts = self.parts
        return {
            key if len(parts) == 1 else f"{name}_{key}": value
            for name, part in parts.items()
            for key, value in part.report(state.get(name, {})).items()
        }


def scaled_to(groups: Groups, weights_PG: Array, total: float) -> Array:
    """Weights times the number that makes their absolute values sum to ``total``; 0 stays 0."""
    own = float(groups.xp.sum(groups.xp.abs(weights_PG)))
    return weights_PG * (total / own if own > 0 else 0.0)
