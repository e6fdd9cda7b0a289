"""When what is looked at in training, behind one object with two moments: before and after."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from gradmass.config import Recipe
from gradmass.metrics.alarms import Alarms
from gradmass.metrics.signal import Levels
from gradmass.training.aggregation import loss_denominators
from gradmass.training.batch import Batch
from gradmass.training.clock import Clock
from gradmass.training.probes.change import ChangeProbe
from gradmass.training.probes.gradients import (
    group_gradients,
    score_squares,
    verdict_gradients,
)
from gradmass.training.probes.others import centred, group_levels, judge_weight, weigh_again
from gradmass.training.probes.states import (
    States,
    answer_states,
    entropy_of,
    is_plain_head,
    shared_row,
)
from gradmass.training.rollout import DIVERGED
from gradmass.types import UsageError
from gradmass.weights import Weight

Row = dict[str, Any]
CAPPED = {
    "name": "not measured",
    "message": "the model changes its logits after the output head, so hidden states, M_1, M_2, "
    "rho_perp and the entropy after an update are left out",
    "cannot_tell": "anything of these; all other measurements are as for any model",
}
RECENT = 10
"""Looks over which the quality of updates (10) is pooled."""


class Probes:
    """Looks at the policy around an update, at the periods of the recipe.

    Looking changes no number of the run: no random draw is made, no parameter and no gradient of
    the update is touched. What is remembered (looks to pool, warnings given) follows from the
    record, so a resumed run goes on as if it had not been away.

    Args:
        recipe: The whole run.
        start_policy: The policy of the KL term, None without one.
        change: The change since the start.
        stored_dtype: What the checkpoint at the start is stored in.
        metrics: Rows of metrics recorded so far.
        diagnostics: Rows of diagnostics recorded so far.
    """

    def __init__(
        self,
        recipe: Recipe,
        start_policy: PreTrainedModel | None,
        change: ChangeProbe,
        stored_dtype: torch.dtype,
        metrics: Iterable[Mapping[str, Any]] = (),
        diagnostics: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self._recipe, self._start_policy = recipe, start_policy
        self._change, self._stored_dtype = change, stored_dtype
        self._recent: deque[Levels] = deque(maxlen=RECENT)
        for row in diagnostics:
            if row["kind"] == "signal":
                self._recent.append(Levels(**{k: _tuple(v) for k, v in row["levels"].items()}))
        self._alarms = Alarms(_bounds(recipe.weight))
        self._is_told = False
        for row in metrics:
            self._alarms.see(row)
            self._is_told |= CAPPED in row.get("warnings", [])
        self._has_plain_head: bool | None = None
        self._entropy_before: float | None = None
        self.details: list[Row] = []
        """Rows of diagnostics that the last update gave; of lists and tables, not of numbers."""

    def before_update(self, step: int, policy: PreTrainedModel, batch: Batch) -> Row:
        """What is seen of an update before it is made.

        Args:
            step: Its number, from 1.
            policy: The policy that is about to be updated.
            batch: What it is updated on.
        """
        self.details, self._entropy_before = [], None
        if not _is_due(step, self._recipe.probe.every):
            return {}
        clock, config = Clock(), self._recipe.loss
        denominator_B = loss_denominators(config, batch.rollouts, self._recipe.train.max_new_tokens)
        parts = verdict_gradients(config, policy, self._start_policy, batch, denominator_B)
        if not all(math.isfinite(value) for value in parts.values() if value is not None):
            return {}  # the policy has diverged, which the update says
        right, wrong = score_squares(policy, batch.rollouts, batch.successes_PG, batch.mask_PG)
        row: Row = {**parts, "gradient/right_square": right, "gradient/wrong_square": wrong}
        self.details.append(self._signal(policy, batch))
        row |= {f"signal/{key}": self.details[-1]["weights"][0][key] for key in _SIGNAL_KEYS}
        states = self._states(policy, batch)
        if states is not None:
            self._entropy_before = entropy_of(policy, states)
            change = self._change.head_change(policy)
            row |= shared_row(states, batch.successes_PG, batch.mask_PG, change)
        clock.lap("time/probe_s")
        return row | clock.laps

    def after_update(self, step: int, policy: PreTrainedModel, batch: Batch, row: Row) -> Row:
        """What is seen of an update after it was made.

        Args:
            step: Its number, from 1.
            policy: The updated policy.
            batch: What it was updated on.
            row: What is known of the update so far.

        Returns:
            What to add to the row: ``entropy/change_nats``, the change of the mean entropy at the
            very contexts of the batch, and the seconds that looking took.

        Raises:
            UsageError: The updated policy gives NaN or infinite logits.
        """
        clock, found = Clock(), Row()
        if self._entropy_before is not None:
            after = entropy_of(policy, answer_states(policy, batch.rollouts))
            assert after is not None  # a batch has tokens
            if not math.isfinite(after):
                raise UsageError(DIVERGED)
            found["entropy/change_nats"] = after - self._entropy_before
        if _is_due(step, self._recipe.probe.rank_every):
            spectra = self._change.spectra(policy, self._stored_dtype)
            self.details.append({"kind": "spectrum", **spectra})
        clock.lap("time/probe_s")
        if self.details:
            found["time/probe_s"] = clock.laps["time/probe_s"] + row.get("time/probe_s", 0.0)
        return found

    def warnings(self, row: Row) -> Row:
        """``{"warnings": [...]}`` where a whole row of metrics gives any, else nothing."""
        warnings = self._alarms.see(row)
        if self._has_plain_head is False and not self._is_told:
            self._is_told = True
            warnings.append(CAPPED)
        return {"warnings": warnings} if warnings else {}

    def _signal(self, policy: PreTrainedModel, batch: Batch) -> Row:
        others = [(other, *weigh_again(other, batch)) for other in self._recipe.probe.others]
        _, centred_PG = centred(batch)
        judged = [(self._recipe.weight, batch.weights_PG, batch.weight_state), *others]
        gradients = group_gradients(
            self._recipe.loss, policy, batch, [centred_PG, *(w for _, w, _ in others)]
        )
        self._recent.append(group_levels(gradients, batch))
        return {
            "kind": "signal",
            "levels": vars(self._recent[-1]),
            "weights": [
                judge_weight(weight, state, weights_PG, gradients, list(self._recent), batch)
                for weight, weights_PG, state in judged
            ],
        }

    def _states(self, policy: PreTrainedModel, batch: Batch) -> States | None:
        if self._has_plain_head is None:
            self._has_plain_head = is_plain_head(policy, batch.rollouts)
        return answer_states(policy, batch.rollouts) if self._has_plain_head else None


_SIGNAL_KEYS = ("snr", "quality", "batch_ratio", "num_effective")


def _is_due(step: int, every: int) -> bool:
    return every > 0 and (step == 1 or step % every == 0)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _bounds(weight: Weight) -> dict[str, float]:
    """The outer bounds of alpha and delta, where the weight, or one within it, has them."""
    inner = getattr(weight, "inner", None)
    bounds = _bounds(inner) if isinstance(inner, Weight) else {}
    for key, field in (("weight/alpha", "alpha_max"), ("weight/delta", "delta_min")):
        if hasattr(weight, field):
            bounds[key] = getattr(weight, field)
    return bounds
