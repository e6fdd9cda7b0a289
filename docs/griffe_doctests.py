"""Examples in docstrings as code blocks: a paragraph of ``>>>`` lines needs no heading for it."""

from typing import Any

import griffe


class FenceDoctests(griffe.Extension):
    """Put a fence around every doctest of a docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute once it is read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """A docstring whose doctests are fenced; each ends at an empty line."""
    lines, is_open = [], False
    for line in [*text.splitlines(), ""]:
        if not is_open and line.startswith(">>>"):
            lines += ["```pycon"]
            is_open = True
        elif is_open and not line.strip():
            lines += ["```"]
            is_open = False
        lines.append(line)
    return "\n".join(lines)
