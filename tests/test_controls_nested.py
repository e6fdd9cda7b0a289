"""Weights made of weights: what they declare, recipes of them, and runs."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradmass.config import Recipe
from gradmass.masses import BetaPrior, equalise_factor
from gradmass.record import Run, RunWriter
from gradmass.tables import from_spec, from_tables, load_recipe, to_tables, to_toml
from gradmass.training.train import train
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

Rows = list[list[float]]


def draw(seed: int, group_size: int = 6) -> Rows:
    rng = random.Random(seed)
    return [[float(rng.random() < p) for _ in range(group_size)] for p in (0.1, 0.3, 0.5, 0.9, 0)]


def grpo(rewards: Rows) -> Rows:
    return [[r - sum(row) / len(row) for r in row] for row in rewards]


# What is made of weights


def test_a_wrapper_declares_what_its_inner_weights_do():
    of_remax = WEIGHTS["clip"](inner=WEIGHTS["remax"]())
    assert of_remax.needs == ("greedy_rewards_P",)
    assert (of_remax.scope, of_remax.on_ties, of_remax.needs_group) == ("group", "value", False)
    of_power = WEIGHTS["clip"](inner=WEIGHTS["power"]())
    assert (of_power.domain, of_power.on_ties, of_power.needs_group) == ("unit", "zero", True)
    assert (of_power.scope, of_power.init()) == ("group", {})
    mix = WEIGHTS["mix"](first=WEIGHTS["gpg"](), second=WEIGHTS["passk_chen"](k=3))
    assert (mix.scope, mix.domain, mix.min_group_size) == ("batch", "binary", 3)
    assert WEIGHTS["constant_mass"](inner=WEIGHTS["grpo"]()).scope == "batch"
    assert WEIGHTS["constant_mass"]().scope == "run"
    assert not WEIGHTS["mix"](first_factor=-1.0).keeps_sign
    assert WEIGHTS["clip"].needs_group is False, "the class is not changed by its instances"


def test_states_nest_and_are_checked_at_every_depth():
    weight = WEIGHTS["mix"](
        first=WEIGHTS["constant_mass"](inner=WEIGHTS["fade"]()), second=WEIGHTS["fade"]()
    )
    rewards = np.array(draw(11))
    state = weight.init()
    assert state.keys() == {"first", "second"}
    _, state = weight.update(rewards, state, entropy_nats=1.0)
    assert state["first"]["inner"] == state["second"]
    again = json.loads(json.dumps(state))
    assert weight.update(rewards, again)[0].tolist() == weight.update(rewards, state)[0].tolist()
    assert weight.report(state)["second_alpha"] == weight.report(state)["first_alpha"]
    for wrong in ({"first": {}, "second": {}}, {**state, "second": 3}, {"first": state["first"]}):
        with pytest.raises(UsageError, match=r"was given a state .* \(start from init"):
            weight.update(rewards, wrong)


def test_labels_nest():
    weight = WEIGHTS["constant_mass"](inner=WEIGHTS["power"](alpha=3.0))
    assert weight.label == "constant_mass(inner=power(alpha=3.0))"
    assert WEIGHTS["constant_mass"]().label == "constant_mass"
    assert WEIGHTS["mix"](second=weight).label == f"mix(second={weight.label})"


NESTED = """
[weight]
type = "constant_mass"
[weight.inner]
type = "clip"
high = 2
[weight.inner.inner]
type = "power"
alpha = 3
"""


def test_recipes_nest_as_deep_as_weights(tmp_path):
    expected = WEIGHTS["constant_mass"](
        inner=WEIGHTS["clip"](high=2.0, inner=WEIGHTS["power"](alpha=3.0))
    )
    file = tmp_path / "recipe.toml"
    file.write_text(NESTED)
    recipe = load_recipe(Recipe, str(file), [])
    assert recipe.weight == expected
    file.write_text(to_toml(recipe))
    assert load_recipe(Recipe, str(file), []) == recipe
    assert from_tables(Recipe, json.loads(json.dumps(to_tables(recipe))), "a run") == recipe
    flags = ["--weight.inner.inner.alpha=3", "--weight.inner.inner", "power", "--weight.inner.high"]
    flags += ["2", "--weight.inner.type=clip", "--weight=constant_mass"]
    assert load_recipe(Recipe, None, flags).weight == expected
    spec = "constant_mass:inner.inner.alpha=3,inner.high=2,inner=clip,inner.inner=power"
    assert from_spec(Weight, spec) == expected


def test_naming_another_inner_weight_drops_the_fields_of_the_first(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(NESTED)
    changed = load_recipe(Recipe, str(file), ["--weight.inner", "grpo"])
    assert changed.weight == WEIGHTS["constant_mass"](inner=WEIGHTS["grpo"]())
    deeper = load_recipe(Recipe, str(file), ["--weight.inner.inner.alpha", "0.5"])
    assert deeper.weight.inner.inner == WEIGHTS["power"](alpha=0.5)
    of_default = load_recipe(Recipe, None, ["--weight=constant_mass", "--weight.inner.alpha_max=2"])
    assert of_default.weight.inner == WEIGHTS["fade"](alpha_max=2.0)


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--weight.inner", "powr"], "unknown weight 'powr'; did you mean 'power'"),
        (["--weight.inner", "3"], "--weight.inner needs a name, got 3"),
        (
            ["--weight.inner.alhpa_max", "3"],
            "unknown key 'weight.inner.alhpa_max' in the flags; did",
        ),
        (
            ["--weight.iner", "fade"],
            "unknown key 'weight.iner' in the flags; did you mean 'inner'?",
        ),
        (["--weight.inner.inner", "fade"], "unknown key 'weight.inner.inner' in the flags"),
    ],
)
def test_a_mistake_within_is_named_with_its_place(flags, wanted):
    with pytest.raises(UsageError) as raised:
        load_recipe(Recipe, None, ["--weight", "constant_mass", *flags])
    assert str(raised.value).startswith(wanted)


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("power:alpha", "'power:alpha': a field is given as field=value, got 'alpha'"),
        ("power:alhpa=2", "unknown key 'alhpa' in power:alhpa=2; did you mean 'alpha'?"),
        ("power:alpha=hard", "alpha must be a number, got 'hard' in power:alpha=hard"),
        ("powr", "unknown weight 'powr'; did you mean 'power'?"),
        ("power=3", "unknown weight 'power=3'; did you mean 'power'?"),
        ("", "unknown weight ''"),
    ],
)
def test_a_spec_that_names_no_weight_is_shown(spec, wanted):
    with pytest.raises(UsageError) as raised:
        from_spec(Weight, spec)
    assert str(raised.value).startswith(wanted)


# Runs


TINY = [
    "--train.steps=3",
    "--train.num_problems=8",
    "--train.prompts_per_step=8",
    "--train.group_size=4",
    "--train.threads=1",
    "--eval.every=0",
    "--eval.num_problems=1",
    "--eval.num_samples=0",
]


def run(folder: Path, *flags: str) -> list[dict[str, Any]]:
    recipe = load_recipe(Recipe, "demo", [*TINY, *flags])
    writer = RunWriter.create(folder, {"label": "", "recipe": to_tables(recipe)}, {})
    train(recipe, writer, lambda row: None)
    writer.close()
    return Run(folder).metrics[1:]


def masses(rows: list[dict[str, Any]]) -> list[float]:
    return [row[key] for row in rows for key in ("mass/positive", "mass/negative")]


@pytest.mark.slow
def test_a_replayed_run_is_the_run_and_a_scale_matched_one_has_its_mass(tmp_path):
    fade = run(tmp_path / "fade", "--weight=fade")
    trace = f"--weight.trace={tmp_path / 'fade' / 'metrics.jsonl'}"
    yoked = run(tmp_path / "yoked", "--weight=replay", trace)
    assert masses(yoked) == masses(fade)
    assert [row["weight/alpha"] for row in yoked] == [row["weight/alpha"] for row in fade]
    matched = run(
        tmp_path / "matched", "--weight=replay", trace, "--weight.what=mass", "--weight.inner=rloo"
    )
    for row, of_fade in zip(matched, fade, strict=True):
        total = of_fade["mass/positive"] + of_fade["mass/negative"]
        assert row["mass/positive"] + row["mass/negative"] == pytest.approx(total)
        assert row["weight/mass"] == pytest.approx(total)
        assert "weight/alpha" not in row


@pytest.mark.slow
def test_equalise_multiplies_the_weights_of_a_run_by_one_recorded_number(tmp_path):
    flags = ["--weight=power", "--weight.alpha=3"]
    plain = run(tmp_path / "plain", *flags)
    assert "weight/factor" not in plain[0]
    for equalise, prior in (("mass_at_half", "uniform"), ("mean_mass", "beta:2,3")):
        rows = run(tmp_path / equalise, *flags, f"--equalise={equalise}", f"--prior={prior}")
        factor = equalise_factor(
            WEIGHTS["power"](alpha=3.0),
            equalise,
            4,
            prior=BetaPrior(2, 3) if "beta" in prior else BetaPrior(),
        )
        assert factor > 1
        assert [row["weight/factor"] for row in rows] == [factor] * 3
        # The first batch is drawn by the same policy.
        assert masses(rows[:1]) == pytest.approx([factor * m for m in masses(plain[:1])])


def test_a_recipe_whose_mass_cannot_be_equalised_is_refused():
    with pytest.raises(UsageError, match=r"^equalise = mass_at_half: the total mass of curverl "):
        load_recipe(Recipe, None, ["--weight=curverl", "--equalise=mass_at_half"])
    with pytest.raises(UsageError, match=r"^prior 'normal' is neither uniform nor beta"):
        load_recipe(Recipe, None, ["--prior=normal"])
    with pytest.raises(UsageError, match=r"^equalise must be 'none' or 'mass_at_half' or"):
        load_recipe(Recipe, None, ["--equalise=mass"])
