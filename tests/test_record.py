"""The run directory: whole after any death, honest about damage, and equal for equal runs."""

import gzip
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradmass.record import Run, RunWriter, environment, refuse_used
from gradmass.types import UsageError

CONFIG = {"label": "fade", "recipe": {"seed": 0, "weight": {"type": "fade"}}}
ENV = {"command": "gradmass train demo"}
STATE_FIELDS = {"schema", "step", "status", "weight", "sizes"}


class Died(BaseException):
    """The process was killed."""


def refusal(call):
    with pytest.raises(UsageError) as refused:
        call()
    message = str(refused.value)
    assert "\n" not in message
    return message


def log_step(writer, step):
    """What a trainer records of one update; the third of four is evaluated."""
    if step:
        writer.log_rollouts({"step": step, "completion": f"({step}+{i})"} for i in range(2))
    if step in (0, 3):
        writer.log_evaluation({"step": step, "split": "test", "solve_probability": [0.5, step]})
    writer.log({"step": step, "loss/value": step / 8})


def save_step(step):
    def save(folder):
        (folder / "model").write_text(f"model after {step}")
        (folder / "trainer").write_text(f"trainer after {step}")

    return save


def work(writer, num_steps=5):
    """A run with a checkpoint after every second step, from wherever the writer stands."""
    done = writer.resumed_from
    step = 0 if done is None else done.step
    if done is None:
        log_step(writer, 0)
        writer.checkpoint(0, {"seen": 0}, "running", save_step(0))
    while step < num_steps:
        step += 1
        log_step(writer, step)
        if step % 2 == 0:
            writer.checkpoint(step, {"seen": step}, "running", save_step(step))
    writer.checkpoint(step, {"seen": step}, "finished", save_step(step))


def contents(path):
    """Every file below a directory with its bytes, but for env.json, which holds resumptions."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "env.json"
    }


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def whole(tmp_path):
    """A finished run of five steps that nothing happened to."""
    path = tmp_path / "whole"
    writer = RunWriter.create(path, CONFIG, ENV)
    work(writer)
    writer.close()
    return path


def started(path, num_steps=3):
    """A run that was killed after ``num_steps`` steps, its last checkpoint after two."""
    writer = RunWriter.create(path, CONFIG, ENV)
    log_step(writer, 0)
    writer.checkpoint(0, {"seen": 0}, "running", save_step(0))
    for step in range(1, num_steps + 1):
        log_step(writer, step)
        if step == 2:
            writer.checkpoint(2, {"seen": 2}, "running", save_step(2))
    writer.close()
    return path


# What is written is what is read


def test_a_finished_run_reads_back(whole):
    run = Run(whole)
    assert run.config == {"schema": 1, **CONFIG}
    assert run.env == {"schema": 1, **ENV, "resumed": []}
    assert (run.label, run.weight_name) == ("fade", "fade")
    assert run.state.keys() == STATE_FIELDS
    assert (run.state["step"], run.state["status"], run.state["weight"]) == (
        5,
        "finished",
        {"seen": 5},
    )
    assert run.metrics == [{"step": step, "loss/value": step / 8} for step in range(6)]
    assert run.evaluations == [
        {"step": step, "split": "test", "solve_probability": [0.5, step]} for step in (0, 3)
    ]
    assert list(run.rollouts()) == [
        {"step": step, "completion": f"({step}+{i})"} for step in range(1, 6) for i in range(2)
    ]
    assert (run.model_dir / "model").read_text() == "model after 5"


def test_the_layout_is_what_the_documentation_says(whole):
    assert sorted(entry.name for entry in whole.iterdir()) == [
        "checkpoints",
        "config.json",
        "diagnostics.jsonl",
        "env.json",
        "evaluations.jsonl",
        "metrics.jsonl",
        "rollouts.jsonl.gz",
        "state.json",
    ]
    assert [entry.name for entry in (whole / "checkpoints").iterdir()] == ["step-000005"]
    sizes = json.loads((whole / "state.json").read_text())["sizes"]
    assert sizes == {name: (whole / name).stat().st_size for name in sizes}
    assert len(sizes) == 4


def test_rows_of_diagnostics_read_back_and_a_run_without_the_file_has_none(tmp_path):
    writer = RunWriter.create(tmp_path / "run", CONFIG, ENV)
    rows = [{"step": 1, "kind": "difficulty", "counts": [1, 2]}, {"step": 2, "kind": "signal"}]
    writer.log_diagnostics(rows)
    writer.close()
    assert Run(tmp_path / "run").diagnostics == rows
    (tmp_path / "run" / "diagnostics.jsonl").unlink()  # recorded before there were any
    assert Run(tmp_path / "run").diagnostics == []


def test_a_new_run_can_be_read_before_its_first_row(tmp_path):
    writer = RunWriter.create(tmp_path / "run", CONFIG, ENV)
    run = Run(tmp_path / "run")
    assert run.metrics == run.evaluations == list(run.rollouts()) == []
    assert (run.state["step"], run.state["status"], run.state["weight"]) == (0, "running", None)
    assert refusal(lambda: run.model_dir) == f"run {run.path} has no checkpoint yet (step 0)"
    writer.close()


def test_rows_can_be_read_as_soon_as_they_are_logged(tmp_path):
    writer = RunWriter.create(tmp_path / "run", CONFIG, ENV)
    for step in range(3):
        log_step(writer, step)
        run = Run(tmp_path / "run")
        assert [row["step"] for row in run.metrics] == list(range(step + 1))
        steps = [row["step"] for row in run.rollouts()]
        assert steps == [trained for trained in range(1, step + 1) for _ in range(2)]
    writer.close()


def test_equal_runs_make_equal_files_at_any_time(tmp_path, whole, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1e9)
    writer = RunWriter.create(tmp_path / "later", CONFIG, ENV)
    work(writer)
    writer.close()
    assert contents(tmp_path / "later") == contents(whole)
    assert (tmp_path / "later" / "env.json").read_bytes() == (whole / "env.json").read_bytes()


def test_rollouts_are_one_gzip_file_for_any_reader(whole):
    with gzip.open(whole / "rollouts.jsonl.gz", "rt") as lines:
        assert len(lines.readlines()) == 10


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_know_is_refused_with_its_key(tmp_path, value):
    writer = RunWriter.create(tmp_path / "run", CONFIG, ENV)
    writer.log({"step": 0})
    message = refusal(lambda: writer.log({"step": 1, "loss/value": value}))
    assert message.startswith(f"loss/value = {value} ")
    with pytest.raises(UsageError, match=f"weight = {value}"):
        writer.log_rollouts([{"step": 1, "weight": 0.5}, {"step": 1, "weight": value}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.log_evaluation({"step": 1, "solve_probability": [0.5, value]})
    run = Run(tmp_path / "run")
    assert run.metrics == [{"step": 0}], "a refused row leaves nothing behind"
    assert list(run.rollouts()) == run.evaluations == []
    writer.close()


def test_a_state_that_is_no_json_is_refused(tmp_path):
    writer = RunWriter.create(tmp_path / "run", CONFIG, ENV)
    for state in ({"seen": {1, 2}}, {"seen": float("nan")}):
        message = refusal(
            lambda state=state: writer.checkpoint(0, state, "running", lambda folder: None)
        )
        assert message.startswith(f"the weight's state {state} cannot be stored")
    assert Run(tmp_path / "run").state["weight"] is None
    writer.close()


# Where a run may be written


def test_a_used_folder_is_refused_and_left_alone(tmp_path, whole):
    before = contents(whole)
    message = refusal(lambda: RunWriter.create(whole, CONFIG, ENV))
    assert message == (
        f"output folder {whole} is already used; name another with --out, or continue it with "
        "--resume"
    )
    assert contents(whole) == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo").write_text("x")
    message = refusal(lambda: RunWriter.create(tmp_path / "notes", CONFIG, ENV))
    assert message.endswith("notes is already used; name another with --out")
    assert contents(tmp_path / "notes") == {"todo": b"x"}


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    message = refusal(lambda: RunWriter.create(tmp_path / "file", CONFIG, ENV))
    assert message.startswith(f"output folder {tmp_path / 'file'} is already used")
    for path, reason in (
        (tmp_path / "file" / "run", "Not a directory"),
        (Path("/proc/x"), "No such file or directory"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        message = refusal(lambda path=path: RunWriter.create(path, CONFIG, ENV))
        assert message == f"cannot write to output folder {path}: {reason}"
    assert contents(tmp_path) == {"file": b"x"}


def test_an_empty_folder_and_missing_parents_are_fine(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "a" / "b" / "c"):
        refuse_used(path)
        RunWriter.create(path, CONFIG, ENV).close()
        assert Run(path).label == "fade"


def test_a_folder_that_another_process_takes_meanwhile_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "run"
    monkeypatch.setattr("gradmass.record.writer.refuse_used", lambda path, can_resume: None)
    RunWriter.create(path, CONFIG, ENV).close()
    message = refusal(lambda: RunWriter.create(path, {**CONFIG, "label": "other"}, ENV))
    assert message.startswith(f"cannot write to output folder {path}: ")
    assert Run(path).label == "fade"


def test_a_run_that_is_being_written_is_refused(tmp_path):
    path = started(tmp_path / "run")
    before = contents(path)
    writer = RunWriter.resume(path, ENV)
    cut = contents(path)
    assert cut != before
    message = refusal(lambda: RunWriter.resume(path, ENV))
    assert message == f"run {path} is being written by another process"
    assert contents(path) == cut
    writer.close()
    RunWriter.resume(path, ENV).close()


# Death at any point


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


# Runs that broke off, and what is no run


def test_a_run_that_fails_after_a_checkpoint_can_be_resumed(tmp_path):
    path = tmp_path / "run"
    writer = RunWriter.create(path, CONFIG, ENV)
    log_step(writer, 0)
    writer.checkpoint(0, {"seen": 0}, "running", save_step(0))
    log_step(writer, 1)
    writer.fail()
    writer.close()
    assert Run(path).state["status"] == "failed"
    assert [row["step"] for row in Run(path).metrics] == [0, 1], "what happened can be read"
    writer = RunWriter.resume(path, ENV)
    assert [row["step"] for row in Run(path).metrics] == [0]
    writer.close()


def test_a_new_run_that_fails_before_its_first_checkpoint_leaves_nothing(tmp_path, monkeypatch):
    for path in (tmp_path / "a" / "run", Path()):
        (tmp_path / "here").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "here")
        writer = RunWriter.create(path, CONFIG, ENV)
        log_step(writer, 0)
        writer.fail()
        writer.close()
    assert not (tmp_path / "a" / "run").exists()
    assert list((tmp_path / "here").iterdir()) == []


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    path = tmp_path / "run"
    writer = RunWriter.create(path, CONFIG, ENV)
    log_step(writer, 0)
    writer.close()
    writer = RunWriter.resume(path, ENV)
    assert writer.resumed_from is None
    assert Run(path).metrics == Run(path).evaluations == []
    writer.fail()
    writer.close()
    assert Run(path).state["status"] == "failed", "only a new run is removed"


def test_every_resumption_is_noted(tmp_path):
    path = started(tmp_path / "run")
    for command in ("first", "second"):
        RunWriter.resume(path, {"command": command}).close()
    assert Run(path).env["command"] == ENV["command"]
    assert Run(path).env["resumed"] == [
        {"step": 2, "command": "first"},
        {"step": 2, "command": "second"},
    ]


def test_a_finished_run_is_not_resumed(whole):
    before = contents(whole)
    message = refusal(lambda: RunWriter.resume(whole, ENV))
    assert message == f"run {whole} is finished (step 5); there is nothing to do"
    assert contents(whole) == before


def test_what_is_no_run_is_not_resumed_and_not_changed(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "file").write_text("x")
    before = contents(tmp_path)
    for name, reason in (
        ("empty", "it has no state.json"),
        ("foreign", "it has no state.json"),
        ("file", "it is a file"),
        ("missing", "there is no such folder"),
    ):
        message = refusal(lambda name=name: RunWriter.resume(tmp_path / name, ENV))
        assert message == f"{tmp_path / name} is no run directory: {reason}"
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl", "rollouts.jsonl.gz"])
def test_a_run_that_lost_rows_is_not_resumed(tmp_path, name):
    path = started(tmp_path / "run")
    with (path / name).open("r+b") as file:
        file.truncate(3)
    message = refusal(lambda: RunWriter.resume(path, ENV))
    assert message == f"{path / name} is shorter than its checkpoint says"
    message = refusal(lambda: RunWriter.resume(path, ENV))
    assert message.endswith("is shorter than its checkpoint says"), "and nothing stays locked"


def test_a_run_that_lost_its_checkpoint_is_not_resumed(tmp_path):
    path = started(tmp_path / "run")
    shutil.rmtree(path / "checkpoints" / "step-000002")
    message = refusal(lambda: RunWriter.resume(path, ENV))
    folder = path / "checkpoints" / "step-000002"
    assert message == f"the checkpoint {folder} of run {path} is missing"


# Damage


def test_a_missing_file_is_named(whole):
    for name, read in (
        ("metrics.jsonl", lambda: Run(whole).metrics),
        ("evaluations.jsonl", lambda: Run(whole).evaluations),
        ("rollouts.jsonl.gz", lambda: list(Run(whole).rollouts())),
        ("config.json", lambda: Run(whole).label),
        ("env.json", lambda: Run(whole).env),
        ("state.json", lambda: Run(whole).state),
    ):
        (whole / name).unlink()
        assert refusal(read).startswith(f"{whole} is no run directory: ")
        assert refusal(read).endswith(name)


@pytest.mark.parametrize("name", ["config.json", "env.json", "state.json"])
def test_a_damaged_or_foreign_json_file_is_named(whole, name):
    read = {
        "config.json": lambda: Run(whole).config,
        "env.json": lambda: Run(whole).env,
        "state.json": lambda: Run(whole).state,
    }[name]
    file = whole / name
    for content, wanted in (
        (b"", f"{file} is damaged: Expecting value"),
        (b'{"schema": 1,', f"{file} is damaged: "),
        (b"\xff\xfe", f"{file} is damaged: 'utf-8' codec"),
        (b'{"schema": 2}', f"{file} has schema 2, this version reads schema 1"),
        (b"{}", f"{file} has schema None, this version reads schema 1"),
        (b"[1]", f"{file} has schema [1], this version reads schema 1"),
    ):
        file.write_bytes(content)
        assert refusal(read).startswith(wanted)


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl", "rollouts.jsonl.gz"])
def test_a_damaged_row_is_named(whole, name):
    read = {
        "metrics.jsonl": lambda: Run(whole).metrics,
        "evaluations.jsonl": lambda: Run(whole).evaluations,
        "rollouts.jsonl.gz": lambda: list(Run(whole).rollouts()),
    }[name]
    open_file = gzip.open if name.endswith(".gz") else open
    with open_file(whole / name, "rt") as file:
        lines = file.readlines()
    lines[1] = lines[1][:-5] + "\n"
    with open_file(whole / name, "wt") as file:
        file.writelines(lines)
    assert refusal(read).startswith(f"{whole / name} is damaged at row 2: ")


def test_damaged_compression_is_refused(whole):
    file = whole / "rollouts.jsonl.gz"
    content = file.read_bytes()
    for damaged in (
        b"not gzip" + content,
        content[:12] + b"\xff\xff\xff\xff" + content[16:],
        content + b"trailing",
    ):
        file.write_bytes(damaged)
        message = refusal(lambda: list(Run(whole).rollouts()))
        assert message.startswith(f"{file} is damaged at row ")


def test_a_folder_in_the_place_of_a_file_is_refused(whole):
    (whole / "metrics.jsonl").unlink()
    (whole / "metrics.jsonl").mkdir()
    message = refusal(lambda: Run(whole).metrics)
    assert message == f"cannot read {whole / 'metrics.jsonl'}: Is a directory"


# What a run ran on


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
