"""Write what runs measured beside what was predicted of them.

    python docs/fill_predictions.py --experiment short --commit 5db3a38 RUN [RUN ...]
    python docs/fill_predictions.py --experiment study --commit 5db3a38 \
        --study study_paper --setting countdown benchmarks/results/study/paper

Reads run directories, or with --study the folder of a study's results; pairs each run with the run
of grpo of the same seed, and puts the paired differences at the last common evaluation into the
files of ``src/gradmass/advice/predictions``. Outcomes of an experiment that is there are replaced;
predictions themselves are never touched.

Of a study those arms count that change nothing but the weight, at their own learning rates; arms
that replay another, runs on an axis and runs that diverged are left out. Its entropy is the mean
over the batches since the evaluation before, where that of a run directory is of one batch.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from gradmass.advice.intervals import mean_interval
from gradmass.record import Run
from gradmass.study.design import load_study
from gradmass.study.plan import recipe_of
from gradmass.study.results import VALUES, check_same, read_all
from gradmass.tables import from_spec, from_tables
from gradmass.types import UsageError
from gradmass.weights import Weight

FOLDER = Path(__file__).parents[1] / "src" / "gradmass" / "advice" / "predictions"
BASELINE = "grpo"
MODEL = "countdown-tiny"
CURVES = {key: curve for curve, key in VALUES.items()} | {"entropy/mean_nats": "entropy"}
"""Curves of a study's results by the quantities of predictions."""


def from_runs(folders):
    """Evaluations ``{step: {quantity: value}}`` and command of each run, by label and seed."""
    found = defaultdict(dict)
    for run in map(Run, folders):
        recipe = run.config["recipe"]
        label = from_tables(Weight, recipe["weight"], str(run.path)).label
        rows = {row["step"]: row for row in run.metrics if "test/pass@1" in row}
        found[label][recipe["seed"]] = (rows, command_of(run))
    return found


def from_study(name, setting, folder):
    """The same of the results of a study in one setting."""
    study = load_study(name)
    if setting not in [known.name for known in study.settings]:
        known = ", ".join(known.name for known in study.settings)
        raise UsageError(f"study {name} has no setting {setting!r}; known: {known}")
    check_same(folder, study)
    found = defaultdict(dict)
    for run, result in read_all(folder, study).items():
        arm = study.arm(run.arm)
        is_plain = not (arm.set or arm.trace_of or run.axes) and result.status == "finished"
        if run.kind != "main" or run.setting != setting or not is_plain:
            continue
        recipe = recipe_of(study, run)
        if recipe.model.path != MODEL or recipe.task.name != "countdown":
            raise UsageError(f"predictions are about {MODEL}, setting {setting} is not")
        curves = {key: result.curves[curve] for key, curve in CURVES.items()}
        rows = {
            step: {key: values[i] for key, values in curves.items()}
            for i, step in enumerate(result.curves["step"])
        }
        label = from_spec(Weight, arm.weight).label
        found[label][run.seed] = (rows, f"gradmass study {name} --out {folder}")
    if not found[BASELINE]:
        raise UsageError(f"{folder} has no run of {BASELINE} in setting {setting} to compare with")
    return found


def outcome(own, base, quantity):
    """Paired difference of a quantity over the seeds that both have; None below three."""
    pairs = {seed: (own[seed][0], base[seed][0]) for seed in sorted(own.keys() & base.keys())}
    if len(pairs) < 3:  # an interval from two is chance
        return None
    steps = {max(a.keys() & b.keys()) for a, b in pairs.values()}
    (step,) = steps  # all runs of an experiment have the same length
    values = {
        seed: (a[step].get(quantity), b[step].get(quantity)) for seed, (a, b) in pairs.items()
    }
    if any(None in pair for pair in values.values()):
        return None
    mean, low, high = mean_interval(np.array([a - b for a, b in values.values()]))
    return {
        "step": step,
        "seeds": list(values),
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


def fill(document, runs, experiment, commit):
    """Put the outcomes of an experiment into a file of predictions."""
    for prediction in document["predictions"]:
        label = from_spec(Weight, prediction["weight"]).label
        kept = [o for o in prediction["outcomes"] if o["experiment"] != experiment]
        own = runs.get(label, {})
        found = outcome(own, runs[BASELINE], prediction["quantity"])
        if found is not None:
            _, command = next(iter(own.values()))
            names = {"experiment": experiment, "commit": commit, "command": command}
            kept.append(names | found)
        prediction["outcomes"] = kept


def main(argv=None):
    """Read the runs, and fill the files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--experiment", required=True)
    parser.add_argument("--commit", required=True, help="of the package the runs were made with")
    parser.add_argument("--study", help="the paths are one folder of results of this study")
    parser.add_argument("--setting", help="of the study")
    parser.add_argument("runs", nargs="+", type=Path)
    asked = parser.parse_args(argv)
    if (asked.study is None) != (asked.setting is None) or (asked.study and len(asked.runs) > 1):
        parser.error("--study goes with --setting and one folder of results")
    try:
        runs = (
            from_study(asked.study, asked.setting, *asked.runs)
            if asked.study
            else from_runs(asked.runs)
        )
    except UsageError as error:
        parser.error(str(error))
    for file in sorted(FOLDER.glob("*_countdown_tiny.json")):
        document = json.loads(file.read_text())
        fill(document, runs, asked.experiment, asked.commit)
        file.write_text(json.dumps(document, indent=1) + "\n")
        num = sum(bool(prediction["outcomes"]) for prediction in document["predictions"])
        print(f"{file.name}: {num} of {len(document['predictions'])} with an outcome")


if __name__ == "__main__":
    main()
