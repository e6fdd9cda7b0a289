"""``gradmass study`` as a person runs it: errors, a page from what is there, and a whole study."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gradmass.cli import main
from gradmass.record.files import is_locked
from gradmass.study import main_runs, tuning_runs
from gradmass.study.design import load_study
from gradmass.study.results import keep_study, write_result

ARMS = """
name = "tiny"
first_seed = 10
num_seeds = 2

[recipe.train]
steps = {steps}
num_problems = 4
prompts_per_step = 2
group_size = 2
threads = 1
checkpoint_every = 2

[recipe.eval]
every = 2
num_problems = 2
num_samples = 0

[recipe.probe]
every = 0
rank_every = 0

[[settings]]
name = "countdown"

[[arms]]
name = "fade"
weight = "fade:entropy_form=relative"

[[arms]]
name = "yoked"
weight = "replay:what=alpha_delta"
trace_of = "fade"
trace_seed = "next"
"""
NOWHERE = 'set = ["model.path=nowhere"]'


def run(*argv: object, code: int = 0) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["study", *map(str, argv)])
    assert stopped.value.code == code


@pytest.fixture
def tiny(tmp_path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(ARMS.format(steps=2))
    return file


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no_such_study"], "there is no recipe 'no_such_study'"),
        (["study_smoke", "--jobs", "-1"], "--jobs must be at least 0, got -1"),
        (["lost.toml"], "study tiny, setting countdown, arm fade: no model at 'nowhere': not a"),
        (["lost.toml", "--dry-run"], "arm fade: no model at 'nowhere'"),
        (["study_10m"], "study ten_m, setting countdown, arm grpo: no model at 'countdown-10m'"),
        (["study_smoke", "--first-seed", "-3"], "first_seed of at least 0"),
        (["study_smoke", "--first-seed", "0"], "would tune on seeds that count"),
        (["study_smoke", "--rsume"], "--resume"),
        (["study_smoke", "--replicate", "full"], "--replicate is for --report"),
        (["study_smoke", "--out", "full"], "full has results already: go on with --resume"),
        (["study_smoke", "--out", "file"], "cannot write to output folder file"),
        (["study_smoke", "--out", "empty", "--report", "page.md"], "no result of study smoke"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    lost = ARMS.format(steps=2).replace('name = "countdown"', 'name = "countdown"\n' + NOWHERE)
    (tmp_path / "lost.toml").write_text(lost)
    before = sorted(tmp_path.iterdir())
    run(*argv, code=2)
    assert sorted(tmp_path.iterdir()) == before
    err = capsys.readouterr().err
    assert err.startswith("gradmass: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_the_page_shows_claims_arms_and_figures_and_says_how_much_is_in(
    tmp_path, capsys, result_of
):
    study = load_study("study_smoke")
    folder = tmp_path / "results"
    folder.mkdir()
    rates = {(s.name, arm): 2e-4 for s in study.settings for arm in ("grpo", "fade")}
    runs = [*tuning_runs(study), *main_runs(study, rates)[:-1]]
    for made in runs:
        write_result(result_of(made), folder / f"{made.name}.json")
    page = tmp_path / "page.md"
    run("study_smoke", "--out", folder, "--report", page)
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text()
    assert "**15 of 16 runs are in; 1 of 2 seeds are complete.**" in text
    assert "provisional" in text
    assert "| H1 | FADE is no worse than GRPO | **undecided** (provisional: 1 of 2 seeds) |" in text
    assert "| matched | 0.0002 | 0.0002 |" in text
    images = sorted(path.name for path in (tmp_path / "images").iterdir())
    assert images
    for name in images:
        assert f"(images/{name})" in text
    first = {name: (tmp_path / "images" / name).read_bytes() for name in images}
    run("study_smoke", "--out", folder, "--report", page)
    assert {name: (tmp_path / "images" / name).read_bytes() for name in images} == first
    assert page.read_text() == text


def test_results_of_another_study_are_not_reported(tiny, tmp_path, capsys, result_of):
    study = load_study(str(tiny))
    for folder, seed in (("results", 10), ("again", 20)):
        (tmp_path / folder).mkdir()
        for made in main_runs(replace(study, first_seed=seed), {}):
            write_result(result_of(made), tmp_path / folder / f"{made.name}.json")
    results, again, page = tmp_path / "results", tmp_path / "again", tmp_path / "page.md"
    argv = (tiny, "--out", results, "--report", page, "--replicate", again)
    run(*argv)
    notes = capsys.readouterr().err.splitlines()
    assert [note.split(" has no study.json")[0] for note in notes] == [
        f"gradmass: note: {results}",
        f"gradmass: note: {again}",
    ]
    keep_study(results, study)
    keep_study(again, study)
    run(*argv)
    assert capsys.readouterr().err == ""
    page.unlink()
    tiny.write_text(ARMS.format(steps=2).replace('"fade:entropy_form=relative"', '"grpo"'))
    for folder in (results, again):
        run(*argv, code=2)
        err = capsys.readouterr().err
        assert err.startswith(f"gradmass: error: {folder} was begun by another study: arm.fade was")
        (folder / "study.json").unlink()
    assert not page.exists()


@pytest.mark.slow
def test_a_study_is_made_resumed_and_its_traces_are_replayed(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    run(tiny, "--out", out, "--jobs", 1, "--json")
    assert json.loads(capsys.readouterr().out)["num_done"] == 4
    before = {file.name: file.read_bytes() for file in out.glob("*.s*.json")}
    assert len(before) == 4
    yoked = json.loads(before["main.countdown.yoked.s10.json"])
    fade = json.loads(before["main.countdown.fade.s11.json"])
    assert yoked["curves"]["alpha"][-1] == pytest.approx(fade["curves"]["alpha"][-1])
    assert len(fade["trace"]["alpha_delta"]) == 2
    # A result that is lost is made again, the same but for the time it took.
    (out / "main.countdown.yoked.s10.json").unlink()
    run(tiny, "--out", out, "--jobs", 1, "--resume")
    assert "3 there already" in capsys.readouterr().err
    again = json.loads((out / "main.countdown.yoked.s10.json").read_text())
    assert again | {"seconds": 0} == yoked | {"seconds": 0}


@pytest.mark.slow
def test_a_study_that_was_killed_goes_on(tmp_path):
    file, out = tmp_path / "tiny.toml", tmp_path / "out"
    file.write_text(ARMS.format(steps=30))
    argv = [sys.executable, "-m", "gradmass", "study", str(file), "--out", str(out), "--jobs", "1"]
    first = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
    rows = out / "work" / "main.countdown.fade.s10" / "metrics.jsonl"
    while not (rows.exists() and rows.read_text().count("\n") > 5):
        assert first.poll() is None
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert not list(out.glob("*.s*.json"))
    done = subprocess.run([*argv, "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text()) for path in sorted(out.glob("*.s*.json"))]
    assert len(results) == 4
    assert all(result["curves"]["step"][-1] == 30 for result in results)


@pytest.mark.slow
def test_the_runs_of_a_study_that_is_killed_save_where_they_are_and_end(tmp_path):
    file, out = tmp_path / "tiny.toml", tmp_path / "out"
    file.write_text(ARMS.format(steps=5000).replace("checkpoint_every = 2\n", ""))
    argv = [sys.executable, "-m", "gradmass", "study", str(file), "--out", str(out), "--jobs", "2"]
    study = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    runs = [out / "work" / f"main.countdown.fade.s{seed}" for seed in (10, 11)]
    for rows in (run / "metrics.jsonl" for run in runs):
        while not (rows.exists() and rows.read_text().count("\n") > 2):
            assert study.poll() is None
            time.sleep(0.05)
    study.kill()
    study.wait()
    deadline = time.monotonic() + 20
    while any(is_locked(run / "metrics.jsonl") for run in runs):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    states = [json.loads((run / "state.json").read_text()) for run in runs]
    assert [state["status"] for state in states] == ["interrupted"] * 2


@pytest.mark.slow
def test_a_study_that_is_interrupted_saves_its_run_and_says_how_to_go_on(tmp_path):
    file, out = tmp_path / "tiny.toml", tmp_path / "out"
    file.write_text(ARMS.format(steps=500).replace("checkpoint_every = 2\n", ""))
    argv = [sys.executable, "-m", "gradmass", "study", str(file), "--out", str(out), "--jobs", "1"]
    study = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    folder = out / "work" / "main.countdown.fade.s10"
    rows = folder / "metrics.jsonl"
    while not (rows.exists() and rows.read_text().count("\n") > 5):
        assert study.poll() is None
        time.sleep(0.05)
    study.send_signal(signal.SIGINT)
    _, err = study.communicate()
    assert study.returncode == 130
    assert f"continue with: gradmass study {file} --out {out} --resume" in err
    state = json.loads((folder / "state.json").read_text())
    assert state["status"] == "interrupted"
    assert 0 < state["step"] < 500


@pytest.mark.slow
def test_ray_makes_the_same_results(tiny, tmp_path):
    outs = {}
    for executor in ("local", "ray"):
        outs[executor] = tmp_path / executor
        argv = [str(tiny), "--out", str(outs[executor]), "--jobs", "2", "--executor", executor]
        subprocess.run([sys.executable, "-m", "gradmass", "study", *argv], check=True)
    for file in outs["local"].glob("*.s*.json"):
        ours, theirs = (json.loads((outs[name] / file.name).read_text()) for name in outs)
        for result in (ours, theirs):
            del result["seconds"], result["environment"]
        assert ours == theirs
