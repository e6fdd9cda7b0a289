"""Whether the code of an engine is code that the hooks were tried with, from its source alone.

Nothing of the engine is imported: its files are parsed, so an unpacked wheel can be asked too. The
hash of a body is over its lines of code, without docstrings, comments and layout.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

Status = Literal["known", "unknown but compatible", "broken", "absent"]


@dataclass(frozen=True)
class Symbol:
    """One thing of an engine that a hook relies on.

    Args:
        name: ``file.py:Class.method``, ``file.py:function``, or ``file.py:Class.__init__.name`` for
            an attribute that is set there.
        arguments: First arguments it must take, by name and in order.
        mentions: Calls, attributes or keys that must occur in its body.
        is_optional: Whether an engine whose file is missing merely lacks what needs the symbol.
    """

    name: str
    arguments: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()
    is_optional: bool = False


@dataclass(frozen=True)
class Finding:
    """What became of one symbol.

    Args:
        symbol: Its name, with the package.
        status: Absent where an optional symbol's file is missing.
        detail: The versions with that body, or what is wrong.
    """

    symbol: str
    status: Status
    detail: str


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@cache
def known_bodies() -> Mapping[str, Any]:
    """Versions by package, symbol and hash: what the hooks were tried with."""
    text = (files("gradmass.engines") / "known_upstream.json").read_text()
    known: dict[str, Any] = json.loads(text)
    return known


def package_folder(package: str) -> Path | None:
    """Where an installed package is, without importing it; None if it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def installed_version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def probe(package: str, folder: Path, symbols: tuple[Symbol, ...]) -> list[Finding]:
    """Look at every symbol in the source of a package.

    Args:
        package: Its name, as in the table of known bodies.
        folder: Of its source: of the installed package, or in an unpacked wheel.
        symbols: What to look for.
    """
    return [_probe_one(package, folder, symbol) for symbol in symbols]


def body_hash(text: str, node: ast.AST) -> str:
    """Hash of a definition's code lines: without docstrings, comments, indentation, empty lines.

    Over the text, because syntax trees and tokens differ between versions of Python.

    Args:
        text: Of the whole file.
        node: The definition in it.
    """
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]):
            docstring = body[0]
            lines[docstring.lineno - 1 : docstring.end_lineno] = [""] * (
                docstring.end_lineno - docstring.lineno + 1
            )
    own = lines[node.lineno - 1 : node.end_lineno]  # type: ignore[attr-defined]
    code = "\n".join(line.strip() for line in own if line.strip())
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@cache
def _read(file: Path) -> tuple[str, ast.Module]:
    text = file.read_text(encoding="utf-8")
    return text, ast.parse(text)


def find(folder: Path, name: str) -> tuple[ast.AST | None, str]:
    """A definition and the text of its file; or None and what of its name is missing."""
    path, _, dotted = name.partition(":")
    file = folder / path
    if not file.is_file():
        return None, f"there is no {path}"
    text, tree = _read(file)
    node: ast.AST = tree
    for part in dotted.split("."):
        inner = [
            item
            for item in getattr(node, "body", [])
            if isinstance(item, DEFINITIONS) and item.name == part
        ]
        if not inner and isinstance(node, ast.FunctionDef) and _sets(node, part):
            continue
        if not inner:
            return None, f"{path} has no {dotted}"
        node = inner[-1]
    return node, text


def _sets(function: ast.FunctionDef, attribute: str) -> bool:
    """Whether a method sets an attribute of its object."""
    targets = [
        target
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return any(ast.unparse(target) == f"self.{attribute}" for target in targets)


def _mentioned(node: ast.AST) -> set[str]:
    """Names, attributes and string keys that occur in a body."""
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute):
            found.add(inner.attr)
        elif isinstance(inner, ast.Name):
            found.add(inner.id)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            found.add(inner.value)
    return found


def _probe_one(package: str, folder: Path, symbol: Symbol) -> Finding:
    name = f"{package}/{symbol.name}"
    node, text = find(folder, symbol.name)
    if node is None:
        is_absent = symbol.is_optional and not (folder / symbol.name.partition(":")[0]).is_file()
        return Finding(name, "absent" if is_absent else "broken", text)
    is_attribute = symbol.name.count(".") > 2  # file.py:Class.__init__.name
    if is_attribute:
        return Finding(name, "known", "is set")
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = [argument.arg for argument in node.args.posonlyargs + node.args.args]
        first = tuple(arguments[: len(symbol.arguments)])
        if first != symbol.arguments:
            return Finding(
                name, "broken", f"takes ({', '.join(first)}), not ({', '.join(symbol.arguments)})"
            )
    gone = [word for word in symbol.mentions if word not in _mentioned(node)]
    if gone:
        return Finding(name, "broken", f"no longer uses {gone[0]}")
    body = body_hash(text, node)
    versions = known_bodies().get(package, {}).get(symbol.name, {}).get(body)
    if versions is None:
        return Finding(name, "unknown but compatible", f"body {body} was never tried")
    return Finding(
        name, "known", f"as in {versions[0]}" + f" to {versions[-1]}" * (len(versions) > 1)
    )
