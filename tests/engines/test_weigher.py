"""What every engine does with a batch: weights, metrics, state; by hand on a batch of five."""

import json
from pathlib import Path

import numpy as np
import pytest

from gradmass.engines.trl_checks import mixed_group
from gradmass.engines.weigher import ENTROPY, LAG, Batch, Weigher, follows
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS
from gradmass.weights.groups import group_rewards, layout

TESTS = Path(__file__).parents[1]
NONE = frozenset()
IDS = ["b", "a", "b", "a", "b"]
REWARDS = np.array([1.0, 0.0, 0.0, 1.0, np.nan])


def batch(**changes):
    fields = {
        "rewards_B": REWARDS,
        "layout": layout(IDS),
        "successes_B": REWARDS == 1,
        "mask_B": ~np.isnan(REWARDS),
        "has_tokens_B": np.ones(5, dtype=bool),
    }
    return Batch(**fields | changes)


def test_groups_by_id_in_any_order_are_weighed_and_measured():
    weigher = Weigher([WEIGHTS["asym_grpo_delta"](delta=0.5)], "weight", NONE)
    weights_B, row = weigher.weigh(batch(), is_training=True, entropy_nats=0.5)
    assert weights_B.tolist() == [0.5, -1, -1, 0.5, 0]
    assert row == {
        "rollout/num_unscorable": 1,
        "rollout/solve_rate": 0.5,
        "groups/all_right": 0,
        "groups/all_wrong": 0,
        "groups/mixed": 1,
        "entropy/mean_nats": 0.5,
        "mass/positive": 0.2,
        "mass/negative": 0.4,
        "weight/alpha": 1,
        "weight/delta": 0.5,
    }


def test_a_rollout_without_tokens_counts_in_the_baseline_and_has_no_mass():
    weigher = Weigher([WEIGHTS["grpo"]()], "weight", NONE)
    has_tokens_B = np.array([False, True, True, True, True])
    weights_B, row = weigher.weigh(batch(has_tokens_B=has_tokens_B), is_training=True)
    assert weights_B.tolist() == [0.5, -0.5, -0.5, 0.5, 0]
    assert (row["mass/positive"], row["mass/negative"]) == (0.1, 0.2)


@pytest.mark.parametrize("name", ["rewards_PG", "mask_PG", "mean_P1", "centred_PG"])
@pytest.mark.parametrize("is_masked", [True, False])
def test_a_formula_cannot_write_to_what_all_weights_share(name, is_masked):
    class InPlace(WEIGHTS["grpo"]):
        def formula(self, groups, state, signals):
            values = getattr(groups, name)
            values *= values
            return groups.centred_PG

    mask_PG = np.array([[True, True, not is_masked]])
    groups = group_rewards(np.array([[1.0, 0.0, 0.5]]), mask_PG)
    with pytest.raises(ValueError, match="read-only"):
        InPlace().update_groups(groups, {}, {})
    mask_PG[:] = False  # the caller's own stays the caller's
    assert groups.mask_PG.any()


@pytest.mark.parametrize("ids", [[0, 0, 1, 1], [0, 1, 0, 1]])
def test_nor_to_what_the_engine_handed_over(ids):
    lengths = np.array([3, 4, 5, 6])
    with pytest.raises(ValueError, match="read-only"):
        layout(ids).rows(lengths)[:] = 0
    lengths[0] = 7


def test_shadow_mode_measures_the_host_and_every_weight_and_gives_none():
    weights = [WEIGHTS["fade"](), WEIGHTS["grpo"](), WEIGHTS["fade"](alpha_max=2.0)]
    weigher = Weigher(weights, "shadow", NONE)
    host_B = np.array([2.0, -1, -1, 2.0, 0])
    weights_B, row = weigher.weigh(batch(host_weights_B=host_B), is_training=True)
    assert weights_B is None
    assert (row["mass/positive"], row["mass/negative"]) == (0.8, 0.4)
    assert row["shadow/grpo/mass/positive"] == 0.2
    assert row["shadow/fade/weight/alpha"] == row["shadow/fade_2/weight/alpha"] == 1.5
    assert weigher.names == ["fade", "grpo", "fade_2"]


def test_evaluation_holds_the_state():
    weigher = Weigher([WEIGHTS["fade"](ema=1.0)], "weight", NONE)
    before = weigher.digest
    first, _ = weigher.weigh(batch(), is_training=False)
    assert weigher.digest == before
    rewards_B = np.array([1.0, 1.0, 0.0, 1.0, 1.0])
    weigher.weigh(
        batch(rewards_B=rewards_B, successes_B=rewards_B == 1, mask_B=np.ones(5, bool)),
        is_training=True,
    )
    assert weigher.digest != before
    again, _ = weigher.weigh(batch(), is_training=False)
    assert again.tolist() != first.tolist()  # by the alpha of a batch mostly solved


def test_a_batch_without_a_scored_rollout_is_an_error_and_only_in_training():
    nobody = {"mask_B": np.zeros(5, bool)}
    with pytest.raises(UsageError, match="none of the 5 rollouts is scored"):
        Weigher([WEIGHTS["grpo"]()], "weight", NONE).weigh(batch(**nobody), is_training=True)
    for mode, is_training in (("weight", False), ("shadow", True)):
        weigher = Weigher([WEIGHTS["grpo"]()], mode, NONE)
        _, row = weigher.weigh(batch(**nobody), is_training=is_training)
        assert "rollout/solve_rate" not in row


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("fade", {}, True),
        ("fade", {"delta_schedule": "constant"}, False),
        ("fade", {"delta_schedule": "constant", "alpha_schedule": "entropy"}, True),
        ("constant_mass", {"inner": WEIGHTS["fade"]()}, True),
        ("grpo", {}, False),
        ("pkpo_s", {"k": 4}, False),
    ],
)
def test_whether_a_weight_follows_the_entropy_is_found_out(name, fields, expected):
    assert follows(WEIGHTS[name](**fields), ENTROPY) is expected


@pytest.mark.parametrize("name", WEIGHTS.names())
def test_every_weight_can_be_asked_whether_it_follows_the_entropy_or_the_lag(name):
    fields = json.loads((TESTS / "golden" / "weight_fields.json").read_text())
    weight = WEIGHTS[name](**fields.get(name, {}))
    # The inner weight of constant_mass is fade.
    names = {"fade", "constant_mass", "entropy_pi", "entropy_share"}
    assert follows(weight, ENTROPY) == (name in names)
    # Those keep beside the entropy how old it is.
    assert follows(weight, LAG) == (name in names | {"sign_by_noise"})


def test_a_weight_that_needs_an_entropy_can_be_used_where_there_is_one():
    class Needy(WEIGHTS["grpo"]):
        needs = ("entropy_nats", "entropy_kind")

    supplied = frozenset({"entropy_nats", "entropy_kind", "policy_lag"})
    weigher = Weigher([Needy()], "weight", supplied)
    assert (weigher.uses_entropy, weigher.uses_lag) == (True, False)


def test_a_state_survives_json_and_another_s_does_not():
    fade = Weigher([WEIGHTS["fade"]()], "weight", NONE)
    fade.weigh(batch(), is_training=True, entropy_nats=0.4)
    saved = json.loads(json.dumps(fade.state_dict()))
    other = Weigher([WEIGHTS["fade"]()], "weight", NONE)
    other.load_state_dict(saved, "here")
    assert other.states == fade.states
    assert other.digest == fade.digest
    for weights, mode in (([WEIGHTS["grpo"]()], "weight"), ([WEIGHTS["fade"]()], "shadow")):
        with pytest.raises(UsageError, match="here was saved by fade in mode 'weight', this run"):
            Weigher(weights, mode, NONE).load_state_dict(saved, "here")
    saved["weights"][0]["state"]["alpha"] = {"entropy_ema": 1}
    with pytest.raises(UsageError, match="another schedule's"):
        other.load_state_dict(saved, "here")


@pytest.mark.parametrize(
    ("weights", "mode", "message"),
    [
        ([WEIGHTS["grpo"]()] * 2, "weight", "mode 'weight' takes one weight, got 2"),
        ([], "shadow", "needs at least one weight"),
        (["grpo"], "weight", r"must be a policy weight such as Fade\(\), got 'grpo'"),
        ([WEIGHTS["remax"]()], "weight", "needs the signal 'greedy_rewards_P'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, mode, message):
    with pytest.raises(UsageError, match=message):
        Weigher(weights, mode, NONE)


@pytest.mark.parametrize(
    ("prompts", "start", "rows"),
    [
        ("aaaabbbb", 0, None),
        ("aabbbb", 2, None),  # the process before has the rest of the first group
        ("aabbbb", 1, "0 and 2"),
        ("aaabbbcc", 0, "0 and 3"),
        ("aaaabbbc", 0, "4 and 7"),
        ("a", 3, None),
        ("", 0, None),
    ],
)
def test_groups_of_four_by_position_that_mix_prompts_are_seen(prompts, start, rows):
    message = mixed_group([{"prompt": prompt} for prompt in prompts], 4, start)
    assert bool(message) == (rows is not None)
    if rows:
        assert message.startswith(f"rows {rows} of a batch")


class Failing(WEIGHTS["grpo"]):
    """Raises what it is given, in its second batch."""

    name = "failing"

    def observe(self, groups, state, signals):
        state = {"batches": state["batches"] + 1}
        if state["batches"] > 1:
            raise self.error
        return state

    def init(self):
        return {"batches": 0}


def failing(error):
    weight = Failing()
    object.__setattr__(weight, "error", error)
    return weight


@pytest.mark.parametrize("error", [ZeroDivisionError("1 / 0"), KeyError("k"), UsageError("no")])
def test_no_exception_of_a_weight_leaves_the_shadow(error):
    def weigh(weights):
        weigher = Weigher(weights, "shadow", NONE)
        host = {"host_weights_B": np.array([2.0, -1, -1, 2.0, 0])}
        return weigher, [weigher.weigh(batch(**host), is_training=True)[1] for _ in range(4)]

    kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
    with pytest.warns(
        UserWarning, match=f"^shadow weight failing is off from here on: {kind}"
    ) as w:
        weigher, rows = weigh([failing(error), WEIGHTS["fade"]()])
    assert len(w) == 1
    alone, expected = weigh([WEIGHTS["fade"]()])
    off = {"shadow/failing/off": 1.0}
    assert rows[1:] == [row | off for row in expected[1:]]
    assert weigher.states == [{"batches": 1}, *alone.states]


def test_a_weight_that_is_off_stays_off_when_the_run_is_resumed():
    def made():
        return Weigher([failing(ZeroDivisionError()), WEIGHTS["fade"]()], "shadow", NONE)

    weigher, resumed = made(), made()
    weigher.weigh(batch(), is_training=True)
    with pytest.warns(UserWarning, match="is off from here on"):
        weigher.weigh(batch(), is_training=True)
    saved = json.loads(json.dumps(weigher.state_dict()))
    with pytest.warns(UserWarning, match="^shadow weight failing was off at x, and stays off$"):
        resumed.load_state_dict(saved, "x")
    rows = [each.weigh(batch(), is_training=True)[1] for each in (weigher, resumed)]
    assert rows[0] == rows[1]
    assert rows[1]["shadow/failing/off"] == 1


@pytest.mark.parametrize(
    ("bad", "kind"), [(np.int64(3), "TypeError"), (float("nan"), "ValueError")]
)
def test_a_state_that_no_checkpoint_could_keep_leaves_the_shadow_whenever_it_comes(bad, kind):
    class Growing(WEIGHTS["grpo"]):
        name = "growing"

        def observe(self, groups, state, signals):
            batches = state["batches"] + 1
            return {"batches": batches if batches < 3 else bad}

        def init(self):
            return {"batches": 0}

    weigher = Weigher([Growing()], "shadow", NONE)
    for _ in range(2):
        weigher.weigh(batch(), is_training=True)
    with pytest.warns(UserWarning, match="^shadow weight growing is off from here on: " + kind):
        _, row = weigher.weigh(batch(), is_training=True)
    assert row["shadow/growing/off"] == 1
    assert not [key for key in row if key.startswith("shadow/growing/mass")]
    assert weigher.state_dict()["weights"][0]["state"] == {"batches": 2}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_what_ends_the_process_leaves_the_shadow(error):
    weigher = Weigher([failing(error)], "shadow", NONE)
    weigher.weigh(batch(), is_training=True)
    with pytest.raises(type(error)):
        weigher.weigh(batch(), is_training=True)


def test_an_exception_of_the_weight_that_acts_is_raised_as_it_is():
    weigher = Weigher([failing(ZeroDivisionError("1 / 0"))], "weight", NONE)
    weigher.weigh(batch(), is_training=True)
    with pytest.raises(ZeroDivisionError, match="1 / 0"):
        weigher.weigh(batch(), is_training=True)


def test_what_the_engine_could_not_do_stops_a_shadow_only_before_its_first_time():
    weigher = Weigher([WEIGHTS["grpo"]()], "shadow", NONE)
    for error, is_first in ((UsageError("no verdict"), False), (OSError("queue"), True)):
        with pytest.warns(UserWarning, match=f"nothing was measured: .*{error}"):
            row = weigher.outlive(error, "nothing was measured", is_first=is_first)
        assert row == {"shadow/unmeasured": 1.0}
        assert weigher.outlive(error, "nothing was measured", is_first=is_first) == row  # told once
    with pytest.raises(UsageError, match="no verdict"):
        weigher.outlive(UsageError("no verdict"), "nothing was measured", is_first=True)
    acting = Weigher([WEIGHTS["grpo"]()], "weight", NONE)
    with pytest.raises(OSError, match="queue"):
        acting.outlive(OSError("queue"), "nothing was measured", is_first=False)
