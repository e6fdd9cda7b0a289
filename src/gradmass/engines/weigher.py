"""What every engine does with a batch: weigh it, measure it, remember; by weights or beside them.

Flat NumPy arrays and group ids in, weights and a row of metrics out. An engine's file only collects
and writes back.
"""

import hashlib
import json
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import array_api_compat.numpy as xp
import numpy as np

from gradmass.metrics.mass import gradient_mass, group_shares
from gradmass.types import State, UsageError
from gradmass.weights import Weight
from gradmass.weights.groups import Groups, Layout, read_only
from gradmass.weights.signals import SIGNALS

Mode = Literal["weight", "shadow"]
Row = dict[str, float]

SCHEMA_VERSION = 1
"""Of the saved state; another version is refused."""


@dataclass(frozen=True)
class Batch:
    """The rollouts of a batch, flat and of all processes.

    Args:
        rewards_B: Rewards; anything where not scored.
        layout: The groups: rollouts of one draw of one prompt.
        successes_B: The verdicts; anything where not scored.
        mask_B: True where a rollout is scored.
        has_tokens_B: True where a rollout has tokens that reach the loss.
        lengths_B: Sampled tokens of each rollout; None where not known.
        host_weights_B: What the engine itself would multiply the score by; None where not known.
        evicted: Successes and scored rollouts that the engine drew and filtered out before.
    """

    rewards_B: np.ndarray
    layout: Layout
    successes_B: np.ndarray
    mask_B: np.ndarray
    has_tokens_B: np.ndarray
    lengths_B: np.ndarray | None = None
    host_weights_B: np.ndarray | None = None
    evicted: tuple[int, int] = (0, 0)

    @cached_property
    def right_B(self) -> np.ndarray:
        """Which rollouts are scored and right."""
        right_B: np.ndarray = self.successes_B & self.mask_B
        return right_B


ENTROPY = {"entropy_nats": 1.0, "entropy_kind": "asked"}
LAG = {"policy_lag": 100}
"""Measurements to ask a weight with whether it follows them."""


def follows(weight: Weight, measured: Mapping[str, Any]) -> bool:
    """Whether a weight's state or weights follow a measurement of the run.

    Found out by asking: a batch weighed with and without it, beside everything else that may be
    measured: a lag may be kept with the entropy that it belongs to.

    >>> from gradmass.weights import WEIGHTS
    >>> follows(WEIGHTS["fade"](), ENTROPY), follows(WEIGHTS["fade"](), LAG)
    (True, True)
    """
    size = max(2, weight.min_group_size)
    rewards_PG = np.zeros((1, size))
    rewards_PG[0, 0] = 1.0
    signals = {
        "num_success": 1,
        "num_scored": size,
        "step": 0,
        "num_steps": 1,
        "lengths_PG": np.ones((1, size)),
        "greedy_rewards_P": np.zeros(1),
        "solve_rate_P": np.full(1, 0.5),
        "score_squares": (1.0, 1.0),
        **ENTROPY,
        **LAG,
    }
    if measured.keys() & set(weight.needs):
        return True
    others = {key: value for key, value in signals.items() if key not in measured}
    without_PG, state = weight.update(rewards_PG, weight.init(), **others)
    with_PG, state_with = weight.update(rewards_PG, weight.init(), **{**others, **measured})
    return state != state_with or not np.array_equal(without_PG, with_PG)


class Weigher:
    """One weight that acts, or several that are only shown the batches (shadow mode).

    Args:
        weights: The weight, or in shadow mode at least one.
        mode: ``weight`` or ``shadow``.
        supplied: Signals that the engine measures.
        factor: What every weight is multiplied by.

    Attributes:
        names: How the weights are called in metrics.
        states: Their states, in their order.

    Raises:
        UsageError: Unknown mode, a wrong number of weights, or a weight that needs a signal the
            engine does not measure.
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        mode: Mode,
        supplied: frozenset[str],
        *,
        factor: float = 1.0,
    ) -> None:
        if mode not in ("weight", "shadow"):
            raise UsageError(f"mode must be 'weight' or 'shadow', got {mode!r}")
        for weight in weights:
            if not isinstance(weight, Weight):
                raise UsageError(f"weight must be a policy weight such as Fade(), got {weight!r}")
            missing = [need for need in weight.needs if need not in supplied]
            if missing:
                raise UsageError(
                    f"weight {weight.label} needs the signal {missing[0]!r}, which this engine "
                    f"does not measure (it has {', '.join(sorted(supplied & SIGNALS))})"
                )
        if mode == "weight" and len(weights) != 1:
            raise UsageError(f"mode 'weight' takes one weight, got {len(weights)}; shadow has many")
        if not weights:
            raise UsageError("mode 'shadow' needs at least one weight to measure")
        self.weights, self.mode, self.factor = tuple(weights), mode, factor
        self.names = _names(weights)
        self.states: list[State] = [weight.init() for weight in weights]
        self.uses_entropy = any(follows(weight, ENTROPY) for weight in weights)
        self.uses_lag = any(follows(weight, LAG) for weight in weights)
        self.num_batches = 0
        self._off: set[int] = set()
        self._told: set[tuple[str, type]] = set()

    def weigh(
        self, batch: Batch, *, is_training: bool, **signals: Any
    ) -> tuple[np.ndarray | None, Row]:
        """Weigh a batch and say what was seen.

        Args:
            batch: The rollouts of all processes.
            is_training: Whether the weights learn from the batch; in evaluation they are held.
            **signals: Measurements of the run, named in ``SIGNALS``.

        Returns:
            Weights of shape ``[B]`` in float64 (None in shadow mode), and metrics: masses, what the
            weight reports, group shares, solve rate; in shadow mode masses of the engine's own
            weights, and the same of each weight under ``shadow/NAME/``.

        Raises:
            UsageError: The weight refuses the batch, or none of it is scored.

        Warns:
            UserWarning: In shadow mode, where nothing a weight does stops the run: one that raises
                anything is switched off, and ``shadow/NAME/off`` is 1 from then on.
        """
        groups, row, signals = _survey(batch, signals)
        if self.mode == "weight" and is_training and not batch.mask_B.any():
            raise UsageError(
                f"none of the {len(batch.mask_B)} rollouts is scored, every reward is None or NaN: "
                "nothing can be learnt (is the verifier down?); the last checkpoint is intact"
            )
        if batch.host_weights_B is not None:
            row |= _masses(batch.host_weights_B, batch)
        weights_B = None
        for i, name in enumerate(self.names):
            if self.mode == "weight":
                weights_B, seen = self._weigh_one(i, batch, groups, signals, is_training)
                row |= seen
                continue
            state = self.states[i]
            try:
                if i not in self._off:
                    _, seen = self._weigh_one(i, batch, groups, signals, is_training)
                    json.dumps(self.states[i], allow_nan=False)  # or no checkpoint keeps any
                    row |= {f"shadow/{name}/{key}": value for key, value in seen.items()}
            except Exception as error:  # whatever it is, the run is not the shadow's to stop
                self.states[i] = state
                self._off.add(i)
                self._tell(f"shadow weight {name} is off from here on", error)
            if i in self._off:
                row[f"shadow/{name}/off"] = 1.0
        self.num_batches += is_training
        return weights_B, row

    def outlive(self, error: Exception, what: str, *, is_first: bool) -> Row:
        """Raise what stops a run; in shadow mode warn, and return what goes into the log.

        Args:
            error: What was raised around the weights: by the engine, or by a batch that cannot be
                measured.
            what: What was left undone.
            is_first: Whether nothing of the kind has been done yet. Then what does not fit
                (``UsageError``) stops a run in shadow mode too, which would measure nothing.

        Warns:
            UserWarning: Once for each kind of error.
        """
        if self.mode == "weight" or (is_first and isinstance(error, UsageError)):
            raise error
        self._tell(what, error)
        return {"shadow/unmeasured": 1.0}

    def _tell(self, what: str, error: Exception) -> None:
        if (what, type(error)) in self._told:
            return
        self._told.add((what, type(error)))
        text = str(error)
        if not isinstance(error, UsageError):
            text = f"{type(error).__name__}: {text}"
            for frame in traceback.extract_tb(error.__traceback__)[-1:]:
                text += f" ({frame.filename}:{frame.lineno})"
        warnings.warn(f"{what}: {' '.join(text.split())}", stacklevel=3)

    def _weigh_one(
        self,
        i: int,
        batch: Batch,
        groups: Groups,
        signals: Mapping[str, Any],
        is_training: bool,
    ) -> tuple[np.ndarray, Row]:
        """Weights of one of the weights, flat, with their masses and what the weight reports."""
        weight = self.weights[i]
        if is_training:
            weights_PG, self.states[i] = weight.update_groups(groups, self.states[i], signals)
        else:
            weight.check_groups(groups)
            weights_PG = weight.weigh_groups(groups, self.states[i], signals)
        weights_B = batch.layout.flat(self.factor * np.asarray(weights_PG))
        return weights_B, _masses(weights_B, batch) | self._report(i)

    def _report(self, i: int) -> Row:
        report = self.weights[i].report(self.states[i])
        return {
            f"weight/{key}": float(value)
            for key, value in report.items()
            if isinstance(value, int | float)
        }

    @property
    def digest(self) -> int:
        """A number that two processes share if and only if their states are equal; 53 bits."""
        text = json.dumps(self.states, sort_keys=True)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 11

    def state_dict(self) -> dict[str, Any]:
        """The weights with their states as plain JSON."""
        entries: list[dict[str, Any]] = [
            {"spec": weight.spec, "label": weight.label, "state": state}
            for weight, state in zip(self.weights, self.states, strict=True)
        ]
        for i in self._off:
            entries[i]["off"] = True
        return {"schema_version": SCHEMA_VERSION, "mode": self.mode, "weights": entries}

    def load_state_dict(self, saved: Mapping[str, Any], source: str) -> None:
        """Go on where ``state_dict`` was taken.

        Args:
            saved: What it returned.
            source: Where it comes from, for messages.

        Raises:
            UsageError: Another schema, other weights or modes, or a state that is not theirs.

        Warns:
            UserWarning: A weight of the same class has other fields now; or one was switched off
                before, and stays so: its state has missed batches.
        """
        version = saved.get("schema_version") if isinstance(saved, Mapping) else None
        if version != SCHEMA_VERSION:
            raise UsageError(
                f"{source} has schema_version {version!r}, this gradmass reads {SCHEMA_VERSION}"
            )
        try:
            own = (self.mode, [weight.spec for weight in self.weights])
            theirs = (saved["mode"], [entry["spec"] for entry in saved["weights"]])
            labels = [entry["label"] for entry in saved["weights"]]
            states = [dict(entry["state"]) for entry in saved["weights"]]
            off = {i for i, entry in enumerate(saved["weights"]) if entry.get("off", False)}
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{source} is damaged: {error!r} in it") from error
        if own != theirs:
            raise UsageError(
                f"{source} was saved by {' and '.join(labels)} in mode {theirs[0]!r}, this run has "
                f"{' and '.join(w.label for w in self.weights)} in mode {self.mode!r}"
            )
        for weight, label, state in zip(self.weights, labels, states, strict=True):
            weight._check_state(state)
            if weight.label != label:
                warnings.warn(
                    f"{source} was saved by {label}; its state goes on under {weight.label}",
                    stacklevel=2,
                )
        for i in sorted(off):
            warnings.warn(
                f"shadow weight {self.names[i]} was off at {source}, and stays off", stacklevel=2
            )
        self.states, self.num_batches, self._off = states, 1, off


def _survey(batch: Batch, signals: dict[str, Any]) -> tuple[Groups, Row, dict[str, Any]]:
    """The rewards by groups, what there is to say of them under any weight, and all signals."""
    rows = batch.layout
    mask_PG, successes_PG = rows.marks(batch.mask_B), rows.marks(batch.right_B)
    num_success, num_scored = np.count_nonzero(successes_PG), np.count_nonzero(mask_PG)
    all_right, all_wrong, mixed = group_shares(successes_PG, mask_PG)
    row = {
        "rollout/num_unscorable": float(len(batch.mask_B) - num_scored),
        "groups/all_right": all_right,
        "groups/all_wrong": all_wrong,
        "groups/mixed": mixed,
    }
    if batch.evicted[1]:
        row["rollout/num_evicted"] = float(batch.evicted[1])
        num_success += batch.evicted[0]
        num_scored += batch.evicted[1]
    if num_scored:
        row["rollout/solve_rate"] = num_success / num_scored
    if signals.get("entropy_nats") is not None:
        row["entropy/mean_nats"] = signals["entropy_nats"]
    signals = signals | {
        "successes_PG": successes_PG,
        "num_success": num_success,
        "num_scored": num_scored,
    }
    if batch.lengths_B is not None:
        signals["lengths_PG"] = rows.rows(batch.lengths_B)
    # As group_rewards does for arrays of any kind; these are NumPy's, and no one else's.
    rewards_PG = np.where(mask_PG, rows.rows(batch.rewards_B), np.float64(0.0))
    return Groups(read_only(rewards_PG), mask_PG, xp), row, signals


def _names(weights: Sequence[Weight]) -> list[str]:
    """How weights are called in metrics: by name, numbered from the second of a name."""
    names: list[str] = []
    for weight in weights:
        name = weight.name.rpartition(":")[2]
        repeats = sum(known.partition("#")[0] == name for known in names)
        names.append(f"{name}#{repeats + 1}" if repeats else name)
    return [name.replace("#", "_") for name in names]


def _masses(weights_B: np.ndarray, batch: Batch) -> Row:
    """Masses of what reaches the loss: a rollout without tokens there has none."""
    applied_B = np.where(batch.has_tokens_B, weights_B, 0.0)
    m_success, m_failure = gradient_mass(applied_B, batch.right_B)
    return {"mass/positive": m_success, "mass/negative": m_failure}
