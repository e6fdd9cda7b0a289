"""Rollouts per second: this package's sampler and ``model.generate`` of transformers, in turn.

    python benchmarks/sampler.py [--rounds 3] [--repeats 5] [--threads 2] [--json]

256 rollouts of the demo's policy (32 problems x 8, at most 20 tokens), 64 of an untrained model of
10 million parameters (8 x 8, at most 128 tokens, ragged: one ends with probability 1/64 a token).
The best of the repeats counts on both sides. Each side runs in processes of its own, by turns: what
one leaves behind in the allocator changes the other's time. Nothing else should run on the machine.
"""

import argparse
import json
import string
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradmass.config import TinyModelConfig
from gradmass.tasks.countdown import Countdown
from gradmass.training.model import character_tokenizer, load_model, tiny_model
from gradmass.training.rollout import encode_prompts, sample, uniforms

SHAPES = {
    "0.1M": TinyModelConfig(),
    "1M": TinyModelConfig(hidden_size=128, num_layers=4, intermediate_size=512),
    "10M": TinyModelConfig(hidden_size=320, num_layers=8, num_heads=8, intermediate_size=960),
    "30M": TinyModelConfig(hidden_size=512, num_layers=10, num_heads=8, intermediate_size=1408),
}
GROUP_SIZE = 8
ALPHABET = (string.digits + string.ascii_letters)[:62]


def untrained(
    shape: TinyModelConfig, max_positions: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A model that gives all of 64 tokens about the same probability."""
    tokenizer = character_tokenizer(ALPHABET)
    fields = {**vars(shape), "max_positions": max_positions}
    model = tiny_model(TinyModelConfig(**fields), tokenizer, seed=0).eval()
    return model, tokenizer


def best(work: Callable[[int], object], repeats: int) -> float:
    times = []
    for i in range(repeats + 1):  # the first warms up
        started = time.perf_counter()
        work(i)
        times.append(time.perf_counter() - started)
    return min(times[1:])


@torch.inference_mode()
def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    group_size: int,
    max_new_tokens: int,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    tokens, mask = encode_prompts(tokenizer, prompts, model.device)
    model.generate(
        input_ids=tokens,
        attention_mask=mask.long(),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=group_size,
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def case(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, list[str], int]:
    """A model, its tokenizer, the prompts of eight rollouts each, and the longest answer."""
    if name == "tiny":
        problems = Countdown().problems("train", 32)
        return *load_model("countdown-tiny"), [p.prompt for p in problems], 20
    prompts = [ALPHABET[i : i + 10 + 2 * i] for i in range(8)]
    return *untrained(SHAPES["10M"], 192), prompts, 128


def seconds(side: str, name: str, repeats: int, threads: int) -> dict[str, float]:
    """The best time of one side, and what was asked of it."""
    torch.set_num_threads(threads)
    model, tokenizer, prompts, max_new_tokens = case(name)
    shape = (len(prompts) * GROUP_SIZE, max_new_tokens)
    works: dict[str, Callable[[int], object]] = {
        "sample": lambda i: sample(model, tokenizer, prompts, uniforms(shape, i, "benchmark")),
        "generate": lambda i: generate(model, tokenizer, prompts, GROUP_SIZE, max_new_tokens, i),
    }
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "rollouts": shape[0],
        f"{side}_s": best(works[side], repeats),
    }


def compare(name: str, rounds: int, repeats: int, threads: int) -> dict[str, float]:
    """Both sides by turns, each round in new processes."""
    row: dict[str, float] = {}
    for _ in range(rounds):
        for side in ("sample", "generate"):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                found = pool.submit(seconds, side, name, repeats, threads).result()
            key = f"{side}_s"
            row |= found | {key: min(row.get(key, found[key]), found[key])}
    row["rollouts_per_s"] = row["rollouts"] / row["sample_s"]
    row["speedup_vs_generate"] = row["generate_s"] / row["sample_s"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    results = {
        name: compare(name, asked.rounds, asked.repeats, asked.threads) for name in ("tiny", "10M")
    }
    if asked.json:
        print(json.dumps(results))
        return
    for name, row in results.items():
        print(
            f"{name:5} {row['rollouts']:.0f} rollouts: {row['sample_s']:.4f} s, model.generate "
            f"{row['generate_s']:.4f} s: {row['speedup_vs_generate']:.2f} times"
        )


if __name__ == "__main__":
    main()
