"""One verifier for all who judge by the same settings, so that its processes are started once."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

V = TypeVar("V")


def shared_verifier(kind: Callable[..., V], **settings: Any) -> V:
    """The verifier of a kind that all callers of these settings share.

    It is made at the first call and ends with the process.

    Args:
        kind: ``MathsVerifier`` or ``CodeVerifier``.
        settings: Its arguments, hashable.
    """
    verifier: V = _made(kind, tuple(sorted(settings.items())))
    return verifier


@lru_cache(maxsize=8)
def _made(kind: Callable[..., Any], settings: tuple[tuple[str, Any], ...]) -> Any:
    return kind(**dict(settings))
