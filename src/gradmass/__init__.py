"""Choose, inspect and schedule the policy weights of RL with verifiable rewards."""

from importlib.metadata import version

__version__ = version("gradmass")
