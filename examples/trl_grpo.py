"""GRPO in TRL with a policy weight: Countdown, a tiny Qwen2, a CPU.

    pip install 'gradmass[trl]'
    python examples/trl_grpo.py --weight fade --steps 30
    python examples/trl_grpo.py --weight fade maxrl --mode shadow      # TRL's own GRPO, measured
    torchrun --nproc_per_node 2 examples/trl_grpo.py                   # the same batch on two
    python examples/trl_grpo.py --resume                               # from the last checkpoint

In a run you already have, the one line is ``WeightedGRPOTrainer(weight=Fade(), ...)`` in the place
of ``GRPOTrainer(...)``; all of what follows is what TRL wants of any run.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig

from gradmass.engines.trl import WeightedGRPOTrainer
from gradmass.engines.trl_task import TaskReward, task_rows
from gradmass.tables import from_spec
from gradmass.tasks.countdown import Countdown
from gradmass.training.model import load_model
from gradmass.weights import Weight


def arguments() -> argparse.ArgumentParser:
    """What can be asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--weight", nargs="+", default=["fade:entropy_form=relative"])
    parser.add_argument("--mode", choices=("weight", "shadow"), default="weight")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save-steps", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/trl"))
    parser.add_argument("--resume", action="store_true")
    return parser


def make(asked: argparse.Namespace) -> WeightedGRPOTrainer:
    """The trainer, before its first step."""
    torch.set_num_threads(1)
    num_processes = int(os.environ.get("WORLD_SIZE", "1"))
    task = Countdown()
    problems = task.problems("train", 2000)
    model, tokenizer = load_model("countdown-tiny")
    # The recipe of the demo: 32 prompts x 8 rollouts a step, AdamW at a constant 2e-4, and a loss
    # divided by a constant, which keeps the gradient masses what the weight says.
    config = GRPOConfig(
        output_dir=str(asked.out),
        max_steps=asked.steps,
        per_device_train_batch_size=128 // num_processes,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=20,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        loss_type="dr_grpo",
        temperature=1.0,
        top_k=0,
        save_steps=asked.save_steps,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    weights = [from_spec(Weight, spec) for spec in asked.weight]
    return WeightedGRPOTrainer(
        weight=weights[0] if asked.mode == "weight" else weights,
        mode=asked.mode,
        model=model,
        processing_class=tokenizer,
        reward_funcs=TaskReward(task, problems, tokenizer),
        args=config,
        train_dataset=Dataset.from_list(task_rows(problems)),
    )


def main() -> None:
    asked = arguments().parse_args()
    trainer = make(asked)
    trainer.train(resume_from_checkpoint=asked.resume)
    if trainer.accelerator.is_main_process:
        (asked.out / "log.json").write_text(json.dumps(trainer.state.log_history, indent=1))


if __name__ == "__main__":
    main()
