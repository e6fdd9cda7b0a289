"""Trains in children of a process that has imported everything, and kills them at random moments.

    python drive_kills.py FOLDER SEED NUM_KILLS FLAG ...

Prints, as JSON, the steps at which the checkpoints stood that runs went on from. Several runs are
made if one is over before it was killed often enough; ``run-0``, ``run-1`` and so on.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import gradmass.training.train  # noqa: F401  # imported before the fork, so that children start fast
from gradmass.cli import main


def start(argv: list[str], log: Path) -> int:
    child = os.fork()
    if child:
        return child
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        main(argv)
    except SystemExit as ended:
        os._exit(int(ended.code or 0))
    os._exit(99)


def is_alive(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def num_rows(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait(child: int, run: Path, rng: random.Random) -> None:
    """Until a random moment: of the start, or some rows after the checkpoint it goes on from."""
    if rng.random() < 0.7:
        wanted = saved_step(run) + 1 + rng.randint(1, 5)
        while num_rows(run) < wanted and is_alive(child):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.1))
    else:
        time.sleep(rng.uniform(0, 1.0))


def saved_step(run: Path) -> int:
    file = run / "state.json"
    return int(json.loads(file.read_text())["step"]) if file.exists() else -1


def train_to_end(run: Path, flags: list[str], num_kills: int, rng: random.Random) -> list[int]:
    """Where the checkpoint stood after each kill; -1 if the run had no folder yet."""
    steps: list[int] = []
    while True:
        argv = ["train", "--resume", "--out", str(run)]
        if not run.exists():
            argv = ["train", "demo", "--out", str(run), *flags]
        log = run.with_suffix(".log")
        child = start(argv, log)
        if len(steps) < num_kills:
            wait(child, run, rng)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return steps
        assert code == -signal.SIGKILL, (code, log.read_text())
        steps.append(saved_step(run))


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, rng, num_left = Path(sys.argv[1]), random.Random(int(sys.argv[2])), int(sys.argv[3])
    found: list[list[int]] = []
    assert train_to_end(folder / "whole", sys.argv[4:], 0, rng) == []
    while num_left > 0:
        found.append(train_to_end(folder / f"run-{len(found)}", sys.argv[4:], num_left, rng))
        num_left -= len(found[-1])
    print(json.dumps(found))
