"""``gradmass eval``: how often, and in how many ways, does a model solve a task?"""

import json
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from gradmass.commands.arguments import parse, split_recipe_flags
from gradmass.commands.eval_model import Model, local_model, served_model
from gradmass.commands.eval_progress import SamplingProgress
from gradmass.commands.eval_table import heading, notes, table
from gradmass.config import Recipe
from gradmass.evaluation import Answer, Sampling, Tally, collect
from gradmass.evaluation.identity import first_problems, problems_sha256
from gradmass.metrics.passk import KS
from gradmass.record import Run
from gradmass.record.environment import environment
from gradmass.record.samples import SamplesWriter
from gradmass.registry import user_files
from gradmass.tables import from_tables, load_recipe, to_tables
from gradmass.tasks import Problem, Task
from gradmass.tasks.countdown import Countdown
from gradmass.tasks.dressed import dress, why_unlisted
from gradmass.types import UsageError

EXACT_NEEDS = "temperature 1, top-p 1 and no stop text"


@dataclass(frozen=True)
class Arguments:
    """Evaluate a model on a task: pass@k by sampling, and exactly where that can be done.

    A run is evaluated as its recipe says: its task, seed, limits and numbers of problems and
    samples. --task NAME and --task.FIELD V, and the options below, say otherwise. Exact: where a
    task lists all right answers, their probabilities are summed, so pass@k has no sampling noise.
    Sampled: the unbiased estimate, with its 95% interval for these fixed problems.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder in Hugging Face format, id on its hub (ORG/NAME), run directory, name of a shipped
    checkpoint; with --endpoint, what the server calls the model."""
    endpoint: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """Ask an OpenAI-compatible server (vLLM, SGLang), such as http://localhost:8000/v1; its key is
    taken from OPENAI_API_KEY."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder to keep all samples in; the same command continues a killed evaluation there, and a
    larger --num-samples adds to it. Not needed for runs, and where right answers are listed."""
    split: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    """Splits to ask; all that are not trained on, if not given."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Most problems of each split; the run's number, else 200 where right answers are listed, else
    all."""
    num_samples: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Answers sampled for each problem, 0 for exact values only; the run's, else 100."""
    k: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = ()
    """Numbers of tries to report pass@k for; 1, 10 and 100 as far as samples go, if not given."""
    temperature: Annotated[float, tyro.conf.arg(metavar="FLOAT")] = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_p: Annotated[float, tyro.conf.arg(metavar="FLOAT")] = 1.0
    """Draw from the fewest tokens whose probabilities sum to at least this."""
    max_new_tokens: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Longest sampled answer in tokens, end token included; the run's, else 20 where right answers
    are listed, else 4096. A longer answer is cut, counted apart, and not right."""
    stop: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT ...")] = ()
    """Texts before which an answer ends, beside the model's own end tokens."""
    prompt: Literal["auto", "chat", "plain"] = "auto"
    """A prompt as a user's message in the chat template, or as plain text to continue; auto: chat
    where the model has a template and with --endpoint, as it was trained for runs."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Seed of the sampled answers; the run's, else 0."""
    batch_size: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Answers computed at once on this machine; chosen by their length, if not given."""
    concurrency: Annotated[int, tyro.conf.arg(metavar="INT")] = 32
    """Requests under way at once with --endpoint."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Sections:
    """What can be set by dotted flags."""

    task: Task = field(default_factory=Countdown)


@dataclass(frozen=True)
class Asked:
    """What an evaluation asks: everything resolved, of whichever model."""

    task: Task
    problems: dict[str, tuple[Problem, ...]]
    num_samples: int
    sampling: Sampling
    ks: tuple[int, ...]
    lists_answers: bool


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    task_flags, rest = split_recipe_flags(Sections, argv)
    arguments = parse(Arguments, "eval", rest, Sections)
    folder = Path(arguments.model)
    has_run = arguments.endpoint is None and (folder / "state.json").exists()
    run = Run(folder) if has_run else None
    asked = _resolve(arguments, run, task_flags)
    if not asked.num_samples and not _is_exact(asked):
        raise UsageError(
            f"{_why_not_exact(arguments, asked)}: evaluation is by sampling, and --num-samples "
            "must be above 0, got 0"
        )
    if arguments.out is None and run is None and not asked.lists_answers:
        raise UsageError(
            "name a folder with --out: samples are kept there, and a killed evaluation continues"
        )
    prompts = [problem.prompt for found in asked.problems.values() for problem in found]
    if arguments.endpoint is not None:
        model: Model = served_model(arguments, asked.sampling)
    else:
        model = local_model(arguments, run, asked.sampling, prompts, is_exact=_is_exact(asked))
    for note in [*model.notes, *_notes(arguments, asked)]:
        print(f"gradmass: note: {note}", file=sys.stderr)
    results = _evaluate(arguments, argv, asked, model)
    if arguments.json:
        print(json.dumps(results))
    else:
        print(f"{heading(results)}\n")
        Console().print(table(results["splits"]))
        for line in notes(results):
            print(line)
        if arguments.out is not None:
            print(f"samples and results: {arguments.out}")
    return 0


def _resolve(arguments: Arguments, run: Run | None, task_flags: Sequence[str]) -> Asked:
    """What to ask: a run's own recipe, and what was said otherwise."""
    stored: dict[str, Any] | None = None
    defaults: dict[str, Any] = {"num_samples": 100, "seed": 0}
    if run is not None:
        recipe = from_tables(Recipe, run.config["recipe"], str(run.path / "config.json"))
        stored = {"task": to_tables(recipe.task)}
        defaults = {
            "limit": recipe.eval.num_problems,
            "num_samples": recipe.eval.num_samples,
            "max_new_tokens": recipe.train.max_new_tokens,
            "seed": recipe.seed,
        }
    task = load_recipe(Sections, None, task_flags, start=stored).task
    # A run is judged as it was trained: format and answer both have to be right.
    task = task if run is None else dress(task, str, recipe.prompt.format)
    splits = arguments.split or task.splits[1:] or task.splits
    lists_answers = task.solutions(first_problems(task, splits[0], 1)[0]) is not None
    # A task that lists its right answers is generated, without end, and they are short.
    small = {"limit": 200, "max_new_tokens": 20} if lists_answers else {}
    defaults = {"limit": None, "max_new_tokens": 4096} | small | defaults
    names = ("limit", "num_samples", "max_new_tokens", "seed")
    given = {name: getattr(arguments, name) for name in names}
    settings = {name: defaults[name] if given[name] is None else given[name] for name in names}
    for name, low in (("num_samples", 0), ("max_new_tokens", 1), ("seed", 0)):
        if settings[name] < low:
            raise UsageError(
                f"--{name.replace('_', '-')} must be at least {low}, got {settings[name]}"
            )
    num_samples = settings["num_samples"]
    return Asked(
        task=task,
        problems={split: first_problems(task, split, settings["limit"]) for split in splits},
        num_samples=num_samples,
        sampling=Sampling(
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            max_new_tokens=settings["max_new_tokens"],
            seed=settings["seed"],
            stop=arguments.stop,
        ),
        ks=_ks(arguments.k, num_samples),
        lists_answers=lists_answers and arguments.endpoint is None,
    )


def _ks(given: Sequence[int], num_samples: int) -> tuple[int, ...]:
    for k in given:
        if k < 1:
            raise UsageError(f"--k must be at least 1, got {k}")
        if 0 < num_samples < k:
            raise UsageError(
                f"pass@{k} needs at least {k} samples of each problem, --num-samples is "
                f"{num_samples}: lower --k or draw more"
            )
    return tuple(sorted(set(given))) or KS


def _is_exact(asked: Asked) -> bool:
    """Whether pass@k is summed over right answers, beside sampling."""
    return asked.lists_answers and asked.sampling.is_whole_distribution


def _why_not_exact(arguments: Arguments, asked: Asked) -> str:
    if arguments.endpoint is not None:
        return f"--endpoint {arguments.endpoint} tells no probabilities of answers"
    if not asked.lists_answers:
        return why_unlisted(asked.task, next(iter(asked.problems.values()))[0])
    return f"exact values are those of {EXACT_NEEDS}"


def _notes(arguments: Arguments, asked: Asked) -> list[str]:
    found = []
    if asked.sampling.temperature == 0 and asked.num_samples > 1:
        found.append(
            f"at temperature 0 the {asked.num_samples} samples of a problem are all alike: "
            "pass@k is pass@1, and --num-samples 1 says as much"
        )
    if asked.lists_answers and not _is_exact(asked):
        found.append(f"no exact values: they are those of {EXACT_NEEDS}")
    return found


def _evaluate(
    arguments: Arguments, argv: Sequence[str], asked: Asked, model: Model
) -> dict[str, Any]:
    """Sample, judge, and sum up every split."""
    tallies = {
        split: Tally([problem.id for problem in problems], asked.num_samples)
        for split, problems in asked.problems.items()
    }
    splits = []
    with ExitStack() as stack:
        writer = None
        if arguments.out is not None:
            writer = SamplesWriter.open(
                arguments.out,
                _config(asked, model),
                environment(shlex.join(["gradmass", "eval", *argv])),
                lambda row: tallies[row["split"]].add(row),
            )
            stack.callback(writer.close)
        num_asked = sum(tally.num_asked for tally in tallies.values())
        num_done = sum(tally.num_done for tally in tallies.values())
        if num_done:
            print(f"gradmass: note: {num_done} samples are there already", file=sys.stderr)
        if writer is not None and writer.waiting:
            num_waiting = len(writer.waiting)
            print(f"gradmass: note: {num_waiting} answers there are judged now", file=sys.stderr)
        progress = stack.enter_context(SamplingProgress(num_asked, num_done))
        for split, problems in asked.problems.items():
            started = time.monotonic()
            row: dict[str, Any] = {
                "split": split,
                "num_problems": len(problems),
                "num_samples": asked.num_samples,
            }
            if _is_exact(asked):
                row |= model.exact(asked.task, problems, asked.ks)
            if asked.num_samples:
                waiting = [] if writer is None else writer.waiting
                collect(
                    asked.task,
                    split,
                    problems,
                    model.engine,
                    tallies[split],
                    folder=writer,
                    waiting=[Answer.from_row(w) for w in waiting if w["split"] == split],
                    on_samples=progress.add,
                )
                samples = tallies[split].summary(asked.ks)
                row |= {f"sampled_{k}": samples.pop(k) for k in list(samples) if k[:5] == "pass@"}
                row["samples"] = samples
            row["time/eval_s"] = time.monotonic() - started
            splits.append(row)
        results = {**_what(asked, model), "k": list(asked.ks), "splits": splits}
        if writer is not None:
            writer.finish(results)
    return results


def _what(asked: Asked, model: Model) -> dict[str, Any]:
    """What is asked, of whom, and how: the head of results and of the folder's config."""
    sampling = asked.sampling
    return {
        "model": model.name,
        "endpoint": model.endpoint,
        "task": to_tables(asked.task),
        "num_samples": asked.num_samples,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_new_tokens": sampling.max_new_tokens,
        "stop": list(sampling.stop),
        "prompt": model.prompt_format,
        "seed": sampling.seed,
    }


def _config(asked: Asked, model: Model) -> dict[str, Any]:
    """What decides the samples; a folder holds those of one such table."""
    return {
        **_what(asked, model),
        "model_id": model.identity,
        "batch_size": model.batch_size,
        "files": user_files(),
        "problems": {
            split: {"number": len(problems), "sha256": problems_sha256(problems)}
            for split, problems in asked.problems.items()
        },
    }
