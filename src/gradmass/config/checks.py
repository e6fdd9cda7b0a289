"""What the sections of a recipe refuse alike."""

from typing import Any

from gradmass.types import UsageError


def check_threads(threads: int) -> None:
    """Refuse what is no number of threads."""
    if not 0 <= threads <= 1024:
        raise UsageError(f"train.threads must be within 0 to 1024, got {threads}")


def at_least(section: str, config: Any, low: int, *names: str) -> None:
    """Refuse fields below a bound."""
    for name in names:
        if getattr(config, name) < low:
            raise UsageError(
                f"{section}.{name} must be at least {low}, got {getattr(config, name)}"
            )


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a word that is none of the choices."""
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
