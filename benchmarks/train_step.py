"""A training step by stage, against its floor and against TRL's GRPOTrainer, end to end.

    python benchmarks/train_step.py [--steps 40] [--threads 2] [--only tiny|10M] [--json]

Tiny: the demo's model and task, 32 problems x 8 rollouts, GRPO at the start of training, where half
the groups carry signal; and with a weight under which all of them do. 10M: an untrained model of 10
million parameters, 8 x 8 rollouts of at most 128 new tokens, ragged, with one word to guess. TRL
has the same model, task, batch, loss and optimiser.

The floor is what the multiply-adds of the step need at the rate measured on the model's own
matrices: those of sampling at the rows of a batch, those of training at the tokens of a pass,
forward and twice as many backward. Attention, normalisation and drawing are not in it.

Medians after a warm-up. Nothing else should run on the machine. JSON ends in "speedup_vs_trl".
"""

import argparse
import contextlib
import io
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sampler import ALPHABET, SHAPES, best, untrained
from transformers import PreTrainedModel, TrainerCallback

from gradmass.config import Recipe
from gradmass.record import Run, RunWriter
from gradmass.rewards import Outcome, Verdict
from gradmass.tables import load_recipe, to_tables
from gradmass.tasks import Problem, Task
from gradmass.training.model import load_model, save_model
from gradmass.training.train import train

STAGES = ("time/rollout_s", "time/verify_s", "time/weigh_s", "time/update_s", "time/step_s")
WARM_UP = 5


@dataclass(frozen=True, kw_only=True)
class Guess(Task):
    """Any answer with an even number of letters: half of the answers of an untrained model."""

    splits = ("train", "test")

    def generate(self, split: str) -> Iterator[Problem]:
        for i in range(10_000):
            start = i % 26
            yield Problem(f"{split}-{i}", ALPHABET[start : start + 10 + i % 20] + str(i), None)

    def verify(self, problem: Problem, completion: str) -> Verdict:
        return Verdict(Outcome.RIGHT if len(completion) % 2 == 0 else Outcome.WRONG, "")


def recipe_of(flags: list[str], steps: int, threads: int) -> Recipe:
    quick = ["--eval.every=0", "--eval.num_problems=1", "--eval.num_samples=1"]
    quick += ["--probe.every=0", "--probe.rank_every=0"]
    timing = [f"--train.steps={steps + WARM_UP}", f"--train.threads={threads}"]
    return load_recipe(Recipe, "demo", [*flags, *quick, *timing])


def ours(recipe: Recipe) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        config = {"label": recipe.weight.label, "recipe": to_tables(recipe)}
        writer = RunWriter.create(Path(folder) / "run", config, {})
        train(recipe, writer, lambda row: None)
        writer.close()
        rows = Run(Path(folder) / "run").metrics[1 + WARM_UP :]
    medians = {stage: statistics.median(row[stage] for row in rows) for stage in STAGES}
    medians["slowest step_s"] = max(row["time/step_s"] for row in rows)
    medians["rollouts trained on"] = statistics.median(row["loss/num_trained"] for row in rows)
    medians["tokens a rollout"] = statistics.median(row["rollout/length_mean"] for row in rows)
    return medians


def trl_step_s(recipe: Recipe, steps: int) -> float:
    """Median seconds of a step of TRL's GRPOTrainer from one step's end to the next."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from gradmass.engines.trl_task import TaskReward, task_rows

    ends: list[float] = []

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    config, model_and_tokenizer = recipe.train, load_model(recipe.model.path)
    problems = recipe.task.problems("train", config.num_problems)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = GRPOTrainer(
            model=model_and_tokenizer[0],
            processing_class=model_and_tokenizer[1],
            reward_funcs=TaskReward(recipe.task, problems, model_and_tokenizer[1]),
            train_dataset=Dataset.from_list(task_rows(problems)),
            callbacks=[Watch()],
            args=GRPOConfig(
                output_dir=folder,
                max_steps=steps + WARM_UP,
                per_device_train_batch_size=config.prompts_per_step * config.group_size,
                num_generations=config.group_size,
                max_completion_length=config.max_new_tokens,
                learning_rate=recipe.optim.lr,
                lr_scheduler_type="constant",
                loss_type="dr_grpo",
                scale_rewards=False,
                temperature=1.0,
                top_k=0,
                logging_steps=10**6,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
            ),
        )
        trainer.train()
    gaps = [after - before for before, after in itertools.pairwise(ends)]
    return statistics.median(gaps[WARM_UP - 1 :])


def rates(model: PreTrainedModel, num_rows: int) -> tuple[float, float]:
    """Operations a second of the model's own matrices for a number of rows, forward and backward.

    Backward is the gradient of the input and of the weight: twice the multiply-adds.
    """
    forward_s = backward_s = operations = 0.0
    for weight in (p.detach() for p in model.parameters() if p.ndim == 2):
        num_out, num_in = weight.shape
        if num_out == model.config.vocab_size and weight is model.get_input_embeddings().weight:
            continue  # an embedding is looked up
        x, y = torch.randn(num_rows, num_in), torch.randn(num_rows, num_out)
        forward_s += best(lambda _, x=x, w=weight: torch.nn.functional.linear(x, w), 5)
        backward_s += best(lambda _, x=x, y=y, w=weight: (y @ w, y.T @ x), 5)
        operations += 2.0 * num_rows * num_in * num_out
    return operations / forward_s, 2 * operations / backward_s


def floor_s(recipe: Recipe, measured: dict[str, float]) -> float:
    """Seconds that the multiply-adds of a step need."""
    model, tokenizer = load_model(recipe.model.path)
    embedding = model.get_input_embeddings().weight
    size = sum(p.numel() for p in model.parameters() if p.ndim == 2 and p is not embedding)
    config = recipe.train
    problems = recipe.task.problems("train", config.prompts_per_step)
    prompt = sum(len(tokenizer(p.prompt)["input_ids"]) for p in problems)
    num_rollouts = config.prompts_per_step * config.group_size
    answer = num_rollouts * measured["tokens a rollout"]
    share = measured["rollouts trained on"] / num_rollouts
    trained = share * (prompt * config.group_size + answer)
    sampling, _ = rates(model, num_rollouts)
    forward, backward = rates(model, max(1, min(int(trained), config.tokens_at_once)))
    return 2.0 * size * ((prompt + answer) / sampling + trained / forward + 2 * trained / backward)


def measure(name: str, flags: list[str], steps: int, threads: int) -> dict[str, float]:
    recipe = recipe_of(flags, steps, threads)
    print(f"{name}: {steps} steps", flush=True)
    row = ours(recipe)
    row["floor_s"] = floor_s(recipe, row)
    row["times the floor"] = row["time/step_s"] / row["floor_s"]
    print(f"{name}: TRL", flush=True)
    row["trl_step_s"] = trl_step_s(recipe, max(3, steps // 4))
    row["speedup_vs_trl"] = row["trl_step_s"] / row["time/step_s"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("tiny", "10M"))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    results: dict[str, dict[str, float]] = {}
    shown = io.StringIO() if asked.json else None
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(shown or sys.stdout):
        if asked.only != "10M":
            results["grpo"] = measure("grpo", ["--weight=grpo"], asked.steps, asked.threads)
            # REINFORCE with signed rewards has no zero weights: the full cost of 256 rollouts.
            every = recipe_of(
                ["--weight=reinforce", "--weight.signed=true"], asked.steps, asked.threads
            )
            results["every rollout trained on"] = ours(every)
        if asked.only != "tiny":
            save_model(*untrained(SHAPES["10M"], 192), Path(folder) / "model")
            flags = ["--weight=grpo", f"--model.path={folder}/model", f"--task={__file__}:Guess"]
            flags += ["--train.prompts_per_step=8", "--train.max_new_tokens=128"]
            results["10M"] = measure("10M", flags, max(3, asked.steps // 8), asked.threads)
    speedups = {k: v["speedup_vs_trl"] for k, v in results.items() if "speedup_vs_trl" in v}
    if asked.json:
        print(json.dumps({**results, "speedup_vs_trl": speedups}))
        return
    for name, medians in results.items():
        print(f"\n{name}, {asked.threads} threads")
        for stage, value in medians.items():
            print(f"  {stage.removeprefix('time/'):22} {value:10.4f}")


if __name__ == "__main__":
    main()
