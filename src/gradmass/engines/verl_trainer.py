"""The trainers ``gradmass_sync``, ``gradmass_colocate_async`` and ``gradmass_separate_async``.

verl's own trainers of those names, with these steps of theirs extended:

``_compute_advantage``                   hands the estimator entropy, verdicts, names, raw counts;
                                         in shadow mode sees what verl's own gives
``_update_actor``                        checks that the loss is given what was written
``_save_checkpoint``, ``_load_checkpoint``  carry the state

``register`` is called once verl's trainers are there. All of it runs in verl's one driver process.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradmass.engines.state import write_state
from gradmass.engines.verl_batch import evicted
from gradmass.engines.verl_checks import check_start
from gradmass.engines.verl_config import ROLLOUT
from gradmass.engines.verl_estimators import (
    SUPPLIED,
    Step,
    plain,
    restore,
    resumed_from,
    spread,
    stepping,
)
from gradmass.engines.verl_queue import columns, is_cut_from, padded, results_of
from gradmass.engines.verl_settings import read_settings
from gradmass.engines.weigher import Weigher
from gradmass.types import UsageError

MODES = ("sync", "colocate_async", "separate_async")
"""Of verl's trainers; ours are called gradmass_MODE."""
EXACT = "exact softmax entropy"
SAMPLED = "minus the log-probability of the sampled tokens"
WATCHED = "compute_advantage_for_multi_trajectories"
"""verl's function around its estimators, by the name its trainers call it."""
Base: Any = object
"""A trainer of verl by the time the mixin is used."""


class Written(NamedTuple):
    """The advantages of a batch: a weight for each row, on some of its tokens."""

    keys: Sequence[str] = ()
    weights_B: Tensor = torch.zeros(0)
    mask_BT: Tensor = torch.zeros(0, 0, dtype=torch.bool)

    def rows(self, keys: Sequence[str]) -> Tensor:
        """The advantages of rows by name, ``[B, T]``.

        Raises:
            UsageError: No weight has seen a row of that name.
        """
        if list(keys) == self.keys:  # as a rule the very same strings
            return spread(self.weights_B, self.mask_BT)
        row_of = {key: row for row, key in enumerate(self.keys)}
        unseen = [key for key in keys if key not in row_of]
        if unseen:
            raise UsageError(
                f"the loss was given row {unseen[0]!r} that no weight has seen (gradmass doctor "
                "verl says more)"
            )
        rows_B = torch.tensor([row_of[key] for key in keys])
        return spread(self.weights_B[rows_B], self.mask_BT[rows_B])


class WeightMixin(Base):
    """A trainer of verl with the advantages of a policy weight, or with one in its shadow.

    Args:
        config: Of the run; ``algorithm.gradmass`` as in ``verl_settings.Settings``.

    A session of several outputs counts once. The entropy is that of the policy that is about to be
    updated, over the response tokens of this very batch. Groups that ``algorithm.filter_groups``
    evicted count in the solve rate. In shadow mode verl's own estimator runs and nothing is
    changed.

    Raises:
        UsageError: At the start, where the configuration or verl itself does not fit; in a step,
            where the weight refuses the batch, or other advantages reach the loss than were
            written.
    """

    gradmass_mode = "sync"
    """Which of verl's trainers this is."""

    def __init__(self, config: Any) -> None:
        from omegaconf import open_dict

        algorithm = config.algorithm
        table = {name: plain(algorithm.get(name)) for name in ("adv_estimator", "gradmass")}
        self._gradmass_settings = read_settings(table)
        settings = self._gradmass_settings
        self._gradmass = Weigher(settings.weights, settings.mode, SUPPLIED)
        self._gradmass_written = Written()
        check_start(config, settings, self._gradmass)
        with open_dict(config):
            # verl asks for its own names: an unknown one is taken for an asynchronous trainer.
            config.trainer.v1.trainer_mode = self.gradmass_mode
        super().__init__(config)

    # Weigh.

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        if self._gradmass.mode == "shadow":
            return self._gradmass_in_shadow(batch, metrics)
        step = self._gradmass_step(batch, metrics)
        with stepping(step):
            result = super()._compute_advantage(batch, metrics)
        if step.weights_B is None or step.mask_BT is None:
            raise UsageError(
                "verl computed advantages without the estimator of the weight (gradmass doctor "
                "verl says more)"
            )
        weights_B = torch.as_tensor(step.weights_B, dtype=torch.float32)
        self._gradmass_written = Written(list(batch.keys), weights_B, step.mask_BT)
        metrics.update(step.row)
        return result

    def _gradmass_in_shadow(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Let verl compute its own; then measure them, and what the weights would give."""
        with watching() as seen:
            result = super()._compute_advantage(batch, metrics)
        try:
            if not seen:
                raise UsageError(
                    f"verl computed advantages without {WATCHED} (gradmass doctor verl says more)"
                )
            step = self._gradmass_step(batch, metrics)
            look(step, seen[-1])
            metrics.update(step.row)
        except Exception as error:  # whatever it is, the run is not the shadow's to stop
            is_first = self._gradmass.num_batches == 0
            row = self._gradmass.outlive(
                error, "nothing was measured of a batch", is_first=is_first
            )
            metrics.update(row)
        return result

    def _gradmass_step(self, batch: Any, metrics: Mapping[str, Any]) -> Step:
        return Step(
            self._gradmass,
            self._gradmass_settings,
            keys=batch.keys,
            results=results_of(batch, self._gradmass_settings.success),
            signals=self._gradmass_signals(batch, metrics),
            evicted=self._gradmass_evicted(metrics),
        )

    def _gradmass_signals(self, batch: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
        signals: dict[str, Any] = {
            "step": min(self.global_steps - 1, self.total_training_steps),
            "num_steps": max(1, self.total_training_steps),
        }
        if self._gradmass.uses_lag:  # a table for each of tens of thousands of rows
            versions = {tag.get("min_global_steps") for tag in batch.tags} - {None}
            if versions:
                signals["policy_lag"] = max(0, self.global_steps - 1 - min(map(int, versions)))
        if self._gradmass.uses_entropy:
            nats, kind = self._gradmass_entropy(batch, metrics)
            temperature = self.config.actor_rollout_ref.rollout.temperature
            signals["entropy_nats"] = nats
            signals["entropy_kind"] = (
                f"verl: {kind}, temperature {temperature:g}, mean over response tokens, of the "
                "update to come"
            )
        return signals

    def _gradmass_entropy(self, batch: Any, metrics: Mapping[str, Any]) -> tuple[float, str]:
        """Mean over the response tokens of this batch, whatever the loss is averaged over."""
        correction = self.config.algorithm.get("rollout_correction") or {}
        if correction.get("bypass_mode", False):
            rollout = self.config.actor_rollout_ref.rollout
            if rollout.top_p < 1 or rollout.top_k > 0:
                raise UsageError(
                    "algorithm.rollout_correction.bypass_mode measures no entropy, and that of "
                    f"the sampled tokens is not the policy's with {ROLLOUT}.top_p = "
                    f"{rollout.top_p}, top_k = {rollout.top_k}: turn one of them off"
                )
            data = columns(batch, "old_log_probs", "response_mask")
            return -token_mean(data["old_log_probs"], data["response_mask"]), SAMPLED
        if self.config.actor_rollout_ref.actor.loss_agg_mode == "token-mean":
            if "actor/entropy" not in metrics:
                raise UsageError(
                    "verl measured no entropy before its advantages (gradmass doctor verl says "
                    "more)"
                )
            return max(0.0, float(metrics["actor/entropy"])), EXACT
        data = columns(batch, "entropy", "response_mask")
        return max(0.0, token_mean(data["entropy"], data["response_mask"])), EXACT

    def _gradmass_evicted(self, metrics: Mapping[str, Any]) -> tuple[int, int]:
        from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY

        counts = metrics.get(DAPO_FILTERED_REWARD_COUNTS_KEY)
        size = self.config.actor_rollout_ref.rollout.n
        return evicted(counts, size, self._gradmass_settings)

    # Watch.

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        if self._gradmass.mode == "weight":
            self._gradmass_watch(batch)
        return super()._update_actor(batch, metrics)

    def _gradmass_watch(self, batch: Any) -> None:
        """Stop the run unless the advantages that the workers will read are the ones written."""
        written_BT = self._gradmass_written.rows(batch.keys)
        # Not the mask again: a column takes the queue longer than all of our own work.
        given = columns(batch, "advantages")["advantages"]
        if not is_cut_from(given, written_BT):
            raise UsageError(
                "the advantages that reached the loss are not the weights that were written: "
                "something normalised or changed them after the weight, and no update was made"
            )

    # Remember.

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        try:
            # Before the rest of the checkpoint, so that none is ever without it.
            write_state(folder, self._gradmass.state_dict())
        except Exception as error:  # whatever it is, the run is not the shadow's to stop
            self._gradmass.outlive(error, f"{folder} has no state of the weights", is_first=False)
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        folder = resumed_from(self.config)
        if self.global_steps and folder is not None:
            restore(self._gradmass, folder)


class Watched:
    """A function of verl that shows what it returned to whoever is watching.

    Args:
        own: The function.
    """

    def __init__(self, own: Callable[..., Any]) -> None:
        self.own = own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What verl's own returns, and nothing else done to it."""
        data = self.own(*args, **kwargs)
        seen = SEEN.get()
        if seen is not None:
            seen.append(data)
        return data


SEEN: ContextVar[list[Any] | None] = ContextVar("gradmass_seen", default=None)
"""What ``WATCHED`` has returned to a trainer in shadow mode: a list for each thread."""
INSTALLING = Lock()


@contextmanager
def watching() -> Iterator[list[Any]]:
    """Show what verl's own estimator was given and gave, in this thread until the block ends.

    The queue holds the same, but hands it over only after a longer time than verl took to compute
    it. Nothing is changed: ``Watched`` stays in the place of verl's function, for the trainers of
    other threads may be in the midst of a step, and shows nothing to those that do not watch.
    """
    from verl.trainer.ppo.v1 import trainer_base

    with INSTALLING:
        own = getattr(trainer_base, WATCHED)
        if not isinstance(own, Watched):
            setattr(trainer_base, WATCHED, Watched(own))
    seen: list[Any] = []
    token = SEEN.set(seen)
    try:
        yield seen
    finally:
        SEEN.reset(token)


def look(step: Step, data: Any) -> None:
    """Measure what verl's own estimator was given and gave."""
    response_mask = data.batch["response_mask"]
    host_B, is_even = one_a_row(data.batch["advantages"], response_mask)
    step.weigh(
        data.batch["rm_scores"].sum(-1).double().numpy(),
        data.non_tensor_batch["uid"],
        response_mask.sum(-1).numpy(),
        host_B.double().numpy() if is_even else None,
    )


def token_mean(values: Tensor, mask: Tensor) -> float:
    """Mean of the tokens that a mask keeps."""
    values_BT, mask_BT = padded(values).double(), padded(mask) > 0
    return float(values_BT[mask_BT].mean()) if bool(mask_BT.any()) else 0.0


def one_a_row(advantages_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, bool]:
    """The advantage of each row, and whether every row has one alone (those of a critic do not)."""
    is_token_BT = mask_BT > 0
    first_B = is_token_BT.int().argmax(dim=1, keepdim=True)
    host_B = advantages_BT.gather(1, first_B).squeeze(1) * is_token_BT.any(dim=1)
    return host_B, torch.equal(advantages_BT, spread(host_B, mask_BT).to(advantages_BT))


def register() -> None:
    """Register a trainer for each of verl's."""
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY, register_trainer

    for mode in MODES:
        name = f"gradmass_{mode}"
        if mode in TRAINER_REGISTRY and name not in TRAINER_REGISTRY:
            base = TRAINER_REGISTRY[mode]
            fields = {
                "gradmass_mode": mode,
                "__module__": __name__,
                "__doc__": WeightMixin.__doc__,
            }
            register_trainer(name)(type(f"Weighted{base.__name__}", (WeightMixin, base), fields))
