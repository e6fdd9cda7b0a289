"""``gradmass verify``: is this answer right? One kind of answer, one file; each has its flags."""

import importlib
from collections.abc import Sequence

from gradmass.registry import nearest
from gradmass.types import UsageError

KINDS = {
    "math": "an answer against the gold answer",
    "code": "a program against the tests of a problem",
}
"""Each is the module ``verify_KIND`` beside this one."""


def main(argv: Sequence[str]) -> int:
    """Run the command: 0 right, 1 not right; bad input raises."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0
    kind, *rest = argv
    if kind not in KINDS:
        raise UsageError(f"verify: {kind!r} is no kind of answer{nearest(kind, KINDS)}")
    module = importlib.import_module(f"gradmass.commands.verify_{kind}")
    return int(module.main(rest))


def _help() -> str:
    lines = [
        "usage: gradmass verify KIND ...",
        "",
        "One verdict, as JSON with --json; exit code 0 right, 1 not right, 2 bad input.",
        "",
        *(f"  {kind:6} {what}" for kind, what in KINDS.items()),
        "",
        "gradmass verify KIND --help says more; each prints its verdict as JSON with --json.",
    ]
    return "\n".join(lines)
