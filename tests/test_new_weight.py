"""A weight added as one file is listed, explained, documented and held to the contract."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCE = '''
"""Cubic."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight


@register_weight("cubic")
@dataclass(frozen=True, kw_only=True)
class Cubic(Weight):
    """Reward minus group mean, times the cube of the failure rate.

    ``w_i = scale (1 - rbar)^3 (r_i - rbar)``. Gradient masses for binary rewards:
    ``m_S = m_F = scale p (1 - p)^4`` for large groups.
    """

    zero_sum: ClassVar = True
    domain: ClassVar = "unit"

    scale: float = 1.0
    """Factor of every weight."""

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return the formula."""
        return self.scale * (1.0 - groups.mean_P1) ** 3 * groups.centred_PG
'''


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout with one file more."""
    root = tmp_path_factory.mktemp("checkout")
    for folder in ("src", "docs", "recipes", "tests"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "src" / "gradmass" / "weights" / "cubic.py").write_text(SOURCE)
    return root


def run(root, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True
    )


def test_the_command_lists_and_explains_it(checkout):
    assert "cubic" in run(checkout, "-m", "gradmass", "weights").stdout
    card = run(checkout, "-m", "gradmass", "weights", "cubic").stdout
    assert "--weight.scale (default 1.0): Factor of every weight." in card


def test_a_recipe_takes_it_with_its_fields(checkout):
    flags = ["--weight", "cubic", "--weight.scale", "2", "--dry-run"]
    shown = run(checkout, "-m", "gradmass", "train", "demo", *flags).stdout
    assert 'type = "cubic"\n# Factor of every weight.\nscale = 2.0' in shown


def test_the_documentation_has_it(checkout):
    done = run(checkout, "docs/generate.py")
    assert done.returncode == 0, done.stderr
    assert "cubic" in (checkout / "docs" / "weights.md").read_text()


def test_the_contract_suite_holds_it(checkout):
    done = run(checkout, "-m", "pytest", "-q", "tests/test_weights_contract.py", "-k", "cubic")
    assert done.returncode == 0, done.stdout
    number = int(done.stdout.splitlines()[-1].split(" passed")[0].split()[-1])
    assert number > 20
