"""Judged samples of any tool: files in, counts by problem out."""

from gradmass.record.judged.files import read_judged
from gradmass.record.judged.tally import Judged

__all__ = ["Judged", "read_judged"]
