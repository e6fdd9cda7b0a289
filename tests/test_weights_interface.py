"""What every registered weight promises besides numbers: declarations, labels, types, refusals."""

import dataclasses
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight
from gradmass.weights.signals import SIGNALS

REQUIRED_FIELDS = json.loads((Path(__file__).parent / "golden" / "weight_fields.json").read_text())


@pytest.fixture(params=WEIGHTS.names())
def weight(request: pytest.FixtureRequest) -> Weight:
    return WEIGHTS[request.param](**REQUIRED_FIELDS.get(request.param, {}))


ALL_SIGNALS: dict[str, Any] = {
    "successes_PG": [[True, False, False]],
    "num_success": 1,
    "num_scored": 3,
    "entropy_nats": 0.9,
    "entropy_kind": "tokens",
    "lengths_PG": np.array([[5, 6, 7]]),
    "greedy_rewards_P": np.array([1.0]),
    "solve_rate_P": np.array([0.4]),
    "score_squares": (2.0, 3.0),
    "policy_lag": 1,
    "step": 3,
    "num_steps": 9,
}
FLAT_SIGNALS: dict[str, Any] = {
    **ALL_SIGNALS,
    "successes_PG": [True, False, False],
    "lengths_PG": np.array([5, 6, 7]),
    "greedy_rewards_P": np.array([1.0] * 3),
    "solve_rate_P": np.array([0.4] * 3),
}
REWARDS_PG = np.array([[1.0, 0.0, 0.0]])


def test_declarations_are_legal(weight):
    assert weight.scope in ("group", "batch", "run")
    assert weight.on_ties in ("zero", "value")
    assert weight.domain in ("binary", "unit", "real")
    assert set(weight.needs) <= SIGNALS
    assert bool(weight.init()) == (weight.scope == "run"), "state is for weights of a whole run"
    assert "Source:" in (type(weight).__doc__ or "")


def test_state_and_report_are_plain_json(weight):
    _, state = weight.update(REWARDS_PG, weight.init(), **ALL_SIGNALS)
    for value in (weight.init(), state, weight.report(weight.init()), weight.report(state)):
        assert json.loads(json.dumps(value)) == value


def test_a_weight_is_a_value_and_its_repr_is_the_label(weight):
    assert WEIGHTS[weight.name] is type(weight)
    assert pickle.loads(pickle.dumps(weight)) == weight
    assert hash(weight) == hash(dataclasses.replace(weight))
    required = REQUIRED_FIELDS.get(weight.name, {})
    fields = ", ".join(f"{key}={value}" for key, value in required.items())
    assert weight.label == weight.name + (f"({fields})" if fields else "")
    with pytest.raises(dataclasses.FrozenInstanceError):
        weight.other = 1


def test_the_label_shows_the_fields_that_differ_from_their_defaults():
    assert WEIGHTS["power"](alpha=3.0).label == "power(alpha=3.0)"
    assert WEIGHTS["fade"](ema=0.02, delta_min=0.5).label == "fade(delta_min=0.5)"


@pytest.mark.parametrize(
    ("array", "dtype", "weight_dtype"),
    [(np.array, dtype, np.float64) for dtype in (np.int64, np.uint8, np.bool_)]
    + [(torch.tensor, dtype, torch.float32) for dtype in (torch.int64, torch.uint8, torch.bool)],
)
def test_integers_and_booleans_get_weights_in_the_default_float(weight, array, dtype, weight_dtype):
    weights_PG, _ = weight.update(array([[1, 0, 0]], dtype=dtype), weight.init(), **ALL_SIGNALS)
    exact_PG, _ = weight.update(REWARDS_PG, weight.init(), **ALL_SIGNALS)
    assert weights_PG.dtype == weight_dtype
    assert weights_PG.tolist()[0] == pytest.approx(exact_PG.tolist()[0], rel=2.0**-23)


@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_empty_batches_have_empty_weights(weight, array):
    for shape in ((0, 0), (0, 4), (3, 0)):
        rewards_PG = array(np.zeros(shape).tolist()).reshape(shape)
        signals = {
            **ALL_SIGNALS,
            "successes_PG": rewards_PG,
            "lengths_PG": rewards_PG,
            "greedy_rewards_P": array([0.0] * shape[0]),
        }
        weights_PG, state = weight.update(rewards_PG, weight.init(), **signals)
        assert (tuple(weights_PG.shape), weights_PG.dtype) == (shape, rewards_PG.dtype)
        assert json.loads(json.dumps(state, allow_nan=False)) == state
    flat = {key: array([]) for key in ("successes_PG", "lengths_PG", "greedy_rewards_P")}
    signals = {**ALL_SIGNALS, **flat, "solve_rate_P": array([])}
    weights_B, _ = weight.weigh(array([]), [], **signals)
    assert (tuple(weights_B.shape), weights_B.dtype) == ((0,), rewards_PG.dtype)


@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_a_reward_that_the_weight_is_not_defined_for_is_shown(weight, array):
    refused = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
    if weight.domain != "real":
        refused |= {"1.5": 1.5, "-0.25": -0.25}
    if weight.domain == "binary":
        refused |= {"0.5": 0.5}
    for shown, reward in refused.items():
        rewards_PG = array([[0.0, 1.0, 0.0], [0.0, 1.0, reward]])
        with pytest.raises(UsageError, match=rf"^reward {shown} of group 1, rollout 2: .*$"):
            weight.update(rewards_PG, weight.init(), **ALL_SIGNALS)


@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_arrays_of_another_shape_are_refused(weight, array):
    rewards_B = array([1.0, 0.0, 0.0])
    with pytest.raises(UsageError, match=r"^rewards must have shape .* got \(3,\).*$"):
        weight.update(rewards_B, weight.init(), **ALL_SIGNALS)
    with pytest.raises(UsageError, match=r"^mask has shape \(3,\), rewards have shape \(1, 3\)$"):
        weight.update(rewards_B[None], weight.init(), mask=rewards_B == 1, **ALL_SIGNALS)
    for ids in ([1], np.array([[1, 2]] * 3)):
        with pytest.raises(
            UsageError, match=r"^weigh needs flat rewards and one group id each, .*$"
        ):
            weight.weigh(rewards_B, ids)
    with pytest.raises(UsageError, match=r"^a flat batch of 3 rollouts .* got shape \(2,\)$"):
        weight.weigh(rewards_B, [1, 1, 1], mask=array([True] * 2))


@pytest.mark.parametrize("array", [np.array, torch.tensor])
@pytest.mark.parametrize("ones", [[True, True, False], [1, 1, 0], [2, 1, 0], [1.0, 1.0, 0.0]])
def test_a_mask_may_be_of_any_type(weight, array, ones):
    rewards_B = array([1.0, 0.0, 0.0])
    is_scored_B = array([True, True, False])
    expected_PG, _ = weight.update(
        rewards_B[None], weight.init(), mask=is_scored_B[None], **ALL_SIGNALS
    )
    for mask in (ones, array(ones)):
        weights_B, _ = weight.weigh(rewards_B, [1, 1, 1], mask=mask, **FLAT_SIGNALS)
        assert weights_B.tolist() == expected_PG.tolist()[0]
        mask_PG = array([ones]) if mask is not ones else [ones]
        weights_PG, _ = weight.update(rewards_B[None], weight.init(), mask=mask_PG, **ALL_SIGNALS)
        assert weights_PG.tolist() == expected_PG.tolist()


def test_an_unknown_signal_is_named(weight):
    with pytest.raises(UsageError, match=r"^unknown signal 'entropy'; known: .*entropy_nats.*$"):
        weight.update(REWARDS_PG, weight.init(), **ALL_SIGNALS, entropy=1.0)


def test_a_needed_signal_that_is_missing_is_named(weight):
    for needed in weight.needs:
        expected = rf"^weight {weight.name}.* needs the signal '{needed}', which was not passed$"
        with pytest.raises(UsageError, match=expected):
            weight.update(REWARDS_PG, weight.init(), **{**ALL_SIGNALS, needed: None})
    needed_only = {key: ALL_SIGNALS[key] for key in weight.needs}
    assert weight.update(REWARDS_PG, weight.init(), **needed_only)[0].shape == (1, 3)


@pytest.mark.parametrize("missing", ["step", "num_steps"])
@pytest.mark.parametrize("schedule", ["alpha_schedule", "delta_schedule"])
def test_a_decay_needs_the_time(schedule, missing):
    fade = WEIGHTS["fade"](**{schedule: "log-decay"})
    signals = {key: ALL_SIGNALS[key] for key in ("step", "num_steps") if key != missing}
    expected = rf"^weight fade\({schedule}=log-decay\) needs the signal '{missing}', which was not"
    with pytest.raises(UsageError, match=expected):
        fade.update(REWARDS_PG, fade.init(), **signals)


def test_the_state_of_another_weight_is_refused(weight):
    states = [{"stranger": 1}]
    for name in WEIGHTS.names():
        states.append(WEIGHTS[name](**REQUIRED_FIELDS.get(name, {})).init())
    foreign = [state for state in states if state != weight.init()]
    assert foreign
    for state in foreign:
        with pytest.raises(UsageError, match=r"^weight .* was given a state .* \(start from init"):
            weight.update(REWARDS_PG, state, **ALL_SIGNALS)


@pytest.mark.parametrize("other", ["alpha_schedule", "delta_schedule"])
def test_the_state_of_another_schedule_is_refused(other):
    fade, time_driven = WEIGHTS["fade"](), WEIGHTS["fade"](**{other: "log-decay"})
    for weight, state in ((fade, time_driven.init()), (time_driven, fade.init())):
        with pytest.raises(UsageError, match=r"^weight fade.* another schedule's; .* \(start from"):
            weight.update(REWARDS_PG, state, **ALL_SIGNALS)


@pytest.mark.parametrize(
    ("name", "fields", "shown"),
    [
        ("grpo_std", {"ddof": 2}, "2"),
        ("grpo_std", {"eps": -1e-6}, "-1e-06"),
        ("grpo_std", {"eps": math.nan}, "nan"),
        ("power", {"alpha": 0.0}, "0.0"),
        ("power", {"alpha": math.inf}, "inf"),
        ("asym_grpo_delta", {"delta": -1.0}, "-1.0"),
        ("power_asym", {"alpha": math.nan, "delta": 1.0}, "nan"),
        ("power_asym", {"alpha": 1.0, "delta": 0.0}, "0.0"),
        ("grpo_std", {"std_floor": -0.1}, "-0.1"),
        ("grpo_loo_std", {"eps": -1.0}, "-1.0"),
        ("grpo_batch_std", {"eps": math.inf}, "inf"),
        ("reinforce_plus_plus", {"eps": -1.0}, "-1.0"),
        ("reinforce_plus_plus_baseline", {"eps": math.nan}, "nan"),
        ("w_reinforce", {"success_weight": 0.0}, "0.0"),
        ("asymre", {"baseline_shift": math.inf}, "inf"),
        ("gpg", {"f_norm": 0.0}, "0.0"),
        ("asym_grpo_power", {"beta_pos": -0.5}, "-0.5"),
        ("asym_grpo_power", {"beta_neg": math.nan}, "nan"),
        ("qae", {"K": 1.0}, "1.0"),
        ("qae", {"interpolation": "higher"}, "'higher'"),
        ("qae", {"ddof": 2}, "2"),
        ("qae", {"eps": -1.0}, "-1.0"),
        ("a_grae", {"alpha": 0.0}, "0.0"),
        ("a_grae", {"ddof": -1}, "-1"),
        ("a_grae", {"eps": -1.0}, "-1.0"),
        ("power_unbiased", {"alpha": 0}, "0"),
        ("power_unbiased", {"alpha": 2.0}, "2.0"),
        ("passk_chen", {"k": 0}, "0"),
        ("passk_chen", {"k": 2, "eps": -1.0}, "-1.0"),
        ("pkpo_s", {"k": 0}, "0"),
        ("pkpo_sloo", {"k": True}, "True"),
        ("pkpo_sloo_minus_one", {"k": 1}, "1"),
        ("rs_grpo", {"beta": math.inf}, "inf"),
        ("entropic", {"beta": 0.0}, "0.0"),
        ("maxrl", {"eps": -1.0}, "-1.0"),
        ("one_sided", {"eps": -1.0}, "-1.0"),
        ("maclaurin", {"T": 0}, "0"),
        ("f_grpo", {"gamma": -1.0}, "-1.0"),
        ("grpo_lead", {"low": -0.1}, "-0.1"),
        ("grpo_lead", {"high": math.inf}, "inf"),
        ("grpo_lead", {"midpoint": math.nan}, "nan"),
        ("grpo_lead", {"steepness": math.inf}, "inf"),
        ("mgpo", {"sharpness": -1.0}, "-1.0"),
        ("mgpo", {"ddof": 3}, "3"),
        ("curverl", {"window": -1}, "-1"),
        ("fade", {"alpha_max": 0.5}, "0.5"),
        ("fade", {"delta_min": 0.0}, "0.0"),
        ("fade", {"delta_min": 1.5}, "1.5"),
        ("fade", {"ema": 0.0}, "0.0"),
        ("fade", {"ema": 98.0}, "98.0"),
        ("fade", {"target_entropy": 0.0}, "0.0"),
        ("fade", {"target_entropy": "initial"}, "'initial'"),
        ("fade", {"entropy_form": "ratio"}, "'ratio'"),
        ("fade", {"alpha_schedule": "linear"}, "'linear'"),
        ("fade", {"delta_schedule": "solve-rate"}, "'solve-rate'"),
    ],
)
def test_fields_out_of_range_are_refused_with_their_value(name, fields, shown):
    with pytest.raises(UsageError, match=rf"^{name} needs .* got {shown}$"):
        WEIGHTS[name](**fields)


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ({"entropy_nats": -0.1}, "entropy_nats must be finite and at least 0, got -0.1"),
        ({"entropy_nats": math.nan}, "entropy_nats must be finite and at least 0, got nan"),
        ({"num_success": 1}, "num_success and num_scored are given together or not at all"),
        ({"num_success": 3, "num_scored": 2}, "num_success = 3 is not within 0 to num_scored = 2"),
        ({"successes_PG": np.array([[True]])}, r"successes_PG has shape \(1, 1\), rewards have .*"),
        ({"step": 10, "num_steps": 9}, "step = 10 is not within 0 to num_steps = 9"),
        ({"step": 0, "num_steps": 0}, "step = 0 is not within 0 to num_steps = 0"),
    ],
)
def test_measurements_that_cannot_be_are_refused(signals, message):
    time = {"delta_schedule": "log-decay"} if "step" in signals else {}
    fade = WEIGHTS["fade"](**time)
    with pytest.raises(UsageError, match=f"^{message}$"):
        fade.update(np.array([[1.0, 0.0]]), fade.init(), **signals)


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("a", None), (None, "a")])
def test_entropies_of_two_kinds_are_not_averaged(first, second):
    fade, rewards_PG = WEIGHTS["fade"](), np.array([[1.0, 0.0]])
    _, state = fade.update(rewards_PG, fade.init(), entropy_nats=1.0, entropy_kind=first)
    with pytest.raises(UsageError, match=f"^entropy_kind {second!r} differs from {first!r}, .*$"):
        fade.update(rewards_PG, state, entropy_nats=1.0, entropy_kind=second)


def test_measurements_may_be_scalars_of_numpy_and_torch():
    fade, rewards_PG = WEIGHTS["fade"](), torch.tensor([[1.0, 0.0]])
    plain = {"entropy_nats": 0.5, "policy_lag": 2, "num_success": 1, "num_scored": 2}
    _, expected = fade.update(rewards_PG, fade.init(), **plain)
    for scalar in (np.asarray, torch.tensor):
        signals = {key: scalar(value) for key, value in plain.items()}
        _, state = fade.update(rewards_PG, fade.init(), **signals)
        assert json.loads(json.dumps(state)) == expected


def test_a_formula_of_another_shape_is_refused():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Flat(Weight):
        def formula(self, groups, state, signals):
            return groups.mean_P1

    with pytest.raises(UsageError, match=r"Flat gave weights of shape \(1, 1\) .* \(1, 2\)"):
        Flat().update(np.array([[0.0, 1.0]]), {})


def test_a_formula_without_return_is_refused():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Forgot(Weight):
        def formula(self, groups, state, signals):
            groups.centred_PG  # noqa: B018

    with pytest.raises(UsageError, match=r"Forgot gave NoneType for rewards of shape \(1, 2\)"):
        Forgot().update(np.array([[0.0, 1.0]]), {})
