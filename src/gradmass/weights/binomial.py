"""Chances of drawing without replacement, for the weights that count subsets of a group."""

from typing import Any

from gradmass.types import Array


def falling_ratio(xp: Any, part: Array, whole: Array, draws: int) -> Array:
    """Chance that ``draws`` items drawn from ``whole`` without replacement all lie in ``part``.

    ``C(part, draws) / C(whole, draws) = prod_(t < draws) (part - t) / (whole - t)``.

    Args:
        xp: Array namespace.
        part: Whole numbers in a float array, at most ``whole``.
        whole: Likewise; where it is below ``draws`` the chance is 0.
        draws: At least 0.

    >>> import numpy as np
    >>> falling_ratio(np, np.array([3.0, 1.0]), np.array([4.0, 4.0]), 2)
    array([0.5, 0. ])
    """
    chance = xp.ones_like(part + whole)
    for t in range(draws):
        left = xp.where(whole > t, whole - t, 1.0)
        chance = chance * xp.where((whole > t) & (part > t), part - t, 0.0) / left
    return chance
