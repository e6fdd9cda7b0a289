"""Logs as their trainers write them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def write_rows(tmp_path):
    """Write rows as JSON Lines, as Python's json writes them."""

    def write(name, rows):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return file

    return write


@pytest.fixture
def write_parquet(tmp_path):
    """Write columns as Parquet."""

    def write(name, columns):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), file)
        return file

    return write


@pytest.fixture
def write_verl(tmp_path):
    """Dump generations with verl's own lines.

    verl-project/verl, ``verl/trainer/ppo/ray_trainer.py``, ``_dump_generations`` (Apache-2.0).
    """

    def dump(inputs, outputs, gts, scores, reward_extra_infos_dict, dump_path, global_steps):
        Path(dump_path).mkdir(exist_ok=True)
        filename = Path(dump_path) / f"{global_steps}.jsonl"
        n = len(inputs)
        base_data = {
            "input": inputs,
            "output": outputs,
            "gts": gts,
            "score": scores,
            "step": [global_steps] * n,
        }
        for k, v in reward_extra_infos_dict.items():
            if len(v) == n:
                base_data[k] = v
        lines = []
        for i in range(n):
            entry = {k: v[i] for k, v in base_data.items()}
            lines.append(json.dumps(entry, ensure_ascii=False))
        with filename.open("w") as f:
            f.write("\n".join(lines) + "\n")
        return Path(dump_path)

    return lambda rows, extra, step: dump(
        *(list(column) for column in zip(*rows, strict=True)), extra, tmp_path / "verl", step
    )
