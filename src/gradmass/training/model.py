"""Models and tokenizers: build a tiny one, load any causal LM in Hugging Face format."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)
from transformers.utils import logging

from gradmass.config import TinyModelConfig
from gradmass.training.folders import is_adapter, resolve_model
from gradmass.training.lora import base_path, has_adapter, merge_adapter, save_adapter
from gradmass.types import UsageError

PAD, END = "<pad>", "<end>"


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """Qwen2's tokenizer without merges: a token for each byte, a padding and an end token.

    A tokenizer of any other class would be read back as a Qwen2 one beside a Qwen2 model, and lose
    spaces and line ends.
    """
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens = dict.fromkeys([PAD, END, *to_bytes.pre_tokenize_str(alphabet)[0][0]])
    return Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[],
        pad_token=PAD,
        eos_token=END,
        unk_token=PAD,  # never used; Qwen2's own would be a token more
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


def find_model(name: str) -> str:
    """The folder of a model: a folder, a shipped checkpoint, or ``ORG/NAME`` of the hub.

    Raises:
        UsageError: None of them; a model of the hub is not there, or the hub cannot be reached.
    """
    if Path(name).exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return resolve_model(name)
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return huggingface_hub.snapshot_download(
            name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"no model at {name!r}: no such folder, and the hub does not give it: {reason[:300]}"
        ) from error


def load_model(path: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load a causal LM and its tokenizer from a folder or a shipped checkpoint's name.

    A folder with an adapter alone gives the model it was trained on with the adapter worked in.

    Raises:
        UsageError: Nothing usable there, parameters or the tokenizer's files are missing, or the
            model does not know the tokenizer's end token.
    """
    folder = resolve_model(path)
    if is_adapter(Path(folder)):
        model, tokenizer = load_model(base_path(Path(folder)))
        return merge_adapter(model, Path(folder)).eval(), tokenizer
    try:
        with without_progress_bars():
            tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
            model, info = AutoModelForCausalLM.from_pretrained(
                folder, dtype="auto", output_loading_info=True
            )
    except Exception as error:  # a damaged file raises whatever the library that reads it does
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"cannot load a model from {path!r}: {type(error).__name__}: {reason}"
        ) from error
    if missing := sorted(info["missing_keys"]):
        raise UsageError(
            f"the weights in {path!r} lack {len(missing)} parameters that config.json asks for, "
            f"such as {missing[0]}"
        )
    # Without its files, transformers makes a tokenizer up that knows no text.
    names = tokenizer.vocab_files_names.values()
    if names and not any((Path(folder) / name).is_file() for name in [*names, "tekken.json"]):
        raise UsageError(f"no tokenizer in {path!r}: none of the files {', '.join(names)}")
    num_tokens = model.get_output_embeddings().weight.shape[0]
    if tokenizer.eos_token_id is None or tokenizer.eos_token_id >= num_tokens:
        raise UsageError(
            f"the tokenizer in {path!r} has no end token among the model's {num_tokens} tokens, so "
            "no answer could ever end"
        )
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= num_tokens:
        tokenizer.pad_token = tokenizer.eos_token
    return model.eval(), tokenizer


def check_fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    max_new_tokens: int,
) -> None:
    """Refuse prompts that the tokenizer cannot read, or that leave no room for an answer.

    Args:
        model: The policy.
        tokenizer: Its tokenizer.
        prompts: What it will be asked.
        max_new_tokens: Longest answer, end token included.

    Raises:
        UsageError: Characters are lost in tokenizing (white space aside), or prompt and answer
            exceed the model's positions.
    """
    for prompt, seen in lost_characters(tokenizer, prompts):
        pairs = enumerate(zip(prompt, seen, strict=False))
        differ = next((i for i, (a, b) in pairs if a != b), min(len(prompt), len(seen)))
        start = max(0, differ - 40)
        part = slice(start, start + 120)
        raise UsageError(
            f"the tokenizer reads the prompt {prompt[part]!r} as {seen[part]!r}: this model was "
            "not made for this task"
        )
    check_length(model, tokenizer, prompts, max_new_tokens, "train.max_new_tokens")


def check_length(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    max_new_tokens: int,
    name: str,
) -> None:
    """Refuse prompts that leave no room for an answer; ``name`` is what the limit is called.

    Raises:
        UsageError: Prompt and answer exceed the model's positions.
    """
    longest = longest_prompt(tokenizer, prompts) + max_new_tokens
    positions = getattr(model.config, "max_position_embeddings", longest)
    if longest > positions:
        raise UsageError(
            f"the longest prompt and {name} = {max_new_tokens} make {longest} "
            f"tokens, the model has {positions} positions"
        )


def longest_prompt(tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]) -> int:
    """Tokens of the longest prompt.

    Raises:
        UsageError: A prompt without a token.
    """
    encoded = tokenizer(list(prompts), add_special_tokens=False)["input_ids"]
    for prompt, tokens in zip(prompts, encoded, strict=True):
        if not tokens:
            raise UsageError(f"the prompt {prompt!r} has no token: there is nothing to answer")
    return max(map(len, encoded))


def lost_characters(
    tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the prompts that lose characters (white space aside), each with what the model sees."""
    encoded = tokenizer(list(prompts), add_special_tokens=False)["input_ids"]
    for prompt, tokens in zip(prompts, encoded, strict=True):
        seen = tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        if "".join(seen.split()) != "".join(prompt.split()):
            yield prompt, seen


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write model and tokenizer in Hugging Face format; of a model with an adapter, the adapter."""
    with without_progress_bars():
        if has_adapter(model):
            save_adapter(model, folder)
        else:
            model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing bars over ours; its setting is put back."""
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
