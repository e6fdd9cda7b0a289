"""Rollouts per second: this package's sampler and ``model.generate`` of transformers, in turn.

    python benchmarks/sampler.py [--repeats 5] [--threads 2] [--json]

256 rollouts of the demo's policy (32 problems x 8, at most 20 tokens), 64 of an untrained model of
10 million parameters (8 x 8, at most 128 tokens, ragged: one ends with probability 1/64 a token).
The best of the repeats counts on both sides. Nothing else should run on the machine.
"""

import argparse
import json
import string
import time
from collections.abc import Callable, Sequence

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


def compare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    group_size: int,
    max_new_tokens: int,
    repeats: int,
) -> dict[str, float]:
    num_rollouts = len(prompts) * group_size
    shape = (num_rollouts, max_new_tokens)
    ours = best(
        lambda i: sample(model, tokenizer, prompts, uniforms(shape, i, "benchmark")), repeats
    )
    theirs = best(
        lambda i: generate(model, tokenizer, prompts, group_size, max_new_tokens, i), repeats
    )
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "rollouts": num_rollouts,
        "sample_s": ours,
        "generate_s": theirs,
        "rollouts_per_s": num_rollouts / ours,
        "speedup_vs_generate": theirs / ours,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    problems = Countdown().problems("train", 32)
    tiny = compare(
        *load_model("countdown-tiny"), [p.prompt for p in problems], 8, 20, arguments.repeats
    )
    prompts = [ALPHABET[i : i + 10 + 2 * i] for i in range(8)]
    large = compare(*untrained(SHAPES["10M"], 192), prompts, 8, 128, arguments.repeats)
    results = {"tiny": tiny, "10M": large}
    if arguments.json:
        print(json.dumps(results))
        return
    for name, row in results.items():
        print(
            f"{name:5} {row['rollouts']} rollouts: {row['sample_s']:.3f} s, model.generate "
            f"{row['generate_s']:.3f} s: {row['speedup_vs_generate']:.2f} times"
        )


if __name__ == "__main__":
    main()
