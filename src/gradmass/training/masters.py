"""The optimiser, and float32 copies of parameters that are too coarse for its steps."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gradmass.config import OptimConfig


def make_optimizer(config: OptimConfig, policy: PreTrainedModel) -> torch.optim.Optimizer:
    """AdamW, or gradient descent without momentum, on what of a policy is trained.

    A parameter in bfloat16 has a copy in float32, which the optimiser holds in its place: gradients
    are added up there, the step is made there, and the parameter is the copy rounded. What
    ``state_dict`` gives holds the copies too.
    """
    trained = [p for p in policy.parameters() if p.requires_grad]
    masters = {p: nn.Parameter(p.detach().float()) for p in trained if p.dtype != torch.float32}
    held = [masters.get(p, p) for p in trained]
    if config.type == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            held, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )
    else:
        optimizer = torch.optim.SGD(held, lr=config.lr, weight_decay=config.weight_decay)
    if masters:
        _keep_in_step(optimizer, masters)
    return optimizer


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """What the optimiser changes, and where it looks for gradients."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _keep_in_step(
    optimizer: torch.optim.Optimizer, masters: dict[nn.Parameter, nn.Parameter]
) -> None:
    def add_up(parameter: nn.Parameter) -> None:
        master, gradient = masters[parameter], parameter.grad
        assert gradient is not None
        master.grad = gradient.float() if master.grad is None else master.grad + gradient
        parameter.grad = None

    @torch.no_grad()
    def write_back(*_: Any) -> None:
        for parameter, master in masters.items():
            parameter.copy_(master)

    def save(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "masters": [master.detach() for master in masters.values()]}

    @torch.no_grad()
    def load(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        for master, saved in zip(masters.values(), state["masters"], strict=True):
            master.copy_(saved)
        write_back()
        return {key: value for key, value in state.items() if key != "masters"}

    for parameter in masters:
        parameter.register_post_accumulate_grad_hook(add_up)
    optimizer.register_step_post_hook(write_back)
    optimizer.register_state_dict_post_hook(save)
    optimizer.register_load_state_dict_pre_hook(load)
