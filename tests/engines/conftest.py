"""TRL trainers on the shipped policy whose rewards a test writes itself."""

import copy

import pytest

from gradmass.weights import WEIGHTS

COLUMNS = "prompt"


class Scripted:
    """A reward function of TRL that gives the rewards it was given, whatever is answered."""

    def __init__(self, rewards, name="scripted"):
        self.rewards, self.__name__ = rewards, name

    def __call__(self, completions, **_):
        return list(self.rewards)


@pytest.fixture
def scripted():
    return Scripted


@pytest.fixture
def make(tmp_path, shipped):
    """Make a trainer: TRL's own without a weight, else ours."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from gradmass.engines.trl import WeightedGRPOTrainer, make_trainer

    def build(rewards, size, weight=None, base=None, config=None, **ours):
        funcs = rewards if callable(rewards) or callable(rewards[0]) else Scripted(rewards)
        num_rows = len(rewards) if not callable(rewards) and not callable(rewards[0]) else size
        args = {
            "output_dir": str(tmp_path / "run"),
            "per_device_train_batch_size": num_rows,
            "per_device_eval_batch_size": num_rows,
            "num_generations": size,
            "max_completion_length": 3,
            "max_steps": 10,
            "loss_type": "dr_grpo",
            "top_k": 0,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "disable_tqdm": True,
            "learning_rate": 1e-3,
            **(config or {}),
        }
        model, tokenizer = shipped
        rows = [{"prompt": f"{i}+{i + 1}=2"} for i in range(1, 65)]
        cls = GRPOTrainer if base is None else base
        if weight is not None:
            cls = WeightedGRPOTrainer if base is None else make_trainer(base)
            ours["weight"] = WEIGHTS[weight]() if isinstance(weight, str) else weight
        return cls(
            model=copy.deepcopy(model),
            processing_class=tokenizer,
            reward_funcs=funcs,
            args=GRPOConfig(**args),
            train_dataset=Dataset.from_list(rows),
            eval_dataset=Dataset.from_list(rows[:2]),
            **ours,
        )

    return build


@pytest.fixture
def score():
    """Have a trainer draw and score a batch, groups in consecutive rows."""
    import torch

    def run(trainer, num_rows, size, is_training=True):
        trainer.model.train(is_training)
        inputs = [dict(trainer.train_dataset[i // size]) for i in range(num_rows)]
        torch.manual_seed(0)
        return trainer._generate_and_score_completions(inputs)

    return run
