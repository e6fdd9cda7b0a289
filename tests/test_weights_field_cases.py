"""What users of other libraries ran into, each with the issue where it was reported."""

import warnings

import numpy as np
import pytest
import torch

from gradmass.weights import WEIGHTS

GROUPED = [name for name in WEIGHTS.names() if WEIGHTS[name].needs_group]
BY_GROUP_ALONE = ["grpo", "grpo_std", "rloo", "power", "grpo_loo_std", "maxrl", "f_grpo"]


def of(name, rewards, **fields):
    weights_PG, _ = WEIGHTS[name](**fields).update(rewards, WEIGHTS[name](**fields).init())
    return weights_PG


@pytest.mark.parametrize("name", BY_GROUP_ALONE)
@pytest.mark.parametrize("xp", [np, torch], ids=["numpy", "torch"])
def test_a_single_rollout_gets_zero_on_every_path_and_a_warning(name, xp):
    # verl issue 7793: two estimators of one library disagreed on it, and nothing was said.
    rewards = xp.asarray([0.7])
    weight = WEIGHTS[name]()
    with pytest.warns(UserWarning, match="each of the 1 groups has one rollout"):
        flat, _ = weight.weigh(rewards, ["a"])
    assert flat.tolist() == [0.0]
    assert of(name, rewards[None, :]).tolist() == [[0.0]]


@pytest.mark.parametrize("name", BY_GROUP_ALONE)
def test_groups_of_one_are_finite_where_a_sample_deviation_is_not(name):
    # ms-swift issue 3980: torch.std of one element is NaN.
    assert of(name, torch.tensor([[1.0], [0.0]])).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("name", BY_GROUP_ALONE)
@pytest.mark.parametrize(("reward", "size"), [(0.7, 7), (0.2, 8)])
def test_equal_rewards_that_no_binary_fraction_holds_are_ties(name, reward, size):
    # verl pull request 4598: in float32 their mean is not their value.
    for rewards in (np.full((1, size), reward, np.float32), torch.full((1, size), reward)):
        assert of(name, rewards).tolist() == [[0.0] * size]


def test_statistics_survive_bf16_fp16_and_integers():
    # OpenRLHF pull request 1334, slime pull request 2121.
    rewards = torch.tensor([[1, 1, 1, 1.0078125]], dtype=torch.bfloat16)
    assert of("grpo_std", rewards, eps=0.0).tolist() == [[-0.5, -0.5, -0.5, 1.5]]
    constant = torch.full((1, 4), 3.0, dtype=torch.float16)
    assert of("grpo_std", constant, eps=1e-9).tolist() == [[0.0] * 4]
    assert of("grpo", torch.tensor([[1, 0, 0, 0]])).tolist() == [[0.75, -0.25, -0.25, -0.25]]


def test_the_degrees_of_freedom_are_explicit():
    # pytorch issue 50010: NumPy's default is 0, torch's is 1.
    rewards = np.array([[1.0, 0.0, 0.0, 0.0]])
    assert of("grpo_std", rewards, ddof=1, eps=0.0).tolist() == [[1.5, -0.5, -0.5, -0.5]]
    root = 3.0**0.5
    expected = [[root, -root / 3, -root / 3, -root / 3]]
    np.testing.assert_allclose(of("grpo_std", rewards, ddof=0, eps=0.0), expected, rtol=1e-14)


def test_a_group_that_lost_a_rollout_does_not_shift_the_others():
    # AReaL issue 1419: slicing every G rows mixes prompts.
    rewards = np.array([1.0, 0, 0, 1, 1, 1, 0])
    weights, _ = WEIGHTS["grpo"]().weigh(rewards, ["p", "p", "p", "q", "q", "q", "q"])
    expected = [2 / 3, -1 / 3, -1 / 3, 0.25, 0.25, 0.25, -0.75]
    np.testing.assert_allclose(weights, expected, rtol=1e-14)


@pytest.mark.parametrize("name", BY_GROUP_ALONE)
def test_an_id_for_every_rollout_is_noticed(name):
    # Search-R1 issue 88: every group became a singleton and training went on.
    rewards, ids = np.array([1.0, 0.0, 1.0, 0.0]), ["a0", "a1", "a2", "a3"]
    with pytest.warns(UserWarning, match="each of the 4 groups has one rollout"):
        weights, _ = WEIGHTS[name]().weigh(rewards, ids)
    assert weights.tolist() == [0.0] * 4


def test_rollouts_that_share_an_id_or_need_no_group_give_no_warning():
    rewards = np.array([1.0, 0.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WEIGHTS["grpo"]().weigh(rewards, ["a", "a", "b"])
        WEIGHTS["reinforce"]().weigh(rewards, ["a", "b", "c"])


def test_near_ties_can_be_kept_quiet():
    # tinker-cookbook issue 579: dividing by the deviation makes 1e-4 as loud as right and wrong.
    rewards = np.array([[0.5, 0.5, 0.5, 0.5001]])
    centred = [[-2.5e-5, -2.5e-5, -2.5e-5, 7.5e-5]]
    np.testing.assert_allclose(of("grpo", rewards), centred, rtol=1e-9)
    loud = of("grpo_std", rewards, eps=1e-6)
    quiet = of("grpo_std", rewards, eps=1e-6, std_floor=0.1)
    assert abs(loud).max() > 1.0
    assert abs(quiet).max() < 1e-2


def test_only_the_best_rollout_is_credited_by_best_minus_second():
    # EasyR1 issue 585: the other rows were left as they were.
    np.testing.assert_allclose(of("grpo_passk", np.array([[1.0, 0.5, 0.2]])), [[0.5, 0.0, 0.0]])


def test_pass_at_k_credit_has_the_values_worked_out_by_hand():
    # rllm pull request 743: k / n times the mean over k-subsets with i of the best reward; the
    # weights here are those of a mean over rollouts, n times that.
    rewards = np.array([[1.0, 1.0, 0.0, 0.0]])
    credit = of("pkpo_s", rewards, k=2) / 4
    np.testing.assert_allclose(credit, [[0.5, 0.5, 1 / 3, 1 / 3]], rtol=1e-14)
    centred = credit - credit.mean()
    np.testing.assert_allclose(centred, [[1 / 12, 1 / 12, -1 / 12, -1 / 12]], rtol=1e-12)
    first = of("pkpo_s", rewards, k=1)
    np.testing.assert_allclose(first - first.mean(), of("grpo", rewards), rtol=1e-14)


def test_the_pass_at_k_objectives_and_ragged_groups_are_a_switch():
    # ms-swift issue 5638 (pass@k as a switch), verl issue 4585 (any number of rollouts a prompt).
    rewards, ids = np.array([1.0, 0, 0, 0, 1, 1, 0]), ["a", "b", "a", "a", "b", "b", "a"]
    for name, fields in (
        ("passk_tang", {}),
        ("passk_chen", {"k": 2}),
        ("pkpo_sloo_minus_one", {"k": 2}),
        ("maxrl", {}),
    ):
        weight = WEIGHTS[name](**fields)
        flat, _ = weight.weigh(rewards, ids)
        for group in ("a", "b"):
            rows = [i for i, key in enumerate(ids) if key == group]
            alone, _ = weight.update(rewards[None, rows], weight.init())
            np.testing.assert_allclose(flat[rows], alone[0], rtol=1e-12)


def test_there_are_weights_that_compare():
    assert set(BY_GROUP_ALONE) <= set(GROUPED)
