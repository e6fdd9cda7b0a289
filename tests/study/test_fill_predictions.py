"""What a study measured, put beside what was predicted: from made-up results."""

import importlib.util
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gradmass.advice.record import outcome_of
from gradmass.study import main_runs
from gradmass.study.design import load_study
from gradmass.study.results import write_result

ROOT = Path(__file__).parents[2]


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def filled(tmp_path, monkeypatch):
    """The script on a copy of the predictions, and where they are."""
    fill, folder = script("fill_predictions"), tmp_path / "predictions"
    shutil.copytree(fill.FOLDER, folder)
    monkeypatch.setattr(fill, "FOLDER", folder)
    return fill, folder


def made_up(result_of, folder, gain):
    """Results of the paper's study; arm power2 ends ``gain[seed]`` above grpo at pass@100."""
    study = load_study("study_paper")
    folder.mkdir()
    for run in main_runs(study, {}):
        i = run.seed - study.first_seed
        if i >= len(gain):
            continue
        end = {"power2": 0.5 + gain[i], "matched": 99.0}.get(run.arm, 0.5)
        if run.setting == "maze":
            end += 7.0
        result = result_of(run, **{"pass@100": [0.4] * 5 + [end]})
        if run.arm == "asym_half" and i == 0:
            result = replace(result, status="diverged")
        write_result(result, folder / f"{run.name}.json")
    return folder


def outcomes_of(folder, experiment="made-up"):
    found = {}
    for file in folder.glob("*_countdown_tiny.json"):
        for prediction in json.loads(file.read_text())["predictions"]:
            for outcome in prediction["outcomes"]:
                if outcome["experiment"] == experiment:
                    found[prediction["id"]] = (prediction, outcome)
    return found


def test_outcomes_are_paired_differences_of_one_setting(tmp_path, filled, result_of):
    fill, folder = filled
    untouched = {
        file.name: [
            {key: value for key, value in p.items() if key != "outcomes"}
            for p in json.loads(file.read_text())["predictions"]
        ]
        for file in folder.glob("*_countdown_tiny.json")
    }
    gain = [0.02, 0.03, 0.05, 0.06]
    results = made_up(result_of, tmp_path / "results", gain)
    flags = ["--study", "study_paper", "--setting", "countdown", str(results)]
    fill.main(["--experiment", "made-up", "--commit", "abc", *flags])
    found = outcomes_of(folder)
    prediction, outcome = found["study-power-alpha2-pass100"]
    mean = sum(gain) / 4
    spread = math.sqrt(sum((g - mean) ** 2 for g in gain) / 3 / 4)
    half = 3.182446 * spread  # t of 3 degrees of freedom at .975
    assert outcome == {
        "experiment": "made-up",
        "commit": "abc",
        "command": f"gradmass study study_paper --out {results}",
        "step": 5,
        "seeds": [1000, 1001, 1002, 1003],
        "difference": 0.04,
        "low": pytest.approx(mean - half, abs=1e-5),
        "high": pytest.approx(mean + half, abs=1e-5),
    }
    assert outcome_of(prediction["predicted"], outcome["low"], outcome["high"]) == "hit"
    # One of its four runs diverged and is left out with its pair.
    diverged = [o for p, o in found.values() if p["weight"] == "asym_grpo_delta:delta=0.5"]
    assert {tuple(o["seeds"]) for o in diverged} == {(1001, 1002, 1003)}
    weights = {p["weight"] for p, _ in found.values()}
    assert weights == {
        *("power:alpha=2", "asym_grpo_delta:delta=0.5", "asym_grpo_delta:delta=2"),
        "fade:entropy_form=relative",
    }
    after = {
        file.name: [
            {key: value for key, value in p.items() if key != "outcomes"}
            for p in json.loads(file.read_text())["predictions"]
        ]
        for file in folder.glob("*_countdown_tiny.json")
    }
    assert after == untouched
    assert outcomes_of(folder, "short"), "those of other experiments stay"


def test_filling_twice_is_filling_once_and_two_seeds_are_none(tmp_path, filled, result_of):
    fill, folder = filled
    results = made_up(result_of, tmp_path / "results", [0.1, 0.2, 0.3])
    flags = ["--study", "study_paper", "--setting", "countdown", str(results)]
    fill.main(["--experiment", "made-up", "--commit", "abc", *flags])
    first = {file.name: file.read_bytes() for file in folder.iterdir()}
    fill.main(["--experiment", "made-up", "--commit", "abc", *flags])
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == first
    for file in results.glob("*.s1002.json"):
        file.unlink()
    fill.main(["--experiment", "made-up", "--commit", "abc", *flags])
    assert outcomes_of(folder) == {}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--study", "study_paper", "."], "--study goes with --setting and one folder"),
        (["--study", "study_paper", "--setting", "moon", "."], "has no setting 'moon'"),
        (["--study", "study_paper", "--setting", "maze", "results"], "about countdown-tiny"),
        (["--study", "study_paper", "--setting", "countdown", "."], "has no run of grpo"),
        (["--study", "no_study", "--setting", "countdown", "."], "there is no recipe 'no_study'"),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path, monkeypatch, filled, result_of, capsys, flags, message
):
    fill, _ = filled
    made_up(result_of, tmp_path / "results", [0.1])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        fill.main(["--experiment", "made-up", "--commit", "abc", *flags])
    assert message in capsys.readouterr().err


def test_the_open_loop_is_fitted_to_results_and_records(tmp_path, monkeypatch, capsys, result_of):
    fit = script("fit_open_loop")
    share = [math.log(1 + t) / math.log(51) for t in range(50)]
    trace = [[1.5 + 1.5 * s, 1 - 0.5 * s] for s in share]
    run = main_runs(load_study("study_paper"), {})[0]
    result = replace(result_of(run), trace={"alpha_delta": trace, "mass": []})
    write_result(result, tmp_path / "result.json")
    (tmp_path / "list.json").write_text(json.dumps(trace))
    rows = [{"step": 0}] + [
        {"step": t + 1, "weight/alpha": a, "weight/delta": d} for t, (a, d) in enumerate(trace)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = [str(tmp_path / name) for name in ("result.json", "list.json", "metrics.jsonl")]
    for given in ([name] for name in names):
        monkeypatch.setattr("sys.argv", ["fit_open_loop.py", "--steps", "50", *given])
        fit.main()
        assert capsys.readouterr().out == "open_loop:alpha_end=3,delta_end=0.5\n"
