"""Rollouts cut at the limit: counted, masked in the loss, or excluded from the baseline too."""

import numpy as np
import pytest
import torch

from gradmass.config import LossConfig, Recipe, TrainConfig
from gradmass.record import Run, RunWriter
from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem
from gradmass.training.draw import weigh_batch
from gradmass.training.learner import Learner
from gradmass.training.probes.others import weigh_again
from gradmass.training.rollout import Rollouts
from gradmass.training.source import Sampled
from gradmass.weights import WEIGHTS

LENGTHS, IS_ENDED = [2, 3, 4, 4], [True, True, False, False]


def weighed(tmp_path, truncated, weight="grpo"):
    """One group: right, wrong, cut, cut."""
    mask = torch.tensor([[t < length for t in range(4)] for length in LENGTHS])
    numbers = torch.full(mask.shape, -0.5) * mask
    rollouts = Rollouts(numbers, mask, numbers, mask, numbers, -numbers, torch.tensor(IS_ENDED))
    outcomes = [Outcome.RIGHT, Outcome.WRONG, Outcome.UNPARSED, Outcome.UNPARSED]
    sampled = Sampled(
        step=0,
        policy_step=0,
        problems=[Problem("a", "a=", 0)],
        first_group=0,
        rollouts=rollouts,
        texts=["x"] * 4,
        verdicts=lambda: ([Verdict(outcome) for outcome in outcomes], 0.0),
        sampling_s=0.0,
        waited_s=0.0,
    )
    recipe = Recipe(
        weight=WEIGHTS[weight](),
        train=TrainConfig(prompts_per_step=1, num_problems=1, group_size=4, max_new_tokens=4),
        loss=LossConfig(truncated=truncated),
    )
    writer = RunWriter.create(tmp_path / "run", {"label": "x", "recipe": {}}, {})
    learner = Learner(None, None, None, recipe.weight.init())  # type: ignore[arg-type]
    batch = weigh_batch(recipe, sampled, learner, writer)
    writer.close()
    return batch


@pytest.mark.parametrize(
    ("truncated", "expected"),
    [
        ("count", [0.75, -0.25, -0.25, -0.25]),
        ("mask", [0.75, -0.25, 0.0, 0.0]),
        ("exclude", [0.5, -0.5, 0.0, 0.0]),
    ],
)
def test_cut_rollouts_set_the_baseline_or_do_not(tmp_path, truncated, expected):
    # TRL pull request 3248, verl issue 4531: both are wanted, so it is a field of the recipe.
    batch = weighed(tmp_path, truncated)
    assert batch.weights_PG.tolist() == [expected]
    assert [row["weight"] for row in Run(tmp_path / "run").rollouts()] == expected
    assert batch.is_in_loss_PG.tolist() == [[True] * 4 if truncated == "count" else IS_ENDED]
    assert batch.mask_PG.tolist() == [IS_ENDED if truncated == "exclude" else [True] * 4]
    assert batch.row["rollout/truncated"] == 0.5
    assert batch.row["rollout/num_unscorable"] == 0  # the verifier did its work
    assert batch.row["rollout/solve_rate"] == 0.25  # what was measured, whatever is learnt from it
    again_PG, _ = weigh_again(WEIGHTS["grpo"](), batch)
    assert again_PG.tolist() == [expected]


@pytest.mark.parametrize(("truncated", "rate"), [("mask", 0.25), ("exclude", 0.5)])
def test_a_weight_that_follows_the_solve_rate_sees_what_is_scored(tmp_path, truncated, rate):
    batch = weighed(tmp_path, truncated, "fade")
    assert batch.signals["num_success"] / batch.signals["num_scored"] == rate


def test_a_batch_of_cut_rollouts_alone_has_no_weight_and_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.IS_ENDED", [False] * 4)
    batch = weighed(tmp_path, "exclude")
    assert np.abs(batch.weights_PG).max() == 0
    assert not batch.mask_PG.any()
    assert batch.row["mass/positive"] == 0.0
