"""What every registered weight promises of its numbers, on NumPy and torch, in every float type.

A weight that is added is tested here by itself. If its constructor has fields without defaults,
give them a value in ``golden/weight_fields.json``; other settings worth the suite are ``VARIANTS``.
"""

import dataclasses
import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

REQUIRED_FIELDS = json.loads((Path(__file__).parent / "golden" / "weight_fields.json").read_text())

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("reinforce", {"signed": True}),
    ("grpo_std", {"ddof": 0, "eps": 0.0}),
    ("power", {"alpha": 0.5}),
    ("asym_grpo_delta", {"delta": 2.0}),
    ("fade", {"target_entropy": 2.0}),
    ("fade", {"alpha_schedule": "entropy", "entropy_form": "relative", "target_entropy": 2.0}),
    ("fade", {"alpha_schedule": "log-decay", "delta_schedule": "log-decay"}),
    ("power_unbiased", {"alpha": 1}),
    ("pkpo_s", {"k": 1}),
    ("rs_grpo", {"beta": -3.0}),
    ("rs_grpo", {"beta": 0.0}),
    ("entropic", {"leave_one_out": True}),
    ("maxrl", {"eps": 0.0}),
    ("qae", {"interpolation": "linear", "K": 0.7}),
    ("curverl", {"window": 0}),
    ("sign_by_noise", {"alpha": 1.5, "noise_ratio": 0.3}),
    ("entropy_share", {"alpha": 2.5, "probe_every": 2}),
]


def build(name: str, fields: dict[str, Any]) -> Weight:
    try:
        return WEIGHTS[name](**fields)
    except TypeError as error:
        pytest.fail(f"give the fields that weight {name!r} needs in weight_fields.json: {error}")


CASES = [(name, REQUIRED_FIELDS.get(name, {})) for name in WEIGHTS.names()] + VARIANTS


def for_weights(keep: Callable[[type[Weight]], bool]) -> Any:
    """Run a test for every case whose class passes ``keep``."""
    cases = [(name, fields) for name, fields in CASES if keep(WEIGHTS[name])]
    ids = [f"{name}{list(fields.values()) or ''}" for name, fields in cases]
    return pytest.mark.parametrize("weight", cases, ids=ids, indirect=True)


every_weight = for_weights(lambda cls: True)
zero_sum_weights = for_weights(lambda cls: cls.zero_sum)
group_weights = for_weights(lambda cls: cls.scope == "group")
sign_keeping_weights = for_weights(lambda cls: cls.keeps_sign)


@pytest.fixture
def weight(request: pytest.FixtureRequest) -> Weight:
    return build(*request.param)


@dataclass(frozen=True)
class Backend:
    array: Callable[..., Any]
    dtype: Any
    bool_dtype: Any
    epsilon: float


BACKENDS = {
    "numpy-f64": Backend(np.array, np.float64, np.bool_, 2.0**-52),
    "numpy-f32": Backend(np.array, np.float32, np.bool_, 2.0**-23),
    "torch-f64": Backend(torch.tensor, torch.float64, torch.bool, 2.0**-52),
    "torch-f32": Backend(torch.tensor, torch.float32, torch.bool, 2.0**-23),
    "torch-bf16": Backend(torch.tensor, torch.bfloat16, torch.bool, 2.0**-7),
}
every_backend = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
first_and_last_backend = pytest.mark.parametrize(
    "backend", [BACKENDS["numpy-f64"], BACKENDS["torch-bf16"]], ids=["numpy-f64", "torch-bf16"]
)

# Exact in every float type, so that only the weights are rounded.
REWARDS = {
    "binary": (0.0, 1.0),
    "unit": (0.0, 1.0, 0.25, 0.5, 1.0, 0.0),
    "real": (0.0, 1.0, -1.5, 0.25, 3.0, 0.0),
}
Matrix = list[list[Any]]


@dataclass(frozen=True)
class Batch:
    """A batch in lists, with a signal of every shape: a weight picks what it needs."""

    rewards: Matrix
    mask: Matrix
    lengths: Matrix
    history: list[float]

    @classmethod
    def draw(cls, weight: Weight, seed: int, num_prompts: int = 7, group_size: int = 5) -> "Batch":
        rng = random.Random(seed)
        shape = [range(group_size)] * num_prompts
        return cls(
            [[rng.choice(REWARDS[weight.domain]) for _ in row] for row in shape],
            [[rng.random() < 0.8 for _ in row] for row in shape],
            [[rng.randint(1, 99) for _ in row] for row in shape],
            [rng.randint(1, 15) / 16 for _ in shape],
        )

    def take(self, prompts: list[int], rollouts: list[list[int]]) -> "Batch":
        def pick(matrix: Matrix) -> Matrix:
            orders = zip(prompts, rollouts, strict=True)
            return [[matrix[p][g] for g in order] for p, order in orders]

        history = [self.history[p] for p in prompts]
        return Batch(pick(self.rewards), pick(self.mask), pick(self.lengths), history)

    def signals(self, weight: Weight, backend: Backend) -> dict[str, Any]:
        successes = [[reward == 1 for reward in row] for row in self.rewards]
        signals = {
            "successes_PG": backend.array(successes, dtype=backend.bool_dtype),
            "lengths_PG": backend.array(self.lengths),
            "greedy_rewards_P": backend.array([float(x > 0.5) for x in self.history]),
            "solve_rate_P": backend.array(self.history),
            "score_squares": (2.0, 3.0),
            "entropy_nats": 0.9,
            "entropy_kind": "tokens",
            "policy_lag": 1,
            "step": 3,
            "num_steps": 9,
        }
        counts = {"num_success": 3, "num_scored": 8}  # would hide what the rewards say
        return signals | {key: counts[key] for key in counts if key in weight.needs}

    def update(
        self, weight: Weight, backend: Backend, state: Any = None, use_mask: bool = True
    ) -> tuple[Matrix, Any]:
        weights_PG, state = weight.update(
            backend.array(self.rewards, dtype=backend.dtype),
            weight.init() if state is None else state,
            mask=backend.array(self.mask, dtype=backend.bool_dtype) if use_mask else None,
            **self.signals(weight, backend),
        )
        assert weights_PG.dtype == backend.dtype
        assert tuple(weights_PG.shape) == (len(self.rewards), len(self.rewards[0]))
        return weights_PG.tolist(), state


def fixed(rewards: Matrix, mask: Matrix | None = None) -> Batch:
    mask = [[True] * len(row) for row in rewards] if mask is None else mask
    lengths = [[7 + g for g, _ in enumerate(row)] for row in rewards]
    return Batch(rewards, mask, lengths, [0.4] * len(rewards))


def flat(matrix: Matrix) -> list[Any]:
    return [value for row in matrix for value in row]


def near(matrix: Matrix, epsilon: float) -> Any:
    """Equal but for the last digit of the weights, and the rounding of float64 statistics."""
    largest = max(map(abs, flat(matrix)), default=0.0)
    return pytest.approx(flat(matrix), rel=epsilon, abs=1e-12 * max(1.0, largest))


def test_a_weight_that_cannot_be_constructed_is_named():
    with pytest.raises(pytest.fail.Exception, match=r"'power_asym' needs in .*json: .*alpha"):
        build("power_asym", {})
    assert set(REQUIRED_FIELDS) <= set(WEIGHTS.names())


@every_backend
@every_weight
def test_permuting_prompts_and_rollouts_permutes_the_weights(weight, backend):
    batch, rng = Batch.draw(weight, seed=1), random.Random(2)
    prompts = rng.sample(range(7), 7)
    rollouts = [rng.sample(range(5), 5) for _ in prompts]
    weights, state = batch.update(weight, backend)
    moved, moved_state = batch.take(prompts, rollouts).update(weight, backend)
    expected = [[weights[p][g] for g in order] for p, order in zip(prompts, rollouts, strict=True)]
    assert flat(moved) == near(expected, backend.epsilon)
    assert moved_state == state
    assert any(flat(weights))


@every_backend
@every_weight
def test_masked_rollouts_get_zero_and_have_no_influence(weight, backend):
    batch = Batch.draw(weight, seed=3)
    junk = [math.nan, math.inf, -math.inf, -7.0, 0.3]

    def spoil(matrix: Matrix) -> Matrix:
        rows = zip(matrix, batch.mask, strict=True)
        return [[x if m else y for x, m, y in zip(*row, junk, strict=True)] for row in rows]

    other = dataclasses.replace(batch, rewards=spoil(batch.rewards), lengths=spoil(batch.lengths))
    weights, state = batch.update(weight, backend)
    assert other.update(weight, backend) == (weights, state)
    outside = [w for w, m in zip(flat(weights), flat(batch.mask), strict=True) if not m]
    assert outside
    assert not any(outside)


@every_backend
@every_weight
def test_groups_of_equal_rewards_are_treated_as_declared(weight, backend):
    value = 1.0 if weight.domain == "binary" else 0.7  # 7 * 0.7 / 7 is not 0.7 in floats
    mixed = [0.0, 1.0] + [0.0] * 5
    weights, _ = fixed([[value] * 7, [1.0] * 7, [0.0] * 7, mixed]).update(weight, backend)
    hidden = fixed([[value] * 6 + [0.0], mixed], [[True] * 6 + [False], [True] * 7])
    hidden_weights, _ = hidden.update(weight, backend)
    tied = flat(weights[:3]) + hidden_weights[0]
    if weight.on_ties == "zero":
        assert tied == [0.0] * 28
    else:
        assert any(tied)
    assert any(weights[3])


@every_backend
@every_weight
def test_a_batch_without_scored_rollouts_gets_zeros(weight, backend):
    start = Batch.draw(weight, seed=5).update(weight, backend)[1]
    batch = fixed([[0.0, 1.0, 1.0], [math.nan] * 3], [[False] * 3] * 2)
    weights, state = batch.update(weight, backend, start)
    assert flat(weights) == [0.0] * 6
    assert state.keys() == start.keys()
    assert all_finite(state)


@every_backend
@zero_sum_weights
def test_weights_of_a_group_sum_to_zero_where_declared(weight, backend):
    weights, _ = Batch.draw(weight, seed=6).update(weight, backend)
    for row in weights:
        assert abs(sum(row)) <= backend.epsilon * sum(map(abs, row))
    assert any(flat(weights))


@every_backend
@every_weight
def test_ragged_batches_are_weighed_like_dense_ones(weight, backend):
    batch, rng = Batch.draw(weight, seed=7), random.Random(8)
    cells = [(p, g) for p in range(7) for g in range(5) if batch.mask[p][g]]
    rng.shuffle(cells)

    def pick(matrix: Matrix, dtype: Any = None) -> Any:
        return backend.array([matrix[p][g] for p, g in cells], dtype=dtype)

    signals = batch.signals(weight, backend)
    signals["lengths_PG"] = pick(batch.lengths)
    signals["successes_PG"] = pick(signals["successes_PG"].tolist(), backend.bool_dtype)
    for key in ("greedy_rewards_P", "solve_rate_P"):
        of_prompts = signals[key].tolist()
        signals[key] = backend.array([of_prompts[p] for p, _ in cells])
    weights_B, state = weight.weigh(
        pick(batch.rewards, backend.dtype), [f"prompt {p}" for p, _ in cells], **signals
    )
    dense, dense_state = batch.update(weight, backend)
    assert weights_B.dtype == backend.dtype
    assert weights_B.tolist() == near([[dense[p][g] for p, g in cells]], backend.epsilon)
    assert state == dense_state


@every_backend
@every_weight
def test_a_group_of_one_carries_signal_only_where_declared(weight, backend):
    batch = fixed([[1.0], [0.0], [1.0]])
    if weight.min_group_size > 1:
        with pytest.raises(UsageError, match=r"^weight .* needs groups of .* got groups of 1$"):
            batch.update(weight, backend)
    else:
        weights, _ = batch.update(weight, backend)
        assert any(flat(weights)) == (not weight.needs_group)


@every_backend
@every_weight
def test_a_group_of_which_too_few_are_scored_gets_zeros(weight, backend):
    size = weight.min_group_size
    mask = [[g < size - 1 for g in range(size + 1)], [True] * (size + 1)]
    rewards = [[float(g % 2) for g in range(size + 1)]] * 2
    weights, _ = fixed(rewards, mask).update(weight, backend)
    assert weights[0] == [0.0] * (size + 1)
    assert any(weights[1])


@every_backend
@every_weight
def test_statistics_are_float64_and_only_the_weights_are_rounded(weight, backend):
    batch = Batch.draw(weight, seed=9)
    weights, state = batch.update(weight, backend)
    exact, exact_state = batch.update(weight, BACKENDS["numpy-f64"])
    assert flat(weights) == near(exact, backend.epsilon)
    assert state == exact_state


def all_finite(state: Any) -> bool:
    if isinstance(state, dict):
        return all(map(all_finite, state.values()))
    if isinstance(state, list):
        return all(map(all_finite, state))
    return not isinstance(state, float) or math.isfinite(state)


@first_and_last_backend
@every_weight
def test_a_thousand_updates_survive_a_checkpoint_on_the_way(weight, backend):
    # Without a state each update is the first.
    num_steps = 1000 if weight.init() else 20
    rng = random.Random(10)
    batches = []
    for seed in range(10):
        batch = Batch.draw(weight, seed, num_prompts=3, group_size=4)
        batches.append(
            (
                backend.array(batch.rewards, dtype=backend.dtype),
                backend.array(batch.mask, dtype=backend.bool_dtype),
                batch.signals(weight, backend),
            )
        )
    state = weight.init()
    for step in range(num_steps):
        rewards_PG, mask_PG, signals = rng.choice(batches)
        signals |= {
            "step": step,
            "num_steps": num_steps,
            "entropy_nats": rng.choice((None, 0.0, 3.0)),
        }
        weights_PG, after = weight.update(rewards_PG, state, mask=mask_PG, **signals)
        assert all_finite(after)
        if step == num_steps // 2:
            restored = json.loads(json.dumps(state))
            assert restored == state
            again_PG, after = weight.update(rewards_PG, restored, mask=mask_PG, **signals)
            assert again_PG.tolist() == weights_PG.tolist()
        state = after
    assert all(map(math.isfinite, flat(weights_PG.tolist())))


@every_backend
@every_weight
def test_an_update_modifies_none_of_its_arguments(weight, backend):
    batch = Batch.draw(weight, seed=11)
    state = batch.update(weight, backend)[1]
    rewards_PG = backend.array(batch.rewards, dtype=backend.dtype)
    mask_PG = backend.array(batch.mask, dtype=backend.bool_dtype)
    signals = batch.signals(weight, backend)
    arguments = (state, rewards_PG, mask_PG, signals)
    before = repr(arguments)
    weights_PG, _ = weight.update(rewards_PG, state, mask=mask_PG, **signals)
    weights_PG += 1
    assert repr(arguments) == before


@sign_keeping_weights
def test_successes_are_never_pushed_down_and_failures_never_up_where_declared(weight):
    backend = BACKENDS["numpy-f64"]
    rng, size = random.Random(12), weight.min_group_size + 1
    groups = [list(group) for group in itertools.product((0.0, 1.0), repeat=size)]
    batches = [[rng.choice(groups) for _ in range(3)] for _ in range(12)]
    for rewards in [*batches, groups]:
        weights, _ = fixed(rewards).update(weight, backend)
        for reward, value in zip(flat(rewards), flat(weights), strict=True):
            assert value >= 0 if reward else value <= 0


@group_weights
def test_a_batch_split_in_two_gets_the_same_weights(weight):
    values = (0.0, 1.0) if weight.domain == "binary" else (0.0, 0.1, 0.7, 1.0)
    backend = BACKENDS["numpy-f64"]

    @settings(derandomize=True, max_examples=20, deadline=None, database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        size = data.draw(st.integers(weight.min_group_size, weight.min_group_size + 4))
        row = st.lists(st.sampled_from(values), min_size=size, max_size=size)
        rewards = data.draw(st.lists(row, min_size=2, max_size=5))
        cut = data.draw(st.integers(1, len(rewards) - 1))
        whole, _ = fixed(rewards).update(weight, backend)
        parts = (rewards[:cut], rewards[cut:])
        split = [row for part in parts for row in fixed(part).update(weight, backend)[0]]
        assert flat(whole) == near(split, 2.0**-52)

    check()
