"""Weights for engines that hand over a list of groups: one plain function."""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np

from gradmass.types import State, UsageError
from gradmass.weights import Weight

PER_ROLLOUT = ("successes_PG", "lengths_PG")
PER_GROUP = ("greedy_rewards_P", "solve_rate_P")


def weigh_groups(
    weight: Weight,
    rewards: Sequence[Sequence[float | None]],
    state: State | None = None,
    *,
    unscorable: Literal["rollout", "group"] = "rollout",
    **signals: Any,
) -> tuple[list[np.ndarray], State]:
    """Weigh a batch given as one list of rewards a group; groups may differ in size.

    For Tinker cookbook's ``compute_advantages``, rLLM's ``register_adv_estimator``, torchrl's
    ``MCAdvantage``, and every hook that is handed groups. Give it all groups of a batch at once: a
    weight that follows the run must see the whole of it.

    Args:
        weight: The weight.
        rewards: The rewards of each group in any order; None or NaN for a rollout that could not be
            scored.
        state: What the previous call returned; None starts from ``weight.init()``.
        unscorable: What goes with a rollout that could not be scored: itself alone, or its whole
            group, where an environment scores the members jointly and the others' rewards depend on
            the missing one.
        **signals: As in ``Weight.update``; signals of rollouts (``successes_PG``, ``lengths_PG``)
            as lists of the same shape as the rewards, signals of groups (``greedy_rewards_P``,
            ``solve_rate_P``) as one number a group.

    Returns:
        Weights of each group in float64, 0 where not scored, and the new state: plain JSON, to be
        kept in the engine's checkpoint.

    Raises:
        UsageError: As in ``Weight.update``; a list of another length than its group.

    >>> from gradmass.weights import WEIGHTS
    >>> weights, _ = weigh_groups(WEIGHTS["grpo"](), [[1, 0], [0, 0, 1, None]])
    >>> [group.round(4).tolist() for group in weights]
    [[0.5, -0.5], [-0.3333, -0.3333, 0.6667, 0.0]]
    """
    if unscorable not in ("rollout", "group"):
        raise UsageError(f"unscorable must be 'rollout' or 'group', got {unscorable!r}")
    sizes = [len(group) for group in rewards]
    numbers = [math.nan if r is None else float(r) for r in chain.from_iterable(rewards)]
    rewards_B = np.array(numbers, dtype=np.float64)
    ids_B = np.repeat(np.arange(len(sizes)), sizes)
    mask_B = ~np.isnan(rewards_B)
    if unscorable == "group":
        broken_P = np.bincount(ids_B[~mask_B], minlength=len(sizes)) > 0
        mask_B = ~broken_P[ids_B]
    for key in PER_ROLLOUT:
        if signals.get(key) is not None:
            signals[key] = _flatten(key, signals[key], sizes)
    for key in PER_GROUP:
        if signals.get(key) is not None:
            if len(signals[key]) != len(sizes):
                raise UsageError(
                    f"{key} has {len(signals[key])} values for {len(sizes)} groups: one each"
                )
            signals[key] = np.asarray(signals[key], dtype=np.float64)[ids_B]
    weights_B, state = weight.weigh(rewards_B, ids_B, state, mask=mask_B, **signals)
    return np.split(weights_B, np.cumsum(sizes)[:-1]) if sizes else [], state


def _flatten(key: str, values: Sequence[Sequence[Any]], sizes: Sequence[int]) -> np.ndarray:
    """One value a rollout, from lists of the same shape as the rewards."""
    if len(values) != len(sizes):
        raise UsageError(f"{key} has {len(values)} groups, the rewards have {len(sizes)}")
    for i, (group, size) in enumerate(zip(values, sizes, strict=True)):
        if len(group) != size:
            raise UsageError(f"{key} has {len(group)} values for group {i} of {size} rollouts")
    kind = bool if key == "successes_PG" else np.float64
    return np.array([0 if v is None else v for v in chain.from_iterable(values)], dtype=kind)
