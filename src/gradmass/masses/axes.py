"""The three axes of a weight (sign, difficulty, scale) as numbers, and weights of equal scale."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradmass.masses.canonical import Canonical
from gradmass.masses.exact import Masses, check_group_size, masses_of
from gradmass.masses.limit import limit_over_problems
from gradmass.masses.priors import BetaPrior, Prior
from gradmass.types import State, UsageError
from gradmass.weights import Weight
from gradmass.weights.grpo import Grpo

Equalise = Literal["none", "mass_at_half", "mean_mass"]
"""What is made equal to mean-only GRPO's: nothing, the total mass at p = 1/2, or its mean over the
problems."""
UNIFORM = BetaPrior()


@dataclass(frozen=True)
class Axes:
    """Where a weight stands.

    Args:
        sign_ratio: ``m_S / m_F`` at each solve rate; None where ``m_F = 0``.
        sign_ratio_fig4: ``m_S p / (m_F (1 - p))`` likewise, as printed in Figure 4 of the paper.
        peak_S: Solve rate at which the positive mass is largest; None if it is nowhere above 0.
        peak_F: Likewise for the negative mass.
        centroid_S: Mean solve rate of the problems, weighted by their positive mass, over the
            prior, or uniform solve rates without one; None where that mass is 0 or below 0
            somewhere.
        centroid_F: Likewise for the negative mass.
        scale_at_half: Total mass at p = 1/2, as a multiple of mean-only GRPO's at the same group
            size; None in groups of one, where GRPO has none.
        scale_mean: Mean total mass over the prior likewise; None without a prior.
        learning_rate_factor: What to multiply the learning rate by for steps of GRPO's size: one
            over ``scale_mean``, or over ``scale_at_half`` without a prior; None where that is not
            above 0. It holds for plain gradient steps: Adam cancels a constant factor by itself.
        useful_groups: Share of groups with a weight other than 0; None without a prior.
        effective_groups: Kish's effective share of groups, ``(sum a)^2 / (N sum a^2)`` with a the
            mean absolute weight of a group: at most ``useful_groups``; None without a prior.
    """

    sign_ratio: tuple[float | None, ...]
    sign_ratio_fig4: tuple[float | None, ...]
    peak_S: float | None
    peak_F: float | None
    centroid_S: float | None
    centroid_F: float | None
    scale_at_half: float | None
    scale_mean: float | None
    learning_rate_factor: float | None
    useful_groups: float | None
    effective_groups: float | None


def axes_of(
    weight: Weight,
    masses: Masses,
    *,
    prior: Prior | None = None,
    state: State | None = None,
    factor: float = 1.0,
) -> Axes:
    """The axes of a weight.

    Args:
        weight: The weight.
        masses: Its masses, for the ratios of signs and the group size.
        prior: Solve rates of the problems.
        state: Held fixed; None is the initial one.
        factor: What the weight is multiplied by.

    Raises:
        UsageError: As in ``masses_of``.
    """
    size = masses.group_size
    odds_N = masses.p_N / (1 - masses.p_N)
    grid_N = np.arange(1, 100) / 100 if size == math.inf else np.arange(1, 1000) / 1000
    on_grid = masses_of(weight, grid_N, size, prior=prior, state=state)
    over = _over_problems(Canonical(weight, state, prior), size, prior or UNIFORM)
    at_half = _ratio(factor * _at_half(weight, size, prior, state), _at_half(Grpo(), size))
    mean = None
    if prior is not None:
        grpo = _over_problems(Canonical(Grpo()), size, prior)
        mean = _ratio(factor * over.total, grpo.total)
    scale = at_half if prior is None else mean
    return Axes(
        sign_ratio=_ratios(masses.m_S_N, masses.m_F_N),
        sign_ratio_fig4=_ratios(masses.m_S_N * odds_N, masses.m_F_N),
        peak_S=_peak(grid_N, on_grid.m_S_N),
        peak_F=_peak(grid_N, on_grid.m_F_N),
        centroid_S=_centroid(on_grid.m_S_N, over.m_S, over.m_S_times_p),
        centroid_F=_centroid(on_grid.m_F_N, over.m_F, over.m_F_times_p),
        scale_at_half=at_half,
        scale_mean=mean,
        learning_rate_factor=1 / scale if scale is not None and scale > 0 else None,
        useful_groups=None if prior is None else over.useful,
        effective_groups=None if prior is None else over.effective,
    )


def equalise_factor(
    weight: Weight,
    equalise: Equalise,
    group_size: float,
    *,
    prior: Prior | None = None,
    state: State | None = None,
) -> float:
    """What to multiply a weight by so that its total mass equals mean-only GRPO's.

    One number for a whole run: it makes static weights comparable. The mass of a weight that
    depends on earlier batches still moves around it (``constant_mass`` holds that too).

    Args:
        weight: The weight.
        equalise: ``none`` gives 1; ``mass_at_half`` compares ``m_S + m_F`` at p = 1/2,
            ``mean_mass`` its mean over the prior.
        group_size: Of both.
        prior: Solve rates of the problems.
        state: Held fixed; None is the initial one.

    Raises:
        UsageError: ``mean_mass`` without prior, another word, or a total mass that is not above 0.

    >>> from gradmass.weights import WEIGHTS
    >>> equalise_factor(WEIGHTS["power"](alpha=2.0), "mass_at_half", math.inf)
    2.0
    """
    if equalise == "none":
        return 1.0
    if equalise == "mass_at_half":
        own, grpo = _at_half(weight, group_size, prior, state), _at_half(Grpo(), group_size)
        where = "at p = 1/2"
    elif equalise == "mean_mass":
        if prior is None:
            raise UsageError(
                "equalise = mean_mass needs the solve rates of the problems: give a prior "
                "(uniform, beta:a,b or a file of solve rates)"
            )
        own = _over_problems(Canonical(weight, state, prior), group_size, prior).total
        grpo = _over_problems(Canonical(Grpo()), group_size, prior).total
        where = f"over the prior {prior.label}"
    else:
        raise UsageError(f"equalise is none, mass_at_half or mean_mass, got {equalise!r}")
    for label, mass in ((weight.label, own), ("grpo", grpo)):
        if not mass > 0:
            raise UsageError(
                f"equalise = {equalise}: the total mass of {label} {where} in groups of "
                f"{group_size:g} is {mass:g}; no factor makes masses equal"
            )
    return grpo / own


@dataclass(frozen=True)
class _Means:
    """Means over the groups of the problems of a prior."""

    m_S: float
    m_F: float
    m_S_times_p: float
    m_F_times_p: float
    useful: float
    absolute: float
    square: float

    @property
    def total(self) -> float:
        return self.m_S + self.m_F

    @property
    def effective(self) -> float:
        return self.absolute**2 / self.square if self.square > 0 else 0.0


def _over_problems(canonical: Canonical, group_size: float, prior: Prior) -> _Means:
    """Exact at finite group sizes: a group counts by the chance of its number of successes."""
    if group_size == math.inf:
        rate_K, share_K, success_K, failure_K = limit_over_problems(canonical, prior)
        mean_p_K = rate_K
    else:
        size = check_group_size(group_size)
        rate_K = np.arange(size + 1) / size
        share_K, mean_p_K = prior.success_pmf(size), prior.mean_given_successes(size)
        success_K, failure_K = canonical.by_successes(size, np.arange(size + 1))
    positive_K, negative_K = rate_K * success_K, (1 - rate_K) * failure_K
    absolute_K = np.abs(positive_K) + np.abs(negative_K)
    columns = (
        positive_K,
        negative_K,
        positive_K * mean_p_K,
        negative_K * mean_p_K,
        absolute_K > 0,
        absolute_K,
        absolute_K**2,
    )
    return _Means(*(float(share_K @ column_K) for column_K in columns))


def _at_half(
    weight: Weight, group_size: float, prior: Prior | None = None, state: State | None = None
) -> float:
    masses = masses_of(weight, np.array([0.5]), group_size, prior=prior, state=state)
    return float(masses.total_N[0])


def _peak(grid_N: np.ndarray, mass_N: np.ndarray) -> float | None:
    """Where a mass on an even grid is largest, by a parabola through the largest three."""
    top = int(np.argmax(mass_N))
    if not mass_N[top] > 0:
        return None
    if top in (0, len(mass_N) - 1):
        return float(round(grid_N[top]))
    before, here, after = mass_N[top - 1 : top + 2]
    if min(before, after) < 0.9 * here:  # a jump
        return float(grid_N[top])
    curvature = before - 2 * here + after
    shift = (before - after) / (2 * curvature) if curvature else 0.0
    return float(grid_N[top] + shift * (grid_N[1] - grid_N[0]))


def _centroid(mass_N: np.ndarray, mean: float, mean_times_p: float) -> float | None:
    is_mass = mean > 0 and mass_N.min() > -1e-9 * mass_N.max()
    return mean_times_p / mean if is_mass else None


def _ratio(mass: float, grpo: float) -> float | None:
    return mass / grpo if grpo > 0 else None


def _ratios(above_N: np.ndarray, below_N: np.ndarray) -> tuple[float | None, ...]:
    pairs = zip(above_N.tolist(), below_N.tolist(), strict=True)
    return tuple(above / below if below else None for above, below in pairs)
