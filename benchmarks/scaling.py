"""How the cost of a step grows: time and peak memory by group size, length, vocabulary, parameters.

    python benchmarks/scaling.py [--repeats 3] [--json]

A step samples every token of every answer (the end token is out of reach) and takes the gradient of
their log-probabilities. One quantity grows while the others stay; each point is its own process,
so that its peak memory is its own. Slopes are least squares of log on log: 1 is linear. Attention
alone may grow faster than its length.
"""

import argparse
import json
import os
import resource
import time
from typing import Any

import numpy as np
import torch
from sampler import ALPHABET, SHAPES
from transformers import Qwen2Config, Qwen2ForCausalLM

from gradmass.training.model import character_tokenizer
from gradmass.training.passes import passes
from gradmass.training.rollout import answer_logprobs, sample, uniforms

BASE = {"group": 8, "length": 64, "vocabulary": 64, "shape": "1M"}
GROWTH: dict[str, list[Any]] = {
    "group": [8, 16, 32, 64],
    "length": [32, 64, 128, 256, 512],
    "vocabulary": [64, 4096, 32_768, 151_936],
    "shape": ["0.1M", "1M", "10M", "30M"],
}
NUM_PROMPTS = 4
TOKENS_AT_ONCE = 4096


def step(group: int, length: int, vocabulary: int, shape: str, repeats: int) -> dict[str, float]:
    """Seconds of sampling and of a gradient, peak memory beyond the start, and parameters."""
    torch.set_num_threads(1)
    start_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tokenizer, given = character_tokenizer(ALPHABET), SHAPES[shape]
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=given.hidden_size,
            num_hidden_layers=given.num_layers,
            num_attention_heads=given.num_heads,
            num_key_value_heads=given.num_heads,
            intermediate_size=given.intermediate_size,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    ).eval()
    prompts = [ALPHABET[i : i + 8 + 2 * i] for i in range(NUM_PROMPTS)]
    # The end token is the second of about equally likely ones: the upper half never draws it.
    draws_BT = 0.5 + 0.5 * uniforms((NUM_PROMPTS * group, length), 0, "scaling")
    sampling_s, update_s = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        rollouts = sample(model, tokenizer, prompts, draws_BT)
        assert rollouts.answer_BT.shape[1] == length
        sampling_s.append(time.perf_counter() - started)
        started = time.perf_counter()
        model.zero_grad()
        for part, rows in passes(rollouts, torch.arange(NUM_PROMPTS * group), TOKENS_AT_ONCE):
            answer_logprobs(model, part, torch.arange(len(rows))).sum().backward()
        update_s.append(time.perf_counter() - started)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "sampling_s": min(sampling_s),
        "update_s": min(update_s),
        "peak_mib": (peak_kib - start_kib) / 1024,
    }


def apart(repeats: int, **fields: Any) -> dict[str, float]:
    """``step`` in a process of its own."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        with os.fdopen(write, "w") as out:
            json.dump(step(**fields, repeats=repeats), out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as found:
        text = found.read()
    os.waitpid(child, 0)
    assert text, f"the step of {fields} ended without a result"
    row: dict[str, float] = json.loads(text)
    return row


def slope(sizes: list[float], costs: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    results: dict[str, Any] = {}
    for name, values in GROWTH.items():
        rows = [apart(asked.repeats, **{**BASE, name: value}) for value in values]
        sizes = [row["parameters"] for row in rows] if name == "shape" else values
        costs = ("sampling_s", "update_s", "peak_mib")
        slopes = {cost: slope(sizes, [row[cost] for row in rows]) for cost in costs}
        results[name] = {"values": values, "rows": rows, "slopes": slopes}
        if asked.json:
            continue
        print(f"\n{name:>12} {'parameters':>12} {'sampling s':>11} {'update s':>9} {'peak MiB':>9}")
        for value, row in zip(values, rows, strict=True):
            print(
                f"{value:>12} {row['parameters']:>12,.0f} {row['sampling_s']:11.3f} "
                f"{row['update_s']:9.3f} {row['peak_mib']:9.0f}"
            )
        print(f"{'slope':>12} {'':12} " + " ".join(f"{s:9.2f}" for s in slopes.values()))
    if asked.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
