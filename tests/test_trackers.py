"""The mirror of a run in a tracker: against trackio's own files, and against one that fails."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import types
import warnings

import pytest

from gradmass.record import Run
from gradmass.record.trackers import Mirror, tracked_run
from gradmass.types import UsageError

SHOW = """
import json, sys
from gradmass.record.trackers import Mirror
target, rows, recorded = json.loads(sys.argv[1])
mirror = Mirror(target, {"label": "fade", "recipe": {"seed": 3}}, recorded)
for row in rows:
    mirror.log(row)
mirror.finish()
"""


def row(step, **more):
    return {"step": step, "rollouts": 8 * step, "test/pass@1": step / 8, **more}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    return tmp_path / "trackio"


def show(target, rows, recorded=()):
    """Each in a process of its own, as a run that is resumed is."""
    argv = [sys.executable, "-c", SHOW, json.dumps([target, rows, recorded])]
    return subprocess.run(argv, capture_output=True, text=True, check=True)


def stored(folder):
    """Rows of trackio's own database, in the order they came in."""
    database = sqlite3.connect(folder / "gradmass.db")
    found = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    database.close()
    return [(name, step, json.loads(metrics)) for name, step, metrics in found]


@pytest.mark.slow
def test_trackio_holds_the_numbers_of_the_record(folder):
    target = {"tracker": "trackio", "project": "gradmass", "name": "run-1"}
    rows = [row(0), row(1, warnings=[{"name": "x"}], kind="text", none=None), row(2)]
    assert show(target, rows).stdout == ""
    assert stored(folder) == [
        ("run-1", step, {"rollouts": 8 * step, "test/pass@1": step / 8}) for step in range(3)
    ]
    database = sqlite3.connect(folder / "gradmass.db")
    ((config,),) = database.execute("SELECT config FROM configs").fetchall()
    database.close()
    assert json.loads(config)["recipe"] == {"seed": 3}
    # Cut back to step 1 and gone on with: 2 is there already. Cut back to 3: that was missed.
    show(target, [row(2), row(3)], [row(0), row(1)])
    show(target, [row(6)], [row(step) for step in range(6)])
    assert [(name, step) for name, step, _ in stored(folder)] == [("run-1", s) for s in range(7)]


class Fake(types.ModuleType):
    """A tracker that takes notes, and fails where it is told to."""

    def __init__(self, failing=""):
        super().__init__("fake")
        self.failing, self.calls, self.step = failing, [], 0

    def _note(self, call, /, *args, **kwargs):
        self.calls.append((call, args, kwargs))
        print("chatter")
        if call == self.failing:
            raise RuntimeError("server\nis down")

    def init(self, **kwargs):
        self._note("init", **kwargs)
        return self

    def log(self, *args, **kwargs):
        self._note("log", *args, **kwargs)

    def finish(self):
        self._note("finish")


@pytest.mark.parametrize("failing", ["init", "log", "finish"])
def test_a_tracker_that_fails_is_warned_of_once(monkeypatch, capsys, failing):
    fake = Fake(failing)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    target = {"tracker": "wandb", "project": "gradmass", "name": "run-1"}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        mirror = Mirror(target, {})
        for step in range(3):
            mirror.log(row(step))
        mirror.finish()
    (warning,) = seen
    assert str(warning.message).startswith("wandb failed (RuntimeError: server is down); the run")
    assert [name for name, *_ in fake.calls].count(failing) == 1
    assert capsys.readouterr().out == ""


def test_wandb_finds_a_run_by_its_id(monkeypatch):
    fake = Fake()
    fake.step = 2
    monkeypatch.setitem(sys.modules, "wandb", fake)
    target = {"tracker": "wandb", "project": "gradmass", "name": "run-1"}
    Mirror(target, {"label": "w"}, [row(step) for step in range(4)])
    names = {"project": "gradmass", "name": "run-1", "id": "run-1"}
    kwargs = {**names, "config": {"label": "w"}, "resume": "allow"}
    assert fake.calls[0] == ("init", (), kwargs)
    assert [kwargs["step"] for _, _, kwargs in fake.calls[1:]] == [2, 3]


def test_a_tracker_that_is_not_there_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"^--track wandb needs wandb, .*: pip install wandb$"):
        tracked_run("wandb", tmp_path / "run")
    # The tracker of a run that goes on may be gone: the run matters more.
    with pytest.warns(UserWarning, match="--track wandb needs wandb"):
        Mirror({"tracker": "wandb", "project": "gradmass", "name": "x"}, {}).log(row(1))


def test_runs_of_one_folder_name_have_names_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", Fake())
    first, second = (tracked_run("wandb", tmp_path / "run") for _ in range(2))
    assert first["name"] != second["name"]
    assert first["name"].startswith("run-")


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_as_the_same_tracked_run(folder, tmp_path):
    train = [sys.executable, "-m", "gradmass", "train"]
    out = str(tmp_path / "run")
    flags = ["--train.steps=12", "--train.checkpoint-every=4", "--train.prompts-per-step=2"]
    flags += ["--train.threads=1", "--eval.every=0", "--eval.num-samples=0", "--probe.every=0"]
    argv = [*train, "demo", *flags, "--track", "trackio", "--out", out]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() or metrics.read_text().count("\n") < 7:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    again = subprocess.run(
        [*train, "--resume", "--out", out, "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(again.stdout)["is_finished"]
    found = stored(folder)
    recorded = Run(tmp_path / "run").metrics
    assert [step for _, step, _ in found] == list(range(13)) == [r["step"] for r in recorded]
    assert len({name for name, *_ in found}) == 1
    for (_, _, numbers), kept in zip(found, recorded, strict=True):
        # Steps made twice are equal but for the clock.
        for key in ("rollouts", "rollout/solve_rate", "mass/positive", "loss/value"):
            assert numbers.get(key) == kept.get(key)
