"""What a user can do wrong: one line on stderr, exit code 2, nothing half-written left behind."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gradmass.cli import _message, main
from gradmass.commands import demo
from gradmass.config import Recipe
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

TINY = [
    "--train.steps=2",
    "--train.num_problems=2",
    "--train.prompts_per_step=2",
    "--train.group_size=2",
    "--eval.num_problems=2",
    "--eval.num_samples=2",
]
FEW = ["--task.min_numbers=2", "--task.max_numbers=2", "--task.max_number=5"]

WEIGHTS_FILE = '''
import numpy as np
from dataclasses import dataclass
from gradmass.weights import Weight


class Base(Weight):
    """A weight that works until its formula is asked for."""

    needs_group = False
    on_ties = "value"


class Nan(Base):
    def formula(self, groups, state, signals):
        return groups.rewards_PG * float("nan")


class Raises(Base):
    def formula(self, groups, state, signals):
        raise KeyError("first line\\nsecond line")


class NanReport(Base):
    def formula(self, groups, state, signals):
        return groups.rewards_PG

    def report(self, state):
        return {"spread": float("nan")}


class ArrayState(Base):
    scope = "run"

    def init(self):
        return {"mean": np.zeros(2)}

    def formula(self, groups, state, signals):
        return groups.rewards_PG


@dataclass(frozen=True, kw_only=True)
class Picky(Base):
    level: float = 1.0

    def __post_init__(self):
        raise ValueError(f"level {self.level} is too low")

    def formula(self, groups, state, signals):
        return groups.rewards_PG


class Formless(Base):
    pass


class NoWeight:
    pass
'''


def in_mine(text):
    """File and line of a text in the file above."""
    (number,) = (i for i, line in enumerate(WEIGHTS_FILE.splitlines(), 1) if text in line)
    return f"HERE/mine.py, line {number}"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    Path("mine.py").write_text(WEIGHTS_FILE)
    Path("file").write_text("x")
    Path("typo.toml").write_text("[evl]\nevery = 1\n")
    Path("half.toml").write_text("seed = ")
    Path("binary.toml").write_bytes(b"\xff\xfe\x00")
    Path("used").mkdir()
    Path("used/notes").write_text("x")
    Path("no model").mkdir()
    Path("no model/config.json").write_text("{}")


def tree():
    return sorted(str(path) for path in Path().rglob("*") if "__pycache__" not in path.parts)


@pytest.fixture
def refused(capsys):
    """Run a command that has to be refused; gives the message."""

    def run(*argv):
        before = tree()
        with pytest.raises(SystemExit) as ended:
            main(argv)
        out, err = capsys.readouterr()
        assert ended.value.code == 2
        assert out == ""
        assert err.startswith("gradmass: error: ")
        assert err.endswith("\n")
        assert len(err.splitlines()) == 1, err
        assert tree() == before
        return err.removeprefix("gradmass: error: ").removesuffix("\n")

    return run


# Words the command does not know


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ("trian", "unknown command 'trian'; did you mean 'train'?"),
        ("evaluate", "unknown command 'evaluate'; did you mean 'eval'?"),
        ("--verbose", "unknown command '--verbose'; "),
        ("xyz", "unknown command 'xyz'; known: "),
        ("weights fad", "unknown weight 'fad'; did you mean 'fade'?"),
        ("weights --jsn", "unknown flag --jsn; did you mean '--json'? (gradmass weights --help)"),
        ("weights fade grpo", "unexpected argument 'grpo' (gradmass weights --help)"),
        ("weights mine.py:Nope", "weight 'mine.py:Nope': mine.py has no Weight 'Nope'"),
        ("weights mine.py:NoWeight", "weight 'mine.py:NoWeight': mine.py has no Weight 'NoWeight'"),
        ("weights nope.py:Nan", "weight 'nope.py:Nan': there is no file nope.py"),
        ("train demo --weight fad", "unknown weight 'fad'; did you mean 'fade'?"),
        ("train demo --wieght fade", "unknown flag --wieght; did you mean '--weight'?"),
        ("train demo --wieght=fade", "unknown flag --wieght; did you mean '--weight'?"),
        ("train demo --trian.steps 1", "unknown flag --trian.steps; did you mean '"),
        (
            "train demo --train.step 1",
            "unknown key 'train.step' in the flags; did you mean 'steps'?",
        ),
        (
            "train demo --probe.weight grpo fade",
            "unknown key 'probe.weight' in the flags; did you mean 'weights'?",
        ),
        (
            "train demo --weight grpo --weight.alpha 1",
            "unknown key 'weight.alpha' in demo and the flags",
        ),
        (
            "train demo --group-size 4",
            "unknown flag --group-size; did you mean '--train.group_size'?",
        ),
        ("train demo --lr 1", "unknown flag --lr; did you mean '--optim.lr'?"),
        ("train demo --dryrun", "unknown flag --dryrun; did you mean '--dry-run'?"),
        ("train demo -v", "unexpected argument '-v'"),
        ("train demo demo", "unexpected argument 'demo'"),
        ("train demo --task countdwn", "unknown task 'countdwn'; did you mean 'countdown'?"),
        ("train demo --task zzz", "unknown task 'zzz'; known: aime, apps, code_contests, "),
        ("train dem", "there is no recipe 'dem'; give a TOML file or a shipped one (demo,"),
        ("train typo.toml", "unknown key 'evl' in typo.toml; did you mean 'eval'?"),
        ("sft sft_countdown --weight fade", "unknown flag --weight"),
        ("sft --model.hiden_size 8", "unknown key 'model.hiden_size' in the flags; did you mean"),
        ("eval countdown-tiny --tsk.seed 3", "unknown flag --tsk.seed; did you mean '--task'?"),
        ("eval --num-sampls 3", "unknown flag --num-sampls; did you mean '--num-samples'?"),
        ("eval countdown-tiny --task.sed 3", "unknown key 'task.sed' in the flags; did you mean"),
        ("report --outt x run", "unknown flag --outt; did you mean '--out'?"),
        ("demo --steps 3", "unknown flag --steps; "),
        ("demo demo", "unexpected argument 'demo'"),
    ],
)
def test_an_unknown_word_is_refused_with_the_nearest(refused, argv, wanted):
    assert refused(*argv.split()).startswith(wanted)


# Values that cannot be used


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ("train", "train needs a recipe: a TOML file, or demo"),
        ("train .", "there is no recipe '.'"),
        ("train used", "there is no recipe 'used'"),
        ("train half.toml", "cannot read recipe half.toml: Invalid value"),
        ("train binary.toml", "cannot read recipe binary.toml: 'utf-8' codec can't decode"),
        ("train sft_countdown", "unknown key 'model.hidden_size' in sft_countdown"),
        ("train demo --seed", "flag --seed needs a value"),
        ("train demo --seed -1", "seed must be at least 0, got -1"),
        ("train demo --seed one", "seed must be a whole number, got 'one' in demo and the flags"),
        ("train demo --weight", "flag --weight needs a value"),
        ("train demo --weight=", "unknown weight ''; known: "),
        ("train demo --weight 3", "--weight needs a name, got 3"),
        ("train demo --weight power_asym", "weight.alpha has no default: give it a value in "),
        ("train demo --weight power --weight.alpha=1e999", "power needs a finite alpha above 0"),
        ("train demo --weight power --weight.alpha nan", "power needs a finite alpha above 0"),
        ("train demo --weight.ema 2", "fade needs ema in (0, 1], got 2.0"),
        ("train demo --train.steps 0", "train.steps must be at least 1, got 0"),
        ("train demo --train.steps=-1", "train.steps must be at least 1, got -1"),
        ("train demo --train.steps 1e3", "train.steps must be a whole number, got 1000.0"),
        ("train demo --train.threads 99999999999", "train.threads must be within 0 to 1024"),
        (
            "train demo --train.group_size 1 --weight grpo",
            "train.group_size = 1: weight grpo compares the rollouts of a group and needs at "
            "least 2 (reinforce does not)",
        ),
        (
            "train demo --train.num_problems 31",
            "train.num_problems = 31 is fewer than a batch needs (train.prompts_per_step = 32)",
        ),
        (
            "train demo --optim.betas 0.9 0.99",
            "--optim.betas takes a list as one argument, such as '[0.9, 0.99]', got '0.9 0.99'",
        ),
        (
            "train demo --probe.weights=[grpo,power:alpha=2,n=1] --seed 3",
            "--probe.weights takes a list as one argument, such as "
            """'["grpo", "power:alpha=2,n=1"]', got '[grpo,power:alpha=2,n=1]'""",
        ),
        (
            "train demo --probe.weights [grpo, fade]",
            """--probe.weights takes a list as one argument, such as '["grpo", "fade"]', got""",
        ),
        (
            "sft --lora.targets q_proj",
            """--lora.targets takes a list as one argument, such as '["q_proj"]', got 'q_proj'""",
        ),
        ("train demo --optim.betas", "flag --optim.betas needs a value"),
        ("train demo --optim.betas [0.9,2]", "optim.betas must be within [0, 1), got [0.9, 2.0]"),
        ("train demo --optim.lr nan", "optim.lr must be finite and above 0, got nan"),
        ("train demo --task.max_number 1", "countdown needs max_number >= 2, got 1"),
        ("train demo --task.seed x", "task.seed must be a whole number, got 'x'"),
        ("train demo --seed.x 1", "--seed.x sets a field of seed, which is 0 in demo"),
        ("train demo --model.path nowhere", "no model at 'nowhere': not a folder in Hugging Face"),
        ("train demo --weight mine.py:Formless", "weight 'mine.py:Formless' does not define"),
        ("train demo --out used", "output folder used is already used; name another with --out"),
        ("train demo --out file", "output folder file is already used; name another with --out"),
        ("train demo --out .", "output folder . is already used; name another with --out"),
        ("train demo --out file/x", "cannot write to output folder file/x: Not a directory"),
        ("train demo --out /proc/x", "cannot write to output folder /proc/x: No such file"),
        ("train demo --out", "--out needs a value"),
        ("train --resume", "--resume needs --out, the run directory to continue"),
        ("train --resume --out used", "used is no run directory: it has no config.json"),
        ("train --resume --out gone", "gone is no run directory: there is no such folder"),
        ("train --resume --out file", "file is no run directory: it is a file"),
        ("demo --out used", "output folder used is already used; name another with --out"),
        ("demo --out file", "output folder file is already used; name another with --out"),
        ("demo --train.steps 0", "train.steps must be at least 1, got 0"),
        ("demo --weight grpo", "demo compares fade and grpo as they are; for another weight: "),
        ("demo --weight.ema 0.1", "demo compares fade and grpo as they are; for another weight: "),
        ("eval", "missing MODEL (gradmass eval --help)"),
        ("eval nowhere", "no model at 'nowhere': not a folder in Hugging Face format"),
        ("eval used", "no model at 'used': not a folder in Hugging Face format"),
        ("eval countdown-tiny --limit 0", "--limit must be at least 1, got 0"),
        ("eval countdown-tiny --num-samples -1", "--num-samples must be at least 0, got -1"),
        ("eval countdown-tiny --num-samples x", "--num-samples: invalid literal for int()"),
        ("eval countdown-tiny --num-samples", "--num-samples needs a value"),
        ("eval countdown-tiny --max-new-tokens 0", "--max-new-tokens must be at least 1, got 0"),
        ("eval countdown-tiny --seed -1", "--seed must be at least 0, got -1"),
        ("eval countdown-tiny --task nope", "unknown task 'nope'; known: aime, apps, "),
        ("report", "a report needs at least one run directory, got none"),
        ("report used", "used is no run directory: it has no config.json"),
        ("report gone", "gone is no run directory: there is no such folder"),
        ("sft nope", "there is no recipe 'nope'"),
        ("sft demo", "unknown key 'weight' in demo; known: data, lora, model, prompt, seed"),
        ("sft --out used", "output folder used is already used; name another with --out"),
        ("sft --out file", "output folder file is already used; name another with --out"),
        ("sft --out file/x", "cannot write to output folder file/x: Not a directory"),
        ("sft --out /proc/x", "cannot write to output folder /proc/x: No such file"),
        ("sft --seed 99999999999999999999", "seed must be at least 0 and below 2^63"),
        ("sft --model.hidden_size 7", "model.hidden_size must be a multiple of 2 *"),
        ("sft --train.weight_decay nan", "train.weight_decay must be finite and at least 0"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(refused, argv, wanted):
    assert refused(*argv.split()).startswith(wanted)


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ([""], "unknown command ''"),
        (["two\nlines"], "unknown command 'two\\nlines'"),
        (["weights", ""], "unknown weight ''"),
        (["weights", "é\n"], "unknown weight 'é\\n'"),
        (["train", ""], "there is no recipe ''"),
        (["train", "two\nlines.toml"], "there is no recipe 'two\\nlines.toml'"),
        (["train", "a" * 5000], "cannot read recipe aaaa"),
        (["train", "demo", "--out", ""], "output folder . is already used"),
        (["train", "demo", "--out", "file/two\nlines"], "cannot write to output folder file/two l"),
        (["train", "demo", "--out", "x" * 300], "cannot write to output folder xxxx"),
        (["train", "demo", "--seed", "9" * 5000], "seed must be a whole number, got '9999"),
        (["train", "demo", "--optim.lr", "9" * 400], "optim.lr must be a number, got 9999"),
        (["train", "demo", "--model.path", ""], "no model at ''"),
        (["train", "demo", "--wei\nght", "x"], "unknown flag --wei ght"),
        (["train", "--resume", "--out", ""], ". is no run directory: it has no config.json"),
        (["eval", ""], "no model at ''"),
        (["report", ""], ". is no run directory"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_odd_arguments_are_refused_on_one_line(refused, argv, wanted):
    assert refused(*argv).startswith(wanted)


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
