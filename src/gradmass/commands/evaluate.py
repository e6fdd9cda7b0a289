"""``gradmass eval``: how often, and in how many ways, does a model solve a task?"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from gradmass.commands.arguments import parse, split_recipe_flags
from gradmass.config import Recipe
from gradmass.record import Run
from gradmass.tables import from_tables, load_recipe, to_tables
from gradmass.tasks import Task
from gradmass.tasks.countdown import Countdown
from gradmass.types import UsageError


@dataclass(frozen=True)
class Arguments:
    """Evaluate a model exactly and by sampling.

    A run is evaluated as its recipe says: its task, seed, limits and numbers of problems and
    samples. --task NAME and --task.FIELD V, and the options below, say otherwise. Exact: the
    probabilities of all right answers are summed, so pass@k has no sampling noise. Sampled: the
    unbiased estimate, with its 95% interval for these fixed problems.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder in Hugging Face format, run directory, or name of a shipped checkpoint."""
    num_problems: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Problems of each held-out split; the run's, else 200."""
    num_samples: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Answers sampled for each problem, 0 for exact values only; the run's, else 100."""
    max_new_tokens: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Longest sampled answer in tokens, end token included; the run's, else 20."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Seed of the sampled answers; the run's, else 0."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Sections:
    """What can be set by dotted flags."""

    task: Task = field(default_factory=Countdown)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    task_flags, rest = split_recipe_flags(Sections, argv)
    arguments = parse(Arguments, "eval", rest, Sections)
    folder = Path(arguments.model)
    run = Run(folder) if (folder / "state.json").exists() else None
    path = arguments.model if run is None else str(run.model_dir)
    task, settings = _resolve(arguments, run, task_flags)
    from gradmass.training.evaluate import check_answers, evaluate
    from gradmass.training.model import check_fit, load_model

    model, tokenizer = load_model(path)
    results = []
    with Console(stderr=True).status("") as status:
        for split in task.splits[1:]:
            problems = task.problems(split, settings["num_problems"])
            prompts = [problem.prompt for problem in problems]
            check_fit(model, tokenizer, prompts, settings["max_new_tokens"])
            check_answers(tokenizer, task, problems)
            num_samples = settings["num_samples"]
            status.update(f"{split}: {len(problems)} problems, {num_samples} samples each")
            started = time.monotonic()
            measured, _ = evaluate(
                model,
                tokenizer,
                task,
                problems,
                num_samples=num_samples,
                max_new_tokens=settings["max_new_tokens"],
                seed=settings["seed"],
            )
            results.append(
                {
                    "split": split,
                    "num_problems": len(problems),
                    "num_samples": num_samples,
                    **measured,
                    "time/eval_s": time.monotonic() - started,
                }
            )
    if arguments.json:
        what = {"model": arguments.model, "task": to_tables(task), **settings}
        print(json.dumps({**what, "splits": results}))
    else:
        fields = ", ".join(f"{key} = {value}" for key, value in to_tables(task).items())
        print(f"{fields}; seed {settings['seed']}\n")
        Console().print(_table(results))
    return 0


def _resolve(
    arguments: Arguments, run: Run | None, task_flags: Sequence[str]
) -> tuple[Task, dict[str, int]]:
    """The task and the numbers to evaluate by: a run's own recipe, and what was said otherwise."""
    settings = {"num_problems": 200, "num_samples": 100, "max_new_tokens": 20, "seed": 0}
    stored = None
    if run is not None:
        recipe = from_tables(Recipe, run.config["recipe"], str(run.path / "config.json"))
        stored = {"task": to_tables(recipe.task)}
        settings = {
            "num_problems": recipe.eval.num_problems,
            "num_samples": recipe.eval.num_samples,
            "max_new_tokens": recipe.train.max_new_tokens,
            "seed": recipe.seed,
        }
    for name, low in (("num_problems", 1), ("num_samples", 0), ("max_new_tokens", 1), ("seed", 0)):
        given = getattr(arguments, name)
        if given is not None and given < low:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {low}, got {given}")
        settings[name] = settings[name] if given is None else given
    return load_recipe(Sections, None, task_flags, start=stored).task, settings


def _table(results: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("split", "problems", "", "exact", "sampled [95%]", "samples", box=None)
    for result in results:
        first = (result["split"], str(result["num_problems"]))
        keys = [key.removeprefix("sampled_") for key in result if "pass@" in key or "answer" in key]
        for key in dict.fromkeys(key for key in keys if not key.endswith(("_low", "_high"))):
            exact = f"{result[key]:.3f}" if key in result else ""
            sampled, num_samples = "", ""
            if f"sampled_{key}" in result:
                value, low, high = (result[f"sampled_{key}{end}"] for end in ("", "_low", "_high"))
                sampled, num_samples = f"{value:.3f} [{low:.3f}, {high:.3f}]", result["num_samples"]
            table.add_row(*first, key, exact, sampled, str(num_samples))
            first = ("", "")
    return table
