"""Figures and HTML pages: runs (which need the extra ``plots``), and the explorer of weights."""
