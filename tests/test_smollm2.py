"""A real model from end to end: fetched, trained with LoRA, evaluated, merged, loaded."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def command(*argv):
    done = subprocess.run(
        [sys.executable, "-m", "gradmass", *map(str, argv)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FLAGS = (
    "--lora.rank=4",
    "--train.num_problems=4",
    "--train.prompts_per_step=2",
    "--train.group_size=4",
    "--train.max_new_tokens=12",
    "--train.threads=1",
    "--eval.num_problems=1",
    "--eval.num_samples=2",
    "--probe.every=0",
    "--weight=reinforce",
    "--weight.signed=true",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "smollm2"
    script = ROOT / "examples" / "fetch_smollm2.py"
    subprocess.run([sys.executable, script, folder], check=True, capture_output=True)
    return folder


def train(model, run, steps, *more):
    flags = (f"--model.path={model}", f"--train.steps={steps}", *FLAGS, *more)
    trained = command("train", "smollm2", *flags, "--out", run, "--json")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert trained["is_finished"]
    assert [row["step"] for row in rows] == list(range(steps + 1))
    for row in rows[1:]:
        assert math.isfinite(row["loss/value"])
        assert row["optim/grad_norm"] > 0
    assert 0 <= rows[-1]["test/pass@1"] <= 1
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert (checkpoint / "adapter_model.safetensors").stat().st_size > 1e6


def test_five_steps_of_smollm2_with_an_adapter(model, tmp_path):
    run = tmp_path / "run"
    train(model, run, 5, "--probe.rank_every=5")
    evaluated = command("eval", run, "--num-samples", 1, "--limit", 1, "--json")
    assert {split["split"] for split in evaluated["splits"]} == {"test", "ood"}

    merged = tmp_path / "merged"
    assert command("merge", run, "--out", merged, "--json")["num_parameters"] == 134_515_008
    loaded = AutoModelForCausalLM.from_pretrained(merged)
    start = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokens = AutoTokenizer.from_pretrained(merged)("25,3,4=100:", return_tensors="pt").input_ids
    with torch.no_grad():
        logits, before = loaded(tokens).logits, start(tokens).logits
    assert torch.isfinite(logits).all()
    assert 0 < float((logits - before).abs().max()) < 10


def test_three_steps_of_it_on_trl(model, tmp_path):
    run = tmp_path / "run"
    train(model, run, 3, "--engine=trl", "--probe.rank_every=0")
    assert (run / "trl" / "checkpoint-3" / "gradmass_state.json").exists()
