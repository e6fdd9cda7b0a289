"""What a weight costs in TRL on a GPU: 30 steps plain, in shadow mode and with FADE.

    python benchmarks/gpu_trl.py [--steps 30] [--json]

A Qwen2 of 0.1B parameters in bf16 with random weights, 64 prompts x 8 rollouts of up to 256 tokens;
a rollout is right by a hash of its text, for three in ten, so that groups are mixed. Prints the
median step of each, their ratios (an overhead below 1% is wanted) and the peak of GPU memory. The
three take turns, ten steps at a time. Without a GPU the same code runs on a model of 0.1M
parameters, and the numbers say nothing about a GPU.
"""

import argparse
import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from gradmass.config import TinyModelConfig
from gradmass.engines.trl import WeightedGRPOTrainer
from gradmass.engines.trl_recipe import without_chatter
from gradmass.tasks.countdown import Countdown
from gradmass.training.model import character_tokenizer, tiny_model
from gradmass.weights.fade import Fade

ROUNDS = 3
ON_GPU = torch.cuda.is_available()
SHAPE = TinyModelConfig(
    hidden_size=768 if ON_GPU else 64,
    num_layers=12 if ON_GPU else 2,
    num_heads=12 if ON_GPU else 4,
    intermediate_size=3072 if ON_GPU else 128,
    max_positions=512,
)
PROMPTS, GROUP_SIZE = (64, 8) if ON_GPU else (8, 4)
MAX_NEW_TOKENS = 256 if ON_GPU else 16
KINDS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "shadow": {"weight": Fade(entropy_form="relative"), "mode": "shadow"},
    "fade": {"weight": Fade(entropy_form="relative")},
}


def hashed(completions: Sequence[str], **columns: Any) -> list[float]:
    """1 for three texts in ten, 0 for the others."""
    return [float(hashlib.sha256(text.encode()).digest()[0] < 77) for text in completions]


class Clock(TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if ON_GPU:
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())


def steps_of(kind: str, num_steps: int) -> tuple[list[float], int]:
    """Seconds of each step but the first, and the peak of GPU memory in bytes."""
    task = Countdown()
    tokenizer = character_tokenizer(task.alphabet)
    model = tiny_model(SHAPE, tokenizer, seed=0)
    rows = [{"prompt": problem.prompt} for problem in task.problems("train", 2000)]
    made, clock = KINDS[kind], Clock()
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder, without_chatter():
        trainer = (GRPOTrainer if made is None else WeightedGRPOTrainer)(
            model=model.to(torch.bfloat16) if ON_GPU else model,
            processing_class=tokenizer,
            reward_funcs=hashed,
            args=GRPOConfig(
                output_dir=str(Path(folder)),
                max_steps=num_steps + 1,
                per_device_train_batch_size=PROMPTS * GROUP_SIZE,
                num_generations=GROUP_SIZE,
                max_completion_length=MAX_NEW_TOKENS,
                loss_type="dr_grpo",
                scale_rewards="none",
                temperature=1.0,
                top_k=0,
                bf16=ON_GPU,
                use_cpu=not ON_GPU,
                gradient_checkpointing=False,
                save_strategy="no",
                logging_steps=1,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(rows),
            **(made or {}),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(clock)
        trainer.train()
    peak = torch.cuda.max_memory_allocated() if ON_GPU else 0
    return [after - before for before, after in pairwise(clock.times)], peak


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30, help="of each kind")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    peaks = dict.fromkeys(KINDS, 0)
    for _ in range(ROUNDS):
        for kind in KINDS:
            found, peak = steps_of(kind, -(-arguments.steps // ROUNDS))
            seconds[kind] += found
            peaks[kind] = max(peaks[kind], peak)
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    results = {
        "device": torch.cuda.get_device_name() if ON_GPU else "cpu (no GPU here)",
        "step_s": medians,
        "over plain": {kind: value / medians["plain"] for kind, value in medians.items()},
        "peak_bytes": peaks,
    }
    if arguments.json:
        print(json.dumps(results))
        return
    print(
        f"{results['device']}: {PROMPTS} prompts x {GROUP_SIZE} rollouts, {MAX_NEW_TOKENS} tokens"
    )
    for kind, value in medians.items():
        print(
            f"  {kind:8} {1e3 * value:9.1f} ms a step, {value / medians['plain']:.3f} times plain, "
            f"peak {peaks[kind] / 2**30:.2f} GiB"
        )


if __name__ == "__main__":
    main()
