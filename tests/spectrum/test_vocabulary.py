"""Two embeddings are compared row by row; whether the rows mean the same tokens is said."""

import json

import pytest

from gradmass.cli import main
from gradmass.spectra.vocabulary import other_tokens
from gradmass.training.model import resolve_model


def write(folder, vocabulary, added=()):
    folder.mkdir()
    content = {"model": {"vocab": vocabulary}, "added_tokens": list(added)}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_ids_of_other_tokens_are_found_whatever_the_model(tmp_path):
    base = write(tmp_path / "base", {"a": 0, "b": 1}, [{"id": 2, "content": "<end>"}])
    same = write(tmp_path / "same", [["a", 0.0], ["b", -1.0], ["<end>", 0.0], ["c", -2.0]])
    swapped = write(tmp_path / "swapped", {"b": 0, "a": 1})
    assert other_tokens(base, base) == other_tokens(base, same) == ""
    assert "2 of 2 shared ids mean other tokens (id 0: 'a' and 'b')" in other_tokens(base, swapped)
    assert other_tokens(base, tmp_path) == ""


def test_the_command_says_so_and_makes_no_model_of_both(tmp_path, capsys):
    pair = [str(resolve_model(name)) for name in ("countdown-tiny", "programs-tiny")]
    with pytest.raises(SystemExit) as ended:
        main(["spectrum", *pair])
    assert ended.value.code == 0
    assert "5 of 21 shared ids mean other tokens" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["spectrum", *pair, "--keep-rank", "2", "-o", str(tmp_path / "made")])
    assert ended.value.code == 2
    assert "no model can be made of parts of both" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
