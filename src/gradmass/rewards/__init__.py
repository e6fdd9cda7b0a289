"""Rewards: what a verifier says of a rollout."""

from gradmass.rewards.verdict import Outcome, Verdict

__all__ = ["Outcome", "Verdict"]
