"""The tutorials do what they say: their blocks are run in order, in an empty folder.

A ``text`` block shows lines of what the block before it prints, in order; between them may be more.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
MARKS = {"train": pytest.mark.slow, "spectrum": pytest.mark.slow, "trl": pytest.mark.trl}
PAGES = sorted(TUTORIALS.glob("*.md"))
RUN = {
    "sh": ["bash", "-euo", "pipefail", "-c"],
    "python": [sys.executable, "-W", "ignore", "-c"],
}


def blocks_of(page):
    """Language and content of every fenced block that is run or shown."""
    return re.findall(r"^```(sh|python|text)\n(.*?)^```$", page.read_text(), re.M | re.S)


def squeezed(line):
    return " ".join(line.split())


def assert_printed(shown, printed):
    lines = iter([squeezed(line) for line in printed.splitlines()])
    for line in map(squeezed, shown.splitlines()):
        assert line in lines, f"{line!r} is not printed, or not there:\n{printed}"


def run_page(page, folder):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "120"}
    printed = None
    for language, content in blocks_of(page):
        if language == "text":
            assert printed is not None, "a text block shows what a block before it prints"
            assert_printed(content, printed)
            continue
        command = [*RUN[language], content]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{content}\n{done.stdout}\n{done.stderr}"
        printed = done.stdout


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=MARKS.get(page.stem, ()), id=page.stem) for page in PAGES]
)
def test_every_block_of_a_tutorial_runs(page, tmp_path):
    assert any(language != "text" for language, _ in blocks_of(page))
    run_page(page, tmp_path)


def test_a_block_that_fails_and_a_line_that_is_not_printed_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```sh\nfalse\necho here\n```\n")
    with pytest.raises(AssertionError, match="echo here"):
        run_page(page, tmp_path)
    page.write_text("```sh\necho one;  echo two\n```\n\n```text\ntwo\none\n```\n")
    with pytest.raises(AssertionError, match="'one' is not printed"):
        run_page(page, tmp_path)


def test_there_is_a_tutorial_for_each_thing_a_newcomer_does():
    assert {page.stem for page in PAGES} == {"choose", "train", "trl", "spectrum"}
