"""Tables of pass@k for a paper: a row a model, a column a k, in percent."""

import textwrap
from collections.abc import Sequence

from gradmass.metrics.estimates import PassAtK

Rows = Sequence[tuple[str, str, Sequence[PassAtK]]]
"""Label, what it rests on in words, and estimates of each model; the same k for all."""

INTERVALS = {
    "problems-like-these": "for another set of such problems",
    "these-problems": "for these very problems, sampled again",
}
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def markdown(rows: Rows) -> str:
    """A Markdown table with its caption below.

    >>> one = PassAtK(10, 0.5, 0.4, 0.625, "these-problems", 0.95, 30, (16, 16), 0)
    >>> print(markdown([("base", "30 problems, 16 samples each, 0 unscorable", [one])]))
    | model | pass@10 |
    |---|---|
    | base | 50.0 [40.0, 62.5] |
    <BLANKLINE>
    In percent, with 95% intervals for these very problems, sampled again. base: 30 problems, 16
    samples each, 0 unscorable.
    """
    ks = [estimate.k for estimate in rows[0][2]]
    lines = [
        "| model | " + " | ".join(f"pass@{k}" for k in ks) + " |",
        "|---" * (len(ks) + 1) + "|",
    ]
    for label, _, estimates in rows:
        cells = [label.replace("|", r"\|"), *map(_cell, estimates)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _wrapped(caption(rows))])


def latex(rows: Rows) -> str:
    r"""A LaTeX table (package booktabs) with its caption.

    >>> one = PassAtK(1, 0.5, 0.4, 0.625, "these-problems", 0.95, 30, (16, 16), 0)
    >>> print(latex([("a_b", "30 problems", [one])]).splitlines()[5])
    a\_b & 50.0 {\scriptsize [40.0, 62.5]} \\
    """
    ks = [estimate.k for estimate in rows[0][2]]
    lines = [
        r"\begin{table}",
        rf"\begin{{tabular}}{{l{'c' * len(ks)}}}",
        r"\toprule",
        " & ".join(["model", *(f"pass@{k}" for k in ks)]) + r" \\",
        r"\midrule",
    ]
    for label, _, estimates in rows:
        cells = [_escaped(label), *(_cell(e, r"{\scriptsize [%s]}") for e in estimates)]
        lines.append(" & ".join(cells) + r" \\")
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_escaped(caption(rows))}}}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def caption(rows: Rows) -> str:
    """What the numbers rest on: the interval, and each model's problems and samples."""
    first = rows[0][2][0]
    heading = f"In percent, with {first.level:.0%} intervals {INTERVALS[first.interval]}."
    said = {what for _, what, _ in rows}
    if len(said) == 1 and len(rows) > 1:
        return f"{heading} Each model: {rows[0][1]}."
    return " ".join([heading, *(f"{label}: {what}." for label, what, _ in rows)])


def _cell(estimate: PassAtK, interval: str = "[%s]") -> str:
    ends = f"{100 * estimate.low:.1f}, {100 * estimate.high:.1f}"
    return f"{100 * estimate.value:.1f} {interval % ends}"


def _escaped(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 96))
