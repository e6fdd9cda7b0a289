"""TRL in earnest: the recipe of the demo, in one process and in two, killed and resumed."""

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

pytestmark = pytest.mark.trl
HERE = Path(__file__).parent


def start(*arguments, script="drive_trl.py", processes=1):
    launcher = []
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    return subprocess.run(
        [sys.executable, *launcher, str(HERE / script), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def drive(folder, *arguments, processes=1):
    done = start("--out", folder, *arguments, processes=processes)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{i}.json").read_text()) for i in range(processes)]


def rows(found):
    return [row for row in found["log"] if "loss" in row]


def without_clock(found):
    return [{k: v for k, v in row.items() if "time" not in k} for row in rows(found)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, drive(folder)[0]


def test_thirty_steps_of_fade_show_it_at_work(whole):
    _, found = whole
    log = rows(found)
    assert [row["step"] for row in log] == list(range(1, 31))
    assert log[0]["weight/delta"] == 1
    assert "entropy/mean_nats" not in log[0]
    for before, row in pairwise(log):
        # That of the step before, as TRL logs it but for its mean over micro-batches of any length.
        assert row["entropy/mean_nats"] == pytest.approx(before["entropy"], rel=5e-3)
        moved = 0.98 * before["weight/solve_rate_ema"] + 0.02 * row["rollout/solve_rate"]
        assert row["weight/solve_rate_ema"] == pytest.approx(moved)
        p = row["weight/solve_rate_ema"]
        assert row["weight/alpha"] == pytest.approx(min(3, max(1, 1.5 * (1 - p) / p)))
        assert row["rollout/solve_rate"] == pytest.approx(row["rewards/countdown/mean"])
        assert row["mass/positive"] > 0
        assert row["mass/negative"] == pytest.approx(row["mass/positive"] / row["weight/delta"])
        shares = [row[f"groups/{name}"] for name in ("all_right", "all_wrong", "mixed")]
        assert sum(shares) == pytest.approx(1)
        assert {"clip/positive", "clip/negative"} <= row.keys()
    assert log[-1]["weight/alpha"] > 2


def test_a_killed_run_goes_on_as_if_it_had_not_been(whole, tmp_path):
    _, expected = whole
    killed = start("--out", tmp_path, "--kill-at", 15)
    assert killed.returncode == -9
    assert not (tmp_path / "rank0.json").exists()
    (found,) = drive(tmp_path, "--resume")
    assert found["weights"] == expected["weights"]
    assert found["entropy"] == expected["entropy"]
    assert found["parameters"] == expected["parameters"]
    assert without_clock(found) == without_clock(expected)


def test_every_checkpoint_has_the_state(whole):
    folder, found = whole
    steps = sorted(path.name for path in folder.glob("checkpoint-*"))
    assert steps == ["checkpoint-10", "checkpoint-20", "checkpoint-30"]
    for step in steps:
        saved = json.loads((folder / step / "gradmass_state.json").read_text())
        assert saved["weights"][0]["label"] == "fade(entropy_form=relative)"
    assert saved["weights"] == found["weights"]
    assert [path.name for path in folder.rglob("gradmass_state.json.*")] == []


def test_two_processes_hold_one_state_before_and_after_a_restart(tmp_path):
    first, second = drive(tmp_path, processes=2)
    for key in ("weights", "entropy", "parameters"):
        assert first[key] == second[key], key
    assert first["weights"][0]["state"]["alpha"]["solve_rate_ema"] != 0.5
    shutil.rmtree(tmp_path / "checkpoint-30")
    again, other = drive(tmp_path, "--resume", processes=2)
    assert again["weights"] == other["weights"] == first["weights"]
    assert again["entropy"] == first["entropy"]


def test_a_group_cut_across_processes_is_weighed_whole(tmp_path):
    done = start(tmp_path, script="drive_split_group.py", processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank{i}.json").read_text()) for i in (0, 1))
    assert (first["advantages"], second["advantages"]) == ([0.75, -0.25], [-0.25, -0.25])
    assert first["error"] == second["error"]
    assert "state of the weight on process 1 differs" in first["error"]


def test_shadow_mode_leaves_the_loss_bit_equal_and_measures_every_weight(tmp_path):
    steps = ("--steps", 6, "--save-steps", 6)
    (plain,) = drive(tmp_path / "plain", *steps, "--plain")
    (shadow,) = drive(tmp_path / "shadow", *steps, "--mode", "shadow", "--weight", "fade", "maxrl")
    assert shadow["parameters"] == plain["parameters"]
    for own, theirs in zip(without_clock(shadow), without_clock(plain), strict=True):
        assert {key: own[key] for key in theirs} == theirs
        added = own.keys() - theirs.keys()
        for name in ("fade", "maxrl"):
            masses = {f"shadow/{name}/mass/positive", f"shadow/{name}/mass/negative"}
            assert masses <= added
        assert {"shadow/fade/weight/alpha", "shadow/fade/weight/delta", "mass/positive"} <= added
        # TRL's own weight, divided by the standard deviation, is heavier than FADE's.
        assert own["mass/positive"] > own["shadow/fade/mass/positive"] > 0
    assert [entry["spec"] for entry in shadow["weights"]] == ["fade", "maxrl"]
