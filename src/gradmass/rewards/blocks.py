"""Find the program in a completion."""

import re
import textwrap
from dataclasses import dataclass
from typing import Literal, get_args

from gradmass.types import UsageError

CodeBlock = Literal["last", "first", "longest", "whole"]
PYTHON = {"python", "py", "python3", "pypy", "pypy3"}
FENCE = re.compile(r"[ \t]*(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[^\s`{]*)[^`]*")
READS_STDIN = re.compile(r"\binput\s*\(|\bstdin\b|\bopen\(\s*0|\bos\.read\(\s*0")


@dataclass(frozen=True)
class _Block:
    language: str
    text: str


def find_program(completion: str, rule: CodeBlock, entry_point: str | None) -> str | None:
    r"""Take the program out of a completion.

    Thoughts up to ``</think>`` do not count. Of the fenced blocks (three or more backticks or
    tildes; the last may be left open) those marked as Python are candidates, or those without a
    mark where none is. Of these, those that define the entry point, or that read the standard input
    where there is none, are preferred to others, such as a usage example after the solution. The
    rule picks from what is left.

    Args:
        completion: What the model wrote.
        rule: "last", "first" or "longest" block; "whole" takes the completion as it is.
        entry_point: The function that the problem asks for; None where programs read and print.

    Returns:
        The program; None where there is no block.

    Raises:
        UsageError: There is no such rule.

    >>> find_program("```python\ndef f(): pass\n```\nTry:\n```python\nf()\n```", "last", "f")
    'def f(): pass'
    """
    if rule not in get_args(CodeBlock):
        raise UsageError(f"code_block {rule!r} is not one of {', '.join(get_args(CodeBlock))}")
    if rule == "whole":
        return completion
    answer = completion.rpartition("</think>")[2]
    if "<think>" in answer:  # it never stopped thinking
        return None
    blocks = [block for block in _blocks_of(answer) if block.text.strip()]
    candidates = [block.text for block in blocks if block.language in PYTHON]
    candidates = candidates or [block.text for block in blocks if not block.language]
    wanted = READS_STDIN if entry_point is None else _defines(entry_point)
    candidates = [text for text in candidates if wanted.search(text)] or candidates
    if not candidates:
        return None
    match rule:
        case "last":
            return candidates[-1]
        case "first":
            return candidates[0]
        case _:
            return max(candidates, key=len)


def _defines(entry_point: str) -> re.Pattern[str]:
    name = re.escape(entry_point)
    return re.compile(rf"^\s*(?:async\s+)?def\s+{name}\b|^\s*class\s+{name}\b|^{name}\s*=", re.M)


def _blocks_of(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    fence, language, lines = "", "", list[str]()
    for line in text.split("\n"):
        found = FENCE.fullmatch(line.rstrip())
        if not fence:
            if found:
                fence, language, lines = found["fence"], found["language"].lower(), []
        elif found and found["fence"].startswith(fence) and line.strip() == found["fence"]:
            blocks.append(_Block(language, textwrap.dedent("\n".join(lines))))
            fence = ""
        else:
            lines.append(line)
    if fence:
        blocks.append(_Block(language, textwrap.dedent("\n".join(lines))))
    return blocks
