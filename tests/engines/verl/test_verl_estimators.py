"""The numbers that verl's own dispatcher returns: its own GRPO, published weights, any grouping."""

import importlib.util
import json
import random
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch

from gradmass.engines.weigher import ENTROPY, follows
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore")]
TESTS = Path(__file__).parents[2]
GOLDEN = json.loads((TESTS / "golden" / "weights_vectors.json").read_text())
SAME = {"rtol": 0, "atol": 1e-6}
GROUPS = {
    "lopsided": ([1, 0, 0, 0, 0, 0, 0, 0], "aaaaaaaa"),
    "tied": ([1, 1, 1, 1, 0, 0, 0, 0], "aaaabbbb"),
    "mixed": ([1, 0, 1, 0, 0, 1, 1, 1], "aaaabbbb"),
    "uneven": ([1, 0, 0, 1, 0, 1, 1, 0], "aabbbbbb"),
    "shuffled": ([1, 0, 0, 1, 0, 1, 1, 0], "abbabbab"),
}


@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("case", GROUPS)
def test_verl_s_own_grpo_is_reproduced(advantages, case, is_scaled):
    rewards, uids = GROUPS[case]
    theirs, mask = advantages("grpo", rewards, list(uids), norm_adv_by_std_in_grpo=is_scaled)
    # verl's deviation is Bessel's, with 1e-6 added; grpo_std has the same by default.
    ours, _ = advantages("gradmass_grpo_std" if is_scaled else "gradmass_grpo", rewards, list(uids))
    torch.testing.assert_close(ours, theirs, **SAME)
    assert ours.shape == mask.shape
    assert (ours[mask == 0] == 0).all()
    if case != "tied":
        assert ours.abs().sum() > 0.5


def test_a_group_of_one_is_nothing_here_and_the_bare_reward_in_verl(advantages):
    rewards, uids = [1, 0, 1], ["a", "b", "b"]
    ours, _ = advantages("gradmass_grpo", rewards, uids)
    theirs, _ = advantages("grpo", rewards, uids, norm_adv_by_std_in_grpo=False)
    assert ours[:, 0].tolist() == [0, -0.5, 0.5]
    assert theirs[:, 0].tolist() == [1, -0.5, 0.5]


def test_padding_rows_change_nothing_and_count_not_at_all(advantages):
    rewards, uids = [1, 0, 0, 0, 0, 0], ["a", "a", "a", "a", "pad0f", "pad0f"]
    for ours, theirs in (("gradmass_grpo", "grpo"), ("gradmass_reinforce", None)):
        found, _ = advantages(ours, rewards, uids, lengths=[3, 2, 5, 1, 1, 1])
        assert found[4:].abs().sum() == 0
        if theirs:
            expected, _ = advantages(theirs, rewards, uids, norm_adv_by_std_in_grpo=False)
            torch.testing.assert_close(found[:4, 0], expected[:4, 0], **SAME)


def test_a_rollout_whose_reward_is_no_number_is_left_out(advantages):
    found, _ = advantages("gradmass_grpo", [1, 0, float("nan"), 0], list("aaaa"))
    torch.testing.assert_close(found[:, 0], torch.tensor([2 / 3, -1 / 3, 0, -1 / 3]), **SAME)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("rloo", "rloo"), ("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline")],
)
def test_other_estimators_of_verl_are_reproduced(advantages, theirs, ours):
    rng = random.Random(0)
    uids = [f"p{i % 5}" for i in range(40)]
    rewards = [float(rng.random() < 0.4) for _ in uids]
    expected, _ = advantages(theirs, rewards, uids, lengths=[3] * 40)
    found, _ = advantages(f"gradmass_{ours}", rewards, uids, lengths=[3] * 40)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3 if "plus" in ours else 1e-6)
    assert found.abs().sum() > 5


def test_every_weight_without_needs_is_reached_by_its_name(advantages):
    fields = json.loads((TESTS / "golden" / "weight_fields.json").read_text())
    rewards, uids = [1, 0, 0, 1, 0, 0, 0, 1], list("aaaabbbb")
    num_reached = 0
    for name in WEIGHTS.names():
        table = fields.get(name, {})
        if any(not isinstance(value, int | float | bool | str) for value in table.values()):
            continue
        weight = WEIGHTS[name](**table)
        is_told_more = set(weight.needs) - {"lengths_PG", "num_success", "num_scored"}
        if is_told_more or follows(weight, ENTROPY):
            continue
        found, mask = advantages(f"gradmass_{name}", rewards, uids, {"weight": table})
        expected_B, _ = weight.weigh(
            torch.tensor(rewards, dtype=torch.float64), uids, lengths_PG=mask.sum(1).double()
        )
        torch.testing.assert_close(found[:, 0].double(), expected_B, **SAME, msg=name)
        num_reached += 1
    assert num_reached > 30


def golden_module():
    file = TESTS / "test_weights_golden.py"
    spec = importlib.util.spec_from_file_location("golden_weights", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_published_weights_come_through_the_dispatcher():
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    golden = golden_module()
    num_compared = 0
    for method, (name, fields) in golden.WEIGHT_OF_METHOD.items():
        estimator = get_adv_estimator_fn(f"gradmass_{name}")
        is_for_sum = GOLDEN[method]["params"].get("convention") == "sum"
        for vector in GOLDEN[method]["vectors"]:
            if golden_is_told_more(WEIGHTS[name](**fields)):
                continue
            rewards = golden.groups_of(vector, "rewards")
            published = golden.groups_of(vector, "weights")
            if method == "grpo_nemo_default":
                pairs = zip(rewards, published, strict=True)
                published = [golden.without_float32(*pair) for pair in pairs]
            size = len(rewards[0])
            uids = [i for i, group in enumerate(rewards) for _ in group]
            flat = torch.tensor(list(chain.from_iterable(rewards)), dtype=torch.float64)
            estimator._alone = None
            found, _ = estimator(
                flat[:, None],
                torch.ones(len(flat), 1),
                uids,
                {"gradmass": {"weight": fields}} if fields else {},
            )
            expected = torch.tensor(list(chain.from_iterable(published)))
            found = found[:, 0] / (size if is_for_sum else 1)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=method)
            num_compared += 1
    assert num_compared > 250


def golden_is_told_more(weight):
    return bool(weight.needs) or weight.name in ("fade", "constant_mass")


@pytest.mark.parametrize(
    ("estimator", "gradmass", "message"),
    [
        ("gradmass_fade", {}, "follows the entropy, which verl does not hand to an estimator"),
        ("gradmass_remax", {}, "needs the signal 'greedy_rewards_P'"),
        ("gradmass_grpo", {"success": "acc"}, "no results of the reward function"),
        ("gradmass_grpo", {"mode": "shadow"}, "mode 'shadow' one of verl's own"),
        ("gradmass_power", {"weight": {"alhpa": 2}}, "did you mean 'alpha'"),
        ("gradmass", {}, "algorithm.gradmass.weight is missing"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(advantages, estimator, gradmass, message):
    with pytest.raises(UsageError, match=message) as caught:
        advantages(estimator, [1, 0], ["a", "a"], gradmass)
    assert "\n" not in str(caught.value)


def test_shaped_rewards_are_weighed_but_tell_no_solve_rate(advantages):
    found, _ = advantages("gradmass_grpo", [1, 0.5], ["a", "a"])
    assert found[:, 0].tolist() == [0.25, -0.25]
    gradmass = {"weight": {"delta_schedule": "constant"}}
    with pytest.raises(UsageError, match=r"reward 0\.5 is neither 0 nor 1"):
        advantages("gradmass_fade", [1, 0.5], ["a", "a"], gradmass)


def test_a_weight_of_one_s_own_file_is_named_in_full(advantages, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from gradmass.weights import Weight\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(Weight):\n"
        "    scale: float = 1.0\n"
        "    def formula(self, groups, state, signals):\n"
        "        return self.scale * (groups.rewards_PG - 0.5)\n"
    )
    weight = {"weight": f"{file}:Mine:scale=4"}
    found, _ = advantages("gradmass", [1, 0], ["a", "a"], weight)
    assert found[:, 0].tolist() == [2, -2]


def test_a_state_outside_checkpoints_is_warned_of(advantages):
    gradmass = {"weight": {"delta_schedule": "constant"}}
    with pytest.warns(UserWarning, match="no checkpoint has the state of weight fade"):
        advantages("gradmass_fade", [1, 0], ["a", "a"], gradmass)


ENTRY = """
import sys
import verl
assert "gradmass.weights" not in sys.modules, "a process that needs no estimator pays for them"
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
assert get_adv_estimator_fn("gradmass_fade").name == "gradmass_fade"
from verl.trainer.ppo.v1 import get_trainer_cls
bases = [cls.__name__ for cls in get_trainer_cls("gradmass_sync").__mro__]
assert bases[:3] == ["WeightedPPOTrainerSync", "WeightMixin", "PPOTrainerSync"], bases
assert not any("gradmass" in type(finder).__module__ for finder in sys.meta_path)
print("entry point works")
"""


@pytest.mark.parametrize(("setting", "is_there"), [("auto", True), ("none", False)])
def test_verl_loads_the_plug_in_by_itself_in_a_fresh_process(setting, is_there):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENTRY],
        env={"PATH": "/usr/bin:/bin", "VERL_USE_EXTERNAL_PLUGINS": setting, "HOME": "/root"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("entry point works" in done.stdout) == is_there, done.stderr[-2000:]
    if not is_there:
        assert "Unknown advantage estimator" in done.stderr
