"""Is the engine that is installed here one that the hooks were written for?"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gradmass.engines import trl_config, verl_config
from gradmass.engines.flags import Flag
from gradmass.engines.upstream import (
    Finding,
    Status,
    Symbol,
    find,
    installed_version,
    package_folder,
    probe,
)


@dataclass(frozen=True)
class Engine:
    """What the doctor asks of an engine.

    Args:
        packages: Symbols to look for by package; the first package is the engine's own.
        tried: Oldest and newest version the hooks are tried with.
        defaults: The engine's own settings, read from its source.
        flags: What settings do to a weight.
    """

    packages: Mapping[str, tuple[Symbol, ...]]
    tried: tuple[str, str]
    defaults: Callable[[Path], dict[str, Any]]
    flags: Callable[[Mapping[str, Any]], list[Flag]]


@dataclass(frozen=True)
class Diagnosis:
    """What is so with one engine.

    Args:
        engine: Its name.
        versions: Of its packages; None for one that is not installed.
        status: The worst of its findings; broken where it is not installed or a flag is refused.
        findings: One for each symbol.
        flags: Settings that act on a weight.
    """

    engine: str
    versions: Mapping[str, str | None]
    status: Status
    findings: tuple[Finding, ...]
    flags: tuple[Flag, ...]


def diagnose(
    name: str, config: Mapping[str, Any] | None = None, folder: Path | None = None
) -> Diagnosis:
    """Look at an engine's source and settings; nothing of it is imported.

    Args:
        name: Of the engine, one of ``ENGINES``.
        config: Settings of a run; those it does not name have the engine's defaults. None: the
            flags are not judged.
        folder: Source of the engine's own package, such as an unpacked wheel; None takes what is
            installed, with the packages it builds on.
    """
    engine = ENGINES[name]
    own = next(iter(engine.packages))
    packages = engine.packages if folder is None else {own: engine.packages[own]}
    versions = {p: installed_version(p) for p in packages} if folder is None else {}
    findings: list[Finding] = []
    for package, symbols in packages.items():
        place = package_folder(package) if folder is None else folder
        if place is None:
            hint = f"is not installed: pip install 'gradmass[{name}]'"
            findings.append(Finding(package, "broken", hint))
            continue
        findings += probe(package, place, symbols)
        if package == own and config is not None:
            config = engine.defaults(place) | verl_config.dotted(config)
    found = tuple(engine.flags(config)) if config is not None else ()
    statuses = [finding.status for finding in findings]
    status: Status = "known"
    if "broken" in statuses or any(flag.severity == "refused" for flag in found):
        status = "broken"
    elif "unknown but compatible" in statuses:
        status = "unknown but compatible"
    return Diagnosis(name, versions, status, tuple(findings), found)


def defaults_of(folder: Path, name: str) -> dict[str, Any]:
    """Fields of a dataclass with their literal defaults, read from its source.

    Args:
        folder: Source of the package.
        name: ``file.py:Class``.

    Returns:
        Those whose default is written out, as in ``x: int = 3`` or ``field(default=3)``.
    """
    node, _ = find(folder, name)
    defaults = {}
    for item in getattr(node, "body", []):
        if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
            continue
        value = item.value
        if isinstance(value, ast.Call):
            value = next((k.value for k in value.keywords if k.arg == "default"), None)
        if isinstance(value, ast.Constant):
            defaults[item.target.id] = value.value
    return defaults


ENGINES: Mapping[str, Engine] = {
    "trl": Engine(
        packages={
            "trl": trl_config.TRL_SYMBOLS,
            "transformers": trl_config.TRANSFORMERS_SYMBOLS,
        },
        tried=trl_config.TRIED,
        defaults=partial(defaults_of, name="trainer/grpo_config.py:GRPOConfig"),
        flags=trl_config.flags,
    ),
    "verl": Engine(
        packages={"verl": verl_config.VERL_SYMBOLS},
        tried=verl_config.TRIED,
        defaults=verl_config.defaults,
        flags=verl_config.flags,
    ),
}
