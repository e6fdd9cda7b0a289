"""Runs that end with the process that started them."""

import os
import subprocess
import sys
from pathlib import Path

from gradmass import tied
from gradmass.training.interrupt import interruptible

SOURCE = str(Path(tied.__file__).parents[1])
CHILD = "import time; from gradmass.tied import is_orphan\nwhile not is_orphan(): time.sleep(0.01)"
PARENT = f"""
import subprocess, sys, time
from gradmass.tied import is_orphan, tied_to_this_process
subprocess.Popen([sys.executable, "-c", {CHILD!r}], env=tied_to_this_process())
print(is_orphan(), flush=True)
time.sleep(99)
"""


def test_a_process_that_nothing_is_said_to_is_tied_to_none(monkeypatch):
    monkeypatch.delenv(tied.VARIABLE, raising=False)
    assert not tied.is_orphan()
    assert tied.tied_to_this_process() == {**os.environ, tied.VARIABLE: str(os.getpid())}


def test_a_child_notices_that_its_parent_was_killed():
    env = {**os.environ, "PYTHONPATH": SOURCE}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], env=env, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout.readline() == "False\n"
    parent.kill()
    parent.wait()
    assert parent.stdout.read() == ""  # which ends when the child does, who holds it too
    parent.stdout.close()


def test_a_loop_is_asked_to_stop_once_its_parent_is_gone(monkeypatch):
    monkeypatch.setenv(tied.VARIABLE, str(os.getppid()))
    with interruptible() as is_interrupted:
        assert not is_interrupted()
        monkeypatch.setenv(tied.VARIABLE, str(os.getppid() + 1))
        assert is_interrupted()
