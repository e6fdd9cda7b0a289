"""What a log cannot tell, and what to look at twice in it."""

from typing import Any

import numpy as np

from gradmass.logs.rollouts import Rollouts


def cannot_tell(log: Rollouts, document: dict[str, Any]) -> list[str]:
    """One sentence for each thing that the log does not say or says in a way to be checked."""
    return [*_of_rewards(log, document), *_of_grouping(log, document), *_of_columns(log, document)]


def _of_rewards(log: Rollouts, document: dict[str, Any]) -> list[str]:
    said = []
    if log.verdicts is None:
        said.append(
            "which rollouts are right: rewards are neither 0 and 1 nor -1 and 1 in one function "
            "alone, so masses by sign are left out (name verdicts with --success, or give "
            "--threshold)"
        )
    if log.source.format == "trl":
        if len(log.rewards) > 1:
            said.append(
                "reward weights: TRL logs each function, not their sum; they are added with the "
                f"factors shown (others: --reward {next(iter(log.rewards))}=FACTOR ...)"
            )
        said.append(
            "what is an evaluation: TRL writes evaluation rows into the same file as training "
            "rows, with nothing to tell them apart" + _odd_steps(log)
        )
        said.append("other batches: TRL keeps only the latest batch at each logging step")
    in_use = document["weights"][0] if document["weight_in_use"] == "as logged" else None
    if in_use is not None and in_use["like"] is None:
        said.append(
            "by what rule the logged weights were computed: they are no multiple of GRPO's on "
            "these rewards (another rule, other reward weights or factors, or a column that is no "
            "reward)"
        )
    if document["weight_in_use"] is None:
        said.append("the weight in use: none was logged (name it with --weight)")
    return said


def _odd_steps(log: Rollouts) -> str:
    steps, counts = np.unique(log.step_B, return_counts=True)
    usual = int(np.bincount(counts).argmax())
    odd = steps[counts > usual]
    if len(odd) == 0:
        return ""
    shown = ", ".join(map(str, odd[:5].tolist())) + ("" if len(odd) <= 5 else ", ...")
    return f"; step {shown} has more rows than the usual {usual}"


def _of_grouping(log: Rollouts, document: dict[str, Any]) -> list[str]:
    said = []
    sizes = document["log"]["group_sizes"]
    if log.roles.group is None and len(sizes) > 1:
        shown = ", ".join(f"{size} ({count})" for size, count in list(sizes.items())[:5])
        way = " (--group-size cuts them)" if log.source.format == "trl" else ""
        said.append(
            f"whether two draws of one prompt in a step are one group: sizes are {shown}, and "
            f"there is no group id{way}"
        )
    if list(sizes) == ["1"]:
        said.append(
            "groups: each has one rollout, so weights that compare rollouts are 0; name what the "
            "rollouts of a prompt share with --group or --problem"
        )
    if log.roles.step is None:
        said.append("change over time: there is no column of steps (name it with --step)")
    return said


def _of_columns(log: Rollouts, document: dict[str, Any]) -> list[str]:
    said = []
    if log.length_B is None:
        what = "characters stand in for them" if log.chars_B is not None else "none are shown"
        said.append(f"lengths in tokens: {what} (name a column with --length)")
    blind = [
        weight["label"]
        for weight in document["weights"]
        if weight.get("state", {}).get("entropy_kind", "") is None
    ]
    if blind:
        said.append(
            f"what {' and '.join(blind)} would have made of the entropy, which is not logged: "
            "what follows it stays at its start"
        )
    if document["entropy"] is None:
        said.append(
            "entropy: neither entropies nor log-probabilities are logged (--entropy, --logprobs)"
        )
    elif document["entropy"]["from"] != "logged":
        said.append(
            "the sampler's temperature and truncation, without which log-probabilities of sampled "
            "tokens give its entropy only at temperature 1"
        )
    said.append("clipping, staleness and KL: masses are as weighed, not as they reach the gradient")
    return said
