"""Weights that count subsets of a group, against brute force over the subsets."""

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

Group = list[float]
Oracle = Callable[[Group, int], list[Fraction]]

ARRAY = {"numpy": np.array, "torch": lambda rows: torch.tensor(rows, dtype=torch.float64)}
every_library = pytest.mark.parametrize("library", ARRAY)


def subsets(items: Any, k: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(items, k))


def best(group: Group, chosen: tuple[int, ...]) -> Fraction:
    return max(Fraction(group[j]) for j in chosen)


def without(group: Group, i: int) -> list[int]:
    return [j for j in range(len(group)) if j != i]


# PKPO as published: weights for the sum over rollouts, from all subsets of k.


def sum_s(group: Group, k: int) -> list[Fraction]:
    chosen = subsets(range(len(group)), k)
    return [
        sum((best(group, c) for c in chosen if i in c), Fraction(0)) / len(chosen)
        for i in range(len(group))
    ]


def sum_sloo(group: Group, k: int) -> list[Fraction]:
    weights = []
    for i, s in enumerate(sum_s(group, k)):
        rest = [group[j] for j in without(group, i)]
        weights.append(s - sum(sum_s(rest, k)) / len(rest))
    return weights


def sum_sloo_minus_one(group: Group, k: int) -> list[Fraction]:
    chosen = subsets(range(len(group)), k)
    return [
        sum(
            (best(group, c) - best(group, tuple(j for j in c if j != i)) for c in chosen if i in c),
            Fraction(0),
        )
        / len(chosen)
        for i in range(len(group))
    ]


def sum_tang(group: Group, k: int) -> list[Fraction]:
    whole = best(group, tuple(range(len(group))))
    return [whole - best(group, tuple(without(group, i))) for i in range(len(group))]


def for_the_mean(oracle: Oracle) -> Oracle:
    return lambda group, k: [len(group) * w for w in oracle(group, k)]


# Estimators over drawn subsets of the outcomes of the other rollouts.


def unbiased_power(group: Group, alpha: int) -> list[Fraction]:
    """A success gets the chance that alpha others all fail; a failure what balances it."""
    weights = []
    for i, r in enumerate(group):
        drawn = subsets(without(group, i), alpha)
        if r == 1:
            hits = sum(all(group[j] == 0 for j in c) for c in drawn)
        else:  # one succeeds, the place of rollout i aside the others fail: any of the alpha
            hits = -Fraction(sum(sum(group[j] for j in c) == 1 for c in drawn)) / alpha
        weights.append(Fraction(hits) / len(drawn))
    return weights


def maclaurin(group: Group, terms: int) -> list[Fraction]:
    weights = []
    for i, r in enumerate(group):
        rest = without(group, i)
        total = Fraction(0)
        for t in range(1, min(terms, len(group))):
            drawn = subsets(rest, t)
            total += Fraction(sum(all(group[j] == 0 for j in c) for c in drawn), len(drawn))
        weights.append(Fraction(1) if r == 1 else -total)
    return weights


def chen(group: Group, k: int) -> list[float]:
    """GRPO over all drawn groups of k, the reward of a drawn group being its best."""
    drawn = subsets(range(len(group)), k)
    rewards = [best(group, c) for c in drawn]
    mean = sum(rewards) / len(drawn)
    spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(drawn)) + 1e-6
    weights = []
    for i in range(len(group)):
        own = [r - mean for r, c in zip(rewards, drawn, strict=True) if i in c]
        weights.append(float(sum(own) / len(own)) / spread)
    return weights


BINARY: list[tuple[str, str, Callable[[Group, int], list[Any]], int]] = [
    ("power_unbiased", "alpha", unbiased_power, 1),
    ("maclaurin", "T", maclaurin, 0),
    ("passk_chen", "k", chen, 0),
]
REAL: list[tuple[str, Oracle, int]] = [
    ("pkpo_s", for_the_mean(sum_s), 0),
    ("pkpo_sloo", for_the_mean(sum_sloo), 1),
    ("pkpo_sloo_minus_one", for_the_mean(sum_sloo_minus_one), 0),
]


def real_groups(size: int, number: int) -> list[Group]:
    rng = random.Random(size)
    few = [0.0, 1.0, 0.25, -1.5]  # ties within the group
    drawn = [[rng.choice(few) for _ in range(size)] for _ in range(number)]
    return drawn + [[rng.uniform(-1, 1) for _ in range(size)] for _ in range(number)]


@every_library
@pytest.mark.parametrize(("name", "field", "oracle", "spare"), BINARY)
def test_binary_groups_are_weighed_by_the_subsets(name, field, oracle, spare, library):
    for size in range(2, 7):
        groups = [list(group) for group in itertools.product((0.0, 1.0), repeat=size)]
        for k in range(1, size + 1 - spare):
            weight = WEIGHTS[name](**{field: k})
            weights_PG, _ = weight.update(ARRAY[library](groups), {})
            for group, weights in zip(groups, weights_PG.tolist(), strict=True):
                expected = [float(w) for w in oracle(group, k)]
                assert weights == pytest.approx(expected, rel=1e-12, abs=1e-12), (group, k)


@every_library
@pytest.mark.parametrize(("name", "oracle", "spare"), REAL)
def test_groups_of_real_rewards_are_weighed_by_the_subsets(name, oracle, spare, library):
    least = 2 if name == "pkpo_sloo_minus_one" else 1
    for size in range(2, 7):
        groups = real_groups(size, 8)
        for k in range(least, size + 1 - spare):
            weights_PG, _ = WEIGHTS[name](k=k).update(ARRAY[library](groups), {})
            for group, weights in zip(groups, weights_PG.tolist(), strict=True):
                expected = [float(w) for w in oracle(group, k)]
                assert weights == pytest.approx(expected, rel=1e-12, abs=1e-12), (group, k)
                # Equal rewards get equal weights, to the last digit.
                assert len(set(zip(group, weights, strict=True))) == len(set(group))


@every_library
def test_the_best_of_the_whole_group_is_what_it_adds(library):
    sloo_minus_one, tang = WEIGHTS["pkpo_sloo_minus_one"], WEIGHTS["passk_tang"]()
    for size in range(2, 7):
        groups = real_groups(size, 20)
        weights_PG, _ = tang.update(ARRAY[library](groups), {})
        margin_PG, _ = WEIGHTS["grpo_passk"]().update(ARRAY[library](groups), {})
        whole_PG, _ = sloo_minus_one(k=size).update(ARRAY[library](groups), {})
        rows = (weights_PG.tolist(), margin_PG.tolist(), whole_PG.tolist())
        for group, weights, margin, whole in zip(groups, *rows, strict=True):
            expected = [float(w) for w in sum_tang(group, size)]
            assert margin == pytest.approx(expected, rel=1e-12, abs=1e-12)
            assert weights == pytest.approx([size * w for w in expected], rel=1e-12, abs=1e-12)
            assert whole == pytest.approx(weights, rel=1e-12, abs=1e-12)
            assert sum(w != 0 for w in margin) <= 1, "all but the best are left alone"


@every_library
@pytest.mark.parametrize(("name", "oracle", "spare"), REAL)
def test_ragged_groups_have_their_own_number_of_rollouts(name, oracle, spare, library):
    rng, k = random.Random(4), 3
    groups = [real_groups(size, 1)[0] for size in (8, 3, 4, 5, 2, 1, 7)]
    rewards = [group + [math.nan] * (8 - len(group)) for group in groups]
    places = [rng.sample(range(8), 8) for _ in groups]
    shuffled = [[row[j] for j in order] for row, order in zip(rewards, places, strict=True)]
    mask = [[not math.isnan(r) for r in row] for row in shuffled]
    weights_PG, _ = WEIGHTS[name](k=k).update(ARRAY[library](shuffled), {}, mask=mask)
    for group, order, weights in zip(groups, places, weights_PG.tolist(), strict=True):
        expected = [0.0] * 8
        if len(group) >= k + spare:
            expected[: len(group)] = [float(w) for w in oracle(group, k)]
        assert weights == pytest.approx([expected[j] for j in order], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("k", [2, 5])
def test_credits_of_a_published_example(k):
    # Two successes of four: pass@2 credits 1/2 and 1/3, 1/12 and -1/12 about their mean.
    credit_PG, _ = WEIGHTS["pkpo_s"](k=2).update(np.array([[1.0, 1.0, 0.0, 0.0]]), {})
    assert (credit_PG[0] / 4).tolist() == pytest.approx([1 / 2, 1 / 2, 1 / 3, 1 / 3])
    centred_PG, _ = WEIGHTS["grpo"]().update(credit_PG / 4, {})
    assert centred_PG[0].tolist() == pytest.approx([1 / 12, 1 / 12, -1 / 12, -1 / 12])
    # With k = 1 the credit is the reward, and about its mean it is GRPO.
    rewards_PG = np.array([[float(g < k) for g in range(7)]])
    plain_PG, _ = WEIGHTS["pkpo_s"](k=1).update(rewards_PG, {})
    assert plain_PG.tolist() == rewards_PG.tolist()


@pytest.mark.parametrize(
    ("name", "fields", "least"),
    [
        ("pkpo_s", {"k": 4}, 4),
        ("pkpo_sloo", {"k": 4}, 5),
        ("pkpo_sloo_minus_one", {"k": 4}, 4),
        ("passk_chen", {"k": 4}, 4),
        ("power_unbiased", {"alpha": 4}, 5),
    ],
)
def test_groups_that_are_all_too_small_are_refused(name, fields, least):
    weight = WEIGHTS[name](**fields)
    shown = rf"^weight {name}\(\w+=4\) needs groups of at least {least} rollouts, got groups of 3$"
    with pytest.raises(UsageError, match=shown):
        weight.update(np.array([[1.0, 0.0, 0.0]]), {})
    # A group that masks have made too small is no mistake: it gives no signal.
    rewards_PG = np.array([[1.0, *[0.0] * least], [1.0, *[0.0] * least]])
    mask = np.array([[True] * (least - 1) + [False] * 2, [True] * (least + 1)])
    weights_PG, _ = weight.update(rewards_PG, {}, mask=mask)
    assert not weights_PG[0].any()
    assert weights_PG[1].any()


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("size", [3, 5, 8])
def test_masses_have_their_closed_forms(size, p):
    q, k = 1 - p, 3
    groups = np.array(list(itertools.product((0.0, 1.0), repeat=size)))
    chance_P = p ** groups.sum(1) * q ** (size - groups.sum(1))
    expected = {
        ("passk_tang", ""): (size * p * q ** (size - 1), 0),
        ("grpo_passk", ""): (p * q ** (size - 1), 0),
        ("pkpo_sloo_minus_one", "k"): (k * p * q ** (k - 1), 0),
        ("pkpo_s", "k"): (k * p, -k * q * (1 - q ** (k - 1))),
        ("maclaurin", "T"): (p, q**2 + q**3),
    }
    if size > k:
        credit, other = 1 - q ** (k - 1), size / (size - 1) * (1 - q**k)
        expected["pkpo_sloo", "k"] = (k * p * (1 - other), -k * q * (credit - other))
        expected["power_unbiased", "alpha"] = (p * q**k, p * q**k)
    for (name, field), (m_success, m_failure) in expected.items():
        weight = WEIGHTS[name](**({field: k} if field else {}))
        weights_PG, _ = weight.update(groups, {})
        of_successes = (chance_P[:, None] * weights_PG)[groups == 1].sum() / size
        of_failures = -(chance_P[:, None] * weights_PG)[groups == 0].sum() / size
        assert of_successes == pytest.approx(m_success, rel=1e-12, abs=1e-14), name
        assert of_failures == pytest.approx(m_failure, rel=1e-12, abs=1e-14), name
