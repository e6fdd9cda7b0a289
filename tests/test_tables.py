"""Recipes: TOML, tables and flags in and out."""

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradmass.config import (
    ModelConfig,
    OptimConfig,
    Recipe,
    SftRecipe,
    TrainConfig,
)
from gradmass.tables import field_docs, from_tables, load_recipe, recipes_dir, to_tables, to_toml
from gradmass.tasks import TASKS
from gradmass.tasks.countdown import Countdown
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
