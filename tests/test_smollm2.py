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


def test_five_steps_of_smollm2_with_an_adapter(tmp_path):
    script, model = ROOT / "examples" / "fetch_smollm2.py", tmp_path / "smollm2"
    subprocess.run([sys.executable, script, model], check=True, capture_output=True)
    run = tmp_path / "run"
    flags = [
        "--lora.rank=4",
        "--train.steps=5",
        "--train.num_problems=4",
        "--train.prompts_per_step=2",
        "--train.group_size=4",
        "--train.max_new_tokens=12",
        "--train.threads=1",
        "--eval.num_problems=1",
        "--eval.num_samples=2",
        "--probe.every=0",
        "--probe.rank_every=5",
        "--weight=reinforce",
        "--weight.signed=true",
    ]
    trained = command("train", "smollm2", f"--model.path={model}", *flags, "--out", run, "--json")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert trained["is_finished"]
    assert [row["step"] for row in rows] == list(range(6))
    for row in rows[1:]:
        assert math.isfinite(row["loss/value"])
        assert row["optim/grad_norm"] > 0
    assert 0 <= rows[-1]["test/pass@1"] <= 1
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert (checkpoint / "adapter_model.safetensors").stat().st_size > 1e6
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
