"""Damage to a run directory is named, file by file."""

import gzip

import pytest
from written import refusal

from gradmass.record import Run


def test_a_missing_file_is_named(whole):
    for name, read in (
        ("metrics.jsonl", lambda: Run(whole).metrics),
        ("evaluations.jsonl", lambda: Run(whole).evaluations),
        ("rollouts.jsonl.gz", lambda: list(Run(whole).rollouts())),
        ("config.json", lambda: Run(whole).label),
        ("env.json", lambda: Run(whole).env),
        ("state.json", lambda: Run(whole).state),
    ):
        (whole / name).unlink()
        assert refusal(read).startswith(f"{whole} is no run directory: ")
        assert refusal(read).endswith(name)


@pytest.mark.parametrize("name", ["config.json", "env.json", "state.json"])
def test_a_damaged_or_foreign_json_file_is_named(whole, name):
    read = {
        "config.json": lambda: Run(whole).config,
        "env.json": lambda: Run(whole).env,
        "state.json": lambda: Run(whole).state,
    }[name]
    file = whole / name
    for content, wanted in (
        (b"", f"{file} is damaged: Expecting value"),
        (b'{"schema": 1,', f"{file} is damaged: "),
        (b"\xff\xfe", f"{file} is damaged: 'utf-8' codec"),
        (b'{"schema": 2}', f"{file} has schema 2, this version reads schema 1"),
        (b"{}", f"{file} has schema None, this version reads schema 1"),
        (b"[1]", f"{file} has schema [1], this version reads schema 1"),
    ):
        file.write_bytes(content)
        assert refusal(read).startswith(wanted)


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl", "rollouts.jsonl.gz"])
def test_a_damaged_row_is_named(whole, name):
    read = {
        "metrics.jsonl": lambda: Run(whole).metrics,
        "evaluations.jsonl": lambda: Run(whole).evaluations,
        "rollouts.jsonl.gz": lambda: list(Run(whole).rollouts()),
    }[name]
    open_file = gzip.open if name.endswith(".gz") else open
    with open_file(whole / name, "rt") as file:
        lines = file.readlines()
    lines[1] = lines[1][:-5] + "\n"
    with open_file(whole / name, "wt") as file:
        file.writelines(lines)
    assert refusal(read).startswith(f"{whole / name} is damaged at row 2: ")


def test_damaged_compression_is_refused(whole):
    file = whole / "rollouts.jsonl.gz"
    content = file.read_bytes()
    for damaged in (
        b"not gzip" + content,
        content[:12] + b"\xff\xff\xff\xff" + content[16:],
        content + b"trailing",
    ):
        file.write_bytes(damaged)
        message = refusal(lambda: list(Run(whole).rollouts()))
        assert message.startswith(f"{file} is damaged at row ")


def test_a_folder_in_the_place_of_a_file_is_refused(whole):
    (whole / "metrics.jsonl").unlink()
    (whole / "metrics.jsonl").mkdir()
    message = refusal(lambda: Run(whole).metrics)
    assert message == f"cannot read {whole / 'metrics.jsonl'}: Is a directory"
