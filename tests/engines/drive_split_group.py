"""One group of four over two processes, two rollouts each: what advantages does each get?

torchrun --nproc_per_node 2 drive_split_group.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch

from gradmass.training.model import load_model
from gradmass.weights import WEIGHTS


def main():
    from datasets import Dataset
    from trl import GRPOConfig

    from gradmass.engines.trl import WeightedGRPOTrainer

    folder = Path(sys.argv[1])
    model, tokenizer = load_model("countdown-tiny")

    def by_process(completions, **_):
        return [1, 0] if trainer.accelerator.process_index == 0 else [0, 0]

    args = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        num_generations=4,
        max_completion_length=3,
        max_steps=1,
        loss_type="dr_grpo",
        top_k=0,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
    )
    trainer = WeightedGRPOTrainer(
        weight=WEIGHTS["grpo"](),
        model=model,
        processing_class=tokenizer,
        reward_funcs=by_process,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "1+2=3"}]),
    )
    trainer.model.train()
    output = trainer._generate_and_score_completions([{"prompt": "1+2=3"}] * 2)
    rank = trainer.accelerator.process_index
    found = {"advantages": output["advantages"].tolist()}
    # And a process whose state went astray is found out at the next batch.
    if rank == 1:
        trainer._gradmass.states[0] = {"astray": 1}
    trainer._gradmass.weights[0].__class__._check_state = lambda self, state: None
    try:
        trainer._generate_and_score_completions([{"prompt": "1+2=3"}] * 2)
    except ValueError as error:
        found["error"] = str(error)
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
