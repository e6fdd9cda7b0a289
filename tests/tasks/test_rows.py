"""Rows come from every kind of file in order, and what cannot be read is said with its place."""

import gzip
import json
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from gradmass.tasks.rows import Row, RowError, read_rows
from gradmass.types import UsageError

FIELDS = [{"q": "one", "n": 1}, {"q": "two", "n": 2}, {"q": "drei ✓", "n": 3}]
LINES = [json.dumps(fields) for fields in FIELDS]


def write(path: Path) -> str:
    """The three rows in the format that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(LINES) if ".jsonl" in path.suffixes else json.dumps(FIELDS)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(FIELDS), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.json.gz", "a.parquet"])
def test_every_format_gives_the_same_rows_in_order(tmp_path, name):
    path = write(tmp_path / name)
    rows = list(read_rows(path))
    assert [dict(row.fields) for row in rows] == FIELDS
    assert [row.where for row in rows] == [f"{path}, row {i}" for i in (1, 2, 3)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_only_the_asked_columns_are_kept_letter_case_aside(tmp_path, name):
    assert [dict(row.fields) for row in read_rows(write(tmp_path / name), columns=("n",))] == [
        {"n": 1},
        {"n": 2},
        {"n": 3},
    ]
    (tmp_path / "b.jsonl").write_text('{"Answer": 7, "Other": 1}')
    (row,) = read_rows(str(tmp_path / "b.jsonl"), columns=("answer",))
    assert dict(row.fields) == {"Answer": 7}


def test_blank_lines_are_no_rows_and_numbers_are_those_of_the_lines(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(f"{LINES[0]}\n\n  \n{LINES[1]}\n")
    assert [row.number for row in read_rows(str(file))] == [1, 4]


@pytest.mark.parametrize(
    ("line", "defect"),
    [
        (b'{"q": ', "is no JSON (Expecting value"),
        (b"[1, 2]", "must be a JSON object, got [1, 2]"),
        (b'"text"', "must be a JSON object, got 'text'"),
        (b'{"q": "\xff"}', "is no JSON ('utf-8' codec can't decode"),
        (b"[" * 100_000, "is no JSON (maximum recursion"),
    ],
)
def test_a_line_that_is_no_object_has_a_defect_and_the_others_are_read(tmp_path, line, defect):
    file = tmp_path / "a.jsonl"
    file.write_bytes(LINES[0].encode() + b"\n" + line + b"\n" + LINES[1].encode())
    first, second, third = read_rows(str(file))
    assert (first.defect, third.defect) == (None, None)
    assert second.defect.startswith(defect)
    assert dict(second.fields) == {}


def test_a_file_of_one_object_is_one_row(tmp_path):
    (tmp_path / "9001.json").write_text('{"q": 1}')
    (row,) = read_rows(str(tmp_path))
    assert (row.number, dict(row.fields)) == (1, {"q": 1})


def test_a_folder_is_its_files_in_alphabetical_order(tmp_path):
    for name in ("b.jsonl", "a/z.parquet", "notes.txt"):
        write(tmp_path / name)
    assert [row.file for row in read_rows(str(tmp_path))] == [
        *[str(tmp_path / "a/z.parquet")] * 3,
        *[str(tmp_path / "b.jsonl")] * 3,
    ]


def test_a_split_is_the_files_or_folders_named_after_it(tmp_path):
    for name in (
        "data/train-00000-of-00001.parquet",
        "data/test-00000-of-00001.parquet",
        "training.jsonl",
        "test.jsonl",
        "test2.jsonl",
        "train/algebra/1.json",
    ):
        write(tmp_path / name)

    def files(split):
        names = [
            str(Path(row.file).relative_to(tmp_path)) for row in read_rows(str(tmp_path), split)
        ]
        return list(dict.fromkeys(names))

    assert files("train") == ["data/train-00000-of-00001.parquet", "train/algebra/1.json"]
    assert files("test") == ["data/test-00000-of-00001.parquet", "test.jsonl", "test2.jsonl"]
    with pytest.raises(UsageError, match="has no file of split 'validation' that ends in"):
        list(read_rows(str(tmp_path), "validation"))


def saved(tmp_path) -> str:
    data = datasets.Dataset.from_list(FIELDS)
    both = datasets.DatasetDict({"train": data, "test": data.select([2])})
    both.save_to_disk(tmp_path / "saved")
    return str(tmp_path / "saved")


def test_a_folder_saved_by_datasets_is_read_by_its_splits(tmp_path):
    path = saved(tmp_path)
    assert [dict(row.fields) for row in read_rows(path, "train")] == FIELDS
    (row,) = read_rows(path, "test", columns=("q",))
    assert (dict(row.fields), row.where) == ({"q": "drei ✓"}, f"{path} (test), row 1")
    with pytest.raises(UsageError, match=r"has no split 'tset'; did you mean 'test'\?"):
        list(read_rows(path, "tset"))
    with pytest.raises(UsageError, match="has several splits: name one; known: test, train"):
        list(read_rows(path))


def test_one_saved_dataset_needs_no_split(tmp_path):
    datasets.Dataset.from_list(FIELDS).save_to_disk(tmp_path / "one")
    assert [dict(row.fields) for row in read_rows(str(tmp_path / "one"))] == FIELDS
    with pytest.raises(UsageError, match="has no splits, got split 'train'"):
        list(read_rows(str(tmp_path / "one"), "train"))


def test_a_hub_path_goes_through_load_dataset(tmp_path, monkeypatch):
    write(tmp_path / "repo" / "train.jsonl")
    load = datasets.load_dataset
    asked = []

    def local(name, config):
        asked.append((name, config))
        return load(str(tmp_path / "repo"), cache_dir=str(tmp_path / "cache"))

    monkeypatch.setattr(datasets, "load_dataset", local)
    path = "hub:openai/gsm8k:main"
    assert [dict(row.fields) for row in read_rows(path, "train")] == FIELDS
    assert next(row.where for row in read_rows(path)) == f"{path} (train), row 1"
    assert set(asked) == {("openai/gsm8k", "main")}


def test_a_hub_dataset_that_does_not_load_is_one_line(monkeypatch):
    def fail(name, config):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(UsageError) as error:
        list(read_rows("hub:a/b"))
    assert str(error.value) == "cannot load hub:a/b: ConnectionError: no route to host"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "a.jsonl.gz",
            gzip.compress(b'{"q": 1}\n' * 1000, mtime=0)[:-9],
            "cannot read .*a.jsonl.gz: ",
        ),
        ("a.jsonl.gz", b"plain", "cannot read .*a.jsonl.gz: Not a gzipped file"),
        ("a.json", b"[1, ", "a.json: is no JSON"),
        ("a.parquet", b"no parquet", "cannot read .*a.parquet: "),
        ("a.csv", b"q\n1", r"a.csv: a file of rows ends in .jsonl, .jsonl.gz, .json, "),
    ],
)
def test_a_file_that_cannot_be_read_at_all_is_one_line_with_its_name(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=message) as error:
        list(read_rows(str(tmp_path / name)))
    assert "\n" not in str(error.value)


def test_a_path_that_is_not_there_says_how_to_read_the_hub():
    with pytest.raises(UsageError, match=r"no file or folder 'no/where' \(hub:OWNER/NAME reads"):
        list(read_rows("no/where"))


FIELDS_OF_ROW = {"Problem": "p", "empty": " ", "n": 1, "json": "[1]", "broken": "[1"}
FIELDS_OF_ROW["half"] = "a\ud83d"
ROW = Row("f.jsonl", 3, FIELDS_OF_ROW, (*FIELDS_OF_ROW, "more"))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: ROW["x"],
            "has no field 'x' (it has: Problem, empty, n, json, broken, half, more)",
        ),
        (lambda: ROW.text("n"), "field 'n' must be a text, got 1"),
        (lambda: ROW.text("empty"), "field 'empty' is empty"),
        (lambda: ROW.text("half"), r"field 'half' is no Unicode text: it has '\ud83d' alone"),
        (lambda: ROW.json("broken", list), "field 'broken' is no JSON (Expecting"),
        (lambda: ROW.json("json", dict), "field 'json' must hold a JSON object, got [1]"),
        (lambda: ROW.first_of("question", "text"), "has no field 'question' or 'text' (it has"),
    ],
)
def test_what_is_wrong_with_a_row_names_file_and_row(ask, message):
    with pytest.raises(RowError) as error:
        ask()
    assert str(error.value).startswith(f"f.jsonl, row 3: {message}")


def test_columns_are_found_whatever_their_case():
    assert ROW.first_of("question", "problem") == "Problem"
    assert ROW.json("json", list) == [1]
