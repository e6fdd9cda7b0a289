"""On one CUDA GPU, in under ten minutes: how fast, how much memory, and the diagnostics of a step.

    python benchmarks/gpu.py [--json]

A model of 0.1 billion parameters, made from nothing, sees solved Countdown problems; in bfloat16
64 x 8 rollouts of 256 tokens are then sampled and trained on, every token of every one: tokens a
second, the share of the rate of large matrices measured on the same device, peak memory. Then one
update on Countdown shows the quantities of the diagnostics: E[|g|^2] by verdict, rho_perp and the
signal-to-noise ratio of the batch.

Without a GPU it says so and does the same with a small model on the CPU, to show that it runs:
those numbers say nothing of a GPU.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from gradmass.config import Recipe, SftRecipe
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.tasks.countdown import Countdown
from gradmass.training.masters import make_optimizer
from gradmass.training.passes import passes
from gradmass.training.policy import device, load_policy
from gradmass.training.rollout import answer_logprobs, sample, uniforms
from gradmass.training.sft import supervise
from gradmass.training.train import train

SHOWN = (
    "rollout/solve_rate",
    "gradient/right_square",
    "gradient/wrong_square",
    "states/rho_perp_right",
    "states/rho_perp_wrong",
    "signal/snr",
)
HAS_GPU = torch.cuda.is_available()
SIZE = (
    {"hidden_size": 768, "num_layers": 14, "num_heads": 12, "intermediate_size": 2048}
    if HAS_GPU
    else {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "intermediate_size": 256}
)
NUM_PROMPTS, GROUP, NUM_NEW = (64, 8, 256) if HAS_GPU else (8, 4, 32)
SFT_STEPS, MATRIX = (400, 8192) if HAS_GPU else (20, 1024)
DTYPE = "bfloat16" if HAS_GPU else "float32"


def synchronize() -> None:
    if HAS_GPU:
        torch.cuda.synchronize()


def seconds(work: object) -> float:
    synchronize()
    started = time.perf_counter()
    work()  # type: ignore[operator]
    synchronize()
    return time.perf_counter() - started


def matrix_rate() -> float:
    """Operations a second of a large matrix product."""
    dtype = torch.bfloat16 if HAS_GPU else torch.float32
    a = torch.randn(MATRIX, MATRIX, device=device(), dtype=dtype)
    seconds(lambda: a @ a)
    return 2.0 * MATRIX**3 / min(seconds(lambda: a @ a) for _ in range(5))


def start(folder: Path) -> None:
    """A model that has seen solved Countdown problems."""
    flags = [f"--model.{key}={value}" for key, value in SIZE.items()]
    flags += [f"--train.steps={SFT_STEPS}", "--train.num_eval_problems=0", "--train.lr=3e-4"]
    flags += ["--train.batch_size=256", f"--model.max_positions={NUM_NEW + 32}"]
    supervise(load_recipe(SftRecipe, None, flags), folder, lambda row: None)


def speed(recipe: Recipe) -> dict[str, float]:
    """Tokens a second of sampling and of an update on all of them."""
    policy, tokenizer, _ = load_policy(recipe.model, recipe.lora, recipe.seed)
    prompts = [p.prompt for p in Countdown().problems("train", NUM_PROMPTS)]
    # An end token that no hidden state can favour, so that every answer has every token.
    with torch.no_grad():
        policy.lm_head.weight.zero_()
    draws_BT = 0.5 + 0.5 * uniforms((NUM_PROMPTS * GROUP, NUM_NEW), 0, "gpu")
    sample(policy, tokenizer, prompts, draws_BT[:, :4])
    found = []
    sampling_s = seconds(lambda: found.append(sample(policy, tokenizer, prompts, draws_BT)))
    rollouts, optimizer = found[0], make_optimizer(recipe.optim, policy)
    rows = torch.arange(len(draws_BT), device=policy.device)

    def update() -> None:
        for part, chosen in passes(rollouts, rows, recipe.train.tokens_at_once):
            every = torch.arange(len(chosen), device=policy.device)
            answer_logprobs(policy, part, every).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    update()
    update_s = seconds(update)
    embedding = policy.get_input_embeddings().weight
    size = sum(p.numel() for p in policy.parameters() if p.ndim == 2 and p is not embedding)
    num_new = int(rollouts.answer_mask_BT.sum())
    num_all = num_new + int(rollouts.prompt_mask_BT.sum())
    rate = matrix_rate()
    return {
        "parameters": sum(p.numel() for p in policy.parameters()),
        "sampling tokens/s": num_new / sampling_s,
        "training tokens/s": num_all / update_s,
        "matrix TFLOP/s": rate / 1e12,
        "sampling share of it": 2.0 * size * num_new / sampling_s / rate,
        "training share of it": 6.0 * size * num_all / update_s / rate,
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30 if HAS_GPU else float("nan"),
    }


def diagnostics(recipe: Recipe, folder: Path) -> dict[str, float | None]:
    """What one update shows."""
    writer = RunWriter.create(folder, {"label": "gpu", "recipe": to_tables(recipe)}, {})
    train(recipe, writer, lambda row: None)
    writer.close()
    last = Run(folder).metrics[-1]
    return {key: last.get(key) for key in SHOWN}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    name = torch.cuda.get_device_name() if HAS_GPU else "no CUDA GPU here"
    if not HAS_GPU:
        print(f"{name}: a small model on the CPU instead", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        start(Path(folder) / "start")
        flags = [f"--model.path={folder}/start", f"--model.dtype={DTYPE}", "--weight=grpo"]
        flags += ["--train.steps=1", f"--train.prompts_per_step={NUM_PROMPTS}", "--eval.every=0"]
        flags += ["--eval.num_problems=4", "--eval.num_samples=0", "--probe.every=1"]
        flags += ["--probe.rank_every=0", "--train.tokens_at_once=65536"]
        recipe = load_recipe(Recipe, None, flags)
        results = {
            "device": name,
            "start_s": time.perf_counter() - started,
            **speed(recipe),
            **diagnostics(recipe, Path(folder) / "run"),
        }
    if asked.json:
        print(json.dumps({k: None if v != v else v for k, v in results.items()}))
        return
    for key, value in results.items():
        print(f"{key:24} " + (f"{value:.5g}" if isinstance(value, float) else str(value)))


if __name__ == "__main__":
    main()
