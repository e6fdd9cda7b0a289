"""``gradmass eval`` of checkpoints and of runs."""

import json
import os
from pathlib import Path

import pytest
from small_runs import TINY

from gradmass.record import Run


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


# eval


def measured(split):
    """What eval says of a split besides its size, what came of its samples, and the time."""
    other = ("split", "num_problems", "num_samples", "samples")
    return {k: v for k, v in split.items() if k not in other and not k.startswith("time/")}


def test_eval_agrees_with_the_start_of_a_run_from_the_same_checkpoint(command, run_dirs):
    sizes = ["--limit=2", "--num-samples=2", "--max-new-tokens=20"]
    out, err = command("eval", "countdown-tiny", *sizes, "--json")
    assert err == ""
    said = json.loads(out)
    assert (said["model"], said["task"]["type"]) == ("countdown-tiny", "countdown")
    start = Run(run_dirs / "fade").metrics[0]
    assert [split["split"] for split in said["splits"]] == ["test", "ood"]
    for split in said["splits"]:
        name = split["split"]
        assert (split["num_problems"], split["num_samples"]) == (2, 2)
        assert {"pass@1", "pass@10", "pass@100", "sampled_pass@1", "sampled_pass@1_low"} <= (
            split.keys()
        )
        assert "sampled_pass@10" not in split, "two samples say nothing of it"
        for key, value in measured(split).items():
            assert value == pytest.approx(start[f"{name}/{key}"], rel=1e-9)


def test_eval_of_a_run_asks_what_the_run_asked(command):
    own = ["--task.max_number=12", "--task.seed=3", "--seed=5", "--train.max_new_tokens=24"]
    command("train", "demo", *TINY, *own, "--out", "run", "--json")
    last = Run(Path("run")).metrics[-1]
    out, _ = command("eval", "run", "--json")
    said = json.loads(out)
    assert (said["task"]["max_number"], said["task"]["seed"], said["seed"]) == (12, 3, 5)
    for split in said["splits"]:
        for key, value in measured(split).items():
            assert value == pytest.approx(last[f"{split['split']}/{key}"], rel=1e-9)
    out, _ = command("eval", "run", "--task.seed=4", "--seed", "6", "--json")
    other = json.loads(out)
    assert (other["task"]["max_number"], other["task"]["seed"], other["seed"]) == (12, 4, 6)
    assert measured(other["splits"][0]) != measured(said["splits"][0])


def test_eval_of_a_run_evaluates_its_last_checkpoint(command, run_dirs):
    run = Run(run_dirs / "grpo")
    for model in (run.path, run.model_dir):
        out, _ = command("eval", str(model), "--limit=2", "--num-samples=0", "--json")
        for split in json.loads(out)["splits"]:
            values = measured(split)
            assert "pass@1" in values
            assert not any(key.startswith("sampled") for key in values)
            for key, value in values.items():
                expected = run.metrics[-1][f"{split['split']}/{key}"]
                assert value == pytest.approx(expected, rel=1e-9)


def test_eval_prints_a_table(command):
    sizes = ["--limit=2", "--num-samples=3", "--task.seed=5", "--seed=1"]
    out, err = command("eval", "countdown-tiny", *sizes)
    assert err == ""
    words = out.split()
    assert {"test", "ood", "pass@1", "pass@10", "pass@100"} <= set(words)
    said = json.loads(command("eval", "countdown-tiny", *sizes, "--json")[0])
    for split in said["splits"]:
        for key in ("pass@1", "pass@10", "pass@100", "sampled_pass@1"):
            assert f"{split[key]:.3f}" in words
        assert f"[{split['sampled_pass@1_low']:.3f}," in words


def test_eval_of_another_seed_samples_other_answers(command):
    def sampled(*flags):
        argv = ["eval", "countdown-tiny", "--limit=5", "--num-samples=9", "--json"]
        splits = json.loads(command(*argv, *flags)[0])["splits"]
        return [split["sampled_pass@1"] for split in splits]

    assert sampled() == sampled("--seed=0")
    assert sampled() != sampled("--seed=1")
