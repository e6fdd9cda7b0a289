"""What the trainer does with verdicts that say nothing of the policy, or are none."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from gradmass.config import EvalConfig, Recipe, TrainConfig
from gradmass.record import Run, RunWriter
from gradmass.rewards import Outcome, Verdict
from gradmass.tables import to_tables
from gradmass.tasks import Problem, Task
from gradmass.training.draw import check_errors
from gradmass.training.train import train
from gradmass.types import UsageError
from gradmass.weights.grpo import Grpo


@dataclass(frozen=True, kw_only=True)
class Outage(Task):
    """Every answer is right or wrong by its first character, until the verifier goes down."""

    name: ClassVar[str] = "outage"
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    down: str = ""
    threads: ClassVar[set[str]] = set()

    def generate(self, split: str) -> Iterator[Problem]:
        for i in range(10, 60):
            if (i % 5 == 0) == (split == "test"):
                yield Problem(f"{i}", f"{i}=", i)

    def verify(self, problem: Problem, completion: str) -> Any:
        if problem.data % 5 == 0 and self.down != "bool":
            return Verdict(Outcome.WRONG)  # held out
        self.threads.add(threading.current_thread().name)
        if self.down == "all" or (self.down == "some" and problem.data % 2):
            return Verdict(Outcome.ERROR, "no worker answers")
        if self.down == "bool":
            return True
        return Verdict(Outcome.RIGHT if completion.startswith("(") else Outcome.WRONG)


RECIPE = Recipe(
    task=Outage(),
    weight=Grpo(),
    train=TrainConfig(steps=2, num_problems=4, prompts_per_step=4, group_size=4, threads=1),
    eval=EvalConfig(every=0, num_problems=2, num_samples=2),
)


def run(tmp_path, down):
    recipe = replace(RECIPE, task=Outage(down=down))
    config = {"label": "x", "recipe": to_tables(RECIPE)}
    writer = RunWriter.create(tmp_path / "run", config, {})
    try:
        train(recipe, writer, lambda row: None)
    finally:
        writer.close()
    return Run(tmp_path / "run")


def test_an_outage_stops_the_run_and_leaves_its_checkpoint(tmp_path):
    with pytest.raises(
        UsageError, match=r"failed on 16 of 16 rollouts after step 0 \(no worker .* intact"
    ):
        run(tmp_path, "all")
    assert Run(tmp_path / "run").model_dir.is_dir()


def verdicts(num_errors, num):
    failed = [Verdict(Outcome.ERROR, "timeout_infra")] * num_errors
    return [Verdict(Outcome.RIGHT)] * (num - num_errors) + failed


@pytest.mark.parametrize(
    ("num_errors", "num", "max_rate", "is_stopped"),
    [
        (8, 16, 0.5, False),
        (9, 16, 0.5, True),
        (0, 16, 0.0, False),
        (1, 16, 0.0, True),
        (15, 16, 1.0, False),
        (16, 16, 1.0, True),  # nothing is left to learn from
        (1172, 1280, 0.5, True),  # NeMo-RL issue 431: all of them entered as zeros
    ],
)
def test_a_run_stops_when_too_many_verdicts_are_errors(num_errors, num, max_rate, is_stopped):
    if not is_stopped:
        check_errors(verdicts(num_errors, num), 3, max_rate)
        return
    with pytest.raises(UsageError, match=rf"failed on {num_errors} of {num} .* \(timeout_infra\)"):
        check_errors(verdicts(num_errors, num), 3, max_rate)


def test_the_errors_a_run_bears_are_a_field_of_the_recipe(tmp_path):
    recipe = replace(RECIPE, task=Outage(down="some"))
    strict = replace(recipe, train=replace(recipe.train, max_error_rate=0.1))
    for name, wanted in (("strict", strict), ("lax", recipe)):
        writer = RunWriter.create(tmp_path / name, {"label": "x", "recipe": {}}, {})
        if wanted is strict:
            with pytest.raises(UsageError, match=r"train.max_error_rate = 0.1 allows"):
                train(wanted, writer, lambda row: None)
        else:
            assert train(wanted, writer, lambda row: None)
        writer.close()


def test_unscorable_rollouts_have_weight_zero_and_stay_out_of_the_solve_rate(tmp_path):
    done = run(tmp_path, "some")
    rows = list(done.rollouts())
    for step in (1, 2):
        batch = [row for row in rows if row["step"] == step]
        scored = [row for row in batch if row["verdict"] != "error"]
        assert 0 < len(scored) < 16
        assert all(row["weight"] == 0 for row in batch if row["verdict"] == "error")
        rate = sum(row["verdict"] == "right" for row in scored) / len(scored)
        assert done.metrics[step]["rollout/solve_rate"] == pytest.approx(rate)
        assert done.metrics[step]["rollout/num_unscorable"] == 16 - len(scored)


def test_a_verifier_that_returns_no_verdict_is_refused(tmp_path):
    with pytest.raises(UsageError, match="verify of task 'outage' must return a Verdict, got True"):
        run(tmp_path, "bool")


@pytest.mark.parametrize("lag", [0, 1])
def test_with_a_lag_verdicts_are_reached_in_the_background(tmp_path, monkeypatch, lag):
    monkeypatch.setattr(Outage, "threads", set())
    recipe = replace(RECIPE, train=replace(RECIPE.train, policy_lag=lag))
    writer = RunWriter.create(tmp_path / "run", {"label": "x", "recipe": to_tables(recipe)}, {})
    train(recipe, writer, lambda row: None)
    writer.close()
    assert Outage.threads == {"judging_0" if lag else threading.main_thread().name}
    first = [row["policy_step"] for row in Run(tmp_path / "run").rollouts()]
    assert first == [0] * 16 + [1 - lag] * 16
