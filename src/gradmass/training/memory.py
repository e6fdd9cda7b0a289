"""What memory a run needs: a reckoning by what has to exist at once."""

from dataclasses import dataclass

from gradmass.training.terms import LOGITS_AT_ONCE

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """What of a model decides its memory.

    Args:
        num_parameters: All parameters, a tied output head counted once.
        num_layers: Blocks.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the feed-forward layer.
        num_kv_channels: Key-value heads times their size.
        vocab_size: Words of the output head.
    """

    num_parameters: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_kv_channels: int
    vocab_size: int

    @property
    def num_matrix_rows_and_columns(self) -> int:
        """Rows plus columns of all matrices of the blocks: times the rank, an adapter's size."""
        d, f, kv = self.hidden_size, self.intermediate_size, self.num_kv_channels
        return self.num_layers * (2 * (d + d) + 2 * (d + kv) + 3 * (d + f))


MODELS = {
    "countdown-tiny": Shape(134_464, 2, 64, 256, 64, 21),
    "SmolLM2-135M": Shape(134_515_008, 30, 576, 1536, 192, 49_152),
    "Qwen2.5-0.5B": Shape(494_032_768, 24, 896, 4864, 128, 151_936),
    "Qwen2.5-1.5B": Shape(1_543_714_304, 28, 1536, 8960, 256, 151_936),
    "Qwen2.5-7B": Shape(7_615_616_512, 28, 3584, 18_944, 512, 152_064),
}
"""Of published configurations (config.json of each)."""


def memory_gib(
    shape: Shape,
    *,
    lora_rank: int = 0,
    is_bfloat16: bool = False,
    gradient_checkpointing: bool = False,
    tokens_at_once: int = 16_384,
    num_rollouts: int = 256,
    num_tokens: int = 512,
    device: str = "cuda",
) -> dict[str, float]:
    """Memory of a training run on one device, in GiB, by what needs it.

    With P parameters of s bytes each (2 in bfloat16, else 4) and A of them trained::

        weights    s P, and 4 A more for an adapter
        optimiser  4 A gradient + 8 A moments of AdamW + 4 A float32 copies where s = 2 and
                   everything is trained
        change     s P, the parameters at the start (none with an adapter)
        passes     per token of a pass: s (14 D + 4 F + 2 K) for each block, or s D for each block
                   and one block's worth where blocks are computed again; plus four pieces of logits
        sampling   the cache: 2 s L K for each token of each rollout

    D is the hidden size, F the feed-forward width, K the key-value channels, L the blocks. Passes
    and sampling do not happen at once: the larger counts. Leaves out what the process needs before
    any model (torch, 0.4 GiB on a CPU), copies of a KL term or a lag, and what an allocator wastes.

    Args:
        shape: The model.
        lora_rank: Rank of an adapter on every matrix; 0 trains everything.
        is_bfloat16: Whether the model computes in bfloat16.
        gradient_checkpointing: Whether blocks are computed again for the gradient.
        tokens_at_once: Tokens in a pass.
        num_rollouts: Rollouts of a batch, which are sampled at once.
        num_tokens: Prompt and answer tokens of each.
        device: ``cpu`` or ``cuda``; pieces of logits are larger on the latter.

    Returns:
        GiB for each of the above, and their ``total``.
    """
    size, count = (2 if is_bfloat16 else 4), shape.num_parameters
    trained = lora_rank * shape.num_matrix_rows_and_columns if lora_rank else count
    has_masters = is_bfloat16 and not lora_rank
    d, f, kv, layers = (
        shape.hidden_size,
        shape.intermediate_size,
        shape.num_kv_channels,
        shape.num_layers,
    )
    block = size * (14 * d + 4 * f + 2 * kv)
    per_token = layers * size * d + block if gradient_checkpointing else layers * block
    logits = min(LOGITS_AT_ONCE[device], tokens_at_once * shape.vocab_size)
    found = {
        "weights": size * count + (4 * trained if lora_rank else 0),
        "optimiser": (16 if has_masters else 12) * trained,
        "change": 0 if lora_rank else size * count,
        "passes": min(tokens_at_once, num_rollouts * num_tokens) * per_token + 4 * 4 * logits,
        "sampling": 2 * size * layers * kv * num_rollouts * num_tokens,
    }
    total = found["weights"] + found["optimiser"] + found["change"]
    total += max(found["passes"], found["sampling"])
    return {name: value / GIB for name, value in (found | {"total": total}).items()}
