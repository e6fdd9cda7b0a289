"""What recipes and flags refuse, in one line with its place."""

import json
import math
from pathlib import Path

import pytest
from written import refusal, write

from gradmass.config import (
    EvalConfig,
    LossConfig,
    OptimConfig,
    Recipe,
    SftRecipe,
    SftTrainConfig,
    TinyModelConfig,
    TrainConfig,
)
from gradmass.tables import load_recipe
from gradmass.weights import WEIGHTS

REQUIRED = json.loads((Path(__file__).parent / "golden" / "weight_fields.json").read_text())


@pytest.mark.parametrize(
    ("text", "flags", "wanted"),
    [
        ("[evl]\nevery = 1", [], "unknown key 'evl' in FILE; did you mean 'eval'?"),
        (
            "[train]\nstepps = 1",
            [],
            "unknown key 'train.stepps' in FILE; did you mean 'steps'?",
        ),
        (
            '[weight]\ntype = "power"\nalhpa = 1',
            [],
            "unknown key 'weight.alhpa' in FILE; did you mean 'alpha'?",
        ),
        ('[weight]\ntype = "grppo"', [], "unknown weight 'grppo'; did you mean 'grpo'?"),
        ('[task]\ntype = "countdwn"', [], "unknown task 'countdwn'; did you mean 'countdown'?"),
        ('[task]\ntype = "zzz"', [], "unknown task 'zzz'; known: aime, apps, code_contests, "),
        ("", ["--wieght.alpha", "1"], "unknown flag --wieght.alpha; did you mean '--weight'?"),
        (
            "",
            ["--optim.lrr", "1"],
            "unknown key 'optim.lrr' in FILE and the flags; did you mean 'lr'?",
        ),
        (
            "",
            ["--train.steps.x=1"],
            "unknown key 'train.steps.x' in FILE and the flags; did you mean 'steps'?",
        ),
        ("", ["--weight", "power", "--weight.delta=1"], "unknown key 'weight.delta'"),
        ("", ["--weight", "countdown"], "unknown weight 'countdown'; known: "),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(tmp_path, text, flags, wanted):
    file = write(tmp_path, text)
    message = refusal(lambda: load_recipe(Recipe, file, flags))
    assert message.startswith(wanted.replace("FILE", file))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('seed = "1"', "seed must be a whole number, got '1' in FILE"),
        ("seed = 1.0", "seed must be a whole number, got 1.0 in FILE"),
        ("seed = true", "seed must be a whole number, got True in FILE"),
        ("seed = []", "seed must be a whole number, got [] in FILE"),
        ("seed = {x = 1}", "seed must be a whole number, got {'x': 1} in FILE"),
        ("seed = 2024-01-01", "seed must be a whole number, got datetime.date(2024, 1, 1)"),
        ('optim.lr = "fast"', "optim.lr must be a number, got 'fast' in FILE"),
        ("optim.lr = false", "optim.lr must be a number, got False in FILE"),
        (f"optim.lr = 1{'0' * 400}", "optim.lr must be a number, got 1000"),
        ("optim.betas = 0.9", "optim.betas must be a list of 2 numbers, got 0.9 in FILE"),
        ("optim.betas = [0.9]", "optim.betas must be a list of 2 numbers, got [0.9] in FILE"),
        ("optim.betas = [1, 2, 3]", "optim.betas must be a list of 2 numbers, got [1, 2, 3]"),
        ('optim.betas = [0.9, "x"]', "optim.betas must be a number, got 'x' in FILE"),
        ('optim.type = "adam"', "optim.type must be 'adamw' or 'sgd', got 'adam' in FILE"),
        ("model.path = 3", "model.path must be a text, got 3 in FILE"),
        ("train = 3", "train needs a table of fields, got 3 in FILE"),
        ("[[train]]\nsteps = 3", "train needs a table of fields, got [{'steps': 3}] in FILE"),
        ('weight = "grpo"', "weight needs a table of fields, got 'grpo' in FILE"),
        ("weight = {}", "weight needs type, the name of a weight ("),
        ("weight = {type = 3}", "weight needs type, the name of a weight ("),
        ("weight = {alpha = 3}", "weight needs type, the name of a weight ("),
        ("task = {seed = 3}", "task needs type, the name of a task (aime, apps, "),
        (
            'weight = {type = "reinforce", signed = 1}',
            "weight.signed must be true or false, got 1 in FILE",
        ),
        (
            'weight = {type = "reinforce", signed = "yes"}',
            "weight.signed must be true or false, got 'yes' in FILE",
        ),
        (
            'weight = {type = "grpo_std", ddof = true}',
            "weight.ddof must be 0 or 1, got True in FILE",
        ),
        (
            'weight = {type = "grpo_std", ddof = 1.0}',
            "weight.ddof must be 0 or 1, got 1.0 in FILE",
        ),
        (
            'weight = {type = "fade", target_entropy = "half"}',
            "weight.target_entropy must be a number or 'half-initial', got 'half' in FILE",
        ),
        (
            'weight = {type = "power_asym"}',
            "weight.alpha has no default: give it a value in FILE",
        ),
        (
            'weight = {type = "power_asym", alpha = 1}',
            "weight.delta has no default: give it a value in FILE",
        ),
    ],
    ids=lambda text: text[:40],
)
def test_a_value_of_the_wrong_kind_is_refused_with_its_place(tmp_path, text, wanted):
    file = write(tmp_path, text)
    message = refusal(lambda: load_recipe(Recipe, file, []))
    assert message.startswith(wanted.replace("FILE", file))


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--seed"], "flag --seed needs a value"),
        (["--seed", "--train.steps", "3"], "flag --seed needs a value"),
        (["--weight"], "flag --weight needs a value"),
        (["--weight", "3"], "--weight needs a name, got 3"),
        (["--weight="], "unknown weight ''; known: "),
        (["seed", "3"], "unexpected argument 'seed'; recipe fields are set by --section.field"),
        (["--seed", "3", "4"], "unexpected argument '4'"),
        (["--seed=x"], "seed must be a whole number, got 'x' in the flags"),
        (["--seed", "9" * 5000], "seed must be a whole number, got '999"),
        (["--train", "3"], "train needs a table of fields, got 3 in the flags"),
        (["--train.", "3"], "train needs a table of fields, got 3 in the flags"),
        (["--seed.x", "3"], "seed must be a whole number, got {'x': 3} in the flags"),
        (["--seed", "1", "--seed.x", "3"], "--seed.x sets a field of seed, which is 1 in "),
        (["--", "3"], "unknown flag --; "),
        (["--.x", "3"], "unknown flag --.x; "),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_flag_that_cannot_be_used_is_refused(flags, wanted):
    assert refusal(lambda: load_recipe(Recipe, None, flags)).startswith(wanted)


@pytest.mark.parametrize("text", ['weight = "grpo"', "weight = 3", "[[weight]]\nalpha = 1"])
def test_a_flag_over_what_is_no_table(tmp_path, text):
    file = write(tmp_path, text)
    message = refusal(lambda: load_recipe(Recipe, file, ["--weight.alpha", "3"]))
    assert message.startswith("--weight.alpha sets a field of weight, which is ")
    recipe = load_recipe(Recipe, file, ["--weight", "power"])
    assert recipe.weight == WEIGHTS["power"](), "a name replaces whatever is there"


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"seed = ", "cannot read recipe FILE: Invalid value (at "),
        (b"seed = 1\nseed = 2", "cannot read recipe FILE: Cannot overwrite a value"),
        (b"\xff\xfe\x00", "cannot read recipe FILE: 'utf-8' codec can't decode byte 0xff"),
        (b"\x00", "cannot read recipe FILE: Invalid statement"),
        (b"a = " + b"[" * 100_000, "cannot read recipe FILE: "),
        (b"seed = " + b"9" * 5000, "cannot read recipe FILE: Exceeds the limit (4300 digits)"),
    ],
    ids=["half", "twice", "utf-16", "zero", "deep", "long"],
)
def test_a_file_that_is_no_toml_is_refused(tmp_path, content, wanted):
    file = tmp_path / "recipe.toml"
    file.write_bytes(content)
    message = refusal(lambda: load_recipe(Recipe, str(file), []))
    assert message.startswith(wanted.replace("FILE", str(file)))


def test_a_recipe_that_is_not_there_is_refused_with_the_shipped_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    write(tmp_path, "", "file.toml")
    for file in ("", ".", "folder", "nope", "nope.toml", "file.toml/x", "no/demo", "demo.toml"):
        message = refusal(lambda file=file: load_recipe(Recipe, file, []))
        assert message.startswith(f"there is no recipe {file!r}; give a TOML file or a shipped one")
        assert "demo" in message.partition("shipped one")[2]


def test_a_path_that_no_file_can_have_is_refused():
    message = refusal(lambda: load_recipe(Recipe, "a" * 5000, []))
    assert message.startswith("cannot read recipe aaa")
    assert "File name too long" in message


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "key",
    [
        "optim.lr",
        "optim.weight_decay",
        "optim.max_grad_norm",
        "loss.clip_low",
        "loss.clip_high",
        "loss.kl_coef",
        "weight.ema",
        "weight.alpha_max",
        "weight.delta_min",
        "weight.target_entropy",
    ],
)
def test_a_number_that_is_not_finite_is_refused(key, number):
    message = refusal(lambda: load_recipe(Recipe, None, [f"--{key}={number}"]))
    assert key.partition(".")[2] in message
    assert message.split()[-1] == number or f"got {number}" in message


@pytest.mark.parametrize("key", ["train.lr", "train.weight_decay"])
def test_a_number_of_a_supervised_start_that_is_not_finite_is_refused(key):
    for number in ("nan", "inf"):
        message = refusal(lambda number=number: load_recipe(SftRecipe, None, [f"--{key}={number}"]))
        assert message.startswith(key)
        assert message.endswith(f"got {number}")


@pytest.mark.parametrize(
    ("kind", "fields", "wanted"),
    [
        (TrainConfig, {"steps": 0}, "train.steps must be at least 1, got 0"),
        (TrainConfig, {"steps": -1}, "train.steps must be at least 1, got -1"),
        (TrainConfig, {"num_problems": 0}, "train.num_problems must be at least 1, got 0"),
        (TrainConfig, {"prompts_per_step": 0}, "train.prompts_per_step must be at least 1, got 0"),
        (TrainConfig, {"group_size": 0}, "train.group_size must be at least 1, got 0"),
        (TrainConfig, {"max_new_tokens": 0}, "train.max_new_tokens must be at least 1, got 0"),
        (TrainConfig, {"updates_per_batch": 0}, "train.updates_per_batch must be at least 1"),
        (TrainConfig, {"policy_lag": -1}, "train.policy_lag must be at least 0, got -1"),
        (TrainConfig, {"checkpoint_every": 0}, "train.checkpoint_every must be at least 1, got 0"),
        (TrainConfig, {"threads": -1}, "train.threads must be within 0 to 1024, got -1"),
        (TrainConfig, {"threads": 10**20}, "train.threads must be within 0 to 1024, got 1000"),
        (
            TrainConfig,
            {"num_problems": 31},
            "train.num_problems = 31 is fewer than a batch needs (train.prompts_per_step = 32)",
        ),
        (LossConfig, {"clip_low": 1.5}, "loss.clip_low must be within [0, 1], got 1.5"),
        (LossConfig, {"clip_high": -0.1}, "loss.clip_high must be finite and at least 0, got -0.1"),
        (
            LossConfig,
            {"truncated": "drop"},
            "loss.truncated must be one of count, mask, exclude, got 'drop'",
        ),
        (
            LossConfig,
            {"kl_estimator": "k4"},
            "loss.kl_estimator must be one of k1, k2, k3, got 'k4'",
        ),
        (
            LossConfig,
            {"importance_cap": -1.0},
            "loss.importance_cap must be finite and at least 0, got -1.0",
        ),
        (TrainConfig, {"max_lag": -1}, "train.max_lag must be at least 0, got -1"),
        (
            TrainConfig,
            {"max_error_rate": 1.5},
            "train.max_error_rate must be within [0, 1], got 1.5",
        ),
        (LossConfig, {"kl_coef": -0.1}, "loss.kl_coef must be finite and at least 0, got -0.1"),
        (OptimConfig, {"lr": 0.0}, "optim.lr must be finite and above 0, got 0.0"),
        (OptimConfig, {"max_grad_norm": 0.0}, "optim.max_grad_norm must be finite and above 0"),
        (OptimConfig, {"weight_decay": -1.0}, "optim.weight_decay must be finite and at least 0"),
        (OptimConfig, {"betas": (0.9, 1.0)}, "optim.betas must be within [0, 1), got [0.9, 1.0]"),
        (OptimConfig, {"betas": (math.nan, 0.9)}, "optim.betas must be within [0, 1), got [nan"),
        (EvalConfig, {"every": -1}, "eval.every must be at least 0, got -1"),
        (EvalConfig, {"num_samples": -1}, "eval.num_samples must be at least 0, got -1"),
        (EvalConfig, {"num_problems": 0}, "eval.num_problems must be at least 1, got 0"),
        (Recipe, {"seed": -1}, "seed must be at least 0, got -1"),
        (TinyModelConfig, {"num_layers": 0}, "model.num_layers must be at least 1, got 0"),
        (TinyModelConfig, {"hidden_size": 12}, "model.hidden_size must be a multiple of 2 *"),
        (SftTrainConfig, {"batch_size": 0}, "train.batch_size must be at least 1, got 0"),
        (SftTrainConfig, {"warmup_steps": -1}, "train.warmup_steps must be at least 0, got -1"),
        (SftTrainConfig, {"weight_decay": -0.1}, "train.weight_decay must be finite and at least"),
        (SftTrainConfig, {"lr": 0.0}, "train.lr must be finite and above 0, got 0.0"),
        (SftTrainConfig, {"threads": 1025}, "train.threads must be within 0 to 1024, got 1025"),
        (SftRecipe, {"seed": -1}, "seed must be at least 0 and below 2^63, got -1"),
        (SftRecipe, {"seed": 2**63}, "seed must be at least 0 and below 2^63, got 9223372"),
    ],
)
def test_a_number_out_of_range_is_refused(kind, fields, wanted):
    assert refusal(lambda: kind(**fields)).startswith(wanted)


def test_the_edges_of_the_ranges_are_allowed():
    TrainConfig(steps=1, num_problems=1, prompts_per_step=1, group_size=1, max_new_tokens=1)
    TrainConfig(num_problems=32, prompts_per_step=32, threads=1024, policy_lag=0)
    LossConfig(clip_low=0.0, clip_high=0.0)
    LossConfig(clip_low=1.0)
    OptimConfig(betas=(0.0, 0.0), weight_decay=0.0)
    EvalConfig(every=0, num_problems=1, num_samples=0)
    TinyModelConfig(hidden_size=2, num_heads=1, num_layers=1, intermediate_size=1, max_positions=1)
    SftTrainConfig(warmup_steps=0, weight_decay=0.0)
    SftRecipe(seed=2**63 - 1)
    assert Recipe(seed=10**40).seed == 10**40


@pytest.mark.parametrize("name", WEIGHTS.names())
def test_a_group_of_one_is_refused_for_weights_that_compare(name):
    weight = WEIGHTS[name](**REQUIRED.get(name, {}))

    def make():
        return Recipe(weight=weight, train=TrainConfig(group_size=1))

    if weight.needs_group or weight.min_group_size > 1:
        assert refusal(make).startswith(f"train.group_size = 1: weight {name}")
    else:
        assert make().train.group_size == 1


def test_a_recipe_of_the_other_kind_is_refused():
    assert refusal(lambda: load_recipe(SftRecipe, "demo", [])).startswith("unknown key 'weight'")
    message = refusal(lambda: load_recipe(Recipe, "sft_countdown", []))
    assert message.startswith("unknown key 'model.hidden_size' in sft_countdown")
