"""Judged samples of any tool: files in, counts by problem out."""

from gradmass.record.judged.files import check_threshold, read_judged
from gradmass.record.judged.tally import Judged, counted

__all__ = ["Judged", "check_threshold", "counted", "read_judged"]
