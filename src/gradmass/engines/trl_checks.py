"""What a trainer of TRL is refused for, or warned of, before its first step."""

import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from gradmass.engines.trl_config import TRANSFORMERS_SYMBOLS, TRIED, TRL_SYMBOLS, flags
from gradmass.engines.upstream import package_folder, probe
from gradmass.engines.weigher import Weigher
from gradmass.types import UsageError

HOOKED = (
    "_calculate_rewards",
    "_generate_and_score_completions",
    "compute_loss",
    "_get_per_token_logps_and_entropies",
    "_save_checkpoint",
    "_load_optimizer_and_scheduler",
)


def check_base(base: Any, version: str) -> None:
    """Refuse a class that the hooks do not fit.

    Raises:
        UsageError: It lacks a hooked method, or subtracts a leave-one-out baseline itself.
    """
    names = {cls.__name__ for cls in base.__mro__}
    if "RLOOTrainer" in names:
        raise UsageError(
            f"{base.__name__} subtracts a leave-one-out baseline of its own: give GRPOTrainer, "
            "with the weight rloo for the same"
        )
    missing = [name for name in HOOKED if not callable(getattr(base, name, None))]
    if missing:
        raise UsageError(
            f"{base.__name__} of TRL {version} has no {missing[0]}, which a weight hooks into; "
            f"tried with TRL {TRIED[0]} to {TRIED[1]} (gradmass doctor trl says more)"
        )


def check_start(trainer: Any, weigher: Weigher, success: Sequence[str] | None) -> None:
    """Refuse what does not fit, and say what TRL does to a weight.

    Args:
        trainer: A trainer of TRL, ready.
        weigher: The weights.
        success: Names of the reward functions that judge.

    Raises:
        UsageError: An unknown reward function, groups too small for a weight, a setting that a
            weight would replace, or a TRL that the hooks do not fit.

    Warns:
        UserWarning: Settings that change what a weight says; bodies of TRL that were never tried.
    """
    names = list(trainer.reward_func_names)
    for name in success or []:
        if name not in names:
            raise UsageError(f"success = {name!r} is no reward function: {', '.join(names)}")
    for weight in weigher.weights:
        for field in ("num_generations", "num_generations_eval"):
            size = getattr(trainer, field)
            if size < weight.min_group_size:
                raise UsageError(
                    f"{field} = {size}: weight {weight.label} needs groups of at least "
                    f"{weight.min_group_size}"
                )
    found = flags(vars(trainer.args))
    for flag in found:
        if flag.severity == "refused" and weigher.mode == "weight":
            raise UsageError(f"{flag.name} = {flag.value!r}: {flag.meaning}")
    acting = [flag for flag in found if flag.severity == "changes the weight"]
    if acting and trainer.accelerator.is_main_process:
        lines = [f"{flag.name} = {flag.value!r}: {flag.meaning}" for flag in acting]
        warnings.warn("what TRL does to a weight: " + "; ".join(lines), stacklevel=3)
    _check_upstream(trainer)


def mixed_group(inputs: Sequence[Mapping[str, Any]], size: int, start: int) -> str:
    """What is wrong if a group by position does not answer one prompt; empty where all is well.

    Compares the first and the last row that this process has of each group: a sampler that does not
    repeat prompts, or not as often, differs there.

    Args:
        inputs: Rows of this process, in the order of the batch.
        size: Rows of a group.
        start: Rows of the processes before this one.
    """
    if not inputs:
        return ""
    # The process before may have the rest of the first group.
    for first, end in pairwise([0, *range(size - start % size, len(inputs), size), len(inputs)]):
        if inputs[first].get("prompt") != inputs[end - 1].get("prompt"):
            return (
                f"rows {first} and {end - 1} of a batch are of one group by position and have "
                f"different prompts: the sampler does not repeat each prompt {size} times"
            )
    return ""


def _check_upstream(trainer: Any) -> None:
    findings = []
    for package, symbols in (("trl", TRL_SYMBOLS), ("transformers", TRANSFORMERS_SYMBOLS)):
        folder = package_folder(package)
        assert folder is not None
        findings += probe(package, folder, symbols)
    for finding in findings:
        if finding.status == "broken":
            raise UsageError(
                f"{finding.symbol} {finding.detail}: this TRL is not one the hooks fit "
                "(gradmass doctor trl says more)"
            )
    unknown = [finding.symbol for finding in findings if finding.status != "known"]
    if unknown and trainer.accelerator.is_main_process:
        warnings.warn(
            f"never tried with this body of {', '.join(unknown)} (gradmass doctor trl)",
            stacklevel=4,
        )
