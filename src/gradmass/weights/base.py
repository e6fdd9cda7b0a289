"""The interface of a policy weight.

A new weight is one file here: a frozen dataclass with ``@register_weight("name")`` whose fields
are its hyper-parameters and whose ``formula`` computes the weights from a ``Groups``. Everything
else (validation, masks, ties, dtypes, ragged groups, flags, help) is done once, in ``Weight``.
"""

import dataclasses
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

from array_api_compat import array_namespace, device

from gradmass.registry import Registry
from gradmass.types import Array, State, UsageError
from gradmass.weights.groups import Groups, group_rewards, layout
from gradmass.weights.signals import SIGNALS

__all__ = ["WEIGHTS", "Groups", "Weight", "register_weight"]


@dataclass(frozen=True, kw_only=True)
class Weight(ABC):
    """A policy weight: maps the rewards of a batch to the factor of each rollout's score.

    The gradient estimate is the mean over rollouts of weight times grad log pi. Success weights
    are positive, failure weights negative: the gradient masses are
    ``m_S = mean(weight where success, else 0)`` and ``m_F = -mean(weight where failure, else 0)``.

    Class attributes say what holds of every instance; the contract tests check each.
    """

    name: ClassVar[str] = ""
    """Registered name, or ``path/to/file.py:Name``; what labels show."""
    spec: ClassVar[str] = ""
    """What finds the class again: the registered name, or the file's absolute path and its name."""
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
    keeps_sign: ClassVar[bool] = True
    """Whether no success has a negative weight and no failure a positive one, for rewards 0, 1."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Signals without which ``update`` raises."""
        return ()

    @property
    def min_group_size(self) -> int:
        """Rollouts the formula takes from a group.

        ``update`` raises where no group is that large, and gives 0 to the rollouts of a group of
        which fewer are scored.
        """
        return 1

    def init(self) -> State:
        """State before the first batch; plain JSON, ``{}`` for a weight that remembers nothing."""
        return {}

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """State after this batch; the weights of the batch are computed from it."""
        return state

    @abstractmethod
    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Weights of the batch in float64; entries outside the mask are overwritten with 0.

        ``groups.rewards_PG`` is finite and in the domain; ties are zeroed afterwards where
        ``on_ties`` says so.
        """

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
            UsageError: Rewards that are not a matrix, NaN or outside the domain; groups smaller
                than ``min_group_size``; a mask of another shape; an unknown or a missing signal.
        """
        self._check_state(state)
        groups = group_rewards(rewards_PG, mask)
        weights_PG, state = self.update_groups(groups, state, signals)
        return groups.xp.astype(weights_PG, _weight_dtype(groups.xp, rewards_PG)), state

    def update_groups(
        self, groups: Groups, state: State, signals: Mapping[str, Any]
    ) -> tuple[Array, State]:
        """``update`` with groups that several weights may share.

        Args:
            groups: From ``group_rewards``.
            state: Of this weight.
            signals: As in ``update``.

        Returns:
            Weights in float64, and the new state.

        Raises:
            UsageError: As in ``update``.
        """
        self._check_signals(signals)
        self.check_groups(groups)
        state = self.observe(groups, state, signals)
        return self.weigh_groups(groups, state, signals), state

    def weigh_groups(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Weights of a batch by a state as it is: ``update`` without ``observe``.

        Args:
            groups: Checked by ``check_groups``.
            state: One that has observed the batch, or one to hold fixed.
            signals: As in ``update``.

        Returns:
            Weights in float64: the ``formula``, 0 outside the mask, in groups below
            ``min_group_size``, and on ties where ``on_ties`` says so.

        Raises:
            UsageError: The formula gave NaN or infinite weights, another shape, or no array.
        """
        xp = groups.xp
        if 0 in groups.rewards_PG.shape:
            return groups.rewards_PG
        keep_PG = groups.mask_PG
        if self.on_ties == "zero":
            keep_PG = keep_PG & ~groups.is_tied_P1
        if self.min_group_size > 1:
            keep_PG = keep_PG & (groups.num_scored_P1 >= self.min_group_size)
        weights_PG = self.formula(groups, state, signals)
        shape = getattr(weights_PG, "shape", None)
        if shape != groups.rewards_PG.shape:
            given = type(weights_PG).__name__ if shape is None else f"weights of shape {(*shape,)}"
            raise UsageError(
                f"weight {self.label} gave {given} for rewards of shape "
                f"{(*groups.rewards_PG.shape,)}"
            )
        weights_PG = xp.where(keep_PG, weights_PG, 0.0)
        if not bool(xp.all(xp.isfinite(weights_PG))):
            raise UsageError(f"weight {self.label} gave NaN or infinite weights for this batch")
        return weights_PG

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
            **signals: As in ``update``; signals of rollouts (``*_PG``) and of prompts (``*_P``, the
                same number for all rollouts of a group) are given flat as ``[B]``.

        Returns:
            Weights of shape ``[B]`` in the order of the rewards, and the new state.

        Raises:
            UsageError: As in ``update``, or ids that are not one a rollout.

        Warns:
            UserWarning: Every group has one rollout, under a weight that compares the rollouts of
                a group: nothing would be learnt, and the ids are probably wrong.

        >>> import numpy as np
        >>> from gradmass.weights import WEIGHTS
        >>> weights_B, _ = WEIGHTS["grpo"]().weigh(np.array([1.0, 1.0, 0.0]), ["a", "b", "a"])
        >>> weights_B
        array([ 0.5,  0. , -0.5])
        """
        xp = array_namespace(rewards_B)
        ids_shape = tuple(getattr(group_ids_B, "shape", (len(group_ids_B),)))
        if rewards_B.ndim != 1 or ids_shape != tuple(rewards_B.shape):
            raise UsageError(
                f"weigh needs flat rewards and one group id each, got rewards of shape "
                f"{tuple(rewards_B.shape)} and ids of shape {ids_shape}"
            )
        rows = layout(group_ids_B)
        if self.needs_group and rows.slots_PG.shape[1] == 1:
            warnings.warn(
                f"each of the {len(rows.slots_PG)} groups has one rollout, so weight {self.label} "
                "is 0 for all; a group id is what the rollouts of one prompt share",
                stacklevel=2,
            )
        index_PG, mask_PG = (
            xp.asarray(cells_PG, device=device(rewards_B))
            for cells_PG in (rows.index_PG, rows.is_filled_PG)
        )
        if mask is not None:
            mask_PG = mask_PG & xp.astype(_in_rows(mask, rewards_B, index_PG), xp.bool)
        for key, flat_B in list(signals.items()):
            if key.endswith(("_PG", "_P")) and flat_B is not None:
                by_group_PG = _in_rows(flat_B, rewards_B, index_PG)
                first_P = xp.reshape(by_group_PG[:, :1], (-1,))
                signals[key] = by_group_PG if key.endswith("_PG") else first_P
        rewards_PG = _in_rows(rewards_B, rewards_B, index_PG)
        state = self.init() if state is None else state
        weights_PG, state = self.update(rewards_PG, state, mask=mask_PG, **signals)
        position_B = xp.asarray(rows.position_B, device=device(rewards_B))
        return xp.take(xp.reshape(weights_PG, (-1,)), position_B, axis=0), state

    @property
    def label(self) -> str:
        """The name with the fields that differ from their defaults: what a run is called."""
        changed = ", ".join(
            f"{field.name}={value.label if isinstance(value, Weight) else value}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        )
        name = self.name or type(self).__name__
        return f"{name}({changed})" if changed else name

    def _check_signals(self, signals: Mapping[str, Any]) -> None:
        if not signals.keys() <= SIGNALS:
            unknown = next(key for key in signals if key not in SIGNALS)
            raise UsageError(f"unknown signal {unknown!r}; known: {', '.join(sorted(SIGNALS))}")
        for key in self.needs:
            if signals.get(key) is None:
                raise UsageError(
                    f"weight {self.label} needs the signal {key!r}, which was not passed"
                )

    def _check_state(self, state: State) -> None:
        if not isinstance(state, Mapping) or state.keys() != self.init().keys():
            raise UsageError(
                f"weight {self.label} was given a state with {sorted(state)}, another "
                f"weight's; its own has {sorted(self.init())} (start from init())"
            )

    def check_groups(self, groups: Groups) -> None:
        """Refuse groups that the formula is not defined for.

        Raises:
            UsageError: Groups smaller than ``min_group_size``, a scored reward that is not finite
                or not in the domain.
        """
        num_groups, group_size = groups.rewards_PG.shape
        if group_size < self.min_group_size and bool(groups.xp.any(groups.mask_PG)):
            raise UsageError(
                f"weight {self.label} needs groups of at least {self.min_group_size} rollouts, "
                f"got groups of {group_size}"
            )
        if num_groups == 0 or group_size == 0:
            return
        low, high = groups.bounds
        is_in = low >= 0 and high <= 1
        if self.domain == "real":
            is_in = math.isfinite(low) and math.isfinite(high)
        elif self.domain == "binary":
            is_in = is_in and groups.is_binary
        if not is_in:
            self._refuse_rewards(groups)

    def _refuse_rewards(self, groups: Groups) -> NoReturn:
        """Name the first scored reward that is not finite or not in the domain."""
        xp, rewards_PG = groups.xp, groups.rewards_PG
        is_in, wanted = xp.isfinite(rewards_PG), "a finite number"
        if self.domain == "unit":
            is_in, wanted = (rewards_PG >= 0) & (rewards_PG <= 1), "in [0, 1]"
        elif self.domain == "binary":
            is_in, wanted = (rewards_PG == 0) | (rewards_PG == 1), "0 or 1"
        first = xp.argmax(xp.astype(xp.reshape(~is_in, (-1,)), xp.uint8))
        row, column = divmod(int(first), is_in.shape[1])
        raise UsageError(
            f"reward {rewards_PG[row, column].item()} of group {row}, rollout {column}: "
            f"weight {self.label} needs rewards that are {wanted}; leave an unscorable rollout "
            "out with mask"
        )


def _in_rows(flat_B: Array, rewards_B: Array, index_PG: Array) -> Array:
    """Numbers of a flat batch, beside its rewards, as a matrix with a row for each group."""
    xp = array_namespace(rewards_B)
    flat_B = xp.asarray(flat_B, device=device(rewards_B))
    if flat_B.shape != rewards_B.shape:
        raise UsageError(
            f"a flat batch of {rewards_B.shape[0]} rollouts needs masks and signals of "
            f"that length, got shape {tuple(flat_B.shape)}"
        )
    if flat_B.shape[0] == 0:
        return xp.reshape(flat_B, (0, 0))
    return xp.reshape(xp.take(flat_B, xp.reshape(index_PG, (-1,)), axis=0), index_PG.shape)


def _weight_dtype(xp: Any, rewards: Array) -> Any:
    if xp.isdtype(rewards.dtype, "real floating"):
        return rewards.dtype
    return xp.__array_namespace_info__().default_dtypes()["real floating"]


WEIGHTS: Registry[Weight] = Registry("weight", "gradmass.weights", Weight)  # type: ignore[type-abstract]
register_weight = WEIGHTS.register
