"""Commands that succeed, commands that are refused, and a pair of runs."""

import os
from pathlib import Path

import pytest
from cli_cases import WEIGHTS_FILE
from small_runs import TINY

from gradmass.cli import main


@pytest.fixture
def command(capsys):
    """Run a command that succeeds; gives its stdout and stderr."""

    def run(*argv, code=0):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        out, err = capsys.readouterr()
        assert ended.value.code == code, err
        return out, err

    return run


@pytest.fixture(scope="session")
def run_dirs(tmp_path_factory):
    """A finished run under FADE and one under GRPO, otherwise equal."""
    folder = tmp_path_factory.mktemp("runs")
    for weight in ("fade", "grpo"):
        argv = ["train", "demo", *TINY, "--weight", weight, "--out", str(folder / weight)]
        with pytest.raises(SystemExit, match="0"):
            main(argv)
    return folder


@pytest.fixture
def wrong_things(tmp_path, monkeypatch):
    """A working directory with what commands refuse."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    Path("mine.py").write_text(WEIGHTS_FILE)
    Path("file").write_text("x")
    Path("typo.toml").write_text("[evl]\nevery = 1\n")
    Path("half.toml").write_text("seed = ")
    Path("binary.toml").write_bytes(b"\xff\xfe\x00")
    Path("used").mkdir()
    Path("used/notes").write_text("x")
    Path("no model").mkdir()
    Path("no model/config.json").write_text("{}")


def tree():
    return sorted(str(path) for path in Path().rglob("*") if "__pycache__" not in path.parts)


@pytest.fixture
def refused(capsys):
    """Run a command that has to be refused; gives the message."""

    def run(*argv):
        before = tree()
        with pytest.raises(SystemExit) as ended:
            main(argv)
        out, err = capsys.readouterr()
        assert ended.value.code == 2
        assert out == ""
        assert err.startswith("gradmass: error: ")
        assert err.endswith("\n")
        assert len(err.splitlines()) == 1, err
        assert tree() == before
        return err.removeprefix("gradmass: error: ").removesuffix("\n")

    return run
