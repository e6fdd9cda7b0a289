"""Tell what owns threads and processes that it is in a fork of its process now.

In there the threads are missing, locks may be held for ever, and the processes are another's.
"""

import os
import weakref
from typing import Protocol


class Owner(Protocol):
    """What a fork has to be known to."""

    def after_fork(self) -> None:
        """Called in the new process before anything else runs there; may not wait for anything."""


_owners: "weakref.WeakSet[Owner]" = weakref.WeakSet()


def watch_forks(owner: Owner) -> None:
    """Have ``owner.after_fork`` called in every fork of this process, while there is an owner."""
    _owners.add(owner)


def _after_fork() -> None:
    for owner in list(_owners):
        owner.after_fork()


if hasattr(os, "register_at_fork"):  # where processes fork
    os.register_at_fork(after_in_child=_after_fork)
