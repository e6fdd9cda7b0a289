"""Recipes in and out of TOML and flags, by one strict rule.

A flag is a line of TOML: ``--train.steps 100`` is ``steps = 100`` under ``[train]``. Later beats
earlier: defaults, then the file, then the flags. An unknown key is an error that names its place
and the nearest key. ``--weight NAME`` is ``type = "NAME"`` under ``[weight]``; naming another type
than the file's drops the file's fields of it.
"""

import ast
import copy
import dataclasses
import inspect
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

from gradmass.registry import Registry, nearest
from gradmass.tasks import TASKS, Task
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

T = TypeVar("T")
Tables = dict[str, Any]

REGISTRIES: dict[type, Registry[Any]] = {Task: TASKS, Weight: WEIGHTS}
"""Sections whose class is chosen by ``type``."""


def load_recipe(
    cls: type[T], file: str | None, flags: Sequence[str], *, start: Tables | None = None
) -> T:
    """Read a recipe from a TOML file, or the name of a shipped one, and flags.

    Args:
        cls: ``Recipe`` or another dataclass of sections.
        file: Path, or name of a shipped recipe without ``.toml``; None for the defaults alone.
        flags: ``--section.field VALUE`` or ``--section.field=VALUE``, values as in TOML.
        start: Tables that stand in for a file, such as a run's stored recipe.

    Raises:
        UsageError: No such file, no valid TOML, an unknown key, or a value of the wrong kind.
    """
    tables = copy.deepcopy(start or {}) if file is None else read_toml(file)
    where = " and ".join(([file] if file is not None else []) + ["the flags"] * bool(flags))
    sections = typing.get_type_hints(cls)
    for key, value in _types_first(_read_flags(flags)):
        section, *_ = path = key.split(".")
        if section not in sections:
            known = [f"--{name}" for name in sections]
            raise UsageError(f"unknown flag --{key}{nearest(f'--{section}', known)}")
        _set(cls, tables, path, value, f"--{key}", where)
    return from_tables(cls, tables, where)


def from_spec(cls: type[T], spec: str) -> T:
    """Build a class that has a registry from ``NAME:field=value,field=value``.

    ``NAME`` may be ``path/to/file.py:Name``; a field of a field is ``inner.alpha=2``. Values are
    written as in TOML.

    Raises:
        UsageError: An unknown name or field, or a value of the wrong kind.

    >>> from_spec(Weight, "constant_mass:inner=power,inner.alpha=3").label
    'constant_mass(inner=power(alpha=3.0))'
    """
    name, fields = split_spec(spec)
    tables: Tables = {"type": name}
    pairs = []
    for text in re.split(r",(?=[\w.]+=)", fields) if fields else []:
        key, has_value, value = text.partition("=")
        if not has_value:
            raise UsageError(f"{spec!r}: a field is given as field=value, got {text!r}")
        pairs.append((key, read_value(value)))
    for key, value in _types_first(pairs):
        _set(REGISTRIES[cls][name], tables, key.split("."), value, key, spec)
    return from_tables(cls, tables, spec)


def split_spec(spec: str) -> tuple[str, str]:
    """Name and fields of ``NAME:field=value``; a name may be ``path/to/file.py:Name``.

    >>> split_spec("my.py:Mine:scale=2")
    ('my.py:Mine', 'scale=2')
    """
    found = re.fullmatch(r"([^=]*?\.py:\w+|[^:]*)(?::(.*))?", spec, flags=re.DOTALL)
    assert found is not None  # any text is a name
    return found[1], found[2] or ""


def read_toml(file: str) -> Tables:
    """Read a TOML file given by path or by the name of a shipped recipe."""
    paths = [Path(file)]
    if paths[0].name == file:
        paths.append(recipes_dir() / f"{file}.toml")
    for path in paths:
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"cannot read recipe {file}: {error}") from error
    shipped = ", ".join(sorted(found.stem for found in recipes_dir().glob("*.toml")))
    raise UsageError(f"there is no recipe {file!r}; give a TOML file or a shipped one ({shipped})")


def recipes_dir() -> Path:
    """Folder of the shipped recipes: inside an installed package, else at the checkout's top."""
    installed = Path(str(files("gradmass") / "recipes"))
    return installed if installed.is_dir() else Path(__file__).parents[2] / "recipes"


def from_tables(cls: type[T], tables: Any, where: str, place: str = "") -> T:
    """Build a dataclass from nested tables; strict about keys and kinds of values.

    Args:
        cls: A dataclass, or a base class with a registry (then ``type`` names the class).
        tables: Its fields.
        where: Where the tables come from, for messages.
        place: Dotted path of the tables within the recipe, for messages.

    Raises:
        UsageError: An unknown key, a missing one, or a value of the wrong kind; NaN and infinity,
            which the record of a run does not hold.
    """
    if not isinstance(tables, Mapping):
        raise UsageError(f"{place} needs a table of fields, got {tables!r} in {where}")
    if cls in REGISTRIES:
        registry = REGISTRIES[cls]
        if not isinstance(tables.get("type"), str):
            known = ", ".join(registry.names())
            raise UsageError(
                f"{place} needs type, the name of a {registry.kind} ({known}), in {where}"
            )
        cls = registry[tables["type"]]
        if inspect.isabstract(cls):
            missing = ", ".join(sorted(cls.__abstractmethods__))
            raise UsageError(f"{registry.kind} {tables['type']!r} does not define {missing}")
        tables = {key: value for key, value in tables.items() if key != "type"}
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    dotted = f"{place}." if place else ""
    for key in tables:
        if key not in fields:
            raise UsageError(f"unknown key {dotted + key!r} in {where}{nearest(key, fields)}")
    for name, f in fields.items():
        has_default = (f.default, f.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
        if name not in tables and not has_default:
            place = f"a value in {where}" if where else f"--{dotted}{name} VALUE"
            raise UsageError(f"{dotted}{name} has no default: give it {place}")
    config = cls(**{key: _coerce(v, hints[key], where, dotted + key) for key, v in tables.items()})
    for name in fields:
        value = getattr(config, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{dotted}{name} must be finite, got {value} in {where}")
    return config


def to_tables(config: Any) -> Tables:
    """Invert ``from_tables``: every field as plain JSON, with ``type`` where a class was chosen."""
    tables = _type_table(config)
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            value = to_tables(value)
        tables[f.name] = list(value) if isinstance(value, tuple) else value
    return tables


def differences(
    given: Mapping[str, Any], stored: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    """The fields in which two tables differ, dotted, with both values as JSON."""
    for key in {**given, **stored}:
        here, there = given.get(key), stored.get(key)
        if isinstance(here, dict) and isinstance(there, dict):
            yield from differences(here, there, f"{prefix}{key}.")
        elif here != there:
            yield f"{prefix}{key}", json.dumps(here), json.dumps(there)


def to_toml(config: Any) -> str:
    """Write a recipe as TOML with each field's documentation as a comment."""
    return "\n\n".join(_toml_blocks(config, "")) + "\n"


def field_docs(cls: type) -> dict[str, str]:
    """The string under each field of a dataclass, on one line; inherited fields included."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                docs[statement.target.id] = " ".join(str(after.value.value).split())
    return docs


def _type_table(config: object) -> Tables:
    """``{"type": spec}`` of an object whose class was chosen by name or file, else empty."""
    return {"type": config.spec or config.name} if isinstance(config, Task | Weight) else {}


def _types_first(pairs: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Names of classes before their fields, so that no field is dropped for coming early."""
    return sorted(pairs, key=lambda pair: pair[0].removesuffix(".type").count("."))


def _set(cls: type, tables: Tables, path: Sequence[str], value: Any, flag: str, where: str) -> None:
    """Put a value in the tables of a class; another ``type`` than a table's drops its fields."""
    name, *rest = path
    hint = typing.get_type_hints(cls).get(name)
    if hint in REGISTRIES and rest in ([], ["type"]):
        if not isinstance(value, str):
            raise UsageError(f"{flag} needs a name, got {value!r}")
        table = tables.get(name)
        if not isinstance(table, dict) or table.get("type") != value:
            tables[name] = {"type": value}
        return
    if not any(rest):
        tables[name] = value
        return
    table = tables.setdefault(name, _default_type(cls, name))
    if not isinstance(table, dict):
        raise UsageError(f"{flag} sets a field of {name}, which is {table!r} in {where}")
    if hint in REGISTRIES and isinstance(table.get("type"), str):
        hint = REGISTRIES[hint][table["type"]]
    if inspect.isclass(hint) and typing.get_type_hints(hint).get(rest[0]) in REGISTRIES:
        _set(hint, table, rest, value, flag, where)
    else:
        table[".".join(rest)] = value


def _default_type(cls: type, name: str) -> Tables:
    """``_type_table`` of a field's default value."""
    for f in dataclasses.fields(cls):
        if f.name == name and f.default_factory is not dataclasses.MISSING:
            return _type_table(f.default_factory())
        if f.name == name:
            return _type_table(f.default)
    return {}


def _read_flags(flags: Sequence[str]) -> list[tuple[str, Any]]:
    """Pairs of dotted key and value."""
    pairs, rest = [], list(flags)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise UsageError(
                f"unexpected argument {flag!r}; recipe fields are set by --section.field"
            )
        key, has_value, text = flag[2:].partition("=")
        if not has_value:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"flag {flag} needs a value")
            text = rest.pop(0)
        pairs.append((key.replace("-", "_"), read_value(text)))
    return pairs


def read_value(text: str) -> Any:
    """A value as in TOML, or the text where it is none.

    >>> read_value("[0.9, 1]"), read_value("fade")
    ([0.9, 1], 'fade')
    """
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        read = {}
    # A text of several lines may be TOML of several keys; it is not the value of one.
    return read["value"] if len(read) == 1 else text


def _coerce(value: Any, hint: Any, where: str, place: str) -> Any:
    """The value as the annotated type, or an error; whole numbers pass for real ones."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if inspect.isclass(hint) and (hint in REGISTRIES or dataclasses.is_dataclass(hint)):
        return from_tables(hint, value, where, place)
    if origin in (typing.Union, types.UnionType):
        for option in options:
            try:
                return _coerce(value, option, where, place)
            except UsageError:
                continue
    elif origin is Literal:
        # By type too: true == 1 in Python.
        if any(type(value) is type(option) and value == option for option in options):
            return value
    elif origin is tuple:
        if isinstance(value, list) and options[1:] == (...,):
            options = options[:1] * len(value)
        if isinstance(value, list) and len(value) == len(options):
            pairs = zip(value, options, strict=True)
            return tuple(_coerce(item, option, where, place) for item, option in pairs)
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):
                return float(value)
    elif (
        inspect.isclass(hint)
        and isinstance(value, hint)
        and (hint is bool or not isinstance(value, bool))
    ):
        return value
    raise UsageError(f"{place} must be {_describe(hint)}, got {value!r} in {where}")


def _describe(hint: Any) -> str:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_describe, options))
    if origin is Literal:
        return " or ".join(repr(option) for option in options)
    if origin is tuple and options[1:] == (...,):
        return f"a list, each {_describe(options[0])}"
    if dataclasses.is_dataclass(hint):
        return "a table of fields"
    if origin is tuple:
        return f"a list of {len(options)} numbers"
    names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    return names.get(hint, str(hint))


def _toml_blocks(config: Any, place: str) -> list[str]:
    """A dataclass as the table at a dotted place, and its dataclasses as tables below."""
    tables = {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(config)
        if dataclasses.is_dataclass(getattr(config, f.name))
    }
    lines = [f"[{place}]"] if place else []
    lines += [f"{key} = {toml_value(name)}" for key, name in _type_table(config).items()]
    lines += _toml_fields(
        config, [f.name for f in dataclasses.fields(config) if f.name not in tables]
    )
    blocks = ["\n".join(lines)] if lines else []
    for name, value in tables.items():
        blocks += _toml_blocks(value, f"{place}.{name}" if place else name)
    return blocks


def _toml_fields(config: Any, only: Sequence[str]) -> list[str]:
    docs = field_docs(type(config))
    lines = []
    for f in dataclasses.fields(config):
        if f.name in only:
            lines += [f"# {docs[f.name]}"] if f.name in docs else []
            value = getattr(config, f.name)
            # TOML has no word for None.
            lines.append(f"# {f.name} =" if value is None else f"{f.name} = {toml_value(value)}")
    return lines


def toml_value(value: Any) -> str:
    """A value as TOML writes it.

    >>> print(toml_value(["fade", 0.5, True]))
    ["fade", 0.5, true]
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # Strings are written as in JSON, but for one character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value)
