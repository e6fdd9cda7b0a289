"""The paper's 7B setting in TRL: Qwen2.5-7B after a supervised start, programs, FADE.

    pip install 'gradmass[trl,tasks]' vllm
    accelerate launch --config_file fsdp.yaml examples/paper_7b.py SFT_CHECKPOINT CONTESTS_FOLDER

From the paper (arXiv 2607.01490): the model, one supervised checkpoint to start from, problems of
programming contests (CodeContests, TACO) in a fixed order, cycled, binary rewards by unit tests,
temperature 1, 20,000 updates, and FADE with H* = 1. Not published, and so ours: rollouts of a
problem, problems of a step, learning rate, length. Not run by the authors: eight GPUs of 80 GB are
needed, one of them for vLLM.
"""

import sys

from datasets import Dataset
from trl import GRPOConfig

from gradmass.engines.trl import WeightedGRPOTrainer
from gradmass.engines.trl_task import TaskReward, task_rows
from gradmass.tables import from_tables
from gradmass.tasks import Task
from gradmass.training.generate import chat_renderer
from gradmass.training.model import load_model
from gradmass.weights.fade import Fade

NUM_PROBLEMS = 25_000


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/paper_7b.py SFT_CHECKPOINT CONTESTS_FOLDER")
    checkpoint, folder = sys.argv[1:]
    task = from_tables(Task, {"type": "code_contests", "path": folder}, "the command line")
    problems = task.problems(task.splits[0], NUM_PROBLEMS)
    model, tokenizer = load_model(checkpoint)
    render = chat_renderer(tokenizer, checkpoint)
    rows = [{**row, "prompt": render(row["prompt"])} for row in task_rows(problems)]
    config = GRPOConfig(
        output_dir="runs/paper-7b",
        max_steps=20_000,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=8,
        num_generations=8,  # ours
        max_completion_length=8192,  # ours
        learning_rate=1e-6,  # ours
        lr_scheduler_type="constant",
        loss_type="dr_grpo",  # divides by a constant: the masses are what the weight says
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        shuffle_dataset=False,  # fixed order, cycled
        use_vllm=True,
        bf16=True,
        save_steps=200,
        logging_steps=1,
    )
    trainer = WeightedGRPOTrainer(
        weight=Fade(target_entropy=1.0),
        model=model,
        processing_class=tokenizer,
        reward_funcs=TaskReward(task, problems, tokenizer),
        args=config,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()
