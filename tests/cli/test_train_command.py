"""``gradmass train``: what it writes, and how a run that is interrupted goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import TINY, without_times

from gradmass.commands.progress import Progress
from gradmass.config import Recipe
from gradmass.record import Run
from gradmass.tables import from_tables, load_recipe


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


# train


def test_train_writes_a_whole_run_and_a_line_a_step(command):
    out, err = command("train", "demo", *TINY, "--out", "a folder/run")
    assert out == "run: a folder/run\n"
    lines = err.splitlines()
    assert lines[0] == "fade(entropy_form=relative) on countdown: a folder/run"
    assert [line.split()[:2] for line in lines[1:]] == [["step", f"{i}/2"] for i in range(3)]
    assert "test pass@1" in lines[1]
    assert all(word in lines[2] for word in ("solved", "entropy", "m_S", "alpha", "left"))
    assert "\x1b" not in err
    run = Run(Path("a folder/run"))
    assert run.state["status"] == "finished"
    assert [row["step"] for row in run.metrics] == [0, 1, 2]
    assert [(row["step"], row["split"]) for row in run.evaluations] == [
        (step, split) for step in (0, 2) for split in ("test", "ood")
    ]
    assert [row["step"] for row in run.rollouts()] == [1] * 8 + [2] * 8
    assert run.env["command"].startswith("gradmass ")
    assert (run.model_dir / "model.safetensors").exists()
    assert (run.model_dir / "tokenizer.json").exists()
    stored = from_tables(Recipe, run.config["recipe"], "config.json")
    assert stored == load_recipe(Recipe, "demo", TINY)


def test_train_as_json_is_one_object(command):
    out, err = command("train", "demo", *TINY, "--json", "--out", "run")
    assert err == ""
    assert len(out.splitlines()) == 1
    said = json.loads(out)
    assert (said["run"], said["is_finished"]) == ("run", True)
    assert said["metrics"] == Run(Path("run")).metrics[-1]


def test_train_names_its_folder_after_task_weight_and_time(command):
    for _ in range(2):
        command("train", "demo", *TINY, "--weight=grpo", "--train.steps=1")
    names = sorted(path.name for path in Path("runs").iterdir())
    assert len(names) == 2
    for name in names:
        assert name.startswith("countdown-grpo-2")


def test_a_dry_run_prints_the_recipe_and_writes_nothing(command):
    out, err = command("train", "demo", *TINY, "--weight=power", "--dry-run", "--out", "run")
    assert err == ""
    assert list(Path().iterdir()) == []
    Path("again.toml").write_text(out)
    again = load_recipe(Recipe, "again.toml", [])
    assert again == load_recipe(Recipe, "demo", [*TINY, "--weight=power"])
    assert "# Updates between evaluations; 0 evaluates at the start and the end only." in out
    assert command("train", "again.toml", "--dry-run") == (out, "")


def test_a_dry_run_shows_that_reinforce_needs_no_group(command):
    out, _ = command("train", "demo", "--weight=reinforce", "--train.group_size=1", "--dry-run")
    assert "\ngroup_size = 1\n" in out


def test_a_recipe_may_lie_anywhere_and_be_named_anything(command):
    folder = Path("my recipes é")
    folder.mkdir()
    (folder / "--first try.toml").write_text("seed = 12\n")
    out, _ = command("train", str(folder / "--first try.toml"), "--dry-run")
    assert "\nseed = 12\n" in out


# A run that is interrupted

LONGER = [*TINY, "--train.steps=100", "--eval.every=0", "--train.checkpoint_every=1000"]


@pytest.mark.slow
def test_ctrl_c_ends_a_run_that_resume_takes_up(command):
    process = subprocess.Popen(
        [sys.executable, "-m", "gradmass", "train", "demo", *LONGER, "--out", "a run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = Path("a run/metrics.jsonl")
    while process.poll() is None and not (
        metrics.exists() and metrics.read_text().count("\n") >= 3
    ):
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert out == ""
    again = "gradmass train --resume --out 'a run'"
    assert err.splitlines()[-1] == f"interrupted; continue with: {again}"
    state = Run(Path("a run")).state
    assert state["status"] == "interrupted"
    assert 2 <= state["step"] < 100
    assert len(Run(Path("a run")).metrics) == state["step"] + 1

    out, err = command("train", "--resume", "--out", "a run")
    assert out == "run: a run\n"
    assert err.splitlines()[1].split()[:2] == ["step", f"{state['step'] + 1}/100"]
    command("train", "demo", *LONGER, "--json", "--out", "at once")
    resumed, at_once = Run(Path("a run")), Run(Path("at once"))
    assert resumed.state["status"] == "finished"
    assert len(at_once.metrics) == 101
    assert without_times(resumed.metrics) == without_times(at_once.metrics)
    assert resumed.evaluations == at_once.evaluations
    assert list(resumed.rollouts()) == list(at_once.rollouts())
    assert (resumed.model_dir / "model.safetensors").read_bytes() == (
        at_once.model_dir / "model.safetensors"
    ).read_bytes()
    (resumption,) = resumed.env["resumed"]
    assert resumption["step"] == state["step"]


@pytest.fixture
def signal_at_step_1():
    """Send this process a signal when it shows step 1."""

    def arm(number):
        def show(progress, row, label="", shown=Progress.show):
            shown(progress, row, label)
            if row["step"] == 1:
                os.kill(os.getpid(), number)

        patch.setattr(Progress, "show", show)
        return patch.undo

    with pytest.MonkeyPatch.context() as patch:
        yield arm


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_at_its_step(command, signal_at_step_1, number):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    signal_at_step_1(number)
    out, err = command("train", "demo", *TINY, "--out", "run", code=130)
    assert out == ""
    assert err.splitlines()[-1] == ("interrupted; continue with: gradmass train --resume --out run")
    assert Run(Path("run")).state["status"] == "interrupted"
    assert Run(Path("run")).state["step"] == 1
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_interrupted_run_as_json_says_so(command, signal_at_step_1):
    signal_at_step_1(signal.SIGINT)
    out, _ = command("train", "demo", *TINY, "--json", "--out", "run", code=130)
    assert json.loads(out)["is_finished"] is False
    assert json.loads(out)["metrics"]["step"] == 1


def test_resume_accepts_the_same_recipe_and_notes_the_command(command, signal_at_step_1):
    undo = signal_at_step_1(signal.SIGINT)
    command("train", "demo", *TINY, "--out", "run", code=130)
    undo()
    out, _ = command("train", "demo", *TINY, "--resume", "--json", "--out", "run")
    assert json.loads(out)["metrics"]["step"] == 2
    out, err = command("train", "--resume", "--out", "run", code=2)
    assert err == "gradmass: error: run run is finished (step 2); there is nothing to do\n"
    (resumption,) = Run(Path("run")).env["resumed"]
    assert resumption["step"] == 1
    assert resumption["command"].startswith("gradmass train demo ")
    assert resumption["command"].endswith(" --resume --json --out run")
