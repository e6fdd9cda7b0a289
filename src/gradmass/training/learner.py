"""What updates change, and how a checkpoint holds it: a run that died goes on from there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradmass.config import Recipe
from gradmass.record import Checkpoint
from gradmass.record.files import write_json
from gradmass.tables import differences, to_tables
from gradmass.training.entropy_bonus import EntropyBonus
from gradmass.training.masters import make_optimizer
from gradmass.training.model import save_model
from gradmass.training.policy import load_policy
from gradmass.training.source import Parameters
from gradmass.training.visits import Visits
from gradmass.types import State, UsageError

TRAINER_FILE = "trainer.pt"
"""Beside the model in a checkpoint: optimiser, past policies, entropy bonus, visits of problems."""
RECIPE_FILE = "recipe.json"
"""Likewise: the recipe it was trained by."""


@dataclass
class Learner:
    """What updates change.

    Args:
        policy: The policy.
        optimizer: Its optimiser.
        bonus: The entropy bonus.
        weight_state: State of the policy weight.
        visits: What each problem's visits say of it.
        step: Updates done.
    """

    policy: PreTrainedModel
    optimizer: torch.optim.Optimizer
    bonus: EntropyBonus
    weight_state: State
    visits: Visits = field(default_factory=Visits)
    step: int = 0


def new_learner(recipe: Recipe, policy: PreTrainedModel) -> tuple[Learner, list[Parameters]]:
    """A learner before its first update, and no past policies."""
    optimizer = make_optimizer(recipe.optim, policy)
    return Learner(policy, optimizer, EntropyBonus(recipe.entropy), recipe.weight.init()), []


def saved_learner(recipe: Recipe, checkpoint: Checkpoint) -> tuple[Learner, list[Parameters]]:
    """A learner as it was at a checkpoint, and the past policies that batches still come from.

    Raises:
        UsageError: The checkpoint is damaged, or of another recipe.
    """
    policy, *_ = load_policy(recipe.model, recipe.lora, recipe.seed, checkpoint.folder)
    optimizer = make_optimizer(recipe.optim, policy)
    file = checkpoint.folder / RECIPE_FILE
    try:
        trained_by = json.loads(file.read_text())
        file = checkpoint.folder / TRAINER_FILE
        saved = torch.load(file, weights_only=True, map_location=policy.device)
        past, bonus = saved["past"], EntropyBonus(recipe.entropy, saved["bonus"])
        visits = Visits(saved.get("visits"))  # not there where no weight asked
        # It holds the learning rate too: the recipe's own is what it was, or is refused below.
        optimizer.load_state_dict(saved["optimizer"])
    except Exception as error:  # what torch raises depends on where the file is damaged
        raise UsageError(f"cannot resume: {file} is missing or damaged") from error
    for name, here, there in differences(to_tables(recipe), trained_by):
        raise UsageError(
            f"{name} is {here} in the run's config.json, but {there} in its checkpoint: a run "
            "goes on with the recipe it began with; put it back, or start a new run"
        )
    state = checkpoint.weight_state
    return Learner(policy, optimizer, bonus, state, visits, checkpoint.step), past


def save_learner(
    recipe: Recipe,
    learner: Learner,
    past: Sequence[Parameters],
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
) -> None:
    """Write what ``saved_learner`` reads, but for what the run directory holds anyway.

    Raises:
        UsageError: It cannot be written, as on a full disk.
    """
    trainer: dict[str, Any] = {
        "optimizer": learner.optimizer.state_dict(),
        "past": list(past),
        "bonus": learner.bonus.state,
    }
    if learner.visits.state:
        trainer["visits"] = learner.visits.state
    try:
        save_model(learner.policy, tokenizer, folder)
        torch.save(trainer, folder / TRAINER_FILE)
        write_json(folder / RECIPE_FILE, to_tables(recipe))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UsageError(
            f"cannot save the checkpoint after step {learner.step} in {folder.parents[1]}: "
            f"{error}; make room and go on with --resume"
        ) from error
