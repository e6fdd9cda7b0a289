"""Fit the two numbers of the weight ``open_loop`` to what runs of FADE did.

    python docs/fit_open_loop.py --steps 300 runs/fade-*/metrics.jsonl
    python docs/fit_open_loop.py --steps 300 benchmarks/results/study/paper/main.*.fade.s*.json

Takes run records and results of a study whose arm is replayed by another; prints the weight as
``--weight`` and a study take it.
"""

import argparse
import json
from pathlib import Path

from gradmass.study.results import read_result
from gradmass.weights.open_loop import fit_open_loop
from gradmass.weights.trace import read_trace


def trace_of(file):
    """Alpha and delta by the updates done before the batch."""
    if file.suffix == ".json":
        found = json.loads(file.read_text())
        if isinstance(found, dict):  # a result of a study
            return dict(enumerate(map(tuple, read_result(file).trace["alpha_delta"])))
    return read_trace(str(file), "alpha_delta")


def main():
    """Read the traces, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True, help="updates of a run")
    parser.add_argument("traces", nargs="+", type=Path)
    asked = parser.parse_args()
    fit = fit_open_loop([trace_of(file) for file in asked.traces], asked.steps)
    print(f"open_loop:alpha_end={fit.alpha_end:.3g},delta_end={fit.delta_end:.3g}")


if __name__ == "__main__":
    main()
