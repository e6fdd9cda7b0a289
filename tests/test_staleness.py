"""Sampling and judging in the background: what a batch is made of, and that none is lost."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from gradmass.config import EntropyConfig, EvalConfig, LossConfig, Recipe, TrainConfig
from gradmass.record import Run, RunWriter
from gradmass.rewards import Outcome, Verdict
from gradmass.tables import to_tables
from gradmass.tasks import Problem, Task
from gradmass.training import train as loop
from gradmass.training.source import BatchSource
from gradmass.training.train import train
from gradmass.types import UsageError
from gradmass.weights.grpo import Grpo

G, P = 2, 3


@dataclass(frozen=True, kw_only=True)
class Slow(Task):
    """Right answers begin with a digit; each batch takes a while to judge."""

    name: ClassVar[str] = "slow"
    splits: ClassVar[tuple[str, ...]] = ("train",)
    seconds: float = 0.0
    down_at: int = -1
    calls: ClassVar[list[str]] = []

    def generate(self, split: str) -> Iterator[Problem]:
        for i in range(10, 60):
            yield Problem(f"{i}", f"{i}=", i)

    def verify_batch(self, problems: Any, completions: Any) -> list[Verdict]:
        self.calls.append(threading.current_thread().name)
        if len(self.calls) == self.down_at:
            raise BrokenPipeError("the judge is gone")
        time.sleep(self.seconds)
        return [Verdict(Outcome.RIGHT if c[:1].isdigit() else Outcome.WRONG) for c in completions]

    def verify(self, problem: Problem, completion: str) -> Verdict:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    found: list[str] = []
    monkeypatch.setattr(Slow, "calls", found)
    return found


def recipe(*, task=None, loss=None, entropy=None, **fields):
    train_fields = {
        "steps": 7,
        "num_problems": 5,
        "prompts_per_step": P,
        "group_size": G,
        "max_new_tokens": 8,
        "checkpoint_every": 2,
        "threads": 1,
    }
    return Recipe(
        task=task or Slow(),
        weight=Grpo(),
        train=TrainConfig(**(train_fields | fields)),
        loss=loss or LossConfig(),
        entropy=entropy or EntropyConfig(),
        eval=EvalConfig(every=0, num_problems=2, num_samples=0),
    )


class Died(Exception):
    """The process was killed."""


def run_to_end(tmp_path, wanted, *, die_at=()):
    writer = RunWriter.create(tmp_path, {"label": "x", "recipe": to_tables(wanted)}, {})
    for death in (*die_at, None):

        def on_row(row, death=death):
            if row["step"] == death:
                raise Died

        try:
            assert train(wanted, writer, on_row)
        except Died:
            writer.close()
            writer = RunWriter.resume(tmp_path, {})
        finally:
            writer.close() if death is None else None
    return Run(tmp_path)


def numbers(run):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in run.metrics]


def ids(run):
    """What was trained on, in order: the update, the group of the run, its problem."""
    return [(row["step"], row["group"], row["problem_id"]) for row in run.rollouts()]


def test_lag_zero_in_the_background_is_the_synchronous_loop_to_the_last_bit(tmp_path, monkeypatch):
    wanted = recipe(updates_per_batch=2)
    expected = run_to_end(tmp_path / "a", wanted)

    class InBackground(BatchSource):
        """Samples and judges in threads, but never ahead."""

        def __init__(self, recipe, *others):
            ahead = replace(recipe, train=replace(recipe.train, max_lag=1))
            super().__init__(ahead, *others)
            self._lag = 0

    monkeypatch.setattr(loop, "BatchSource", InBackground)
    Slow.calls.clear()
    found = run_to_end(tmp_path / "b", wanted)
    assert set(Slow.calls) == {"judging_0"}
    assert numbers(found) == numbers(expected)
    assert list(found.rollouts()) == list(expected.rollouts())
    for file in ("model.safetensors", "trainer.pt"):
        assert (found.model_dir / file).read_bytes() == (expected.model_dir / file).read_bytes()


@pytest.mark.parametrize("updates", [1, 2])
def test_a_batch_is_never_older_than_the_largest_lag(tmp_path, updates):
    wanted = recipe(task=Slow(seconds=0.05), max_lag=3, updates_per_batch=updates)
    run = run_to_end(tmp_path / "run", wanted)
    lags = {}
    for row in run.rollouts():
        lags.setdefault(row["step"], set()).add(row["step"] - 1 - row["policy_step"])
    assert all(len(found) == 1 for found in lags.values())  # a batch is of one policy
    assert max(max(found) for found in lags.values()) <= 3
    assert max(max(found) for found in lags.values()) > 0  # the verifier was slow
    for row in run.metrics[1:]:
        first = (row["step"] - 1) // updates * updates
        (lag,) = lags[first + 1]
        assert row["policy/lag"] == lag + row["step"] - 1 - first


@pytest.mark.parametrize("lag", [{"max_lag": 2}, {"policy_lag": 2}])
def test_no_rollout_is_lost_or_trained_on_twice_when_a_run_dies(tmp_path, lag):
    expected = run_to_end(tmp_path / "sync", recipe())
    task = Slow(seconds=0.02)
    broken = run_to_end(tmp_path / "broken", recipe(task=task, **lag), die_at=(3, 4, 6))
    assert ids(broken) == ids(expected)
    assert len(ids(broken)) == 7 * P * G
    assert [row["step"] for row in broken.metrics] == list(range(8))


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_same_problems_and_draws(tmp_path):
    # unsloth-zoo pull request 832, TRL issue 3675: the prompts went on, the random numbers did not.
    once = run_to_end(tmp_path / "once", recipe(steps=6))
    broken = run_to_end(tmp_path / "broken", recipe(steps=6), die_at=(3,))
    texts = [[row["completion"] for row in run.rollouts()] for run in (once, broken)]
    assert ids(broken) == ids(once)
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_fixed_lag_is_reproducible_however_slow_the_verifier_is(tmp_path):
    wanted = recipe(policy_lag=3)
    fast = run_to_end(tmp_path / "fast", wanted)
    slow = run_to_end(tmp_path / "slow", replace(wanted, task=Slow(seconds=0.05)), die_at=(2, 5))
    assert numbers(fast) == numbers(slow)
    assert list(fast.rollouts()) == list(slow.rollouts())


@pytest.mark.slow
def test_effective_shares_of_the_ratios_fall_with_the_lag(tmp_path):
    shares = {}
    for lag in (0, 3):
        wanted = recipe(policy_lag=lag, prompts_per_step=5, group_size=4)
        wanted = replace(wanted, optim=replace(wanted.optim, lr=2e-3))
        rows = run_to_end(tmp_path / str(lag), wanted).metrics[1:]
        for key in ("policy/effective_rollouts", "policy/effective_tokens"):
            shares[lag, key] = [row[key] for row in rows if key in row and row["step"] > 3]
    for (lag, key), values in shares.items():
        assert values, (lag, key)
        assert all(0 < value <= 1 + 1e-9 for value in values)
        assert (min(values) > 1 - 1e-6) == (lag == 0), (lag, key)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [{}, {"max_lag": 2}, {"policy_lag": 2}])
def test_a_verifier_that_breaks_down_stops_the_run_in_one_line(tmp_path, lag):
    writer = RunWriter.create(tmp_path / "run", {"label": "x", "recipe": {}}, {})
    with pytest.raises(UsageError, match="verifier of task 'slow' broke down: the judge is gone"):
        train(recipe(task=Slow(down_at=4), **lag), writer, lambda row: None)
    writer.fail()
    writer.close()
    run = Run(tmp_path / "run")
    assert (run.state["status"], run.state["step"]) == ("failed", 2)
    resumed = RunWriter.resume(run.path, {})
    assert train(recipe(task=Slow(down_at=4), **lag), resumed, lambda row: None)
    resumed.close()
    assert ids(Run(run.path)) == ids(run_to_end(tmp_path / "sync", recipe()))


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 2])
def test_the_adaptive_bonus_and_truncation_go_on_after_a_checkpoint(tmp_path, lag):
    entropy = EntropyConfig(coef=0.01, is_adaptive=True, target=3.0, step=0.004)
    loss = LossConfig(importance_cap=2.0, truncated="exclude", aggregation="seq-mean-token-mean")
    wanted = recipe(policy_lag=lag, updates_per_batch=2, entropy=entropy, loss=loss)
    once = run_to_end(tmp_path / "once", wanted)
    broken = run_to_end(tmp_path / "broken", wanted, die_at=(3, 6))
    assert numbers(broken) == numbers(once)
    coefs = [row["entropy/bonus_coef"] for row in once.metrics[1:] if "entropy/bonus_coef" in row]
    assert coefs[:3] == pytest.approx([0.0, 0.014, 0.018])


def test_nothing_is_learnt_from_batches_of_cut_rollouts_alone_that_are_excluded(tmp_path):
    loss = LossConfig(truncated="exclude", kl_coef=0.1)
    wanted = recipe(steps=2, max_new_tokens=1, loss=loss, entropy=EntropyConfig(coef=0.1))
    run = run_to_end(tmp_path / "run", wanted)
    for row in run.metrics[1:]:
        assert (row["rollout/truncated"], row["loss/num_trained"], row["loss/value"]) == (1, 0, 0)
        assert row["optim/grad_norm"] == row["mass/reached_negative"] == 0


def test_two_kinds_of_lag_exclude_each_other():
    with pytest.raises(UsageError, match=r"train.policy_lag = 1 .* train.max_lag = 2"):
        TrainConfig(policy_lag=1, max_lag=2)
