"""Studies: arms compared over seeds, from one file to a table of claims. No torch here."""

from gradmass.study.design import Arm, Axis, Hypothesis, Part, Rate, Setting, Study, Tuning
from gradmass.study.plan import PlannedRun, main_runs, tuning_runs
from gradmass.study.results import Result

__all__ = [
    "Arm",
    "Axis",
    "Hypothesis",
    "Part",
    "PlannedRun",
    "Rate",
    "Result",
    "Setting",
    "Study",
    "Tuning",
    "main_runs",
    "tuning_runs",
]
