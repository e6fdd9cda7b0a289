"""Write ``weights.md`` and ``which_weight.md`` beside this file: ``make docs``.

The first is made of the registered weights, the second of their masses.
"""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from gradmass.commands.weights import describe
from gradmass.masses import Prior, axes_of, finite_group_bias, masses_of, parse_prior
from gradmass.tables import from_spec
from gradmass.weights import WEIGHTS, Weight

PAGE = Path(__file__).with_name("weights.md")
WHICH_PAGE = Path(__file__).with_name("which_weight.md")
DOMAINS = {"binary": "0 or 1", "unit": "in [0, 1]", "real": "any finite number"}
TIES = {"zero": "weights 0", "value": "weights like any other"}


def weights_page() -> str:
    """The page about the weights that come with the package; plug-ins are left out."""
    classes = [WEIGHTS[name] for name in WEIGHTS.names()]
    entries = [describe(cls) for cls in classes if cls.__module__.startswith("gradmass.")]
    head = """\
<!-- Written by docs/generate.py (make docs) from the classes in src/gradmass/weights. -->

# Policy weights

What multiplies the score function of a rollout, by registered name. `p` is the solve rate of a
problem, `rbar` the mean reward of a group, `m_S` and `m_F` the gradient mass of successes and
failures. `gradmass weights NAME` shows the same on a terminal. Methods whose formula is not public
are listed in [weights_missing.md](weights_missing.md).
"""
    rows = [
        "| weight | depends on its | what it does | gradient masses, binary rewards | fields |",
        "|---|---|---|---|---|",
        *(
            _row(
                f"[`{e['name']}`](#{e['name']})",
                e["scope"],
                _markdown(e["summary"]),
                _markdown(_masses(e["description"])),
                ", ".join(_code(f["name"]) for f in e["fields"]),
            )
            for e in entries
        ),
    ]
    return "\n\n".join([head + "\n" + "\n".join(rows), *map(_section, entries)]) + "\n"


def _section(entry: dict[str, Any]) -> str:
    promises = (
        f"Rewards: {DOMAINS[entry['domain']]}. Groups of equal rewards: {TIES[entry['on_ties']]}."
        + " The weights of every group sum to 0." * entry["zero_sum"]
    )
    parts = [f"## {entry['name']}", _markdown(entry["description"]), promises]
    if entry["fields"]:
        rows = [
            _row(
                _code(f["name"]),
                "required" if f["is_required"] else _code(repr(f["default"])),
                _markdown(f["meaning"]),
            )
            for f in entry["fields"]
        ]
        parts.append("\n".join(["| field | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def _masses(description: str) -> str:
    """What a docstring says of the gradient masses, up to the end of the clause."""
    said = re.search(r"Gradient masses[^:]*: (.*)", " ".join(description.split()))
    # Punctuation within a formula ends no clause.
    clause = said and re.match(r"(?:``.*?``|[^`])*?(?=[.;:](?:\s|$))", said[1])
    return clause[0] if clause else ""


def _markdown(text: str) -> str:
    """A docstring's markup as Markdown: double backticks to single, bare asterisks escaped."""
    parts = re.split(r"``(.*?)``", text, flags=re.DOTALL)
    return "".join(
        _code(part) if i % 2 else part.replace("*", r"\*") for i, part in enumerate(parts)
    )


def _row(*cells: str) -> str:
    """A row of a table; a bar within a cell is no border."""
    return " ".join(["|", " | ".join(cell.replace("|", r"\|") for cell in cells), "|"])


def _code(text: str) -> str:
    return f"`{text}`"


COMPARED = {
    "reinforce": "`p`",
    "reinforce_batch_baseline": "`p`",
    "rloo": "`p`",
    "grpo": "`p`",
    "grpo_std": "`2 arcsin sqrt p`",
    "maxrl": "`log p`",
    "rs_grpo:beta=2": "`log(1 + p (e^2 - 1)) / 2`",
    "pkpo_sloo_minus_one:k=4": "`1 - q^4` (pass@4)",
    "passk_tang": "`1 - q^8` (pass@8)",
    "passk_chen:k=4": "`arcsin sqrt(1 - q^4) / 2`",
    "power:alpha=2": "`(1 - q^2) / 2` (pass@2 / 2)",
    "power:alpha=3": "`(1 - q^3) / 3` (pass@3 / 3)",
    "power_unbiased:alpha=3": "`(1 - q^3) / 3` (pass@3 / 3)",
    "asym_grpo_delta:delta=0.5": "`p + p^2 / 2`",
    "sign_pure:delta=0.5": "`p`",
    "w_reinforce": "`1.1 p`",
    "psr": "`p`",
    "nsr": "`p`",
}
"""Weights of the page's first table, with the objectives they have in the limit, q = 1 - p."""
PRIORS = ("uniform", "beta:0.5,1.2")


def which_page() -> str:
    """The page that says which weight does what, as far as that follows from its masses."""
    blocks = {
        "AXES": _axes_table(),
        "BIAS": _bias_table(),
        "SIGN": _sign_table(),
        "FADE": _fade_table(),
        "LENGTHS": _lengths_table(),
    }
    text = WHICH
    for name, block in blocks.items():
        text = text.replace(f"{{{name}}}", block)
    return text


def _weight(spec: str) -> Weight:
    return from_spec(Weight, spec)  # type: ignore[type-abstract]


def _axes_table() -> str:
    """Axes of the compared weights in groups of 8."""
    rows = [
        _row("weight", "F, large groups", "peak of m_S, m_F", "scale at 1/2", "scale, uniform")[:-2]
        + " | scale, Beta(.5, 1.2) | effective groups |",
        "|---|---|---|---|---|---|---|",
    ]
    priors = [parse_prior(text) for text in PRIORS]
    for spec, objective in COMPARED.items():
        weight = _weight(spec)
        first, second = (_axes(weight, prior) for prior in priors)
        peaks = f"{_short(first.peak_S)}, {_short(first.peak_F)}"
        scales = (first.scale_at_half, first.scale_mean, second.scale_mean)
        rows.append(
            _row(
                _code(spec),
                objective,
                peaks,
                *map(_short, scales),
                _short(second.effective_groups),
            )
        )
    return "\n".join(rows)


def _axes(weight: Weight, prior: Prior) -> Any:
    return axes_of(weight, masses_of(weight, np.array([0.5]), 8, prior=prior), prior=prior)


def _bias_table() -> str:
    """Slope of the objective at finite group sizes over its limit."""
    p_N, sizes = np.array([0.05, 0.25, 0.5]), (4, 8, 16, 64)
    rows = [
        _row("weight", "p", *(f"G = {size}" for size in sizes)),
        "|---|---|" + "---|" * len(sizes),
    ]
    for spec in ("rloo", "grpo", "grpo_std", "power:alpha=3", "power_unbiased:alpha=3", "maxrl"):
        weight = _weight(spec)
        ratios = []
        for size in sizes:
            masses = masses_of(weight, p_N, size)
            slope_N = masses.objective_slope_N
            ratios.append(slope_N / (slope_N - finite_group_bias(weight, masses)))
        for i, p in enumerate(p_N):
            rows.append(
                _row(_code(spec) if i == 0 else "", f"{p:g}", *(_short(r[i]) for r in ratios))
            )
    return "\n".join(rows)


def _sign_table() -> str:
    """Slope and ratio of signs of the two sign probes."""
    p_N = np.array([0.1, 0.5, 0.9])
    rows = [_row("weight", "p", "m_S / m_F", "F'"), "|---|---|---|---|"]
    for spec in ("asym_grpo_delta:delta=0.5", "sign_pure:delta=0.5"):
        masses = masses_of(_weight(spec), p_N, 8)
        slopes = masses.objective_slope_N * (8 / 7 if "asym" in spec else 1)
        for i, p in enumerate(p_N):
            ratio = masses.m_S_N[i] / masses.m_F_N[i]
            rows.append(
                _row(_code(spec) if i == 0 else "", f"{p:g}", _short(ratio), _short(slopes[i]))
            )
    return "\n".join(rows)


def _fade_table() -> str:
    """Total mass of FADE in the states of a run."""
    rows = [
        _row("alpha", "delta", "Beta(.5, 1.2)", "uniform", "Beta(2, 1)"),
        "|---|---|---|---|---|",
    ]
    priors = [parse_prior(text) for text in ("beta:0.5,1.2", "uniform", "beta:2,1")]
    for alpha, delta in ((3.0, 1.0), (1.5, 1.0), (1.0, 1.0), (3.0, 0.3), (1.0, 0.3)):
        weight = WEIGHTS["power_asym"](alpha=alpha, delta=delta)
        scales = (_short(_axes(weight, prior).scale_mean) for prior in priors)
        rows.append(_row(f"{alpha:g}", f"{delta:g}", *scales))
    return "\n".join(rows)


def _lengths_table() -> str:
    """Masses of GRPO by tokens where wrong rollouts are twice as long."""
    p_N = np.array([0.1, 0.5, 0.9])
    masses = masses_of(_weight("grpo"), p_N, 8)
    m_S_N, m_F_N = masses.token_mean(1.0, 2.0)
    rows = [_row("p", "m_S = m_F", "m_S by tokens", "m_F by tokens"), "|---|---|---|---|"]
    columns = (masses.m_S_N, m_S_N, m_F_N)
    rows += [_row(f"{p:g}", *(_short(c[i]) for c in columns)) for i, p in enumerate(p_N)]
    return "\n".join(rows)


def _short(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{round(value, 9):.3g}"


WHICH = """\
<!-- Written by docs/generate.py (make docs): every number is computed from the weights. -->

# Which weight should I use?

This page says what follows from the gradient masses alone, for rewards of 0 and 1. It ranks no
method: how a weight trains is measured, on your task, with controls. `gradmass masses` computes the
same for any weight, your own included, at your group size and your solve rates:

```
gradmass masses fade grpo power:alpha=3 --group-size 8 --prior beta:0.5,1.2 --plot masses.svg
```

## What you optimise

On policy and without clipping, the expected gradient of any weight is `(m_S / p + m_F / q) grad p`,
`q = 1 - p`: each weight has an objective `F(p)` of the solve rate with the slope
`F' = m_S / p + m_F / q`, and the split between successes and failures does not show in it. Three
choices can thus be told apart: the objective (difficulty), the split (sign), and the scale.

In groups of 8. *Scale* is the total mass over that of `grpo`, at p = 1/2, and on average over
problems with uniform solve rates and with Beta(.5, 1.2), mean .29. *Effective groups* is Kish's
share of groups under Beta(.5, 1.2): how evenly the weight uses a batch.

{AXES}

- **The solve rate (pass@1)**: `rloo` has it exactly at every group size; `grpo` is `rloo` times
  `(G - 1) / G`. Weights with objective `p` differ in variance and in the split, not in what they
  optimise.
- **pass@k**: `pkpo_sloo_minus_one` and `power_unbiased` have it exactly at every group size they
  take; `power` has it in the limit and is biased in small groups (below). `passk_tang` has pass@k
  for k = G, from sole successes alone: see its effective groups.
- **Hard problems**: a lower peak. `power`, `maxrl` and `pkpo` move mass there by different routes;
  compare them at equal scale.

## Group size

A weight that puts the group's mean into a function of the solve rate optimises something else in a
small group. The slope of its objective over that of large groups:

{BIAS}

Leave-one-out and counted forms have no such bias. The bias of `maxrl` is truncation: the slope is
`(1 - q^(G - 1)) / p`, so problems with p below about 1/G count as if p were 1/G.

## Sign

`asym_grpo_delta` moves the split and the objective together; `sign_pure` moves the split alone. In
groups of 8, slopes without the factor `(G - 1) / G` of the former:

{SIGN}

The split acts only through what the expected on-policy gradient leaves out: sampling noise, stale
policies, clipping, Adam, finite steps. Whether it helps is a question for a run. If you compare
splits, use `sign_pure`.

## Scale

Two weights at one learning rate take steps of different size: some scales above are more than ten
times others. With plain gradient steps, divide the learning rate by the scale. Adam cancels a
constant factor, not one that moves, and gradient clipping sees all of them. In a recipe,
`equalise = "mass_at_half"` or `"mean_mass"` multiplies a weight by one number for the whole run.

FADE's scale moves within a run. Mean total mass over that of `grpo`, groups of 8, for values of
alpha and delta it takes:

{FADE}

So a run that reaches a level earlier may have taken larger steps. Controls: `constant_mass` holds
the total mass of any weight at `grpo`'s on every batch; `replay` with `what = "mass"` gives another
weight FADE's scale step by step; `replay` with `what = "alpha_delta"` gives FADE's schedule without
its feedback.

## Lengths

The masses are what the weight says if the loss divides by a constant. Dividing by the number of
tokens multiplies them by the length of right and of wrong rollouts over the mean length. `grpo` in
groups of 8, wrong rollouts twice as long as right ones:

{LENGTHS}

A weight with balanced masses is then no longer balanced. `gradmass masses --lengths RIGHT,WRONG`
shows it for your lengths.

## What masses do not say

They say nothing of variance beyond the effective share of groups, of off-policy data, of entropy,
or of accuracy at the end of a run. What they prevent is crediting a method with what its scale or
its objective did.
"""


if __name__ == "__main__":
    for file, page in ((PAGE, weights_page()), (WHICH_PAGE, which_page())):
        file.write_text(page)
        print(file)
