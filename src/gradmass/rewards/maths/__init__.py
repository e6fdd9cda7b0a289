"""Mathematical answers: which text is the answer, and is it the right one?"""

from gradmass.rewards.maths.verifier import MathsVerifier

__all__ = ["MathsVerifier"]
