"""kill -9 at random moments, then ``--resume``: the record of a run that never died."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradmass.record import Run

NUM_KILLS = 20
TINY = [
    *("--train.steps=24", "--train.num_problems=6", "--train.prompts_per_step=4"),
    *("--train.group_size=4", "--train.checkpoint_every=2", "--train.threads=1"),
    *("--eval.every=9", "--eval.num_problems=2", "--eval.num_samples=0", "--probe.every=10"),
]


def numbers(run):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in run.metrics]


def ids(run):
    return [(row["step"], row["group"], row["problem_id"]) for row in run.rollouts()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("synchronous", []),
        ("bonus", ["--entropy.is_adaptive=true", "--entropy.target=3", "--weight=entropy_pi"]),
        ("fixed lag", ["--train.policy_lag=2"]),
        ("visits", ["--weight=history"]),
        ("scores", ["--weight=sign_by_noise", "--train.policy_lag=1"]),
        ("largest lag", ["--train.max_lag=3"]),
    ],
)
def test_killed_twenty_times_the_record_is_as_if_it_had_not_been(tmp_path, name, flags):
    drive = Path(__file__).with_name("drive_kills.py")
    command = [sys.executable, str(drive), str(tmp_path), str(len(name)), str(NUM_KILLS)]
    done = subprocess.run([*command, *TINY, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)
    assert sum(map(len, kills)) >= NUM_KILLS
    assert len({step for steps in kills for step in steps}) > 3, "at many different moments"
    whole = Run(tmp_path / "whole")
    for i in range(len(kills)):
        run = Run(tmp_path / f"run-{i}")
        assert run.state["status"] == "finished"
        assert ids(run) == ids(whole)  # none lost, none trained on twice
        assert len(ids(run)) == 24 * 16
        if name == "largest lag":
            assert all(row["step"] - 1 - row["policy_step"] <= 3 for row in run.rollouts())
            continue
        assert numbers(run) == numbers(whole)
        assert run.diagnostics == whole.diagnostics
        assert run.evaluations == whole.evaluations
        assert list(run.rollouts()) == list(whole.rollouts())
