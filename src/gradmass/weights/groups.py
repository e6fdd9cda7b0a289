"""The rewards of a batch by groups: masked statistics, and groups given by ids laid out as rows."""

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import device

from gradmass.types import Array


@dataclass(frozen=True)
class Groups:
    """Rewards of a batch with their masked statistics, in float64.

    Args:
        rewards_PG: Rewards, 0 where not scored.
        mask_PG: Which rollouts are scored.
        xp: Array namespace of both.
        is_tied_P1: Groups whose scored rewards are all equal (max - min = 0, compared in the
            caller's dtype), groups of one and of none among them.
    """

    rewards_PG: Array
    mask_PG: Array
    xp: Any
    is_tied_P1: Array

    @cached_property
    def num_scored_P1(self) -> Array:
        """Number of scored rollouts of each group."""
        xp, (num_prompts, group_size) = self.xp, self.mask_PG.shape
        if bool(xp.all(self.mask_PG)):  # much faster than sums over short rows
            kind = {"dtype": xp.float64, "device": device(self.mask_PG)}
            return xp.full((num_prompts, 1), float(group_size), **kind)
        return xp.sum(self.mask_PG, axis=1, keepdims=True, dtype=xp.float64)

    @cached_property
    def mean_P1(self) -> Array:
        """Mean reward of each group, 0 where none is scored."""
        total_P1 = self.xp.sum(self.rewards_PG, axis=1, keepdims=True)
        return total_P1 / self.xp.where(self.num_scored_P1 > 0, self.num_scored_P1, 1.0)

    @cached_property
    def inner_mean_P1(self) -> Array:
        """Mean of each group, 1/2 where it is not within (0, 1).

        For formulas without a value at 0 and 1. Where rewards are in [0, 1], those are the means of
        tied groups, and of others by rounding only.
        """
        is_inner_P1 = (self.mean_P1 > 0) & (self.mean_P1 < 1)
        return self.xp.where(is_inner_P1, self.mean_P1, 0.5)

    @cached_property
    def centred_PG(self) -> Array:
        """Reward minus the mean of the rollout's own group."""
        return self.rewards_PG - self.mean_P1

    @cached_property
    def from_others_PG(self) -> Array:
        """Reward minus the mean of the other rollouts of its group, 0 where there are none."""
        num_others_P1 = positive_or_one(self.xp, self.num_scored_P1 - 1.0)
        return self.centred_PG * (self.num_scored_P1 / num_others_P1)

    @cached_property
    def others_mean_PG(self) -> Array:
        """Mean reward of the other rollouts of the group, 0 where there are none.

        Within [0, 1] to the last bit for rewards of 0 and 1.
        """
        total_P1 = self.xp.sum(self.rewards_PG, axis=1, keepdims=True)
        others_P1 = positive_or_one(self.xp, self.num_scored_P1 - 1.0)
        return self.xp.where(self.mask_PG, (total_P1 - self.rewards_PG) / others_P1, 0.0)

    @cached_property
    def counts_PG(self) -> Array:
        """1.0 for scored rollouts, 0.0 for others."""
        return self.xp.astype(self.mask_PG, self.xp.float64)

    def std_P1(self, ddof: int) -> Array:
        """Standard deviation of each group, ``n - ddof`` in the denominator; 0 for n <= ddof."""
        squares_PG = self.xp.where(self.mask_PG, self.centred_PG**2, 0.0)
        num_P1 = self.num_scored_P1 - ddof
        variance_P1 = self.xp.sum(squares_PG, axis=1, keepdims=True) / self.xp.where(
            num_P1 > 0, num_P1, 1.0
        )
        return self.xp.sqrt(self.xp.where(num_P1 > 0, variance_P1, 0.0))

    @cached_property
    def max_P1(self) -> Array:
        """Largest reward of each group, -inf where none is scored."""
        scored_PG = self.xp.where(self.mask_PG, self.rewards_PG, -math.inf)
        return self.xp.max(scored_PG, axis=1, keepdims=True)

    @cached_property
    def max_of_others_PG(self) -> Array:
        """Largest reward among the other rollouts of the group, -inf where there are none."""
        xp, is_top_PG = self.xp, self.mask_PG & (self.rewards_PG == self.max_P1)
        below_PG = xp.where(self.mask_PG & ~is_top_PG, self.rewards_PG, -math.inf)
        second_P1 = xp.max(below_PG, axis=1, keepdims=True)
        is_alone_P1 = xp.sum(is_top_PG, axis=1, keepdims=True, dtype=xp.float64) == 1
        return xp.where(is_top_PG & is_alone_P1, second_P1, self.max_P1)

    @property
    def mirrored(self) -> "Groups":
        """The same groups with rewards of the opposite sign, whose maxima are minima."""
        return replace(self, rewards_PG=-self.rewards_PG)


def positive_or_one(xp: Any, values: Array) -> Array:
    """Values above 0, and 1 for the others: to divide by where the quotient is 0 or unused."""
    return xp.where(values > 0, values, 1.0)


def sums_after(xp: Any, values_PG: Array) -> Array:
    """Sum over the columns after each column, none of which is its own."""
    totals_PG = xp.flip(xp.cumulative_sum(xp.flip(values_PG, axis=1), axis=1), axis=1)
    return xp.concat([totals_PG[:, 1:], xp.zeros_like(totals_PG[:, :1])], axis=1)


def sums_before(xp: Any, values_PG: Array) -> Array:
    """Sum over the columns before each column."""
    return xp.flip(sums_after(xp, xp.flip(values_PG, axis=1)), axis=1)


def batch_moments(groups: Groups, values_PG: Array, counts_PG: Array) -> tuple[float, float]:
    """Mean and variance over the scored rollouts of a batch.

    Args:
        groups: The batch.
        values_PG: A number for each rollout.
        counts_PG: How often each counts, 0 where not scored.

    Returns:
        The mean, and the variance with the sum of counts less 1 in its denominator. Exact where
        all values are equal (variance 0), and both 0 where no rollout is scored.
    """
    xp, mask_PG = groups.xp, groups.mask_PG
    total = float(xp.sum(counts_PG))
    if total == 0:
        return 0.0, 0.0
    highest = float(xp.max(xp.where(mask_PG, values_PG, -math.inf)))
    if highest <= float(xp.min(xp.where(mask_PG, values_PG, math.inf))):
        return highest, 0.0
    values_PG = xp.where(mask_PG, values_PG, 0.0)
    mean = float(xp.sum(counts_PG * values_PG)) / total
    squares = float(xp.sum(counts_PG * (values_PG - mean) ** 2))
    return mean, squares / (total - 1) if total > 1 else 0.0


def layout(group_ids_B: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where each rollout goes in a padded matrix.

    Returns:
        ``slots_PG``, the index of the rollout in each cell, -1 for padding; and ``position_B``,
        the flat cell of each rollout.
    """
    ids_B = as_integers(group_ids_B)
    order_B = _stable_order(ids_B)
    sorted_B = ids_B[order_B]
    is_first_B = np.ones(len(ids_B), dtype=bool)
    is_first_B[1:] = sorted_B[1:] != sorted_B[:-1]
    first_P = np.flatnonzero(is_first_B)
    size_P = np.diff(first_P, append=len(ids_B))
    width = int(size_P.max(initial=0))
    # Cells in the order of the ids: row by row, with the padding left out.
    padding_P = np.cumsum(width - size_P) - (width - size_P)
    cell_B = np.arange(len(ids_B)) + np.repeat(padding_P, size_P)
    slots_PG = np.full((len(size_P), width), -1)
    slots_PG.reshape(-1)[cell_B] = order_B
    position_B = np.empty(len(ids_B), dtype=np.int64)
    position_B[order_B] = cell_B
    return slots_PG, position_B


def _stable_order(ids_B: np.ndarray) -> np.ndarray:
    """Stable argsort of integers, 16 bits at a time: NumPy sorts those by counting."""
    if len(ids_B) == 0:
        return np.arange(0)
    # Differences of 64-bit integers fit into unsigned ones, where they wrap around rightly.
    keys_B = ids_B.astype(np.uint64) - ids_B.min().astype(np.uint64)
    order_B = np.argsort(keys_B.astype(np.uint16), kind="stable")
    rest_B = keys_B >> np.uint64(16)
    while rest_B.any():
        digits_B = rest_B.astype(np.uint16)
        order_B = order_B[np.argsort(digits_B[order_B], kind="stable")]
        rest_B = rest_B >> np.uint64(16)
    return order_B


def as_integers(group_ids_B: Any) -> np.ndarray:
    """Ids as integers: integer arrays and tensors as they are, anything else by first sight."""
    if hasattr(group_ids_B, "detach"):
        group_ids_B = group_ids_B.detach().cpu().numpy()
    if isinstance(group_ids_B, np.ndarray) and group_ids_B.dtype.kind in "iu":
        return group_ids_B
    # One pass over the ids, in C: most of its time is waiting for their hashes.
    number_of: defaultdict[Any, int] = defaultdict(itertools.count().__next__)
    numbers_B = np.fromiter(map(number_of.__getitem__, group_ids_B), np.int64, len(group_ids_B))
    if any(hasattr(kind, "item") for kind in set(map(type, number_of))):
        # Tensors of one element hash by identity, so that equal ids differ: take their values.
        return as_integers([key.item() if hasattr(key, "item") else key for key in group_ids_B])
    return numbers_B
