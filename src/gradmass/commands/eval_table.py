"""What ``gradmass eval`` prints for people."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from rich.table import Table

from gradmass.tasks import TASKS


def heading(results: Mapping[str, Any]) -> str:
    """Of which model on which task the numbers are, and how answers were drawn."""
    task = dict(results["task"])
    name = task.pop("type")
    defaults = {f.name: f.default for f in fields(TASKS[name]) if f.default is not MISSING}
    own = [f"{key} = {value}" for key, value in task.items() if defaults.get(key) != value]
    said = f"{name} ({', '.join(own)})" if own else name
    return (
        f"{results['model']} on {said}; temperature {results['temperature']:g}, top-p "
        f"{results['top_p']:g}, at most {results['max_new_tokens']} tokens, {results['prompt']} "
        f"prompts, seed {results['seed']}"
    )


def table(splits: Sequence[Mapping[str, Any]]) -> Table:
    """Exact and sampled values of each split, a row each; columns that have any."""
    kinds = {
        "exact": any(key[:5] == "pass@" for split in splits for key in split),
        "sampled [95%, these problems]": any(split["num_samples"] for split in splits),
        "samples": any(split["num_samples"] for split in splits),
    }
    table = Table(
        "split", "problems", "", *(k for k, is_there in kinds.items() if is_there), box=None
    )
    for result in splits:
        first = (result["split"], str(result["num_problems"]))
        keys = [key.removeprefix("sampled_") for key in result if "pass@" in key or "answer" in key]
        for key in dict.fromkeys(key for key in keys if not key.endswith(("_low", "_high"))):
            exact = f"{result[key]:.3f}" if key in result else ""
            sampled, num_samples = "", ""
            if f"sampled_{key}" in result:
                value, low, high = (result[f"sampled_{key}{end}"] for end in ("", "_low", "_high"))
                sampled, num_samples = f"{value:.3f} [{low:.3f}, {high:.3f}]", result["num_samples"]
            cells = zip((exact, sampled, str(num_samples)), kinds.values(), strict=True)
            table.add_row(*first, key, *(cell for cell, is_there in cells if is_there))
            first = ("", "")
    return table


def notes(results: Mapping[str, Any]) -> list[str]:
    """What the numbers do not show: answers that were cut, and those without a verdict."""
    lines = []
    for split in results["splits"]:
        samples = split.get("samples")
        if samples is None:
            continue
        name, total = split["split"], split["num_problems"] * split["num_samples"]
        if samples["num_truncated"]:
            lines.append(
                f"{name}: {samples['num_truncated']} of {total} answers were cut at "
                f"{results['max_new_tokens']} tokens and count as not right"
            )
        if samples["num_unscorable"]:
            lines.append(
                f"{name}: {samples['num_unscorable']} of {total} answers have no verdict and are "
                f"left out; problems have {samples['min_samples']} to {samples['max_samples']} "
                f"scored samples"
            )
        if without := split["num_problems"] - samples["num_scored_problems"]:
            lines.append(f"{name}: problems without a scored sample, which are left out: {without}")
        for k in results["k"]:
            if f"sampled_pass@{k}" not in split and k <= split["num_samples"]:
                lines.append(
                    f"{name}: no pass@{k}: a problem has only {samples['min_samples']} scored "
                    "samples"
                )
    return lines
