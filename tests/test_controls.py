"""Controls against their equations in plain loops."""

import json
import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from gradmass.masses import masses_of
from gradmass.metrics.mass import gradient_mass
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

Rows = list[list[float]]


ARRAY = {"numpy": np.array, "torch": lambda rows: torch.tensor(rows, dtype=torch.float64)}
every_library = pytest.mark.parametrize("library", ARRAY)


def draw(seed: int, group_size: int = 6) -> Rows:
    rng = random.Random(seed)
    return [[float(rng.random() < p) for _ in range(group_size)] for p in (0.1, 0.3, 0.5, 0.9, 0)]


def weigh(weight: Weight, rewards: Rows, library: str = "numpy", **signals: Any) -> Rows:
    rows: Rows = weight.update(ARRAY[library](rewards), weight.init(), **signals)[0].tolist()
    return rows


def flat(rows: Rows) -> list[float]:
    return [value for row in rows for value in row]


def grpo(rewards: Rows) -> Rows:
    return [[r - sum(row) / len(row) for r in row] for row in rewards]


def close(expected: Rows) -> Any:
    return pytest.approx(flat(expected), rel=1e-12, abs=1e-13)


# sign_pure


@every_library
@pytest.mark.parametrize("delta", [0.25, 1.0, 3.0])
def test_sign_pure_takes_the_solve_rate_from_the_other_rollouts(delta, library):
    rewards = draw(1)
    expected = []
    for row in rewards:
        expected.append([])
        for i, r in enumerate(row):
            others = [other for j, other in enumerate(row) if j != i]
            p = sum(others) / len(others)
            spread = delta * (1 - p) + p
            expected[-1].append(delta * (1 - p) / spread if r else -p / spread)
    actual = weigh(WEIGHTS["sign_pure"](delta=delta), rewards, library)
    assert flat(actual) == close(expected)


@every_library
def test_sign_pure_takes_the_solve_rate_from_history(library):
    rewards, history = draw(2), [0.0, 0.25, 0.5, 0.75, 1.0]
    expected = [
        [(0.5 * (1 - p) if r else -p) / (0.5 * (1 - p) + p) for r in row]
        for row, p in zip(rewards, history, strict=True)
    ]
    actual = weigh(WEIGHTS["sign_pure"](), rewards, library, solve_rate_P=ARRAY[library](history))
    assert flat(actual) == close(expected)


def test_sign_pure_leaves_the_rollout_itself_out():
    """Changing a rollout's reward changes its weight by the sign alone: w_S + w_F = 1."""
    for others in draw(3):
        success, failure = weigh(WEIGHTS["sign_pure"](delta=0.3), [[1.0, *others], [0.0, *others]])
        assert success[0] - failure[0] == pytest.approx(1, rel=1e-12)


def test_sign_pure_with_one_is_rloo():
    rewards = draw(4)
    assert flat(weigh(WEIGHTS["sign_pure"](delta=1.0), rewards)) == close(
        weigh(WEIGHTS["rloo"](), rewards)
    )


@pytest.mark.parametrize(
    ("fields", "signals", "wanted"),
    [
        ({"delta": 0.0}, {}, "sign_pure needs a finite delta above 0, got 0.0"),
        ({}, {"solve_rate_P": np.array([0.5])}, r"solve_rate_P has shape \(1,\), rewards have"),
        ({}, {"solve_rate_P": np.array([0.5, 1.5])}, "solve_rate_P is 1.5 for group 1: it must"),
        ({}, {"solve_rate_P": np.array([math.nan, 1])}, "solve_rate_P is nan for group 0: it must"),
    ],
)
def test_sign_pure_shows_what_is_wrong(fields, signals, wanted):
    with pytest.raises(UsageError, match=f"^{wanted}"):
        WEIGHTS["sign_pure"](**fields).update(np.array([[1.0, 0.0]] * 2), {}, **signals)


# constant_mass


@every_library
@pytest.mark.parametrize("inner", ["power", "maxrl", "reinforce", "w_reinforce"])
def test_constant_mass_has_the_total_mass_of_grpo_on_the_batch(inner, library):
    rewards = draw(5)
    weight = WEIGHTS["constant_mass"](inner=WEIGHTS[inner]())
    actual = weigh(weight, rewards, library)
    raw = weigh(WEIGHTS[inner](), rewards)
    factor = sum(map(abs, flat(grpo(rewards)))) / sum(map(abs, flat(raw)))
    assert flat(actual) == close([[factor * w for w in row] for row in raw])
    successes = np.array(rewards) == 1
    total = sum(gradient_mass(np.array(actual), successes))
    assert total == pytest.approx(sum(gradient_mass(np.array(grpo(rewards)), successes)))


def test_constant_mass_of_grpo_is_grpo():
    rewards = draw(6)
    actual = weigh(WEIGHTS["constant_mass"](inner=WEIGHTS["grpo"]()), rewards)
    assert flat(actual) == close(grpo(rewards))


def test_constant_mass_holds_fade_while_its_state_moves():
    weight = WEIGHTS["constant_mass"](inner=WEIGHTS["fade"](target_entropy=1.0, ema=0.5))
    state, deltas = weight.init(), []
    for seed, entropy in enumerate((0.9, 0.5, 0.3)):
        rewards = np.array(draw(seed))
        weights_PG, state = weight.update(rewards, state, entropy_nats=entropy)
        expected = np.abs(rewards - rewards.mean(1, keepdims=True)).sum()
        assert np.abs(weights_PG).sum() == pytest.approx(expected)
        deltas.append(weight.report(state)["delta"])
        state = json.loads(json.dumps(state))
    assert deltas == sorted(deltas, reverse=True)
    assert deltas[-1] < deltas[0] < 1


def test_zero_stays_zero_under_constant_mass():
    best_of_all = WEIGHTS["constant_mass"](inner=WEIGHTS["passk_tang"]())
    assert flat(weigh(best_of_all, [[1.0, 1.0, 0.0]])) == [0.0] * 3
    reinforce = WEIGHTS["constant_mass"](inner=WEIGHTS["reinforce"]())
    assert flat(weigh(reinforce, [[1.0, 1.0], [0.0, 0.0]])) == [0.0] * 4


def test_constant_mass_leaves_unscored_rollouts_out():
    weight = WEIGHTS["constant_mass"](inner=WEIGHTS["power"]())
    rewards = np.array([[1.0, 0.0, 0.0, 1.0]])
    masked, _ = weight.update(rewards, {}, mask=np.array([[True, True, True, False]]))
    assert masked[0].tolist() == [*weigh(weight, [[1.0, 0.0, 0.0]])[0], 0.0]


# replay


def test_replay_uses_the_parameters_of_the_trace_at_each_step(tmp_path):
    trace = [[3.0, 1.0], [2.0, 0.5], [1.5, 0.25]]
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    weight = WEIGHTS["replay"](trace=str(tmp_path / "trace.json"))
    rewards, state = np.array(draw(7)), weight.init()
    for step, (alpha, delta) in enumerate(trace):
        weights_PG, state = weight.update(rewards, state, step=step)
        expected, _ = WEIGHTS["power_asym"](alpha=alpha, delta=delta).update(rewards, {})
        assert weights_PG.tolist() == expected.tolist()
        assert weight.report(state) == {"alpha": alpha, "delta": delta}
    with pytest.raises(UsageError, match=r"has nothing for step 3, only for 3 steps from 0 to 2$"):
        weight.update(rewards, state, step=3)


@every_library
def test_replay_sets_the_total_mass_of_the_trace(tmp_path, library):
    (tmp_path / "trace.json").write_text("[0.2, 0.05, 0]")
    power = WEIGHTS["power"](alpha=3.0)
    weight = WEIGHTS["replay"](trace=str(tmp_path / "trace.json"), what="mass", inner=power)
    rewards = draw(8)
    raw = weigh(power, rewards)
    for step, mass in enumerate((0.2, 0.05, 0.0)):
        actual = weigh(weight, rewards, library, step=step)
        factor = mass * 30 / sum(map(abs, flat(raw)))
        assert flat(actual) == close([[factor * w for w in row] for row in raw])
        m_S, m_F = gradient_mass(np.array(actual), np.array(rewards) == 1)
        assert m_S + m_F == pytest.approx(mass)


ROWS = [
    {"step": 0, "rollouts": 0, "test/pass@1": 0.1},
    {"step": 1, "weight/alpha": 3.0, "weight/delta": 1.0, "mass/positive": 0.1, "mass/negative": 0},
    {"step": 2, "weight/alpha": 2, "weight/delta": 0.5, "mass/positive": 0.1, "mass/negative": 0.3},
]


def test_replay_reads_the_metrics_of_a_run(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert WEIGHTS["replay"](trace=str(file)).entries == {0: (3.0, 1.0), 1: (2.0, 0.5)}
    assert WEIGHTS["replay"](trace=str(file), what="mass").entries == {0: (0.1,), 1: (0.4,)}


@pytest.mark.parametrize(
    ("content", "fields", "wanted"),
    [
        (None, {}, "trace FILE is neither a metrics.jsonl nor a JSON list: FileNotFoundError"),
        ("{", {}, "trace FILE is neither a metrics.jsonl nor a JSON list: JSONDecodeError"),
        ("[", {}, "trace FILE is neither a metrics.jsonl nor a JSON list: JSONDecodeError"),
        ('{"a": 1}', {}, "trace FILE is neither a metrics.jsonl nor a JSON list: KeyError"),
        ("3\n", {}, "trace FILE is neither a metrics.jsonl nor a JSON list: TypeError"),
        ("[]", {}, "trace FILE has no weight/alpha and weight/delta"),
        ('{"step": 0}\n', {"what": "mass"}, "trace FILE has no mass/positive and mass/negative"),
        (
            "[[1, 0]]",
            {},
            "trace FILE needs [alpha, delta], both above 0 for each batch, got [1, 0] ",
        ),
        ("[2]", {}, "trace FILE needs [alpha, delta], both above 0 for each batch, got 2 at 0"),
        ("[[1, 2]]", {"what": "mass"}, "trace FILE needs a total mass of at least 0 for each"),
        ("[-1]", {"what": "mass"}, "trace FILE needs a total mass of at least 0 for each batch"),
        ("[true]", {"what": "mass"}, "trace FILE needs a total mass of at least 0 for each batch"),
        ("[1]", {"what": "scale"}, "replay needs what one of alpha_delta, mass, got 'scale'"),
        (
            "[[1, 1]]",
            {"inner": WEIGHTS["power"]()},
            "replay of alpha and delta has no inner weight, got power; it belongs to what",
        ),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_shown(tmp_path, content, fields, wanted):
    file = tmp_path / "trace"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError) as raised:
        WEIGHTS["replay"](trace=str(file), **fields)
    assert str(raised.value).startswith(wanted.replace("FILE", str(file)))
    assert "\n" not in str(raised.value)


# mix and clip


@every_library
def test_mix_is_the_sum_of_both(library):
    rewards = draw(9)
    weight = WEIGHTS["mix"](
        first=WEIGHTS["maxrl"](), second=WEIGHTS["nsr"](), first_factor=0.25, second_factor=-2.0
    )
    first, second = weigh(WEIGHTS["maxrl"](), rewards), weigh(WEIGHTS["nsr"](), rewards)
    expected = [
        [0.25 * a - 2.0 * b for a, b in zip(*rows, strict=True)]
        for rows in zip(first, second, strict=True)
    ]
    assert flat(weigh(weight, rewards, library)) == close(expected)


def test_masses_of_a_mix_are_the_mix_of_the_masses():
    p_N = np.array([0.2, 0.7])
    actual = masses_of(WEIGHTS["mix"](first_factor=0.3, second_factor=0.7), p_N, 8)
    grpo_8, power_8 = (masses_of(WEIGHTS[name](), p_N, 8) for name in ("grpo", "power"))
    assert actual.m_S_N == pytest.approx(0.3 * grpo_8.m_S_N + 0.7 * power_8.m_S_N)
    assert actual.m_F_N == pytest.approx(0.3 * grpo_8.m_F_N + 0.7 * power_8.m_F_N)


@every_library
def test_clip_limits_the_inner_weight(library):
    rewards = draw(10)
    inner = WEIGHTS["maxrl"]()
    actual = weigh(WEIGHTS["clip"](inner=inner, low=-0.5, high=1.5), rewards, library)
    expected = [[min(max(w, -0.5), 1.5) for w in row] for row in weigh(inner, rewards)]
    assert flat(actual) == close(expected)
    assert min(flat(actual)) == -0.5
    assert max(flat(actual)) == 1.5


@pytest.mark.parametrize(
    ("name", "fields", "wanted"),
    [
        ("clip", {"low": 0.5}, "clip needs a finite low of at most 0, got 0.5"),
        ("clip", {"high": -1.0}, "clip needs a finite high of at least 0, got -1.0"),
        ("clip", {"high": math.inf}, "clip needs a finite high of at least 0, got inf"),
        ("mix", {"first_factor": math.nan}, "mix needs a finite first_factor, got nan"),
    ],
)
def test_a_field_out_of_range_is_shown(name, fields, wanted):
    with pytest.raises(UsageError, match=f"^{wanted}$"):
        WEIGHTS[name](**fields)
