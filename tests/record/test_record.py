"""The run directory: whole after any death, honest about damage, and equal for equal runs."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from recorded import CONFIG, ENV, contents, log_step, save_step, started, work
from written import refusal

from gradmass.record import Run, RunWriter, refuse_used
from gradmass.types import UsageError

STATE_FIELDS = {"schema", "step", "status", "weight", "sizes"}


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
    with pytest.raises(UsageError, match="NaN or infinity within a value"):
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
