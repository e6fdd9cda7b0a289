"""``gradmass train --engine trl``: the same run directory, in one process and in two."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict

import numpy as np
import pytest

pytestmark = pytest.mark.trl
SMALL = (
    *("--engine", "trl", "--train.steps", "6", "--train.checkpoint-every", "3"),
    *("--train.threads", "1", "--eval.num-samples", "0", "--eval.num-problems", "5"),
    *("--probe.every", "0", "--probe.rank-every", "0"),
)
CLOCKS = ("time/", "trl/")


def command(*arguments, processes=1):
    launcher = [sys.executable, "-m", "gradmass"]
    if processes > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node"]
        launcher += [str(processes), "-m", "gradmass"]
    return [*launcher, "train", *map(str, arguments)]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(*arguments, processes=1):
    return subprocess.run(
        command(*arguments, processes=processes),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


def rows(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if not k.startswith(CLOCKS)} for row in found]


def rollouts(folder):
    with gzip.open(folder / "rollouts.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = run("demo", *SMALL, "--equalise", "mean_mass", "--out", folder)
    assert done.returncode == 0, done.stderr
    # Nothing but what the local engine says: no bars, no tables, no warnings of other packages.
    lines = done.stderr.splitlines()
    assert lines[0] == f"fade(entropy_form=relative) on countdown: {folder}"
    assert [line.split("/")[0] for line in lines[1:]] == [f"step {i}" for i in range(7)]
    return folder


def test_it_leaves_a_run_directory_like_any_other(whole):
    found = rows(whole)
    assert [row["step"] for row in found] == list(range(7))
    assert [row["rollouts"] for row in found] == [256 * i for i in range(7)]
    assert {"test/pass@1", "ood/pass@100", "rank/head_top1_share"} <= found[0].keys()
    assert {"test/pass@1", "ood/pass@100", "rank/head_top1_share"} <= found[6].keys()
    assert "test/pass@1" not in found[3]
    state = json.loads((whole / "state.json").read_text())
    assert (state["step"], state["status"]) == (6, "finished")
    assert [entry.name for entry in (whole / "checkpoints").iterdir()] == ["step-000006"]
    assert json.loads((whole / "config.json").read_text())["engine"] == "trl"
    for words in (["report", whole, "-o", whole.parent / "report.html"], ["eval", whole]):
        more = ["--task", "countdown", "--num-samples", "2", "--limit", "2", "--k", "1"]
        more += ["--out", str(whole.parent / "evaluation")]
        done = subprocess.run(
            [sys.executable, "-m", "gradmass", *map(str, words), *more * (words[0] == "eval")],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_its_rollouts_carry_the_weight_of_the_recipe(whole):
    """FADE's equations in plain Python, on the verdicts as they were recorded."""
    found = rows(whole)[1:]
    p_hat, entropy_ema, first_entropy = 0.5, None, None
    factors = set()
    for row, before in zip(found, [None, *found], strict=False):
        step_rows = [r for r in rollouts(whole) if r["step"] == row["step"]]
        assert len(step_rows) == 256
        groups = defaultdict(list)
        for rollout in step_rows:
            groups[rollout["group"]].append(rollout)
        assert len(groups) == 32
        solved = sum(rollout["verdict"] == "right" for rollout in step_rows) / 256
        assert row["rollout/solve_rate"] == pytest.approx(solved)
        p_hat = 0.98 * p_hat + 0.02 * solved
        alpha = min(3, max(1, 1.5 * (1 - p_hat) / p_hat))
        assert row["weight/alpha"] == pytest.approx(alpha)
        if before is not None:
            entropy = before["entropy/mean_nats"]
            first_entropy = first_entropy or entropy
            entropy_ema = 0.98 * (entropy_ema or entropy) + 0.02 * entropy
            assert row["weight/entropy_ema"] == pytest.approx(entropy_ema)
        delta = row["weight/delta"]
        for members in groups.values():
            assert len({rollout["problem_id"] for rollout in members}) == 1
            right = np.array([rollout["verdict"] == "right" for rollout in members])
            weights = np.array([rollout["weight"] for rollout in members])
            p = right.mean()
            if p in (0, 1):
                assert (weights == 0).all()
                continue
            # One sign has the same weight throughout; the masses are as delta says.
            assert np.ptp(weights[right]) == np.ptp(weights[~right]) == 0
            m_success, m_failure = weights[right].sum() / 8, -weights[~right].sum() / 8
            assert m_success == pytest.approx(delta * m_failure, rel=1e-5)
            factors.add(round(float(m_success / (p * (1 - p) ** alpha)), 4))
    # Equalised: every weight is a multiple of FADE's own by one number.
    assert len(factors) <= len(found)


def killed(arguments, folder):
    """A run that dies after its checkpoint of step 3."""
    process = subprocess.Popen(
        command(*arguments, "--out", folder), env=ENVIRONMENT, stderr=subprocess.DEVNULL
    )
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 6:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert json.loads((folder / "state.json").read_text())["step"] == 3


def test_killed_and_resumed_it_is_as_if_nothing_had_been(whole, tmp_path):
    folder = tmp_path / "run"
    killed(("demo", *SMALL, "--equalise", "mean_mass"), folder)
    done = run("--resume", "--out", folder)
    assert done.returncode == 0, done.stderr
    assert rows(folder) == rows(whole)
    assert rollouts(folder) == rollouts(whole)


def test_interrupted_it_stops_after_the_step_and_can_go_on(tmp_path):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command("demo", *SMALL, "--out", folder), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; continue with: gradmass train --resume --out" in error
    state = json.loads((folder / "state.json").read_text())
    assert state["status"] == "interrupted"
    assert state["step"] == len(rows(folder)) - 1 < 6
    done = run("--resume", "--out", folder)
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in rows(folder)] == list(range(7))


def test_two_processes_keep_one_record(tmp_path):
    folder = tmp_path / "run"
    done = run("demo", *SMALL, "--out", folder, processes=2)
    assert done.returncode == 0, done.stderr
    found = rollouts(folder)
    assert len(found) == 6 * 256
    assert len({rollout["group"] for rollout in found}) == 6 * 32
    assert [row["step"] for row in rows(folder)] == list(range(7))
    done = run("demo", *SMALL, processes=2)
    assert done.returncode != 0
    assert "several processes need --out" in done.stderr


def test_an_adaptive_entropy_bonus_is_trl_s_own_and_goes_on_from_a_checkpoint(tmp_path):
    folder = tmp_path / "run"
    flags = ["--entropy.is_adaptive=true", "--entropy.coef=0.01", "--entropy.step=0.004"]
    flags += ["--entropy.target=3", "--entropy.max=0.025"]  # always below, so it rises to its bound
    killed(("demo", *SMALL, *flags), folder)
    done = run("--resume", "--out", folder)
    assert done.returncode == 0, done.stderr
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line)["trl/entropy_coef"] for line in lines[1:]]
    assert found == pytest.approx([0.014, 0.018, 0.022, 0.025, 0.025, 0.025])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--train.policy-lag", "2"], "train.policy_lag = 2: TRL has no lag of a fixed number"),
        (["--loss.truncated", "mask"], "TRL divides by the number of masked rollouts too"),
        (["--engine", "local", "--train.steps", "0"], "train.steps must be at least 1, got 0"),
    ],
)
def test_what_trl_cannot_do_is_said_before_it_starts(flags, message, tmp_path):
    folder = tmp_path / "run"
    done = run("demo", *SMALL, *flags, "--out", folder)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert not folder.exists()
