"""What is recorded of the machine that a run ran on."""

import json
import os
import subprocess
import sys

import pytest

from gradmass.record import environment


def test_the_environment_says_what_ran_where():
    env = environment.environment("gradmass train demo")
    assert env.keys() == {
        *("command", "started", "folder", "packages", "python", "platform", "processor"),
        *("num_cpus", "commit", "is_dirty"),
    }
    assert env["command"] == "gradmass train demo"
    assert env["started"].endswith("+00:00")
    assert env["folder"] == os.getcwd()  # noqa: PTH109
    assert env["python"] == ".".join(map(str, sys.version_info[:3]))
    assert env["num_cpus"] >= 1
    assert {"gradmass", "numpy", "torch", "transformers"} <= env["packages"].keys()
    assert env["packages"]["gradmass"][0].isdigit()
    json.dumps(env, allow_nan=False)


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("numpy", "no-such-package"))
    packages = environment.environment("")["packages"]
    assert packages["numpy"] is not None
    assert packages["no-such-package"] is None


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one commit that the package seems to lie in."""
    folder = tmp_path / "checkout"
    package = folder / "src" / "gradmass" / "record"
    package.mkdir(parents=True)
    (package / "environment.py").write_text("")
    author = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false")
    for command in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "-m", "x")):
        subprocess.run(["git", "-C", folder, *command], check=True)
    monkeypatch.setattr(environment, "__file__", str(package / "environment.py"))
    monkeypatch.setattr(environment, "CHECKOUT", folder.resolve())
    return folder


def test_the_commit_is_that_of_the_packages_own_checkout(checkout):
    head = subprocess.run(
        ["git", "-C", checkout, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    env = environment.environment("")
    assert (env["commit"], env["is_dirty"]) == (head, False)
    (checkout / "new").write_text("x")
    env = environment.environment("")
    assert (env["commit"], env["is_dirty"]) == (head, True)


def test_a_package_installed_inside_another_repository_has_no_commit(checkout, monkeypatch):
    monkeypatch.setattr(environment, "CHECKOUT", checkout / "src")
    env = environment.environment("")
    assert (env["commit"], env["is_dirty"]) == (None, None)


def test_without_git_there_is_no_commit(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "")
    env = environment.environment("")
    assert (env["commit"], env["is_dirty"]) == (None, None)
