"""What follows exactly from a weight, a group size and the solve rates of the problems."""

from typing import Any

import numpy as np

from gradmass.masses import FunctionWeight, Prior, axes_of, finite_group_bias, masses_of
from gradmass.masses.alignment import alignment
from gradmass.metrics.passk import KS
from gradmass.types import UsageError
from gradmass.weights import Weight

P_N = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
"""Solve rates at which masses are shown."""


def exact_advice(weight: Weight, group_size: int, prior: Prior) -> dict[str, Any]:
    """Everything that needs no simulation.

    The policy is its own sampler (no lag), loss and weights are as the weight says (no clipping, a
    constant normaliser), and a weight with memory is at its initial state.

    Args:
        weight: Any weight.
        group_size: G, at least 1.
        prior: Solve rates of the problems.

    Returns:
        ``label``; ``p``, ``m_S``, ``m_F``, ``objective_slope``, ``slope_bias`` at a few solve
        rates (the bias is the slope minus that of large groups, None where it is not computed);
        ``useful_groups`` (share with a weight other than 0), ``effective_groups`` (Kish),
        ``scale`` (mean total mass over mean-only GRPO's), ``learning_rate_factor`` (one over it),
        ``alignment`` with pass@k by k; or ``not_computed``, why not.
    """
    try:
        masses = masses_of(weight, P_N, group_size, prior=prior)
        bias_N = np.full(len(P_N), np.nan)
        if not isinstance(weight, FunctionWeight):
            bias_N = finite_group_bias(weight, masses, prior=prior)
        axes = axes_of(weight, masses, prior=prior)
        aligned = {str(k): alignment(weight, k, group_size, prior) for k in KS}
    except UsageError as error:
        return {"label": weight.label, "not_computed": str(error)}
    return {
        "label": weight.label,
        "p": P_N.tolist(),
        "m_S": masses.m_S_N.tolist(),
        "m_F": masses.m_F_N.tolist(),
        "objective_slope": masses.objective_slope_N.tolist(),
        "slope_bias": [None if np.isnan(bias) else float(bias) for bias in bias_N],
        "useful_groups": axes.useful_groups,
        "effective_groups": axes.effective_groups,
        "scale": axes.scale_mean,
        "learning_rate_factor": axes.learning_rate_factor,
        "alignment": {k: None if np.isnan(value) else value for k, value in aligned.items()},
    }
