"""``gradmass train``: what happens under this weight?"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gradmass.commands.arguments import parse, split_recipe_flags
from gradmass.commands.progress import Progress
from gradmass.config import Recipe
from gradmass.record import Run, RunWriter, refuse_used
from gradmass.record.environment import environment
from gradmass.record.trackers import Mirror, Tracker, tracked_run
from gradmass.registry import user_files
from gradmass.tables import differences, from_tables, load_recipe, to_tables, to_toml
from gradmass.types import UsageError

SHOWN = (
    "rollout/solve_rate",
    "entropy/mean_nats",
    "mass/positive",
    "mass/negative",
    "weight/alpha",
    "weight/delta",
    "test/pass@1",
    "test/pass@100",
)


@dataclass(frozen=True)
class Arguments:
    """Train a language model by reinforcement learning with verifiable rewards.

    Any field of the recipe is a flag too, and --weight NAME chooses the weight:
    gradmass train demo --weight power --weight.alpha 3 --train.steps 200. Values are written as in
    TOML. --dry-run prints every field with its meaning.
    """

    recipe: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RECIPE]")] = None
    """A TOML file, or the name of a shipped recipe (demo)."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Run directory to write; runs/TASK-WEIGHT-TIME if not given."""
    engine: Literal["local", "trl", "verl"] = "local"
    """What trains: this package on one machine, TRL (also under accelerate launch), or verl."""
    track: Tracker | None = None
    """Show the metrics to an experiment tracker too; a run that is resumed stays with its own."""
    resume: bool = False
    """Continue the interrupted run in --out."""
    dry_run: bool = False
    """Print the resolved recipe with the meaning of every field, and stop."""
    json: bool = False
    """Print the last row of metrics and the run directory as JSON, and no progress."""


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 when the run is finished, 130 when it was interrupted."""
    recipe_flags, rest = split_recipe_flags(Recipe, argv)
    arguments = parse(Arguments, "train", rest, Recipe)
    if arguments.resume:
        recipe = _stored_recipe(arguments, recipe_flags)
    elif arguments.recipe is None:
        raise UsageError("train needs a recipe: a TOML file, or demo (gradmass train --help)")
    else:
        recipe = load_recipe(Recipe, arguments.recipe, recipe_flags)
    if arguments.dry_run:
        print(to_toml(recipe), end="")
        return 0
    # Imported before the run directory is made: without torch nothing is left behind.
    from gradmass.training.folders import resolve_model
    from gradmass.training.threads import resolve_threads

    resolve_model(recipe.model.path)
    recipe = resolve_threads(recipe)
    engine = _stored_engine(arguments) if arguments.resume else arguments.engine
    run = _trainer(engine)
    if is_follower():
        folder = _shared_out(arguments)
        assert folder is not None
        return 0 if run(recipe, None, folder, lambda row: None) else 130
    env = environment(shlex.join(["gradmass", "train", *argv]))
    if arguments.resume:
        assert arguments.out is not None
        _refuse_other_tracker(arguments)
        writer = RunWriter.resume(arguments.out, env)
    else:
        config = {
            "label": recipe.weight.label,
            "engine": engine,
            "recipe": to_tables(recipe),
            "files": user_files(),
        }
        out = _shared_out(arguments) or default_out(recipe)
        if arguments.track:
            refuse_used(out, can_resume=True)
            config["tracked"] = tracked_run(arguments.track, out)
        writer = RunWriter.create(out, config, env)
    if not arguments.json:
        print(f"{recipe.weight.label} on {recipe.task.name}: {writer.path}", file=sys.stderr)
    mirror = _mirror(writer)
    with Progress(recipe.train.steps, SHOWN, is_quiet=arguments.json) as progress:

        def on_row(row: dict[str, Any]) -> None:
            progress.show(row)
            if mirror is not None:
                mirror.log(row)

        try:
            is_finished = run(recipe, writer, writer.path, on_row)
        except BaseException:
            writer.fail()
            raise
        finally:
            writer.close()
            if mirror is not None:
                mirror.finish()
    if arguments.json:
        last = Run(writer.path).metrics[-1]
        print(json.dumps({"run": str(writer.path), "is_finished": is_finished, "metrics": last}))
    elif is_finished:
        print(f"run: {writer.path}")
    else:
        again = f"gradmass train --resume --out {shlex.quote(str(writer.path))}"
        print(f"interrupted; continue with: {again}", file=sys.stderr)
    return 0 if is_finished else 130


def _mirror(writer: RunWriter) -> Mirror | None:
    """What shows the run to its tracker, if it has one."""
    stored = Run(writer.path)
    target = stored.config.get("tracked")
    if target is None:
        return None
    config = {key: stored.config[key] for key in ("label", "engine", "recipe")}
    return Mirror(target, config, stored.metrics)


def _trainer(
    engine: str,
) -> Callable[[Recipe, RunWriter | None, Path, Callable[[Any], None]], bool]:
    """The function that runs a recipe on an engine."""
    if engine == "trl":
        from gradmass.engines.trl import make_trainer

        make_trainer()  # one line where TRL is missing or does not fit
        from gradmass.engines.trl_recipe import train as train_on_trl

        return train_on_trl
    if engine == "verl":
        from gradmass.engines.verl_run import train as train_on_verl

        return train_on_verl
    from gradmass.training.train import train

    if is_follower():
        raise UsageError("--engine local is one process; several are for --engine trl")

    def train_here(
        recipe: Recipe, writer: RunWriter | None, _folder: Path, on_row: Callable[[Any], None]
    ) -> bool:
        assert writer is not None
        return train(recipe, writer, on_row)

    return train_here


def is_follower() -> bool:
    """Whether another process of this launch keeps the run directory."""
    return int(os.environ.get("RANK", "0")) > 0


def _shared_out(arguments: Arguments) -> Path | None:
    if arguments.out is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("several processes need --out, the run directory they share")
    return arguments.out


def _stored_engine(arguments: Arguments) -> str:
    """The engine of the run to go on with; runs from before there were several are local."""
    assert arguments.out is not None
    return str(Run(arguments.out).config.get("engine", "local"))


def _refuse_other_tracker(arguments: Arguments) -> None:
    assert arguments.out is not None
    tracked = Run(arguments.out).config.get("tracked", {}).get("tracker")
    if arguments.track not in (None, tracked):
        raise UsageError(
            f"--track {arguments.track}: the run {arguments.out} is tracked by "
            f"{tracked or 'none'}; leave it out, or start a new run"
        )


def default_out(recipe: Recipe) -> Path:
    """A run directory that is not there yet."""
    # A class from a file is called path/to/file.py:Name; only the last part names a folder.
    labels = (re.split(r"[/\\:]", name)[-1] for name in (recipe.task.name, recipe.weight.name))
    stem = "-".join([*labels, f"{datetime.now():%Y%m%d-%H%M%S}"])
    name, number = stem, 1
    while (Path("runs") / name).exists():
        number += 1
        name = f"{stem}-{number}"
    return Path("runs") / name


def _stored_recipe(arguments: Arguments, recipe_flags: Sequence[str]) -> Recipe:
    """The recipe of the run to go on with; one given again must be the same, and its files too."""
    if arguments.out is None:
        raise UsageError("--resume needs --out, the run directory to continue")
    config = Run(arguments.out).config
    stored = config["recipe"]
    recipe = from_tables(Recipe, stored, str(arguments.out / "config.json"))
    if arguments.recipe is not None or recipe_flags:
        given = load_recipe(Recipe, arguments.recipe, recipe_flags, start=stored)
        if given.train.threads == 0:
            given = replace(given, train=replace(given.train, threads=recipe.train.threads))
        for field, here, there in differences(to_tables(given), stored):
            raise UsageError(
                f"--resume continues the stored recipe, but {field} is {here} here and "
                f"{there} in {arguments.out}; leave it out, or start a new run"
            )
    files = user_files()
    for path, digest in config.get("files", {}).items():
        if files.get(path, digest) != digest:
            raise UsageError(
                f"{path} has changed since the run {arguments.out} began; put it back, "
                "or start a new run"
            )
    return recipe
