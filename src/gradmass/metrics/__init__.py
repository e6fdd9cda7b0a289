"""Metrics: what is measured of a run, as pure functions of arrays. NumPy; no torch needed."""
