"""Policy weights: what multiplies the score function of a rollout. NumPy or torch, no torch needed.

>>> import numpy as np
>>> from gradmass.weights import WEIGHTS
>>> weight = WEIGHTS["power"](alpha=2.0)
>>> weights_PG, state = weight.update(np.array([[1.0, 0.0, 0.0, 0.0]]), weight.init())
>>> weights_PG
array([[ 0.5625, -0.1875, -0.1875, -0.1875]])
"""

from gradmass.weights.base import WEIGHTS, Groups, Weight, register_weight

__all__ = ["WEIGHTS", "Groups", "Weight", "register_weight"]
