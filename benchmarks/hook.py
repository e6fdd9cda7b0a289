"""Milliseconds that weighing adds to a step of TRL: 1024 prompts x 16 rollouts, on a CPU.

    python benchmarks/hook.py [--repeats 51] [--json]

Beside it TRL's own arithmetic for the same rewards, compiled from the lines of the installed
trainer. Then the recipe of the demo on TRL in shadow mode, with its own weight and with four: the
share of a step that is spent in the hooks themselves, and the step of which that is 0.1%. Medians
of one run. Nothing else should run on the machine.
"""

import argparse
import ast
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from gradmass.config import Recipe
from gradmass.engines.trl import make_trainer
from gradmass.engines.trl_checks import HOOKED, mixed_group
from gradmass.engines.trl_recipe import trl_config, without_chatter
from gradmass.engines.trl_task import TaskReward, task_rows
from gradmass.engines.upstream import find, package_folder
from gradmass.engines.weigher import Batch, Weigher
from gradmass.tables import load_recipe
from gradmass.training.model import load_model
from gradmass.weights import WEIGHTS
from gradmass.weights.groups import consecutive

NUM_PROMPTS, GROUP_SIZE = 1024, 16
OTHERS = ("grpo_std", "maxrl", "power")
SIGNALS = frozenset({"successes_PG", "entropy_nats"})
TARGETS = {
    "fade, weighed and measured": "below 2",
    "their share of it, percent": "below 0.1",
}


def median_ms(call: Callable[[], object], repeats: int) -> float:
    call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def of_trl() -> Callable[[torch.Tensor], torch.Tensor]:
    """The lines of TRL's trainer from the gathered rewards to the advantages."""
    folder = package_folder("trl")
    if folder is None:
        raise SystemExit("benchmarks/hook.py needs TRL: pip install 'gradmass[trl]'")
    node, _ = find(folder, "trainer/grpo_trainer.py:GRPOTrainer._generate_and_score_completions")
    assert isinstance(node, ast.FunctionDef)
    texts = [ast.unparse(statement) for statement in node.body]
    first = next(i for i, text in enumerate(texts) if text.startswith("unscorable_mask ="))
    last = next(i for i, text in enumerate(texts) if text.startswith("advantages = torch.nan_to"))
    code = compile("\n".join(texts[first : last + 1]), "grpo_trainer.py", "exec")
    from trl.trainer.utils import nanstd

    trainer = SimpleNamespace(
        multi_objective_aggregation="sum_then_normalize",
        scale_rewards="group",
        reward_weights=torch.ones(1),
    )

    def advantages(rewards_per_func: torch.Tensor) -> torch.Tensor:
        names: dict[str, Any] = {
            "torch": torch,
            "nanstd": nanstd,
            "self": trainer,
            "device": "cpu",
            "rewards_per_func": rewards_per_func,
            "num_generations": GROUP_SIZE,
        }
        exec(code, names)
        found: torch.Tensor = names["advantages"]
        return found

    return advantages


class Stack:
    """Seconds spent under each label, those of calls within excluded."""

    def __init__(self) -> None:
        self.seconds = {"hooks": 0.0, "TRL": 0.0}
        self._labels: list[str] = []
        self._since = 0.0

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._labels:
            self.seconds[self._labels[-1]] += now - self._since
        self._since = now

    def timed(self, cls: type, label: str) -> type:
        """A subclass whose hooked methods are charged to a label."""

        def wrap(name: str) -> Callable[..., Any]:
            def method(trainer: Any, *args: Any, **kwargs: Any) -> Any:
                self._charge()
                self._labels.append(label)
                try:
                    return getattr(super(made, trainer), name)(*args, **kwargs)
                finally:
                    self._charge()
                    self._labels.pop()

            return method

        methods = {name: wrap(name) for name in (*HOOKED, "_compute_loss")}
        made = type(cls.__name__, (cls,), methods)
        return made


def share_of_a_step(steps: int, *others: str) -> tuple[float, float]:
    """Milliseconds of a step of the demo's recipe on TRL, and of the hooks in it.

    Args:
        steps: Steps to take.
        others: Names of weights in the shadow beside the recipe's.
    """
    stack, recipe = Stack(), load_recipe(Recipe, "demo", ["--train.steps", str(steps)])
    task, seconds = recipe.task, []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append((time.perf_counter(), stack.seconds["hooks"]))

    problems = task.problems("train", recipe.train.num_problems)
    model, tokenizer = load_model(recipe.model.path)
    base = stack.timed(make_trainer(stack.timed(GRPOTrainer, "TRL")), "hooks")
    with tempfile.TemporaryDirectory() as folder, without_chatter():
        trainer: Any = base(
            weight=[recipe.weight, *(WEIGHTS[name]() for name in others)],
            mode="shadow",
            model=model.float(),
            processing_class=tokenizer,
            reward_funcs=TaskReward(task, problems, tokenizer),
            args=trl_config(recipe, Path(folder), 64),
            train_dataset=Dataset.from_list(task_rows(problems)),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Clock())
        trainer.train()
    pairs = list(pairwise(seconds))
    step_s, hooks_s = (statistics.median(b[i] - a[i] for a, b in pairs) for i in (0, 1))
    return 1e3 * step_s, 1e3 * hooks_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=51)
    parser.add_argument("--steps", type=int, default=12, help="of the demo's recipe on TRL")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    shape = (NUM_PROMPTS, GROUP_SIZE)
    rewards_B = ((rng.random(shape) < rng.random((NUM_PROMPTS, 1))) * 1.0).reshape(-1)
    rewards_BF = torch.tensor(rewards_B, dtype=torch.float32)[:, None]
    everyone = np.ones(len(rewards_B), dtype=bool)
    batch = Batch(
        rewards_B=rewards_B,
        layout=consecutive(len(rewards_B), GROUP_SIZE),
        successes_B=rewards_B == 1,
        mask_B=everyone,
        has_tokens_B=everyone,
        lengths_B=np.full(len(rewards_B), 100.0),
    )
    own = of_trl()
    same = Weigher([WEIGHTS["grpo_std"](eps=1e-4)], "weight", SIGNALS)
    found_B, _ = same.weigh(batch, is_training=True)
    expected_B = own(rewards_BF).double().numpy()
    np.testing.assert_allclose(found_B, expected_B, rtol=0, atol=1e-5)

    def weigh(name: str, mode: Any = "weight") -> float:
        weigher = Weigher([WEIGHTS[name]()], mode, SIGNALS)
        return median_ms(
            lambda: weigher.weigh(batch, is_training=True, entropy_nats=0.5), arguments.repeats
        )

    # As a sampler makes them: equal texts, each an object of its own.
    texts = [f"{i // GROUP_SIZE:05d}".join([" " * 1000] * 2) for i in range(len(rewards_B))]
    inputs = [{"prompt": text} for text in texts]
    results = {
        "TRL's own": median_ms(lambda: own(rewards_BF), arguments.repeats),
        "fade, weighed and measured": weigh("fade"),
        "prompts of a group compared": median_ms(
            lambda: mixed_group(inputs, GROUP_SIZE, 0), arguments.repeats
        ),
        "fade, in shadow mode": weigh("fade", "shadow"),
        "grpo_std, weighed and measured": weigh("grpo_std"),
    }
    torch.set_num_threads(2)
    step_ms, hooks_ms = share_of_a_step(arguments.steps)
    _, of_four_ms = share_of_a_step(arguments.steps, *OTHERS)
    results |= {
        "a step of the demo on TRL": step_ms,
        "the hooks in it, in shadow mode": hooks_ms,
        "their share of it, percent": 100 * hooks_ms / step_ms,
        "a step of which they are 0.1%": 1000 * hooks_ms,
        "the hooks with four weights": of_four_ms,
        "a step of which these are 0.1%": 1000 * of_four_ms,
    }
    if arguments.json:
        print(json.dumps(results))
        return
    print(f"{NUM_PROMPTS} prompts x {GROUP_SIZE} rollouts, ms a step")
    for name, value in results.items():
        target = f"  ({TARGETS[name]})" if name in TARGETS else ""
        print(f"  {name:34} {value:8.3f}{target}")


if __name__ == "__main__":
    main()
