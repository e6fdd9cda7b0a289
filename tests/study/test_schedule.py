"""Which runs are made when, what is kept of them, and what a failure stops."""

import json

import pytest

from gradmass.study import main_runs
from gradmass.study.execute import RunFailed, RunInterrupted
from gradmass.study.plan import source_of
from gradmass.study.results import read_all, read_result, read_results, write_result
from gradmass.study.schedule import Scheduler
from gradmass.types import UsageError


@pytest.fixture
def make(study, tmp_path):
    """Makes runs with an executor; gives results, failures and what was told."""

    def run_all(executor, runs):
        told = []
        scheduler = Scheduler(study, tmp_path, executor, lambda run, result: told.append(run))
        done, failed = scheduler.make(runs, lambda: None, tick_s=0.01)
        return done, failed, told

    return run_all


def test_every_run_is_made_once_and_leaves_its_result(study, make, tmp_path, fake_executor):
    runs = main_runs(study, {})
    executor = fake_executor()
    done, failed, told = make(executor, runs)
    assert set(done) == set(told) == set(runs)
    assert not failed
    assert sorted(job.run.name for job in executor.submitted) == sorted(run.name for run in runs)
    assert read_results(tmp_path, runs) == done
    assert not (tmp_path / "work").exists()


def test_a_run_that_replays_waits_for_the_run_it_replays(study, make, fake_executor):
    executor = fake_executor()
    make(executor, main_runs(study, {}))
    order = [job.run for job in executor.submitted]
    for job in executor.submitted:
        source = source_of(study, job.run)
        assert source is None or order.index(source) < order.index(job.run)
        assert (job.trace is None) == (source is None)
        assert job.has_trace == (job.run.arm == "fade")


def test_what_is_there_is_not_made_again(study, make, fake_executor):
    runs = main_runs(study, {})
    _, failed, _ = make(fake_executor(), runs[:6])
    # Nobody made the next seed, which the yoked runs replay.
    assert {run.arm: reason for run, reason in failed.items()} == {
        "yoked": "the run it replays is not there"
    }
    executor = fake_executor()
    done, _, _ = make(executor, runs)
    assert set(done) == set(runs)
    assert not {job.run for job in executor.submitted} & {
        run for run in runs[:6] if run.arm != "yoked"
    }


def test_a_failure_is_told_and_stops_only_what_replays_it(study, make, fake_executor, result_of):
    runs = main_runs(study, {})
    broken = next(run for run in runs if (run.arm, run.seed, run.setting) == ("fade", 11, "here"))

    def outcome(job):
        if job.run == broken:
            raise RunFailed("out of luck")
        return result_of(job.run)

    done, failed, told = make(fake_executor(outcome), runs)
    waits = next(run for run in runs if source_of(study, run) == broken)
    assert failed == {broken: "out of luck", waits: f"{broken.name}, which it replays, failed"}
    assert set(done) == set(runs) - {broken, waits}
    assert {broken, waits} <= set(told)
    done, failed, _ = make(fake_executor(), runs)  # tried again
    assert set(done) == set(runs)
    assert not failed


def test_an_interruption_starts_nothing_more(study, make, fake_executor, result_of):
    runs = main_runs(study, {})

    def outcome(job):
        if job.run == runs[4]:
            raise RunInterrupted(job.run.name)
        return result_of(job.run)

    executor = fake_executor(outcome)
    done, failed, _ = make(executor, runs)
    assert not failed
    assert runs[4] not in done
    assert len(executor.submitted) < len(runs) / 2


def test_a_result_survives_its_file_and_a_damaged_one_is_named(study, tmp_path, result_of):
    run = main_runs(study, {("here", "grpo"): 1e-4})[0]
    file = tmp_path / f"{run.name}.json"
    result = result_of(run, **{"r_1": [None, 0.2, 0.3, 0.4, 0.5, 0.6]})
    write_result(result, file)
    assert read_result(file) == result
    assert read_all(tmp_path, study) == {run: result}
    for text in ("", "{}", "[1]", file.read_text()[:-20]):
        file.write_text(text)
        with pytest.raises(UsageError, match=f"result {file} is damaged"):
            read_result(file)


def test_a_result_of_another_learning_rate_is_not_taken_for_this_one(study, tmp_path, result_of):
    run, other = (main_runs(study, {("here", "grpo"): lr})[0] for lr in (1e-4, 2e-4))
    write_result(result_of(run), tmp_path / f"{run.name}.json")
    with pytest.raises(UsageError, match="the study now asks for"):
        read_results(tmp_path, [other])


def test_a_result_of_another_schema_is_refused(study, tmp_path, result_of):
    run = main_runs(study, {})[0]
    file = tmp_path / f"{run.name}.json"
    write_result(result_of(run), file)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": 99}))
    with pytest.raises(UsageError, match="has schema 99"):
        read_result(file)
