"""The three ways to name a class, the errors on the way, and what importing the weights costs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradmass.registry import Registry, nearest
from gradmass.tasks import TASKS
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

HALF = """
from dataclasses import dataclass
from gradmass.weights import Weight{imports}


{decorator}@dataclass(frozen=True, kw_only=True)
class Half(Weight):
    factor: float = 0.5

    def formula(self, groups, state, signals):
        return self.factor * groups.centred_PG
"""
PLAIN = HALF.format(imports="", decorator="")
REGISTERED = HALF.format(
    imports="\nfrom family_of_weights.base import OWN", decorator="@OWN.register('half')\n"
)
EXPECTED_PG = [[0.375, -0.125, -0.125, -0.125]]


def weigh(weight: Weight) -> list[list[float]]:
    return weight.update(np.array([[1.0, 0.0, 0.0, 0.0]]), weight.init())[0].tolist()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package whose modules a registry of its own loads."""
    folder = tmp_path / "family_of_weights"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "base.py").write_text(
        "from gradmass.registry import Registry\n"
        "from gradmass.weights import Weight\n"
        "OWN = Registry('weight', 'family_of_weights', Weight)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.startswith("family_of_weights")]:
        del sys.modules[name]


def own_registry(package: Path) -> Registry[Weight]:
    from family_of_weights.base import OWN

    return OWN


def test_an_unknown_name_gives_the_nearest():
    with pytest.raises(UsageError, match=r"^unknown weight 'fad'; did you mean 'fade'\?$"):
        WEIGHTS["fad"]
    with pytest.raises(UsageError, match=r"^unknown weight 'zzz'; known: .*, fade, gpg, .*$"):
        WEIGHTS["zzz"]
    assert nearest("gropo", ["fade", "grpo"]) == "; did you mean 'grpo'?"


def test_the_built_in_weights_are_there_by_the_names_they_carry():
    names = WEIGHTS.names()
    assert names == sorted(names)
    assert {"asym_grpo_delta", "fade", "grpo", "grpo_std", "power", "power_asym", "reinforce"} <= {
        *names
    }
    assert all(WEIGHTS[name].name == name for name in names)


def test_a_file_dropped_into_the_package_is_a_new_weight(package):
    (package / "half.py").write_text(REGISTERED)
    weights = own_registry(package)
    assert weights.names() == ["half"]
    assert weigh(weights["half"]()) == EXPECTED_PG
    assert weights["half"](factor=2.0).label == "half(factor=2.0)"


def test_a_second_class_of_the_same_name_is_refused(package):
    (package / "a.py").write_text(REGISTERED)
    (package / "b.py").write_text(REGISTERED)
    expected = "^weight 'half' is registered twice: by family_of_weights.b$"
    with pytest.raises(UsageError, match=expected):
        own_registry(package).names()


def test_a_class_from_a_file_is_a_weight(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PLAIN)
    cls = WEIGHTS[f"{file}:Half"]
    assert weigh(cls()) == EXPECTED_PG
    assert cls is WEIGHTS[f"{file}:Half"], "one file is executed once"
    assert cls.name == f"{file}:Half"
    assert "Half" not in "".join(WEIGHTS.names())


def test_a_file_is_found_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    assert weigh(WEIGHTS["mine.py:Half"]()) == EXPECTED_PG
    assert WEIGHTS["mine.py:Half"] is WEIGHTS[f"{tmp_path}/mine.py:Half"]


def test_two_files_of_one_name_do_not_meet(tmp_path):
    for folder, factor in (("one", 1.0), ("two", 2.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(PLAIN.replace("0.5", str(factor)))
    factors = [WEIGHTS[f"{tmp_path}/{folder}/mine.py:Half"]().factor for folder in ("one", "two")]
    assert factors == [1.0, 2.0]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def broken(:\n", r"SyntaxError: .*mine\.py, line 1\)"),
        ("import there_is_no_such_module\n", "ModuleNotFoundError: .*'there_is_no_such_module'"),
        ("raise ValueError('first\\n  second\\n\\nthird')\n", "ValueError: first second third"),
    ],
)
def test_a_file_that_does_not_import_says_why_in_one_line(tmp_path, source, reason):
    file = tmp_path / "mine.py"
    file.write_text(source)
    expected = rf"^weight '{file}:Half': {file} does not import: {reason}$"
    with pytest.raises(UsageError, match=expected):
        WEIGHTS[f"{file}:Half"]
    file.write_text(PLAIN)
    assert weigh(WEIGHTS[f"{file}:Half"]()) == EXPECTED_PG, "a corrected file is read again"


def test_a_file_or_class_that_is_not_there_is_named(tmp_path):
    missing = tmp_path / "none.py"
    with pytest.raises(UsageError, match=rf"^weight '{missing}:Half': there is no file {missing}$"):
        WEIGHTS[f"{missing}:Half"]
    file = tmp_path / "mine.py"
    file.write_text(PLAIN + "\nNUMBER = 3\nclass Other:\n    pass\n")
    for name in ("Whole", "NUMBER", "Other", ""):
        expected = rf"^weight '{file}:{name}': {file} has no Weight '{name}'$"
        with pytest.raises(UsageError, match=expected):
            WEIGHTS[f"{file}:{name}"]


class FakeEntryPoint:
    """What ``importlib.metadata.entry_points`` yields of an installed package."""

    def __init__(self, name: str, load: Callable[[], Any]) -> None:
        self.name, self.value, self.load = name, f"plugin_package:{name}", load


@pytest.fixture
def install(package: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry[Weight]]:
    def install(*points: FakeEntryPoint) -> Registry[Weight]:
        groups = {"gradmass.weights": points}
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: groups.get(group, ()))
        return own_registry(package)

    return install


def plugin(source: str) -> type[Weight]:
    module = ModuleType("plugin_package")
    exec(source, module.__dict__)
    return module.Half


def test_a_weight_of_an_installed_package_is_known_by_its_entry_point(install):
    weights = install(FakeEntryPoint("half", lambda: plugin(PLAIN)))
    assert weights.names() == ["half"]
    assert weigh(weights["half"]()) == EXPECTED_PG
    assert weights["half"]().label == "half"


def test_a_plug_in_may_also_register_itself(install):
    weights = install(FakeEntryPoint("half", lambda: plugin(REGISTERED)))
    assert weights.names() == ["half"]


def test_two_plug_ins_of_one_name_are_refused(install):
    points = [FakeEntryPoint("half", lambda: plugin(PLAIN)) for _ in range(2)]
    with pytest.raises(UsageError, match="weight 'half' is registered twice"):
        install(*points).names()


def test_a_plug_in_that_does_not_load_is_named_every_time(install):
    def load() -> None:
        raise ImportError("needs\nanother package")

    weights = install(FakeEntryPoint("half", load))
    expected = (
        "^weight 'half': its entry point plugin_package:half does not load: "
        "ImportError: needs another package$"
    )
    for _ in range(2):
        with pytest.raises(UsageError, match=expected):
            weights.names()


def modules_after(code: str, path: Path) -> set[str]:
    """Modules that a fresh interpreter holds after running ``code``."""
    report = "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + report],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(path)},
    )
    return set(json.loads(done.stdout))


def test_weights_work_without_torch(tmp_path):
    use = (
        "import numpy as np\n"
        "from gradmass.weights import WEIGHTS\n"
        "for name in ('fade', 'grpo_std'):\n"
        "    weight = WEIGHTS[name]()\n"
        "    weight.update(np.array([[1.0, 0.0]]), weight.init())\n"
    )
    heavy = {"torch", "transformers", "matplotlib", "scipy"}
    assert not heavy & modules_after("import gradmass.weights", tmp_path)
    assert not heavy & modules_after(use, tmp_path)
    # The check can fail: a weight that imports torch is seen.
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "mine.py").write_text("import torch\n" + PLAIN)
    seen = modules_after(use + f"WEIGHTS['{tmp_path}/mine.py:Half']\n", tmp_path)
    assert "torch" in seen


@pytest.mark.parametrize("file", ["problems.jsonl", "/no/such/folder/test.parquet"])
def test_a_file_of_data_in_place_of_a_task_is_told_the_way(file):
    with pytest.raises(UsageError) as caught:
        TASKS[file]
    assert str(caught.value) == (
        f"unknown task {file!r}; a file of problems goes to the task that reads it, as in "
        f"gsm8k:path={file}"
    )


@pytest.mark.parametrize(("registry", "kind"), [(TASKS, "task"), (WEIGHTS, "weight")])
def test_a_python_file_without_a_class_is_told_the_way(registry, kind):
    with pytest.raises(UsageError) as caught:
        registry["mine.py"]
    assert str(caught.value) == (
        f"unknown {kind} 'mine.py'; a {kind} in a file is given as mine.py:Name"
    )
