"""``gradmass merge``: how does a trained adapter become a model of its own?"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gradmass.commands.arguments import parse
from gradmass.record import Run, refuse_used
from gradmass.types import UsageError


@dataclass(frozen=True)
class Arguments:
    """Work a LoRA adapter into its model and save the result in Hugging Face format.

    transformers, vLLM and gradmass load the folder like any model. The adapter stays as it is.
    """

    adapter: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ADAPTER")]
    """Folder of an adapter in peft's format, or a run directory: its last checkpoint."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder to write; must be new or empty."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Numbers to store. In bfloat16 the file is half as large, and rounding may hide an update of
    RL, most of which is smaller than the spacing of such numbers."""
    json: bool = False
    """Print what was written as JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parse(Arguments, "merge", argv)
    folder = Path(arguments.adapter)
    if (folder / "state.json").is_file():
        folder = Run(folder).model_dir
    import torch

    from gradmass.training.folders import is_adapter
    from gradmass.training.lora import base_path
    from gradmass.training.model import load_model, save_model

    if not is_adapter(folder):
        raise UsageError(
            f"no adapter in {arguments.adapter!r}: its folder has no adapter_config.json, or is a "
            "whole model already"
        )
    refuse_used(arguments.out)
    model, tokenizer = load_model(str(folder))
    model = model.to(torch.bfloat16 if arguments.dtype == "bfloat16" else torch.float32)
    draft = arguments.out.with_name(f".{arguments.out.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save_model(model, tokenizer, draft)
        draft.replace(arguments.out)
    except OSError as error:
        raise UsageError(f"cannot write to {arguments.out}: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    num_parameters = sum(p.numel() for p in model.parameters())
    if arguments.json:
        found = {"model": str(arguments.out), "base": base_path(folder)}
        print(json.dumps(found | {"num_parameters": num_parameters, "dtype": arguments.dtype}))
    else:
        print(f"{arguments.out}: {num_parameters / 1e6:.1f} million parameters, {arguments.dtype}")
        print(f"adapter {folder} on {base_path(folder)}")
    return 0
