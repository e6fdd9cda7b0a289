"""A run that is killed at any operation goes on from its last checkpoint."""

import gzip
import itertools
import os
import shutil
from pathlib import Path

import pytest
from recorded import CONFIG, ENV, contents, log_step, save_step, started, work

from gradmass.record import Run, RunWriter
from gradmass.types import UsageError


class Died(BaseException):
    """The process was killed."""


def die_at(patch, operation, writers):
    """Raise ``Died`` at the ``operation``-th of whatever changes files, half of it done.

    Writers are collected, for their files to be closed as the kernel does when a process dies.
    """
    calls = 0

    def deadly(function, half=None):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == operation:
                if half is not None:
                    half(*args, **kwargs)
                raise Died
            return function(*args, **kwargs)

        return call

    def half_text(path, text):
        with path.open("w") as file:
            file.write(text[: len(text) // 2])

    def half_append(writer, name, data):
        writer._files[name].write(data[: len(data) // 2])
        writer._files[name].flush()

    def half_tree(path, **_):
        for file in list(Path(path).glob("*"))[:1]:
            file.unlink()

    def collect(writer, *args, init=RunWriter.__init__):
        writers.append(writer)
        init(writer, *args)

    patch.setattr(RunWriter, "__init__", collect)
    patch.setattr(RunWriter, "_append", deadly(RunWriter._append, half_append))
    patch.setattr(Path, "write_text", deadly(Path.write_text, half_text))
    patch.setattr(shutil, "rmtree", deadly(shutil.rmtree, half_tree))
    for owner, name in ((Path, "mkdir"), (Path, "rename"), (Path, "replace"), (os, "fsync")):
        patch.setattr(owner, name, deadly(getattr(owner, name)))


def live(path):
    """Create or resume a run, work to its end, and close it."""
    is_old = (path / "state.json").exists()
    writer = RunWriter.resume(path, ENV) if is_old else RunWriter.create(path, CONFIG, ENV)
    work(writer)
    writer.close()


def lived(path, operation):
    """Whether a run gets to its end before it is killed at an operation."""
    writers = []
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, operation, writers)
        try:
            live(path)
        except Died:
            return False
        finally:
            for writer in writers:
                writer.close()
    return True


def test_a_run_killed_at_any_operation_goes_on_from_its_last_checkpoint(tmp_path, whole):
    expected = contents(whole)
    for operation in itertools.count(1):
        path = tmp_path / f"run-{operation}"
        if lived(path, operation):
            break
        if (path / "state.json").exists():
            check_readable(path)
        else:
            assert not (path / "metrics.jsonl").exists() or not Run(path).metrics
            shutil.rmtree(path, ignore_errors=True)
        check_continued(path, expected)
    assert operation > 60, "every write, rename and removal is an operation"


def test_a_run_killed_while_it_resumes_goes_on_from_its_last_checkpoint(tmp_path, whole):
    expected = contents(whole)
    for operation in itertools.count(1):
        path = started(tmp_path / f"run-{operation}")
        if lived(path, operation):
            break
        check_readable(path)
        check_continued(path, expected)
    assert operation > 30


def check_continued(path, expected):
    """A run that died goes on to what it would have been."""
    if path.exists() and Run(path).state["status"] == "finished":
        # Killed while it removed the checkpoint before the last.
        assert contents(path).items() >= expected.items()
    else:
        live(path)
        assert contents(path) == expected


def check_readable(path):
    """A run that died can be read, and its checkpoint is whole."""
    run = Run(path)
    assert [row["step"] for row in run.metrics] == list(range(len(run.metrics)))
    assert len(list(run.rollouts())) >= 2 * (len(run.metrics) - 1)
    assert run.label == "fade"
    step = run.state["step"]
    assert len(run.metrics) > step or run.state["weight"] is None
    if run.state["weight"] is not None:
        assert run.state["weight"] == {"seen": step}
        assert (run.model_dir / "model").read_text() == f"model after {step}"
        assert (run.model_dir / "trainer").read_text() == f"trainer after {step}"


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl", "rollouts.jsonl.gz"])
def test_half_a_row_at_the_end_is_not_read_and_is_cut_off(tmp_path, name):
    path = started(tmp_path / "run", num_steps=2)
    before = contents(path)
    member = gzip.compress(b'{"step":3}\n' * 100, mtime=0)
    tail = member[: len(member) // 2] if name.endswith(".gz") else b'{"step":3,"loss/va'
    with (path / name).open("ab") as file:
        file.write(tail)
    run = Run(path)
    assert [row["step"] for row in run.metrics] == [0, 1, 2]
    assert [row["step"] for row in run.evaluations] == [0]
    assert [row["step"] for row in run.rollouts()][:4] == [1, 1, 2, 2]
    RunWriter.resume(path, ENV).close()
    assert contents(path) == before


def test_resuming_cuts_back_to_the_checkpoint_and_no_further(tmp_path):
    path = started(tmp_path / "run", num_steps=3)
    assert [row["step"] for row in Run(path).evaluations] == [0, 3]
    writer = RunWriter.resume(path, ENV)
    assert (writer.resumed_from.step, writer.resumed_from.weight_state) == (2, {"seen": 2})
    assert (writer.resumed_from.folder / "model").read_text() == "model after 2"
    run = Run(path)
    assert [row["step"] for row in run.metrics] == [0, 1, 2]
    assert [row["step"] for row in run.evaluations] == [0]
    assert [row["step"] for row in run.rollouts()] == [1, 1, 2, 2]
    writer.close()


def test_a_checkpoint_right_after_resuming_knows_the_sizes(tmp_path):
    path = started(tmp_path / "run", num_steps=3)
    for _ in range(2):
        writer = RunWriter.resume(path, ENV)
        writer.checkpoint(2, {"seen": 2}, "interrupted", save_step(2))
        writer.close()
        assert Run(path).state["sizes"] == {
            name: (path / name).stat().st_size for name in Run(path).state["sizes"]
        }


def test_a_checkpoint_whose_saving_fails_leaves_the_one_before(tmp_path):
    path = tmp_path / "run"
    writer = RunWriter.create(path, CONFIG, ENV)
    log_step(writer, 0)
    writer.checkpoint(0, {"seen": 0}, "running", save_step(0))

    def fail(folder):
        (folder / "model").write_text("half")
        raise OSError("disk full")

    with pytest.raises(UsageError, match=r"run: disk full; .* --resume"):
        writer.checkpoint(1, {"seen": 1}, "running", fail)
    writer.fail()
    writer.close()
    run = Run(path)
    assert (run.state["step"], run.state["status"]) == (0, "failed")
    assert (run.model_dir / "model").read_text() == "model after 0"
    writer = RunWriter.resume(path, ENV)
    work(writer)
    writer.close()
    assert [entry.name for entry in (path / "checkpoints").iterdir()] == ["step-000005"]


def test_older_checkpoints_go_and_other_files_stay(tmp_path):
    path = started(tmp_path / "run", num_steps=2)
    (path / "checkpoints" / ".DS_Store").write_text("x")
    (path / "checkpoints" / "step-000001.draft").mkdir()
    writer = RunWriter.resume(path, ENV)
    work(writer)
    writer.close()
    names = sorted(entry.name for entry in (path / "checkpoints").iterdir())
    assert names == [".DS_Store", "step-000005"]


def test_the_same_step_is_saved_once(tmp_path):
    writer = RunWriter.create(tmp_path / "run", CONFIG, ENV)
    saved = []
    for status in ("running", "interrupted"):
        writer.checkpoint(0, {}, status, saved.append)
        assert Run(tmp_path / "run").state["status"] == status
    assert len(saved) == 1
    writer.close()
