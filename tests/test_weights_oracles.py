"""Every weight against its equation, written out with fractions and loops that share no code."""

import itertools
import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

Group = list[float]
GroupOracle = Callable[[Group], list[float]]
BatchOracle = Callable[[list[Group]], list[list[float]]]


# The equations. A group holds the scored rollouts of one prompt.


def reinforce(group: Group, signed: bool) -> list[float]:
    return [2 * r - 1 if signed else r for r in group]


def grpo(group: Group) -> list[float]:
    mean = sum(map(Fraction, group)) / len(group)
    return [float(Fraction(r) - mean) for r in group]


def grpo_std(group: Group, ddof: int, eps: float) -> list[float]:
    if len(set(group)) == 1:
        return [0.0] * len(group)
    mean = sum(map(Fraction, group)) / len(group)
    variance = sum((Fraction(r) - mean) ** 2 for r in group) / (len(group) - ddof)
    return [float(Fraction(r) - mean) / (math.sqrt(variance) + eps) for r in group]


def power_asym(group: Group, alpha: float, delta: float) -> list[float]:
    if len(set(group)) == 1:
        return [0.0] * len(group)
    mean = sum(map(Fraction, group)) / len(group)
    factor = float(1 - mean) ** (alpha - 1)
    return [
        factor * float(Fraction(r) - mean) / (1 if Fraction(r) >= mean else delta) for r in group
    ]


def group_by_group(oracle: GroupOracle) -> BatchOracle:
    return lambda groups: [oracle(group) if group else [] for group in groups]


def fade_first_step(groups: list[Group]) -> list[list[float]]:
    """FADE's first batch, without entropy: delta 1, alpha from .98 * .5 and .02 of its solve rate.

    A rollout succeeds where its reward is at least one half, which ``verdicts`` says as well.
    """
    rollouts = [r for group in groups for r in group]
    solve_rate = sum(r >= 0.5 for r in rollouts) / len(rollouts)
    average = 0.98 * 0.5 + 0.02 * solve_rate
    alpha = min(max(3 * (1 - average) / (2 * average), 1), 3)
    return [power_asym(group, alpha, 1.0) if group else [] for group in groups]


def verdicts(rewards: Any) -> Any:
    return rewards >= 0.5


ORACLES: list[tuple[str, dict[str, Any], BatchOracle]] = [
    ("reinforce", {}, group_by_group(partial(reinforce, signed=False))),
    ("reinforce", {"signed": True}, group_by_group(partial(reinforce, signed=True))),
    ("grpo", {}, group_by_group(grpo)),
    ("grpo_std", {}, group_by_group(partial(grpo_std, ddof=1, eps=1e-6))),
    ("grpo_std", {"ddof": 0, "eps": 0.0}, group_by_group(partial(grpo_std, ddof=0, eps=0.0))),
    ("grpo_std", {"eps": 0.25}, group_by_group(partial(grpo_std, ddof=1, eps=0.25))),
    ("power", {}, group_by_group(partial(power_asym, alpha=2.0, delta=1.0))),
    ("power", {"alpha": 0.5}, group_by_group(partial(power_asym, alpha=0.5, delta=1.0))),
    ("power", {"alpha": 1.0}, group_by_group(partial(power_asym, alpha=1.0, delta=1.0))),
    ("power", {"alpha": 3.7}, group_by_group(partial(power_asym, alpha=3.7, delta=1.0))),
    ("asym_grpo_delta", {}, group_by_group(partial(power_asym, alpha=1.0, delta=0.5))),
    ("asym_grpo_delta", {"delta": 3}, group_by_group(partial(power_asym, alpha=1.0, delta=3.0))),
    (
        "power_asym",
        {"alpha": 2.5, "delta": 0.3},
        group_by_group(partial(power_asym, alpha=2.5, delta=0.3)),
    ),
    (
        "power_asym",
        {"alpha": 0.5, "delta": 2.0},
        group_by_group(partial(power_asym, alpha=0.5, delta=2.0)),
    ),
    ("fade", {}, fade_first_step),
]
every_weight = pytest.mark.parametrize(
    ("name", "fields", "oracle"),
    [pytest.param(*case, id=f"{case[0]}{list(case[1].values()) or ''}") for case in ORACLES],
)
ARRAY = {
    "numpy": np.array,
    "torch": lambda rows: torch.tensor(
        rows, dtype=torch.bool if np.array(rows).dtype == bool else torch.float64
    ),
}
every_library = pytest.mark.parametrize("library", ARRAY)


def binary_groups(size: int) -> list[Group]:
    return [list(group) for group in itertools.product((0.0, 1.0), repeat=size)]


def assert_close(actual: list[list[float]], expected: list[list[float]]) -> None:
    assert [len(row) for row in actual] == [len(row) for row in expected]
    flat = [value for row in expected for value in row]
    assert [value for row in actual for value in row] == pytest.approx(flat, rel=1e-12, abs=1e-13)


def test_every_weight_has_an_oracle_in_one_of_these_files():
    folder = Path(__file__).parent
    others = ("test_entropy_controllers.py", "test_entropy_share.py", "test_weights_beyond.py")
    files = [*folder.glob("test_weights_oracles*.py"), *(folder / name for name in others)]
    text = "".join(file.read_text() for file in files)
    controls = {name for name in WEIGHTS.names() if WEIGHTS[name].__module__.endswith("controls")}
    assert [
        name for name in WEIGHTS.names() if f'"{name}"' not in text and name not in controls
    ] == []


@every_library
@every_weight
def test_all_binary_groups_of_up_to_five_are_weighed_by_the_equation(name, fields, oracle, library):
    weight = WEIGHTS[name](**fields)
    for size in range(1, 6):
        groups = binary_groups(size)
        weights_PG, _ = weight.update(ARRAY[library](groups), weight.init())
        assert_close(weights_PG.tolist(), oracle(groups))


@every_library
@every_weight
def test_groups_of_real_rewards_are_weighed_by_the_equation(name, fields, oracle, library):
    weight = WEIGHTS[name](**fields)
    groups = [
        [0.2, 0.9, 0.5, 0.1, 1.0],
        [0.0, 1e-3, 0.0, 0.0, 0.0],
        [0.7, 0.7, 0.7, 0.7, 0.7],
        [0.25, 0.5, 0.75, 0.5, 0.5],  # rewards at the mean
    ]
    if weight.domain == "real":
        groups += [[-1.0, 2.0, 0.5, 1e6, -1e6], [-3.0, -3.0, -2.5, -3.0, -3.0]]
    rewards_PG = ARRAY[library](groups)
    weights_PG, _ = weight.update(rewards_PG, weight.init(), successes_PG=verdicts(rewards_PG))
    assert_close(weights_PG.tolist(), oracle(groups))


@every_library
@every_weight
def test_a_difference_too_small_for_the_mean_gives_no_infinite_weight(
    name, fields, oracle, library
):
    weight = WEIGHTS[name](**fields)
    for group in ([1.0, 1.0, 1.0 - 2**-53], [0.0, 1e-200, 1e-200]):
        rewards_PG = ARRAY[library]([group])
        weights_PG, _ = weight.update(rewards_PG, weight.init(), successes_PG=verdicts(rewards_PG))
        assert all(abs(value) <= 2 for value in weights_PG.tolist()[0])


@every_library
@every_weight
def test_a_mask_takes_rollouts_out_of_the_equation(name, fields, oracle, library):
    weight = WEIGHTS[name](**fields)
    pairs = list(itertools.product(binary_groups(4), itertools.product((False, True), repeat=4)))
    masks = [list(mask) for _, mask in pairs]
    scored = [list(itertools.compress(group, mask)) for group, mask in pairs]
    weights_PG, _ = weight.update(
        ARRAY[library]([group for group, _ in pairs]), weight.init(), mask=ARRAY[library](masks)
    )
    rows = weights_PG.tolist()
    kept = [list(itertools.compress(row, mask)) for row, mask in zip(rows, masks, strict=True)]
    assert_close(kept, oracle(scored))
    outside = [
        value
        for row, mask in zip(rows, masks, strict=True)
        for value, is_scored in zip(row, mask, strict=True)
        if not is_scored
    ]
    assert outside == [0.0] * len(outside)


IDS: dict[str, Callable[[list[int]], Any]] = {
    "list of strings": lambda numbers: [f"prompt {number:03}/draw" for number in numbers],
    "array of strings": lambda numbers: np.array([str(number) for number in numbers]),
    "list of pairs": lambda numbers: [(number // 7, number % 7) for number in numbers],
    "list of integers": lambda numbers: [1000 - 17 * number for number in numbers],
    "array of integers": lambda numbers: np.array(numbers) * 11 - 300,
    "tensor of integers": lambda numbers: torch.tensor(numbers) * 11 - 300,
    "list of tensors": lambda numbers: list(torch.tensor(numbers)),
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
@every_library
@every_weight
def test_shuffled_ragged_groups_are_weighed_by_the_equation(name, fields, oracle, library, ids):
    weight = WEIGHTS[name](**fields)
    rng = random.Random(3)
    groups = [group for size in range(1, 6) for group in binary_groups(size)]
    rollouts = [(number, r) for number, group in enumerate(groups) for r in group]
    rng.shuffle(rollouts)
    is_scored_B = [rng.random() < 0.8 for _ in rollouts]
    weights_B, _ = weight.weigh(
        ARRAY[library]([r for _, r in rollouts]),
        ids([number for number, _ in rollouts]),
        mask=ARRAY[library](is_scored_B),
    )
    scored: list[Group] = [[] for _ in groups]
    for (number, reward), is_scored in zip(rollouts, is_scored_B, strict=True):
        if is_scored:
            scored[number].append(reward)
    # Rollouts of a group keep their order, so that each takes the next weight of its group.
    remaining = [iter(group) for group in oracle(scored)]
    expected_B = [
        next(remaining[number]) if is_scored else 0.0
        for (number, _), is_scored in zip(rollouts, is_scored_B, strict=True)
    ]
    assert_close([weights_B.tolist()], [expected_B])


# Schedules: equations (12) and (13), their variants, and the ablations.


def random_trace(seed: int, num_steps: int) -> Iterator[dict[str, Any]]:
    """Batches of a run that goes from unsolved to solved and loses its entropy, with gaps."""
    rng = random.Random(seed)
    for step in range(num_steps):
        progress = step / num_steps
        chance = min(1.0, max(0.0, 1.4 * progress - 0.2))
        groups = [[float(rng.random() < chance) for _ in range(4)] for _ in range(5)]
        share_scored = 0.0 if rng.random() < 0.1 else 0.9
        masks = [[rng.random() < share_scored for _ in range(4)] for _ in range(5)]
        entropy = 2.4 * (1 - progress) * rng.uniform(0.9, 1.1)
        is_measured = step > 2 and rng.random() < 0.8
        yield {"groups": groups, "masks": masks, "entropy": entropy if is_measured else None}


def literal_exponents(
    batches: list[dict[str, Any]],
    *,
    alpha_max: float = 3.0,
    delta_min: float = 0.3,
    ema: float = 0.02,
    target_entropy: float | str = "half-initial",
    entropy_form: str = "absolute",
    alpha_schedule: str = "solve-rate",
    delta_schedule: str = "entropy",
) -> list[tuple[float, float]]:
    """Alpha and delta of every step."""
    solve_rate, entropy, first_entropy = 0.5, None, None
    exponents = []
    for step, batch in enumerate(batches):
        scored = [
            reward
            for group, mask in zip(batch["groups"], batch["masks"], strict=True)
            for reward, is_scored in zip(group, mask, strict=True)
            if is_scored
        ]
        if scored:
            solve_rate += ema * (sum(scored) / len(scored) - solve_rate)
        if batch["entropy"] is not None:
            if entropy is None:
                entropy = first_entropy = batch["entropy"]
            entropy += ema * (batch["entropy"] - entropy)
        target = target_entropy
        if target_entropy == "half-initial" and first_entropy is not None:
            target = first_entropy / 2
        share = math.log(1 + step) / math.log(1 + len(batches))

        if alpha_schedule == "solve-rate":
            wanted = 3 * (1 - solve_rate) / (2 * solve_rate) if solve_rate > 0 else math.inf
            alpha = min(max(wanted, 1.0), alpha_max)
        elif alpha_schedule == "entropy":
            height = 1.0
            if entropy is not None:
                height = min(max((entropy - target) / (first_entropy - target), 0.0), 1.0)
            alpha = 1 + (alpha_max - 1) * height
        else:
            alpha = alpha_max - (alpha_max - 1) * share if alpha_schedule == "log-decay" else 1.0

        if delta_schedule == "entropy":
            delta = 1.0
            if entropy is not None:
                level = entropy / target if entropy_form == "relative" else 1 + entropy - target
                delta = min(max(level, delta_min), 1.0)
        else:
            delta = 1 - (1 - delta_min) * share if delta_schedule == "log-decay" else 1.0
        exponents.append((alpha, delta))
    return exponents


SCHEDULES: dict[str, dict[str, Any]] = {
    "equations 12 and 13": {"target_entropy": 1.0, "ema": 0.1},
    "defaults": {},
    "half the first entropy": {"ema": 0.2, "delta_min": 0.15},
    "relative": {"entropy_form": "relative", "target_entropy": 1.3, "ema": 0.2},
    "relative to half the first": {"entropy_form": "relative", "ema": 0.5},
    "other bounds": {"alpha_max": 5.5, "delta_min": 0.6, "target_entropy": 2.0, "ema": 0.1},
    "no memory": {"ema": 1.0, "target_entropy": 1.0},
    "both by entropy": {"alpha_schedule": "entropy", "ema": 0.1},
    "both by entropy, target given": {
        "alpha_schedule": "entropy",
        "target_entropy": 0.5,
        "ema": 0.1,
    },
    "both by time": {"alpha_schedule": "log-decay", "delta_schedule": "log-decay"},
    "alpha by time": {"alpha_schedule": "log-decay", "target_entropy": 1.0},
    "delta by time": {"delta_schedule": "log-decay", "delta_min": 0.5},
    "without alpha": {"alpha_schedule": "constant", "ema": 0.1},
    "without delta": {"delta_schedule": "constant", "ema": 0.1},
    "neither": {"alpha_schedule": "constant", "delta_schedule": "constant"},
}


@pytest.mark.parametrize("fields", SCHEDULES.values(), ids=SCHEDULES)
def test_schedules_follow_their_equations_through_a_random_run(fields):
    fade, batches = WEIGHTS["fade"](**fields), list(random_trace(5, 120))
    state = fade.init()
    for step, (batch, (alpha, delta)) in enumerate(
        zip(batches, literal_exponents(batches, **fields), strict=True)
    ):
        weights_PG, state = fade.update(
            np.array(batch["groups"]),
            state,
            mask=np.array(batch["masks"]),
            entropy_nats=batch["entropy"],
            step=step,
            num_steps=len(batches),
        )
        report = fade.report(state)
        assert (report["alpha"], report["delta"]) == pytest.approx((alpha, delta), abs=1e-12)
        for row, group, mask in zip(weights_PG, batch["groups"], batch["masks"], strict=True):
            scored = list(itertools.compress(group, mask))
            expected = power_asym(scored, alpha, delta) if scored else []
            assert_close([row[np.array(mask)].tolist()], [expected])


def test_the_random_run_reaches_both_bounds_of_both_exponents_and_the_range_between():
    fields = SCHEDULES["equations 12 and 13"]
    alphas, deltas = zip(*literal_exponents(list(random_trace(5, 120)), **fields), strict=True)
    assert (min(alphas), max(alphas)) == (1.0, 3.0)
    assert (min(deltas), max(deltas)) == (0.3, 1.0)
    assert sum(1 < alpha < 3 for alpha in alphas) > 10
    assert sum(0.3 < delta < 1 for delta in deltas) > 10


def test_alpha_has_the_published_breakpoints():
    fade = WEIGHTS["fade"]()
    for solve_rate, alpha in ((1 / 3, 3.0), (3 / 7, 2.0), (1 / 2, 1.5), (0.6, 1.0), (0.0, 3.0)):
        state = {**fade.init(), "alpha": {"solve_rate_ema": solve_rate}}
        assert fade.report(state)["alpha"] == pytest.approx(alpha, abs=1e-12)


def test_the_solve_rate_comes_from_counts_before_verdicts_before_rewards():
    fade = WEIGHTS["fade"](ema=1.0)

    def solve_rate(rewards: list[list[float]], **signals: Any) -> float:
        _, state = fade.update(np.array(rewards), fade.init(), **signals)
        return state["alpha"]["solve_rate_ema"]

    verdicts_PG = np.array([[True, True, True, False]])
    assert solve_rate([[1.0, 0.0, 0.0, 0.0]]) == 0.25
    assert solve_rate([[1.0, 0.0, 0.0, 0.0]], successes_PG=verdicts_PG) == 0.75
    counts = {"num_success": 1, "num_scored": 8}
    assert solve_rate([[1.0, 0.0, 0.0, 0.0]], successes_PG=verdicts_PG, **counts) == 0.125
    masked = np.array([[False, True, True, True]])
    assert solve_rate([[1.0, 0.0, 0.0, 1.0]], mask=masked) == pytest.approx(1 / 3)
    with pytest.raises(UsageError, match="pass successes_PG"):
        solve_rate([[0.4, 0.0]])


def test_the_first_entropy_starts_the_average_and_none_leaves_it_alone():
    fade = WEIGHTS["fade"](ema=0.25)
    rewards_PG, state = np.array([[1.0, 0.0]]), fade.init()
    seen = []
    for entropy in (None, 0.8, None, 0.4):
        _, state = fade.update(rewards_PG, state, entropy_nats=entropy)
        seen.append((state["delta"]["entropy_ema"], state["delta"]["entropy_initial"]))
    assert seen == [(None, None), (0.8, 0.8), (0.8, 0.8), (pytest.approx(0.7), 0.8)]
