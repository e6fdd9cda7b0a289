"""What a weight gives to groups with 0 to G successes, its state held fixed."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gradmass.masses.priors import Prior
from gradmass.types import State, UsageError
from gradmass.weights import Weight
from gradmass.weights.groups import group_rewards

MAX_GROUP_SIZE, MAX_GROUP_SIZE_IN_BATCH = 4096, 1024
"""Largest finite group, of which G + 1 are weighed, alone or several times in one batch."""
CHUNK = 2**18
"""Rollouts weighed at once where groups do not depend on each other; they fit into a cache."""
BATCH = 2**21
"""Rollouts of the batch that stands for infinitely many problems; more where G is large."""


def neutral_signals(weight: Weight, rewards_PG: np.ndarray) -> dict[str, Any]:
    """A value for every signal the weight needs that favours no rollout and no time.

    All rollouts are equally long, greedy answers get reward 1/2 and past solve rates are 1/2, the
    scores of both verdicts are equally long, the policy is its own sampler, the run is at step 0,
    and its entropy 1 nat. Signals the weight can do without are not given.
    """
    num_prompts = rewards_PG.shape[0]
    signals = {
        "successes_PG": rewards_PG == 1,
        "num_success": int(rewards_PG.sum()),
        "num_scored": rewards_PG.size,
        "lengths_PG": np.ones(rewards_PG.shape),
        "greedy_rewards_P": np.full(num_prompts, 0.5),
        "solve_rate_P": np.full(num_prompts, 0.5),
        "score_squares": (1.0, 1.0),
        "entropy_nats": 1.0,
        "entropy_kind": "neutral",
        "policy_lag": 0,
        "step": 0,
        "num_steps": 1,
    }
    return {name: signals[name] for name in weight.needs}


@dataclass(frozen=True)
class Canonical:
    """A weight under fixed circumstances, to be asked about groups of 0 and 1.

    Args:
        weight: Any weight; rollouts with equal rewards and signals must get equal weights.
        state: Held fixed, whatever the groups show; None is the weight's initial state.
        prior: Solve rates of the rest of the batch; needed where the weight depends on it.

    Raises:
        UsageError: The state is another weight's.
    """

    weight: Weight
    state: State | None = None
    prior: Prior | None = None

    def __post_init__(self) -> None:
        """Refuse a state that the weight cannot go on from."""
        if self.state is not None:
            rewards_PG = np.eye(max(2, self.weight.min_group_size))
            self.weight.update(rewards_PG, self.state, **neutral_signals(self.weight, rewards_PG))

    @cached_property
    def fixed_state(self) -> State:
        """The state that is held fixed."""
        return self.weight.init() if self.state is None else self.state

    @cached_property
    def is_by_group(self) -> bool:
        """Whether a group's weights depend on that group alone, given the state."""
        if self.weight.scope != "run":
            return self.weight.scope == "group"
        # A weight with a state says no more: see whether other groups in the batch make a change.
        size = max(4, self.weight.min_group_size)
        all_S = np.arange(size + 1)
        alone_SG = self._weigh(all_S, size)
        among_SG = self._weigh(np.concatenate([all_S, all_S[-2:], all_S[-2:]]), size)
        return np.allclose(alone_SG, among_SG[: size + 1], rtol=1e-9, atol=0)

    def by_successes(
        self, group_size: int, successes_S: np.ndarray, *, is_half: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights of groups with given numbers of successes.

        Args:
            group_size: G, at least 1.
            successes_S: Distinct numbers of successes, ascending, within 0 to G.
            is_half: Halve the batch that stands for infinitely many problems, where the weight
                depends on the batch, to see how much its size matters.

        Returns:
            The weight of a success in each of these groups, and minus the weight of a failure;
            0 where the group has none. In a batch the groups asked about have no share themselves:
            what they add to it is extrapolated to nothing.

        Raises:
            UsageError: The weight depends on the batch and there is no prior; equal rollouts get
                unequal weights.
        """
        if self.is_by_group:
            rows = max(1, CHUNK // group_size)
            chunks = [successes_S[i : i + rows] for i in range(0, len(successes_S), rows)]
            parts = [self._read(part, group_size) for part in chunks]
            return np.concatenate([part[0] for part in parts]), np.concatenate(
                [part[1] for part in parts]
            )
        if self.prior is None:
            raise UsageError(
                f"weight {self.weight.label} depends on the whole batch: give the solve rates of "
                "its problems as a prior (uniform, beta:a,b or a file of solve rates)"
            )
        if group_size > MAX_GROUP_SIZE_IN_BATCH:
            raise UsageError(
                f"weight {self.weight.label} depends on the whole batch, which is weighed for "
                f"group sizes up to {MAX_GROUP_SIZE_IN_BATCH}, or inf, got {group_size}"
            )
        rounds = max(4, BATCH // (group_size * (group_size + 1)))
        # A multiple of the possible outcomes, which makes a uniform prior exact.
        num_groups = (rounds // 2 if is_half else rounds) * (group_size + 1)
        batch_P = stratified(self.prior.success_pmf(group_size), num_groups)
        missing_S = np.setdiff1d(successes_S, batch_P)
        once = self._among(successes_S, np.concatenate([batch_P, missing_S]), group_size)
        if len(missing_S) == 0:
            return once
        batch_P = np.concatenate([batch_P, missing_S, missing_S])
        twice = self._among(successes_S, batch_P, group_size)
        return 2 * once[0] - twice[0], 2 * once[1] - twice[1]

    def _among(
        self, successes_S: np.ndarray, batch_P: np.ndarray, group_size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights of groups that are part of a batch."""
        distinct_S, first_S = np.unique(batch_P, return_index=True)
        success_P, failure_P = self._read(batch_P, group_size)
        place_S = first_S[np.searchsorted(distinct_S, successes_S)]
        return success_P[place_S], failure_P[place_S]

    def _read(self, successes_P: np.ndarray, group_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Weight of the successes and minus that of the failures of each group of a batch."""
        weights_PG = self._weigh(successes_P, group_size)
        has_success_P, has_failure_P = successes_P > 0, successes_P < group_size
        success_P = np.where(has_success_P, weights_PG[:, 0], 0.0)
        failure_P = np.where(has_failure_P, weights_PG[:, -1], 0.0)
        is_success_PG = np.arange(group_size) < successes_P[:, None]
        expected_PG = np.where(is_success_PG, success_P[:, None], failure_P[:, None])
        close = 1e-9 * np.abs(weights_PG).max(initial=0.0)
        is_unequal_P = (np.abs(weights_PG - expected_PG) > close).any(axis=1)
        if is_unequal_P.any():
            shown = weights_PG[is_unequal_P][0].tolist()
            raise UsageError(
                f"weight {self.weight.label} gives unequal weights to rollouts with equal rewards, "
                f"{shown if group_size <= 16 else '...'} in a group that starts with "
                f"{successes_P[is_unequal_P][0]} successes: its masses do not follow from the "
                "number of successes"
            )
        return success_P, 0.0 - failure_P

    def _weigh(self, successes_P: np.ndarray, group_size: int) -> np.ndarray:
        """Weights of a batch of groups, successes first, under the fixed state."""
        is_success_PG = np.arange(group_size) < successes_P[:, None]
        groups = group_rewards(is_success_PG.astype(np.float64))
        self.weight.check_groups(groups)
        signals = neutral_signals(self.weight, groups.rewards_PG)
        weights_PG: np.ndarray = self.weight.weigh_groups(groups, self.fixed_state, signals)
        return weights_PG


def stratified(pmf_S: np.ndarray, num_groups: int) -> np.ndarray:
    """Numbers of successes of a batch of groups, at even steps of their cumulative distribution.

    The number of groups with s or fewer successes is right to one half for every s, so that means
    over the batch are right to about one part in its size.

    >>> stratified(np.array([0.25, 0.5, 0.25]), 4)
    array([0, 1, 1, 2])
    """
    up_to_S = np.rint(np.cumsum(pmf_S) * num_groups).astype(np.int64)
    up_to_S[-1] = num_groups
    return np.repeat(np.arange(len(pmf_S)), np.diff(up_to_S, prepend=0))
