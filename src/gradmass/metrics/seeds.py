"""What a difference between two arms is worth, from runs paired by seed.

The unit is the seed: a difference is one number a seed. ``crossed_interval`` also counts the
problems, which all seeds share, as a sample of others.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradmass.types import Array, UsageError

MAX_EXACT = 20
"""Most seeds whose sign flips are listed (a million)."""


@dataclass(frozen=True)
class Interval:
    """A mean with its interval.

    Args:
        mean: The mean.
        low: Lower end; minus infinity where one value says nothing of others.
        high: Upper end.
    """

    mean: float
    low: float
    high: float


def sign_flip_p(difference_S: Array) -> float:
    """Exact one-sided p of the sign-flip test that the differences are above 0.

    The share of all 2^S assignments of signs to ``|d_s|`` whose sum is at least the observed one.
    Exact if each difference is as likely as its negative under the null hypothesis; no other
    assumption. The smallest possible p is 2^-S: under 6 seeds it cannot be below .025.

    Args:
        difference_S: A finite difference a seed, 1 to 20 of them.

    Returns:
        p in (0, 1]; 1 if all differences are 0.

    Raises:
        UsageError: No difference, more than 20, or one that is not finite.

    >>> sign_flip_p([1.0, 2.0, 3.0])  # one assignment of eight
    0.125
    >>> sign_flip_p([-1.0, 2.0, 3.0])  # and the one with all signs positive
    0.25
    """
    d_S = _finite(difference_S)
    if len(d_S) > MAX_EXACT:
        raise UsageError(f"the exact test lists at most 2^{MAX_EXACT} signs, got {len(d_S)} seeds")
    # Sums built one seed at a time; a tolerance keeps equal sums equal whatever their order.
    sums = np.zeros(1)
    for size in np.abs(d_S):
        sums = np.concatenate([sums + size, sums - size])
    tolerance = 1e-12 * float(np.abs(d_S).sum())
    return float(np.mean(sums >= d_S.sum() - tolerance))


def equivalence_p(difference_S: Array, margin: float) -> float:
    """P of two one-sided sign-flip tests that the mean difference is within ``(-margin, margin)``.

    The larger of the p values of ``d + margin > 0`` and ``margin - d > 0``: small means the two
    arms are alike, which a large p of a test of difference never does.

    Args:
        difference_S: As in ``sign_flip_p``.
        margin: Above 0.

    >>> equivalence_p([0.0, 0.01, -0.01], 0.05)
    0.125
    """
    if not 0 < margin < math.inf:
        raise UsageError(f"margin must be finite and above 0, got {margin}")
    d_S = _finite(difference_S)
    return max(sign_flip_p(d_S + margin), sign_flip_p(margin - d_S))


def t_interval(value_S: Array, level: float = 0.95) -> Interval:
    """Mean over seeds with Student's interval; without ends for a single seed.

    >>> interval = t_interval([1.0, 2.0, 3.0])  # 2 -+ 4.303 / sqrt 3
    >>> round(interval.low, 3), round(interval.high, 3)
    (-0.484, 4.484)
    """
    from scipy.stats import t

    value_S = _finite(value_S)
    mean = float(value_S.mean())
    if len(value_S) < 2:
        return Interval(mean, -math.inf, math.inf)
    error = float(value_S.std(ddof=1)) / math.sqrt(len(value_S))
    half = float(t.ppf((1 + level) / 2, len(value_S) - 1)) * error
    return Interval(mean, mean - half, mean + half)


def crossed_interval(value_SN: Array, level: float = 0.95) -> Interval:
    """Mean over seeds and problems with an interval for other seeds *and* other problems.

    Seeds and problems are crossed: every seed is evaluated on every problem. The variance of the
    mean is ``(MS_S + MS_N - MS_E) / (S N)``, with the mean squares of seeds, problems and the rest
    of a two-way layout, and the degrees of freedom are Satterthwaite's. Where the difference is
    negative, the larger of ``MS_S`` and ``MS_N`` stands in for it.

    Args:
        value_SN: A value for each seed and problem, at least 2 of each.
        level: Between 0 and 1.

    Raises:
        UsageError: Fewer than two seeds or problems.
    """
    from scipy.stats import t

    value_SN = np.asarray(value_SN, dtype=np.float64)
    if value_SN.ndim != 2 or min(value_SN.shape) < 2:
        raise UsageError(f"seeds crossed with problems need two of each, got {value_SN.shape}")
    num_seeds, num_problems = value_SN.shape
    mean = float(value_SN.mean())
    seed_S, problem_N = value_SN.mean(1) - mean, value_SN.mean(0) - mean
    rest_SN = value_SN - mean - seed_S[:, None] - problem_N
    free = np.array([num_seeds - 1, num_problems - 1, (num_seeds - 1) * (num_problems - 1)])
    squares = np.array(
        [num_problems * (seed_S**2).sum(), num_seeds * (problem_N**2).sum(), (rest_SN**2).sum()]
    )
    square = squares / free
    signs = np.array([1.0, 1.0, -1.0])
    if signs @ square <= max(square[:2]):
        signs = np.array([1.0, 0.0, 0.0]) if square[0] >= square[1] else np.array([0.0, 1.0, 0.0])
    total = float(signs @ square)
    if total == 0:
        return Interval(mean, mean, mean)
    freedom = total**2 / float((signs**2 * square**2 / free).sum())
    half = float(t.ppf((1 + level) / 2, freedom)) * math.sqrt(total / value_SN.size)
    return Interval(mean, mean - half, mean + half)


def holm(p_by_name: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p values: an adjusted p of at most a keeps the chance of any error below a.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    ordered = sorted(p_by_name.items(), key=lambda pair: pair[1])
    largest = itertools.accumulate(
        (min(1.0, p * (len(ordered) - i)) for i, (_, p) in enumerate(ordered)), max
    )
    adjusted = {name: p for (name, _), p in zip(ordered, largest, strict=True)}
    return {name: adjusted[name] for name in p_by_name}


def power(effect: float, spread: float, num_seeds: int, alpha: float = 0.025) -> float:
    """Chance that a one-sided paired t test finds a difference that is there.

    Args:
        effect: True mean difference, at least 0.
        spread: Standard deviation of the differences, above 0.
        num_seeds: Pairs, at least 2.
        alpha: One-sided level.

    >>> round(power(1.0, 1.0, 14), 2)
    0.93
    """
    from scipy.stats import nct, t

    if num_seeds < 2 or not spread > 0:
        raise UsageError(f"power needs 2 seeds and a spread above 0, got {num_seeds} and {spread}")
    freedom, shift = num_seeds - 1, effect / spread * math.sqrt(num_seeds)
    return float(nct.sf(t.ppf(1 - alpha, freedom), freedom, shift))


def detectable_effect(
    spread: float, num_seeds: int, alpha: float = 0.025, wanted: float = 0.8
) -> float:
    """The smallest true difference that is found with the wanted chance, by ``power``.

    >>> round(detectable_effect(1.0, 14), 2)
    0.81
    """
    from scipy.optimize import brentq

    if num_seeds < 2:
        raise UsageError(f"power needs at least 2 seeds, got {num_seeds}")
    if spread == 0:
        return 0.0

    def lacking(ratio: float) -> float:
        return power(ratio, 1.0, num_seeds, alpha) - wanted

    return spread * float(brentq(lacking, 0.0, 100.0))


def replicate_interval(value_S: Array, level: float = 0.95) -> Interval:
    """Where the mean of as many other seeds is expected: the t interval, sqrt 2 times as wide.

    >>> round(replicate_interval([1.0, 2.0, 3.0]).high, 3)
    5.513
    """
    inner = t_interval(value_S, level)
    return Interval(
        inner.mean,
        inner.mean - math.sqrt(2) * (inner.mean - inner.low),
        inner.mean + math.sqrt(2) * (inner.high - inner.mean),
    )


def _finite(values: Array | Sequence[float]) -> np.ndarray:
    value_S: np.ndarray = np.asarray(values, dtype=np.float64)
    if value_S.ndim != 1 or not len(value_S) or not np.isfinite(value_S).all():
        raise UsageError(f"a finite number a seed is needed, got {value_S.tolist()}")
    return value_S
