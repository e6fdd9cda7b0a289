"""A finished run that nothing happened to; no test waits for the disk."""

import os

import pytest
from recorded import CONFIG, ENV, work

from gradmass.record import RunWriter


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def whole(tmp_path):
    """A finished run of five steps that nothing happened to."""
    path = tmp_path / "whole"
    writer = RunWriter.create(path, CONFIG, ENV)
    work(writer)
    writer.close()
    return path
