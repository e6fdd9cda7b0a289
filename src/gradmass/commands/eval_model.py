"""The model that ``gradmass eval`` asks: on this machine, or behind an address."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gradmass.config import PromptConfig, Recipe
from gradmass.evaluation import Engine, PromptFormat, Sampling
from gradmass.evaluation.identity import model_sha256
from gradmass.record import Run
from gradmass.record.samples import read_config
from gradmass.tables import from_tables
from gradmass.tasks import Problem, Task
from gradmass.types import UsageError

if TYPE_CHECKING:
    from gradmass.commands.evaluate import Arguments

Exact = Callable[[Task, Sequence[Problem], Sequence[int]], dict[str, Any]]


def _no_exact(task: Task, problems: Sequence[Problem], ks: Sequence[int]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is evaluated.

    Args:
        name: As the user calls it.
        identity: What it is, wherever it lies: the hash of its files, or the name on the server.
        prompt_format: How it reads prompts.
        engine: What asks it.
        endpoint: Its address; None on this machine.
        batch_size: Answers computed at once; None behind an address.
        exact: Sums the probabilities of all right answers.
        notes: What the user should know before the evaluation starts.
    """

    name: str
    identity: str
    prompt_format: PromptFormat
    engine: Engine
    endpoint: str | None = None
    batch_size: int | None = None
    exact: Exact = _no_exact
    notes: list[str] = field(default_factory=list)


def served_model(arguments: "Arguments", sampling: Sampling) -> Model:
    """A model behind ``--endpoint``, which is asked whether it is there.

    Raises:
        UsageError: The client is not installed, or the server cannot be used.
    """
    try:
        from gradmass.evaluation.endpoint import Endpoint
    except ModuleNotFoundError as error:
        if error.name != "openai":
            raise
        raise UsageError(
            "--endpoint needs openai, which is not installed: pip install 'gradmass[endpoint]'"
        ) from error
    assert arguments.endpoint is not None
    engine = Endpoint(
        url=arguments.endpoint,
        model=arguments.model,
        prompt_format="chat" if arguments.prompt == "auto" else arguments.prompt,
        sampling=sampling,
        concurrency=arguments.concurrency,
        say=lambda line: print(f"gradmass: note: {line}", file=sys.stderr, flush=True),
    )
    engine.check()
    return Model(
        name=arguments.model,
        identity=f"served: {arguments.model}",
        prompt_format=engine.prompt_format,
        engine=engine,
        endpoint=arguments.endpoint,
    )


def local_model(
    arguments: "Arguments",
    run: Run | None,
    sampling: Sampling,
    prompts: Sequence[str],
    *,
    is_exact: bool,
) -> Model:
    """A model on this machine, on its GPU if there is one.

    Raises:
        UsageError: There is no such model, or it cannot be asked these prompts.
    """
    import torch

    from gradmass.training import generate
    from gradmass.training.model import (
        check_fit,
        check_length,
        find_model,
        load_model,
        longest_prompt,
    )
    from gradmass.training.policy import prompt_renderer
    from gradmass.training.rollout import end_tokens

    folder = find_model(arguments.model) if run is None else str(run.model_dir)
    model, tokenizer = load_model(folder)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    asked = _asked(arguments.prompt, run, tokenizer)
    render = prompt_renderer(asked, tokenizer, arguments.model)
    rendered = [render(prompt) for prompt in prompts]
    if is_exact:
        check_fit(model, tokenizer, rendered, sampling.max_new_tokens)
    check_length(model, tokenizer, rendered, sampling.max_new_tokens, "--max-new-tokens")
    batch_size = _batch_size(arguments) or generate.default_batch_size(
        model, longest_prompt(tokenizer, rendered), sampling.max_new_tokens
    )

    return Model(
        name=arguments.model,
        identity=model_sha256(Path(folder)),
        prompt_format=asked.template,
        engine=generate.LocalEngine(
            model,
            tokenizer,
            sampling,
            batch_size=batch_size,
            render=render,
            ends=end_tokens(model, tokenizer),
        ),
        batch_size=batch_size,
        exact=partial(_exact, model, tokenizer, render, sampling),
        notes=[] if is_exact else _losses(tokenizer, rendered),
    )


def _exact(
    model: Any,
    tokenizer: Any,
    render: Callable[[str], str],
    sampling: Sampling,
    task: Task,
    problems: Sequence[Problem],
    ks: Sequence[int],
) -> dict[str, Any]:
    """Summed probabilities of all right answers, where sampling could find each."""
    from gradmass.training.evaluate import check_answers, evaluate_exactly, refuse_cut_answers

    check_answers(tokenizer, task, problems)
    texts = [render(problem.prompt) for problem in problems]
    measured = evaluate_exactly(model, tokenizer, task, problems, prompts=texts)
    refuse_cut_answers(measured, sampling.max_new_tokens)
    return measured.summary(ks)


def _losses(tokenizer: Any, rendered: Sequence[str]) -> list[str]:
    """A note on prompts that the model does not see as they are, if there are any."""
    from gradmass.training.model import lost_characters

    lost = list(lost_characters(tokenizer, rendered))
    if not lost:
        return []
    prompt, seen = lost[0]
    return [
        f"the tokenizer loses characters of {len(lost)} of {len(rendered)} prompts; it reads "
        f"{prompt[:60]!r} as {seen[:60]!r}"
    ]


def _asked(
    template: PromptFormat | Literal["auto"], run: Run | None, tokenizer: Any
) -> PromptConfig:
    """How prompts are put: a run's as it was trained, a chat model's in its template."""
    asked = PromptConfig()
    if run is not None:
        asked = from_tables(Recipe, run.config["recipe"], str(run.path / "config.json")).prompt
    elif tokenizer.chat_template is not None:
        asked = PromptConfig(template="chat")
    if template != "auto" and template != asked.template:
        asked = PromptConfig(template=template, instruction=asked.instruction)
    return asked


def _batch_size(arguments: "Arguments") -> int | None:
    """The number given, else that of the evaluation to continue: batches decide last bits."""
    if arguments.batch_size is not None:
        if arguments.batch_size < 1:
            raise UsageError(f"--batch-size must be at least 1, got {arguments.batch_size}")
        return arguments.batch_size
    if arguments.out is not None and (arguments.out / "config.json").is_file():
        stored: int | None = read_config(arguments.out).get("batch_size")
        return stored
    return None
