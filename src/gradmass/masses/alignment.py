"""How far the objective a weight implies points towards pass@k, exactly."""

import math

import numpy as np

from gradmass.masses.canonical import Canonical
from gradmass.masses.exact import average_over_groups, check_group_size
from gradmass.masses.priors import Prior
from gradmass.types import State, UsageError
from gradmass.weights import Weight


def alignment(
    weight: Weight,
    k: int,
    group_size: int,
    prior: Prior,
    *,
    state: State | None = None,
) -> float:
    """Cosine between the gradient a weight follows and the gradient of pass@k.

    Problems are independent, each with one logit: ``p = sigmoid(theta)``. An objective F then has
    the gradient ``F'(p) p (1 - p)`` at a problem of solve rate p, pass@k has
    ``k (1 - p)^(k - 1) p (1 - p)``, and the cosine is taken over the problems of the prior. It is
    the gain in pass@k of a small step of given length, as a share of the largest possible: the
    scale of a weight has no part in it, as under Adam. What problems have in common, the noise of
    groups, clipping, and everything that moves entropy but not solve rates is left out.

    Args:
        weight: Any weight.
        k: At least 1.
        group_size: G, at least 1.
        prior: Solve rates of the problems. Those of exactly 0 or 1 do not move.
        state: Held fixed; None is the initial one.

    Returns:
        From -1 to 1; 0.0 where the weight moves no problem, NaN where pass@k has no gradient, as
        all problems are solved always or never.

    Raises:
        UsageError: A k below 1, or as in ``masses_of``.

    >>> from gradmass.masses import BetaPrior
    >>> from gradmass.weights import WEIGHTS
    >>> alignment(WEIGHTS["grpo"](), 1, 8, BetaPrior()) > 0.999999  # GRPO ascends pass@1
    True
    """
    if k < 1:
        raise UsageError(f"pass@k needs a k of at least 1, got {k}")
    size = check_group_size(group_size)
    p_N, share_N = prior.nodes()
    is_inner_N = (p_N > 0) & (p_N < 1)
    p_N, share_N = p_N[is_inner_N], share_N[is_inner_N]
    if len(p_N) == 0:
        return math.nan
    canonical = Canonical(weight, state, prior)
    success_S, failure_S = canonical.by_successes(size, np.arange(size + 1))
    w_S_N, w_F_N = average_over_groups(p_N, success_S, failure_S)
    own_N = (w_S_N + w_F_N) * p_N * (1 - p_N)
    wanted_N = k * np.exp((k - 1) * np.log1p(-p_N)) * p_N * (1 - p_N)
    lengths = math.sqrt(share_N @ own_N**2) * math.sqrt(share_N @ wanted_N**2)
    return float(share_N @ (own_N * wanted_N)) / lengths if lengths > 0 else 0.0
