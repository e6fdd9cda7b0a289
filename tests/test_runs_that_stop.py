"""What ends a run ends it in one line, and its last checkpoint goes on as if nothing had been."""

import json
import math
import resource

import pytest
from safetensors.torch import load_file

from gradmass.cli import main
from gradmass.config import TrainConfig
from gradmass.record import Run, RunWriter
from gradmass.tasks.countdown import Countdown
from gradmass.training import rollout, terms
from gradmass.types import UsageError

TINY = [
    *("train", "demo", "--train.steps=6", "--train.num_problems=4", "--train.prompts_per_step=2"),
    *("--train.group_size=4", "--train.checkpoint_every=2", "--train.threads=1", "--weight=grpo"),
    *("--eval.every=0", "--eval.num_problems=1", "--eval.num_samples=0", "--probe.every=0"),
    "--probe.rank_every=0",
]
BREAKING = '''
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import os
from dataclasses import dataclass
from gradmass.tasks.countdown import Countdown

calls = []

@dataclass(frozen=True, kw_only=True)
class Breaking(Countdown):
    """Countdown, judged by a process that dies at the fourth batch."""

    def verify_batch(self, problems, completions):
        calls.append(1)
        if len(calls) == 4:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                pool.submit(os._exit, 3).result()
        return super().verify_batch(problems, completions)
'''


def exit_code(*argv):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in argv])
    return ended.value.code


def one_line(capsys):
    """The error, which is one line after the first, which names the run."""
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("gradmass: error: ")
    return lines[0]


def numbers(path):
    rows = Run(path).metrics
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    assert exit_code(*TINY, "--json", "--out", path) == 0
    return numbers(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("largest_file", "wanted"),
    [
        (10, "cannot write to run"),
        (200_000, "cannot save the checkpoint after step 4"),  # half a model
        (700_000, "cannot save the checkpoint after step 4"),  # half of the optimiser's state
    ],
)
def test_a_disk_that_takes_no_more_stops_the_run(
    tmp_path, monkeypatch, capsys, whole, largest_file, wanted
):
    path, log, before = tmp_path / "run", RunWriter.log, resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_up(writer, row):
        if row["step"] == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, before[1]))
        log(writer, row)

    monkeypatch.setattr(RunWriter, "log", fill_up)
    try:
        code = exit_code(*TINY, "--out", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    monkeypatch.undo()
    assert code == 2
    error = one_line(capsys)
    assert wanted in error
    assert "make room and go on with --resume" in error
    assert Run(path).state["step"] == 2
    assert [entry.name for entry in (path / "checkpoints").iterdir()] == ["step-000002"]
    assert exit_code("train", "--resume", "--json", "--out", path) == 0
    assert numbers(path) == whole


@pytest.mark.slow
@pytest.mark.parametrize("lag", [[], ["--train.max_lag=1"]], ids=["synchronous", "background"])
@pytest.mark.parametrize("where", ["loss", "sampler"])
def test_numbers_that_are_none_stop_the_run(tmp_path, monkeypatch, capsys, where, lag):
    # TRL issue 6166: a NaN log-probability crashed the sampler's caller.
    path, log = tmp_path / "run", RunWriter.log
    draw, logits_of_hidden, steps = rollout._draw, terms.logits_of_hidden, set()

    def poison(writer, row):
        steps.add(row["step"])
        log(writer, row)

    def broken(logits):
        return logits * math.nan if 3 in steps else logits

    monkeypatch.setattr(RunWriter, "log", poison)
    if where == "sampler":
        monkeypatch.setattr(rollout, "_draw", lambda logits, draws: draw(broken(logits), draws))
    else:
        monkeypatch.setattr(
            terms, "logits_of_hidden", lambda *given: broken(logits_of_hidden(*given))
        )
    reinforce = ["--weight=reinforce", "--weight.signed=true"]  # no batch is without signal
    assert exit_code(*TINY, *reinforce, *lag, "--out", path) == 2
    monkeypatch.undo()
    assert "diverged" in one_line(capsys)
    run = Run(path)
    assert run.state["status"] == "failed"
    # In the background a batch or two may have been sampled before it happened.
    assert run.state["step"] == 2 or (lag and where == "sampler" and run.state["step"] == 4)
    parameters = load_file(run.model_dir / "model.safetensors").values()
    assert all(bool(p.isfinite().all()) for p in parameters)
    assert exit_code("train", "--resume", "--json", "--out", path) == 0


@pytest.mark.slow
def test_a_pool_of_a_verifier_that_breaks_stops_the_run(tmp_path, capsys):
    file = tmp_path / "breaking.py"
    file.write_text(BREAKING)
    path = tmp_path / "run"
    assert exit_code(*TINY, f"--task={file}:Breaking", "--out", path) == 2
    error = one_line(capsys)
    assert "the verifier of task" in error
    assert "broke down: A process in the process pool was terminated abruptly" in error
    assert Run(path).state["step"] == 2
    assert exit_code("train", "--resume", "--json", "--out", path) == 0
    assert [row["step"] for row in Run(path).metrics] == list(range(7))


@pytest.mark.parametrize(
    ("section", "field", "value", "was"),
    [("optim", "lr", 0.5, "0.0002"), ("loss", "clip_high", 0.28, "0.2"), ("task", "seed", 9, "0")],
)
def test_a_recipe_edited_since_the_checkpoint_is_refused(
    tmp_path, capsys, section, field, value, was
):
    path = tmp_path / "run"
    assert exit_code(*TINY, "--train.steps=2", "--json", "--out", path) == 0
    state = (path / "state.json").read_text()
    (path / "state.json").write_text(state.replace('"finished"', '"interrupted"'))
    config = json.loads((path / "config.json").read_text())
    config["recipe"][section][field] = value
    (path / "config.json").write_text(json.dumps(config))
    capsys.readouterr()
    assert exit_code("train", "--resume", "--out", path) == 2
    error = one_line(capsys)
    assert f"{section}.{field} is {value} in the run's config.json, but {was} in its" in error


def test_fewer_problems_than_a_batch_are_refused_and_never_dropped():
    # open-r1 issue 249, unsloth pull request 3838: three prompts, batches of four, nothing trained.
    with pytest.raises(UsageError, match=r"num_problems = 3 is fewer than a batch needs .* = 4"):
        TrainConfig(num_problems=3, prompts_per_step=4, group_size=2)
    few = Countdown(min_numbers=2, max_numbers=2, max_number=3, max_target=6, max_ood_target=8)
    with pytest.raises(UsageError, match="num_problems = 2000 asks for more"):
        few.problems("train", 2000)
