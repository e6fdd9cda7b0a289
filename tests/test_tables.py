"""Recipes: TOML, tables and flags in and out, and what is refused on the way."""

import dataclasses
import json
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradmass.config import (
    EvalConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    Recipe,
    SftRecipe,
    SftTrainConfig,
    TinyModelConfig,
    TrainConfig,
)
from gradmass.tables import field_docs, from_tables, load_recipe, recipes_dir, to_tables, to_toml
from gradmass.tasks import TASKS
from gradmass.tasks.countdown import Countdown
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS
from gradmass.weights.fade import Fade

REQUIRED = json.loads((Path(__file__).parent / "golden" / "weight_fields.json").read_text())
WEIGHT_FIELDS = {
    "fade": """
        alpha_max = 2.5
        delta_min = 0.5
        ema = 0.1
        target_entropy = 0.7
        entropy_form = "relative"
        alpha_schedule = "log-decay"
        delta_schedule = "constant"
    """,
    "grpo_std": "ddof = 0\neps = 1e-4",
    "power": "alpha = 3",
    "asym_grpo_delta": "delta = 2",
    "power_asym": "alpha = 2\ndelta = 0.25",
    "reinforce": "signed = true",
}
"""Every field of a weight away from its default; a new weight is tested with its required fields
until it is listed here."""

EVERYTHING = """
seed = 3
equalise = "mass_at_half"
prior = "beta:2,3"
[model]
dtype = "bfloat16"
gradient_checkpointing = true
path = "a folder/é"
[task]
type = "countdown"
min_numbers = 2
max_numbers = 3
max_number = 9
max_target = 20
max_ood_target = 30
seed = 5
[weight]
type = "fade"
[lora]
rank = 8
alpha = 16
targets = ["q_proj"]

[prompt]
template = "chat"
system = "be"
instruction = "think"
format = "answer"

[train]
tokens_at_once = 64
steps = 7
num_problems = 6
prompts_per_step = 4
group_size = 5
max_new_tokens = 11
updates_per_batch = 2
policy_lag = 1
max_lag = 0
max_error_rate = 0.25
checkpoint_every = 3
threads = 1
[loss]
clip_low = 0.1
clip_high = 0.28
aggregation = "token-mean"
truncated = "mask"
importance_cap = 2
kl_coef = 1
kl_estimator = "k2"
[entropy]
coef = 0.1
is_adaptive = true
target = 0.5
step = 0.01
min = 0.05
max = 0.2
[optim]
type = "sgd"
lr = 1e-3
betas = [0.8, 0]
weight_decay = 0.1
max_grad_norm = 2
[eval]
every = 2
num_problems = 8
num_samples = 9

[probe]
every = 7
rank_every = 9
weights = ["maxrl", "power:alpha=3"]
"""
"""Every field of a recipe away from its default."""


def write(folder, text, name="recipe.toml"):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def refusal(call):
    with pytest.raises(UsageError) as refused:
        call()
    message = str(refused.value)
    assert "\n" not in message
    return message


def plain(value):
    """A value as JSON would give it back."""
    return json.loads(json.dumps(value))


# What is written is what is read


@pytest.mark.parametrize("name", WEIGHTS.names())
def test_a_weight_survives_toml_tables_and_json(tmp_path, name):
    given = REQUIRED.get(name, {}).items()
    required = "\n".join(f"{key} = {json.dumps(value)}" for key, value in given)
    fields = WEIGHT_FIELDS.get(name, required)
    file = write(tmp_path, f'[weight]\ntype = "{name}"\n{fields}')
    recipe = load_recipe(Recipe, file, [])
    assert type(recipe.weight) is WEIGHTS[name]
    for key, value in tomllib.loads(fields).items():
        assert getattr(recipe.weight, key) == value
    tables = to_tables(recipe)
    assert tables["weight"]["type"] == name
    assert from_tables(Recipe, plain(tables), "a run") == recipe
    assert load_recipe(Recipe, write(tmp_path, to_toml(recipe), "again.toml"), []) == recipe


def test_every_field_of_a_recipe_is_read_and_written(tmp_path):
    recipe = load_recipe(Recipe, write(tmp_path, EVERYTHING), [])
    given_tables, default_tables = tomllib.loads(EVERYTHING), to_tables(Recipe())
    tables = to_tables(recipe)
    assert tables.keys() == given_tables.keys()
    for section, fields in given_tables.items():
        if section == "weight":
            continue
        assert tables[section] == fields
        assert tables[section] != default_tables[section]
        if not isinstance(fields, dict):
            continue
        for key in fields.keys() - {"type", "threads", "max_lag"}:
            assert tables[section][key] != default_tables[section][key], (section, key)
    assert recipe.optim == OptimConfig(
        type="sgd", lr=1e-3, betas=(0.8, 0.0), weight_decay=0.1, max_grad_norm=2.0
    )
    assert from_tables(Recipe, plain(tables), "a run") == recipe
    assert load_recipe(Recipe, write(tmp_path, to_toml(recipe), "again.toml"), []) == recipe


def test_whole_numbers_become_real_ones_where_a_field_is_real(tmp_path):
    recipe = load_recipe(Recipe, write(tmp_path, EVERYTHING), [])
    for value in (recipe.loss.kl_coef, recipe.optim.betas[1], recipe.optim.max_grad_norm):
        assert type(value) is float


def test_an_empty_file_is_the_defaults(tmp_path):
    assert load_recipe(Recipe, write(tmp_path, ""), []) == Recipe()
    assert load_recipe(Recipe, None, []) == Recipe()


@settings(max_examples=30)
@example(text="".join(map(chr, range(0x100))))
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_toml(text):
    recipe = Recipe(model=ModelConfig(path=text))
    assert from_tables(Recipe, tomllib.loads(to_toml(recipe)), "toml") == recipe


@settings(max_examples=30)
@given(rate=st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False))
def test_any_number_survives_toml_and_json(rate):
    recipe = Recipe(optim=OptimConfig(lr=rate))
    assert from_tables(Recipe, tomllib.loads(to_toml(recipe)), "toml") == recipe
    assert from_tables(Recipe, plain(to_tables(recipe)), "json") == recipe


# Shipped recipes


def test_every_shipped_recipe_loads():
    loaded = {}
    for file in recipes_dir().glob("*.toml"):
        if file.stem.startswith("study_"):
            continue  # tests/study loads those
        kind = SftRecipe if file.stem.startswith("sft_") else Recipe
        loaded[file.stem] = load_recipe(kind, file.stem, [])
        assert loaded[file.stem] == load_recipe(kind, str(file), [])
    assert {"demo", "sft_countdown"} <= loaded.keys()
    assert loaded["demo"].weight == Fade(entropy_form="relative")
    assert loaded["demo"].model.path == "countdown-tiny"


def test_an_output_folder_of_the_same_name_does_not_hide_a_shipped_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert load_recipe(Recipe, "demo", []).weight == Fade(entropy_form="relative")


def test_a_file_of_the_same_name_comes_before_a_shipped_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "seed = 77", "demo")
    assert load_recipe(Recipe, "demo", []).seed == 77


# What beats what


def test_flags_beat_the_file_and_the_file_beats_defaults(tmp_path):
    file = write(tmp_path, "seed = 1\n[train]\nsteps = 10\ngroup_size = 4\n[optim]\nlr = 0.5")
    recipe = load_recipe(
        Recipe, file, ["--train.steps", "20", "--seed=2", "--optim.betas", "[0.5, 0.6]"]
    )
    assert recipe.seed == 2
    assert recipe.train == TrainConfig(steps=20, group_size=4)
    assert recipe.optim == OptimConfig(lr=0.5, betas=(0.5, 0.6))


def test_of_two_equal_flags_the_later_wins():
    flags = ["--train.steps", "5", "--weight", "grpo", "--train.steps=6", "--weight", "reinforce"]
    recipe = load_recipe(Recipe, None, flags)
    assert recipe.train.steps == 6
    assert recipe.weight == WEIGHTS["reinforce"]()


FADED = '[weight]\ntype = "fade"\nema = 0.5\nentropy_form = "relative"'


def test_naming_another_weight_drops_the_fields_of_the_file(tmp_path):
    file = write(tmp_path, FADED)
    for flag in ("--weight", "--weight.type"):
        assert load_recipe(Recipe, file, [flag, "grpo"]).weight == WEIGHTS["grpo"]()


def test_naming_the_weight_of_the_file_keeps_its_fields(tmp_path):
    file = write(tmp_path, FADED)
    for flag in ("--weight", "--weight.type"):
        weight = load_recipe(Recipe, file, [flag, "fade"]).weight
        assert weight == Fade(ema=0.5, entropy_form="relative")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_field_of_the_named_weight_may_come_before_or_after_its_name(tmp_path, is_first):
    name, field = ["--weight", "power"], ["--weight.alpha", "3"]
    flags = field + name if is_first else name + field
    expected = WEIGHTS["power"](alpha=3.0)
    assert load_recipe(Recipe, write(tmp_path, FADED), flags).weight == expected


def test_a_field_alone_changes_the_weight_of_the_file_or_the_default(tmp_path):
    flags = ["--weight.alpha-max", "2"]
    file = write(tmp_path, FADED)
    expected = Fade(ema=0.5, entropy_form="relative", alpha_max=2.0)
    assert load_recipe(Recipe, file, flags).weight == expected
    assert load_recipe(Recipe, None, flags).weight == Fade(alpha_max=2.0)
    assert load_recipe(Recipe, None, ["--task.max-number=9"]).task == Countdown(max_number=9)


def test_the_type_of_the_optimiser_is_a_field_like_any_other():
    recipe = load_recipe(Recipe, None, ["--optim.lr", "0.5", "--optim.type", "sgd"])
    assert recipe.optim == OptimConfig(type="sgd", lr=0.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("two words", "two words"),
        ('"quoted"', "quoted"),
        ('"3"', "3"),
        ("", ""),
        ("a=b", "a=b"),
        ("/data/#1", "/data/#1"),
        ("é/模型", "é/模型"),
        ("1\nsteps = 2", "1\nsteps = 2"),
        ("[[[[" * 5000, "[[[[" * 5000),
    ],
    ids=lambda text: text[:12],
)
def test_a_flag_is_read_as_toml_or_else_as_text(text, expected):
    for flags in (["--model.path", text], [f"--model.path={text}"]):
        assert load_recipe(Recipe, None, flags).model.path == expected


# What is refused


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


# Weights from a file

MINE = '''
from dataclasses import dataclass
from gradmass.weights import Weight


@dataclass(frozen=True, kw_only=True)
class Scaled(Weight):
    """GRPO times a factor."""

    factor: float = 0.5
    """What it is multiplied with."""
    limit: float | None = None
    """Largest weight, if any."""
    label_in_plots: str = "mine"

    def formula(self, groups, state, signals):
        return self.factor * groups.centred_PG


@dataclass(frozen=True, kw_only=True)
class Unlimited(Scaled):
    limit: float = float("inf")


@dataclass(frozen=True, kw_only=True)
class Typed(Scaled):
    steps: list[float] = ()


class Formless(Weight):
    pass
'''


@pytest.fixture
def mine(tmp_path):
    return write(tmp_path, MINE, "my weights.py")


def test_a_weight_in_a_file_takes_fields_from_toml_and_flags(tmp_path, mine):
    file = write(tmp_path, f"[weight]\ntype = '{mine}:Scaled'\nfactor = 2\nlimit = 3")
    for recipe in (
        load_recipe(Recipe, file, []),
        load_recipe(Recipe, None, [f"--weight={mine}:Scaled", "--weight.factor=2.0"]),
    ):
        assert type(recipe.weight).__name__ == "Scaled"
        assert recipe.weight.factor == 2.0
    assert load_recipe(Recipe, file, []).weight.limit == 3.0
    assert load_recipe(Recipe, file, ["--weight.factor", "4"]).weight.factor == 4.0
    assert load_recipe(Recipe, file, ["--weight", "grpo"]).weight == WEIGHTS["grpo"]()


def test_a_weight_in_a_file_survives_toml_and_json(tmp_path, mine):
    recipe = load_recipe(Recipe, None, ["--weight", f"{mine}:Scaled"])
    assert recipe.weight.limit is None
    assert load_recipe(Recipe, write(tmp_path, to_toml(recipe)), []) == recipe
    assert from_tables(Recipe, plain(to_tables(recipe)), "a run") == recipe
    assert "# What it is multiplied with.\nfactor = 0.5\n" in to_toml(recipe)
    assert "\n\nlimit" not in to_toml(recipe), "TOML has no None"


def test_a_weight_in_a_file_that_cannot_be_used_is_refused(tmp_path, mine):
    def load(name, *flags):
        return lambda: load_recipe(Recipe, None, ["--weight", f"{mine}:{name}", *flags])

    assert "did you mean 'factor'?" in refusal(load("Scaled", "--weight.facter=1"))
    assert refusal(load("Scaled", "--weight.limit=x")).startswith("weight.limit must be a number")
    assert refusal(load("Typed", "--weight.steps=[1.0]")).startswith("weight.steps must be list")
    assert refusal(load("Unlimited")).startswith("weight.limit must be finite, got inf")
    assert refusal(load("Scaled", "--weight.factor=nan")).startswith("weight.factor must be finite")
    message = refusal(load("Formless"))
    assert message == f"weight '{mine}:Formless' does not define formula"


# Documentation


def described(kind):
    """The dataclass and those of its sections whose class is not chosen by name."""
    yield kind
    for f in dataclasses.fields(kind):
        if dataclasses.is_dataclass(f.default_factory):
            yield f.default_factory


CLASSES = {
    *described(Recipe),
    *described(SftRecipe),
    *(WEIGHTS[name] for name in WEIGHTS.names()),
    *(TASKS[name] for name in TASKS.names()),
} - {Recipe, SftRecipe}


@pytest.mark.parametrize("kind", sorted(CLASSES, key=lambda kind: kind.__name__))
def test_every_field_is_documented(kind):
    docs = field_docs(kind)
    for f in dataclasses.fields(kind):
        assert len(docs.get(f.name, "")) > 10, f"{kind.__name__}.{f.name} says nothing of itself"


@pytest.mark.parametrize("kind", [Recipe, SftRecipe])
def test_a_printed_recipe_explains_every_field(kind):
    lines = to_toml(kind()).splitlines()
    keys = [number for number, line in enumerate(lines) if " = " in line and line[0] != "#"]
    values = to_tables(kind()).values()
    num_fields = sum(len(value) if isinstance(value, dict) else 1 for value in values)
    assert len(keys) == num_fields
    for number in keys:
        if not lines[number].startswith("type = ") or lines[number - 1][0] != "[":
            assert lines[number - 1].startswith("# "), lines[number]
            assert lines[number - 1].rstrip().endswith((".", ")")), lines[number - 1]


def test_a_subclass_documents_inherited_fields_and_its_own(mine):
    docs = field_docs(WEIGHTS[f"{mine}:Unlimited"])
    assert docs["factor"] == "What it is multiplied with."
    assert docs["limit"] == "Largest weight, if any."
    assert "label_in_plots" not in docs
