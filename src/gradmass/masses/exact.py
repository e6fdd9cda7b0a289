"""Gradient masses of a weight: exactly at finite group sizes, and their limit for large groups."""

import math
from dataclasses import dataclass, replace

import numpy as np

from gradmass.masses.canonical import MAX_GROUP_SIZE, Canonical
from gradmass.masses.limit import is_in_range, limit_objective, limit_weights
from gradmass.masses.priors import Prior, binomial_pmf
from gradmass.types import State, UsageError
from gradmass.weights import Weight


@dataclass(frozen=True)
class Masses:
    """What a weight does at each solve rate, with rewards of 0 and 1.

    Args:
        label: The weight's label.
        group_size: G, or infinity.
        p_N: Solve rates in (0, 1).
        w_S_N: Mean weight of a success, ``m_S / p``.
        w_F_N: Minus the mean weight of a failure, ``m_F / (1 - p)``.
        error: Estimated largest error of the masses; 0 where only rounding is left.
    """

    label: str
    group_size: float
    p_N: np.ndarray
    w_S_N: np.ndarray
    w_F_N: np.ndarray
    error: float

    @property
    def m_S_N(self) -> np.ndarray:
        """Positive gradient mass: mean over rollouts of the weight of successes."""
        m_S_N: np.ndarray = self.p_N * self.w_S_N
        return m_S_N

    @property
    def m_F_N(self) -> np.ndarray:
        """Negative gradient mass: minus the mean over rollouts of the weight of failures."""
        m_F_N: np.ndarray = (1.0 - self.p_N) * self.w_F_N
        return m_F_N

    @property
    def total_N(self) -> np.ndarray:
        """``m_S + m_F``."""
        total_N: np.ndarray = self.m_S_N + self.m_F_N
        return total_N

    @property
    def objective_slope_N(self) -> np.ndarray:
        """``F' = m_S / p + m_F / (1 - p)``: the expected gradient is ``F'(p) grad p``."""
        slope_N: np.ndarray = self.w_S_N + self.w_F_N
        return slope_N

    def scaled(self, factor: float) -> "Masses":
        """The masses of the weight times a number."""
        return replace(
            self,
            w_S_N=factor * self.w_S_N,
            w_F_N=factor * self.w_F_N,
            error=abs(factor) * self.error,
        )

    def token_mean(self, success_length: float, failure_length: float) -> tuple[np.ndarray, ...]:
        """Masses under a loss that divides by the number of tokens, not of rollouts.

        With right and wrong rollouts of different mean lengths l_S and l_F the masses are
        ``m_S l_S / l`` and ``m_F l_F / l``, ``l = p l_S + (1 - p) l_F``, per token of a large
        batch.

        Args:
            success_length: Mean tokens of right rollouts, above 0.
            failure_length: Mean tokens of wrong rollouts, above 0.

        Returns:
            ``(m_S_N, m_F_N)``.

        Raises:
            UsageError: A length that is not a finite number above 0.
        """
        for length in (success_length, failure_length):
            if not (math.isfinite(length) and length > 0):
                raise UsageError(
                    f"a mean length is a finite number of tokens above 0, got {length}"
                )
        mean_N = self.p_N * success_length + (1.0 - self.p_N) * failure_length
        return self.m_S_N * success_length / mean_N, self.m_F_N * failure_length / mean_N


def masses_of(
    weight: Weight,
    p_N: np.ndarray,
    group_size: float = 8,
    *,
    prior: Prior | None = None,
    state: State | None = None,
) -> Masses:
    """Gradient masses of a weight as functions of the solve rate.

    The weight itself weighs groups with 0 to G successes. A success meets t successes among the
    G - 1 other rollouts of its group with binomial probability, so
    ``w_S(p) = sum_t Bin(t; G - 1, p) w(success | t + 1 successes)`` and likewise
    ``w_F(p) = -sum_t Bin(t; G - 1, p) w(failure | t successes)``; ``m_S = p w_S``,
    ``m_F = (1 - p) w_F``. The sums are exact.

    For infinite groups, the weights of groups of a few thousand rollouts with a share p of
    successes are extrapolated (``limit.py``).

    A weight that depends on the whole batch is measured as one group in a batch of infinitely many
    problems with solve rates from ``prior``. A weight that depends on earlier batches keeps its
    state. Signals are neutral (``canonical.neutral_signals``).

    Args:
        weight: Any weight.
        p_N: Solve rates in (0, 1).
        group_size: Whole number from 1 to 4096, or ``math.inf``.
        prior: Solve rates of the other problems of the batch.
        state: Held fixed; None is the initial one.

    Raises:
        UsageError: A solve rate or group size out of range, a state of another weight, a
            batch-dependent weight without prior, or a weight that refuses groups of this size.

    >>> import numpy as np
    >>> from gradmass.weights import WEIGHTS
    >>> masses = masses_of(WEIGHTS["grpo"](), np.array([0.5]), 4)
    >>> masses.m_S_N, masses.m_F_N, masses.objective_slope_N
    (array([0.1875]), array([0.1875]), array([0.75]))
    """
    p_N = _checked(p_N)
    canonical = Canonical(weight, state, prior)
    if group_size == math.inf:
        w_S_N, w_F_N, error_N = limit_weights(canonical, p_N)
        return Masses(weight.label, math.inf, p_N, w_S_N, w_F_N, float(error_N.max(initial=0.0)))
    size = check_group_size(group_size)
    success_S, failure_S = canonical.by_successes(size, np.arange(size + 1))
    w_S_N, w_F_N = average_over_groups(p_N, success_S, failure_S)
    error = 0.0
    if not canonical.is_by_group:
        half = canonical.by_successes(size, np.arange(size + 1), is_half=True)
        other_S_N, other_F_N = average_over_groups(p_N, *half)
        differences_N = p_N * np.abs(w_S_N - other_S_N) + (1 - p_N) * np.abs(w_F_N - other_F_N)
        error = float(differences_N.max(initial=0.0))
    return Masses(weight.label, size, p_N, w_S_N, w_F_N, error)


def check_group_size(group_size: float) -> int:
    """The group size as a whole number.

    Raises:
        UsageError: It is none, or beyond what is weighed exactly.
    """
    if not 1 <= group_size <= MAX_GROUP_SIZE or int(group_size) != group_size:
        raise UsageError(
            f"group size must be a whole number from 1 to {MAX_GROUP_SIZE}, or inf, "
            f"got {group_size}"
        )
    return int(group_size)


def average_over_groups(
    p_N: np.ndarray, success_S: np.ndarray, failure_S: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean weights of a success and, negated, of a failure at each solve rate in [0, 1].

    Args:
        p_N: Solve rates.
        success_S: Weight of a success in groups with 0 to G successes.
        failure_S: Minus the weight of a failure likewise.
    """
    others_NT = binomial_pmf(p_N, len(success_S) - 2)
    return others_NT @ success_S[1:], others_NT @ failure_S[:-1]


def objective_of(
    weight: Weight,
    p_N: np.ndarray,
    group_size: float = 8,
    *,
    prior: Prior | None = None,
    state: State | None = None,
) -> tuple[np.ndarray, float]:
    """The objective F whose gradient the weight estimates, on policy and without clipping.

    ``F(p)`` is the integral of ``F' = w_S + w_F`` from 0 to p. At finite group sizes it is exact,
    ``F(p) = (1/G) sum_s Bin(s; G, p) sum_(t < s) (w(success | t + 1) - w(failure | t))``, and
    finite. For infinite groups it is integrated numerically, to about 1e-3, or 1e-2 where the slope
    bends at a p below 1e-4; where F is infinite at 0, as is log p, the integral starts elsewhere.

    Args:
        weight: As in ``masses_of``, and so the others.
        p_N: Solve rates.
        group_size: Group size.
        prior: Solve rates of the batch.
        state: State held fixed.

    Returns:
        F at each solve rate, and the p at which it is 0: 0.0, or 1.0 where F is infinite at p = 0,
        or 0.5 where it is infinite at both ends.

    Raises:
        UsageError: As in ``masses_of``.

    >>> import numpy as np
    >>> from gradmass.weights import WEIGHTS
    >>> objective_of(WEIGHTS["rloo"](), np.array([0.5]), 4)
    (array([0.5]), 0.0)
    """
    p_N = _checked(p_N)
    canonical = Canonical(weight, state, prior)
    if group_size == math.inf:
        return limit_objective(canonical, p_N)
    size = check_group_size(group_size)
    success_S, failure_S = canonical.by_successes(size, np.arange(size + 1))
    # The integral of Bin(t; G - 1, x) from 0 to p is the chance of more than t of G, over G.
    steps_S = np.concatenate([[0.0], np.cumsum(success_S[1:] + failure_S[:-1])])
    objective_N: np.ndarray = binomial_pmf(p_N, size) @ steps_S / size
    return objective_N, 0.0


def finite_group_bias(
    weight: Weight,
    masses: Masses,
    *,
    prior: Prior | None = None,
    state: State | None = None,
) -> np.ndarray:
    """Slope of the objective at a finite group size minus its limit for large groups.

    A weight that plugs the mean of the group into a function of the solve rate has another
    objective at finite group sizes; leave-one-out and counted forms have none of this bias.

    Args:
        weight: The weight.
        masses: Its masses, not scaled.
        prior: Solve rates of the batch.
        state: State held fixed.

    Returns:
        The difference at each solve rate of ``masses``, NaN where the limit is not computed, too
        close to 0 or 1; 0 for infinite groups.

    Raises:
        UsageError: As in ``masses_of``.
    """
    if masses.group_size == math.inf:
        return np.zeros(len(masses.p_N))
    canonical = Canonical(weight, state, prior)
    is_inner_N = is_in_range(canonical, masses.p_N)
    bias_N = np.full(len(masses.p_N), np.nan)
    w_S_N, w_F_N, _ = limit_weights(canonical, masses.p_N[is_inner_N])
    bias_N[is_inner_N] = masses.objective_slope_N[is_inner_N] - (w_S_N + w_F_N)
    return bias_N


def _checked(p_N: np.ndarray) -> np.ndarray:
    p_N = np.asarray(p_N, dtype=np.float64)
    for p in p_N[~((p_N > 0) & (p_N < 1))]:
        raise UsageError(f"a solve rate p is above 0 and below 1, got {p:g}")
    return p_N
