"""Small checkpoints to compare."""

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from safetensors.torch import save_file

from gradmass.spectra.compare import compare


@pytest.fixture
def golden():
    """Models and adapters as transformers and PEFT wrote them."""
    return Path(__file__).parents[1] / "golden" / "peft"


@pytest.fixture
def entry_of():
    """What ``gradmass spectrum --json`` prints of two paths."""

    def measure(base, tuned, *, modules=None, top=8, split=None):
        shown = []
        comparison = compare(
            Path(base),
            Path(tuned),
            modules=modules,
            top=top,
            split=split,
            progress=lambda name, done, total: shown.append((done, total)),
        )
        assert shown[-1][0] == shown[-1][1]
        return comparison.entry()

    return measure


@pytest.fixture
def pair(tmp_path):
    """Write two safetensors files from dictionaries of tensors."""

    def write(before, after):
        for name, tensors in (("base", before), ("tuned", after)):
            save_file(
                {k: t.contiguous() for k, t in tensors.items()}, tmp_path / f"{name}.safetensors"
            )
        return tmp_path / "base.safetensors", tmp_path / "tuned.safetensors"

    return write


@pytest.fixture
def compared(pair, entry_of):
    """The entry of the one matrix ``w`` that changes from ``before`` to ``after``."""

    def measure(before, after, **options):
        (row,) = entry_of(*pair({"w": before}, {"w": after}), **options)["matrices"]
        return row

    return measure
