"""Find the program in a completion."""

import re
import textwrap
from dataclasses import dataclass
from typing import Literal, get_args

from gradmass.types import UsageError

CodeBlock = Literal["last", "first", "longest", "whole"]
PYTHON = {"python", "py", "python3", "pypy", "pypy3"}
# Of these none looks twice at the same text: a model may write a line of a million characters.
FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
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
    defined = rf"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+{name}\b"
    return re.compile(rf"{defined}|^{name}[ \t]*=", re.MULTILINE)


def _blocks_of(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    fence, language, lines = "", "", list[str]()
    for line in text.split("\n"):
        found = FENCE.match(line)
        mark, info = (found[1], line[found.end() :].strip()) if found else ("", "")
        if not fence:
            if mark and "`" not in info:
                words = info.partition("{")[0].split(maxsplit=1)
                fence, language, lines = mark, words[0].lower() if words else "", []
        elif mark.startswith(fence) and not info:
            blocks.append(_Block(language, textwrap.dedent("\n".join(lines))))
            fence = ""
        else:
            lines.append(line)
    if fence:
        blocks.append(_Block(language, textwrap.dedent("\n".join(lines))))
    return blocks
