"""The page that reads the study says nothing that its results do not say."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
INTERVAL = re.compile(r"[+-]\d+\.\d+ \[[^\]]*\]")


def test_every_interval_of_the_findings_stands_in_the_results():
    quoted = INTERVAL.findall((DOCS / "study_findings.md").read_text())
    shown = set(INTERVAL.findall((DOCS / "study.md").read_text()))
    assert len(quoted) > 15
    assert [interval for interval in quoted if interval not in shown] == []


def test_every_decision_of_the_findings_is_that_of_the_results():
    decided = dict(re.findall(r"^\| (H\d) \|.*?\*\*([a-z ]+)\*\*", _text("study.md"), re.M))
    read = dict(
        re.findall(r"^\|[^|]*\((H\d)\) \| \*\*([a-z ]+)\*\*", _text("study_findings.md"), re.M)
    )
    assert read == decided
    assert set(read) == {"H1", "H2", "H3", "H4"}


def _text(name):
    return (DOCS / name).read_text()
