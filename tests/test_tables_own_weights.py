"""Recipes of weights that lie in a file of the user's."""

import json

import pytest
from written import refusal, write

from gradmass.config import Recipe
from gradmass.tables import field_docs, from_tables, load_recipe, to_tables, to_toml
from gradmass.weights import WEIGHTS


def plain(value):
    """A value as JSON would give it back."""
    return json.loads(json.dumps(value))


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


def test_a_subclass_documents_inherited_fields_and_its_own(mine):
    docs = field_docs(WEIGHTS[f"{mine}:Unlimited"])
    assert docs["factor"] == "What it is multiplied with."
    assert docs["limit"] == "Largest weight, if any."
    assert "label_in_plots" not in docs
