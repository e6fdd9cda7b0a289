"""Weights of one group against their formulas, written out in plain Python."""

import itertools
import math
import random
import statistics
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight
from gradmass.weights.dapo import informative_groups

Group = list[float]
Oracle = Callable[[Group], list[float]]


def mean(values: list[float]) -> Fraction:
    return sum(map(Fraction, values)) / len(values)


def standard_scores(group: Group, ddof: int, eps: float) -> list[float]:
    variance = sum((Fraction(r) - mean(group)) ** 2 for r in group) / (len(group) - ddof)
    return [float(Fraction(r) - mean(group)) / (math.sqrt(variance) + eps) for r in group]


def others(group: Group, i: int) -> Group:
    return group[:i] + group[i + 1 :]


def rloo(group: Group) -> list[float]:
    return [float(Fraction(r) - mean(others(group, i))) for i, r in enumerate(group)]


def grpo_loo_std(group: Group) -> list[float]:
    weights = []
    for i, r in enumerate(group):
        rest = others(group, i)
        spread = statistics.stdev(rest) if len(rest) > 1 else 0.0
        difference = float(Fraction(r) - mean(rest))
        weights.append(difference / (spread + 1e-6) if spread > 0 else difference)
    return weights


def floored_scores(group: Group) -> list[float]:
    return [float(Fraction(r) - mean(group)) / max(statistics.stdev(group), 0.2) for r in group]


def psr(group: Group) -> list[float]:
    return [1.0 if r == 1 else 0.0 for r in group]


def nsr(group: Group) -> list[float]:
    return [0.0 if r == 1 else -1.0 for r in group]


def w_reinforce(group: Group) -> list[float]:
    return [0.25 if r == 1 else -1.0 for r in group]


def asymre(group: Group) -> list[float]:
    if len(group) == 1:
        return [0.0]
    return [float(Fraction(r) - mean(group) - Fraction(-0.1)) for r in group]


def asym_grpo_power(group: Group) -> list[float]:
    odds = float(mean(group) / (1 - mean(group)))
    return [(1 / odds) ** 0.9 if r == 1 else -(odds**0.4) for r in group]


def qae_paper(group: Group, order: Fraction) -> list[float]:
    baseline = min(x for x in group if Fraction(sum(y <= x for y in group), len(group)) >= order)
    return [(r - baseline) / (statistics.stdev(group) + 1e-6) for r in group]


def qae_linear(group: Group, order: Fraction) -> list[float]:
    position = order * (len(group) - 1)
    low, high = (sorted(group)[n] for n in (math.floor(position), math.ceil(position)))
    baseline = low + float(position - math.floor(position)) * (high - low)
    return [(r - baseline) / (statistics.stdev(group) + 1e-6) for r in group]


def rs_grpo(group: Group, beta: float) -> list[float]:
    if beta == 0:
        return [float(Fraction(r) - mean(group)) for r in group]
    soft = math.log(math.fsum(math.exp(beta * r) for r in group) / len(group)) / beta
    return [(math.exp(beta * (r - soft)) - 1) / beta for r in group]


def entropic(group: Group) -> list[float]:
    average = math.fsum(math.exp(2 * r) for r in group) / len(group)
    return [math.exp(2 * r) / average - 1 for r in group]


def entropic_leave_one_out(group: Group) -> list[float]:
    weights = []
    for i, r in enumerate(group):
        rest = [math.exp(2 * x) for x in others(group, i)]
        weights.append(math.exp(2 * r) / (math.fsum(rest) / len(rest)) - 1)
    return weights


def maxrl(group: Group) -> list[float]:
    return [float((Fraction(r) - mean(group)) / (mean(group) + Fraction(1e-6))) for r in group]


def maxrl_conditional(group: Group) -> list[float]:
    solved = group.count(1)
    return [(len(group) - solved) / solved if r == 1 else -1.0 for r in group]


def one_sided(group: Group) -> list[float]:
    return [float(Fraction(r) - mean(group)) / (math.sqrt(mean(group)) + 1e-6) for r in group]


def f_grpo(group: Group) -> list[float]:
    return [float(1 - mean(group)) ** 0.5 * z for z in standard_scores(group, 1, 1e-6)]


def grpo_lead(group: Group) -> list[float]:
    def logistic(x: float) -> float:
        return 0.4 + (1.5 - 0.4) / (1 + math.exp(10 * (x - 0.75)))

    p = float(mean(group))
    return [z * logistic(p if z > 0 else 1 - p) for z in standard_scores(group, 1, 1e-6)]


def mgpo(group: Group) -> list[float]:
    p = float(mean(group))
    divergence = p * math.log(p / 0.5) + (1 - p) * math.log((1 - p) / 0.5)
    return [math.exp(-1.5 * divergence) * z for z in standard_scores(group, 1, 1e-6)]


def surrogate(group: Group) -> list[float]:
    p = float(mean(group))
    slope = math.exp(-p) * math.log(1 + len(group)) - p**2 / -2 + math.sqrt(p)
    return [slope * float(Fraction(r) - mean(group)) for r in group]


ORACLES: list[tuple[str, dict[str, Any], Oracle]] = [
    ("rloo", {}, rloo),
    ("grpo_loo_std", {}, grpo_loo_std),
    ("grpo_std", {"eps": 0.0, "std_floor": 0.2}, floored_scores),
    ("psr", {}, psr),
    ("nsr", {}, nsr),
    ("w_reinforce", {"success_weight": 0.25}, w_reinforce),
    ("asymre", {}, asymre),
    ("asym_grpo_power", {}, asym_grpo_power),
    ("qae", {}, lambda group: qae_paper(group, Fraction(2, 5))),
    ("qae", {"K": 0.75}, lambda group: qae_paper(group, Fraction(3, 4))),
    ("qae", {"interpolation": "linear"}, lambda group: qae_linear(group, Fraction(2, 5))),
    ("rs_grpo", {}, lambda group: rs_grpo(group, 2.0)),
    ("rs_grpo", {"beta": -3.0}, lambda group: rs_grpo(group, -3.0)),
    ("rs_grpo", {"beta": 0.0}, lambda group: rs_grpo(group, 0.0)),
    ("entropic", {}, entropic),
    ("entropic", {"leave_one_out": True}, entropic_leave_one_out),
    ("maxrl", {}, maxrl),
    ("maxrl_conditional", {}, maxrl_conditional),
    ("one_sided", {}, one_sided),
    ("f_grpo", {"gamma": 0.5}, f_grpo),
    ("grpo_lead", {}, grpo_lead),
    ("mgpo", {"sharpness": 1.5}, mgpo),
    ("surrogate", {"slope": "exp(-p)*log(1 + G) - p**2/-2 + sqrt(p)"}, surrogate),
]
ARRAY = {"numpy": np.array, "torch": lambda rows: torch.tensor(rows, dtype=torch.float64)}


def draw_groups(weight: Weight) -> list[Group]:
    """All binary groups of up to five, and some of real rewards where the weight takes them."""
    groups = [list(g) for size in range(1, 6) for g in itertools.product((0.0, 1.0), repeat=size)]
    if weight.domain != "binary":
        rng = random.Random(1)
        low = 0.0 if weight.domain == "unit" else -2.0
        values = [low, 0.1, 0.25, 0.7, 1.0]
        groups += [[rng.choice(values) for _ in range(rng.randint(1, 7))] for _ in range(60)]
        groups += [[rng.uniform(low, 1) for _ in range(rng.randint(2, 7))] for _ in range(60)]
    return groups


@pytest.mark.parametrize("library", ARRAY)
@pytest.mark.parametrize(("name", "fields", "oracle"), ORACLES)
def test_ragged_groups_are_weighed_by_the_formula(name, fields, oracle, library):
    weight = WEIGHTS[name](**fields)
    groups = draw_groups(weight)
    width = max(map(len, groups))
    rewards = [group + [math.nan] * (width - len(group)) for group in groups]
    mask = [[g < len(group) for g in range(width)] for group in groups]
    weights_PG, _ = weight.update(ARRAY[library](rewards), {}, mask=mask)
    for group, weights in zip(groups, weights_PG.tolist(), strict=True):
        is_tied = len(set(group)) == 1 and weight.on_ties == "zero"
        expected = [0.0] * len(group) if is_tied else oracle(group)
        assert weights[: len(group)] == pytest.approx(expected, rel=1e-11, abs=1e-12), group


@pytest.mark.parametrize("library", ARRAY)
@pytest.mark.parametrize(
    ("order", "size", "rank"), [(0.7, 10, 7), (0.1, 30, 3), (0.28, 25, 7), (0.29, 100, 29)]
)
def test_the_quantile_is_at_the_rank_that_the_order_names(order, size, rank, library):
    rewards = [float(n) for n in range(1, size + 1)]
    weights_PG, _ = WEIGHTS["qae"](K=order).update(ARRAY[library]([rewards]), {})
    assert [n for n, w in enumerate(weights_PG.tolist()[0], start=1) if w == 0] == [rank]


@pytest.mark.parametrize("library", ARRAY)
@pytest.mark.parametrize(("beta", "expected"), [(1e5, 3e-5), (-1e5, 1e-5), (1e-9, 0.75)])
def test_neither_large_nor_small_beta_is_lost_in_rounding(beta, expected, library):
    rewards_PG = ARRAY[library]([[1.0, 0.0, 0.0, 0.0]])
    weights_PG, _ = WEIGHTS["rs_grpo"](beta=beta).update(rewards_PG, {})
    assert weights_PG.tolist()[0] == pytest.approx(
        [expected, *[-expected / 3] * 3], rel=1e-8, abs=0
    )


@pytest.mark.parametrize("library", ARRAY)
def test_left_one_out_weights_keep_what_a_dominant_rollout_would_drown(library):
    rewards = [1.0, 0.5, 0.0, 0.25]
    entropic = WEIGHTS["entropic"](beta=90.0, leave_one_out=True)
    weights_PG, _ = entropic.update(ARRAY[library]([rewards]), {})
    for i, weight in enumerate(weights_PG.tolist()[0]):
        rest = [math.exp(90 * (r - rewards[i])) for r in others(rewards, i)]
        assert weight == pytest.approx(3 / math.fsum(rest) - 1, rel=1e-12)


def test_a_left_one_out_weight_beyond_floats_is_refused():
    entropic = WEIGHTS["entropic"](beta=800.0, leave_one_out=True)
    with pytest.raises(UsageError, match=r"^weight entropic\(.*\) gave NaN or infinite weights"):
        entropic.update(np.array([[1.0, 0.0]]), {})


@pytest.mark.parametrize("library", ARRAY)
def test_others_that_are_equal_do_not_divide_by_the_rounding_of_their_spread(library):
    loo_std = WEIGHTS["grpo_loo_std"](eps=0.0)
    weights_PG, _ = loo_std.update(ARRAY[library]([[0.7] * 6 + [0.1]]), {})
    *equal, lone = weights_PG.tolist()[0]
    assert lone == pytest.approx(-0.6)
    assert equal == pytest.approx([0.1 / math.sqrt(0.06)] * 6)


@pytest.mark.parametrize("library", ARRAY)
def test_groups_with_a_signal_are_those_whose_scored_rewards_differ(library):
    rewards = [[1.0, 0.0], [0.7, 0.7], [0.0, math.nan], [math.nan, math.nan], [0.7, 0.8]]
    mask = [[True, True], [True, True], [True, False], [False, False], [True, True]]
    keep_P = informative_groups(ARRAY[library](rewards), mask)
    assert keep_P.tolist() == [True, False, False, False, True]
    assert informative_groups(ARRAY[library]([[1.0, 0.0, 0.0]])).tolist() == [True]
    with pytest.raises(UsageError, match=r"^reward nan of group 2, rollout 1: .*$"):
        informative_groups(ARRAY[library](rewards))


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_masses_have_their_closed_forms(size, p):
    q = 1 - p
    expected = {
        "rloo": (p * q, p * q),
        "psr": (p, 0),
        "nsr": (0, q),
        "w_reinforce": (0.1 * p, q),
        "asymre": (p * (q * (size - 1) / size + 0.1), q * (p * (size - 1) / size - 0.1)),
        "maxrl": (q - q**size, q - q**size),
        "maxrl_conditional": (q - q**size, q),
    }
    groups = list(itertools.product((0.0, 1.0), repeat=size))
    chances = [p ** sum(g) * q ** (size - sum(g)) for g in groups]
    for name, masses in expected.items():
        weight = WEIGHTS[name](eps=0.0) if name == "maxrl" else WEIGHTS[name]()
        weights_PG, _ = weight.update(np.array(groups), {})
        m_success = m_failure = 0.0
        for group, weights, chance in zip(groups, weights_PG, chances, strict=True):
            m_success += chance * sum(w for r, w in zip(group, weights, strict=True) if r) / size
            m_failure -= (
                chance * sum(w for r, w in zip(group, weights, strict=True) if not r) / size
            )
        assert (m_success, m_failure) == pytest.approx(masses, rel=1e-12, abs=1e-14), name
