"""The rollouts of a log as groups in rows, steps and windows of time."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradmass.logs.rollouts import Rollouts

NUM_WINDOWS = 8
"""Parts of equal numbers of steps that a log is cut into, at most."""


@dataclass(frozen=True)
class Layout:
    """Where each rollout stands; groups in order of their step.

    Args:
        log: The rollouts.
        row_PG: Row of each rollout of each group; 0 beyond its size.
        size_P: Rollouts of each group.
    """

    log: Rollouts
    row_PG: np.ndarray
    size_P: np.ndarray

    @classmethod
    def of(cls, log: Rollouts) -> "Layout":
        """Sort the rollouts of a log into groups."""
        size_P = np.bincount(log.group_B)
        order_B = np.argsort(log.group_B, kind="stable")
        start_P = np.cumsum(size_P) - size_P
        by_step_P = np.argsort(log.step_B[order_B[start_P]], kind="stable")
        size_P, start_P = size_P[by_step_P], start_P[by_step_P]
        place_G = np.arange(size_P.max())
        index_PG = np.where(place_G < size_P[:, None], start_P[:, None] + place_G, 0)
        row_PG = np.where(place_G < size_P[:, None], order_B[index_PG], 0)
        return cls(log, row_PG, size_P)

    @cached_property
    def is_filled_PG(self) -> np.ndarray:
        """Whether there is a rollout."""
        filled_PG: np.ndarray = np.arange(self.row_PG.shape[1]) < self.size_P[:, None]
        return filled_PG

    def matrix(self, values_B: np.ndarray) -> np.ndarray:
        """Values of rollouts by group; 0 beyond a group's size."""
        return np.where(self.is_filled_PG, values_B[self.row_PG], 0)

    def flat(self, values_PG: np.ndarray) -> np.ndarray:
        """Values by group in the order of the log."""
        values_B = np.zeros(len(self.log))
        values_B[self.row_PG[self.is_filled_PG]] = values_PG[self.is_filled_PG]
        return values_B

    @cached_property
    def is_scored_PG(self) -> np.ndarray:
        """Which rollouts have a verdict, or a reward where there are no verdicts."""
        return self.matrix(self.log.is_scored_B).astype(bool)

    @cached_property
    def is_right_PG(self) -> np.ndarray:
        """Which rollouts are right; none where the log has no verdicts."""
        if self.log.verdicts is None:
            return np.zeros(self.row_PG.shape, dtype=bool)
        return self.matrix(self.log.verdicts.success_B == 1).astype(bool)

    @cached_property
    def reward_PG(self) -> np.ndarray:
        """What weights see: verdicts as 1 and 0, or the logged reward; 0 where unscored."""
        if self.log.verdicts is not None:
            return self.is_right_PG.astype(np.float64)
        return self.matrix(np.where(self.log.is_scored_B, self.log.reward_B, 0.0))

    @cached_property
    def step_P(self) -> np.ndarray:
        """Step of each group."""
        steps_P: np.ndarray = self.log.step_B[self.row_PG[:, 0]]
        return steps_P

    @cached_property
    def step_index_B(self) -> np.ndarray:
        """Steps of the rollouts, numbered from 0 without gaps."""
        index_B: np.ndarray = np.unique(self.log.step_B, return_inverse=True)[1].reshape(-1)
        return index_B

    @cached_property
    def step_index_P(self) -> np.ndarray:
        """Likewise of the groups."""
        index_P: np.ndarray = self.step_index_B[self.row_PG[:, 0]]
        return index_P

    @cached_property
    def num_steps(self) -> int:
        """Different steps."""
        return int(self.step_index_P.max()) + 1

    def mean_of_step(self, values_B: np.ndarray) -> np.ndarray:
        """For each rollout the mean over those of its step that have a value."""
        has_B = np.isfinite(values_B)
        sum_S = np.bincount(self.step_index_B, np.where(has_B, values_B, 0.0))
        num_S = np.bincount(self.step_index_B, has_B)
        means_B: np.ndarray = (sum_S / np.maximum(1, num_S))[self.step_index_B]
        return means_B

    def chunks(self, num: int) -> Iterator[np.ndarray]:
        """Numbers of the groups, so many at once."""
        for start in range(0, len(self.size_P), num):
            yield np.arange(start, min(start + num, len(self.size_P)))

    def steps(self) -> Iterator[np.ndarray]:
        """Numbers of the groups of each step in turn."""
        ends = np.flatnonzero(np.diff(self.step_index_P)) + 1
        yield from np.split(np.arange(len(self.size_P)), ends)

    @cached_property
    def windows(self) -> list[tuple[int, int]]:
        """First and last step of each window."""
        steps = np.unique(self.log.step_B)
        parts = np.array_split(steps, min(NUM_WINDOWS, len(steps)))
        return [(int(part[0]), int(part[-1])) for part in parts]

    @cached_property
    def window_P(self) -> np.ndarray:
        """Window of each group."""
        lasts = np.array([last for _, last in self.windows])
        found_P: np.ndarray = np.searchsorted(lasts, self.step_P)
        return found_P

    @cached_property
    def window_rows(self) -> list[np.ndarray]:
        """Rows of the rollouts of each window."""
        lasts = np.array([last for _, last in self.windows])
        window_B = np.searchsorted(lasts, self.log.step_B)
        return [np.flatnonzero(window_B == window) for window in range(len(self.windows))]
