"""Ranges of fields: one message for all weights."""

import math
from collections.abc import Sequence

from gradmass.types import UsageError


def check_number(
    name: str,
    field: str,
    value: float,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
) -> None:
    """Raise unless the value is finite and within its bound."""
    if not (math.isfinite(value) and value > above and value >= at_least):
        bound = f" above {above:g}" if above > -math.inf else ""
        bound = f" of at least {at_least:g}" if at_least > -math.inf else bound
        raise UsageError(f"{name} needs a finite {field}{bound}, got {value}")


def check_whole(name: str, field: str, value: int, at_least: int) -> None:
    """Raise unless the value is a whole number within its bound."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise UsageError(f"{name} needs a whole {field} of at least {at_least}, got {value!r}")


def check_choice(name: str, field: str, value: object, choices: Sequence[object]) -> None:
    """Raise unless the value is one of a few."""
    if value not in choices:
        known = ", ".join(map(str, choices))
        raise UsageError(f"{name} needs {field} one of {known}, got {value!r}")
