"""``gradmass explore``: what happens to the gradient when I move this slider?"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from gradmass.commands.arguments import parse
from gradmass.commands.masses import read_weight
from gradmass.commands.weights import describe
from gradmass.masses.canonical import Canonical
from gradmass.record import Run
from gradmass.report.explorer import (
    GROUP_SIZES,
    example_run,
    formula_names,
    write_explorer,
)
from gradmass.tables import to_tables
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

AT_FIRST = ("grpo", "power:alpha=3", "asym_grpo_delta", "fade")
"""Weights that a page shows if none is named."""
MOST_WEIGHTS = 8
"""As many as there are colours that can be told apart."""
MOST_RATES, DECIMALS = 2000, 4
"""Different solve rates of a run that are kept as they are; more are rounded."""


@dataclass(frozen=True)
class Arguments:
    """Write a page with sliders: gradient masses, objective and axes of weights, FADE's controller.

    gradmass explore fade grpo power:alpha=3 -o explorer.html. The page needs no network and can be
    sent; the view is in its address. Weights are named as for gradmass masses, files of your own
    included.
    """

    weights: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[WEIGHT ...]")
    ] = ()
    """Weights shown at first; others can be added on the page."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE", aliases=("-o",))] = Path("explorer.html")
    """The page; an existing one is replaced."""
    run: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """A run directory: its solve rates, and the metrics that FADE's controller is played over."""
    json: bool = False
    """Print the path as JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parse(Arguments, "explore", argv)
    specs = arguments.weights or AT_FIRST
    if len(specs) > MOST_WEIGHTS:
        raise UsageError(f"explore shows at most {MOST_WEIGHTS} weights at once, got {len(specs)}")
    weights = {spec: read_weight(spec) for spec in specs}
    if sum(weight.name == "fade" for weight in weights.values()) > 1:
        raise UsageError("the page has one controller: give fade once")
    live = [name for name in formula_names() if name in WEIGHTS.names()]
    data = {
        "weights": [_card(name) for name in live],
        "tables": [_tables(w, spec) for spec, w in weights.items() if not is_live(w)],
        "view": [_shown(weight) for weight in weights.values()],
        "run": example_run() if arguments.run is None else measured(Run(arguments.run)),
    }
    write_explorer(data, arguments.out)
    print(json.dumps({"explorer": str(arguments.out)}) if arguments.json else arguments.out)
    return 0


def is_live(weight: Weight) -> bool:
    """Whether the page has the weight's formula."""
    return weight.name in formula_names() and type(weight) is WEIGHTS[weight.name]


def _card(name: str) -> dict[str, Any]:
    card = describe(WEIGHTS[name])
    fields = {f["name"]: f for f in card["fields"]}
    return {
        "name": name,
        "summary": card["summary"],
        "on_ties": card["on_ties"],
        "scope": card["scope"],
        "fields": {key: [f["default"], f["meaning"]] for key, f in fields.items()},
    }


def _shown(weight: Weight) -> dict[str, Any]:
    if not is_live(weight):
        return {"name": weight.label, "fields": {}}
    fields = {key: value for key, value in to_tables(weight).items() if key != "type"}
    defaults = {key: default for key, (default, _) in _card(weight.name)["fields"].items()}
    return {
        "name": weight.name,
        "fields": {key: value for key, value in fields.items() if value != defaults[key]},
    }


def _tables(weight: Weight, spec: str) -> dict[str, Any]:
    """Weights of groups with 0 to G successes, of a weight that the page has no formula of.

    Raises:
        UsageError: It depends on the whole batch, or takes no group size of the page.
    """
    canonical = Canonical(weight)
    sizes: dict[int, dict[str, list[float]]] = {}
    refusal = None
    for size in GROUP_SIZES:
        try:
            success_S, failure_S = canonical.by_successes(size, np.arange(size + 1))
        except UsageError as error:
            refusal = error
            continue
        sizes[size] = {"success": success_S.tolist(), "failure": failure_S.tolist()}
    if not sizes and refusal is not None:
        raise UsageError(f"explore cannot show {weight.label}: {refusal}")
    return {"label": weight.label, "spec": spec, "sizes": sizes}


def measured(run: Run) -> dict[str, Any]:
    """What the page needs of a run.

    Raises:
        UsageError: The run has recorded no batch yet.
    """
    batches: dict[Any, dict[str, Any]] = {}
    for row in run.metrics:
        if row.get("rollout/solve_rate") is not None or row.get("entropy/mean_nats") is not None:
            # Several updates on one batch are several rows; the controller sees the batch once.
            batches.setdefault(row.get("rollouts", row["step"]), row)
    if not batches:
        raise UsageError(
            f"run {run.path} has no row with rollout/solve_rate or entropy/mean_nats yet; explore "
            "it once it has made a step"
        )
    rows = list(batches.values())
    planned = run.config["recipe"].get("train", {}).get("steps")
    return {
        "label": f"{run.label} ({run.path.name or run.path.resolve().name})",
        "is_example": False,
        "num_steps": planned or rows[-1]["step"],
        "fade": _controller(run),
        # Updates done before the batch, which is what a schedule is told.
        "step": [row["step"] - 1 for row in rows],
        "solve_rate": [row.get("rollout/solve_rate") for row in rows],
        "entropy_nats": [row.get("entropy/mean_nats") for row in rows],
        "priors": list(_priors(run)),
    }


def _controller(run: Run) -> dict[str, Any]:
    """The controller's parameters, where the run had FADE."""
    if run.weight_name != "fade":
        return {}
    return {key: value for key, value in run.config["recipe"]["weight"].items() if key != "type"}


def _priors(run: Run) -> Iterator[dict[str, Any]]:
    """Solve rates of the run's problems: last and first evaluation of each split, or as trained."""
    by_split: dict[str, list[dict[str, Any]]] = {}
    for row in run.evaluations:
        if row["solve_probability"]:
            by_split.setdefault(row["split"], []).append(row)
    for split, rows in by_split.items():
        for row in rows if len(rows) == 1 else (rows[-1], rows[0]):
            yield _distinct(f"{split} problems at step {row['step']}", row["solve_probability"])
    if not by_split:
        rates = _as_trained(run)
        if rates:
            yield _distinct("problems as they were trained on", rates)


def _as_trained(run: Run) -> list[float]:
    """Share of right answers to each problem, over the whole run."""
    counts: dict[str, list[int]] = {}
    for row in run.rollouts():
        if row["verdict"] != "error":
            count = counts.setdefault(str(row["problem_id"]), [0, 0])
            count[0] += row["verdict"] == "right"
            count[1] += 1
    return [right / scored for right, scored in counts.values()]


def _distinct(label: str, rates: Sequence[float]) -> dict[str, Any]:
    # Summed probabilities of all right answers may round beyond 1.
    clipped_N = np.clip(np.array(rates, dtype=float), 0, 1)
    rates_N, counts_N = np.unique(clipped_N, return_counts=True)
    if len(rates_N) > MOST_RATES:
        rates_N, counts_N = np.unique(clipped_N.round(DECIMALS), return_counts=True)
        label = f"{label}, to {DECIMALS} decimals"
    shares = (counts_N / math.fsum(counts_N)).tolist()
    return {
        "label": label,
        "num_problems": len(rates),
        "rates": rates_N.tolist(),
        "shares": shares,
    }
