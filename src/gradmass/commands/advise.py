"""``gradmass advise``: what does theory predict for my setup, and how often was it right?"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from gradmass.commands.arguments import parse
from gradmass.commands.masses import read_weight
from gradmass.commands.progress import CountProgress
from gradmass.masses import Prior, parse_prior
from gradmass.masses.exact import check_group_size
from gradmass.types import UsageError

WEIGHTS = ("grpo_std", "power:alpha=2", "fade", "maxrl", "asym_grpo_delta:delta=0.5")
"""Weights that are advised on if none is named."""
BASELINE = "grpo"
"""What every weight is compared with."""


@dataclass(frozen=True)
class Arguments:
    """Say what theory predicts for a group size and solve rates, and how often it was right.

    gradmass advise --solve-rates beta:0.5,2 --group-size 16. In three parts that are never mixed:
    what is exact, what a simulation of categorical policies gives under the assumptions listed, and
    the record of earlier predictions with what was measured. All is compared with mean-only GRPO.
    """

    solve_rates: Annotated[str, tyro.conf.arg(metavar="FILE|beta:a,b")] = "uniform"
    """Solve rates of the problems: uniform, beta:a,b, or a file of them, a JSON list or one a
    line."""
    group_size: int = 8
    """Rollouts of a problem."""
    lag: int = 0
    """Batches between sampling and updating (simulated only)."""
    updates_per_batch: int = 1
    """Updates on each batch (simulated only)."""
    weights: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WEIGHT ...")] = WEIGHTS
    """Weights, as in gradmass masses."""
    seeds: int = 8
    """Simulated runs of each weight; 0 leaves the simulation out."""
    json: bool = False
    """Print JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parse(Arguments, "advise", argv)
    check_group_size(arguments.group_size)
    prior = parse_prior(arguments.solve_rates)
    document = advise(arguments, prior)
    if arguments.json:
        print(json.dumps(document, allow_nan=False))
    else:
        from gradmass.commands.advise_tables import print_advice

        print_advice(document)
    return 0


def advise(arguments: Arguments, prior: Prior) -> dict[str, Any]:
    """All three parts as plain JSON."""
    from gradmass.advice import Setup, exact_advice, simulate, track_record

    baseline = read_weight(BASELINE)
    weights = [
        weight for weight in map(read_weight, arguments.weights) if weight.label != baseline.label
    ]
    simulated = None
    if arguments.seeds == 0:
        if arguments.lag or arguments.updates_per_batch != 1:
            raise UsageError(
                "--lag and --updates-per-batch act in the simulation, which --seeds 0 leaves out"
            )
    else:
        setup = Setup(
            arguments.group_size,
            arguments.lag,
            arguments.updates_per_batch,
            arguments.seeds,
        )
    exact = [exact_advice(weight, arguments.group_size, prior) for weight in (baseline, *weights)]
    if arguments.seeds:
        num_runs = arguments.seeds * (1 + len(weights))
        with CountProgress("simulated runs", num_runs) as progress:
            entries = simulate(weights, baseline, setup, prior, progress.show)
        simulated = {
            "assumptions": setup.assumptions(),
            "seeds": setup.seeds,
            "weights": entries,
        }
    return {
        "solve_rates": prior.label,
        "group_size": arguments.group_size,
        "lag": arguments.lag,
        "updates_per_batch": arguments.updates_per_batch,
        "baseline": baseline.label,
        "exact": exact,
        "simulated": simulated,
        "record": track_record(),
    }
