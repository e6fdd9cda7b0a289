"""Milliseconds that weighing adds to a step of verl: 1024 prompts x 16 rollouts, on a CPU.

    .venv-verl/bin/python benchmarks/hook_verl.py [--repeats 3] [--tokens 32] [--json]

Twice: estimators by themselves, through verl's own ``compute_advantage``, beside verl's; and verl's
new trainer, whose advantages go through Ray and TransferQueue: plain, with FADE, and in its shadow.
Told apart are the weighing, one number a rollout; the verdicts, taken out of a table a rollout;
what is done to every token; and the queue's own time to hand over what it is asked for. Medians
of one run. Nothing else should run on the machine, on whose cores Ray's processes run too.
"""

import argparse
import json
import os
import random
import statistics
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from gradmass.engines.upstream import package_folder

GROUP_SIZE = 16
ESTIMATORS = ("grpo", "grpo_vectorized", "gradmass_grpo_std", "gradmass_maxrl")
SHADOW = ("+algorithm.gradmass.mode=shadow", "+algorithm.gradmass.weight=fade")
TRAINERS = {
    "verl's own, grpo": ("sync", "grpo"),
    "fade": ("gradmass_sync", "gradmass_fade"),
    "grpo, fade in its shadow": ("gradmass_sync", "grpo", *SHADOW),
}
WEIGHING = "weighing"
VERDICTS = "verdicts out of what was read"
TOKENS = "on every token"
READING = "reading the queue"
Part = tuple[Any, str, str]
"""An object, the name of a function of it, and what its calls are charged to."""


def medians_ms(call: Callable[[], object], repeats: int, *parts: Part) -> dict[str, float]:
    """Of a call, under "": all of it; under each label what it spends in parts of it.

    A part that another one calls is charged to its own label alone.
    """
    spent: list[dict[str, float]] = []
    within: list[float] = []

    def timed(own: Callable[..., Any], label: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            within.append(0.0)
            try:
                return own(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - start
                spent[-1][label] = spent[-1].get(label, 0.0) + seconds - within.pop()
                if within:
                    within[-1] += seconds

        return function

    with ExitStack() as stack:
        for owner, name, label in parts:
            stack.enter_context(patch.object(owner, name, timed(getattr(owner, name), label)))
        seconds = []
        for _ in range(1 + repeats):
            spent.append({})
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    found = {label: statistics.median(row[label] for row in spent[1:]) for label in spent[-1]}
    return {
        label: 1e3 * value for label, value in {"": statistics.median(seconds[1:]), **found}.items()
    }


def composed(*overrides: str) -> Any:
    """A run's configuration as verl composes it."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


class Rollouts:
    """Names, rewards and lengths of a batch, in an order of its own as after verl's balancing."""

    def __init__(self, num_prompts: int, tokens: int) -> None:
        draw = random.Random(0)
        rates = [draw.random() for _ in range(num_prompts)]
        uids = [str(uuid.uuid4()) for _ in range(num_prompts)]
        cells = [(p, g) for p in range(num_prompts) for g in range(GROUP_SIZE)]
        draw.shuffle(cells)
        # Each uid an object of its own, as the queue returns them.
        self.uids = ["".join(list(uids[p])) for p, _ in cells]
        self.keys = [f"{uids[p]}_{session}_0" for p, session in cells]
        self.rewards = [float(draw.random() < rates[p]) for p, _ in cells]
        self.lengths = [draw.randint(tokens // 2, tokens) for _ in cells]

    def padded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Rewards on the last tokens, and the mask; ``[B, T]``."""
        lengths_B = torch.tensor(self.lengths)
        mask_BT = (torch.arange(max(self.lengths)) < lengths_B[:, None]).long()
        rewards_BT = torch.zeros(mask_BT.shape)
        rewards_BT[torch.arange(len(self.keys)), lengths_B - 1] = torch.tensor(self.rewards)
        return rewards_BT, mask_BT

    def put(self) -> Any:
        """Into the queue, as verl's agent loop does."""
        import transfer_queue as tq
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        tags = [{"status": "success", "min_global_steps": 0} for _ in self.keys]
        for first in range(0, len(self.keys), 1024):
            part = slice(first, first + 1024)
            rows = []
            for uid, reward, length in zip(
                self.uids[part], self.rewards[part], self.lengths[part], strict=True
            ):
                scores = torch.zeros(length)
                scores[-1] = reward
                row = {"uid": uid, "rm_scores": scores, "old_log_probs": torch.zeros(length)}
                row["response_mask"] = torch.ones(length, dtype=torch.int64)
                result = {"acc": reward, "verdict": "right" if reward else "wrong"}
                rows.append(row | {"extra_fields": {"reward_extra_info": result}})
            fields = list_of_dict_to_tensordict(rows)
            tq.kv_batch_put(
                keys=self.keys[part], fields=fields, tags=tags[part], partition_id="train"
            )
        return tq.KVBatchMeta(partition_id="train", keys=self.keys, tags=tags)


def of_estimators(rollouts: Rollouts, repeats: int) -> dict[str, float]:
    """Through verl's ``compute_advantage``, without a trainer."""
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    from gradmass.engines.verl_estimators import Estimator, Step

    rewards_BT, mask_BT = rollouts.padded()
    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards_BT, "response_mask": mask_BT},
        non_tensors={"uid": np.array(rollouts.uids, dtype=object)},
    )
    results = {}
    for name in ESTIMATORS:
        config = composed(f"algorithm.adv_estimator={name}").algorithm

        def call(name: str = name, config: Any = config) -> None:
            compute_advantage(data, name, config=config)

        parts = ((Step, "weigh", WEIGHING), (Estimator, "__call__", TOKENS))
        found = medians_ms(call, repeats, *parts)
        results |= {f"{name}{label and ': '}{label}": value for label, value in found.items()}
    return results


def of_trainers(rollouts: Rollouts, repeats: int) -> dict[str, float]:
    """``_compute_advantage`` and the watch before the update, through the queue."""
    import ray
    import transfer_queue as tq
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.utils.tensordict_utils import get_tensordict

    from gradmass.engines import verl_queue, verl_trainer
    from gradmass.engines.verl_estimators import Estimator, Step

    class Workers:
        def update_actor(self, batch: Any) -> Any:
            return get_tensordict({}, {"metrics": {"mfu": [0.0]}})

    parts = (
        (Step, "weigh", WEIGHING),
        (verl_trainer.WeightMixin, "_gradmass_signals", WEIGHING),
        (verl_trainer, "results_of", VERDICTS),
        (Estimator, "__call__", TOKENS),
        (verl_trainer, "look", TOKENS),
        (verl_trainer.WeightMixin, "_gradmass_watch", TOKENS),
        (verl_queue, "columns", READING),
        (verl_trainer, "columns", READING),
    )
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    config = composed("transfer_queue.backend.SimpleStorage.num_data_storage_units=2")
    config.transfer_queue.enable = True
    tq.init(config.transfer_queue)
    batch, results = rollouts.put(), {}
    for title, (mode, estimator, *more) in TRAINERS.items():
        overrides = (f"trainer.v1.trainer_mode={mode}", f"algorithm.adv_estimator={estimator}")
        size = (f"actor_rollout_ref.rollout.n={GROUP_SIZE}", "actor_rollout_ref.rollout.name=vllm")
        trainer: Any = get_trainer_cls(mode)(composed(*overrides, *size, *more))
        trainer.global_steps, trainer.total_training_steps = 1, 10
        trainer.distillation_config, trainer.actor_rollout_wg = None, Workers()

        def call(trainer: Any = trainer) -> None:
            trainer._compute_advantage(batch, {"actor/entropy": 0.5})
            trainer._update_actor(batch, {})

        found = medians_ms(call, repeats, *parts)
        results |= {f"{title}{label and ': '}{label}": value for label, value in found.items()}
    tq.close()
    ray.shutdown()
    return results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32, help="of the longest answers")
    parser.add_argument("--prompts", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if package_folder("verl") is None:
        print("benchmarks/hook_verl.py needs verl, which has an environment of its own")
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    rollouts = Rollouts(arguments.prompts, arguments.tokens)
    results = {
        "compute_advantage": of_estimators(rollouts, 3 * arguments.repeats),
        "the new trainer": of_trainers(rollouts, arguments.repeats),
    }
    if arguments.json:
        print(json.dumps(results))
        return
    print(f"{arguments.prompts} prompts x {GROUP_SIZE} rollouts, {arguments.tokens} tokens, ms")
    for title, rows in results.items():
        print(title)
        for name, value in rows.items():
            target = "  (below 2)" if name.endswith(WEIGHING) else ""
            print(f"  {name:48} {value:9.2f}{target}")


if __name__ == "__main__":
    main()
