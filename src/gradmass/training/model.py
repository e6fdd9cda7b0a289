"""Models and tokenizers: build a tiny one, load any causal LM in Hugging Face format."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from gradmass.types import UsageError

PAD, END = "<pad>", "<end>"


@dataclass(frozen=True, kw_only=True)
class TinyModelConfig:
    """The shape of a Qwen2 made from nothing."""

    hidden_size: int = 64
    """Width of the residual stream; a multiple of num_heads."""
    num_layers: int = 2
    """Transformer blocks."""
    num_heads: int = 4
    """Attention heads, with as many key-value heads."""
    intermediate_size: int = 256
    """Width of the gated feed-forward layer."""
    max_positions: int = 64
    """Longest prompt plus answer in tokens."""

    def __post_init__(self) -> None:
        """Refuse shapes that make no model."""
        for field, value in vars(self).items():
            if value < 1:
                raise UsageError(f"model {field} must be at least 1, got {value}")
        if self.hidden_size % (2 * self.num_heads):
            raise UsageError(
                "model hidden_size must be a multiple of 2 * num_heads (rotary embeddings pair "
                f"the channels of a head), got {self.hidden_size} for {self.num_heads} heads"
            )


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """A standard fast tokenizer with a token for each character, a padding and an end token."""
    vocabulary = {token: i for i, token in enumerate([PAD, END, *alphabet])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def tiny_model(
    config: TinyModelConfig, tokenizer: PreTrainedTokenizerFast, seed: int
) -> Qwen2ForCausalLM:
    """A freshly initialised Qwen2 in float32, output head untied from the embedding.

    Untied, because the rank of the output head's own change is one of the things to look at.
    """
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_positions,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def resolve_model(path: str) -> str:
    """The folder of a checkpoint that ships with the package, or the path itself.

    Raises:
        UsageError: Neither a shipped checkpoint nor a folder with a ``config.json``.
    """
    shipped = files("gradmass") / "checkpoints"
    names = sorted(entry.name for entry in shipped.iterdir())
    if path in names:
        return str(shipped / path)
    if not (Path(path) / "config.json").is_file():
        raise UsageError(
            f"no model at {path!r}: not a folder in Hugging Face format (with a config.json), "
            f"nor a shipped checkpoint ({', '.join(names)})"
        )
    return path


def load_model(path: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load a causal LM and its tokenizer from a folder or a shipped checkpoint's name.

    Raises:
        UsageError: Nothing usable there, or a tokenizer without an end token.
    """
    folder = resolve_model(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot load a model from {path!r}: {str(error).splitlines()[0]}") from error
    if tokenizer.eos_token_id is None:
        raise UsageError(f"the tokenizer in {path!r} has no end token, so no answer could ever end")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.eval(), tokenizer
