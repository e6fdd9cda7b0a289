"""How long ``gradmass analyze`` takes on a million rollouts, and how much memory.

    python benchmarks/analyze.py [--rows 1000000] [--keep DIR]

Writes synthetic logs (groups of 8, answers of 400 characters in Parquet, 200 bytes a row in JSON
Lines), analyses each in a process of its own, and prints seconds and peak memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP, GROUPS_A_STEP = 8, 128
CHUNK_GROUPS = 1024


def columns(rng, first_group, num_groups, answer_length):
    """Columns of so many groups."""
    num = num_groups * GROUP
    group_N = np.repeat(np.arange(first_group, first_group + num_groups), GROUP)
    rate_N = np.repeat(rng.beta(0.5, 0.5, num_groups), GROUP)
    reward_N = (rng.random(num) < rate_N).astype(float)
    filler = rng.integers(97, 123, num * answer_length, dtype=np.uint8).tobytes().decode()
    return {
        "step": (group_N // GROUPS_A_STEP).tolist(),
        "prompt": [f"problem {g % 20011} of the data set" for g in group_N],
        "completion": [filler[i * answer_length : (i + 1) * answer_length] for i in range(num)],
        "exact_reward": reward_N.tolist(),
        "advantage": (reward_N - reward_N.reshape(-1, GROUP).mean(1).repeat(GROUP)).tolist(),
    }


def write_parquet(file, rows):
    rng = np.random.default_rng(0)
    writer = None
    for first in range(0, rows // GROUP, CHUNK_GROUPS):
        num = min(CHUNK_GROUPS, rows // GROUP - first)
        table = columns(rng, first, num, 400)
        table["unused_text"] = table["completion"]
        arrow = pa.table(table)
        writer = writer or pq.ParquetWriter(file, arrow.schema)
        writer.write_table(arrow)
    writer.close()


def write_json(file, rows):
    rng = np.random.default_rng(0)
    with file.open("w") as opened:
        for first in range(0, rows // GROUP, CHUNK_GROUPS):
            num = min(CHUNK_GROUPS, rows // GROUP - first)
            table = columns(rng, first, num, 60)
            for step, prompt, completion, reward in zip(
                *(table[k] for k in ("step", "prompt", "completion", "exact_reward")), strict=True
            ):
                row = {"input": prompt, "output": completion, "gts": "42", "score": reward}
                row |= {"step": step, "acc": reward == 1, "pred": completion[:8]}
                opened.write(json.dumps(row) + "\n")


def measure(file):
    """Seconds and peak memory of the command on a file."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "gradmass", "analyze", str(file), "--json"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return seconds, peak / (2**20 if sys.platform == "linux" else 2**30)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        # JSON Lines first: the peak of all children so far is what the system tells.
        for name, write in (("rows.jsonl", write_json), ("rows.parquet", write_parquet)):
            file = folder / name
            if not file.exists():
                write(file, asked.rows)
            seconds, peak = measure(file)
            size = file.stat().st_size
            print(
                f"{name}: {asked.rows:,} rollouts, {size / asked.rows:.0f} bytes a row: "
                f"{seconds:.1f} s, {peak:.2f} GiB at most so far"
            )


if __name__ == "__main__":
    main()
