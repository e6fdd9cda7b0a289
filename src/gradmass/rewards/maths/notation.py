r"""The text of an answer: one spelling for what LaTeX, keyboards and Unicode spell many ways."""

import re
from collections.abc import Iterator

UNICODE: dict[str, str | int | None] = {
    **{"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∗": "*"},
    **{"π": r"\pi ", "∞": r"\infty ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta "},
    **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∓": r"\mp "},
    **{"°": r"^\circ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset "},
    **{"ℝ": r"\mathbb{R}", "…": r"\ldots ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}"},
    **{"¾": r"\frac{3}{4}", "’": "'", "“": '"', "”": '"', "\u00a0": " ", "\u2009": " "},
    **{"⟨": "(", "⟩": ")"},
    **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94)},  # full-width forms of ASCII
}
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
NAMES = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|theta|alpha|beta"
REWRITES: list[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[mM]?(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?(?=\W)", ""),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|rm|bf|it)(?![a-zA-Z])\s*", ""),
        (r"(?<=\d)(?:\{,\}|,\\!\s*|\\,)(?=\d{3})", ""),
        (r"\\!\s*", ""),
        (r"(?<!\\)\\(?:[,;:> ]|quad(?![a-zA-Z])|qquad(?![a-zA-Z])|hspace\s*\{[^{}]*\})|~", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:geqslant|geq|ge)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\(?:leqslant|leq|le)(?![a-zA-Z])|<=", r"\\le "),
        (r"\\(?:neq|ne)(?![a-zA-Z])|!=", r"\\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\langle(?![a-zA-Z])", "("),
        (r"\\rangle(?![a-zA-Z])", ")"),
        (r"\(\s*\\?mod\s*(\w+)\s*\)|\\p?mod\s*(?:\{\s*(\w+)\s*\}|(\w))", r"\\text{ mod \1\2\3}"),
        (r"\\l?brace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\l?brack(?![a-zA-Z])", "["),
        (r"\\rbrack(?![a-zA-Z])", "]"),
        (r"\\[lr]?vert(?![a-zA-Z])", "|"),
        (r"\\(?:dots|cdots|dotsc|dotsb)(?![a-zA-Z])|\.\.\.", r"\\ldots "),
        (r"\\simeq(?![a-zA-Z])|\\doteq(?![a-zA-Z])|~=", r"\\approx "),
        (r"\\(?:varnothing)(?![a-zA-Z])", r"\\emptyset "),
        (r"\\(?:text|mathrm|mbox)\s*\{\s*\}", ""),
        (r"\*\*(?=\S)", "^"),
        (r"\s+", " "),
    )
]
TEXT_COMMAND = re.compile(
    r"\\(?:text\w*|math(?:rm|bf|it|sf|tt|cal|frak|scr)|boldsymbol|bm|mbox|operatorname\*?|emph"
    r"|underline)\s*\{([^{}]*)\}"
)
OPENING, CLOSING = "([{", ")]}"


def clean(text: str) -> str:
    r"""One spelling of symbols, spaces and brackets; formula marks and a final full stop removed.

    >>> clean(r"$\left( 3, \dfrac{\pi}{2} \right)$.")
    '( 3, \\frac{\\pi}{2} )'
    >>> clean("**73**"), clean("x² ≥ 4"), clean(r"2{,}400")
    ('73', 'x^{2} \\ge 4', '2400')
    """
    text = text.strip().strip('"`').strip()
    for mark in ("**", "__"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.rstrip(".").endswith(mark):
            text = text[len(mark) :].rstrip(".")[: -len(mark)]
    text = re.sub(r"(?<!\\)\$|\\[()\[\]](?![a-zA-Z])|(?<!\\)\\\\(?=[a-zA-Z])", _unmark, text)
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda m: f"^{{{m[0].translate(SUPERSCRIPTS)}}}", text)
    text = text.translate(str.maketrans(UNICODE))
    for pattern, replacement in REWRITES:
        text = pattern.sub(replacement, text)
    return (
        re.sub(r"[\s.,;:]+$", "", text).strip() if not text.endswith(r"\ldots ") else text.strip()
    )


def _unmark(m: re.Match[str]) -> str:
    return "\\" if m[0] == "\\\\" else " "


def depths(text: str) -> Iterator[tuple[int, int]]:
    """Yield each position that is not inside a bracket it belongs to, with its depth.

    A closing bracket has the depth of its opening one; escaped braces count as brackets.
    """
    depth, i = 0, 0
    while i < len(text):
        is_escaped = text[i] == "\\" and i + 1 < len(text)
        at = i + 1 if is_escaped and text[i + 1] in "{}" else i
        if text[at] in CLOSING:
            depth -= 1
        yield i, depth
        if text[at] in OPENING:
            depth += 1
        i = at + 1 if at > i else i + 1


def nesting(text: str) -> int:
    """How many brackets and braces are open at once, at most."""
    return max((depth for _, depth in depths(text)), default=0)


def split_top(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Split at separators outside of all brackets; returns the parts and what parted them."""
    parts, found, start = [], [], 0
    is_top = {i for i, depth in depths(text) if depth == 0}
    for m in separator.finditer(text):
        if m.start() in is_top and m.start() >= start:
            parts.append(text[start : m.start()].strip())
            found.append(m[0].strip())
            start = m.end()
    return [*parts, text[start:].strip()], found


def brackets(text: str) -> tuple[str, str, str] | None:
    r"""Return opening bracket, content and closing bracket where one pair holds the whole text.

    The two may be of different kinds, as half-open intervals are written.

    >>> brackets(r"\{1, 2\}"), brackets("(0, 1]"), brackets("(1)(2)")
    (('\\{', '1, 2', '\\}'), ('(', '0, 1', ']'), None)
    """
    for left, rights in (
        (r"\{", (r"\}",)),
        ("(", (")", "]")),
        ("[", ("]", ")")),
        ("{", ("}",)),
    ):
        if text.startswith(left):
            right = next((right for right in rights if text.endswith(right)), None)
            if right is None or len(text) < len(left) + len(right):
                return None
            last = len(text) - len(right)
            if next((i for i, depth in depths(text) if i and depth == 0), last) != last:
                return None
            return left, text[len(left) : last].strip(), right
    return None


def words(text: str) -> str:
    r"""The text without text commands, in small letters, spaces and hyphens alike.

    >>> words(r"\text{(C)}"), words(r"\textbf{North-East}")
    ('(c)', 'north east')
    """
    text = unwrap_text(text).lower()
    return re.sub(r"[\s\-_]+", " ", text.replace("\\", "")).strip(" .,;:!'\"")


def unwrap_text(text: str) -> str:
    r"""Replace ``\text{...}`` and its like by what they hold."""
    for _ in range(4):
        text, count = TEXT_COMMAND.subn(r" \1 ", text)
        if count == 0:
            break
    return re.sub(r"\s+", " ", text).strip()


def to_latex(text: str) -> str:
    r"""Rewrite cleaned text so that a LaTeX parser reads what was meant.

    Function names get their backslash, ``^10`` and ``\frac12`` their braces, decimals become exact
    fractions, and degrees within a formula become radians.

    >>> to_latex("2*sqrt(3)^10"), to_latex(r"\frac12 x^-2"), to_latex("0.25x")
    ('2\\cdot \\sqrt{3}^{10}', '\\frac{1}{2} x^{-2}', '\\frac{25}{100}x')
    """
    text = unwrap_text(text)
    text = re.sub(r"(?<=\d)(?:,)(?=\d{3}(?!\d))", "", text)
    text = re.sub(
        r"(\d+(?:\.\d+)?)\s*\^\s*\{?\s*\\circ\s*\}?", r"{(\1\\cdot\\frac{\\pi}{180})}", text
    )
    text = re.sub(
        r"(?<![\d.])(\d*)\.(\d+)",
        lambda m: rf"\frac{{{int(m[1] + m[2])}}}{{1{'0' * len(m[2])}}}",
        text,
    )
    text = text.replace("*", r"\cdot ").replace(r"\cfrac", r"\frac")
    text = re.sub(r"(?<![\\a-zA-Z])(?:infinity|infty|inf)(?![a-zA-Z])", r"\\infty ", text)
    text = re.sub(rf"(?<![\\a-zA-Z])({NAMES})(?![a-zA-Z])", r"\\\1 ", text)
    text = re.sub(r"(?:(?<![\\a-zA-Z])|\\)sqrt(?![a-zA-Z])|√", r"\\sqrt", text)
    text = re.sub(r"\^\s*(-?\s*\d+)", r"^{\1}", text)
    for command, count in ((r"\frac", 2), (r"\binom", 2), (r"\sqrt", 1), ("^", 1)):
        text = _brace_arguments(text, command, count)
    return text.strip()


ARGUMENT = re.compile(r"\s*(\\[a-zA-Z]+|[^\s{}\\()])")


def _brace_arguments(text: str, command: str, count: int) -> str:
    """Put the arguments of a command in braces: single characters, and what parentheses hold."""
    done, position = "", 0
    while (at := text.find(command, position)) >= 0:
        end = at + len(command)
        if command[0] == "\\" and text[end : end + 1].isalpha():
            done, position = done + text[position:end], end
            continue
        if command == r"\sqrt" and text.startswith("[", end) and "]" in text[end:]:
            end = text.index("]", end) + 1
        done, position = done + text[position:end], end
        for _ in range(count):
            group = _group(text, position)
            if group is not None:
                content, stop = group
                # The inside is visited too, unless more arguments follow it.
                inside = _brace_arguments(content, command, count)
                done, position = done + "{" + inside + "}", stop
            elif m := ARGUMENT.match(text, position):
                done, position = done + "{" + m[1] + "}", m.end()
    return done + text[position:]


def _group(text: str, start: int) -> tuple[str, int] | None:
    """What a pair of braces or parentheses at this place holds, and where it ends."""
    while text[start : start + 1] == " ":
        start += 1
    if text[start : start + 1] not in ("{", "("):
        return None
    for i, depth in depths(text[start:]):
        if i and depth == 0:
            return text[start + 1 : start + i], start + i + 1
    return None
