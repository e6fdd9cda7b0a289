"""Mistakes that users of other trainers met, each with the public report of it."""

import math

import pytest
import torch

from gradmass.config import LossConfig, Recipe
from gradmass.tables import load_recipe
from gradmass.training.aggregation import loss_denominators
from gradmass.training.loss import policy_loss
from gradmass.training.rollout import Rollouts
from gradmass.training.source import BatchSource
from gradmass.training.terms import _terms
from gradmass.types import UsageError


def test_a_batch_larger_than_the_problems_is_refused_and_never_empty():
    # https://github.com/huggingface/open-r1/issues/249
    with pytest.raises(UsageError, match=r"train.num_problems = 3 is fewer than a batch needs"):
        load_recipe(Recipe, None, ["--train.num_problems=3", "--train.prompts_per_step=4"])


def test_the_last_problems_are_trained_on_when_batches_do_not_divide_them(shipped):
    # https://github.com/unslothai/unsloth/pull/3838: the ninth of nine problems was dropped.
    flags = ["--train.num_problems=9", "--train.prompts_per_step=4", "--train.group_size=2"]
    recipe = load_recipe(Recipe, None, [*flags, "--train.max_new_tokens=2", "--train.steps=9"])
    problems = recipe.task.problems("train", 9)
    with BatchSource(recipe, *shipped, problems) as source:
        asked = [problem.id for step in range(9) for problem in source.draw(step).problems]
    assert {asked.count(problem.id) for problem in problems} == {4}


@pytest.mark.parametrize("num_parts", [1, 2])
def test_the_token_mean_is_the_same_for_any_number_of_passes(num_parts):
    # https://github.com/verl-project/verl/issues/3741: masked values 100 and -50 must not leak.
    logprobs_NT = torch.zeros(2, 2, requires_grad=True)
    mask_NT = torch.tensor([[True, False], [True, False]])
    behaviour_NT = torch.tensor([[0.0, -100.0], [0.0, 50.0]])
    nothing_NT = torch.zeros(2, 2)
    rollouts = Rollouts(
        mask_NT.long(), mask_NT, mask_NT.long(), mask_NT, nothing_NT, nothing_NT, mask_NT[:, 0]
    )
    denominator_N = loss_denominators(LossConfig(aggregation="token-mean"), rollouts, 2)
    total = 0.0
    for rows in torch.arange(2).chunk(num_parts):
        loss = policy_loss(
            logprobs_NT[rows],
            behaviour_NT[rows],
            -torch.ones(len(rows)),
            mask_NT[rows],
            denominator_N=denominator_N[rows],
            clip_low=0.2,
            clip_high=0.2,
        )
        loss.value.backward()
        total += loss.value.item()
    assert total == 1.0
    assert logprobs_NT.grad.tolist() == [[0.5, 0.0], [0.5, 0.0]]


@pytest.mark.parametrize("value", ["0", "0.6"])
def test_rollouts_have_temperature_1_and_no_field_says_otherwise(value):
    # https://github.com/huggingface/trl/pull/3029, https://github.com/THUDM/slime/pull/2197: a
    # temperature on one side alone biases the gradient, and 0 divides by zero.
    with pytest.raises(UsageError, match=r"unknown key 'train.temperature'"):
        load_recipe(Recipe, "demo", [f"--train.temperature={value}"])


def test_an_almost_certain_token_has_a_finite_logprob_and_entropy():
    # https://github.com/huggingface/trl/issues/6166: NaN at an entropy of 4e-4.
    logits_1V = torch.tensor([[60.0, 0.0, -math.inf]], requires_grad=True)
    logprob_1, entropy_1 = _terms(logits_1V, torch.tensor([0]), None, True)
    assert (logprob_1.item(), entropy_1.item()) == (pytest.approx(0.0), pytest.approx(0.0))
    logprob_1.sum().backward()
    assert not logits_1V.grad[0, :2].isnan().any()
