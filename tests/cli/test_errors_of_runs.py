"""Errors while a run is under way, of the package, and of the machine: one line, and the code."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_cases import FEW, TINY, in_mine

from gradmass.cli import _message, main
from gradmass.commands import demo
from gradmass.config import Recipe
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

pytestmark = pytest.mark.usefixtures("wrong_things")

# What only shows while a run is under way


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (
            ["--train.num_problems=300", *FEW],
            "split 'train' of task 'countdown' has only ",
        ),
        (
            ["--eval.num_problems=300", *FEW],
            "split 'test' of task 'countdown' has only ",
        ),
        (["--model.path=no model"], "cannot load a model from 'no model': "),
        (["--weight=mine.py:Picky"], f"{in_mine('is too low')}: ValueError: level 1.0 is too low"),
        (["--weight=mine.py:ArrayState"], "the weight's state {'mean': array([0., 0.])} cannot be"),
        (["--train.max_new_tokens=53"], "the longest prompt and train.max_new_tokens = 53 make "),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_run_that_cannot_start_leaves_nothing(refused, flags, wanted):
    message = refused("train", "demo", *TINY, *flags, "--json", "--out", "run")
    assert message.startswith(wanted.replace("HERE", str(Path.cwd())))


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--weight=mine.py:Nan"], "weight mine.py:Nan gave NaN or infinite weights"),
        (["--weight=mine.py:Raises"], f"{in_mine('raise KeyError')}: KeyError: 'first line\\nsec"),
        (["--weight=mine.py:NanReport"], "weight/spread = nan is no number that the record"),
        (["--optim.lr=1e30", "--weight=reinforce"], "the policy gives NaN or infinite logits: "),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_run_that_breaks_off_says_why_and_keeps_its_checkpoint(capsys, flags, wanted):
    with pytest.raises(SystemExit) as ended:
        main(["train", "demo", *TINY, *flags, "--json", "--out", "run"])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith("gradmass: error: " + wanted.replace("HERE", str(Path.cwd())))
    assert len(err.splitlines()) == 1
    run = Run(Path("run"))
    assert (run.state["step"], run.state["status"]) == (0, "failed")
    assert run.metrics[0]["step"] == 0
    assert (run.model_dir / "model.safetensors").exists()


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_refused_on_one_line(reward):
    for name in ("fade", "grpo", "reinforce"):
        weight = WEIGHTS[name]()
        with pytest.raises(UsageError) as refusal:
            weight.update(np.array([[1.0, 0.0], [0.0, reward]]), weight.init())
        message = str(refusal.value)
        assert message.startswith(f"reward {reward} of group 1, rollout 1: weight {name}")
        assert "\n" not in message


@pytest.fixture
def run_dir():
    """A run of the tiny recipe that was killed at once."""
    config = {"label": "fade", "recipe": to_tables(load_recipe(Recipe, "demo", TINY))}
    RunWriter.create(Path("run"), config, {"command": "x"}).close()
    return Path("run")


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        (["demo"], "train.steps is 500 here and "),
        (["demo", *TINY, "--weight=grpo"], 'weight.type is "grpo" here and "fade" in run'),
        (["--seed=1"], "seed is 1 here and 0 in run"),
        (["--train.steps=3"], "train.steps is 3 here and "),
        (["demo", *TINY, "--optim.lr=1"], "optim.lr is 1.0 here and 0.0002 in run"),
    ],
    ids=lambda value: " ".join(value)[-20:] if isinstance(value, list) else value,
)
def test_a_run_is_not_resumed_under_another_recipe(refused, run_dir, flags, difference):
    message = refused("train", *flags, "--resume", "--out", str(run_dir))
    assert message.startswith(f"--resume continues the stored recipe, but {difference}")
    assert message.endswith("in run; leave it out, or start a new run")


def test_a_used_run_directory_says_how_to_continue(refused, run_dir):
    message = refused("train", "demo", "--out", str(run_dir))
    assert message == (
        "output folder run is already used; name another with --out, or continue it with --resume"
    )


@pytest.mark.parametrize("command", ["report", "explore --run"])
def test_a_part_of_a_run_is_answered_with_the_run(refused, run_dir, command):
    Path("run/part").mkdir()
    for part, reason in (("metrics.jsonl", "it is a file"), ("part", "it has no ")):
        message = refused(*command.split(), f"run/{part}")
        assert message.startswith(f"run/{part} is no run directory: {reason}")
        assert message.endswith("; did you mean run?")


@pytest.mark.parametrize("command", ["sft --train.steps 1 --out", "demo --out"])
def test_what_cannot_be_resumed_is_not_said_to_be(refused, run_dir, command):
    message = refused(*command.split(), str(run_dir))
    assert message == "output folder run is already used; name another with --out"


def test_a_run_without_a_checkpoint_has_no_model_to_evaluate(refused, run_dir):
    assert refused("eval", str(run_dir)) == "run run has no checkpoint yet (step 0)"


def test_a_damaged_run_is_refused(refused, run_dir):
    (run_dir / "state.json").write_text('{"schema": 7}')
    assert refused("eval", "run") == "run/state.json has schema 7, this version reads schema 1"
    (run_dir / "config.json").write_text('{"schema": 1,')
    for argv in (["train", "--resume", "--out", "run"], ["report", "run"]):
        assert refused(*argv).startswith("run/config.json is damaged: ")


def test_an_evaluation_is_no_run(refused, run_dir):
    (run_dir / "config.json").write_text('{"schema": 1, "kind": "evaluation"}')
    for argv in (["train", "--resume", "--out", "run"], ["report", "run"]):
        assert refused(*argv).startswith("run is an evaluation, not a run")


def test_a_stored_recipe_that_this_version_does_not_know_is_refused(refused, run_dir):
    config = json.loads((run_dir / "config.json").read_text())
    config["recipe"]["train"]["strides"] = 3
    (run_dir / "config.json").write_text(json.dumps(config))
    message = refused("train", "--resume", "--out", "run")
    assert message.startswith("unknown key 'train.strides' in run/config.json; did you mean '")


# Errors that are not the user's, and the edges of the process


def test_an_error_of_the_package_itself_is_not_hidden(monkeypatch):
    monkeypatch.setattr("gradmass.commands.weights.describe", lambda cls: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["weights"])


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (MemoryError("Unable to allocate 14.6 TiB"), "Unable to allocate 14.6 TiB"),
        (MemoryError(), "MemoryError"),
    ],
    ids=["disk", "memory", "memory-without-a-word"],
)
def test_what_the_machine_lacks_is_one_line(refused, monkeypatch, error, wanted):
    def log(writer, row):
        raise error

    monkeypatch.setattr(RunWriter, "log", log)
    assert refused("train", "demo", *TINY, "--json", "--out", "run") == wanted


def test_an_interrupt_is_one_line(capsys, monkeypatch):
    def interrupt(cls):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradmass.commands.weights.describe", interrupt)
    with pytest.raises(SystemExit) as ended:
        main(["weights"])
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "gradmass: interrupted\n")


@pytest.mark.parametrize("argv", [["train", "demo"], ["eval", "countdown-tiny"], ["sft"]])
def test_without_torch_a_command_says_what_to_install(argv):
    # In its own process: modules imported anew would stay behind as attributes of their package.
    program = (
        f"import sys; sys.modules['torch'] = None\nfrom gradmass.cli import main; main({argv!r})"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"gradmass: error: {argv[0]} needs torch, which is not installed: "
        "pip install 'gradmass[train]'\n"
    )


class Stand:
    """Stands in for a training process that ends at once."""

    def __init__(self, code, error):
        self.returncode, self.error = code, error

    def poll(self):
        return self.returncode

    def communicate(self):
        return None, self.error


@pytest.mark.parametrize(
    ("code", "error", "wanted"),
    [
        (2, "gradmass: error: no model at 'x'\n", "the grpo run failed: no model at 'x'"),
        (1, "Traceback\n  File\nKeyError: 'x'\n", "the grpo run failed: KeyError: 'x'"),
        (-9, "", "the grpo run failed: it was killed"),
    ],
)
def test_the_demo_says_which_run_failed_and_why(refused, monkeypatch, code, error, wanted):
    def start(command, **_):
        return Stand(code, error) if "grpo" in command else Stand(0, "")

    monkeypatch.setattr(demo.subprocess, "Popen", start)
    assert refused("demo", "--out", "demo") == wanted


def test_an_interrupted_demo_says_how_to_continue(capsys, monkeypatch):
    def start(command, **_):
        out = Path(command[-1])
        out.mkdir(parents=True)
        (out / "state.json").write_text("{}")
        return Stand(130 if "grpo" in command else 0, "")

    monkeypatch.setattr(demo.subprocess, "Popen", start)
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--out", "a demo"])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (130, "")
    again = "gradmass train --resume --out 'a demo/grpo'"
    assert err == f"grpo was interrupted; continue with: {again}\n"


# The same from a shell


def shell(*argv, **options):
    return subprocess.run(
        [sys.executable, "-m", "gradmass", *argv], stderr=subprocess.PIPE, text=True, **options
    )


def test_the_process_ends_with_code_2_and_one_line():
    done = shell("weights", "fad", stdout=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "gradmass: error: unknown weight 'fad'; did you mean 'fade'?\n"


@pytest.mark.parametrize("argv", [["--help"], ["weights", "--json"], ["weights", "fade"]])
def test_a_reader_that_leaves_is_no_error(argv, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    reader, writer = os.pipe()
    os.close(reader)
    done = shell(*argv, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_one_line(unbuffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("w") as full:
        done = shell("weights", "fade", stdout=full)
    assert done.returncode == 2
    assert done.stderr == "gradmass: error: [Errno 28] No space left on device\n"


def test_a_batch_too_large_for_the_memory_is_one_line():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    assert "can't allocate memory" in _message(caught.value)
    assert _message(RuntimeError("a bug of ours")) is None
