"""``gradmass verify``: one verdict, on an answer or a program."""

import importlib
from collections.abc import Sequence

from gradmass.registry import nearest
from gradmass.types import UsageError

KINDS = {
    "math": "is a mathematical answer the gold answer?",
}
"""Each is the module ``verify_<name>`` beside this one."""


def main(argv: Sequence[str]) -> int:
    """Run the command; returns 0 where the answer is right, 1 where it is not."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: gradmass verify KIND ... [--json]\n")
        print("\n".join(f"  {name:8} {what}" for name, what in KINDS.items()))
        print("\ngradmass verify KIND --help says more.")
        return 0
    name, *rest = argv
    if name not in KINDS:
        raise UsageError(f"unknown kind {name!r}{nearest(name, KINDS)} (gradmass verify --help)")
    return int(importlib.import_module(f"gradmass.commands.verify_{name}").main(rest))
