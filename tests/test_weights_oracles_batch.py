"""Weights that look beyond the group, at lengths, greedy answers, the batch or earlier batches."""

import math
import random
import statistics
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta as beta_distribution

from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

Group = list[float]
Rows = list[list[float]]

ARRAY = {"numpy": np.array, "torch": lambda rows: torch.tensor(rows, dtype=torch.float64)}
every_library = pytest.mark.parametrize("library", ARRAY)


def is_tied(group: Group) -> bool:
    return len(set(group)) == 1


def centred(group: Group) -> Group:
    mean = sum(map(Fraction, group)) / len(group)
    return [float(Fraction(r) - mean) for r in group]


def whiten(values: Rows, lengths: Rows) -> Rows:
    """Each value once for each of its tokens, as verl's masked_whiten sees them."""
    tokens = [
        v
        for vs, ns in zip(values, lengths, strict=True)
        for v, n in zip(vs, ns, strict=True)
        for _ in range(int(n))
    ]
    mean, variance = statistics.fmean(tokens), statistics.variance(tokens)
    return [[(v - mean) / math.sqrt(variance + 1e-8) for v in vs] for vs in values]


def ones(groups: Rows) -> Rows:
    return [[1.0] * len(group) for group in groups]


def batch_baseline(groups: Rows, lengths: Rows) -> Rows:
    rewards = [r for group in groups for r in group]
    return [[r - statistics.fmean(rewards) for r in group] for group in groups]


def plus_plus(groups: Rows, lengths: Rows) -> Rows:
    return whiten(groups, lengths)


def plus_plus_baseline(groups: Rows, lengths: Rows) -> Rows:
    return whiten([centred(group) for group in groups], lengths)


def batch_std(groups: Rows, lengths: Rows) -> Rows:
    spread = statistics.stdev([r for group in groups for r in group]) + 1e-4
    return [[c / spread for c in centred(group)] for group in groups]


def gpg(groups: Rows, lengths: Rows) -> Rows:
    rewards = [r for group in groups for r in group]
    factor = len(rewards) / max(sum(r != 0 for r in rewards), 1) / 2.0
    return [[factor * c for c in centred(group)] for group in groups]


def opo(groups: Rows, lengths: Rows) -> Rows:
    weights = []
    for group, ns in zip(groups, lengths, strict=True):
        baseline = sum(n * r for n, r in zip(ns, group, strict=True)) / sum(ns)
        weights.append([r - baseline for r in group])
    return weights


def a_grae(groups: Rows, lengths: Rows) -> Rows:
    batch = statistics.fmean(map(statistics.fmean, groups))
    weights = []
    for group in groups:
        mean = statistics.fmean(group)
        row = []
        for c in centred(group):
            z = c / (statistics.stdev(group) + 1e-6) if not is_tied(group) else 0.0
            a = (1 - batch) * 0.5 * z / (1 - math.sqrt(mean) + 1e-6)
            a += batch * 0.5 * z / (math.sqrt(mean) + 1e-6)
            row.append(a * min(1.0, batch / 0.5) if a > 0 else a)
        weights.append(row)
    return weights


def bnpo(groups: Rows, lengths: Rows) -> Rows:
    means = [statistics.fmean(group) for group in groups]
    m, v = statistics.fmean(means), statistics.variance(means)
    a, b = (m * (1 - m) / v - 1) * m, (m * (1 - m) / v - 1) * (1 - m)
    density = beta_distribution(max(1, 1 + a / 3), max(1, 1 + b / 3)).pdf
    return [
        [c / density(p) if not is_tied(group) else 0.0 for c in centred(group)]
        for group, p in zip(groups, means, strict=True)
    ]


BatchOracle = Callable[[Rows, Rows], Rows]
ORACLES: list[tuple[str, dict[str, Any], BatchOracle]] = [
    ("reinforce_batch_baseline", {}, batch_baseline),
    ("reinforce_plus_plus", {}, plus_plus),
    ("reinforce_plus_plus_baseline", {}, plus_plus_baseline),
    ("grpo_batch_std", {}, batch_std),
    ("gpg", {"f_norm": 2.0}, gpg),
    ("opo", {}, opo),
    ("a_grae", {"alpha": 0.5}, a_grae),
    ("bnpo", {}, bnpo),
]


def draw_batch(seed: int, is_unit: bool) -> tuple[Rows, Rows]:
    rng = random.Random(seed)
    values = [0.0, 0.0, 1.0, 0.25] if is_unit else [0.0, 1.0, -1.5, 0.7]
    sizes = [rng.randint(2, 6) for _ in range(8)]
    groups = [[rng.choice(values) for _ in range(size)] for size in sizes]
    groups[0] = [values[2]] * sizes[0]
    return groups, [[float(rng.randint(1, 9)) for _ in range(size)] for size in sizes]


def update(
    weight: Any, groups: Rows, library: str, lengths: Rows | None, state: Any = None
) -> tuple[Rows, Any]:
    """Weigh ragged groups, padded with rollouts that are not scored."""
    width = max(map(len, groups))

    def pad(rows: Rows) -> Any:
        return ARRAY[library]([row + [math.nan] * (width - len(row)) for row in rows])

    mask = [[g < len(group) for g in range(width)] for group in groups]
    signals = {} if lengths is None else {"lengths_PG": pad(lengths)}
    state = weight.init() if state is None else state
    weights_PG, state = weight.update(pad(groups), state, mask=mask, **signals)
    rows = weights_PG.tolist()
    return [row[: len(group)] for row, group in zip(rows, groups, strict=True)], state


@every_library
@pytest.mark.parametrize(("name", "fields", "oracle"), ORACLES)
def test_ragged_batches_are_weighed_by_the_formula(name, fields, oracle, library):
    weight = WEIGHTS[name](**fields)
    for seed in range(12):
        groups, lengths = draw_batch(seed, weight.domain == "unit")
        rows, _ = update(weight, groups, library, lengths)
        for group, row, expected in zip(groups, rows, oracle(groups, lengths), strict=True):
            if is_tied(group) and weight.on_ties == "zero":
                expected = [0.0] * len(group)
            assert row == pytest.approx(expected, rel=1e-11, abs=1e-12)


@every_library
@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_without_lengths_each_rollout_counts_once(name, library):
    oracle = plus_plus if name == "reinforce_plus_plus" else plus_plus_baseline
    groups, _ = draw_batch(3, False)
    rows, _ = update(WEIGHTS[name](), groups, library, None)
    for row, expected in zip(rows, oracle(groups, ones(groups)), strict=True):
        assert row == pytest.approx(expected, rel=1e-11, abs=1e-12)
    if name == "reinforce_plus_plus_baseline":
        assert rows[0] == [0.0] * len(rows[0]), "a tied group, exactly"


@every_library
@pytest.mark.parametrize(
    "name", ["reinforce_batch_baseline", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
)
def test_a_batch_of_equal_rewards_gets_zeros_without_rounding(name, library):
    rows, _ = update(WEIGHTS[name](), [[0.7] * 7, [0.7] * 3], library, [[3.0] * 7, [9.0, 1.0, 5.0]])
    assert rows == [[0.0] * 7, [0.0] * 3]


@every_library
@pytest.mark.parametrize("groups", [[[1.0, 0.0, 0.0]], [[1.0, 0.0]] * 3, [[1.0, 0.0], [0.0, 1.0]]])
def test_a_batch_whose_means_do_not_vary_is_weighed_as_by_grpo(groups, library):
    rows, _ = update(WEIGHTS["bnpo"](), groups, library, None)
    for row, group in zip(rows, groups, strict=True):
        assert row == pytest.approx(centred(group), rel=1e-14)


@every_library
def test_a_solve_rate_that_the_batch_lacks_is_weighed_up_to_a_limit(library):
    groups = [[1.0] * 50 + [0.0] * 50] * 200 + [[1.0] + [0.0] * 99]
    rows, _ = update(WEIGHTS["bnpo"](), groups, library, None)
    assert rows[-1] == pytest.approx([0.99e6] + [-0.01e6] * 99)


@every_library
def test_the_greedy_answer_is_the_baseline_of_its_prompt(library):
    remax = WEIGHTS["remax"]()
    rewards, greedy = [[1.0, 0.0, 0.5], [1.0, 0.0, 0.0]], [0.25, 1.0]
    weights_PG, _ = remax.update(
        ARRAY[library](rewards), {}, greedy_rewards_P=ARRAY[library](greedy)
    )
    assert weights_PG.tolist() == [[0.75, -0.25, 0.25], [0.0, -1.0, -1.0]]
    # Flat, each rollout brings the number of its prompt.
    order = [(1, 0), (0, 2), (1, 2), (0, 0), (0, 1), (1, 1)]
    weights_B, _ = remax.weigh(
        ARRAY[library]([rewards[p][g] for p, g in order]),
        [f"prompt {p}" for p, _ in order],
        greedy_rewards_P=ARRAY[library]([greedy[p] for p, _ in order]),
    )
    assert weights_B.tolist() == [weights_PG[p, g].item() for p, g in order]


def curverl_factors(earlier: list[list[Group]], groups: Rows) -> list[float]:
    """f / F of each group: its bin among all groups of mixed rewards of the earlier batches."""
    num_bins = max(map(len, groups)) + 1

    def bins(batch: Rows) -> list[int]:
        rates = [
            Fraction(sum(map(int, group)), len(group)) for group in batch if not is_tied(group)
        ]
        return [math.floor(rate * num_bins) for rate in rates]

    pool = [b for batch in earlier for b in bins(batch)] or bins(groups)
    factors = []
    for group in groups:
        own = bins([group])
        same = sum(b == own[0] for b in pool) if own else 0
        factors.append(same / sum(b <= own[0] for b in pool) if same else 0.0)
    return factors


@every_library
@pytest.mark.parametrize("window", [0, 1, 3, 10])
def test_curverl_follows_its_formula_through_a_run(window, library):
    rng, curverl = random.Random(window), WEIGHTS["curverl"](window=window)
    state, history, num_weighed = curverl.init(), [], 0
    for step in range(15):
        sizes = [rng.choice((3, 4, 4, 8)) for _ in range(6)]
        groups = [[float(rng.random() < 0.4) for _ in range(size)] for size in sizes]
        if step == 7:
            groups = [[1.0] * size for size in sizes]  # counts as a batch, and holds nothing
        rows, state = update(curverl, groups, library, None, state)
        factors = curverl_factors(history[max(0, step - window) :], groups)
        for group, row, factor in zip(groups, rows, factors, strict=True):
            assert row == pytest.approx([factor * c for c in centred(group)], abs=1e-14)
            num_weighed += factor > 0
        history.append(groups)
        assert len(state["window"]) == min(step + 1, window + 1)
    assert num_weighed > 20


@pytest.mark.parametrize(
    ("name", "signals", "message"),
    [
        (
            "opo",
            {"lengths_PG": np.array([[3.0]])},
            r"lengths_PG has shape \(1, 1\), rewards have shape \(1, 2\)",
        ),
        (
            "opo",
            {"lengths_PG": np.array([[3.0, 0.0]])},
            r"lengths_PG is 0.0 for group 0, rollout 1: it must be finite and above 0; .* mask",
        ),
        (
            "reinforce_plus_plus",
            {"lengths_PG": np.array([[math.inf, 1.0]])},
            r"lengths_PG is inf for group 0, rollout 0: .*",
        ),
        (
            "remax",
            {"greedy_rewards_P": np.array([1.0, 0.0])},
            r"greedy_rewards_P has shape \(2,\), rewards have shape \(1, 2\)",
        ),
        ("remax", {"greedy_rewards_P": np.array([math.nan])}, "weight remax gave NaN .*"),
    ],
)
def test_signals_that_cannot_be_are_refused(name, signals, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        WEIGHTS[name]().update(np.array([[1.0, 0.0]]), {}, **signals)
