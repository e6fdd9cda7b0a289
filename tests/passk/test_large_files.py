"""What reading a million samples costs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.slow
def test_a_million_rows_are_read_in_seconds_and_little_memory():
    with Path("big.jsonl").open("w") as file:
        for i in range(1_000_000):
            right = "true" if i % 100 < i // 100 % 97 else "false"
            file.write(
                f'{{"problem_id": "t/{i // 100}", "sample": {i % 100}, "correct": {right}}}\n'
            )
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom gradmass.cli import main\n"
        "try: main(['passk', 'big.jsonl', '--k', '1', '10', '100', '--json'])\n"
        "except SystemExit: pass\n"
        "status = Path('/proc/self/status').read_text()\n"
        "print(time.process_time(), status.split('VmHWM:')[1].split()[0], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert json.loads(done.stdout)["num_samples"] == 1_000_000
    seconds, kilobytes = map(float, done.stderr.split())
    # Of the processor: other work on the machine does not stretch them.
    assert seconds < 5
    assert kilobytes < 1_000_000
