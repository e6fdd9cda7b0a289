"""``gradmass sft``: how is a starting point made?"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gradmass.commands.arguments import parse, split_recipe_flags
from gradmass.commands.progress import Progress
from gradmass.config import SftRecipe
from gradmass.tables import load_recipe, to_toml


@dataclass(frozen=True)
class Arguments:
    """Make a supervised start: a model that has seen solved problems.

    A tiny Qwen2 made from nothing, or with --start.path FOLDER a model of any size; solved problems
    of the task, or with --data.path FILE rows of your own (prompt and completion, or messages). Any
    field of the recipe is a flag too: --train.steps 1000, --lora.rank 16. The result is a folder in
    Hugging Face format, or with an adapter in peft's.
    """

    recipe: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RECIPE]")] = None
    """A TOML file, or the name of a shipped recipe (sft_countdown, sft_smollm2)."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("checkpoint")
    """Folder to write; must be new or empty."""
    dry_run: bool = False
    """Print the resolved recipe with the meaning of every field, and stop."""
    json: bool = False
    """Print the last row of metrics as JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    recipe_flags, rest = split_recipe_flags(SftRecipe, argv)
    arguments = parse(Arguments, "sft", rest, SftRecipe)
    recipe = load_recipe(SftRecipe, arguments.recipe, recipe_flags)
    if arguments.dry_run:
        print(to_toml(recipe), end="")
        return 0
    from gradmass.training.sft import supervise

    last: dict[str, float] = {}
    started = time.monotonic()
    with Progress(recipe.train.steps, ("loss/value",), is_quiet=arguments.json) as progress:

        def on_step(row: dict[str, float]) -> None:
            last.update(row)
            progress.show(row)

        supervise(recipe, arguments.out, on_step)
    last["time/total_s"] = time.monotonic() - started
    if arguments.json:
        print(json.dumps(last))
    else:
        for key, value in last.items():
            print(f"{key:32} {value:.4g}")
        print(f"checkpoint: {arguments.out}")
    return 0
