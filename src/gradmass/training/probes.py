"""Read a model for the metrics: how far its output head has moved, and in how many directions."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradmass.metrics.rank import top1_share, top1_share_noise, top1_share_noise_edge

MAX_SAMPLED_ENTRIES = 100_000
"""Largest head whose noise value is sampled (a second); for larger ones the edge is as good."""


class HeadProbe:
    """The change of the output head since the start of training.

    Args:
        model: The policy at its start; its parameters are copied.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._start = {name: p.detach().clone() for name, p in model.named_parameters()}
        head = model.get_output_embeddings().weight
        (self._head,) = (name for name, p in model.named_parameters() if p is head)
        noise = top1_share_noise if head.numel() <= MAX_SAMPLED_ENTRIES else top1_share_noise_edge
        self._noise = noise(tuple(head.shape))
        self._parameter_share = head.numel() / sum(p.numel() for p in model.parameters())

    @torch.no_grad()
    def measure(self, model: PreTrainedModel) -> dict[str, float | None]:
        """Rank-one share (9) beside its noise value, norm, and share of the whole change's energy.

        ``rank/head_energy_share`` is the head's squared Frobenius norm of change over that of all
        parameters; beside it the head's share of the parameters, what it would be if every
        parameter moved alike. The shares of a model that has not moved are None.
        """
        parameters = dict(model.named_parameters())
        # One parameter at a time: the whole change in float64 is several times the model.
        energy = {
            name: float(self._change(p, name).square().sum()) for name, p in parameters.items()
        }
        total, head = sum(energy.values()), self._change(parameters[self._head], self._head)
        return {
            "rank/head_top1_share": top1_share(_numpy(head)),
            "rank/head_top1_share_noise": self._noise,
            "rank/head_change_norm": energy[self._head] ** 0.5,
            "rank/head_energy_share": energy[self._head] / total if total else None,
            "rank/head_parameter_share": self._parameter_share,
        }

    def _change(self, parameter: Tensor, name: str) -> Tensor:
        return parameter.double() - self._start[name].double()


def _numpy(tensor: Tensor):  # type: ignore[no-untyped-def]
    return tensor.cpu().numpy()
