"""Settings of an engine that act on a weight after it is computed."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["refused", "changes the weight", "replaced"]


@dataclass(frozen=True)
class Flag:
    """A setting that acts on a weight.

    Args:
        name: Of the setting in the engine's configuration.
        value: Its value.
        severity: Whether the trainer refuses it, whether it changes what a weight says, or is
            itself replaced by the weight.
        meaning: What it does, and the way out.
    """

    name: str
    value: Any
    severity: Severity
    meaning: str


Rule = tuple[str, Callable[[Any], bool], Severity, str]
"""A setting's name, whether a value of it acts on a weight, how, and its meaning."""


def acting(rules: Iterable[Rule], config: Mapping[str, Any]) -> list[Flag]:
    """The settings that act; those missing from the configuration are not judged."""
    return [
        Flag(name, config[name], severity, meaning)
        for name, acts, severity, meaning in rules
        if name in config and acts(config[name])
    ]


def is_set(value: Any) -> bool:
    """Whether a setting is neither missing, off, nor 0."""
    return value not in (None, False, 0, 0.0)
