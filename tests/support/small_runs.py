"""A run of a second, and its rows."""

TINY = [
    "--train.steps=2",
    "--train.num_problems=2",
    "--train.prompts_per_step=2",
    "--train.group_size=4",
    "--eval.num_problems=2",
    "--eval.num_samples=2",
]


def without_times(rows):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]
