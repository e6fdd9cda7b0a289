"""The run directory: the only code that writes or reads one."""

from gradmass.record.run import SCHEMA, Run, RunWriter, refuse_used

__all__ = ["SCHEMA", "Run", "RunWriter", "refuse_used"]
