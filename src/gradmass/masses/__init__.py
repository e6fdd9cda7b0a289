"""What a weight does, before anything is trained: gradient masses, axes, objective, scale."""

from gradmass.masses.axes import Axes, Equalise, axes_of, equalise_factor
from gradmass.masses.exact import Masses, finite_group_bias, masses_of, objective_of
from gradmass.masses.functions import FunctionWeight
from gradmass.masses.priors import BetaPrior, MeasuredPrior, Prior, parse_prior

__all__ = [
    "Axes",
    "BetaPrior",
    "Equalise",
    "FunctionWeight",
    "Masses",
    "MeasuredPrior",
    "Prior",
    "axes_of",
    "equalise_factor",
    "finite_group_bias",
    "masses_of",
    "objective_of",
    "parse_prior",
]
