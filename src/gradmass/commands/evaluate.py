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
from gradmass.record import Run
from gradmass.tables import load_recipe
from gradmass.tasks import Task
from gradmass.tasks.countdown import Countdown
from gradmass.types import UsageError


@dataclass(frozen=True)
class Arguments:
    """Evaluate a model exactly and by sampling.

    --task NAME chooses the task, and --task.FIELD V sets a field of it. Exact: the probabilities of
    all right answers are summed, so pass@k has no sampling noise. Sampled: the unbiased estimate,
    with its 95% interval for these fixed problems.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder in Hugging Face format, run directory, or name of a shipped checkpoint."""
    num_problems: int = 200
    """Problems of each held-out split."""
    num_samples: int = 100
    """Answers sampled for each problem; 0 evaluates exactly only."""
    max_new_tokens: int = 20
    """Longest sampled answer in tokens, end token included."""
    seed: int = 0
    """Seed of the sampled answers."""
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
    task = load_recipe(Sections, None, task_flags).task
    for name, low in (("num_problems", 1), ("num_samples", 0), ("max_new_tokens", 1), ("seed", 0)):
        if getattr(arguments, name) < low:
            raise UsageError(
                f"--{name.replace('_', '-')} must be at least {low}, got {getattr(arguments, name)}"
            )
    from gradmass.training.evaluate import evaluate
    from gradmass.training.model import check_fit, load_model

    folder = Path(arguments.model)
    is_run = (folder / "state.json").exists()
    model, tokenizer = load_model(str(Run(folder).model_dir) if is_run else arguments.model)
    results = []
    with Console(stderr=True).status("") as status:
        for split in task.splits[1:]:
            problems = task.problems(split, arguments.num_problems)
            check_fit(model, tokenizer, [p.prompt for p in problems], arguments.max_new_tokens)
            status.update(
                f"{split}: {len(problems)} problems, {arguments.num_samples} samples each"
            )
            started = time.monotonic()
            measured, _ = evaluate(
                model,
                tokenizer,
                task,
                problems,
                num_samples=arguments.num_samples,
                max_new_tokens=arguments.max_new_tokens,
                seed=arguments.seed,
            )
            results.append(
                {
                    "split": split,
                    "num_problems": len(problems),
                    "num_samples": arguments.num_samples,
                    **measured,
                    "time/eval_s": time.monotonic() - started,
                }
            )
    if arguments.json:
        print(json.dumps({"model": arguments.model, "task": task.name, "splits": results}))
    else:
        Console().print(_table(results))
    return 0


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
