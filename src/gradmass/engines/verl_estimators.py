"""The estimators ``gradmass_NAME`` of verl, alone or told more by one of the trainers."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradmass.engines.state import STATE_FILE, read_state, write_state
from gradmass.engines.verl_batch import Results, rollouts
from gradmass.engines.verl_settings import ESTIMATOR, Settings, is_ours, read_settings
from gradmass.engines.weigher import Row, Weigher
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

ALONE = frozenset({"successes_PG", "num_success", "num_scored", "lengths_PG"})
"""Signals that verl gives an estimator by itself."""
SUPPLIED = ALONE | {"entropy_nats", "entropy_kind", "policy_lag", "step", "num_steps"}
"""Signals that the trainers give."""


@dataclass
class Step:
    """What a trainer knows of the batch that verl is about to hand an estimator.

    Args:
        weigher: The weights, with their states.
        settings: What a success is.
        keys: Names of the rows.
        results: What the reward function says of each row.
        signals: Measurements of the run.
        evicted: Successes and rollouts that verl filtered out before.

    Attributes:
        weights_B: What was written for each row; None before, and in shadow mode.
        mask_BT: On which tokens; None before, and in shadow mode.
        row: Metrics.
    """

    weigher: Weigher
    settings: Settings
    keys: Sequence[str] | None = None
    results: Results | None = None
    signals: dict[str, Any] = field(default_factory=dict)
    evicted: tuple[int, int] = (0, 0)
    weights_B: np.ndarray | None = None
    mask_BT: Tensor | None = None
    row: Row = field(default_factory=dict)

    def weigh(
        self,
        rewards_B: np.ndarray,
        uids_B: Sequence[Any],
        num_tokens_B: np.ndarray,
        host_B: np.ndarray | None = None,
    ) -> None:
        """Weigh the rows of a batch; arguments as of ``verl_batch.rollouts``."""
        batch, session_B = rollouts(
            rewards_B,
            uids_B,
            num_tokens_B,
            self.settings,
            keys=self.keys,
            results=self.results,
            host_B=host_B,
            needs_verdicts=self.keys is not None or self.weigher.weights[0].scope == "run",
        )
        batch = replace(batch, evicted=self.evicted)
        weights_R, self.row = self.weigher.weigh(batch, is_training=True, **self.signals)
        if weights_R is not None:
            self.weights_B = weights_R[session_B]


STEP: ContextVar[Step | None] = ContextVar("gradmass_step", default=None)
"""The step whose advantages a trainer has verl compute; None under verl's own trainers."""


@contextmanager
def stepping(step: Step) -> Iterator[None]:
    """Tell the estimators of this process what a trainer knows, until the block ends."""
    token = STEP.set(step)
    try:
        yield
    finally:
        STEP.reset(token)


class Estimator:
    """An advantage estimator of verl: one weight, on all response tokens of a rollout.

    Under the trainers ``gradmass_*`` everything comes from their ``Step``. Under verl's own, each
    row is a rollout, nothing is logged, a weight that follows the solve rate needs rewards 0 and 1,
    one that follows the entropy is refused, and a state lives in this object:
    ``checkpoint_callback_class`` ``SaveState`` keeps it (verl 0.9.1).

    Args:
        name: In verl's registry.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.__name__ = name
        self.is_kept = False
        """Whether checkpoints have the state."""
        self._alone: tuple[Settings, Weigher] | None = None

    def __call__(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Any = None,
        config: Any = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """Weigh a batch as verl asks.

        Args:
            token_level_rewards: Shape ``[B, T]``; a row's reward is its sum.
            response_mask: 1 where a token was sampled, shape ``[B, T]``.
            index: What the rows of one prompt share.
            config: verl's ``algorithm``.

        Returns:
            Advantages and returns, the same tensor: the weight where the mask is 1.

        Raises:
            UsageError: The weight or the settings do not fit.
        """
        if index is None:
            raise UsageError(f"{self.name} needs groups, and verl handed over no uid")
        step = STEP.get()
        if step is None:
            settings, weigher = self.prepare(config)
            step = Step(weigher, settings)
        step.weigh(
            token_level_rewards.sum(-1).double().cpu().numpy(),
            index,
            response_mask.sum(-1).cpu().numpy(),
        )
        assert step.weights_B is not None  # in mode weight, in which alone estimators are called
        weights_B = torch.as_tensor(step.weights_B, dtype=torch.float32)
        step.mask_BT = response_mask > 0
        advantages = spread(weights_B.to(token_level_rewards.device), step.mask_BT)
        return advantages, advantages

    def prepare(self, config: Any) -> tuple[Settings, Weigher]:
        """The settings and weigher of this estimator by itself, made on the first call."""
        table = None if config is None else plain(config.get("gradmass"))
        settings = read_settings({"adv_estimator": self.name, "gradmass": table})
        if self._alone is not None and self._alone[0] == settings:
            return self._alone
        if settings.success is not None:
            raise UsageError(
                f"success = {settings.success!r}: verl hands an estimator no results of the reward "
                "function: set trainer.v1.trainer_mode=gradmass_sync (verl from 0.9.0)"
            )
        weigher = Weigher(settings.weights, "weight", ALONE)
        (weight,) = settings.weights
        if weigher.uses_entropy:
            raise UsageError(
                f"weight {weight.label} follows the entropy, which verl does not hand to an "
                "estimator: set trainer.v1.trainer_mode=gradmass_sync (verl from 0.9.0)"
            )
        if weight.scope == "run" and not self.is_kept:
            warnings.warn(
                f"no checkpoint has the state of weight {weight.label}, and a resumed run starts "
                "it anew: set trainer.v1.trainer_mode=gradmass_sync, or "
                "trainer.checkpoint_callback_class=gradmass.engines.verl_estimators.SaveState",
                stacklevel=2,
            )
        self._alone = settings, weigher
        return self._alone


def spread(weights_B: Tensor, mask_BT: Tensor) -> Tensor:
    """A weight on each token of its row; outside the mask 0, even where verl's mask is a number."""
    return torch.where(mask_BT > 0, weights_B.unsqueeze(-1), 0.0)


class SaveState:
    """A callback that keeps the state of an estimator without one of the trainers (verl 0.9.1).

    ``trainer.checkpoint_callback_class=gradmass.engines.verl_estimators.SaveState``. verl calls it
    after a checkpoint is complete, so a run killed in between resumes with a warning.

    Args:
        config: Of the run; a checkpoint that it resumes from is read at once.
    """

    def __init__(self, config: Any) -> None:
        self._config = config
        estimator = self._estimator()
        if estimator is None:
            return
        estimator.is_kept = True
        folder = resumed_from(config)
        if folder is not None:
            _, weigher = estimator.prepare(config.algorithm)
            restore(weigher, folder)

    def _estimator(self) -> Estimator | None:
        from verl.trainer.ppo.core_algos import get_adv_estimator_fn

        name = self._config.algorithm.adv_estimator
        return get_adv_estimator_fn(name) if is_ours(name) else None

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **more: Any) -> None:
        """Write the state beside a checkpoint, unless the trainer has done so itself."""
        estimator = self._estimator()
        if estimator is None or hasattr(trainer, "_gradmass"):
            return
        _, weigher = estimator.prepare(self._config.algorithm)
        write_state(Path(checkpoint_dir), weigher.state_dict())


def resumed_from(config: Any) -> Path | None:
    """The checkpoint that a run of verl resumes from; None if it starts anew."""
    from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

    if config.trainer.resume_mode == "disable":
        return None
    if config.trainer.resume_mode == "resume_path":
        return Path(config.trainer.resume_from_path).absolute()
    found = find_latest_ckpt_path(str(Path(config.trainer.default_local_dir).absolute()))
    return None if found is None else Path(found)


def restore(weigher: Weigher, folder: Path) -> None:
    """Take the states from a checkpoint of verl.

    Raises:
        UsageError: The file is damaged, or another weight's.

    Warns:
        UserWarning: The checkpoint has none.
    """
    saved = read_state(folder)
    if saved is None:
        warnings.warn(
            f"{folder} has no {STATE_FILE}: the weight starts from its initial state "
            f"{json.dumps(weigher.states)}",
            stacklevel=2,
        )
        return
    weigher.load_state_dict(saved, str(folder / STATE_FILE))


def plain(config: Any) -> Any:
    """A configuration without the classes of OmegaConf: its tables are no ``dict``."""
    if isinstance(config, Mapping):
        return {str(key): plain(value) for key, value in config.items()}
    if isinstance(config, Sequence) and not isinstance(config, str):
        return [plain(value) for value in config]
    return config


def register() -> None:
    """Register an estimator for every weight: ``gradmass_NAME``, and ``gradmass`` for any other."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

    for name in (ESTIMATOR, *(f"{ESTIMATOR}_{weight}" for weight in WEIGHTS.names())):
        if name not in ADV_ESTIMATOR_REGISTRY:
            register_adv_est(name)(Estimator(name))
