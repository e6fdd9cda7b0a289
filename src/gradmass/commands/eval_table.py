"""What ``gradmass eval`` prints for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table


def table(splits: Sequence[Mapping[str, Any]]) -> Table:
    """Exact and sampled values of each split, a row each."""
    table = Table("split", "problems", "", "exact", "sampled [95%]", "samples", box=None)
    for result in splits:
        first = (result["split"], str(result["num_problems"]))
        keys = [key.removeprefix("sampled_") for key in result if "pass@" in key or "answer" in key]
        for key in dict.fromkeys(key for key in keys if not key.endswith(("_low", "_high"))):
            exact = f"{result[key]:.3f}" if key in result else ""
            sampled, num_samples = "", ""
            if f"sampled_{key}" in result:
                value, low, high = (result[f"sampled_{key}{end}"] for end in ("", "_low", "_high"))
                sampled, num_samples = f"{value:.3f} [{low:.3f}, {high:.3f}]", result["num_samples"]
            table.add_row(*first, key, exact, sampled, str(num_samples))
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
            lines.append(f"{name}: {without} problems have no scored sample and are left out")
        for k in results["k"]:
            if f"sampled_pass@{k}" not in split and k <= split["num_samples"]:
                lines.append(
                    f"{name}: no pass@{k}: a problem has only {samples['min_samples']} scored "
                    "samples"
                )
    return lines
