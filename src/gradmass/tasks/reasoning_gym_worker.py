"""What the worker processes of ``reasoning_gym`` do: draw items, and score answers to them.

Items are drawn here and not in the process that trains, because a few datasets iterate over sets:
their items follow Python's hash seed, which is fixed for these processes alone.
"""

import base64
import io
import json
import os
import pickle
import sys
import tomllib
from collections.abc import Generator, Mapping
from functools import lru_cache
from typing import Any

from gradmass.registry import nearest
from gradmass.types import UsageError

EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")
"""Where items without a stored answer keep one that is right."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
REFUSED = ("os.", "shutil.", "socket.", "subprocess.", "ctypes.", "signal.", "pty.", "fcntl.")
READING = ("os.listdir", "os.scandir", "os.walk")
"""What imports do."""


def warm_up() -> None:
    """Import the library once, before workers are forked."""
    make_dataset("chain_sum", "", 0, 1)


def handle(request: list[Any]) -> Generator[str, None, Any]:
    """Draw items or score an answer.

    Args:
        request: ``["draw", dataset, options, seed, size, start, stop]``, or
            ``["score", dataset, options, item, answer]`` with the item as it was drawn: pickled and
            in base64, by this module and never by a model.

    Returns:
        A list of ``[question, answer or None, item]``; or ``{"score", "error"}``, where ``error``
        is what the scorer raised. An ``{"usage": message}`` where the dataset cannot be made.
    """
    kind, name, options, *rest = request
    if kind == "draw":
        seed, size, start, stop = rest
        try:
            data = make_dataset(name, options, seed, size)
        except UsageError as error:
            return {"usage": str(error)}
        yield "draw"
        return [_drawn(data[index]) for index in range(start, stop)]
    item, answer = rest
    data = make_dataset(name, options, 0, 1)
    entry = pickle.loads(base64.b64decode(item))
    guard()
    yield "score"
    return score(data, entry, answer)


@lru_cache(maxsize=8)
def make_dataset(name: str, options: str, seed: int, size: int) -> Any:
    """A reasoning-gym dataset.

    Raises:
        UsageError: There is no such dataset, or it does not take the options.
    """
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        raise UsageError(f"reasoning_gym has no dataset {name!r}{nearest(name, DATASETS)}")
    make, config_class = DATASETS[name]
    fields = {"seed": seed, "size": size, **parse_options(options)}
    known = config_class.__dataclass_fields__
    for field in fields:
        if field not in known:
            raise UsageError(
                f"reasoning_gym's {name} has no option {field!r}{nearest(field, known)}"
            )
    try:
        config = config_class(**fields)
        if hasattr(config, "validate"):
            config.validate()
        return make(config=config)
    except (AssertionError, TypeError, ValueError) as error:
        given = f"size = {size}" + (f", {options}" if options else "")
        raise UsageError(f"reasoning_gym's {name} does not take {given}: {error}") from error


def parse_options(options: str) -> dict[str, Any]:
    """The fields of a dataset's configuration, from TOML's ``key = value, key = value``.

    Raises:
        UsageError: It is no such text, or it sets seed or size, which are fields of the task.

    >>> parse_options("min_numbers = 3, operators = ['+', '-']")
    {'min_numbers': 3, 'operators': ['+', '-']}
    """
    try:
        fields: dict[str, Any] = tomllib.loads(f"options = {{{options}}}")["options"]
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f'reasoning_gym needs options as in TOML ("min_numbers = 3"), got {options!r}: {error}'
        ) from error
    for name in ("seed", "size"):
        if name in fields:
            raise UsageError(f"reasoning_gym: {name} is a field of the task, not of options")
    return fields


def score(data: Any, entry: Mapping[str, Any], answer: str | None) -> dict[str, Any]:
    """The dataset's own score of an answer, or what the scorer raised."""
    stdout, sys.stdout = sys.stdout, io.StringIO()
    try:
        return {"score": float(data.score_answer(answer=answer, entry=entry)), "error": ""}
    except MemoryError:
        raise
    except BaseException as error:  # SystemExit too: an answer that is evaluated raises anything
        return {"score": 0.0, "error": f"{type(error).__name__}: {error}"[:200]}
    finally:
        sys.stdout = stdout


@lru_cache(maxsize=1)
def guard() -> None:
    """Refuse files to write, programs and the network to this process from now on.

    Several scorers call Python's ``eval`` on the answer. This keeps what a policy stumbles upon
    from doing harm; it is no sandbox for code that was written to break out.
    """

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        is_writing = event == "open" and bool((arguments[2] or 0) & WRITING)
        if is_writing or (event.startswith(REFUSED) and event not in READING):
            raise PermissionError(f"{event} is refused while an answer is scored")

    sys.addaudithook(refuse)


def _drawn(entry: Mapping[str, Any]) -> list[Any]:
    return [
        entry["question"],
        example_answer(entry),
        base64.b64encode(pickle.dumps(entry)).decode(),
    ]


def example_answer(entry: Mapping[str, Any]) -> str | None:
    """An answer to an item that is right: the stored one, or an example in its metadata."""
    if entry["answer"] is not None:
        return str(entry["answer"])
    for name in EXAMPLES:
        if name in entry["metadata"]:
            example = entry["metadata"][name]
            # Where the example is a mapping, the question asks for JSON.
            return example if isinstance(example, str) else json.dumps(example)
    return None
