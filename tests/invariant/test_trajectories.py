"""Runs that must be equal to the last bit: to themselves, and to themselves interrupted."""

import gzip
import json

import pytest

from gradmass.config import Recipe
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.training.train import train

TINY = [
    "--train.steps=7",
    "--train.num_problems=6",
    "--train.prompts_per_step=4",
    "--train.group_size=4",
    "--train.checkpoint_every=2",
    "--eval.every=3",
    "--eval.num_problems=3",
    "--eval.num_samples=4",
    "--optim.lr=1e-3",
]


class Died(Exception):
    """The process was killed."""


def run_to_end(recipe, path, *, die_at=()):
    """Train; at each step named, die as by kill -9, and take the run up again."""
    writer = RunWriter.create(path, {"label": "x", "recipe": to_tables(recipe)}, {})
    for death in (*die_at, None):

        def on_row(row, death=death):
            if row["step"] == death:
                raise Died

        try:
            assert train(recipe, writer, on_row)
        except Died:
            writer.close()
            writer = RunWriter.resume(path, {})
    writer.close()
    return Run(path)


def without_times(rows):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def rollout_rows(run):
    with gzip.open(run.path / "rollouts.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "flags",
    [
        [],
        *(
            pytest.param(flags, marks=pytest.mark.slow)
            for flags in (
                ["--weight=fade", "--weight.entropy_form=relative", "--loss.kl_coef=0.1"],
                ["--weight=grpo", "--train.policy_lag=2"],
                ["--weight=reinforce", "--train.updates_per_batch=2", "--train.policy_lag=3"],
                ["--weight=fade", "--weight.alpha_schedule=log-decay", "--optim.type=sgd"],
            )
        ),
    ],
    ids=["fade", "relative-kl", "lag", "lag-and-reuse", "log-decay-sgd"],
)
def test_same_recipe_twice_and_interrupted_twice_give_equal_records(tmp_path, flags):
    recipe = load_recipe(Recipe, None, [*TINY, *flags])
    once = run_to_end(recipe, tmp_path / "once")
    again = run_to_end(recipe, tmp_path / "again")
    broken = run_to_end(recipe, tmp_path / "broken", die_at=(3, 6))
    expected = without_times(once.metrics)
    assert [row["step"] for row in expected] == list(range(8))
    for other in (again, broken):
        assert without_times(other.metrics) == expected
        assert other.evaluations == once.evaluations
        assert rollout_rows(other) == rollout_rows(once)
        assert other.state["weight"] == once.state["weight"]
        assert (other.model_dir / "model.safetensors").read_bytes() == (
            once.model_dir / "model.safetensors"
        ).read_bytes()
    assert once.state["status"] == "finished"


@pytest.mark.slow
def test_another_seed_gives_another_run(tmp_path):
    rows = [
        without_times(
            run_to_end(
                load_recipe(Recipe, None, [*TINY, f"--seed={seed}"]), tmp_path / str(seed)
            ).metrics
        )
        for seed in (0, 1)
    ]
    assert rows[0][1]["loss/value"] != rows[1][1]["loss/value"]


def test_weights_in_the_record_follow_from_its_verdicts(tmp_path):
    recipe = load_recipe(Recipe, None, [*TINY, "--weight=power", "--weight.alpha=2"])
    run = run_to_end(recipe, tmp_path / "run")
    groups = {}
    for row in rollout_rows(run):
        groups.setdefault((row["step"], row["group"]), []).append(row)
    assert len(groups) == 7 * 4
    masses = {step: [0.0, 0.0] for step in range(1, 8)}
    for (step, _), rows in groups.items():
        rewards = [float(row["verdict"] == "right") for row in rows]
        mean = sum(rewards) / len(rewards)
        for row, reward in zip(rows, rewards, strict=True):
            assert row["weight"] == pytest.approx((1 - mean) * (reward - mean), abs=1e-12)
            masses[step][0 if reward else 1] += (
                (1 - mean) * (reward - mean) / 16 * (1 if reward else -1)
            )
    for row in run.metrics[1:]:
        assert row["mass/positive"] == pytest.approx(masses[row["step"]][0], abs=1e-12)
        assert row["mass/negative"] == pytest.approx(masses[row["step"]][1], abs=1e-12)


def test_lag_counts_updates_behind(tmp_path):
    recipe = load_recipe(Recipe, None, [*TINY, "--train.policy_lag=3"])
    run = run_to_end(recipe, tmp_path / "run")
    assert [row["policy/lag"] for row in run.metrics[1:]] == [0, 1, 2, 3, 3, 3, 3]
    assert {
        row["step"] - 1 - row["policy_step"] for row in rollout_rows(run) if row["step"] > 3
    } == {3}
