"""What a run of verl is refused for, or warned of, before its first step."""

import warnings
from typing import Any

from gradmass.engines.upstream import package_folder, probe
from gradmass.engines.verl_config import ROLLOUT, TRIED, VERL_SYMBOLS, flags
from gradmass.engines.verl_settings import Settings
from gradmass.engines.weigher import Weigher
from gradmass.types import UsageError


def check_start(config: Any, settings: Settings, weigher: Weigher) -> None:
    """Refuse what does not fit, and say what verl does to a weight.

    Args:
        config: Of the run.
        settings: Its ``algorithm.gradmass``.
        weigher: The weights.

    Raises:
        UsageError: Groups too small for a weight, a setting that would undo it, evicted groups
            whose verdict is unknown, or a verl that the hooks do not fit.

    Warns:
        UserWarning: Settings that change what a weight says; bodies of verl that were never tried.
    """
    from omegaconf import OmegaConf  # comes with verl

    size = config.actor_rollout_ref.rollout.n
    for weight in weigher.weights:
        least = max(weight.min_group_size, 2 if weight.needs_group else 1)
        if size < least:
            raise UsageError(
                f"{ROLLOUT}.n = {size}: weight {weight.label} needs groups of at least {least}"
            )
    _check_filter(config, settings, weigher)
    found = flags(OmegaConf.to_container(config, resolve=True))
    for flag in found:
        if flag.severity == "refused" and weigher.mode == "weight":
            raise UsageError(f"{flag.name} = {flag.value!r}: {flag.meaning}")
    acting = [flag for flag in found if flag.severity == "changes the weight"]
    if acting:
        lines = [f"{flag.name} = {flag.value!r}: {flag.meaning}" for flag in acting]
        warnings.warn("what verl does to a weight: " + "; ".join(lines), stacklevel=3)
    _check_upstream()


def _check_filter(config: Any, settings: Settings, weigher: Weigher) -> None:
    """What the filter goes by must say who succeeded, or its evicted groups cannot be counted."""
    groups = config.algorithm.get("filter_groups") or {}
    if not groups.get("enable", False) or all(w.scope != "run" for w in weigher.weights):
        return
    metric, own = groups.get("metric"), settings.success or "reward"
    if metric != own:
        raise UsageError(
            f"algorithm.filter_groups.metric = {metric!r} does not say which of the evicted groups "
            f"succeeded, as {own!r} does, and a weight that follows the solve rate counts them: "
            f"set algorithm.filter_groups.metric={own}"
        )


def _check_upstream() -> None:
    folder = package_folder("verl")
    assert folder is not None
    findings = probe("verl", folder, VERL_SYMBOLS)
    for finding in findings:
        if finding.status == "broken":
            raise UsageError(
                f"{finding.symbol} {finding.detail}: this verl is not one the hooks fit "
                f"(tried with {TRIED[0]} to {TRIED[1]}; gradmass doctor verl says more)"
            )
    unknown = [f.symbol for f in findings if f.status == "unknown but compatible"]
    if unknown:
        warnings.warn(
            f"never tried with this body of {', '.join(unknown)} (gradmass doctor verl)",
            stacklevel=4,
        )
