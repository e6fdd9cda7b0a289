"""Figures of runs, and HTML pages that say what they show. Those of runs need the extra ``plots``."""
