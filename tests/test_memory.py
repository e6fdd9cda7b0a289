"""The reckoning of memory against what tensors really take."""

import torch

from gradmass.config import LoraConfig, ModelConfig, OptimConfig
from gradmass.training.masters import make_optimizer
from gradmass.training.memory import GIB, MODELS, memory_gib
from gradmass.training.policy import load_policy
from gradmass.training.rollout import answer_logprobs, sample, uniforms

TINY = MODELS["countdown-tiny"]


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def measured(dtype, rank):
    policy, _, _ = load_policy(ModelConfig(dtype=dtype), LoraConfig(rank=rank), 0)
    optimizer = make_optimizer(OptimConfig(), policy)
    sum(p.float().sum() for p in policy.parameters() if p.requires_grad).backward()
    optimizer.step()
    held = [p for group in optimizer.param_groups for p in group["params"]]
    moments = [t for state in optimizer.state.values() for k, t in state.items() if "exp" in k]
    of_policy = {id(p) for p in policy.parameters()}
    masters = [p for p in held if id(p) not in of_policy]
    return bytes_of(policy.parameters()), bytes_of([p.grad for p in held] + moments + masters)


def test_weights_gradients_moments_and_copies_are_those_that_exist():
    for dtype in ("float32", "bfloat16"):
        for rank in (0, 4):
            reckoned = memory_gib(TINY, lora_rank=rank, is_bfloat16=dtype == "bfloat16")
            weights, optimiser = measured(dtype, rank)
            assert weights == round(reckoned["weights"] * GIB), (dtype, rank)
            assert optimiser == round(reckoned["optimiser"] * GIB), (dtype, rank)


def test_a_pass_keeps_about_what_is_reckoned(shipped):
    model, tokenizer = shipped
    prompts = [f"{i},{j},3=4:" for i in range(1, 9) for j in range(1, 9)]  # none is shared
    rollouts = sample(model, tokenizer, prompts, uniforms((64, 20), 0, "test"))
    num_tokens = rollouts.prompt_BT.numel() + rollouts.answer_BT.numel()
    kept: dict[int, int] = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = answer_logprobs(model, rollouts, torch.arange(64))
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found = sum(size for place, size in kept.items() if place not in parameters)
    del value
    reckoned = memory_gib(TINY, tokens_at_once=num_tokens, num_rollouts=64, device="cpu")
    assert 0.6 * found < reckoned["passes"] * GIB < 1.7 * found


def test_what_needs_no_memory_has_none_and_more_of_anything_needs_no_less():
    small = memory_gib(MODELS["Qwen2.5-0.5B"], lora_rank=16, is_bfloat16=True)
    assert small["change"] == 0
    base = {"lora_rank": 16, "is_bfloat16": True}
    for more, part in (
        ({"lora_rank": 32}, "optimiser"),
        ({"tokens_at_once": 32_768}, "passes"),
        ({"num_rollouts": 4096}, "sampling"),
    ):
        found = memory_gib(MODELS["Qwen2.5-0.5B"], **{**base, **more})
        assert found[part] > small[part]
        assert found["total"] >= small["total"]
    checkpointed = memory_gib(
        MODELS["Qwen2.5-0.5B"], lora_rank=16, is_bfloat16=True, gradient_checkpointing=True
    )
    assert checkpointed["passes"] < small["passes"] / 5
