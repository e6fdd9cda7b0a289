"""The rewards of a batch by groups: masked statistics, and groups given by ids laid out as rows."""

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
from array_api_compat import array_namespace, device

from gradmass.types import Array, UsageError

T = TypeVar("T")


class _statistic(cached_property[T]):
    """What is computed when it is first asked for, and read-only where NumPy can say so."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return read_only(super().__get__(instance, owner))


def read_only(values: T) -> T:
    """The same values; writing to them raises, as far as they are NumPy's."""
    if isinstance(values, np.ndarray):
        values.flags.writeable = False
    return values


@dataclass(frozen=True)
class Groups:
    """Rewards of a batch with their masked statistics, in float64.

    Each statistic is computed when it is first asked for, and once for all weights that are given
    the same object; none can be written to.

    Args:
        rewards_PG: Rewards, 0 where not scored.
        mask_PG: Which rollouts are scored.
        xp: Array namespace of both.
    """

    rewards_PG: Array
    mask_PG: Array
    xp: Any

    @_statistic
    def is_full(self) -> bool:
        """Whether every rollout is scored."""
        return bool(self.xp.all(self.mask_PG))

    @_statistic
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest of all entries, those outside the mask (0) too; NaN if one is."""
        return float(self.xp.min(self.rewards_PG)), float(self.xp.max(self.rewards_PG))

    @_statistic
    def is_binary(self) -> bool:
        """Whether all entries are 0 or 1."""
        return bool(self.xp.all((self.rewards_PG == 0) | (self.rewards_PG == 1)))

    @_statistic
    def is_tied_P1(self) -> Array:
        """Groups whose scored rewards are all equal, groups of one and of none among them."""
        xp = self.xp
        if self.is_full:
            is_equal_PG = self.rewards_PG == self.rewards_PG[:, :1]
        else:
            is_equal_PG = ~self.mask_PG | (self.rewards_PG == self.max_P1)
        return xp.all(is_equal_PG, axis=1, keepdims=True)

    @_statistic
    def num_scored_P1(self) -> Array:
        """Number of scored rollouts of each group."""
        xp, (num_prompts, group_size) = self.xp, self.mask_PG.shape
        if self.is_full:  # much faster than sums over short rows
            kind = {"dtype": xp.float64, "device": device(self.mask_PG)}
            return xp.full((num_prompts, 1), float(group_size), **kind)
        return xp.sum(self.mask_PG, axis=1, keepdims=True, dtype=xp.float64)

    @_statistic
    def mean_P1(self) -> Array:
        """Mean reward of each group, 0 where none is scored."""
        total_P1 = self.xp.sum(self.rewards_PG, axis=1, keepdims=True)
        if self.is_full:
            return total_P1 / float(max(1, self.mask_PG.shape[1]))
        return total_P1 / positive_or_one(self.xp, self.num_scored_P1)

    @_statistic
    def inner_mean_P1(self) -> Array:
        """Mean of each group, 1/2 where it is not within (0, 1).

        For formulas without a value at 0 and 1. Where rewards are in [0, 1], those are the means of
        tied groups, and of others by rounding only.
        """
        is_inner_P1 = (self.mean_P1 > 0) & (self.mean_P1 < 1)
        return self.xp.where(is_inner_P1, self.mean_P1, 0.5)

    @_statistic
    def centred_PG(self) -> Array:
        """Reward minus the mean of the rollout's own group."""
        return self.rewards_PG - self.mean_P1

    @_statistic
    def from_others_PG(self) -> Array:
        """Reward minus the mean of the other rollouts of its group, 0 where there are none."""
        num_others_P1 = positive_or_one(self.xp, self.num_scored_P1 - 1.0)
        return self.centred_PG * (self.num_scored_P1 / num_others_P1)

    @_statistic
    def others_mean_PG(self) -> Array:
        """Mean reward of the other rollouts of the group, 0 where there are none.

        Within [0, 1] to the last bit for rewards of 0 and 1.
        """
        total_P1 = self.xp.sum(self.rewards_PG, axis=1, keepdims=True)
        others_P1 = positive_or_one(self.xp, self.num_scored_P1 - 1.0)
        return self.xp.where(self.mask_PG, (total_P1 - self.rewards_PG) / others_P1, 0.0)

    @_statistic
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

    @_statistic
    def max_P1(self) -> Array:
        """Largest reward of each group, -inf where none is scored."""
        scored_PG = self.xp.where(self.mask_PG, self.rewards_PG, -math.inf)
        return self.xp.max(scored_PG, axis=1, keepdims=True)

    @_statistic
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


def group_rewards(rewards_PG: Array, mask: Array | None = None) -> Groups:
    """Rewards in float64, 0 where not scored; arguments as of ``Weight.update``.

    Raises:
        UsageError: Rewards that are not a matrix, a mask of another shape.
    """
    xp = array_namespace(rewards_PG)
    if rewards_PG.ndim != 2:
        raise UsageError(
            f"rewards must have shape [prompts, rollouts], got {tuple(rewards_PG.shape)}; "
            "use weigh() for a flat batch with group ids"
        )
    scored_PG = xp.astype(rewards_PG, xp.float64)
    if mask is None:
        mask_PG = xp.ones(rewards_PG.shape, dtype=xp.bool, device=device(rewards_PG))
        return Groups(read_only(scored_PG), read_only(mask_PG), xp)
    mask_PG = xp.asarray(mask, dtype=xp.bool, device=device(rewards_PG), copy=True)
    if mask_PG.shape != rewards_PG.shape:
        raise UsageError(
            f"mask has shape {tuple(mask_PG.shape)}, rewards have shape {tuple(rewards_PG.shape)}"
        )
    groups = Groups(read_only(scored_PG), read_only(mask_PG), xp)
    if groups.is_full:
        return groups
    return Groups(read_only(xp.where(mask_PG, scored_PG, 0.0)), groups.mask_PG, xp)


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


@dataclass(frozen=True)
class Layout:
    """Where each rollout of a flat batch is in a padded matrix with a row for each group.

    Args:
        slots_PG: Index of the rollout in each cell, -1 for padding.
        position_B: The flat cell of each rollout.
    """

    slots_PG: np.ndarray
    position_B: np.ndarray

    @property
    def is_padded(self) -> bool:
        """Whether a group is smaller than another."""
        return self.slots_PG.size > len(self.position_B)

    @cached_property
    def index_PG(self) -> np.ndarray:
        """``slots_PG`` with any rollout in the padding, to index with."""
        index_PG: np.ndarray = np.maximum(self.slots_PG, 0) if self.is_padded else self.slots_PG
        return index_PG

    @cached_property
    def is_filled_PG(self) -> np.ndarray:
        """False for padding."""
        return self.slots_PG >= 0

    @cached_property
    def is_in_order(self) -> bool:
        """Whether the batch read row by row is the matrix."""
        in_order_B = np.arange(len(self.position_B))
        return not self.is_padded and np.array_equal(self.position_B, in_order_B)

    def rows(self, values_B: np.ndarray) -> np.ndarray:
        """Values of the rollouts as the matrix, any of them in the padding; read-only."""
        if self.is_in_order:
            return read_only(values_B.reshape(self.slots_PG.shape))
        return read_only(values_B.take(self.index_PG))

    def marks(self, is_marked_B: np.ndarray) -> np.ndarray:
        """The same of booleans, False in the padding."""
        is_marked_PG = self.rows(is_marked_B)
        return is_marked_PG & self.is_filled_PG if self.is_padded else is_marked_PG

    def flat(self, values_PG: np.ndarray) -> np.ndarray:
        """Values of the matrix in the order of the rollouts."""
        values_B = values_PG.reshape(-1)
        return values_B if self.is_in_order else values_B.take(self.position_B)


@lru_cache(maxsize=8)
def consecutive(num_rollouts: int, group_size: int) -> Layout:
    """The layout of groups that follow one another, where the last may be short."""
    return layout(np.arange(num_rollouts) // group_size)


def layout(group_ids_B: Any) -> Layout:
    """Where each rollout goes in a padded matrix, given what those of a group share."""
    ids_B = as_integers(group_ids_B)
    order_B = _stable_order(ids_B)
    sorted_B = ids_B[order_B]
    is_first_B = np.ones(len(ids_B), dtype=bool)
    is_first_B[1:] = sorted_B[1:] != sorted_B[:-1]
    first_P = np.flatnonzero(is_first_B)
    size_P = np.diff(first_P, append=len(ids_B))
    width = int(size_P.max(initial=0))
    cell_B, slots_PG = np.arange(len(ids_B)), order_B
    if len(size_P) * width > len(ids_B):
        # Cells in the order of the ids: row by row, with the padding left out.
        padding_P = np.cumsum(width - size_P) - (width - size_P)
        cell_B += np.repeat(padding_P, size_P)
        slots_PG = np.full(len(size_P) * width, -1)
        slots_PG[cell_B] = order_B
    position_B = np.empty(len(ids_B), dtype=np.int64)
    position_B[order_B] = cell_B
    return Layout(slots_PG.reshape(len(size_P), width), position_B)


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
