"""The document of ``gradmass analyze`` on a terminal."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

BARS = " ▁▂▃▄▅▆▇█"
FORMATS = {
    "trl": "TRL completions",
    "verl": "verl rollouts",
    "jsonl": "rows of JSON Lines",
    "parquet": "rows of Parquet",
}


def print_document(document: dict[str, Any]) -> None:
    """Print what a log says, section by section."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 110
    for line in what_lines(document):
        console.print(escape(line))
    sections = (
        ("Solve rates and signal over time", _time_table(document)),
        ("Groups without signal", groups_lines(document)),
        ("Rewards", rewards_lines(document)),
        ("Weights on these rollouts", _weights_table(document)),
        ("Problems", problems_lines(document)),
        ("Answers", answers_lines(document)),
        ("What this log cannot tell", [f"- {said}" for said in document["cannot_tell"]]),
    )
    for title, content in sections:
        if content:
            console.print(f"\n[bold]{title}[/]")
            for item in content if isinstance(content, list) else [content]:
                console.print(escape(item) if isinstance(item, str) else item)


def page_sections(document: dict[str, Any]) -> dict[str, Any]:
    """The same sentences and tables for the page."""
    headers, rows, notes = weight_rows(document)
    return {
        "what": what_lines(document),
        "groups": groups_lines(document),
        "rewards": rewards_lines(document),
        "problems": problems_lines(document),
        "answers": answers_lines(document),
        "weights": [headers, *rows],
        "weight_notes": notes,
    }


def what_lines(document: dict[str, Any]) -> list[str]:
    """What was read, and how, in sentences."""
    log = document["log"]
    sizes = log["group_sizes"]
    size = f"of {next(iter(sizes))}" if len(sizes) == 1 else f"of {min(map(int, sizes))} to "
    size += "" if len(sizes) == 1 else str(max(map(int, sizes)))
    first, last = log["steps"]
    lines = [
        f"{FORMATS[log['format']]}, {counted(len(log['files']), 'file')}: "
        f"{counted(log['num_rollouts'], 'rollout')}, {counted(log['num_groups'], 'group')} {size}, "
        f"{counted(log['num_problems'], 'problem')}, "
        + (f"steps {first} to {last}" if last > first else f"step {first}"),
    ]
    factors = log["reward_factors"]
    reward = " + ".join(
        name if factor == 1 else f"{factor:g} x {name}" for name, factor in factors.items()
    )
    notes = [
        f"right is: {log['verdicts']}" if log["verdicts"] else "right is: not known",
        *([f"reward is: {reward}"] if reward not in ("", "reward") else []),
        *log["notes"],
    ]
    return [*lines, "; ".join(notes)]


def groups_lines(document: dict[str, Any]) -> list[str]:
    """Groups without signal, and what they cost."""
    groups = document["groups"]
    cost = groups["cost"]
    price = f"{share(cost['rollouts'])} of rollouts"
    if cost.get("generated") is not None:
        price += f" and {share(cost['generated'])} of {cost['unit']}"
    if "mixed" not in groups:
        return [f"{share(groups['tied'])} of groups have equal rewards: {price}"]
    without = 1 - groups["mixed"]
    lines = [
        f"{share(without)} of groups have no right and wrong answer together: "
        f"{share(groups['too_hard'])} all wrong (too hard), {share(groups['too_easy'])} all right "
        f"(too easy)"
        + (f", {share(groups['unscored'])} unscored" if groups["unscored"] else "")
        + f"; they cost {price}",
        f"{share(groups['mixed'])} are mixed; were all problems alike, "
        f"{share(groups['mixed_if_all_alike'])} would be",
    ]
    if abs(groups["tied"] - without) > 1e-9:
        lines.append(f"{share(groups['tied'])} of groups have equal logged rewards")
    return lines


def rewards_lines(document: dict[str, Any]) -> list[str]:
    """Each reward function in a line, with what is odd about it."""
    lines = []
    for name, found in document["rewards"]["functions"].items():
        odd = [
            f"{found[key]:,} {word}"
            for key, word in (
                ("num_null", "None"),
                ("num_nan", "NaN"),
                ("num_infinite", "infinite"),
            )
            if found[key]
        ]
        if found["num_values"] == 0:
            lines.append(f"{name}: no number at all" + "".join(f"; {text}" for text in odd))
            continue
        if found["num_values"] == 1:
            odd.insert(0, "one value throughout: it teaches nothing")
        elif found["num_values"] > 2:
            odd.insert(0, f"partial credit in {share(found['partial'])}")
        values = (
            ", ".join(f"{value:.4g}" for value in found["values"])
            if found["values"]
            else f"{found['num_values']:,} values from {found['lowest']:.4g} "
            f"to {found['highest']:.4g}"
        )
        lines.append(f"{name}: {values}; mean {found['mean']:.4g}" + "".join(f"; {o}" for o in odd))
    if document["rewards"]["num_unscored"]:
        lines.append(f"{counted(document['rewards']['num_unscored'], 'rollout')} without a reward")
    if document["rewards"]["num_constant_steps"]:
        lines.append(
            f"{counted(document['rewards']['num_constant_steps'], 'step')} of "
            f"{document['log']['num_steps']:,} with one reward throughout"
        )
    return lines


def problems_lines(document: dict[str, Any]) -> list[str]:
    """Problems that never move, and how the others moved."""
    found = document["problems"]
    if found is None:
        return []
    if not found["num_visited_again"]:
        return [f"each of the {found['num']:,} problems was met once: none can be seen to move"]
    lines = [
        f"{found['num_visited_again']:,} of {found['num']:,} were met more than once; from first "
        f"to last visit {found['num_up']:,} went up, {found['num_down']:,} down, "
        f"on average {found['mean_change']:+.3f}"
    ]
    for kind, words in (("never_solved", "never solved"), ("always_solved", "always solved")):
        some = found[kind]
        if not some["num"]:
            continue
        lines.append(
            f"{some['num']:,} {words} ({share(some['num'] / found['num_visited_again'])}), "
            f"median {some['median_rollouts']:g} rollouts each; tried most:"
        )
        lines += [
            f"  {item['rollouts']:,} rollouts: {item['problem']}" for item in some["most_tried"]
        ]
    return lines


def answers_lines(document: dict[str, Any]) -> list[str]:
    """Duplicates, lengths and entropy."""
    lines = []
    repeats, lengths, entropy = document["duplicates"], document["lengths"], document["entropy"]
    if repeats is not None:
        right = repeats.get("share_right")
        lines.append(
            f"{share(repeats['share'])} of answers repeat one of their group"
            + (f", {share(right)} of right ones repeat a right one" if right is not None else "")
        )
    if lengths is not None:
        text = f"mean length {lengths['mean']:.4g} {lengths['unit']}"
        if lengths.get("right") is not None and lengths.get("wrong") is not None:
            text += f": right {lengths['right']:.4g}, wrong {lengths['wrong']:.4g}"
        lines.append(text + (f"; {lengths['num_empty']:,} empty" if lengths["num_empty"] else ""))
    if entropy is not None and entropy["mean"] is not None:
        shown = " ".join("-" if mean is None else f"{mean:.3f}" for mean in entropy["by_window"])
        lines.append(
            f"entropy {entropy['mean']:.3f} {entropy['unit']} ({entropy['from']}); "
            f"over time {shown}"
        )
    return lines


def _time_table(document: dict[str, Any]) -> Table | None:
    rates, groups = document["solve_rates"], document["groups"]["by_window"]
    if rates is None:
        return None
    table = Table("steps", "solved", "all wrong", "0 to 1", "all right", "mixed", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    highest = max(max(row["mixed"]) for row in rates["by_window"])
    pairs = zip(document["log"]["windows"], rates["by_window"], groups, strict=True)
    for (first, last), row, group in pairs:
        bars = "".join(
            BARS[-(-count * (len(BARS) - 1) // highest)] if highest else " "
            for count in row["mixed"]
        )
        table.add_row(
            f"{first} to {last}" if last > first else str(first),
            "-" if row["mean"] is None else f"{row['mean']:.3f}",
            share(group["too_hard"]),
            f"▏{bars}▕",
            share(group["too_easy"]),
            share(group["mixed"]),
        )
    return table


def _weights_table(document: dict[str, Any]) -> list[Any]:
    headers, rows, notes = weight_rows(document)
    table = Table(headers[0], box=None)
    for header in headers[1:]:
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(*map(escape, row))
    return [table, *notes]


def weight_rows(document: dict[str, Any]) -> tuple[list[str], list[list[str]], list[str]]:
    """Headers, a row for each weight, and what is to be said beside them."""
    headers = ["weight", "m_S", "m_F", "m_S/m_F", "by tokens", "hard S", "easy S"]
    headers += ["rollouts", "groups"]
    if document["lengths"] is not None and document["lengths"]["unit"] != "tokens":
        headers[4] = "by characters"
    rows, notes = [], []
    for entry in document["weights"]:
        label = entry["label"]
        if "not_computed" in entry:
            notes.append(f"{label}: not computed: {entry['not_computed']}")
            continue
        rows.append([label + _like(entry), *weight_cells(entry)])
        state = entry.get("state", {})
        shown = [
            f"{key} {state[key]:.3g}"
            for key in ("alpha", "delta")
            if isinstance(state.get(key), float)
        ]
        if shown:
            notes.append(f"{label} ended at {', '.join(shown)}")
    notes.append(
        f"{headers[4]}: m_S/m_F where the loss divides by the number of tokens; hard S, easy S: "
        "share of m_S on groups below 3/10 and from 7/10 solved; rollouts, groups: effective share "
        "(Kish)"
    )
    return headers, rows, notes


def weight_cells(entry: dict[str, Any]) -> list[str]:
    """The numbers of a weight as text."""
    if "m_S" not in entry:
        return ["-"] * 6 + [share(entry["effective_rollouts"]), share(entry["effective_groups"])]
    positive = entry["positive_by_solve_rate"]
    total, num = sum(positive), len(positive)
    hard = sum(mass for i, mass in enumerate(positive) if i < 0.3 * num)
    easy = sum(mass for i, mass in enumerate(positive) if i >= 0.7 * num)
    token_mean = entry.get("token_mean")
    return [
        plain(entry["m_S"]),
        plain(entry["m_F"]),
        plain(entry["sign_ratio"]),
        plain(token_mean["sign_ratio"]) if token_mean else "-",
        share(hard / total) if total > 0 else "-",
        share(easy / total) if total > 0 else "-",
        share(entry["effective_rollouts"]),
        share(entry["effective_groups"]),
    ]


def _like(entry: dict[str, Any]) -> str:
    like = entry.get("like")
    if like is None:
        return ""
    factor = "" if abs(like["factor"] - 1) < 0.005 else f"{like['factor']:.3g} x "
    return f" ({factor}{like['weight']})"


def plain(value: float | None) -> str:
    """A number with four digits; a dash for none.

    >>> plain(0.123456), plain(-1e-18), plain(None)
    ('0.1235', '0', '-')
    """
    return "-" if value is None else f"{round(value, 6) + 0.0:.4g}"


def share(value: float) -> str:
    """A share as a percentage; what is not nothing does not read as 0%.

    >>> share(0.123), share(0.0), share(0.0004), share(1.0)
    ('12%', '0%', '<1%', '100%')
    """
    if 0 < value < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= value < 1 else f"{100 * value:.0f}%"


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "file"), counted(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"
