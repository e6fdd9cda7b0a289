"""Which folder holds a model, without loading it: neither torch nor transformers is imported."""

from importlib.resources import files
from pathlib import Path

from gradmass.types import UsageError

CONFIG_FILE = "adapter_config.json"
"""What peft keeps beside an adapter."""


def resolve_model(path: str) -> str:
    """The folder of a checkpoint that ships with the package, or the path itself.

    Raises:
        UsageError: Neither a shipped checkpoint nor a folder with a ``config.json``, or with an
            adapter.
    """
    shipped = files("gradmass") / "checkpoints"
    names = sorted(entry.name for entry in shipped.iterdir())
    if path in names:
        return str(shipped / path)
    if not (Path(path) / "config.json").is_file() and not is_adapter(Path(path)):
        raise UsageError(
            f"no model at {path!r}: not a folder in Hugging Face format (with a config.json), "
            f"nor a shipped checkpoint ({', '.join(names)})"
        )
    return path


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no model of its own."""
    return (folder / CONFIG_FILE).is_file() and not (folder / "config.json").is_file()
