"""What the trainer makes for a weight that asks: visits of problems, and scores of rollouts."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch

from gradmass.config import Recipe
from gradmass.engines.verl_estimators import SUPPLIED
from gradmass.engines.weigher import Weigher
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.training.draw import GIVEN
from gradmass.training.train import train
from gradmass.training.visits import Visits
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

SMALL = (
    *("--train.steps=5", "--train.num_problems=6", "--train.prompts_per_step=4"),
    *("--train.group_size=6", "--train.threads=1", "--train.checkpoint_every=2"),
    *("--eval.num_problems=1", "--eval.num_samples=0", "--eval.every=0"),
    *("--probe.every=0", "--probe.rank_every=0", "--optim.lr=1e-3"),
)


def run_of(folder, *flags):
    recipe = load_recipe(Recipe, None, [*SMALL, *flags])
    writer = RunWriter.create(folder, {"label": "x", "recipe": to_tables(recipe)}, {})
    assert train(recipe, writer, lambda row: None)
    writer.close()
    return Run(folder)


@pytest.fixture(scope="module")
def history_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("history") / "run"
    return run_of(folder, "--weight=history", "--weight.alpha=3")


def groups_of(run):
    """Rollouts by the draw of their problem, in the order of the run."""
    groups = {}
    for row in run.rollouts():
        groups.setdefault(row["group"], []).append(row)
    return [rows for _, rows in sorted(groups.items())]


def numbers(run):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in run.metrics]


def literal_rate(visits):
    """Posterior mean from a problem's visits, oldest first: each counts 3/4 of the next."""
    right = wrong = Fraction(0)
    for successes, failures in visits:
        right = Fraction(3, 4) * right + successes
        wrong = Fraction(3, 4) * wrong + failures
    return (1 + right) / (2 + right + wrong)


def test_rates_are_the_means_of_a_discounted_posterior():
    rng, visits = random.Random(1), Visits()
    history = {name: [] for name in "abcde"}
    for _ in range(30):
        ids = rng.sample("abcde", 3)
        successes = np.array([[rng.random() < 0.4 for _ in range(4)] for _ in ids])
        mask = np.array([[rng.random() < 0.7 for _ in range(4)] for _ in ids])
        mask[0] = rng.random() < 0.5  # all or none
        expected = [float(literal_rate(history[name])) for name in ids]
        assert visits.solve_rates(ids).tolist() == pytest.approx(expected, rel=1e-12)
        visits.see(ids, successes, mask)
        for i, name in enumerate(ids):
            pairs = list(zip(successes[i].tolist(), mask[i].tolist(), strict=True))
            if any(m for _, m in pairs):
                right = sum(s and m for s, m in pairs)
                history[name].append((right, sum(m for _, m in pairs) - right))
        visits = Visits(visits.state)  # through a checkpoint each time
    assert Visits().solve_rates(["new"]).tolist() == [0.5]


def test_a_run_under_history_weighs_by_what_its_record_says_of_earlier_visits(history_run):
    seen, factors = {}, set()
    for rows in groups_of(history_run):
        visits = seen.setdefault(rows[0]["problem_id"], [])
        rate = literal_rate(visits)
        rewards = [int(row["verdict"] == "right") for row in rows]
        for i, row in enumerate(rows):
            others = Fraction(sum(rewards) - rewards[i], len(rows) - 1)
            expected = (1 - rate) ** 2 * (rewards[i] - others)
            assert row["weight"] == pytest.approx(float(expected), abs=1e-12)
        visits.append((sum(rewards), len(rows) - sum(rewards)))
        factors.add(rate)
    assert len(seen) == 6
    assert len(factors) > 6, "visits made a difference"


def test_a_run_under_sign_by_noise_measures_the_scores_of_every_batch(tmp_path):
    run = run_of(tmp_path / "run", "--weight=sign_by_noise", "--weight.ema=1")
    rows = run.metrics[1:]
    assert len({row["weight/noise_ratio"] for row in rows}) > 2
    for row in rows:
        assert math.isfinite(row["weight/delta"])
        assert row["weight/delta"] == pytest.approx(min(10, max(0.1, row["weight/noise_ratio"])))


@pytest.mark.parametrize(
    "flags",
    [
        ["--weight=history"],
        ["--weight=sign_by_noise", "--train.policy_lag=1"],
    ],
)
def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path, flags):
    whole = run_of(tmp_path / "whole", *flags)
    recipe = load_recipe(Recipe, None, [*SMALL, *flags])
    writer = RunWriter.create(tmp_path / "broken", {"label": "x", "recipe": to_tables(recipe)}, {})

    class Stop(Exception):
        pass

    def stop(row):
        if row["step"] == 3:
            raise Stop

    with pytest.raises(Stop):
        train(recipe, writer, stop)
    writer.fail()
    writer.close()
    writer = RunWriter.resume(tmp_path / "broken", {})
    assert writer.resumed_from.step == 2
    assert train(recipe, writer, lambda row: None)
    writer.close()
    broken = Run(tmp_path / "broken")
    assert numbers(broken) == numbers(whole)
    assert list(broken.rollouts()) == list(whole.rollouts())


def saved_in(run):
    (file,) = run.path.glob("checkpoints/*/trainer.pt")
    return torch.load(file, weights_only=True)


def test_weights_that_do_not_ask_are_told_of_no_history_and_none_is_kept(tmp_path, history_run):
    assert len(saved_in(history_run)["visits"]) == 6
    run = run_of(tmp_path / "run", "--weight=sign_pure", "--weight.delta=1", "--train.steps=3")
    assert "visits" not in saved_in(run)
    # sign_pure would take a history; from the group alone it is reward minus mean of the others.
    for rows in groups_of(run):
        rewards = [int(row["verdict"] == "right") for row in rows]
        for reward, row in zip(rewards, rows, strict=True):
            assert row["weight"] == pytest.approx(reward - (sum(rewards) - reward) / 5)


def test_every_batch_has_the_signals_that_are_promised(tmp_path, monkeypatch):
    seen = []
    update = type(WEIGHTS["grpo"]()).update

    def see(self, *args, **signals):
        seen.append({key for key in signals if key != "mask"})
        return update(self, *args, **signals)

    monkeypatch.setattr(WEIGHTS["grpo"], "update", see)
    run_of(tmp_path / "run", "--weight=grpo")
    assert seen == [set(GIVEN)] * 5


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--weight=remax",), "weight remax needs the signal 'greedy_rewards_P', which training"),
        (
            ("--weight=grpo", '--probe.weights=["power", "history"]', "--probe.every=9"),
            "probe.weights: history needs the signal 'solve_rate_P', which a run under grpo does",
        ),
        (
            ("--weight=history", '--probe.weights=["sign_by_noise"]', "--probe.every=9"),
            "probe.weights: sign_by_noise needs the signal 'score_squares', which a run under",
        ),
    ],
)
def test_a_signal_that_is_not_measured_is_refused_before_the_run(tmp_path, flags, message):
    steps = []
    recipe = load_recipe(Recipe, None, [*SMALL, *flags])
    writer = RunWriter.create(tmp_path / "run", {"label": "x", "recipe": to_tables(recipe)}, {})
    with pytest.raises(UsageError, match=message):
        train(recipe, writer, steps.append)
    writer.close()
    assert steps == []


def test_a_weight_may_be_looked_at_beside_one_that_needs_the_same(tmp_path):
    flags = ("--weight=history", '--probe.weights=["history:alpha=2"]', "--probe.every=1")
    run = run_of(tmp_path / "run", *flags, "--train.steps=1")
    assert [row["kind"] for row in run.diagnostics].count("signal") == 1


@pytest.mark.parametrize("name", ["history", "sign_by_noise"])
def test_engines_that_do_not_measure_it_refuse(name):
    weight = WEIGHTS[name]()
    with pytest.raises(UsageError, match=rf"weight {name} needs the signal '{weight.needs[0]}', "):
        Weigher([weight], "weight", SUPPLIED)
