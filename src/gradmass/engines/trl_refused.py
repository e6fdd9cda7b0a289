"""What of a recipe TRL cannot do: refused, or said, before the first step."""

import os
import warnings

import trl
from trl import GRPOConfig

from gradmass.config import Recipe
from gradmass.types import UsageError

LOSS_TYPES = {"constant": "dr_grpo", "token-mean": "dapo", "seq-mean-token-mean": "grpo"}
"""TRL's names of the aggregations that it has."""


def refuse_unsupported(recipe: Recipe) -> None:
    """Refuse what TRL has no counterpart of, and say what it leaves out.

    Raises:
        UsageError: A field that would change the numbers if it were ignored.

    Warns:
        UserWarning: The probes, which look into an update as only the local engine makes it.
    """
    train, loss = recipe.train, recipe.loss
    adaptive = []
    if not hasattr(GRPOConfig, "use_adaptive_entropy"):
        why = f"TRL {trl.__version__} adapts no coefficient"
        adaptive = [("entropy.is_adaptive", recipe.entropy.is_adaptive, False, why)]
    # Field, value, the value that TRL can do, why.
    fixed = (
        ("train.policy_lag", train.policy_lag, 0, "TRL has no lag of a fixed number of updates"),
        ("train.max_lag", train.max_lag, 0, "TRL samples between updates"),
        ("loss.importance_cap", loss.importance_cap, 0.0, "TRL corrects for vLLM's numbers alone"),
        *adaptive,
    )
    for name, value, possible, why in fixed:
        if value != possible:
            raise UsageError(
                f"{name} = {value}: {why}; set {possible}, or train with --engine local"
            )
    if loss.aggregation not in LOSS_TYPES or loss.truncated == "exclude":
        name = "loss.aggregation" if loss.aggregation not in LOSS_TYPES else "loss.truncated"
        raise UsageError(
            f"{name} = {getattr(loss, name.split('.')[1])!r}: TRL has no such loss; choose "
            "another, or train with --engine local"
        )
    if loss.truncated == "mask" and loss.aggregation != "token-mean":
        raise UsageError(
            f"loss.truncated = 'mask' with loss.aggregation = {loss.aggregation!r}: TRL divides by "
            "the number of masked rollouts too; set loss.aggregation = 'token-mean', or train with "
            "--engine local"
        )
    if loss.kl_coef and loss.kl_estimator != "k3":
        raise UsageError(f"loss.kl_estimator = {loss.kl_estimator!r}: TRL has k3 alone")
    num_processes = int(os.environ.get("WORLD_SIZE", "1"))
    num_rollouts = train.prompts_per_step * train.group_size
    if num_rollouts % num_processes:
        raise UsageError(
            f"{num_rollouts} rollouts (train.prompts_per_step x train.group_size) cannot be "
            f"shared evenly by {num_processes} processes"
        )
    if recipe.probe.every or recipe.probe.rank_every:
        warnings.warn(
            "no probes with --engine trl: they look into updates of the local engine; masses, "
            "group shares, entropy and clipping are measured (probe.every = 0 and "
            "probe.rank_every = 0 silence this)",
            stacklevel=2,
        )
