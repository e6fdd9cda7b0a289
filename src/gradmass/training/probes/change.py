"""How far a model has moved since its start, where, and in how many directions."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradmass.metrics.rank import rounding_of, spectrum_of, top1_share
from gradmass.metrics.spectrum import noise_share
from gradmass.training.lora import adapted_matrices, has_adapter

TOP = 8
"""Singular values recorded of each matrix."""
SIGNIFICAND_BITS = {torch.bfloat16: 8, torch.float16: 11}
"""Of the types a checkpoint may be stored in that hide small changes."""


class ChangeProbe:
    """The change of a model since the start of training.

    Of a model with an adapter the change is that of the matrices which have one, ``B A`` times its
    scale; all else stays as it was.

    Args:
        model: The policy at its start; its parameters are copied, unless they are not trained.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._has_adapter = has_adapter(model)
        self._start = {
            name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad
        }
        head = model.get_output_embeddings().weight
        (self.head_name,) = (name for name, p in model.named_parameters() if p is head)
        self._head_noise = noise_share(*head.shape)
        self._num_parameters = sum(p.numel() for p in model.parameters())

    @torch.no_grad()
    def measure(self, model: PreTrainedModel) -> dict[str, float | None]:
        """Rank-one share (9) beside its noise value, norm, and share of the whole change's energy.

        ``rank/head_energy_share`` is the head's squared Frobenius norm of change over that of all
        parameters; beside it the head's share of the parameters, what it would be if every
        parameter moved alike. The shares of a model that has not moved are None.
        """
        energy = {name: _energy(change) for name, _, change in self._changes(model)}
        total, head_energy = sum(energy.values()), energy.get(self.head_name, 0.0)
        return {
            "rank/head_top1_share": top1_share(self.head_change(model)) if head_energy else None,
            "rank/head_top1_share_noise": self._head_noise,
            "rank/head_change_norm": head_energy**0.5,
            "rank/head_energy_share": head_energy / total if total else None,
            "rank/head_parameter_share": model.get_parameter(self.head_name).numel()
            / self._num_parameters,
        }

    @torch.no_grad()
    def head_change(self, model: PreTrainedModel) -> np.ndarray:
        """The change of the output head (the embedding where the two are tied), ``[V, D]``."""
        for name, _, change in self._changes(model):
            if name == self.head_name:
                return change.cpu().numpy()
        return np.zeros(tuple(model.get_parameter(self.head_name).shape))

    @torch.no_grad()
    def spectra(
        self, model: PreTrainedModel, stored_dtype: torch.dtype = torch.float32
    ) -> dict[str, Any]:
        """The singular values of the change of every matrix, and the energy of every module.

        A module is the parameters of one name with the numbers of layers left out
        (``model.layers.*.mlp.up_proj``). Cost: ``2 m n min(m, n)`` operations for each m x n
        matrix, once every ``probe.rank_every`` updates.

        Args:
            model: The policy now.
            stored_dtype: What the checkpoint it started from is stored in. If that is bfloat16 or
                float16, each matrix also says what its change looks like stored so again.

        Returns:
            ``{"matrices": [...], "modules": [...]}``, shares None for a model that has not moved.
        """
        energy = {name: _energy(change) for name, _, change in self._changes(model)}
        total = sum(energy.values())

        def share(value: float) -> float | None:
            return value / total if total else None

        matrices = []
        modules: dict[str, list[float]] = {}
        for name, start, change in self._changes(model):
            sums = modules.setdefault(module_of(name), [0.0, 0.0])
            sums[0] += energy[name]
            sums[1] += start.numel()
            if start.ndim == 2:
                matrices.append(
                    {
                        "name": name,
                        **_matrix(start, change, stored_dtype),
                        "energy_share": share(energy[name]),
                        "parameter_share": start.numel() / self._num_parameters,
                    }
                )
        return {
            "matrices": matrices,
            "modules": [
                {
                    "name": name,
                    "energy_share": share(sums[0]),
                    "parameter_share": sums[1] / self._num_parameters,
                }
                for name, sums in modules.items()
            ],
        }

    def _changes(self, model: PreTrainedModel) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield name, value at the start, and change in float64: one parameter at a time.

        The whole change in float64 is several times the model.
        """
        if self._has_adapter:
            for name, weight, change in adapted_matrices(model):
                yield name, weight, change.double()
            return
        for name, parameter in model.named_parameters():
            if name in self._start:
                yield name, self._start[name], parameter.double() - self._start[name].double()


def _energy(change: Tensor) -> float:
    return float(change.square().sum())


def _matrix(start: Tensor, change: Tensor, stored_dtype: torch.dtype) -> dict[str, Any]:
    found = spectrum_of(change.cpu().numpy(), TOP)
    shape = (change.shape[0], change.shape[1])
    row: dict[str, Any] = {
        "shape": list(shape),
        "r_1": found.top1_share,
        "r_1_noise": noise_share(*shape),
        "stable_rank": found.stable_rank,
        "effective_rank": found.effective_rank,
        "norm": found.norm,
        "singular_values": list(found.singular_values),
        "changed_fraction": float((change != 0).double().mean()),
    }
    if stored_dtype in SIGNIFICAND_BITS:
        before, after = (
            x.to(stored_dtype).double().cpu().numpy() for x in (start, start.double() + change)
        )
        rounding = rounding_of(before, after, SIGNIFICAND_BITS[stored_dtype])
        row |= {
            "changed_fraction": rounding.changed_fraction,
            "rounding_noise_share": rounding.noise_share,
            "is_hidden_by_rounding": rounding.hides_rank,
        }
    return row


def module_of(name: str) -> str:
    """A parameter's name without its last part and the numbers of layers.

    >>> module_of("model.layers.11.mlp.up_proj.weight")
    'model.layers.*.mlp.up_proj'
    """
    return re.sub(r"\.\d+(?=\.|$)", ".*", name.rpartition(".")[0] or name)
