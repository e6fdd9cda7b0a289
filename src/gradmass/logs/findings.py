"""What a log says, as one plain JSON document."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradmass.logs.answers import duplicates, entropy_of, lengths_of
from gradmass.logs.layout import Layout
from gradmass.logs.problems import problems_of
from gradmass.logs.rollouts import Rollouts
from gradmass.logs.unknown import cannot_tell
from gradmass.logs.weighing import computed, describe, likeness, try_weigh
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

LIKELY = ("grpo", "grpo_std", "grpo_batch_std", "rloo")
"""Weights that logged ones are compared with."""
NUM_TENTHS = 10
MOST_BARS = 15
"""Largest number of classes of mixed groups that are told apart exactly."""


def analyse(
    log: Rollouts, weight: Weight | None = None, compared: Sequence[Weight] = ()
) -> dict[str, Any]:
    """Say everything that a log of rollouts says.

    Args:
        log: From ``read_log``.
        weight: The one in use; None takes the weights that were logged, if any.
        compared: Others, on the same rollouts.

    Returns:
        ``log`` (what was read, and how), ``solve_rates``, ``groups``, ``rewards``, ``weights``,
        ``problems``; ``duplicates``, ``lengths`` and ``entropy`` where the log has what they need
        (None otherwise), and ``cannot_tell``.

    Raises:
        UsageError: The weight in use cannot be computed on this log.
    """
    layout = Layout.of(log)
    weights = []
    if weight is not None:
        weights.append(computed(log, layout, weight))
    elif log.weight_B is not None:
        weights.append(_as_logged(log, layout))
    weights += [try_weigh(log, layout, other) for other in compared]
    document = {
        "log": _what(log, layout),
        "solve_rates": _solve_rates(log, layout),
        "groups": _groups(log, layout),
        "rewards": _rewards(log, layout),
        "weights": weights,
        "weight_in_use": weights[0]["label"] if weight or log.weight_B is not None else None,
        "problems": problems_of(log, layout),
        "duplicates": duplicates(log),
        "lengths": lengths_of(log, layout),
        "entropy": entropy_of(log, layout),
    }
    return {**document, "cannot_tell": cannot_tell(log, document)}


def _what(log: Rollouts, layout: Layout) -> dict[str, Any]:
    sizes, counts = np.unique(layout.size_P, return_counts=True)
    steps = np.unique(log.step_B)
    columns = {
        role: value for role, value in vars(log.roles).items() if value and role != "rewards"
    }
    return {
        "format": log.source.format,
        "files": [str(file) for file in log.source.files],
        "columns": columns,
        "reward_factors": log.roles.rewards,
        "verdicts": None if log.verdicts is None else log.verdicts.source,
        "notes": list(log.notes),
        "num_rollouts": len(log),
        "num_groups": len(layout.size_P),
        "num_problems": len(np.unique(log.problem_B)),
        "num_steps": len(steps),
        "steps": [int(steps[0]), int(steps[-1])],
        "windows": [list(window) for window in layout.windows],
        "group_sizes": {str(size): int(count) for size, count in zip(sizes, counts, strict=True)},
    }


def _solve_rates(log: Rollouts, layout: Layout) -> dict[str, Any] | None:
    """Histogram of the groups' solve rates and its mean, by window; None without verdicts.

    Groups that are all wrong or all right are counted apart: they carry no signal. The mixed ones
    are counted by their number of right answers, 1 to G - 1, where all groups are of one size of up
    to ``MOST_BARS + 1``, else by tenths.
    """
    if log.verdicts is None:
        return None
    num_P, right_P = layout.is_scored_PG.sum(1), layout.is_right_PG.sum(1)
    size = int(layout.size_P.max())
    is_counted = bool((layout.size_P == size).all()) and 2 <= size <= MOST_BARS + 1
    windows = []
    for window in range(len(layout.windows)):
        at_P = (layout.window_P == window) & (num_P > 0)
        num_U, right_U = num_P[at_P], right_P[at_P]
        inner_U = (right_U > 0) & (right_U < num_U)
        if is_counted:
            bar_U = right_U[inner_U] - 1
        else:
            bar_U = right_U[inner_U] * NUM_TENTHS // num_U[inner_U]
        windows.append(
            {
                "mean": float(right_U.sum() / num_U.sum()) if len(num_U) else None,
                "all_wrong": int((right_U == 0).sum()),
                "mixed": np.bincount(bar_U, minlength=size - 1 if is_counted else 10).tolist(),
                "all_right": int((right_U == num_U).sum()),
            }
        )
    return {
        "mean": float(right_P.sum() / num_P.sum()) if num_P.any() else None,
        "num_unscored": int((~log.verdicts.is_known_B).sum()),
        "mixed_by": "number of right answers" if is_counted else "tenths",
        "by_window": windows,
    }


def _groups(log: Rollouts, layout: Layout) -> dict[str, Any]:
    """Groups without signal: too hard, too easy, tied for another reason; and what they cost."""
    num_P = layout.is_scored_PG.sum(1)
    reward_PG = layout.matrix(np.nan_to_num(log.reward_B))
    has_reward_PG = layout.matrix(np.isfinite(log.reward_B)).astype(bool)
    high_P = np.where(has_reward_PG, reward_PG, -np.inf).max(1)
    low_P = np.where(has_reward_PG, reward_PG, np.inf).min(1)
    is_tied_P = ~(high_P > low_P)
    found: dict[str, Any] = {
        "num": len(num_P),
        "num_single": int((layout.size_P == 1).sum()),
        "tied": float(is_tied_P.mean()),
        "cost": _cost(log, layout, is_tied_P),
    }
    if log.verdicts is None:
        return found | {
            "by_window": [
                {"tied": float(is_tied_P[layout.window_P == window].mean())}
                for window in range(len(layout.windows))
            ]
        }
    right_P = layout.is_right_PG.sum(1)
    is_hard_P, is_easy_P = (right_P == 0) & (num_P > 0), (right_P == num_P) & (num_P > 0)
    kinds = {
        "too_hard": is_hard_P,
        "too_easy": is_easy_P,
        "unscored": num_P == 0,
        "mixed": ~is_hard_P & ~is_easy_P & (num_P > 0),
        "tied": is_tied_P,
    }
    is_without_P = is_hard_P | is_easy_P | (num_P == 0)
    mean = float(right_P.sum() / max(1, num_P.sum()))
    size_P = num_P[num_P > 0]
    return found | {
        **{name: float(is_kind_P.mean()) for name, is_kind_P in kinds.items()},
        "cost": _cost(log, layout, is_without_P),
        # What one takes it to be who puts the mean into the formula for one problem.
        "mixed_if_all_alike": float((1 - mean**size_P - (1 - mean) ** size_P).mean())
        if len(size_P)
        else 0.0,
        "by_window": [
            {
                name: float(is_kind_P[layout.window_P == window].mean())
                for name, is_kind_P in kinds.items()
            }
            for window in range(len(layout.windows))
        ],
    }


def _cost(log: Rollouts, layout: Layout, is_without_P: np.ndarray) -> dict[str, Any]:
    """Share of the rollouts, and of what they generated, in some groups."""
    cost: dict[str, Any] = {
        "rollouts": float(layout.size_P[is_without_P].sum() / len(log)),
    }
    if log.size_B is not None:
        size_B, unit = log.size_B
        size_P = layout.matrix(np.nan_to_num(size_B)).sum(1)
        total = float(size_P.sum())
        cost["unit"] = unit
        cost["generated"] = float(size_P[is_without_P].sum()) / total if total else None
    return cost


def _rewards(log: Rollouts, layout: Layout) -> dict[str, Any]:
    """Values of every reward function, and what is odd about them."""
    functions = {}
    for name, values_B in log.rewards.items():
        finite_N = values_B[np.isfinite(values_B)]
        distinct = np.unique(finite_N)
        functions[name] = {
            "factor": log.roles.rewards[name],
            "num_null": log.num_null[name],
            "num_nan": int(np.isnan(values_B).sum()) - log.num_null[name],
            "num_infinite": int(np.isinf(values_B).sum()),
            "num_values": len(distinct),
            "values": distinct.tolist() if len(distinct) <= 6 else None,
            "lowest": float(distinct[0]) if len(distinct) else None,
            "highest": float(distinct[-1]) if len(distinct) else None,
            "mean": float(finite_N.mean()) if len(finite_N) else None,
            "partial": float(((finite_N > distinct[0]) & (finite_N < distinct[-1])).mean())
            if len(distinct)
            else None,
        }
    total_B = np.nan_to_num(log.reward_B)
    index_B = layout.step_index_B
    high_S, low_S = np.full(layout.num_steps, -np.inf), np.full(layout.num_steps, np.inf)
    np.maximum.at(high_S, index_B, total_B)
    np.minimum.at(low_S, index_B, total_B)
    return {
        "functions": functions,
        "num_unscored": int(np.isnan(log.reward_B).sum()),
        "num_constant_steps": int((high_S == low_S).sum()),
    }


def _as_logged(log: Rollouts, layout: Layout) -> dict[str, Any]:
    """The weights in the log, with the registered weight they are a multiple of."""
    assert log.weight_B is not None
    entry = describe(log, layout, "as logged", log.weight_B)
    entry["num_missing"] = int((~np.isfinite(log.weight_B)).sum())
    has_B = np.isfinite(log.reward_B)
    reward_PG, mask_PG = layout.matrix(np.nan_to_num(log.reward_B)), layout.matrix(has_B)
    candidates = {}
    for name in LIKELY:
        weight = WEIGHTS[name]()
        try:
            pieces = layout.steps() if weight.scope != "group" else [np.arange(len(reward_PG))]
            weight_PG = np.zeros(reward_PG.shape)
            for piece_P in pieces:
                weight_PG[piece_P], _ = weight.update(
                    reward_PG[piece_P], weight.init(), mask=mask_PG[piece_P].astype(bool)
                )
        except UsageError:
            continue
        candidates[name] = layout.flat(weight_PG)
    found = likeness(log.weight_B, candidates)
    entry["like"] = None if found is None else {"weight": found[0], "factor": found[1]}
    return entry
