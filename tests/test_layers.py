"""Imports go one way: a part of the package knows only the parts that ``MAY_IMPORT`` gives it."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import gradmass

PACKAGE = Path(gradmass.__file__).parent

# A part is a module or a package directly under gradmass. All may import themselves, and the
# package itself, which imports no part.
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "types": set(),
    "lines": set(),
    "tied": set(),
    "registry": {"types"},
    "rewards": {"types", "registry"},
    "tasks": {"types", "registry", "rewards"},
    "weights": {"types", "registry"},
    "masses": {"types", "registry", "weights"},
    "metrics": {"types"},
    "tables": {"types", "registry", "rewards", "tasks", "weights"},
    "config": {"types", "registry", "rewards", "tasks", "weights", "masses", "tables"},
    "evaluation": {"types", "registry", "rewards", "tasks", "metrics"},
    "record": {"types", "lines", "registry", "config"},
    "logs": {"types", "lines", "registry", "metrics", "weights"},
    "advice": {"types", "registry", "weights", "masses", "tables", "rewards", "tasks", "metrics"},
    "training": {
        "types",
        "registry",
        "rewards",
        "tasks",
        "weights",
        "masses",
        "metrics",
        "tables",
        "config",
        "evaluation",
        "record",
        "tied",
    },
    "study": {
        "types",
        "registry",
        "weights",
        "tasks",
        "metrics",
        "tables",
        "config",
        "record",
        "tied",
    },
    "report": {"types", "registry", "weights", "masses", "metrics", "tables", "record", "study"},
    "spectra": {"types", "metrics", "record"},
    "engines": {
        "types",
        "registry",
        "rewards",
        "tasks",
        "weights",
        "metrics",
        "tables",
        "config",
        "evaluation",
        "record",
        "training",
    },
}
MAY_IMPORT["commands"] = {*MAY_IMPORT} - {"__init__"}
MAY_IMPORT["cli"] = {*MAY_IMPORT} - {"__init__"}
MAY_IMPORT["__main__"] = {"cli"}

WITHOUT_TORCH = {
    "types",
    "lines",
    "tied",
    "registry",
    "rewards",
    "tasks",
    "weights",
    "masses",
    "metrics",
    "tables",
    "config",
    "evaluation",
    "logs",
    "advice",
}
HEAVY = {"torch", "transformers"}


def part_of(file: Path, package: Path) -> str:
    return file.relative_to(package).with_suffix("").parts[0]


def imported_modules(file: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of all that a file imports, at its top, in functions, or by a string."""
    inside = (package.name, *file.relative_to(package).with_suffix("").parts)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), ".".join(inside[:-1]))
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield node.lineno, argument.value


def violations(package: Path) -> list[str]:
    """What breaks the rules, a line each."""
    parts = {part_of(file, package) for file in package.rglob("*.py")}
    found = [f"{part}: has no rule in MAY_IMPORT" for part in sorted(parts - MAY_IMPORT.keys())]
    for file in sorted(package.rglob("*.py")):
        part = part_of(file, package)
        allowed = MAY_IMPORT.get(part, {*MAY_IMPORT}) | {part, "__init__"}
        for line, module in imported_modules(file, package):
            top, _, rest = module.partition(".")
            # from gradmass import __version__ names no part, but the package itself
            other = rest.split(".")[0] if rest.split(".")[0] in MAY_IMPORT else "__init__"
            place = f"{file.relative_to(package)}:{line}"
            if top == package.name and other not in allowed:
                found.append(f"{place}: {part} may not import {other}")
            if top in HEAVY and part in WITHOUT_TORCH:
                found.append(f"{place}: {part} may not import {top}")
    return list(dict.fromkeys(found))


def test_every_import_of_the_package_is_allowed():
    assert violations(PACKAGE) == []


def test_the_rules_have_no_circle():
    order = list(TopologicalSorter(MAY_IMPORT).static_order())
    assert order.index("types") < order.index("weights") < order.index("training")
    assert order.index("training") < order.index("commands") < order.index("cli")


def test_the_rules_keep_the_parts_without_torch_below_the_others():
    above = {"training", "record", "report", "commands", "cli"}
    for part in WITHOUT_TORCH:
        assert not MAY_IMPORT[part] & above, part
        assert MAY_IMPORT[part] <= WITHOUT_TORCH, part
    assert "training" not in MAY_IMPORT["report"]
    assert [part for part in MAY_IMPORT if "cli" in MAY_IMPORT[part]] == ["__main__"]


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("weights/fade.py", "import gradmass.training", "weights may not import training"),
        (
            "weights/fade.py",
            "import gradmass.training.loss as x",
            "weights may not import training",
        ),
        ("weights/fade.py", "from gradmass import metrics", "weights may not import metrics"),
        ("weights/fade.py", "from gradmass.tasks import Task", "weights may not import tasks"),
        ("weights/fade.py", "from ..tasks.base import Task", "weights may not import tasks"),
        ("weights/__init__.py", "from .. import tasks", "weights may not import tasks"),
        ("tasks/deep/er.py", "from ...config import x", "tasks may not import config"),
        ("types.py", "from . import registry", "types may not import registry"),
        ("types.py", "def f():\n    import torch.nn", "types may not import torch"),
        ("metrics/rank.py", "from torch import Tensor", "metrics may not import torch"),
        ("config.py", "import os, transformers", "config may not import transformers"),
        ("record/run.py", "from gradmass.training import x", "record may not import training"),
        ("report/page.py", "from gradmass.training import x", "report may not import training"),
        ("commands/demo.py", "from gradmass.cli import main", "commands may not import cli"),
        ("__init__.py", "from gradmass.weights import WEIGHTS", "__init__ may not import weights"),
        (
            "registry.py",
            "import importlib\nimportlib.import_module('gradmass.weights')",
            "registry may not import weights",
        ),
        ("newcomer.py", "import os", "newcomer: has no rule in MAY_IMPORT"),
    ],
)
def test_a_forbidden_import_is_seen(tmp_path, file, source, expected):
    path = tmp_path / "gradmass" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    (found,) = violations(tmp_path / "gradmass")
    assert found.endswith(expected)


def test_allowed_imports_pass(tmp_path):
    allowed = {
        "weights/fade.py": "from gradmass.weights.base import Weight\nfrom ..types import State",
        "tasks/base.py": "from gradmass import __version__\nfrom . import countdown\nimport numpy",
        "training/train.py": "import torch\nfrom gradmass.record import Run",
        "commands/demo.py": "from gradmass.training import train\nfrom gradmass.report import page",
        "__main__.py": "from gradmass.cli import main",
    }
    for file, source in allowed.items():
        path = tmp_path / "gradmass" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert violations(tmp_path / "gradmass") == []
