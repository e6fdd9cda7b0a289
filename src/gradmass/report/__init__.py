"""Figures of runs, and one HTML page that says what they show. Needs the extra ``plots``."""

from gradmass.report.page import write_report

__all__ = ["write_report"]
