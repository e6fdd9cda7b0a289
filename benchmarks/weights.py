"""Milliseconds to weigh a batch, validation included; medians of one run.

    python benchmarks/weights.py [--repeats 15] [--verl-wheel FILE] [--json]

A million rollouts in 125,000 groups of 8 with FADE, by matrix and by shuffled ids; and 1024 groups
of 16 against verl's ``grpo``, called with one token a response. verl is not installed here: give a
wheel (``pip download --no-deps verl==0.9.1``) and the function is taken from it; without one, the
same loop over rollouts and prompts is written out below. Nothing else should run on the machine.
"""

import argparse
import ast
import json
import statistics
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

from gradmass.weights import WEIGHTS
from gradmass.weights.groups import as_integers

TARGETS = {
    "fade by matrix, ms": "below 40",
    "fade by shuffled integer ids, ms": "below 200",
    "string ids to integers, times one dict pass": "below 1.3",
    "grpo_std by matrix, times faster than verl": "above 100",
}


def median_ms(call: Callable[[], object], repeats: int) -> float:
    call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def dict_pass(keys: list[Hashable]) -> dict[Hashable, int]:
    numbers: dict[Hashable, int] = {}
    for key in keys:
        numbers.setdefault(key, len(numbers))
    return numbers


def loop_over_prompts(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loop of verl's ``grpo``: scalars by prompt, their mean and standard deviation."""
    scores = token_level_rewards.sum(dim=-1)
    by_prompt = defaultdict(list)
    for score, prompt in zip(scores, index, strict=True):
        by_prompt[prompt].append(score)
    mean, std = {}, {}
    for prompt, group in by_prompt.items():
        stacked = torch.stack(group)
        mean[prompt], std[prompt] = torch.mean(stacked), torch.std(stacked)
    for i in range(len(scores)):
        scores[i] = (scores[i] - mean[index[i]]) / (std[index[i]] + 1e-6)
    weights = scores.unsqueeze(-1) * response_mask
    return weights, weights


def of_wheel(wheel: str) -> Callable[..., Any]:
    """verl's ``compute_grpo_outcome_advantage``, compiled from the source in its wheel."""
    source = zipfile.ZipFile(wheel).read("verl/trainer/ppo/core_algos.py").decode()
    name = "compute_grpo_outcome_advantage"
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    (function,) = (node for node in functions if node.name == name)
    # Without the decorator that registers it and the annotations, which need the rest of verl.
    function.decorator_list, function.returns = [], None
    for argument in function.args.args:
        argument.annotation = None
    names = {"torch": torch, "np": np, "defaultdict": defaultdict}
    exec(compile(ast.Module([function], []), wheel, "exec"), names)
    found: Callable[..., Any] = names[name]
    return found


def measure_million(repeats: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    num_prompts, group_size = 125_000, 8
    rewards_PG = (rng.random((num_prompts, group_size)) < rng.random((num_prompts, 1))) * 1.0
    fade = WEIGHTS["fade"](target_entropy=0.5)
    state = fade.init()
    order_B = rng.permutation(rewards_PG.size)
    ids_B = np.repeat(np.arange(num_prompts), group_size)[order_B]
    rewards_B = rewards_PG.reshape(-1)[order_B]
    names = [f"prompt-{number}" for number in ids_B.tolist()]

    def weigh(ids: Any) -> object:
        return fade.weigh(rewards_B, ids, state, entropy_nats=0.6)

    copy = median_ms(rewards_PG.copy, repeats)
    matrix = median_ms(lambda: fade.update(rewards_PG, state, entropy_nats=0.6), repeats)
    return {
        "fade by matrix, ms": matrix,
        "one memory copy of the rewards, ms": copy,
        "fade by matrix, times one memory copy": matrix / copy,
        "fade by shuffled integer ids, ms": median_ms(lambda: weigh(ids_B), repeats),
        "fade by shuffled string ids, ms": median_ms(lambda: weigh(names), repeats),
        "string ids to integers, times one dict pass": median_ms(
            lambda: as_integers(names), repeats
        )
        / median_ms(lambda: dict_pass(names), repeats),
    }


def measure_verl(repeats: int, verl_grpo: Callable[..., Any]) -> dict[str, float]:
    rng = np.random.default_rng(1)
    num_prompts, group_size = 1024, 16
    rewards_PG = (rng.random((num_prompts, group_size)) < rng.random((num_prompts, 1))) * 1.0
    rewards_B1 = torch.tensor(rewards_PG, dtype=torch.float32).reshape(-1, 1)
    mask_B1 = torch.ones_like(rewards_B1)
    names_B = np.array([f"prompt-{i}" for i in range(num_prompts)], dtype=object).repeat(group_size)
    grpo_std = WEIGHTS["grpo_std"]()
    by_matrix_PG, _ = grpo_std.update(rewards_B1.reshape(num_prompts, group_size), {})
    of_verl_B1, _ = verl_grpo(rewards_B1, mask_B1, names_B)
    torch.testing.assert_close(by_matrix_PG.reshape(-1, 1), of_verl_B1, rtol=1e-5, atol=1e-5)

    slow = median_ms(lambda: verl_grpo(rewards_B1, mask_B1, names_B), max(3, repeats // 5))
    matrix = median_ms(lambda: grpo_std.update(rewards_PG, {}), repeats)
    by_ids = median_ms(lambda: grpo_std.weigh(rewards_B1[:, 0], names_B), repeats)
    return {
        "verl, ms": slow,
        "grpo_std by matrix, ms": matrix,
        "grpo_std by string ids on torch, ms": by_ids,
        "grpo_std by matrix, times faster than verl": slow / matrix,
        "grpo_std by string ids, times faster than verl": slow / by_ids,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--verl-wheel")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    verl_grpo = of_wheel(arguments.verl_wheel) if arguments.verl_wheel else loop_over_prompts
    results = measure_million(arguments.repeats) | measure_verl(arguments.repeats, verl_grpo)
    if arguments.json:
        print(json.dumps(results))
        return
    print("1,000,000 rollouts in groups of 8; 16,384 in groups of 16")
    print(f"verl: {arguments.verl_wheel or 'its loop, written out in this file'}")
    for name, value in results.items():
        target = f"  ({TARGETS[name]})" if name in TARGETS else ""
        print(f"  {name:48} {value:10.3f}{target}")


if __name__ == "__main__":
    main()
