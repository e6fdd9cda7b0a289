"""Write what runs measured beside what was predicted of them.

    python docs/fill_predictions.py --experiment short --commit 5db3a38 RUN [RUN ...]

Reads run directories, pairs each with the run of grpo of the same seed, and puts the paired
differences at the last common evaluation into the files of ``src/gradmass/advice/predictions``.
Outcomes of an experiment that is there are replaced; predictions themselves are never touched.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from gradmass.advice.intervals import mean_interval
from gradmass.record import Run
from gradmass.tables import from_spec, from_tables
from gradmass.weights import Weight

FOLDER = Path(__file__).parents[1] / "src" / "gradmass" / "advice" / "predictions"
BASELINE = "grpo"


def evaluated(run):
    """Rows of metrics with an evaluation, by step."""
    return {row["step"]: row for row in run.metrics if "test/pass@1" in row}


def by_weight(runs):
    """Runs by the label of their weight and their seed."""
    found = defaultdict(dict)
    for run in runs:
        recipe = run.config["recipe"]
        label = from_tables(Weight, recipe["weight"], str(run.path)).label
        found[label][recipe["seed"]] = run
    return found


def outcome(own, base, quantity):
    """Paired difference of a quantity over the seeds that both have; None below three."""
    seeds = sorted(own.keys() & base.keys())
    if len(seeds) < 3:  # an interval from two is chance
        return None
    steps = {max(evaluated(own[s]).keys() & evaluated(base[s]).keys()) for s in seeds}
    (step,) = steps  # all runs of an experiment have the same length
    differences = [
        evaluated(own[s])[step][quantity] - evaluated(base[s])[step][quantity] for s in seeds
    ]
    mean, low, high = mean_interval(np.array(differences))
    return {
        "step": step,
        "seeds": seeds,
        "difference": round(mean, 6),
        "low": round(low, 6),
        "high": round(high, 6),
    }


def command_of(run):
    """What was typed, without its folder."""
    words = run.env["command"]
    words = words.split() if isinstance(words, str) else list(words)
    at = words.index("train")
    kept = words[at:]
    out = kept.index("--out")
    return "gradmass " + " ".join([*kept[:out], *kept[out + 2 :]])


def main():
    """Read the runs, and fill the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", required=True)
    parser.add_argument("--commit", required=True, help="of the package the runs were made with")
    parser.add_argument("runs", nargs="+", type=Path)
    asked = parser.parse_args()
    runs = by_weight(Run(path) for path in asked.runs)
    for file in sorted(FOLDER.glob("*_countdown_tiny.json")):
        document = json.loads(file.read_text())
        for prediction in document["predictions"]:
            label = from_spec(Weight, prediction["weight"]).label
            kept = [o for o in prediction["outcomes"] if o["experiment"] != asked.experiment]
            found = outcome(runs.get(label, {}), runs[BASELINE], prediction["quantity"])
            if found is not None:
                command = command_of(next(iter(runs[label].values())))
                kept.append(
                    {
                        "experiment": asked.experiment,
                        "commit": asked.commit,
                        "command": command,
                        **found,
                    }
                )
            prediction["outcomes"] = kept
        file.write_text(json.dumps(document, indent=1) + "\n")
        num = sum(bool(prediction["outcomes"]) for prediction in document["predictions"])
        print(f"{file.name}: {num} of {len(document['predictions'])} with an outcome")


if __name__ == "__main__":
    main()
