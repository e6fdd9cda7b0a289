"""Looks at a run in training; nothing the run does depends on them.

``batch`` needs numbers alone, ``gradients`` and ``states`` passes of their own, ``change`` the
model at its start; ``others`` judges other weights on the same rollouts, ``schedule`` says when.
"""

from gradmass.training.probes.schedule import Probes

__all__ = ["Probes"]
