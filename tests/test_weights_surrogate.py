"""The weight of a slope that the user writes: what it equals, and what is refused."""

import math

import numpy as np
import pytest
import torch

from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

GROUPS = [[float(g < s) for g in range(8)] for s in range(9)]
ARRAY = {"numpy": np.array, "torch": lambda rows: torch.tensor(rows, dtype=torch.float64)}


@pytest.mark.parametrize("library", ARRAY)
@pytest.mark.parametrize(
    ("slope", "name", "fields"),
    [
        ("1", "grpo", {}),
        ("G / (G - 1)", "rloo", {}),
        ("1/p", "maxrl", {"eps": 0.0}),
        ("1/sqrt(p*(1-p))", "grpo_std", {"ddof": 0, "eps": 0.0}),
        (" (1 - p)**2.5 ", "power", {"alpha": 3.5}),
        ("p ** -.5", "one_sided", {"eps": 0.0}),
        ("(1-p)/sqrt(p*(1-p))", "f_grpo", {"ddof": 0, "eps": 0.0}),
        ("(exp(2) - 1) / (2 * (1 + p * (exp(2) - 1)))", "rs_grpo", {"beta": 2.0}),
        ("exp(log(1 - p) * +1)", "power", {"alpha": 2.0}),
    ],
)
def test_a_slope_gives_the_weight_of_its_objective(slope, name, fields, library):
    rewards_PG = ARRAY[library](GROUPS)
    weights_PG, _ = WEIGHTS["surrogate"](slope=slope).update(rewards_PG, {})
    expected_PG, _ = WEIGHTS[name](**fields).update(rewards_PG, {})
    for weights, expected in zip(weights_PG.tolist(), expected_PG.tolist(), strict=True):
        assert weights == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize(
    ("slope", "part"),
    [
        ("q", "q"),
        ("p.real", "p.real"),
        ("p[0]", "p[0]"),
        ("sqrt", "sqrt"),
        ("abs(p)", "abs(p)"),
        ("sqrt(p, p)", "sqrt(p, p)"),
        ("__import__('os').system('true')", "__import__('os').system('true')"),
        ("p if p else 1", "p if p else 1"),
        ("p < 0.5", "p < 0.5"),
        ("1 + True", "True"),
        ("p // 2", "p // 2"),
        ("not p", "not p"),
        ("1j * p", "1j"),
        ("'p'", "'p'"),
        ("(lambda: p)()", "(lambda: p)()"),
    ],
)
def test_what_is_not_arithmetic_is_named(slope, part):
    with pytest.raises(UsageError) as caught:
        WEIGHTS["surrogate"](slope=slope)
    assert str(caught.value) == (
        "surrogate needs slope made of p, G, numbers, + - * / **, sqrt, log and exp, "
        f"got {part!r} in {slope!r}"
    )


@pytest.mark.parametrize(
    "slope",
    [
        "",
        "1/",
        "p p",
        "p = 1",
        "1; 2",
        "(" * 300 + "p" + ")" * 300,
        "9" * 400,
        "p\0",
        "p" + "+p" * 9999,
    ],
)
def test_what_cannot_be_read_is_shown(slope):
    with pytest.raises(UsageError) as caught:
        WEIGHTS["surrogate"](slope=slope)
    assert str(caught.value) == (
        f"surrogate needs slope to be an expression such as '1/p', got {slope!r}"
    )


@pytest.mark.parametrize("library", ARRAY)
@pytest.mark.parametrize(
    ("slope", "shown"),
    [
        ("log(p - 0.5)", "nan at p = 0.125, G = 8"),
        ("1 / (p - 0.5)", "inf at p = 0.5, G = 8"),
        ("9**9**9 * p", "inf at p = 0.125, G = 8"),
        ("(p - 0.5)**0.5", "nan at p = 0.125, G = 8"),
        ("1 / (G - 8)", "inf at p = 0.125, G = 8"),
    ],
)
def test_a_slope_without_a_value_says_where(slope, shown, library):
    with pytest.raises(UsageError) as caught:
        WEIGHTS["surrogate"](slope=slope).update(ARRAY[library](GROUPS), {})
    assert str(caught.value) == (
        f"the slope {slope!r} of surrogate is {shown}; it must be finite for 0 < p < 1"
    )


@pytest.mark.parametrize("library", ARRAY)
def test_groups_of_equal_rewards_need_no_value(library):
    rewards_PG = ARRAY[library]([[0.0] * 4, [1.0] * 4, [0.5] * 4])
    weights_PG, _ = WEIGHTS["surrogate"](slope="1 / (p - 0.5)").update(rewards_PG, {})
    assert weights_PG.tolist() == [[0.0] * 4] * 3


def test_the_slope_takes_the_rollouts_that_are_scored():
    rewards_PG = np.array([[1.0, 0.0, math.nan, math.nan], [1.0, 0.0, 0.0, 0.0]])
    mask = np.array([[True, True, False, False], [True] * 4])
    weights_PG, _ = WEIGHTS["surrogate"](slope="G").update(rewards_PG, {}, mask=mask)
    assert weights_PG.tolist() == [[1.0, -1.0, 0.0, 0.0], [3.0, -1.0, -1.0, -1.0]]
