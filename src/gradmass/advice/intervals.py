"""A 95% interval for the mean of a few runs."""

import math

import numpy as np

from gradmass.types import UsageError

T975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t: quantile 0.975 at 1 to 30 degrees of freedom."""


def mean_interval(values_N: np.ndarray) -> tuple[float, float, float]:
    """Mean of independent values, and its 95% interval by Student's t.

    Beyond 30 degrees of freedom the quantile at 30 is used, which makes the interval up to 4% too
    long.

    Args:
        values_N: Two or more.

    Returns:
        Mean, lower and upper end.

    Raises:
        UsageError: Fewer than two values.

    >>> [round(x, 3) for x in mean_interval(np.array([1.0, 3.0]))]
    [2.0, -10.706, 14.706]
    """
    num = len(values_N)
    if num < 2:
        raise UsageError(f"an interval needs at least two values, got {num}")
    mean = float(np.mean(values_N))
    half = T975[min(num - 1, len(T975)) - 1] * float(np.std(values_N, ddof=1)) / math.sqrt(num)
    return mean, mean - half, mean + half
