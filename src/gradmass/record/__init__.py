"""The run directory: the only code that writes or reads one."""

from gradmass.record.run import SCHEMA, Run, Status
from gradmass.record.writer import Checkpoint, RunWriter, refuse_used

__all__ = ["SCHEMA", "Checkpoint", "Run", "RunWriter", "Status", "refuse_used"]
