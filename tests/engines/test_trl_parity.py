"""The numbers that reach TRL's loss: TRL's own GRPO, published weights, and groups by any shape."""

import importlib.util
import json
from itertools import chain
from pathlib import Path

import pytest
import torch

from gradmass.engines.trl_mixin import WRITTEN
from gradmass.engines.weigher import Weigher
from gradmass.weights import WEIGHTS

pytestmark = [
    pytest.mark.trl,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

TESTS = Path(__file__).parents[1]
GOLDEN = json.loads((TESTS / "golden" / "weights_vectors.json").read_text())
SAME = {"rtol": 0, "atol": 1e-6}
OWN_OF_TRL = [
    ("group", WEIGHTS["grpo_std"](ddof=1, eps=1e-4)),
    ("none", WEIGHTS["grpo"]()),
    ("batch", WEIGHTS["grpo_batch_std"](eps=1e-4)),
]
GROUPS = {
    "lopsided": [1, 0, 0, 0, 0, 0, 0, 0],
    "tied": [1, 1, 1, 1, 0, 0, 0, 0],
    "mixed": [1, 0, 1, 0, 0, 1, 1, 1],
    "graded": [0.25, 1, 0.5, 0, 0.75, 0.75, 0, 1],
    "padded with rows that no one scored": [1, 0, None, 0, None, 0, 0, 1],
    "uneven: three scored rollouts and one": [1, 0, 0, None, None, None, None, 1],
}


def of_method():
    """Which weight is which published method, from the test that compares them directly."""
    file = TESTS / "test_weights_golden.py"
    spec = importlib.util.spec_from_file_location("golden_weights", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("scale", "weight"), OWN_OF_TRL, ids=[s for s, _ in OWN_OF_TRL])
@pytest.mark.parametrize("rewards", GROUPS.values(), ids=GROUPS)
def test_trl_s_own_grpo_is_reproduced(make, score, scale, weight, rewards):
    plain = make(rewards, 4, config={"scale_rewards": scale})
    ours = make(rewards, 4, weight, config={"scale_rewards": scale}, success="scripted")
    expected, found = score(plain, 8, 4), score(ours, 8, 4)
    torch.testing.assert_close(found["completion_ids"], expected["completion_ids"])
    torch.testing.assert_close(found["advantages"], expected["advantages"], **SAME)
    if rewards != GROUPS["tied"]:
        assert found["advantages"].abs().sum() > 0.5


@pytest.mark.parametrize(("scale", "weight"), OWN_OF_TRL, ids=[s for s, _ in OWN_OF_TRL])
def test_trl_s_own_grpo_is_reproduced_for_each_shuffled_micro_batch(make, scale, weight):
    rewards = [1, 0, 0, 0, 1, 1, 0, 1]
    config = {
        "scale_rewards": scale,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
    }
    seen = []
    for trainer in (make(rewards, 4, config=config), make(rewards, 4, weight, config=config)):
        trainer.model.train()
        inputs = [dict(trainer.train_dataset[i // 4]) for i in range(8)]
        torch.manual_seed(0)
        batches = []
        for step in range(4):
            trainer._step = step
            batches.append(trainer._prepare_inputs(inputs)["advantages"])
        seen.append(torch.stack(batches))
    expected, found = seen
    torch.testing.assert_close(found, expected, **SAME)
    in_order = torch.tensor(rewards).reshape(4, 2) > 0
    assert ((found > 0) != in_order).any()  # it was shuffled, and ours with it


def test_a_group_of_one_in_evaluation_has_no_advantage(make, score):
    config = {"num_generations_eval": 1}
    expected = score(make([1, 0, 1, 0], 4, config=config), 4, 1, is_training=False)
    found = score(make([1, 0, 1, 0], 4, "grpo", config=config), 4, 1, is_training=False)
    assert expected["advantages"].tolist() == found["advantages"].tolist() == [0, 0, 0, 0]


def test_every_published_weight_comes_through_the_hook(make, score):
    golden, num_compared = of_method(), 0
    one_token = {"max_completion_length": 1}  # as published, for the weights that count tokens
    trainers = {
        size: make([0] * size, size, "grpo", config=one_token, success="scripted")
        for size in (2, 4, 8)
    }
    for method, (name, fields) in golden.WEIGHT_OF_METHOD.items():
        is_for_sum = GOLDEN[method]["params"].get("convention") == "sum"
        for vector in GOLDEN[method]["vectors"]:
            rewards = golden.groups_of(vector, "rewards")
            published = golden.groups_of(vector, "weights")
            if method == "grpo_nemo_default":
                pairs = zip(rewards, published, strict=True)
                published = [golden.without_float32(*pair) for pair in pairs]
            size = len(rewards[0])
            factor = size if is_for_sum else 1
            trainer = trainers[size]
            trainer._gradmass = Weigher([WEIGHTS[name](**fields)], "weight", frozenset())
            trainer.reward_funcs[0].rewards = list(chain.from_iterable(rewards))
            found = score(trainer, size * len(rewards), size)["advantages"] / factor
            expected = torch.tensor(list(chain.from_iterable(published)))
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=method)
            num_compared += 1
    assert num_compared > 250


def test_two_reward_functions_are_summed_as_trl_sums_them(make, score, scripted):
    funcs = [scripted([1, 0, 0, 1], "right"), scripted([0.5, None, 1, 0], "style")]
    config = {"per_device_train_batch_size": 4, "reward_weights": [0.75, 0.25]}
    expected = score(make(funcs, 4, config=config | {"scale_rewards": "none"}), 4, 4)
    found = score(make(funcs, 4, "grpo", config=config, success="right"), 4, 4)
    torch.testing.assert_close(found["advantages"], expected["advantages"], **SAME)
    sums = torch.tensor([0.875, 0.0, 0.25, 0.75])
    torch.testing.assert_close(found["advantages"], sums - sums.mean(), **SAME)


def test_normalised_groups_reach_the_loss_as_they_are(make):
    rewards = [1, 0, 0, 0, 1, 1, 0, 0]
    trainer = make(rewards, 2, "grpo", config={"max_steps": 1})
    given = []
    base = type(trainer).__mro__[2]
    original = base._compute_loss

    def look(self, model, inputs):
        given.append(inputs["advantages"].clone())
        return original(self, model, inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "_compute_loss", look)
        trainer.train()
    (advantages,) = given
    # Whitened over the batch, the 0.5 of the one mixed group would be near 1.9.
    assert sorted(advantages.tolist()) == [-0.5, 0, 0, 0, 0, 0, 0, 0.5]


def test_what_is_trained_on_is_what_is_logged(make, score):
    trainer = make([1, 0, 0, 0, 1, 1, 0, 1], 4, WEIGHTS["power_asym"](alpha=2.0, delta=0.5))
    output = score(trainer, 8, 4)
    assert list(trainer._logs["advantages"]) == pytest.approx(output["advantages"].tolist())
    assert output["advantages"].tolist() == output[WRITTEN].tolist()
    by_hand = [0.75 * 0.75, *[-0.25 * 0.75 / 0.5] * 3]
    assert output["advantages"].tolist()[:4] == pytest.approx(by_hand)
