"""The document of ``gradmass advise`` on a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradmass.commands.analyze_tables import counted, plain, share

WORDS = {1: "up", -1: "down", 0: "undecided"}
SIMULATED = {
    "pass@1": "pass@1",
    "pass@10": "pass@10",
    "pass@100": "pass@100",
    "entropy_nats": "entropy",
    "rank_top1_share": "rank-1 share",
}


def print_advice(document: dict[str, Any]) -> None:
    """Print the three parts."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 110

    def say(text: str) -> None:
        console.print(escape(text))

    say(
        f"groups of {document['group_size']}, solve rates {document['solve_rates']}, compared with "
        f"{document['baseline']}"
    )
    console.print("\n[bold]1. Exact[/] (on policy, no clipping, constant normaliser)")
    console.print(exact_table(document["exact"]))
    for entry in document["exact"]:
        if "not_computed" in entry:
            say(f"{entry['label']}: not computed: {entry['not_computed']}")
    say(
        "m_S, m_F at p = 1/4, 3/4; bias: slope of the objective at p = 1/4 minus that of large "
        "groups; useful, effective: share of groups with a weight, and of Kish's effective ones; "
        "lr: what to multiply the learning rate by for steps of GRPO's size (plain gradients; Adam "
        "needs none); pass@k: cosine of the implied objective's gradient with that of pass@k"
    )
    for line in exact_sentences(document["exact"]):
        say(line)
    console.print("\n[bold]2. Simulated[/] (a model, not your run)")
    print_simulated(console, document)
    console.print("\n[bold]3. How often such predictions were right[/]")
    for line in record_lines(document["record"]):
        say(line)


def exact_table(entries: list[dict[str, Any]]) -> Table:
    """Masses, bias, useful groups, scale and alignments."""
    table = Table("weight", box=None)
    headers = ("m_S", "m_F", "bias", "useful", "effective", "lr", "pass@1", "pass@10", "pass@100")
    for header in headers:
        table.add_column(header, justify="right")
    for entry in entries:
        if "not_computed" in entry:
            continue
        at = [entry["p"].index(p) for p in (0.25, 0.75)]
        table.add_row(
            escape(entry["label"]),
            " ".join(plain(round(entry["m_S"][i], 3)) for i in at),
            " ".join(plain(round(entry["m_F"][i], 3)) for i in at),
            plain(_rounded(entry["slope_bias"][at[0]])),
            share(entry["useful_groups"]),
            share(entry["effective_groups"]),
            plain(_rounded(entry["learning_rate_factor"])),
            *(plain(_rounded(value)) for value in entry["alignment"].values()),
        )
    return table


def exact_sentences(entries: list[dict[str, Any]]) -> list[str]:
    """What the alignments predict, in words."""
    from gradmass.advice.record import predicted_sign

    base, *others = entries
    lines = []
    for entry in others:
        if "not_computed" in entry or "not_computed" in base:
            continue
        signs = [
            f"pass@{k} {predicted_sign(value, base['alignment'][k]).replace('none', 'the same')}"
            for k, value in entry["alignment"].items()
            if value is not None
        ]
        lines.append(f"the implied objective of {entry['label']} predicts {', '.join(signs)}")
    return lines


def print_simulated(console: Console, document: Mapping[str, Any]) -> None:
    """The simulated differences, and what was assumed."""
    simulated = document["simulated"]
    if simulated is None:
        console.print("left out (--seeds 0)")
        return
    table = Table("weight", box=None)
    for header in SIMULATED.values():
        table.add_column(header, justify="right")
    for entry in simulated["weights"]:
        if "not_computed" in entry:
            table.add_row(escape(entry["label"]), escape(f"not computed: {entry['not_computed']}"))
            continue
        cells = []
        for key in SIMULATED:
            found = entry[key]
            cells.append(
                f"{found['difference']:+.3f} {WORDS[found['sign']]}"
                if found["sign"]
                else f"{found['difference']:+.3f} ?"
            )
        table.add_row(escape(entry["label"]), *cells)
    console.print(table)
    console.print(
        escape(
            f"difference to {document['baseline']} at the end, mean of {simulated['seeds']} seeds; "
            "?: the 95% interval over seeds holds 0. Assumed:"
        )
    )
    for text in simulated["assumptions"]:
        console.print(escape(f"- {text}"))


def record_lines(record: dict[str, Any]) -> list[str]:
    """The scores in sentences."""
    published = record["published"]
    lines = [
        f"Published, a look back: signs of {published['num_comparisons']} comparisons of "
        f"{published['num_sources']} sources by the implied objectives "
        "(uniform solve rates, their group sizes)"
    ]
    lines += [f"  {name}: {score_text(score)}" for name, score in published["scores"].items()]
    for forecast in record["forecasts"]:
        num = forecast["num_predictions"]
        lines.append(
            f"Forecasts {forecast['name']}, recorded {forecast['recorded']} before their runs: "
            f"{num - len(forecast['waiting'])} of {num} with an outcome"
        )
        lines += [
            f"  {basis}: {score_text(score)}"
            for basis, score in forecast["scores"].items()
            if score["num"]
        ]
    return [*lines, "each with source and numbers: docs/advise.md, gradmass advise --json"]


def score_text(score: dict[str, Any]) -> str:
    """A score in words.

    >>> counts = {"num": 10, "hit": 3, "miss": 1, "undecided": 5, "consistent": 1, "decided": 4}
    >>> score_text({**counts, "no_difference": 6, "always_up": 2, "p_value": 0.3125})
    '3 hits, 1 miss, 5 undecided, 1 same as predicted; no difference right in 6 of 10, up in 2 of 4'
    """
    text = (
        f"{counted(score['hit'], 'hit')}, {score['miss']} miss{'es' * (score['miss'] != 1)}, "
        f"{score['undecided']} undecided"
    )
    if score["consistent"]:
        text += f", {score['consistent']} same as predicted"
    return (
        f"{text}; no difference right in {score['no_difference']} of {score['num']}, "
        f"up in {score['always_up']} of {score['decided']}"
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
