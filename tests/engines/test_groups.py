"""Weights for engines that hand over a list of groups."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from gradmass.engines.groups import weigh_groups
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

ROOT = Path(__file__).parents[2]


def grpo_by_hand(group):
    scored = [r for r in group if r is not None]
    mean = sum(scored) / len(scored) if scored else 0
    return [0.0 if r is None else r - mean for r in group]


def test_groups_of_any_size_are_each_weighed_by_themselves():
    groups = [[1, 0], [1], [], [0, 0, 1, 1, 1], [1, None, 0], [None]]
    weights, state = weigh_groups(WEIGHTS["grpo"](), groups)
    assert [list(w) for w in weights] == [pytest.approx(grpo_by_hand(g)) for g in groups]
    assert state == {}
    assert weigh_groups(WEIGHTS["grpo"](), []) == ([], {})


def test_one_group_gives_one_weight_a_rollout():
    ((*weights,), _) = weigh_groups(WEIGHTS["grpo"](), [[1.0, 0.0, 0.0, 0.0]])[0], None
    assert [w.tolist() for w in weights] == [[0.75, -0.25, -0.25, -0.25]]


def test_a_failed_rollout_takes_its_group_along_where_the_group_is_scored_jointly():
    groups = [[1, 0, None], [1, 0, 0]]
    alone, _ = weigh_groups(WEIGHTS["grpo"](), groups)
    joint, _ = weigh_groups(WEIGHTS["grpo"](), groups, unscorable="group")
    assert alone[0].tolist() == [0.5, -0.5, 0]
    assert joint[0].tolist() == [0, 0, 0]
    assert joint[1].tolist() == alone[1].tolist() != [0, 0, 0]


def test_the_state_follows_the_whole_batch_and_is_json():
    fade = WEIGHTS["fade"](ema=0.5)
    groups, state = [[1, 0], [0, 0, 0, 0, 0, 0]], None
    for _ in range(2):
        _, state = weigh_groups(fade, groups, state, entropy_nats=0.5)
    # From 0.5 half the way to 1/8, twice.
    assert state["alpha"]["solve_rate_ema"] == pytest.approx(0.125 + (0.5 - 0.125) / 4)
    assert json.loads(json.dumps(state)) == state


def test_signals_come_in_the_shape_of_the_groups():
    fade = WEIGHTS["fade"](ema=1.0)
    _, state = weigh_groups(fade, [[0.9, 0.2], [0.1]], successes_PG=[[True, False], [False]])
    assert state["alpha"]["solve_rate_ema"] == pytest.approx(1 / 3)
    remax, _ = weigh_groups(WEIGHTS["remax"](), [[1, 0], [1]], greedy_rewards_P=[0.25, 1])
    assert [w.tolist() for w in remax] == [[0.75, -0.25], [0]]


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ({"successes_PG": [[True]]}, "successes_PG has 1 groups, the rewards have 2"),
        ({"successes_PG": [[True], [True]]}, "1 values for group 0 of 2 rollouts"),
        ({"greedy_rewards_P": [1]}, "greedy_rewards_P has 1 values for 2 groups"),
        ({"unscorable": "batch"}, "unscorable must be 'rollout' or 'group', got 'batch'"),
        ({"tempo": 1}, "unknown signal 'tempo'"),
    ],
)
def test_what_does_not_fit_the_groups_is_named(signals, message):
    with pytest.raises(UsageError, match=message):
        weigh_groups(WEIGHTS["grpo"](), [[1, 0], [1]], **signals)


def test_the_weights_are_those_of_the_flat_batch():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 9, 50)
    groups = [(rng.random(n) < 0.4).astype(float) for n in sizes]
    for name in ("fade", "maxrl", "reinforce_plus_plus", "grpo_std"):
        weight = WEIGHTS[name]()
        flat, _ = weight.weigh(np.concatenate(groups), np.repeat(np.arange(50), sizes))
        weights, _ = weigh_groups(weight, groups)
        assert np.concatenate(weights).tolist() == flat.tolist()


@pytest.mark.trl
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_torchrl_s_transform_gives_the_weights_of_the_example():
    file = ROOT / "examples" / "torchrl_groups.py"
    spec = importlib.util.spec_from_file_location("torchrl_groups", file)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    weight = WEIGHTS["fade"](delta_schedule="constant")
    transform = example.WeightedAdvantage(weight, grpo_size=2)
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), transform=transform)
    # The prompts' answers come in mixed up, and of several lengths.
    answers = [(1, [0.0, 1.0]), (2, [0.0]), (1, [0.0, 0.0, 0.0]), (2, [0.0, 0.0])]
    for prompt, rewards in answers:
        buffer.extend(example.trajectory(prompt, rewards))
    kept = buffer[:]
    first = kept["query"] == 1
    alpha = 1.5 * (1 - 0.5) / 0.5
    w = 0.5**alpha
    assert kept["advantage"][first].squeeze(-1).tolist() == pytest.approx([w] * 2 + [-w] * 3)
    assert kept["advantage"][~first].abs().max() == 0
    # One group half solved, one not at all: each moves the average.
    expected = 0.98 * 0.5 + 0.02 * 0
    saved = json.loads(json.dumps(transform.state_dict()))
    assert saved["weight_state"]["alpha"]["solve_rate_ema"] == pytest.approx(expected)
    other = example.WeightedAdvantage(weight, grpo_size=2)
    other.load_state_dict(saved)
    assert other.weight_state == transform.weight_state
