"""Runs that end when the process that started them does, even if that one is killed."""

import os

VARIABLE = "GRADMASS_PARENT"
"""Environment variable: the process without which a run does not go on."""


def tied_to_this_process() -> dict[str, str]:
    """The environment of a run that saves where it is and ends once this process is gone."""
    return {**os.environ, VARIABLE: str(os.getpid())}


def is_orphan() -> bool:
    """Whether the process that this one is tied to is gone; never known on Windows."""
    parent = os.environ.get(VARIABLE)
    # Whoever inherits an orphan has another number. On Windows nobody does, and a virtual
    # environment's Python stands between the two.
    return parent is not None and os.name != "nt" and parent != str(os.getppid())
