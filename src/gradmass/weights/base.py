"""The interface of a policy weight, and the masked statistics of groups it is built from.

A new weight is one file here: a frozen dataclass with ``@register_weight("name")`` whose fields
are its hyper-parameters and whose ``formula`` computes the weights from a ``Groups``. Everything
else (validation, masks, ties, dtypes, ragged groups, flags, help) is done once, in ``Weight``.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace, device

from gradmass.registry import Registry
from gradmass.types import Array, State, UsageError

SIGNALS = frozenset(
    {
        "successes_PG",
        "num_success",
        "num_scored",
        "entropy_nats",
        "entropy_kind",
        "lengths_PG",
        "greedy_rewards_P",
        "solve_rate_P",
        "policy_lag",
        "step",
        "num_steps",
    }
)
"""Every measurement a weight may be passed besides the rewards; a weight ignores what it does not
need. ``successes_PG`` verdicts as booleans; ``num_success``, ``num_scored`` raw counts of the
batch before any filter; ``entropy_nats`` mean token entropy with its ``entropy_kind``; ``policy_lag``
updates between the sampling policy and the trained one; ``step`` updates done, of ``num_steps``."""


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
        return self.xp.sum(self.mask_PG, axis=1, keepdims=True, dtype=self.xp.float64)

    @cached_property
    def mean_P1(self) -> Array:
        """Mean reward of each group, 0 where none is scored."""
        total_P1 = self.xp.sum(self.rewards_PG, axis=1, keepdims=True)
        return total_P1 / self.xp.where(self.num_scored_P1 > 0, self.num_scored_P1, 1.0)

    @cached_property
    def centred_PG(self) -> Array:
        """Reward minus the mean of the rollout's own group."""
        return self.rewards_PG - self.mean_P1

    def std_P1(self, ddof: int) -> Array:
        """Standard deviation of each group with ``n - ddof`` in the denominator; 0 for n <= ddof."""
        squares_PG = self.xp.where(self.mask_PG, self.centred_PG**2, 0.0)
        num_P1 = self.num_scored_P1 - ddof
        variance_P1 = self.xp.sum(squares_PG, axis=1, keepdims=True) / self.xp.where(
            num_P1 > 0, num_P1, 1.0
        )
        return self.xp.sqrt(self.xp.where(num_P1 > 0, variance_P1, 0.0))


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A policy weight: maps the rewards of a batch to the factor of each rollout's score.

    The gradient estimate is the mean over rollouts of weight times grad log pi. Success weights
    are positive, failure weights negative: the gradient masses are
    ``m_S = mean(weight where success, else 0)`` and ``m_F = -mean(weight where failure, else 0)``.

    Class attributes say what holds of every instance; the contract tests check each.
    """

    name: ClassVar[str] = ""
    """Registered name; also the file, the TOML ``type`` and the flag's value."""
    scope: ClassVar[Literal["group", "batch", "run"]] = "group"
    """What a weight depends on: its group, the whole batch, or earlier batches (through state)."""
    on_ties: ClassVar[Literal["zero", "value"]] = "zero"
    """Whether rollouts of a group with equal rewards get exactly 0, or a value."""
    zero_sum: ClassVar[bool] = False
    """Whether the weights of every group sum to 0."""
    domain: ClassVar[Literal["binary", "unit", "real"]] = "real"
    """Rewards the formula is defined for: 0 and 1, the interval [0, 1], or any finite number."""
    needs_group: ClassVar[bool] = True
    """Whether groups of one rollout carry no signal."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Signals without which ``update`` raises."""
        return ()

    def init(self) -> State:
        """State before the first batch; plain JSON, ``{}`` for a weight that remembers nothing."""
        return {}

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """State after this batch; the weights of the batch are computed from it."""
        return state

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Weights of the batch in float64; entries outside the mask are overwritten with 0.

        ``groups.rewards_PG`` is finite and in the domain; ties are zeroed afterwards where
        ``on_ties`` says so.
        """
        raise NotImplementedError(f"weight {type(self).__name__} defines no formula")  # noqa-scan

    def report(self, state: State) -> dict[str, float | str | None]:
        """What a run's record shows of the weight after a batch, such as alpha and delta."""
        return {}

    def update(
        self, rewards_PG: Array, state: State, *, mask: Array | None = None, **signals: Any
    ) -> tuple[Array, State]:
        """Observe a batch, then weigh it.

        Args:
            rewards_PG: Rewards, a row for each prompt. NumPy or torch, any real or boolean dtype.
            state: From ``init``, the previous ``update``, or a checkpoint. Not modified.
            mask: True where a rollout is scored, shape ``[P, G]``; None if all are. Rewards outside
                the mask are ignored, whatever they are.
            **signals: Measurements of the run, named in ``SIGNALS``. Those a weight does not need
                are ignored; None means not measured.

        Returns:
            Weights of the same shape, 0 outside the mask, in the dtype of the rewards (the default
            float for integers and booleans), and the new state. Statistics are float64 throughout.

        Raises:
            UsageError: Rewards that are not a matrix, NaN or outside the domain; a mask of another
                shape; an unknown or a missing signal.
        """
        xp = array_namespace(rewards_PG)
        if rewards_PG.ndim != 2:
            raise UsageError(
                f"rewards must have shape [prompts, rollouts], got {tuple(rewards_PG.shape)}; "
                "use weigh() for a flat batch with group ids"
            )
        self._check_signals(signals)
        self._check_state(state)
        groups = self._groups(xp, rewards_PG, mask)
        state = self.observe(groups, state, signals)
        weights_PG = self.formula(groups, state, signals)
        keep_PG = groups.mask_PG
        if self.on_ties == "zero":
            keep_PG = keep_PG & ~groups.is_tied_P1
        weights_PG = xp.where(keep_PG, weights_PG, 0.0)
        return xp.astype(weights_PG, _weight_dtype(xp, rewards_PG)), state

    def weigh(
        self,
        rewards_B: Array,
        group_ids_B: Any,
        state: State | None = None,
        *,
        mask: Array | None = None,
        **signals: Any,
    ) -> tuple[Array, State]:
        """Weigh a flat batch whose groups are given by ids: any order, any group sizes.

        Args:
            rewards_B: Rewards, one a rollout.
            group_ids_B: What the rollouts of one draw of one prompt share: integers or strings,
                an array or a sequence.
            state: As in ``update``; None starts from ``init``.
            mask: True where a rollout is scored, shape ``[B]``; None if all are.
            **signals: As in ``update``; per-rollout signals (``*_PG``) are given flat as ``[B]``.

        Returns:
            Weights of shape ``[B]`` in the order of the rewards, and the new state.

        Raises:
            UsageError: As in ``update``, or ids that are not one a rollout.

        >>> import numpy as np
        >>> from gradmass.weights import WEIGHTS
        >>> weights_B, _ = WEIGHTS["grpo"]().weigh(np.array([1.0, 1.0, 0.0]), ["a", "b", "a"])
        >>> weights_B
        array([ 0.5,  0. , -0.5])
        """
        xp = array_namespace(rewards_B)
        if rewards_B.ndim != 1 or len(group_ids_B) != rewards_B.shape[0]:
            raise UsageError(
                f"weigh needs flat rewards and one group id each, got rewards of shape "
                f"{tuple(rewards_B.shape)} and {len(group_ids_B)} ids"
            )
        slots_PG, position_B = _layout(group_ids_B)
        is_filled_PG = xp.asarray(slots_PG >= 0, device=device(rewards_B))
        index_PG = xp.asarray(np.maximum(slots_PG, 0), device=device(rewards_B))

        def scatter(flat_B: Array) -> Array:
            flat_B = xp.asarray(flat_B, device=device(rewards_B))
            if flat_B.shape != rewards_B.shape:
                raise UsageError(
                    f"a flat batch of {rewards_B.shape[0]} rollouts needs masks and signals of that "
                    f"length, got shape {tuple(flat_B.shape)}"
                )
            if flat_B.shape[0] == 0:
                return xp.reshape(flat_B, (0, 0))
            return xp.reshape(xp.take(flat_B, xp.reshape(index_PG, (-1,)), axis=0), index_PG.shape)

        mask_PG = is_filled_PG if mask is None else is_filled_PG & scatter(mask)
        for key in [key for key in signals if key.endswith("_PG") and signals[key] is not None]:
            signals[key] = scatter(signals[key])
        state = self.init() if state is None else state
        weights_PG, state = self.update(scatter(rewards_B), state, mask=mask_PG, **signals)
        position_B = xp.asarray(position_B, device=device(rewards_B))
        return xp.take(xp.reshape(weights_PG, (-1,)), position_B, axis=0), state

    def __repr__(self) -> str:
        """The run label: the name with the fields that differ from their defaults."""
        changed = ", ".join(
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"{self.name or type(self).__name__}({changed})" if changed else self.name

    def _check_signals(self, signals: Mapping[str, Any]) -> None:
        for key in signals:
            if key not in SIGNALS:
                raise UsageError(f"unknown signal {key!r}; known: {', '.join(sorted(SIGNALS))}")
        for key in self.needs:
            if signals.get(key) is None:
                raise UsageError(f"weight {self} needs the signal {key!r}, which was not passed")

    def _check_state(self, state: State) -> None:
        if state.keys() != self.init().keys():
            raise UsageError(
                f"weight {self} was given a state with {sorted(state)}, which is another weight's; "
                f"its own has {sorted(self.init())} (start from init())"
            )

    def _groups(self, xp: Any, rewards_PG: Array, mask: Array | None) -> Groups:
        if mask is None:
            mask_PG = xp.ones(rewards_PG.shape, dtype=xp.bool, device=device(rewards_PG))
        else:
            mask_PG = xp.asarray(mask, dtype=xp.bool, device=device(rewards_PG))
            if mask_PG.shape != rewards_PG.shape:
                raise UsageError(
                    f"mask has shape {tuple(mask_PG.shape)}, "
                    f"rewards have shape {tuple(rewards_PG.shape)}"
                )
        scored_PG = xp.astype(rewards_PG, xp.float64)
        if mask is not None:
            scored_PG = xp.where(mask_PG, scored_PG, 0.0)
        if scored_PG.shape[0] == 0 or scored_PG.shape[1] == 0:
            is_tied_P1 = xp.ones((scored_PG.shape[0], 1), dtype=xp.bool, device=device(rewards_PG))
            return Groups(scored_PG, mask_PG, xp, is_tied_P1)
        self._check_domain(xp, scored_PG, mask_PG)
        highest_PG, lowest_PG = scored_PG, scored_PG
        if mask is not None:
            highest_PG = xp.where(mask_PG, scored_PG, -math.inf)
            lowest_PG = xp.where(mask_PG, scored_PG, math.inf)
        highest_P1 = xp.max(highest_PG, axis=1, keepdims=True)
        is_tied_P1 = highest_P1 <= xp.min(lowest_PG, axis=1, keepdims=True)
        return Groups(scored_PG, mask_PG, xp, is_tied_P1)

    def _check_domain(self, xp: Any, scored_PG: Array, mask_PG: Array) -> None:
        """Raise for a scored reward that is not finite or not in the domain, naming it."""
        is_in = xp.isfinite(scored_PG)
        wanted = "a finite number"
        if self.domain == "unit":
            is_in = (scored_PG >= 0) & (scored_PG <= 1)
            wanted = "in [0, 1]"
        elif self.domain == "binary":
            is_in = (scored_PG == 0) | (scored_PG == 1)
            wanted = "0 or 1"
        if not bool(xp.all(is_in)):
            row, column = np.argwhere(~np.asarray(is_in))[0].tolist()
            raise UsageError(
                f"reward {float(scored_PG[row, column])} of group {row}, rollout {column}: weight "
                f"{self} needs rewards that are {wanted}; leave an unscorable rollout out with mask"
            )


def success_counts(groups: Groups, signals: Mapping[str, Any]) -> tuple[float, float]:
    """Successes and scored rollouts of the batch, from the best source there is.

    Raw counts before any filter come first, then the verdicts, then rewards that are 0 or 1.

    Raises:
        UsageError: None of these is at hand, or the counts contradict each other.
    """
    num_success, num_scored = signals.get("num_success"), signals.get("num_scored")
    if (num_success is None) != (num_scored is None):
        raise UsageError("num_success and num_scored are given together or not at all")
    if num_success is not None and num_scored is not None:
        if not 0 <= num_success <= num_scored:
            raise UsageError(f"num_success = {num_success} is not within 0 to num_scored = {num_scored}")
        return float(num_success), float(num_scored)
    xp, successes_PG = groups.xp, signals.get("successes_PG")
    if successes_PG is None:
        successes_PG = groups.rewards_PG
        if not bool(xp.all((successes_PG == 0) | (successes_PG == 1))):
            raise UsageError(
                "rewards are not all 0 or 1, so they do not say which rollouts succeeded: "
                "pass successes_PG (the verdicts) or num_success and num_scored"
            )
    is_success_PG = xp.astype(successes_PG, xp.bool) & groups.mask_PG
    return float(xp.sum(is_success_PG)), float(xp.sum(groups.num_scored_P1))


def _weight_dtype(xp: Any, rewards: Array) -> Any:
    if xp.isdtype(rewards.dtype, "real floating"):
        return rewards.dtype
    return xp.__array_namespace_info__().default_dtypes()["real floating"]


def _layout(group_ids_B: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where each rollout goes in a padded matrix.

    Returns:
        ``slots_PG``, the index of the rollout in each cell, -1 for padding; and ``position_B``,
        the flat cell of each rollout.
    """
    ids_B = _as_integers(group_ids_B)
    group_B = np.unique(ids_B, return_inverse=True)[1].reshape(-1)
    size_P = np.bincount(group_B)
    order_B = np.argsort(group_B, kind="stable")
    within_B = np.arange(len(ids_B)) - np.repeat(np.cumsum(size_P) - size_P, size_P)
    width = int(size_P.max(initial=0))
    slots_PG = np.full((len(size_P), width), -1)
    slots_PG[group_B[order_B], within_B] = order_B
    position_B = np.empty(len(ids_B), dtype=np.int64)
    position_B[order_B] = group_B[order_B] * width + within_B
    return slots_PG, position_B


def _as_integers(group_ids_B: Any) -> np.ndarray:
    """Ids as integers: integer arrays and tensors as they are, anything else by first sight."""
    if hasattr(group_ids_B, "detach"):
        group_ids_B = group_ids_B.detach().cpu().numpy()
    if isinstance(group_ids_B, np.ndarray) and group_ids_B.dtype.kind in "iu":
        return group_ids_B
    numbers: dict[Any, int] = {}
    return np.fromiter(
        (numbers.setdefault(key, len(numbers)) for key in group_ids_B), np.int64, len(group_ids_B)
    )


WEIGHTS: Registry[Weight] = Registry("weight", "gradmass.weights", Weight)
register_weight = WEIGHTS.register
