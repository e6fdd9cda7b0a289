"""How many CPU threads are fastest, measured once on the work at hand."""

import time
from dataclasses import replace

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradmass.config import Recipe
from gradmass.training.policy import load_policy
from gradmass.training.rollout import answer_logprobs, sample, uniforms

MARGIN = 0.95
"""More threads have to need less than this share of the time of fewer: they are shared."""
REPEATS = 3


def resolve_threads(recipe: Recipe) -> Recipe:
    """The recipe with the number of threads that is fastest here, where it gives none.

    The recipe's own model samples a part of a batch and computes a gradient on it, with 1, 2, 4 and
    so on threads up to torch's own number; the best of three times counts. Results depend on the
    number in their last bits, so it is stored with the run, and a run that goes on or is repeated
    uses it again.
    """
    most = torch.get_num_threads()
    if recipe.train.threads:
        return recipe
    if most == 1 or torch.cuda.is_available():
        return replace(recipe, train=replace(recipe.train, threads=most))
    policy, tokenizer, _ = load_policy(recipe.model, recipe.lora, recipe.seed)
    counts = sorted({most, *(2**k for k in range(most.bit_length()) if 2**k < most)})
    best, best_s = counts[0], float("inf")
    for count in counts:
        torch.set_num_threads(count)
        seconds = _seconds(recipe, policy, tokenizer)
        if seconds < MARGIN * best_s:
            best, best_s = count, seconds
    torch.set_num_threads(most)
    return replace(recipe, train=replace(recipe.train, threads=best))


def _seconds(recipe: Recipe, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> float:
    config = recipe.train
    # A batch and an answer like the run's, cut to what takes about a second.
    num_new = min(config.max_new_tokens, 32)
    at_once = max(1, config.tokens_at_once // num_new)
    num_rows = min(config.prompts_per_step * config.group_size, at_once, 64)
    prompts = [p.prompt for p in recipe.task.problems(recipe.task.splits[0], min(num_rows, 4))]
    shape = (max(1, num_rows // len(prompts)) * len(prompts), num_new)
    parameters = [p for p in policy.parameters() if p.requires_grad]
    times = []
    for i in range(REPEATS):
        started = time.perf_counter()
        rollouts = sample(policy, tokenizer, prompts, uniforms(shape, 0, "threads", i))
        rows = torch.arange(shape[0])
        torch.autograd.grad(
            answer_logprobs(policy, rollouts, rows).sum(), parameters, allow_unused=True
        )
        times.append(time.perf_counter() - started)
    return min(times)
