"""kill -9 at random moments, then the same command again: as if nothing had happened."""

import gzip
import json
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gradmass.evaluation.answers import request_seed

pytestmark = pytest.mark.slow

NUM_KILLS = 10
LAUNCHER = '''
"""Runs evaluations in children of a process that has imported everything, and kills them."""
import json, os, signal, sys, time
argv, delays = json.loads(sys.argv[1]), json.loads(sys.argv[2])
if "--endpoint" in argv:
    import gradmass.evaluation.endpoint
else:
    import torch, gradmass.training.evaluate
    torch.set_num_threads(1)
from gradmass.cli import main

statuses = []
file = argv[argv.index("--out") + 1] + "/samples.jsonl.gz"


def is_alive(child):
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def size():
    return os.path.getsize(file) if os.path.exists(file) else 0


for delay in [*delays, None]:
    before = size()
    child = os.fork()
    if child == 0:
        os.dup2(os.open("err", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            main(argv)
        except SystemExit as ended:
            os._exit(ended.code)
        os._exit(99)
    if delay is not None:
        # Two of ten die as they start; the others some time after their first new samples.
        while len(statuses) % 5 and size() == before and is_alive(child):
            time.sleep(0.002)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    statuses.append(os.waitstatus_to_exitcode(status))
print(json.dumps(statuses))
'''


def run(argv, delays=()):
    """Exit codes of an evaluation that is killed after each delay, then left alone."""
    argv = [str(argument) for argument in argv]
    ended = subprocess.run(
        [sys.executable, "-c", LAUNCHER, json.dumps(argv), json.dumps(list(delays))],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ended.stdout)


def samples(folder):
    with gzip.open(Path(folder) / "samples.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def results(folder):
    content = json.loads((Path(folder) / "results.json").read_text())
    for split in content["splits"]:
        del split["time/eval_s"]
    return content


def test_a_local_evaluation_killed_ten_times_equals_an_uninterrupted_one(command, sums):
    argv = ["eval", "countdown-tiny", "--task", sums, "--task.number", 15, "--num-samples", 24]
    argv += ["--max-new-tokens", 20, "--batch-size", 5, "--k", 1, 10, 24, "--seed", 3]
    command(*argv, "--out", "whole")
    generator = random.Random(0)
    codes = run([*argv, "--out", "killed"], [generator.uniform(0, 0.1) for _ in range(NUM_KILLS)])
    assert codes[-1] == 0, Path("err").read_text()
    assert codes[:NUM_KILLS].count(-9) >= 8, codes
    assert Path("err").read_text().count("samples are there already") >= 5
    assert samples("killed") == samples("whole")
    assert len(samples("whole")) == 360
    assert results("killed") == results("whole")
    assert len({row["completion"] for row in samples("whole")}) > 100


def test_a_server_is_asked_no_sample_twice_after_a_kill(serve, sums):
    """Only what was under way when the process died, at most the concurrency, is asked again."""
    number, num_samples, concurrency = 10, 30, 4

    def write(prompt, seed):
        pause.wait(0.01)
        return str(seed % 20)

    pause = threading.Event()
    stub = serve(write)
    argv = ["eval", "m", "--endpoint", stub.url, "--task", sums, "--task.number", number]
    argv += ["--num-samples", num_samples, "--concurrency", concurrency, "--k", 1, "--out", "out"]
    codes = run(argv, [0.5, 0.1, 0.2])
    assert codes[-1] == 0, Path("err").read_text()
    assert -9 in codes
    rows = {(row["problem_id"], row["sample"]): row for row in samples("out")}
    assert len(rows) == len(samples("out")) == number * num_samples
    for (name, sample), row in rows.items():
        assert row["completion"] == str(request_seed(0, name, sample) % 20)
    num_again = sum(stub.asked.values()) - number * num_samples
    assert num_again <= concurrency * codes.count(-9)
    assert len(stub.asked) == number * num_samples


def test_ctrl_c_keeps_what_is_there(serve, sums):
    """An interrupt is one line, exit code 130; the next start goes on."""
    asked = threading.Event()

    def write(prompt, seed):
        if len(stub.asked) > 20:
            asked.set()
        release.wait(0.05)
        return "1"

    release = threading.Event()
    stub = serve(write)
    argv = ["eval", "m", "--endpoint", stub.url, "--task", sums, "--num-samples", "50"]
    argv += ["--concurrency", "4", "--out", "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gradmass", *argv], stderr=subprocess.PIPE, text=True
    )
    assert asked.wait(30)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "gradmass: interrupted\n")
    num_before = sum(stub.asked.values())
    assert num_before < 290
    release.set()
    subprocess.run([sys.executable, "-m", "gradmass", *argv], check=True, capture_output=True)
    assert len(samples("out")) == 300
    assert sum(stub.asked.values()) <= 300 + 4
