"""The hooks in TRL's GRPOTrainer. Made into a class by ``trl.make_trainer``.

Where they are, in the order of a step:

``_calculate_rewards``                  keeps the gathered rewards of all processes
``_generate_and_score_completions``     weighs them, replaces advantages and their log
``compute_loss``, ``_compute_loss``     check that the loss is given what was written
``_get_per_token_logps_and_entropies``  keeps the entropies until the loss is done
``_save_checkpoint``, ``_load_optimizer_and_scheduler``  carry the state
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradmass.engines.state import STATE_FILE, read_state, write_state
from gradmass.engines.trl_checks import check_start, mixed_group
from gradmass.engines.trl_window import Window, last_clip_shares
from gradmass.engines.weigher import Batch, Mode, Weigher
from gradmass.types import UsageError
from gradmass.weights import Weight
from gradmass.weights.groups import consecutive

WRITTEN = "gradmass_weights"
"""Key of the copy that travels beside the advantages through TRL's shuffle and split."""
SUPPLIED = frozenset(
    {
        "successes_PG",
        "num_success",
        "num_scored",
        "entropy_nats",
        "entropy_kind",
        "lengths_PG",
        "policy_lag",
        "step",
        "num_steps",
    }
)
"""Signals that TRL can give a weight."""
NOTHING_OF_A_BATCH = "nothing was measured of a batch"
NOTHING_OF_AN_UPDATE = "neither entropy nor clipping was measured of an update"
NO_STATE = "a checkpoint has no state of the weights"
"""What is told in shadow mode when something failed."""
Base: Any = object
"""A trainer of TRL by the time the mixin is used."""


class WeightMixin(Base):
    """TRL's GRPOTrainer with the advantages of a policy weight.

    Args:
        weight: What multiplies the score of a rollout, such as ``Fade()``; in shadow mode one or
            several.
        mode: ``weight`` replaces TRL's advantages. ``shadow`` changes nothing: the masses of TRL's
            own advantages are logged, and those that the weights would have had.
        success: Name of the reward function that says which rollouts succeeded, or several of
            which each judges some of the prompts. None: the rewards themselves, if all are 0 or 1.
        success_at: The least reward of a success.
        factor: What the weight is multiplied by.
        *args, **kwargs: Of the base.

    The weight is given the sum of the rewards by ``reward_weights``. A rollout that ``success``
    (or, without it, every reward function) answers with None is unscorable: weight 0 and out of its
    group's baseline. The entropy is that of the previous update, over the answer tokens of its
    whole accumulation window and of all processes: exact, or, where a fused loss keeps it to
    itself, that of the sampled tokens.

    Raises:
        UsageError: At the start, where the configuration or TRL itself does not fit; in a step,
            where the weight refuses the rewards, the processes' states differ, or other advantages
            reach the loss than were written.
    """

    def __init__(
        self,
        *args: Any,
        weight: Weight | Sequence[Weight],
        mode: Mode = "weight",
        success: str | Sequence[str] | None = None,
        success_at: float = 1.0,
        factor: float = 1.0,
        **kwargs: Any,
    ) -> None:
        weights = [weight] if isinstance(weight, Weight) else list(weight)
        weigher = Weigher(weights, mode, SUPPLIED, factor=factor)
        super().__init__(*args, **kwargs)
        self._gradmass = weigher
        self._gradmass_success = [success] if isinstance(success, str) else success
        self._gradmass_success_at = success_at
        self._gradmass_entropy: dict[str, Any] | None = None  # of the last whole window
        self._gradmass_window = Window(weigher.uses_entropy)
        self._gradmass_collected: tuple[Tensor, Tensor] | None = None
        self._gradmass_entropies: Tensor | None = None
        self._gradmass_is_changed: list[Tensor] = []
        check_start(self, weigher, self._gradmass_success)
        if mode == "weight":
            self.scale_rewards = "none"

    # Weigh.

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        rewards_BF = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        num_sampled_B = np.fromiter(map(len, completion_ids_list), np.float32)
        self._gradmass_collected = (rewards_BF, torch.from_numpy(num_sampled_B))
        return rewards_BF

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        is_training = self.model.training
        size = self.num_generations if is_training else self.num_generations_eval
        self._gradmass_check_groups(inputs, size)
        self._gradmass_collected = None
        output = super()._generate_and_score_completions(inputs)
        is_first, weights_B = self._gradmass.num_batches == 0, None
        try:
            if self._gradmass_collected is None:
                raise UsageError(
                    "TRL scored a batch without _calculate_rewards, so no weight was computed "
                    "(gradmass doctor trl says more)"
                )
            weights_B, row = self._gradmass.weigh(
                self._gradmass_batch(size, *self._gradmass_collect(output)),
                is_training=is_training,
                **self._gradmass_signals(),
            )
        except Exception as error:  # whatever it is, the run is not the shadow's to stop
            row = self._gradmass.outlive(error, NOTHING_OF_A_BATCH, is_first=is_first)
        self._gradmass_log("train" if is_training else "eval", row)
        self._gradmass_check_ranks()
        if weights_B is not None:
            self._gradmass_write(output, weights_B)
        return output

    def _gradmass_collect(self, output: dict[str, Any]) -> tuple[np.ndarray, ...]:
        """Rewards, their sum, tokens sampled and trained on, and TRL's own advantages, of all."""
        assert self._gradmass_collected is not None
        rewards_BF, num_sampled_B = self._gradmass_collected
        mask = output["completion_mask"]
        if output.get("tool_mask") is not None:
            mask = mask * output["tool_mask"]
        local = [num_sampled_B.to(mask.device), mask.sum(1), output["advantages"]]
        if self.accelerator.num_processes > 1:
            local = self.accelerator.gather(torch.stack(local, dim=1)).unbind(1)
        # TRL's own sum, so that rewards equal there are equal here.
        weights_F = self.reward_weights.to(rewards_BF.device)
        rewards_B = (rewards_BF * weights_F).nansum(dim=1)
        return tuple(values.cpu().numpy() for values in (rewards_BF, rewards_B, *local))

    def _gradmass_batch(
        self,
        size: int,
        by_func_BF: np.ndarray,
        rewards_B: np.ndarray,
        num_sampled_B: np.ndarray,
        num_trained_B: np.ndarray,
        host_B: np.ndarray,
    ) -> Batch:
        """The batch with its groups, which TRL has in consecutive rows, and its verdicts."""
        successes_B, mask_B = self._gradmass_verdicts(rewards_B, by_func_BF)
        return Batch(
            rewards_B=rewards_B,
            layout=consecutive(len(rewards_B), size),
            successes_B=successes_B,
            mask_B=mask_B,
            has_tokens_B=num_trained_B > 0,
            lengths_B=num_sampled_B,
            host_weights_B=host_B if self._gradmass.mode == "shadow" else None,
        )

    def _gradmass_verdicts(
        self, rewards_B: np.ndarray, by_func_BF: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which rollouts succeeded, and which are scored at all."""
        names = list(self.reward_func_names)
        if self._gradmass_success is not None:
            judged_BF = by_func_BF[:, [names.index(name) for name in self._gradmass_success]]
            # In the precision of the rewards: their 0.7 is below that of Python.
            least = judged_BF.dtype.type(self._gradmass_success_at)
            is_right_B: np.ndarray = (judged_BF >= least).any(axis=1)
            return is_right_B, any_number(judged_BF)
        is_right_B = rewards_B == 1
        is_plain_B = is_right_B | (rewards_B == 0)  # as the sum over no reward is
        if not is_plain_B.all():
            raise UsageError(
                f"reward {rewards_B[~is_plain_B][0]:g} is neither 0 nor 1, so it does not say "
                "whether the rollout succeeded: name the reward function that does, as in "
                f"success={names[0]!r} (and success_at, its least reward of a success)"
            )
        return is_right_B, any_number(by_func_BF)

    def _gradmass_signals(self) -> dict[str, Any]:
        step = self.state.global_step
        signals: dict[str, Any] = {"step": min(step, self.state.max_steps)}
        signals["num_steps"] = max(1, self.state.max_steps)
        if self._gradmass_entropy is not None:
            signals["entropy_nats"] = self._gradmass_entropy["nats"]
            signals["entropy_kind"] = self._gradmass_entropy["kind"]
            signals["policy_lag"] = step - self._gradmass_entropy["step"]
        return signals

    def _gradmass_write(self, output: dict[str, Any], weights_B: np.ndarray) -> None:
        """Put the weights where TRL's advantages are, and in its table of completions."""
        num_local = len(output["advantages"])
        start = self.accelerator.process_index * num_local
        own = torch.as_tensor(weights_B[start : start + num_local]).to(output["advantages"])
        output["advantages"], output[WRITTEN] = own, own.clone()
        logged = self._logs["advantages"]
        num_logged = min(len(weights_B), len(logged))
        for _ in range(num_logged):
            logged.pop()
        logged.extend(weights_B[len(weights_B) - num_logged :].tolist())

    # Watch.

    def _gradmass_check_groups(self, inputs: list[dict[str, Any]], size: int) -> None:
        """The rollouts of a group answer one prompt: TRL goes by position alone."""
        start = self.accelerator.process_index * len(inputs)
        message = mixed_group(inputs, size, start)
        if message and self._gradmass.mode == "weight":
            raise UsageError(message)
        if message:
            warnings.warn(message, stacklevel=3)

    def _gradmass_check_ranks(self) -> None:
        """Every process weighs for itself, from the same numbers: their states stay the same."""
        if self.accelerator.num_processes == 1:
            return
        digest = torch.tensor([self._gradmass.digest], device=self.accelerator.device)
        digests = self.accelerator.gather(digest).tolist()
        if len(set(digests)) == 1:
            return
        ranks = [i for i, other in enumerate(digests) if other != digests[0]]
        message = (
            f"the state of the weight on process {ranks[0]} differs from that on process 0: "
            "their rewards or entropies were not the same; resume from the last checkpoint"
        )
        if self._gradmass.mode == "weight":
            raise UsageError(message)
        warnings.warn(message, stacklevel=3)

    def _gradmass_watch(self, inputs: dict[str, Any]) -> None:
        """Note, without waiting for a GPU, whether the advantages are still the ones written."""
        if self._gradmass.mode == "shadow":
            return
        given, written = inputs.get("advantages"), inputs.get(WRITTEN)
        if written is None:
            raise UsageError(
                "the loss was given a batch that no weight has seen (gradmass doctor trl says more)"
            )
        if given is None or given.shape != written.shape:
            shape = None if given is None else tuple(given.shape)
            raise UsageError(
                f"advantages of shape {shape} reached the loss, the weights written have shape "
                f"{tuple(written.shape)}: something changed them after the weight"
            )
        self._gradmass_is_changed.append((given != written).any())

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._gradmass_watch(inputs)
        return super()._compute_loss(model, inputs)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """TRL's loss; stops the run if it was given other advantages than were written."""
        self._gradmass_is_changed = []
        self._gradmass_entropies = None
        self._gradmass_watch(inputs)
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if any(bool(is_changed) for is_changed in self._gradmass_is_changed):
            raise UsageError(
                "the advantages that reached the loss are not the weights that were written: "
                "something normalised or changed them after the weight, and no update was made"
            )
        if self.model.training:
            try:
                self._gradmass_observe(inputs)
            except Exception as error:  # whatever it is, the run is not the shadow's to stop
                is_first = self._gradmass.num_batches <= 1 and self._gradmass_entropy is None
                row = self._gradmass.outlive(error, NOTHING_OF_AN_UPDATE, is_first=is_first)
                self._gradmass_log("train", row)
        return loss

    # Measure.

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if found[1] is not None:
            self._gradmass_entropies = found[1]
        return found

    def _gradmass_observe(self, inputs: dict[str, Any]) -> None:
        """Add a micro-batch to the accumulation window; at its end reduce it over processes."""
        entropies, self._gradmass_entropies = self._gradmass_entropies, None
        metrics = self._metrics["train"]
        self._gradmass_window.add(inputs, entropies, last_clip_shares(metrics), self)
        if not self.accelerator.sync_gradients:
            return
        nats, shares = self._gradmass_window.close(self._gradmass_total)
        self._gradmass_log("train", shares)
        if nats is not None:
            kind = (
                f"trl: {self._gradmass_window.kind}, temperature {self.temperature:g}, mean over "
                "answer tokens with end token, of the update before"
            )
            self._gradmass_entropy = {"nats": nats, "step": self.state.global_step, "kind": kind}

    def _gradmass_log(self, phase: str, row: Mapping[str, float]) -> None:
        """Add to what TRL averages and logs."""
        metrics = self._metrics[phase]
        for key, value in row.items():
            metrics[key].append(value)

    def _gradmass_total(self, sums: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.accelerator.num_processes == 1:
            return sums
        return self.accelerator.reduce(sums, reduction="sum")

    # Remember.

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial))
            saved = {**self._gradmass.state_dict(), "entropy": self._gradmass_entropy}
            try:
                # Before the rest of the checkpoint, so that none is ever without it.
                write_state(folder / f"checkpoint-{self.state.global_step}", saved)
            except Exception as error:  # whatever it is, the run is not the shadow's to stop
                self._gradmass.outlive(error, NO_STATE, is_first=False)
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        from accelerate.utils import (
            broadcast_object_list,
        )  # TRL brings it; this file may be without

        # One process reads for all: a checkpoint may lie on the disk of one machine only.
        found: list[Any] = [None]
        if self.accelerator.is_main_process:
            try:
                found = [("state", read_state(Path(checkpoint)))]
            except UsageError as error:
                found = [("error", str(error))]
        kind, saved = broadcast_object_list(found, from_process=0)[0]
        if kind == "error":
            raise UsageError(saved)
        if saved is None:
            initial = json.dumps(self._gradmass.states)
            warnings.warn(
                f"{checkpoint} has no {STATE_FILE}: the weight starts from its initial state "
                f"{initial}",
                stacklevel=2,
            )
            return
        source = str(Path(checkpoint) / STATE_FILE)
        self._gradmass.load_state_dict(saved, source)
        self._gradmass_entropy = saved.get("entropy")


def any_number(rewards_BF: np.ndarray) -> np.ndarray:
    """Which rollouts have a reward that is not NaN."""
    has_number_B: np.ndarray = (rewards_BF == rewards_BF).any(axis=1)
    return has_number_B
