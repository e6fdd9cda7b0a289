"""``gradmass report --watch``: a page that follows a run."""

from pathlib import Path

import pytest

from gradmass.cli import main
from gradmass.record import Run, RunWriter

CONFIG = {
    "label": "fade",
    "recipe": {"weight": {"type": "fade"}, "task": {"type": "countdown"}, "train": {"steps": 3}},
    "files": {},
}


def row(step):
    return {"step": step, "rollouts": 8 * step, "rollout/solve_rate": 0.25, "mass/positive": 0.1}


def watch(*paths, out):
    with pytest.raises(SystemExit) as ended:
        main(["report", "--watch", *map(str, paths), "-o", str(out)])
    return ended.value.code


def test_the_page_follows_a_run_to_its_end(tmp_path, monkeypatch, capsys):
    out = tmp_path / "page.html"
    writer = RunWriter.create(tmp_path / "run", CONFIG, {})
    pages = []

    def train():
        """What happens while the command sleeps."""
        assert not out.exists()
        writer.log(row(0))
        yield
        for step in (1, 2, 3):
            pages.append(out.read_text())
            writer.log(row(step))
            yield
        before = out.stat().st_mtime_ns
        yield
        assert out.stat().st_mtime_ns == before  # no new row, no new page
        writer.checkpoint(3, {}, "finished", lambda folder: (folder / "model").write_text(""))
        writer.close()
        yield

    training = train()
    monkeypatch.setattr("gradmass.commands.report.time.sleep", lambda seconds: next(training))
    assert watch(tmp_path / "run", out=out) == 0
    assert [f"step {step} of 3" in page for step, page in enumerate(pages)] == [True] * 3
    assert all('<meta http-equiv="refresh" content="5">' in page for page in pages)
    assert "http-equiv" not in out.read_text()
    error = capsys.readouterr().err.splitlines()
    run = tmp_path / "run"
    assert error == [
        "waiting for the first row of every run (Ctrl-C stops)",
        *(f"{out}: {run} at step {step}" for step in (0, 1, 2, 3, 3)),
    ]


def test_a_run_that_nobody_writes_is_shown_once(tmp_path):
    """It was killed: its status still says running."""
    writer = RunWriter.create(tmp_path / "run", CONFIG, {})
    writer.log(row(0))
    assert Run(tmp_path / "run").is_being_written
    writer.close()
    assert Run(tmp_path / "run").state["status"] == "running"
    assert not Run(tmp_path / "run").is_being_written
    out = tmp_path / "page.html"
    assert watch(tmp_path / "run", out=out) == 0
    assert "was stopped without notice" in out.read_text()
    assert "http-equiv" not in out.read_text()


def test_what_is_no_run_is_refused(tmp_path, capsys):
    assert watch(tmp_path, out=Path("page.html")) == 2
    assert "is no run directory" in capsys.readouterr().err
