"""Rollout logs of any trainer: read them, and say where their gradient goes."""

from gradmass.logs.findings import analyse
from gradmass.logs.roles import Roles
from gradmass.logs.rollouts import Rollouts, read_log

__all__ = ["Roles", "Rollouts", "analyse", "read_log"]
