"""What the trainers of verl read from its TransferQueue: columns of a batch, in few objects."""

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from gradmass.engines.verl_batch import Results, read_results

FETCHES: list[bool] = []
"""For each fetch under way, in any thread: whether the garbage collector was on when it began."""
COUNTING = Lock()


def columns(batch: Any, *names: str) -> dict[str, Any]:
    """Columns of a batch from TransferQueue by name, tensors or lists; without those it lacks."""
    import transfer_queue as tq

    with uncollected():
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=list(names)
        )
        found = {name: data[name] for name in names if name in data.keys()}  # noqa: SIM118
        return {
            name: values if isinstance(values, Tensor) else list(values)
            for name, values in found.items()
        }


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for garbage until the block ends.

    What the queue hands over is made of some ten objects a row, none of them in a cycle. Python
    would walk through all objects of the process, once or more a fetch, and find nothing. Blocks
    of several threads may overlap: the last to end leaves the collector as the first found it.
    """
    with COUNTING:
        FETCHES.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with COUNTING:
            if FETCHES.pop():
                gc.enable()


def results_of(batch: Any, success: str | None) -> Results:
    """What the reward function returned for each row, as far as it counts.

    verl keeps it with the rollouts; a reward model on the trainer's own GPUs writes each key as a
    column.
    """
    names = {"verdict", success} - {None}
    data = columns(batch, "extra_fields", *sorted(map(str, names)))
    nothing: dict[str, Any] = {}
    fields = data.pop("extra_fields", [nothing] * len(batch.keys))
    infos_B: Iterable[Mapping[str, Any]] = (
        (field.get("reward_extra_info") if isinstance(field, dict) else None) or nothing
        for field in fields
    )
    for name, values in data.items():
        pairs = zip(infos_B, values, strict=True)
        infos_B = [{name: value, **info} for info, value in pairs]
    return read_results(infos_B, success)


def is_cut_from(given: Any, whole_BT: Tensor) -> bool:
    """Whether rows of different lengths are those of a matrix that is 0 after the end of each."""
    if given.layout == torch.jagged:
        # By hand: torch takes twenty times as long for it.
        is_in_BT = torch.arange(whole_BT.shape[1]) < given.offsets().diff().unsqueeze(1)
        values = given.values().to(whole_BT)
        if len(values) != int(is_in_BT.sum()):
            return False  # a row is longer than the matrix is wide
        given_BT = torch.zeros_like(whole_BT).masked_scatter_(is_in_BT, values)
    else:  # rows of one length, or as an older queue keeps them
        given_BT = padded(given)
    width = given_BT.shape[-1]
    return torch.equal(given_BT, whole_BT[:, :width]) and not bool(whole_BT[:, width:].any())


def padded(values: Tensor) -> Tensor:
    """Rows of different lengths as one matrix, 0 after the end of each."""
    return values.to_padded_tensor(0) if values.is_nested else values
