"""``gradmass doctor``: does the installed engine fit, and what do its settings do to a weight?"""

import dataclasses
import json
import textwrap
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape

from gradmass.commands.arguments import parse
from gradmass.engines.doctor import ENGINES, Diagnosis, diagnose
from gradmass.engines.upstream import package_folder
from gradmass.registry import nearest
from gradmass.types import UsageError

STYLE = {"known": "green", "unknown but compatible": "yellow", "broken": "red", "absent": "dim"}


@dataclass(frozen=True)
class Arguments:
    """Look at installed engines: is each hooked symbol still the one the hooks were tried with?"""

    engines: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ENGINE")] = ()
    """Engines to look at: trl, verl. None given: those that are installed."""
    config: Path | None = None
    """Settings of a run (YAML, JSON or TOML) to look for what would change a weight."""
    json: bool = False
    """Print JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the command; 1 where an engine is broken or a setting is refused."""
    arguments = parse(Arguments, "doctor", argv)
    for name in arguments.engines:
        if name not in ENGINES:
            raise UsageError(f"unknown engine {name!r}{nearest(name, ENGINES)}")
    config = None if arguments.config is None else read_config(arguments.config)
    installed = [name for name in ENGINES if package_folder(name) is not None]
    found = [diagnose(name, config) for name in arguments.engines or installed]
    if arguments.json:
        print(json.dumps([dataclasses.asdict(diagnosis) for diagnosis in found]))
    else:
        for diagnosis in found:
            show(diagnosis, arguments.config)
        for name in ENGINES if not arguments.engines else ():
            if name not in installed:
                print(f"{name}: not installed (pip install 'gradmass[{name}]')")
    return int(any(diagnosis.status == "broken" for diagnosis in found))


def read_config(file: Path) -> dict[str, Any]:
    """Settings from a file, nested tables aside.

    Raises:
        UsageError: It cannot be read, or is not a table of settings.
    """
    if not file.is_file():
        raise UsageError(f"--config: there is no file {file}")
    import yaml  # comes with transformers

    try:
        if file.suffix == ".toml":
            settings: Any = tomllib.loads(file.read_text())
        elif file.suffix == ".json":
            settings = json.loads(file.read_text())
        else:
            settings = yaml.safe_load(file.read_text())
    except (ValueError, yaml.YAMLError) as error:
        raise UsageError(f"--config: {file} does not parse: {error}") from error
    if not isinstance(settings, dict):
        raise UsageError(f"--config: {file} is no table of settings")
    return settings


def show(diagnosis: Diagnosis, config: Path | None) -> None:
    """Print what was found: the verdict, then each symbol, then each setting."""
    console = Console()
    engine = ENGINES[diagnosis.engine]
    versions = ", ".join(
        f"{package} {version or 'not installed'}" for package, version in diagnosis.versions.items()
    )
    style = STYLE[diagnosis.status]
    console.print(f"[bold]{diagnosis.engine}[/]: [{style}]{diagnosis.status}[/] ({versions})")
    console.print(f"  hooks tried with {diagnosis.engine} {engine.tried[0]} to {engine.tried[1]}\n")
    for finding in diagnosis.findings:
        name = finding.symbol.rpartition(":")[2].replace("__init__.", "")
        status = f"[{STYLE[finding.status]}]{finding.status}[/]"
        console.print(f"  {name:46} {status}: {escape(finding.detail)}", soft_wrap=True)
    if config is None:
        console.print("\n--config FILE also looks for settings that change a weight.")
        return
    console.print(
        f"\nWhat settings of {config}, and {diagnosis.engine}'s defaults, do to a weight:"
    )
    for flag in diagnosis.flags:
        line = f"{flag.name} = {flag.value!r} ({flag.severity}): {flag.meaning}"
        lines = textwrap.wrap(line, width=78, initial_indent="  ", subsequent_indent="      ")
        console.print("\n".join(lines), markup=False, highlight=False)
    if not diagnosis.flags:
        console.print("  nothing")
