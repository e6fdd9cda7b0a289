"""A sandbox for programs nobody has read: bubblewrap around a warm interpreter that forks.

``worker`` is the outside: it starts a sandbox and hands it jobs. ``bubblewrap`` says what a sandbox
can see. ``inside`` is the code that runs in there.
"""

from gradmass.rewards.sandbox.worker import Code, Ended, Isolation, Limits, SandboxLost, Worker

__all__ = ["Code", "Ended", "Isolation", "Limits", "SandboxLost", "Worker"]
