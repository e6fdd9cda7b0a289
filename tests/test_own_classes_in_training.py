"""A user's own task or weight, from a file, through the whole of training."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from gradmass.config import (
    EvalConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    Recipe,
    SftRecipe,
    SftTrainConfig,
    TinyModelConfig,
    TrainConfig,
)
from gradmass.record import Run, RunWriter
from gradmass.report.page import Summary
from gradmass.rewards import Outcome, Verdict
from gradmass.tables import from_tables, to_tables
from gradmass.tasks import TASKS, Problem
from gradmass.training.evaluate import check_answers
from gradmass.training.model import check_fit, load_model, save_model
from gradmass.training.sft import supervise
from gradmass.training.train import train
from gradmass.types import UsageError
from gradmass.weights.grpo import Grpo

WEIGHT = '''
from dataclasses import dataclass
from gradmass.weights import Weight, register_weight

@register_weight("mean_removed")
@dataclass(frozen=True, kw_only=True)
class MeanRemoved(Weight):
    """Reward minus group mean."""

    def formula(self, groups, state, signals):
        return groups.centred_PG
'''
TASK = '''
from dataclasses import dataclass
from itertools import cycle
from typing import ClassVar
from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem, Task

@dataclass(frozen=True, kw_only=True)
class Copy(Task):
    """Write the number again."""

    splits: ClassVar = ("train", "validation")
    alphabet: ClassVar = "0123456789="
    width: int = 2

    def generate(self, split):
        for i in range(10, 99):
            if (i % 5 == 0) == (split == "validation"):
                number = str(i) if split == "train" else str(i).zfill(self.width)
                yield Problem(number, number + "=", number)

    def demonstrations(self, split):
        for problem in cycle(self.generate(split)):
            yield problem, problem.data

    def verify(self, problem, completion):
        return Verdict(Outcome.RIGHT if completion == problem.data else Outcome.WRONG)
'''
SMALL = TrainConfig(steps=4, num_problems=4, prompts_per_step=4, group_size=4, threads=1)
RECIPE = Recipe(weight=Grpo(), train=SMALL, eval=EvalConfig(every=0, num_problems=2, num_samples=2))


def run(recipe, path):
    config = {"label": recipe.weight.label, "recipe": to_tables(recipe)}
    writer = RunWriter.create(path, config, {})
    try:
        train(recipe, writer, lambda row: None)
    finally:
        writer.close()
    return Run(path)


@pytest.fixture
def copy_task(tmp_path):
    (tmp_path / "copy_task.py").write_text(TASK)
    return TASKS[f"{tmp_path / 'copy_task.py'}:Copy"]


@pytest.mark.slow
def test_a_run_of_a_weight_that_its_file_registers_is_resumed_from_anywhere(tmp_path):
    (tmp_path / "own.py").write_text(WEIGHT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def gradmass(folder, *arguments):
        return subprocess.run(
            [sys.executable, "-m", "gradmass", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )

    small = ["--train.steps=3", "--train.num_problems=4", "--train.prompts_per_step=4"]
    small += ["--train.checkpoint_every=1", "--eval.num_problems=1", "--eval.num_samples=0"]
    done = gradmass(
        tmp_path, "train", "demo", "--weight", "own.py:MeanRemoved", *small, "--out", "run"
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "run"
    assert Run(path).config["label"] == "mean_removed"
    state = (path / "state.json").read_text()
    (path / "state.json").write_text(state.replace('"finished"', '"interrupted"'))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "own.py").write_text(WEIGHT + "# changed")
    changed = gradmass(elsewhere, "train", "--resume", "--out", str(path))
    assert changed.returncode == 2
    assert f"{tmp_path / 'own.py'} has changed since the run {path} began" in changed.stderr
    (tmp_path / "own.py").write_text(WEIGHT)
    again = gradmass(elsewhere, "train", "--resume", "--out", str(path))
    assert again.returncode == 0, again.stderr
    assert Run(path).state["status"] == "finished"


def test_the_stored_type_leads_back_to_the_class(copy_task):
    task = copy_task(width=3)
    recipe = replace(RECIPE, task=task)
    assert from_tables(Recipe, to_tables(recipe), "x").task == task
    assert Path(to_tables(task)["type"].rpartition(":")[0]).is_absolute()


def test_a_supervised_start_needs_no_list_of_right_answers(tmp_path, copy_task):
    recipe = SftRecipe(
        task=copy_task(),
        model=TinyModelConfig(hidden_size=8, num_heads=2, num_layers=1, intermediate_size=8),
        train=SftTrainConfig(steps=2, batch_size=4, num_eval_problems=2),
    )
    rows = []
    supervise(recipe, tmp_path / "out", rows.append)
    assert [set(row) for row in rows] == [{"step", "loss/value"}] * 2
    load_model(str(tmp_path / "out"))


def test_a_task_without_alphabet_is_refused_before_anything_is_made(tmp_path, copy_task):
    class Blank(copy_task):
        name = "blank"
        alphabet = ""

    with pytest.raises(UsageError, match="task 'blank' has no alphabet"):
        supervise(SftRecipe(task=Blank()), tmp_path / "out", lambda row: None)
    assert not (tmp_path / "out").exists()


def test_held_out_prompts_must_leave_room_too(tmp_path, copy_task):
    with pytest.raises(UsageError, match="the model has 64 positions"):
        run(replace(RECIPE, task=copy_task(width=60)), tmp_path / "run")


def test_right_answers_that_are_cut_are_refused_without_samples_too(tmp_path):
    recipe = replace(
        RECIPE,
        train=replace(SMALL, max_new_tokens=5),
        eval=EvalConfig(every=0, num_problems=2, num_samples=0),
    )
    with pytest.raises(UsageError, match="max_new_tokens = 5 cuts right answers"):
        run(recipe, tmp_path / "run")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (("12", "3", "12"), "lists for problem '10' the right answer '12' twice"),
        (("12", "3×4"), "'3×4', which the tokenizer reads as '34'"),
        (("12", "9"), None),
    ],
)
def test_a_list_of_right_answers_must_allow_a_sum(copy_task, answers, message):
    class Listed(copy_task):
        name = "listed"

        def solutions(self, problem):
            return answers

        def verify(self, problem, completion):
            return Verdict(Outcome.RIGHT)

    task = Listed()
    _, tokenizer = load_model("countdown-tiny")
    problems = task.problems("validation", 2)
    if message is None:
        check_answers(tokenizer, task, problems)
        return
    with pytest.raises(UsageError, match=message):
        check_answers(tokenizer, task, problems)


def test_a_listed_answer_that_the_verifier_refuses_is_refused(copy_task):
    class Contrary(copy_task):
        name = "contrary"

        def solutions(self, problem):
            return ("1", "2")

    _, tokenizer = load_model("countdown-tiny")
    task = Contrary()
    with pytest.raises(UsageError, match="'1', which its own verifier does not call right"):
        check_answers(tokenizer, task, task.problems("validation", 1))


def test_two_problems_of_one_id_and_an_empty_prompt_are_refused(copy_task, policy, tokenizer):
    class Twice(copy_task):
        name = "twice"

        def generate(self, split):
            yield from [Problem("a", "1=", "1"), Problem("b", "2=", "2"), Problem("a", "3=", "3")]

    assert len(Twice().problems("train", 2)) == 2
    with pytest.raises(UsageError, match="'train' of task 'twice' has two problems 'a'"):
        Twice().problems("train", 3)
    with pytest.raises(UsageError, match="the prompt '' has no token"):
        check_fit(policy, tokenizer, ["1=", ""], 4)


@pytest.mark.parametrize("name", ["trainer.pt", "recipe.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_trainer_state_is_one_line(tmp_path, damage, name):
    path = tmp_path / "run"
    run(RECIPE, path)
    state = (path / "state.json").read_text()
    (path / "state.json").write_text(state.replace('"finished"', '"interrupted"'))
    file = Run(path).model_dir / name
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    else:
        file.unlink()
    writer = RunWriter.resume(path, {})
    with pytest.raises(UsageError, match=rf"cannot resume: .*{name} is missing or damaged"):
        train(RECIPE, writer, lambda row: None)
    writer.close()


def test_a_checkpoint_that_cannot_be_saved_says_how_to_go_on(tmp_path, monkeypatch):
    def full(*_):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("gradmass.training.learner.save_model", full)
    with pytest.raises(UsageError, match=r"cannot save the checkpoint .* go on with --resume"):
        run(RECIPE, tmp_path / "run")


def test_the_report_counts_the_unscorable_rollouts_of_a_batch_once():
    rows = [{"rollouts": 0}]
    rows += [{"rollouts": 32, "rollout/num_unscorable": 8}] * 4
    rows += [{"rollouts": 64, "rollout/num_unscorable": 3}] * 2
    run_of_six_updates = SimpleNamespace(metrics=rows)
    summary = SimpleNamespace(arm=SimpleNamespace(runs=[run_of_six_updates] * 2))
    assert Summary.num_unscorable.fget(summary) == 22


def test_a_bf16_checkpoint_is_trained_in_float32(tmp_path):
    model, tokenizer = load_model("countdown-tiny")
    save_model(model.to(torch.bfloat16), tokenizer, tmp_path / "bf16")
    recipe = replace(
        RECIPE,
        model=ModelConfig(path=str(tmp_path / "bf16")),
        optim=OptimConfig(lr=1e-6),
        train=replace(SMALL, steps=1, group_size=16),
    )
    done = run(recipe, tmp_path / "run")
    before = AutoModelForCausalLM.from_pretrained(tmp_path / "bf16", dtype=torch.float32)
    after = AutoModelForCausalLM.from_pretrained(done.model_dir)
    assert {p.dtype for p in after.parameters()} == {torch.float32}
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    moved = sum(int((a != b).sum()) for a, b in pairs)
    assert moved > 0.9 * sum(p.numel() for p in after.parameters())


def test_the_time_of_a_batch_counts_once_and_the_lag_grows_with_its_updates(tmp_path):
    recipe = replace(RECIPE, train=replace(SMALL, updates_per_batch=2))
    rows = run(recipe, tmp_path / "run").metrics[1:]
    for row in rows:
        drawing = ["time/rollout_s", "time/verify_s", "time/weigh_s"]
        is_first = row["step"] % 2 == 1
        assert all((key in row) == is_first for key in drawing)
        total = row["time/update_s"] + sum(row.get(key, 0.0) for key in drawing)
        assert row["time/step_s"] == pytest.approx(total)
        assert row["time/rollouts_per_s"] == pytest.approx(16 / total)
        assert row["policy/lag"] == (0 if is_first else 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptimConfig(type="adam"), "optim.type must be one of adamw, sgd, got 'adam'"),
        (
            lambda: LossConfig(aggregation="sum"),
            "loss.aggregation must be one of constant, token-mean, seq-mean-token-mean, "
            "seq-mean-token-sum, got 'sum'",
        ),
    ],
)
def test_choices_are_checked_from_python_too(make, message):
    with pytest.raises(UsageError) as caught:
        make()
    assert str(caught.value) == message
