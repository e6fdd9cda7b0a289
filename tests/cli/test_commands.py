"""Every command from its arguments to what it prints and writes."""

import dataclasses
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import TINY, without_times

from gradmass.cli import COMMANDS
from gradmass.record import Run
from gradmass.weights import WEIGHTS

SLOW_LIBRARIES = {"torch", "transformers", "matplotlib", "jinja2", "scipy"}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


# The front door


def test_help_names_every_command(command):
    out, err = command("--help")
    assert err == ""
    for name, what in COMMANDS.items():
        assert f"  {name:8} {what}\n" in out
    assert command() == command("-h") == (out, err)


def test_the_version_is_that_of_the_package(command):
    out, _ = command("--version")
    name, _, version = out.strip().partition(" ")
    assert name == "gradmass"
    assert version[0].isdigit()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_its_arguments(command, name):
    out, err = command(name, "--help")
    assert err == ""
    assert out.startswith(f"usage: gradmass {name} ")
    assert "--json" in out or name == "demo"


@pytest.mark.parametrize(
    "argv",
    [["--help"], ["--version"], ["weights"], ["weights", "fade"], ["train", "--help"]],
    ids=" ".join,
)
def test_looking_around_loads_nothing_slow(argv):
    script = (
        "import sys\n"
        "from gradmass.cli import main\n"
        f"try: main({argv!r})\n"
        "except SystemExit as ended: print('code', ended.code, file=sys.stderr)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    code, _, modules = done.stderr.partition("\n")
    assert code == "code 0"
    assert "gradmass" in modules.split()
    assert not SLOW_LIBRARIES & set(modules.split())


# weights


def test_weights_lists_every_weight_with_what_it_does(command):
    out, err = command("weights")
    assert err == ""
    assert "\x1b" not in out, "no colours where there is no terminal"
    firsts = [line.split()[0] for line in out.splitlines() if line[:2].strip() or line[1:2].strip()]
    assert set(WEIGHTS.names()) <= set(firsts)
    assert "gradmass weights NAME" in out


@pytest.mark.parametrize("name", WEIGHTS.names())
def test_weights_shows_the_card_of_each(command, name):
    out, err = command("weights", name)
    cls = WEIGHTS[name]
    assert err == ""
    assert out.startswith(f"{name}\n\n  ")
    assert "Source:" in out
    assert ">>>" not in out
    for f in dataclasses.fields(cls):
        default = getattr(f.default, "label", f.default)
        given = "required" if f.default is dataclasses.MISSING else f"default {default}"
        assert f"--weight.{f.name.replace('_', '-')} ({given}): " in " ".join(out.split())


def test_weights_as_json(command):
    out, _ = command("weights", "--json")
    entries = {entry["name"]: entry for entry in json.loads(out)}
    assert sorted(entries) == WEIGHTS.names()
    for name, entry in entries.items():
        cls = WEIGHTS[name]
        assert entry["scope"] == cls.scope
        assert entry["domain"] == cls.domain
        assert entry["needs_group"] is cls.needs_group
        assert entry["summary"].endswith(".")
        assert [f["name"] for f in entry["fields"]] == [f.name for f in dataclasses.fields(cls)]
        for shown, f in zip(entry["fields"], dataclasses.fields(cls), strict=True):
            assert shown["is_required"] is (f.default is dataclasses.MISSING)
            if not shown["is_required"]:
                assert shown["default"] == getattr(f.default, "label", f.default)
            assert shown["meaning"]
        one, _ = command("weights", name, "--json")
        assert json.loads(one) == entry


def test_weights_shows_a_weight_of_a_file(command):
    Path("mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from gradmass.weights import Weight\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(Weight):\n"
        '    """Do this [bold]and[/bold] that."""\n'
        "    level: float\n"
        '    """How much."""\n'
        "    def formula(self, groups, state, signals):\n"
        "        return self.level * groups.centred_PG\n"
    )
    out, _ = command("weights", "mine.py:Mine")
    assert out == (
        "mine.py:Mine\n\n  Do this [bold]and[/bold] that.\n\n"
        "  --weight.level (required): How much.\n"
    )


# report


@pytest.mark.slow
def test_report_writes_one_page_about_several_runs(command, run_dirs):
    argv = [str(run_dirs / "fade"), str(run_dirs / "grpo")]
    out, err = command("report", *argv, "--out", "new folder/page.html")
    assert (out, err) == ("new folder/page.html\n", "")
    page = Path("new folder/page.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "fade" in page
    assert "grpo" in page


def test_report_as_json(command, monkeypatch):
    written = []
    monkeypatch.setattr("gradmass.report.page.write_report", lambda *args: written.append(args))
    out, err = command("report", "one", "other", "-o", "page.html", "--json")
    assert (json.loads(out), err) == ({"report": "page.html"}, "")
    assert written == [([Run(Path("one")), Run(Path("other"))], Path("page.html"))]
    command("report", "one")
    assert written[1] == ([Run(Path("one"))], Path("report.html"))


def test_report_of_a_page_that_cannot_be_written(command, run_dirs, monkeypatch):
    monkeypatch.setattr("gradmass.report.page.render", lambda runs, reload_s: "<html>")
    Path("file").write_text("x")
    out, err = command("report", str(run_dirs / "fade"), "--out", "file/page.html", code=2)
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("gradmass: error: cannot write the report file/page.html: ")


# demo


@pytest.mark.slow
def test_demo_trains_both_and_ends_with_the_report(command):
    flags = [*TINY, "--out", "my demo"]
    out, err = command("demo", *flags)
    report = Path("my demo/report.html").resolve()
    assert out.splitlines()[-1] == str(report)
    assert "<html" in report.read_text(encoding="utf-8")
    for label in ("fade", "grpo"):
        run = Run(Path("my demo") / label)
        assert run.state["status"] == "finished"
        assert run.weight_name == label
        assert run.config["recipe"]["train"]["steps"] == 2
        steps = [line.split()[2] for line in err.splitlines() if line.startswith(label)]
        assert steps == ["0/2", "1/2", "2/2"]
    starts = [without_times(Run(Path("my demo") / label).metrics)[0] for label in ("fade", "grpo")]
    assert starts[0] == starts[1], "both start from the same checkpoint"
    out, err = command("demo", *flags, code=2)
    assert err.startswith("gradmass: error: output folder my demo is already used")


# sft

SFT = ["--train.steps=3", "--train.batch-size=4", "--train.num-eval-problems=2"]
SMALL = ["--model.hidden-size=16", "--model.intermediate-size=16", "--model.num-layers=1"]


def test_sft_makes_a_checkpoint_that_train_and_eval_load(command):
    out, err = command("sft", "sft_countdown", *SFT, *SMALL, "--out", "start")
    assert [line.split()[:2] for line in err.splitlines()] == [
        ["step", f"{i}/3"] for i in range(1, 4)
    ]
    assert out.splitlines()[-1] == "checkpoint: start"
    assert "test/pass@1 " in out
    config = json.loads(Path("start/config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"]) == (16, 1)
    said = command("eval", "start", "--limit=1", "--num-samples=0", "--json")[0]
    assert 0 <= json.loads(said)["splits"][0]["pass@1"] < 0.01
    command("train", "demo", *TINY, "--train.steps=1", "--model.path=start", "--out", "run")
    with gzip.open("run/rollouts.jsonl.gz", "rt") as lines:
        assert len(lines.readlines()) == 8


def test_sft_as_json_and_dry(command):
    out, err = command("sft", *SFT, *SMALL, "--json", "--out", "start")
    assert err == ""
    said = json.loads(out)
    assert said["step"] == 3
    assert {"loss/value", "test/pass@1", "ood/pass@100", "time/total_s"} <= said.keys()
    out, err = command("sft", "sft_countdown", "--dry-run", "--out", "other")
    assert err == ""
    assert "# Largest learning rate of AdamW.\nlr = 0.003\n" in out
    assert not Path("other").exists()
