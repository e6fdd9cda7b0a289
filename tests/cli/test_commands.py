"""Every command from its arguments to what it prints and writes."""

import dataclasses
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradmass.cli import COMMANDS, main
from gradmass.commands.progress import Progress
from gradmass.config import Recipe
from gradmass.record import Run
from gradmass.tables import from_tables, load_recipe
from gradmass.weights import WEIGHTS

TINY = [
    "--train.steps=2",
    "--train.num_problems=2",
    "--train.prompts_per_step=2",
    "--train.group_size=4",
    "--eval.num_problems=2",
    "--eval.num_samples=2",
]
SLOW_LIBRARIES = {"torch", "transformers", "matplotlib", "jinja2", "scipy"}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def command(capsys):
    """Run a command that succeeds; gives its stdout and stderr."""

    def run(*argv, code=0):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        out, err = capsys.readouterr()
        assert ended.value.code == code, err
        return out, err

    return run


@pytest.fixture(scope="module")
def run_dirs(tmp_path_factory):
    """A finished run under FADE and one under GRPO, otherwise equal."""
    folder = tmp_path_factory.mktemp("runs")
    for weight in ("fade", "grpo"):
        argv = ["train", "demo", *TINY, "--weight", weight, "--out", str(folder / weight)]
        with pytest.raises(SystemExit, match="0"):
            main(argv)
    return folder


def without_times(rows):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


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


# eval


def measured(split):
    """What eval says of a split besides its size, what came of its samples, and the time."""
    other = ("split", "num_problems", "num_samples", "samples")
    return {k: v for k, v in split.items() if k not in other and not k.startswith("time/")}


def test_eval_agrees_with_the_start_of_a_run_from_the_same_checkpoint(command, run_dirs):
    sizes = ["--limit=2", "--num-samples=2", "--max-new-tokens=20"]
    out, err = command("eval", "countdown-tiny", *sizes, "--json")
    assert err == ""
    said = json.loads(out)
    assert (said["model"], said["task"]["type"]) == ("countdown-tiny", "countdown")
    start = Run(run_dirs / "fade").metrics[0]
    assert [split["split"] for split in said["splits"]] == ["test", "ood"]
    for split in said["splits"]:
        name = split["split"]
        assert (split["num_problems"], split["num_samples"]) == (2, 2)
        assert {"pass@1", "pass@10", "pass@100", "sampled_pass@1", "sampled_pass@1_low"} <= (
            split.keys()
        )
        assert "sampled_pass@10" not in split, "two samples say nothing of it"
        for key, value in measured(split).items():
            assert value == pytest.approx(start[f"{name}/{key}"], rel=1e-9)


def test_eval_of_a_run_asks_what_the_run_asked(command):
    own = ["--task.max_number=12", "--task.seed=3", "--seed=5", "--train.max_new_tokens=24"]
    command("train", "demo", *TINY, *own, "--out", "run", "--json")
    last = Run(Path("run")).metrics[-1]
    out, _ = command("eval", "run", "--json")
    said = json.loads(out)
    assert (said["task"]["max_number"], said["task"]["seed"], said["seed"]) == (12, 3, 5)
    for split in said["splits"]:
        for key, value in measured(split).items():
            assert value == pytest.approx(last[f"{split['split']}/{key}"], rel=1e-9)
    out, _ = command("eval", "run", "--task.seed=4", "--seed", "6", "--json")
    other = json.loads(out)
    assert (other["task"]["max_number"], other["task"]["seed"], other["seed"]) == (12, 4, 6)
    assert measured(other["splits"][0]) != measured(said["splits"][0])


def test_eval_of_a_run_evaluates_its_last_checkpoint(command, run_dirs):
    run = Run(run_dirs / "grpo")
    for model in (run.path, run.model_dir):
        out, _ = command("eval", str(model), "--limit=2", "--num-samples=0", "--json")
        for split in json.loads(out)["splits"]:
            values = measured(split)
            assert "pass@1" in values
            assert not any(key.startswith("sampled") for key in values)
            for key, value in values.items():
                expected = run.metrics[-1][f"{split['split']}/{key}"]
                assert value == pytest.approx(expected, rel=1e-9)


def test_eval_prints_a_table(command):
    sizes = ["--limit=2", "--num-samples=3", "--task.seed=5", "--seed=1"]
    out, err = command("eval", "countdown-tiny", *sizes)
    assert err == ""
    words = out.split()
    assert {"test", "ood", "pass@1", "pass@10", "pass@100"} <= set(words)
    said = json.loads(command("eval", "countdown-tiny", *sizes, "--json")[0])
    for split in said["splits"]:
        for key in ("pass@1", "pass@10", "pass@100", "sampled_pass@1"):
            assert f"{split[key]:.3f}" in words
        assert f"[{split['sampled_pass@1_low']:.3f}," in words


def test_eval_of_another_seed_samples_other_answers(command):
    def sampled(*flags):
        argv = ["eval", "countdown-tiny", "--limit=5", "--num-samples=9", "--json"]
        splits = json.loads(command(*argv, *flags)[0])["splits"]
        return [split["sampled_pass@1"] for split in splits]

    assert sampled() == sampled("--seed=0")
    assert sampled() != sampled("--seed=1")


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
