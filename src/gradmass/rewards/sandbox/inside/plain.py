"""Values as plain data: what may cross from one process to another, and nothing else.

A value loses its class on the way: an integer that claims to equal everything arrives as an
integer. JSON's own types stand for themselves; the rest is an object with one key, its kind.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

MAX_EQUAL_HASHES = 100
"""More keys with one hash are an attack: a table of a million of them takes hours to build."""
SMALL_INT = 10**15
"""Integers above travel in hexadecimal, which takes linear time to read."""


class NotPlain(TypeError):
    """A value that is no plain data."""


def encode(value: Any, refer: Callable[[Any], Any] | None = None) -> Any:
    """Say a value in JSON.

    Args:
        value: None, booleans, numbers, text, bytes; lists, tuples, sets and dicts of such values;
            their subclasses; NumPy's arrays and numbers, as lists and numbers.
        refer: What stands for a value that is none of these; without it, such a value is refused.

    Raises:
        NotPlain: The value, or one within it, is no plain data.
        RecursionError: It is nested too deeply, or holds itself.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        number = int.__index__(value)
        return number if abs(number) < SMALL_INT else {"int": hex(number)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, tuple):
        return {"tuple": [encode(item, refer) for item in tuple.__iter__(value)]}
    if isinstance(value, set):
        return {"set": [encode(item, refer) for item in set.__iter__(value)]}
    if isinstance(value, frozenset):
        return {"frozenset": [encode(item, refer) for item in frozenset.__iter__(value)]}
    if isinstance(value, list):
        return [encode(item, refer) for item in list.__iter__(value)]
    if isinstance(value, dict):
        pairs = dict.items(value)
        return {"dict": [[encode(key, refer), encode(item, refer)] for key, item in pairs]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), refer)
    if refer is not None:
        return {"object": refer(value)}
    raise NotPlain(f"a {type(value).__name__} is no plain data")


def decode(data: Any, resolve: Callable[[Any], Any] | None = None) -> Any:
    """Read what ``encode`` said, whoever said it.

    Args:
        data: Decoded JSON.
        resolve: The value that a reference stands for; without it, references are refused.

    Raises:
        NotPlain: ``encode`` says nothing of this form.
        RecursionError: It is nested too deeply.
    """
    if not isinstance(data, dict):
        return [decode(item, resolve) for item in data] if isinstance(data, list) else data
    try:
        ((kind, content),) = data.items()
        match kind:
            case "int":
                return int(content, 16)
            case "tuple":
                return tuple(decode(item, resolve) for item in content)
            case "set":
                return set(_spread(decode(item, resolve) for item in content))
            case "frozenset":
                return frozenset(_spread(decode(item, resolve) for item in content))
            case "dict":
                keys = _spread(decode(key, resolve) for key, _ in content)
                values = (decode(item, resolve) for _, item in content)
                return dict(zip(keys, values, strict=True))
            case "bytes":
                return bytes.fromhex(content)
            case "complex":
                return complex(*content)
            case "object" if resolve is not None:
                return resolve(content)
    except (ValueError, TypeError, LookupError) as error:
        raise NotPlain(f"not plain data: {error}") from error
    raise NotPlain(f"not plain data: an object of kind {kind!r}")


def _spread(keys: Iterable[Any]) -> list[Any]:
    """The keys, unless too many of them share a hash."""
    found = list(keys)
    common = Counter(map(hash, found)).most_common(1)
    if common and common[0][1] > MAX_EQUAL_HASHES:
        raise NotPlain(f"not plain data: {common[0][1]} keys with one hash")
    return found
