"""What theory predicts for a setup, exactly and simulated, and how often it was right."""

from gradmass.advice.exact import exact_advice
from gradmass.advice.record import track_record
from gradmass.advice.simulation import Setup, simulate

__all__ = ["Setup", "exact_advice", "simulate", "track_record"]
