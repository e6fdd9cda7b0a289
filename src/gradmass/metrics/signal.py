"""How much a batch's gradient knows: effective sample size, signal to noise, quality by (10)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmass.types import Array, UsageError


def effective_size(weights_N: Array) -> float:
    """Kish's effective sample size: ``(sum |w|)^2 / sum w^2``.

    Args:
        weights_N: Weights of rollouts, or the mean absolute weight of each group; finite, flat.

    Returns:
        From 1 (one carries all) to N (all alike); 0.0 where no weight is other than 0.

    Raises:
        UsageError: Not a flat array, or a weight that is not finite.

    >>> effective_size([1.0, -1.0, 0.0, 0.0]), round(effective_size([3.0, 1.0]), 12)
    (2.0, 1.6)
    """
    size_N = np.abs(np.asarray(weights_N, dtype=np.float64))
    if size_N.ndim != 1 or not np.isfinite(size_N).all():
        raise UsageError(f"effective size needs a flat array of finite weights, got {weights_N}")
    if not size_N.any():
        return 0.0
    size_N = size_N / size_N.max()
    return float(size_N.sum() ** 2 / np.square(size_N).sum())


@dataclass(frozen=True)
class SignalToNoise:
    """A gradient that is the mean of independent parts.

    Args:
        signal: Unbiased estimate of ``|E g|^2``; may be below 0 where there is little.
        noise: Unbiased estimate of the variance of the mean, ``tr Cov(g_k) / K``.
        ratio: ``signal / noise``, the batch's signal-to-noise ratio in power; None without noise.
    """

    signal: float
    noise: float
    ratio: float | None


def signal_to_noise(dots_KK: Array) -> SignalToNoise | None:
    """Signal to noise of a batch gradient from the inner products of its parts.

    The batch is split into K parts that are independent, its problems; g_k is the gradient of part
    k, and the batch gradient their mean. ``signal = mean_{j != k} g_j . g_k`` and
    ``noise = (mean_k |g_k|^2 - signal) / K``. One batch says little: the ratio scatters by some
    ``sqrt(2)`` of a batch without signal, so average over many before comparing.

    Args:
        dots_KK: ``g_j . g_k``, symmetric, finite, in any one unit.

    Returns:
        None for fewer than two parts, or where all gradients are 0.

    Raises:
        UsageError: Not a square matrix, or entries that are not finite.

    >>> signal_to_noise([[2.0, 1.0], [1.0, 2.0]])  # two gradients with a common part of length 1
    SignalToNoise(signal=1.0, noise=0.5, ratio=2.0)
    """
    dots_KK = np.asarray(dots_KK, dtype=np.float64)
    if dots_KK.ndim != 2 or dots_KK.shape[0] != dots_KK.shape[1]:
        raise UsageError(f"inner products make a square matrix, got shape {dots_KK.shape}")
    if not np.isfinite(dots_KK).all():
        raise UsageError("inner products of gradients must be finite")
    num, energy = len(dots_KK), float(np.trace(dots_KK))
    if num < 2 or energy == 0:
        return None
    signal = (float(dots_KK.sum()) - energy) / (num * (num - 1))
    noise = (energy / num - signal) / num
    return SignalToNoise(signal, noise, signal / noise if noise > 0 else None)


@dataclass(frozen=True)
class Levels:
    """What the gradients of groups say of each solve rate, as sums that can be pooled.

    The gradient of a group is that of mean-only GRPO, ``g = (1 / G) sum_i (r_i - rbar) grad log
    pi_i``: the weight's factor is left out.

    Args:
        rate_L: Solve rates, ascending, strictly between 0 and 1.
        num_L: Groups at each.
        square_L: ``sum |g|^2`` over them.
        cross_L: ``sum g_j . g_k`` over ordered pairs of different groups of the same batch.
        pairs_L: Number of these pairs.
        num_batches: Batches pooled.
    """

    rate_L: tuple[float, ...]
    num_L: tuple[int, ...]
    square_L: tuple[float, ...]
    cross_L: tuple[float, ...]
    pairs_L: tuple[int, ...]
    num_batches: int = 1


def levels_of(rate_P: Array, dots_PP: Array) -> Levels:
    """Sort the groups of a batch by their solve rate.

    Args:
        rate_P: Share of right rollouts of each group; those of 0 and 1 have no gradient and are
            left out.
        dots_PP: Inner products of the groups' gradients.

    Raises:
        UsageError: Shapes that do not fit.

    >>> levels_of([0.5, 0.5, 0.0], [[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    ... # doctest: +NORMALIZE_WHITESPACE
    Levels(rate_L=(0.5,), num_L=(2,), square_L=(4.0,), cross_L=(2.0,), pairs_L=(2,),
           num_batches=1)
    """
    rate_P, dots_PP = np.asarray(rate_P, dtype=np.float64), np.asarray(dots_PP, dtype=np.float64)
    if rate_P.ndim != 1 or dots_PP.shape != (len(rate_P), len(rate_P)):
        raise UsageError(
            f"levels need a solve rate and a row of inner products for each group, got shapes "
            f"{rate_P.shape} and {dots_PP.shape}"
        )
    rates = [float(rate) for rate in np.unique(rate_P) if 0 < rate < 1]
    nums, squares, crosses = [], [], []
    for rate in rates:
        own = np.flatnonzero(rate_P == rate)
        dots = dots_PP[np.ix_(own, own)]
        nums.append(len(own))
        squares.append(float(np.trace(dots)))
        crosses.append(float(dots.sum() - np.trace(dots)))
    pairs = tuple(num * (num - 1) for num in nums)
    return Levels(tuple(rates), tuple(nums), tuple(squares), tuple(crosses), pairs)


def pooled(batches: Iterable[Levels]) -> Levels:
    """The sums of several batches."""
    batches = list(batches)
    sums: dict[float, list[float]] = {}
    for batch in batches:
        columns = (batch.num_L, batch.square_L, batch.cross_L, batch.pairs_L)
        for rate, *values in zip(batch.rate_L, *columns, strict=True):
            before = sums.setdefault(rate, [0.0] * 4)
            sums[rate] = [a + b for a, b in zip(before, values, strict=True)]
    rates = sorted(sums)
    num_L, square_L, cross_L, pairs_L = (tuple(sums[rate][i] for rate in rates) for i in range(4))
    return Levels(
        tuple(rates),
        tuple(map(int, num_L)),
        square_L,
        cross_L,
        tuple(map(int, pairs_L)),
        sum(batch.num_batches for batch in batches),
    )


@dataclass(frozen=True)
class Quality:
    """Equation (10) in our reading.

    Args:
        quality: ``Q(w) = N_eff E_f[u]``.
        batch_ratio: ``(E_f[w s])^2 / E_f[w^2 v_0 + s^2 w'^2 p q / G]``.
        num_effective: ``N_eff``, effective number of groups in a batch, by the size of w.
        known_share: Share of the groups at levels whose signal and variance could be told apart,
            which takes two groups in one batch; the others are left out of everything above.
    """

    quality: float
    batch_ratio: float
    num_effective: float
    known_share: float


def update_quality(
    levels: Levels, factor_L: Sequence[float], slope_L: Sequence[float], group_size: int
) -> Quality | None:
    """Quality of an update under a weight of the form ``factor(rbar) x (r - rbar)``.

    Our reading of (10), whose exact definitions are not public: ``u = s^2 w^2 / (w^2 v_0 + s^2 w'^2
    p q / G)`` at each level p, with w the factor, ``s^2 = max(0, mean g_j . g_k)`` the squared norm
    of the mean gradient of groups at p and ``v_0 = mean |g|^2 - s^2`` the variance of one group's
    gradient; f the share of groups at p among groups with a gradient; ``N_eff = (sum w)^2 /
    sum w^2`` over the groups of a batch. Q does not depend on the scale of w, and w = 1 is never
    beaten in it: u is largest where ``w' = 0``, N_eff where w is constant. It can show what a
    weight loses, not that focus on hard problems wins. ``batch_ratio`` can.

    Solve rates are those observed in groups of G, so levels mix problems of different difficulty;
    s^2 of few pairs scatters widely. Pool over many batches.

    Args:
        levels: Pooled sums.
        factor_L: The weight's factor at each level.
        slope_L: Its derivative by the solve rate.
        group_size: G.

    Returns:
        None where no level is known, or none of the known ones has weight or gradient.

    Raises:
        UsageError: Not one factor and slope for each level.

    Source: FADE (arXiv 2607.01490), equation 10, in our reading.

    >>> levels = Levels((0.5,), (2,), (4.0,), (2.0,), (2,))  # s^2 = 1, v_0 = 1
    >>> update_quality(levels, [1.0], [0.0], 8)
    Quality(quality=2.0, batch_ratio=1.0, num_effective=2.0, known_share=1.0)
    """
    rate_L, num_L, square_L, cross_L, pairs_L, w_L, slopes_L = (
        np.asarray(values, dtype=np.float64)
        for values in (
            *(levels.rate_L, levels.num_L, levels.square_L, levels.cross_L, levels.pairs_L),
            *(factor_L, slope_L),
        )
    )
    if not rate_L.shape == w_L.shape == slopes_L.shape:
        raise UsageError(
            f"{len(rate_L)} levels need as many factors and slopes, got {w_L.shape} and "
            f"{slopes_L.shape}"
        )
    # Without pairs signal and variance cannot be told apart; where a few pairs happen to give a
    # signal above the whole energy, no variance is left to divide by.
    signal_L = np.maximum(0.0, cross_L / np.maximum(1.0, pairs_L))
    variance_L = square_L / np.maximum(1.0, num_L) - signal_L
    is_known_L = (pairs_L > 0) & (variance_L > 0)
    if not is_known_L.any() or not w_L[is_known_L].any():
        return None
    known_share = float(num_L[is_known_L].sum() / num_L.sum())
    rate_L, num_L, signal_L, variance_L, w_L, slopes_L = (
        values[is_known_L] for values in (rate_L, num_L, signal_L, variance_L, w_L, slopes_L)
    )
    noise_L = w_L**2 * variance_L + signal_L * slopes_L**2 * rate_L * (1 - rate_L) / group_size
    share_L = num_L / num_L.sum()
    u_L = np.where(noise_L > 0, signal_L * w_L**2 / np.where(noise_L > 0, noise_L, 1.0), 0.0)
    num_effective = (num_L @ w_L) ** 2 / (num_L @ w_L**2) / levels.num_batches
    return Quality(
        quality=float(num_effective * (share_L @ u_L)),
        batch_ratio=float((share_L @ (w_L * np.sqrt(signal_L))) ** 2 / (share_L @ noise_L)),
        num_effective=float(num_effective),
        known_share=known_share,
    )


def solve_rates_by_problem(
    rollouts: Iterable[Mapping[str, Any]],
) -> dict[str, list[tuple[int, float]]]:
    """Solve rate of each problem at each of its visits, from the record of rollouts.

    Args:
        rollouts: Rows with ``problem_id``, ``group``, ``step`` and ``verdict``. A verdict of
            ``error`` is no answer: it counts neither as right nor as wrong.

    Returns:
        For each problem, in order of its first visit, pairs of step and share of right rollouts;
        a visit without a scored rollout is left out.

    >>> row = {"problem_id": "a", "group": 0, "step": 1}
    >>> solve_rates_by_problem([{**row, "verdict": "right"}, {**row, "verdict": "wrong"}])
    {'a': [(1, 0.5)]}
    """
    visits: dict[str, dict[tuple[int, int], list[bool]]] = {}
    for row in rollouts:
        visit = (row["step"], row["group"])
        answers = visits.setdefault(row["problem_id"], {}).setdefault(visit, [])
        if row["verdict"] != "error":
            answers.append(row["verdict"] == "right")
    return {
        problem: [
            (step, sum(answers) / len(answers)) for (step, _), answers in groups.items() if answers
        ]
        for problem, groups in visits.items()
    }
