"""A KV cache whose memory is taken once, and given up row by row as answers end."""

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


def make_room(cache: Cache, row_B: Tensor, room: int) -> None:
    """Repeat the rows of a filled cache, with memory for ``room`` more tokens.

    A cache that grows by concatenation copies itself for every token, into memory that the system
    has to hand out first: for a small model that is most of the time of sampling.

    Args:
        cache: What a model made of its prompts, a row for each.
        row_B: Which of its rows each row is to be.
        room: Tokens to come.
    """
    for i, layer in enumerate(cache.layers):
        # By exact type: layers of other kinds (linear attention, indexers) keep their own rules.
        if not layer.is_initialized or type(layer) not in _ROOMY:
            layer.batch_select_indices(row_B)
        else:
            cache.layers[i] = _ROOMY[type(layer)](layer, row_B, room)


class _Room:
    """Keys and values as views of memory that holds the tokens to come as well."""

    def __init__(self, layer: DynamicLayer, row_B: Tensor, room: int) -> None:
        # What the layer it stands for knows; its keys and values are replaced by ``_show``.
        self.__dict__.update(vars(layer))
        assert layer.keys is not None
        assert layer.values is not None
        self._start, self._end = 0, layer.keys.shape[-2]
        self._keys_BHTD = _with_room(layer.keys, row_B, room)
        self._values_BHTD = _with_room(layer.values, row_B, room)
        self._show()

    def _show(self) -> None:
        self.keys = self._keys_BHTD[:, :, self._start : self._end]
        self.values = self._values_BHTD[:, :, self._start : self._end]

    def _write(self, keys_BHTD: Tensor, values_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """Put new tokens behind those there; what is kept and they, which attention reads."""
        new = slice(self._end, self._end + keys_BHTD.shape[-2])
        self._keys_BHTD[:, :, new] = keys_BHTD
        self._values_BHTD[:, :, new] = values_BHTD
        self._end = new.stop
        self._show()
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order; those of the others are free again."""
        num_rows = len(indices)
        for name in ("_keys_BHTD", "_values_BHTD"):
            memory_BHTD = getattr(self, name)
            # index_select: indexing with a tensor takes ten times as long.
            kept_BHTD = memory_BHTD[:, :, : self._end].index_select(0, indices)
            memory_BHTD[:num_rows, :, : self._end] = kept_BHTD
            setattr(self, name, memory_BHTD[:num_rows])
        self._show()


class _FullRoom(_Room, DynamicLayer):
    """Of a layer that attends to all tokens before."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Add tokens; all keys and values."""
        return self._write(key_states, value_states)


class _SlidingRoom(_Room, DynamicSlidingWindowLayer):
    """Of a layer that attends to the last ``sliding_window`` tokens, its own included."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Add tokens; the keys and values within reach of the first of them."""
        self.cumulative_length += key_states.shape[-2]
        full = self._write(key_states, value_states)
        self._start = max(self._start, self._end - self.sliding_window + 1)
        self._show()
        return full


_ROOMY = {DynamicLayer: _FullRoom, DynamicSlidingWindowLayer: _SlidingRoom}


def _with_room(states_PHTD: Tensor, row_B: Tensor, room: int) -> Tensor:
    num_heads, num_tokens, size = states_PHTD.shape[1:]
    memory_BHTD = torch.empty(
        (len(row_B), num_heads, num_tokens + room, size),
        dtype=states_PHTD.dtype,
        device=states_PHTD.device,
    )
    memory_BHTD[:, :, :num_tokens] = states_PHTD.index_select(0, row_B)
    return memory_BHTD
