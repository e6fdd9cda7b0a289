"""The front door: find the command, hand it its arguments, turn its errors into one line."""

import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import gradmass
from gradmass.registry import USER_MODULE, nearest
from gradmass.types import UsageError

COMMANDS = {
    "demo": "train FADE and GRPO on Countdown side by side, and write a report",
    "weights": "list the policy weights, or show one",
    "masses": "show the gradient masses of weights at each solve rate",
    "train": "train a language model by a recipe",
    "eval": "evaluate a model on a task",
    "passk": "estimate pass@k of judged samples, with intervals",
    "compare": "compare pass@k of two models on the same problems",
    "audit": "ask whether a task's verifier can be trusted",
    "analyze": "say where a run's gradient goes, from anyone's rollout logs",
    "advise": "say what theory predicts for a setup, and how often it was right",
    "spectrum": "compare two checkpoints: what changed, and in how many directions",
    "study": "compare weights over seeds, by rules fixed beforehand",
    "report": "write one HTML page about runs",
    "explore": "write a page with sliders: what weights and FADE's controller do",
    "sft": "make a supervised start by a recipe",
    "merge": "work a trained LoRA adapter into its model",
    "verify": "judge one answer",
    "doctor": "look whether an installed engine fits, and what its settings do to a weight",
}
"""Each is the module of that name in ``gradmass.commands`` (``evaluate`` for eval)."""
MODULES = {"eval": "evaluate"}
EXTRAS = {"analyze": "logs"}
"""What brings what a command needs, where it is not ``train``."""
PACKAGE = Path(gradmass.__file__).parent


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 0, with 2 on input that cannot be used, 130 on Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    python_format, warnings.formatwarning = warnings.formatwarning, _format_warning
    try:
        code = _dispatch(arguments)
        _flush()
    except KeyboardInterrupt:
        print("gradmass: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        # The reader of our output left (``| head``): nothing is wrong.
        code = 0
    except Exception as error:
        message = _message(error)
        if message is None:
            raise
        print(f"gradmass: error: {' '.join(message.splitlines())}", file=sys.stderr)
        code = 2
    finally:
        warnings.formatwarning = python_format
    try:
        _flush()
    except OSError:
        # What cannot be written goes nowhere, or Python would try again and complain as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """What this package warns of, in one line; anything else with its place, as Python does."""
    if issubclass(category, UserWarning) and Path(filename).is_relative_to(PACKAGE):
        return f"gradmass: warning: {' '.join(str(message).splitlines())}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _flush() -> None:
    if sys.stdout is not None:  # None where the shell closed it
        sys.stdout.flush()


def _message(error: Exception) -> str | None:
    """What is wrong outside this package, or None where that is not known."""
    if isinstance(error, UsageError):
        return str(error)
    frames = traceback.walk_tb(error.__traceback__)
    in_user_files = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in frames
        if str(frame.f_globals.get("__name__")).startswith(USER_MODULE)
    ]
    if in_user_files:
        return f"{in_user_files[-1]}: {type(error).__name__}: {error}"
    # A full disk, a file that may not be read, a batch too large (torch's allocator has no class).
    is_memory = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    if is_memory or isinstance(error, OSError | MemoryError):
        return str(error) or type(error).__name__
    return None


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0
    if arguments[0] == "--version":
        print(f"gradmass {gradmass.__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise UsageError(f"unknown command {name!r}{nearest(name, COMMANDS)}")
    try:
        module = importlib.import_module(f"gradmass.commands.{MODULES.get(name, name)}")
        return int(module.main(rest) or 0)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("gradmass"):
            raise
        raise UsageError(
            f"{name} needs {error.name}, which is not installed: "
            f"pip install 'gradmass[{EXTRAS.get(name, 'train')}]'"
        ) from error


def _help() -> str:
    lines = [
        "gradmass: choose, inspect and schedule the policy weights of RL with verifiable rewards",
        "",
        "usage: gradmass COMMAND ...",
        "",
        *(f"  {name:8} {what}" for name, what in COMMANDS.items()),
        "",
        "gradmass COMMAND --help says more; gradmass --version prints the version.",
    ]
    return "\n".join(lines)
