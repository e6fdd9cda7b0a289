"""Read a command's arguments: a dataclass by tyro, recipe fields as dotted flags."""

import dataclasses
import itertools
import re
import shlex
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro
from tyro import _errors as tyro_errors

from gradmass.registry import nearest
from gradmass.tables import REGISTRIES, read_value, toml_value
from gradmass.types import UsageError

T = TypeVar("T")


def parse(cls: type[T], command: str, argv: Sequence[str], recipe: type | None = None) -> T:
    """Read arguments into a dataclass whose field docstrings are the help.

    Args:
        cls: The dataclass.
        command: Name of the command.
        argv: What is left of its arguments without recipe flags.
        recipe: Whose sections are flags too, as ``split_recipe_flags`` took them out.

    Raises:
        UsageError: Arguments that cannot be used, in one line.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    names = [name for name in hints if tyro.conf.Positional not in typing.get_args(hints[name])]
    names += [] if recipe is None else [field.name for field in dataclasses.fields(recipe)]
    flags = [f"--{name.replace('_', '-')}" for name in names]
    dotted = [] if recipe is None else _dotted_flags(recipe)

    def refuse(event: tyro_errors.ParseErrorEvent) -> None:
        raise UsageError(f"{_reason(event, argv, flags, dotted)} (gradmass {command} --help)")

    with tyro_errors.on_parse_error(refuse):
        parsed = tyro.cli(
            cls, args=list(argv), prog=f"gradmass {command}", config=(tyro.conf.FlagCreatePairsOff,)
        )
    for name, flag in zip(names, flags, strict=True):
        # tyro takes a flag of several values without any.
        if flag in argv and getattr(parsed, name, None) == ():
            raise UsageError(f"{flag} needs a value (gradmass {command} --help)")
    return parsed


def check_plot(file: Path | None) -> None:
    """Refuse a figure that could not be written, before anything is computed.

    Raises:
        UsageError: It is neither .svg nor .png, or its folder is not there.
    """
    if file is None:
        return
    if file.suffix not in (".svg", ".png"):
        raise UsageError(f"--plot writes .svg or .png, got {str(file)!r}")
    if not file.parent.is_dir():
        raise UsageError(f"--plot {file}: there is no folder {str(file.parent)!r}; make it first")


def split_recipe_flags(cls: type, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part recipe flags (``--section.field V``, ``--section V``) from a command's own arguments.

    Args:
        cls: The recipe; its sections are the fields.
        argv: All arguments.

    Returns:
        The recipe flags with their values, and the rest.

    Raises:
        UsageError: A flag of no field, where the section has the same fields in every recipe, or a
            list that is not one argument: what follows either would be taken for other arguments.
    """
    sections = {field.name for field in dataclasses.fields(cls)}
    recipe_flags, rest, tokens = [], [], list(argv)
    while tokens:
        token = tokens.pop(0)
        flag, _, text = token.partition("=")
        name = flag[2:].replace("-", "_")
        if not (token.startswith("--") and ("." in name or name in sections)):
            rest.append(token)
            continue
        recipe_flags.append(token)
        if "=" not in token and tokens and not tokens[0].startswith("--"):
            text = tokens.pop(0)
            recipe_flags.append(text)
        following = itertools.takewhile(lambda other: not other.startswith("--"), tokens)
        _check_flag(cls, name, [text, *following] if text else [])
    return recipe_flags, rest


def _check_flag(recipe: type, name: str, values: Sequence[str]) -> None:
    """Refuse a field that is none, and a list in several arguments or without brackets."""
    section, _, field = name.partition(".")
    fields = _fixed_sections(recipe).get(section)
    if fields is None or not field:
        return
    if field not in fields:
        raise UsageError(f"unknown key {name!r} in the flags{nearest(field, fields)}")
    if typing.get_origin(fields[field]) is not tuple or not values:
        return
    if not isinstance(read_value(values[0]), list):
        given = " ".join(values)
        items = [item.strip("\"'") for item in re.split(r"[\s,]+(?![\w.]+=)", given.strip("[] "))]
        wanted = toml_value([read_value(item) for item in items if item])
        raise UsageError(
            f"--{name} takes a list as one argument, such as {shlex.quote(wanted)}, got {given!r}"
        )


def _fixed_sections(recipe: type) -> dict[str, dict[str, Any]]:
    """The kinds of fields by section, of sections that have the same fields in every recipe."""
    return {
        section: typing.get_type_hints(cls)
        for section, cls in typing.get_type_hints(recipe).items()
        if dataclasses.is_dataclass(cls) and cls not in REGISTRIES
    }


def _dotted_flags(recipe: type) -> list[str]:
    """``--section.field`` of every section that has the same fields in every recipe."""
    return [f"--{name}.{key}" for name, keys in _fixed_sections(recipe).items() for key in keys]


def _reason(
    event: tyro_errors.ParseErrorEvent,
    argv: Sequence[str],
    flags: Sequence[str],
    dotted: Sequence[str],
) -> str:
    """Why the arguments were refused, on one line."""
    # First, because an unknown flag may also leave a known argument without its value.
    for name in (token.partition("=")[0] for token in argv if token.startswith("--")):
        if name != "--" and name.replace("_", "-") not in flags:
            alike = [f for f in dotted if f.endswith("." + name[2:].replace("-", "_"))]
            return f"unknown flag {name}{nearest(name, alike or flags)}"
    match event:
        case tyro_errors.UnrecognizedArgs(tokens=tokens):
            return f"unexpected argument {tokens[0]!r}"
        case tyro_errors.MissingArgs(missing_arguments=missing):
            return f"missing {', '.join(str(arg.arg.lowered.metavar) for arg in missing)}"
        case tyro_errors.BadValue(argument=argument):
            return f"{argument.lowered.name_or_flags[0]} needs a value"
        case tyro_errors.InvalidChoice(value=value, choices=choices):
            return f"{value!r} is not one of {', '.join(choices)}"
        case tyro_errors.InstantiationFailure(message=message, argument=argument):
            name = "" if argument is None else f"{argument.display_name()}: "
            # Of a value that may be left out, tyro says first that it is not None.
            return name + " ".join(message.split()).rpartition("<class 'int'>: ")[2]
        case _:
            return "these arguments cannot be used"
