"""``gradmass verify math`` in a terminal."""

import io
import json
import sys

import pytest

from gradmass.cli import main


@pytest.fixture
def run(capsys):
    """Run the command; returns the exit code and what it printed."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["verify", "math", *arguments])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return call


@pytest.mark.parametrize(
    ("gold", "answer", "code", "word"),
    [
        ("1/2", r"\frac{2}{4}", 0, "right"),
        ("1/2", "0.51", 1, "wrong"),
        (r"\boxed{5}", r"first \boxed{4}, no: \boxed{5}", 0, "right"),
        ("x+1", r"\frac{1}{", 1, "unparsed"),
        ("x+1", "1+x", 0, "right"),
    ],
)
def test_the_exit_code_and_the_word_say_the_verdict(run, gold, answer, code, word):
    found, out, err = run("--gold", gold, "--answer", answer)
    assert (found, out.partition(":")[0], err) == (code, word, "")


def test_negative_answers_are_no_flags(run):
    assert run("--gold=-5", "--answer=-5")[0] == 0
    assert run("--gold=-5", "--answer", "5")[0] == 1


def test_the_answer_may_come_from_the_input(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("so\n\\boxed{-5}\n"))
    assert run("--gold=-5")[0] == 0


def test_json_has_five_keys(run):
    code, out, _ = run("--gold", "7", "--answer", "8", "--json")
    entry = json.loads(out)
    assert code == 1
    assert list(entry) == ["verdict", "detail", "seconds", "passed", "total"]
    assert (entry["verdict"], entry["detail"]) == ("wrong", "8")
    assert (entry["passed"], entry["total"]) == (None, None)
    assert 0 <= entry["seconds"] < 1


def test_the_rule_of_extraction_can_be_chosen(run):
    text = "Answer: 12"
    assert run("--gold", "12", "--answer", text)[0] == 1
    assert run("--gold", "12", "--answer", text, "--extraction", "final_answer_line")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--answer", "5"], "missing GOLD"),
        (["--gold", "", "--answer", "5"], "no answer in the gold ''"),
        (["--gold", r"\frac{1}{", "--answer", "5"], "the gold cannot be read: not understood: "),
        (["--gold", "5", "--answer", "5", "--extraction", "x"], "no extraction rule 'x'"),
        (["--gold", "5", "--anwser", "5"], "unknown flag --anwser; did you mean '--answer'?"),
    ],
)
def test_input_that_cannot_be_used_is_one_line(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"gradmass: error: {message}")
    assert err.count("\n") == 1


def test_a_terminal_is_not_waited_for(run, monkeypatch):
    stdin = io.StringIO("")
    stdin.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", stdin)
    code, _, err = run("--gold", "5")
    assert code == 2
    assert "missing ANSWER" in err


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_input_is_no_answer(run, monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    code, out, err = run("--gold", "1")
    assert (code, out) == (2, "")
    assert "missing ANSWER: the input is empty (gradmass verify math --help)" in err


def test_the_kinds_of_verify_are_listed(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["verify"])
    assert stop.value.code == 0
    assert "math   an answer against the gold answer" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["verify", "mth"])
    assert stop.value.code == 2
    assert "'mth' is no kind of answer; did you mean 'math'?" in capsys.readouterr().err
