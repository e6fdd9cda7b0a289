"""The folder of an evaluation: whole after any kill, of one evaluation, written by one process."""

import gzip
import json

import pytest

from gradmass.record.samples import SamplesWriter, read_config
from gradmass.types import UsageError

CONFIG = {"model": "m", "model_id": "1", "num_samples": 4, "seed": 0, "task": {"type": "countdown"}}


def row(problem, sample, **more):
    return {"split": "test", "problem_id": problem, "sample": sample, **more}


def opened(path, config=CONFIG, env=None):
    rows = []
    writer = SamplesWriter.open(path, config, env or {"command": "c"}, rows.append)
    return writer, rows


def fill(path, *batches):
    writer, _ = opened(path)
    for batch in batches:
        for one in batch:
            writer.keep(one)
        writer.write([{**one, "correct": True} for one in batch])
    return writer


def stored(path):
    with gzip.open(path / "samples.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def test_samples_are_read_back_on_opening(tmp_path):
    fill(tmp_path / "e", [row("a", 0), row("a", 1)], [row("ü", 0)]).close()
    writer, rows = opened(tmp_path / "e")
    assert rows == stored(tmp_path / "e") == [
        {**row("a", 0), "correct": True},
        {**row("a", 1), "correct": True},
        {**row("ü", 0), "correct": True},
    ]  # fmt: skip
    assert writer.waiting == []
    assert (tmp_path / "e" / "waiting.jsonl").read_bytes() == b""
    writer.close()


def test_a_file_cut_at_any_byte_gives_its_whole_batches_and_goes_on(tmp_path):
    first, second = [row("a", 0, completion="x" * 50)], [row("a", 1), row("b", 0)]
    fill(tmp_path / "e", first, second).close()
    file = tmp_path / "e" / "samples.jsonl.gz"
    whole = file.read_bytes()
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        writer, rows = opened(tmp_path / "e")
        assert len(rows) in (0, 1, 3)
        assert len(rows) == len(stored(tmp_path / "e"))
        if size in (0, len(whole)):
            assert len(rows) == (3 if size else 0)
        writer.keep(row("c", 9))
        writer.write([row("c", 9)])
        writer.close()
        assert stored(tmp_path / "e")[-1] == row("c", 9)
        assert len(stored(tmp_path / "e")) == len(rows) + 1


def test_answers_without_a_verdict_are_kept_and_only_those(tmp_path):
    writer = fill(tmp_path / "e", [row("a", 0)])
    for one in (row("a", 1), row("a", 2), row("a", 3)):
        writer.keep(one)
    writer.write([row("a", 1)])
    writer.close()
    with (tmp_path / "e" / "waiting.jsonl").open("ab") as file:
        file.write(b'{"split": "test", "problem_id": "b", "samp')
    writer, rows = opened(tmp_path / "e")
    assert [one["sample"] for one in rows] == [0, 1]
    assert writer.waiting == [row("a", 2), row("a", 3)]
    writer.close()
    writer, _ = opened(tmp_path / "e")
    assert writer.waiting == [row("a", 2), row("a", 3)]
    writer.write(writer.waiting)
    assert (tmp_path / "e" / "waiting.jsonl").read_bytes() == b""
    writer.finish({"splits": []})
    writer.close()
    assert not (tmp_path / "e" / "waiting.jsonl").exists()
    assert json.loads((tmp_path / "e" / "results.json").read_text()) == {"schema": 1, "splits": []}


def test_where_a_file_that_judges_has_changed_all_answers_wait_for_a_verdict(tmp_path):
    old, new = CONFIG | {"files": {"/a.py": "1"}}, CONFIG | {"files": {"/a.py": "2"}}
    writer, _ = opened(tmp_path / "e", old)
    writer.keep(row("a", 0))
    writer.write([{**row("a", 0), "correct": True}])
    writer.keep(row("a", 1))
    writer.close()
    writer, rows = opened(tmp_path / "e", old | {"files": {"/a.py": "1", "/other.py": "3"}})
    assert (len(rows), writer.waiting) == (1, [row("a", 1)])
    writer.close()
    # Killed before config.json says so, and started again.
    for _ in range(2):
        config = (tmp_path / "e" / "config.json").read_bytes()
        writer, rows = opened(tmp_path / "e", new)
        writer.close()
        assert rows == stored(tmp_path / "e") == []
        assert sorted((w["problem_id"], w["sample"]) for w in writer.waiting) == [
            ("a", 0),
            ("a", 1),
        ]
        (tmp_path / "e" / "config.json").write_bytes(config)
    writer, _ = opened(tmp_path / "e", new)
    writer.write([{**w, "correct": False} for w in writer.waiting])
    writer.close()
    writer, rows = opened(tmp_path / "e", new)
    assert ([one["correct"] for one in rows], writer.waiting) == ([False, False], [])
    writer.close()


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"seed": 1}, "holds an evaluation with seed = 0, here it is 1; name another folder"),
        ({"model_id": "2"}, "holds an evaluation with model_id = '1', here it is '2'; name"),
        ({"task": {"type": "aime"}}, "with task.type = 'countdown', here it is 'aime'; name"),
        ({"new": 3}, "with new = None, here it is 3"),
        ({"num_samples": 3}, "with 4 samples of each problem; num_samples = 3 would leave some"),
    ],
)
def test_another_evaluation_is_not_continued(tmp_path, change, wanted):
    fill(tmp_path / "e", [row("a", 0)]).close()
    before = {file.name: file.read_bytes() for file in (tmp_path / "e").iterdir()}
    with pytest.raises(UsageError) as error:
        opened(tmp_path / "e", CONFIG | change)
    assert wanted in str(error.value)
    assert {file.name: file.read_bytes() for file in (tmp_path / "e").iterdir()} == before


def test_more_samples_and_another_place_of_the_same_model_continue(tmp_path):
    fill(tmp_path / "e", [row("a", 0)]).close()
    more = {**CONFIG, "num_samples": 9, "model": "elsewhere", "endpoint": "u", "batch_size": 3}
    writer, rows = opened(tmp_path / "e", more, {"command": "again"})
    writer.close()
    assert len(rows) == 1
    assert read_config(tmp_path / "e")["num_samples"] == 9
    env = json.loads((tmp_path / "e" / "env.json").read_text())
    assert (env["command"], env["resumed"]) == ("c", [{"command": "again"}])


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    for name, content in (
        ("notes.txt", "mine"),
        ("config.json", '{"schema": 1, "recipe": {}}'),
        ("config.json", "[]"),
        ("config.json", "{"),
    ):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / name).write_text(content)
        with pytest.raises(UsageError, match="is already used, by no evaluation; name another"):
            opened(folder)
        assert [file.name for file in folder.iterdir()] == [name]
    (folder / "config.json").write_text('{"kind": "evaluation", "schema": 9}')
    with pytest.raises(UsageError, match="has schema 9, this version reads schema 1"):
        opened(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to output folder"):
        opened(tmp_path / "file")


def test_a_folder_left_before_its_evaluation_began_is_free(tmp_path):
    fill(tmp_path / "e").close()
    (tmp_path / "e" / "config.json").unlink()
    opened(tmp_path / "e")[0].close()
    assert read_config(tmp_path / "e")["seed"] == 0


def test_a_damaged_middle_is_told_and_not_cut_off(tmp_path):
    fill(tmp_path / "e", [row("a", 0)], [row("a", 1)]).close()
    file = tmp_path / "e" / "samples.jsonl.gz"
    data = bytearray(file.read_bytes())
    data[15] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(UsageError, match=r"samples.jsonl.gz is damaged after byte 0: "):
        opened(tmp_path / "e")
    assert file.read_bytes() == data


def test_two_processes_do_not_write_one_folder(tmp_path):
    writer = fill(tmp_path / "e", [row("a", 0)])
    with pytest.raises(UsageError, match=r"evaluation .*e is being written by another process"):
        opened(tmp_path / "e")
    writer.close()
    opened(tmp_path / "e")[0].close()
