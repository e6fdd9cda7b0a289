"""``--engine verl``: what verl leaves on the disk becomes the record of a run.

verl itself wants a GPU. A script in its place writes what verl writes, by verl's own logger.
"""

import json
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from gradmass.config import Recipe
from gradmass.engines import verl_run
from gradmass.engines.state import read_state
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.types import UsageError

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore")]
STAND_IN = """
    import json, os, signal, sys, time
    from pathlib import Path
    from verl.utils.tracking import FileLogger
    from gradmass.engines.state import write_state

    settings = dict(word.partition("=")[::2] for word in sys.argv[1:])
    folder = Path(settings["trainer.default_local_dir"].strip("'"))
    plan = json.loads(Path(__file__).with_name("plan.json").read_text())
    logger = FileLogger("gradmass", "run")
    latest = folder / "latest_checkpointed_iteration.txt"
    if plan.get("is_deaf"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    first = int(latest.read_text()) + 1 if latest.exists() else 1
    if first == 1:
        logger.log({"val-core/countdown/test/acc/mean@4": 0.25, "val-aux/x/acc/std@4": 0.5}, 0)
    for step in range(first, plan["stop_after"] + 1):
        logger.log(
            {"rollout/solve_rate": step / 10, "mass/positive": 0.1, "actor/entropy": 0.7,
             "weight/alpha": 1.0 + step, "actor/grad_norm": 0.5, "perf/throughput": 3.0}, step)
        if step % 2 == 0:
            made = folder / f"global_step_{step}"
            state = {"alpha": {"solve_rate_ema": step / 10}, "delta": {}}
            write_state(made, {"schema_version": 1, "mode": "weight",
                               "weights": [{"spec": "fade", "label": "fade", "state": state}]})
            latest.write_text(str(step))
        time.sleep(plan.get("sleep", 0))
    print("ValueError: the last thing verl said")
    sys.exit(plan["code"])
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    script = tmp_path / "main_ppo.py"
    script.write_text(textwrap.dedent(STAND_IN))
    real = verl_run.command_for

    def command_for(*arguments, **named):
        command = real(*arguments, **named)
        assert command[2:5] == [sys.executable, "-m", "verl.trainer.main_ppo"]
        return [*command[:3], str(script), *command[5:]]

    monkeypatch.setattr(verl_run, "command_for", command_for)
    monkeypatch.setattr(verl_run, "POLL_S", 0.05)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)

    def plan(**fields):
        (tmp_path / "plan.json").write_text(json.dumps({"code": 0, **fields}))

    return plan


RECIPE = load_recipe(Recipe, "demo", ["--train.steps=5", "--train.prompts_per_step=4"])


def train(folder, *, resume=False):
    if resume:
        writer = RunWriter.resume(folder, {})
    else:
        config = {"label": "fade", "engine": "verl", "recipe": to_tables(RECIPE), "files": {}}
        writer = RunWriter.create(folder, config, {})
    seen = []
    try:
        return verl_run.train(RECIPE, writer, folder, seen.append), seen
    except BaseException:
        writer.fail()
        raise
    finally:
        writer.close()


def test_a_run_leaves_rows_a_state_and_its_end(stand_in, tmp_path):
    stand_in(stop_after=5)
    folder = tmp_path / "run"
    is_finished, seen = train(folder)
    assert is_finished
    run = Run(folder)
    assert run.metrics == seen
    assert [row["step"] for row in seen] == [0, 1, 2, 3, 4, 5]
    assert [row["rollouts"] for row in seen] == [32 * step for step in range(6)]
    assert seen[0]["test/sampled_pass@1"] == 0.25
    assert seen[0]["verl/val-aux/x/acc/std@4"] == 0.5
    assert seen[3] == {
        "step": 3,
        "rollouts": 96,
        "rollout/solve_rate": 0.3,
        "mass/positive": 0.1,
        "entropy/mean_nats": 0.7,
        "weight/alpha": 4.0,
        "optim/grad_norm": 0.5,
        "verl/perf/throughput": 3.0,
    }
    assert run.state["status"] == "finished"
    # The last checkpoint is that of step 4: verl saves every second here.
    assert run.state["step"] == 4
    assert run.state["weight"] == {"alpha": {"solve_rate_ema": 0.4}, "delta": {}}
    note = json.loads((run.model_dir / "verl.json").read_text())
    assert read_state(folder / note["checkpoint"]) == note["weight"]


def test_stopped_and_resumed_no_row_is_lost_or_doubled(stand_in, tmp_path):
    stand_in(stop_after=3, code=1)
    folder = tmp_path / "run"
    with pytest.raises(UsageError, match=r"exit code 1: ValueError: the last thing verl said"):
        train(folder)
    assert Run(folder).state["status"] == "failed"
    assert Run(folder).state["step"] == 2
    stand_in(stop_after=5)
    is_finished, seen = train(folder, resume=True)
    assert is_finished
    assert [row["step"] for row in seen] == [3, 4, 5]
    assert [row["step"] for row in Run(folder).metrics] == [0, 1, 2, 3, 4, 5]
    assert (folder / "verl/metrics-to-2.jsonl").exists()


def test_what_verl_did_after_the_record_ended_is_caught_up(stand_in, tmp_path):
    """Killed between a checkpoint of verl and the record of it."""
    stand_in(stop_after=5, code=1)
    folder = tmp_path / "run"
    with pytest.raises(UsageError):
        train(folder)
    state = json.loads((folder / "state.json").read_text())
    assert state["step"] == 4
    # The record as it was at step 2.
    rows = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    state |= {"step": 2, "status": "running"}
    state["sizes"]["metrics.jsonl"] = sum(map(len, rows[:3]))
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "checkpoints/step-000004").rename(folder / "checkpoints/step-000002")
    stand_in(stop_after=5)
    is_finished, seen = train(folder, resume=True)
    assert is_finished
    assert [row["step"] for row in seen] == [3, 4, 5]
    assert [row["step"] for row in Run(folder).metrics] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("is_deaf", [False, True])
def test_after_ctrl_c_verl_is_ended_and_the_run_can_go_on(stand_in, tmp_path, monkeypatch, is_deaf):
    monkeypatch.setattr(verl_run, "PATIENCE_S", 0.2)
    stand_in(stop_after=5, sleep=0.5, is_deaf=is_deaf)
    folder = tmp_path / "run"
    real = verl_run.Follower.follow

    def follow(follower, **named):
        real(follower, **named)
        if follower.step >= 2:
            monkeypatch.setattr(verl_run.Follower, "follow", real)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(verl_run.Follower, "follow", follow)
    assert train(folder)[0] is False
    assert (Run(folder).state["step"], Run(folder).state["status"]) == (2, "interrupted")
    stand_in(stop_after=5)
    assert train(folder, resume=True)[0]
    assert [row["step"] for row in Run(folder).metrics] == [0, 1, 2, 3, 4, 5]


def test_without_a_gpu_it_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(UsageError, match="--engine verl needs a GPU and there is none"):
        train(tmp_path / "run")
    assert not Path(tmp_path / "run").exists()
