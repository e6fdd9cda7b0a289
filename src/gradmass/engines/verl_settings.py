"""What a run of verl asks of this package: ``algorithm.gradmass`` in its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from gradmass.engines.weigher import Mode
from gradmass.registry import nearest
from gradmass.tables import from_spec, from_tables
from gradmass.types import UsageError
from gradmass.weights import Weight

PLACE = "algorithm.gradmass"
ESTIMATOR = "gradmass"
"""Estimator whose weight ``algorithm.gradmass.weight`` names; ``gradmass_NAME`` names its own."""


@dataclass(frozen=True)
class Settings:
    """The fields of ``algorithm.gradmass``.

    Args:
        weights: The weight, or in shadow mode one or several (``weight``: fields of the estimator's
            weight, else NAME:field=value, a table with ``type``, or a list of these).
        mode: ``weight`` or ``shadow``.
        success: Key of the reward function's result that says which rollouts succeeded. None: the
            rewards themselves, if all are 0 or 1.
        success_at: The least value of a success.
    """

    weights: tuple[Weight, ...]
    mode: Mode = "weight"
    success: str | None = None
    success_at: float = 1.0


def is_ours(estimator: Any) -> bool:
    """Whether ``algorithm.adv_estimator`` names a weight.

    >>> is_ours("gradmass_fade"), is_ours("gradmass"), is_ours("grpo")
    (True, True, False)
    """
    return isinstance(estimator, str) and estimator.partition("_")[0] == ESTIMATOR


def read_settings(algorithm: Mapping[str, Any]) -> Settings:
    """Read ``algorithm.gradmass`` with the estimator it goes with.

    Args:
        algorithm: The section ``algorithm`` of a run, as plain tables.

    Raises:
        UsageError: An unknown key, weight or field; a mode that does not go with the estimator.

    >>> table = {"adv_estimator": "gradmass_power", "gradmass": {"weight": {"alpha": 3}}}
    >>> [weight.label for weight in read_settings(table).weights]
    ['power(alpha=3.0)']
    """
    estimator = algorithm.get("adv_estimator")
    table = algorithm.get("gradmass") or {}
    if not isinstance(table, Mapping):
        raise UsageError(f"{PLACE} needs a table of fields, got {table!r}")
    for key in table:
        if key not in Settings.__annotations__ and key != "weight":
            known = ["weight", "mode", "success", "success_at"]
            raise UsageError(f"unknown key '{PLACE}.{key}'{nearest(key, known)}")
    mode = table.get("mode", "weight")
    if mode not in ("weight", "shadow"):
        raise UsageError(f"{PLACE}.mode must be 'weight' or 'shadow', got {mode!r}")
    if (mode == "weight") != is_ours(estimator):
        raise UsageError(
            f"algorithm.adv_estimator = {estimator!r} with {PLACE}.mode = {mode!r}: mode 'weight' "
            "needs an estimator gradmass_NAME, mode 'shadow' one of verl's own, such as grpo"
        )
    success, success_at = table.get("success"), table.get("success_at", 1.0)
    if not (success is None or isinstance(success, str)):
        raise UsageError(f"{PLACE}.success must name a key of the rewards, got {success!r}")
    if isinstance(success_at, bool) or not isinstance(success_at, int | float):
        raise UsageError(f"{PLACE}.success_at must be a number, got {success_at!r}")
    weights = _weights(table.get("weight"), estimator if mode == "weight" else ESTIMATOR)
    return Settings(weights, cast(Mode, mode), success, float(success_at))


def _weights(given: Any, estimator: Any) -> tuple[Weight, ...]:
    place = f"{PLACE}.weight"
    name = estimator.partition("_")[2]
    if name:
        if not isinstance(given, Mapping | None):
            raise UsageError(f"{place} needs a table of fields of {name}, got {given!r}")
        if given and given.get("type", name) != name:
            raise UsageError(
                f"{place}.type = {given['type']!r} under algorithm.adv_estimator = {estimator!r}: "
                f"say which (algorithm.adv_estimator={ESTIMATOR} takes the type)"
            )
        given = {**(given or {}), "type": name}
    if given is None:
        raise UsageError(f"{place} is missing: a name such as fade, a table with type, or a list")
    entries = given if isinstance(given, list | tuple) else [given]
    kind: type[Weight] = Weight  # type: ignore[type-abstract]
    return tuple(
        from_spec(kind, entry)
        if isinstance(entry, str)
        else from_tables(kind, entry, "the run's configuration", place)
        for entry in entries
    )
