"""``gradmass analyze`` at the command line: its output, its page, and what it refuses."""

import gzip
import json
import re

import pytest

from gradmass.cli import main

ROWS = [
    {
        "step": 1 + i // 8,
        "prompt": f"p{i // 4}",
        "response": f"{i % 3}",
        "reward": float(i % 3 == 0),
    }
    for i in range(32)
]


def text_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *argv):
    with pytest.raises(SystemExit) as ended:
        main(["analyze", *argv])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_everything_is_said_in_words_and_as_json(here, capsys):
    (here / "log.jsonl").write_text(text_of(ROWS))
    code, out, err = run(capsys, "log.jsonl", "--compare", "power", "fade")
    assert (code, err) == (0, "")
    assert "32 rollouts, 8 groups of 4, 8 problems, steps 1 to 4" in out
    assert "What this log cannot tell" in out
    code, out, _ = run(capsys, "log.jsonl", "--compare", "power", "fade", "--json")
    document = json.loads(out)
    assert code == 0
    assert [entry["label"] for entry in document["weights"]] == ["power", "fade"]
    assert document["solve_rates"]["mean"] == 11 / 32


def test_the_page_stands_alone_and_is_the_same_each_time(here, capsys):
    (here / "log.jsonl").write_text(text_of(ROWS))
    pages = []
    for name in ("a.html", "b.html"):
        code, out, _ = run(capsys, "log.jsonl", "--weight", "grpo", "-o", name)
        assert code == 0
        assert out.splitlines()[-1] == name
        pages.append((here / name).read_text())
    assert pages[0] == pages[1]
    (page, _) = pages
    assert page.startswith("<!DOCTYPE html>")
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert page.count("<figure") == 4
    assert len(page) < 300_000
    assert {path.name for path in here.iterdir()} == {"log.jsonl", "a.html", "b.html"}


def test_a_page_without_verdicts_has_no_figures_of_them(here, capsys):
    rows = [{"prompt": "<b>&", "reward": 0.1 * i} for i in range(6)]
    (here / "log.jsonl").write_text(text_of(rows))
    code, out, _ = run(capsys, "log.jsonl", "-o", "page.html")
    assert code == 0
    assert "right is: not known" in out
    assert "<figure" not in (here / "page.html").read_text()


def test_what_is_no_page_is_not_replaced(here, capsys):
    (here / "log.jsonl").write_text(text_of(ROWS))
    (here / "thesis.tex").write_text("precious")
    code, _, err = run(capsys, "log.jsonl", "-o", "thesis.tex")
    assert code == 2
    assert "is there and no HTML page" in err
    assert (here / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_a_log_that_is_being_written_is_read_without_its_cut_last_line(here, capsys, name):
    data = text_of(ROWS[:-1]).encode()
    last = text_of(ROWS[-1:]).encode()
    if name.endswith(".gz"):
        data, last = gzip.compress(data), gzip.compress(last)
    (here / name).write_bytes(data)
    _, whole, _ = run(capsys, name, "--json")
    (here / name).write_bytes(data + last[:30])
    code, out, err = run(capsys, name, "--json")
    document = json.loads(out)
    said = f"{name}: the last line is cut: left out"
    assert document["log"].pop("notes") == [*json.loads(whole)["log"]["notes"], said]
    assert document["log"]["num_rollouts"] == 31
    code, out, err = run(capsys, name)
    assert (code, err) == (0, "")
    assert said in " ".join(out.split())


def test_a_file_of_a_folder_that_has_just_been_begun_stops_nothing(here, capsys):
    (here / "steps").mkdir()
    for step in (1, 2):
        rows = [row for row in ROWS if row["step"] == step]
        (here / f"steps/{step}.jsonl").write_text(text_of(rows))
    (here / "steps/3.jsonl").write_text(text_of(ROWS[-1:])[:20])
    code, out, err = run(capsys, "steps", "--json")
    log = json.loads(out)["log"]
    assert (code, err, log["num_rollouts"]) == (0, "", 16)
    assert log["notes"][-1] == "steps/3.jsonl: the last line is cut: left out"


def prepare(here):
    """Files that are no log, or half of one."""
    text = text_of(ROWS)
    files = {
        "empty.jsonl": "",
        "blank.jsonl": "\n\n",
        "cut.jsonl": text[:40],
        "cut_within.jsonl": text[:-25] + "\n" + text,
        "list.jsonl": "[1, 2]\n",
        "text.jsonl": "step 1: reward 0.5\n",
        "log.jsonl": text,
        "no_reward.jsonl": text_of([{"prompt": "p", "response": "r"}]),
        "no_problem.jsonl": text_of([{"reward": 1.0}]),
        "kinds.jsonl": text_of([{"prompt": "p", "reward": 1.0}, {"prompt": "p", "reward": "a"}]),
        "words.jsonl": text_of([{"prompt": "p", "reward": "good"}]),
        "lacking.jsonl": text_of([{"prompt": "p", "reward": 1.0}, {"prompt": "p"}]),
        "step.jsonl": text_of([{"prompt": "p", "reward": 1.0, "step": 0.5}]),
        "verdict.jsonl": text_of([{"prompt": "p", "correct": 0.5}]),
        "word.jsonl": text_of([{"prompt": "p", "verdict": "meh"}]),
        "notes.txt": "x",
        "fake.parquet": "PAR1 and no more",
        "void.parquet": "",
        "mixed/a.jsonl": text,
        "mixed/b.jsonl": text_of([{"prompt": "p", "score": 1.0}]),
        "verl/1.jsonl": text_of(
            [{"input": "p", "output": "r", "gts": None, "score": 1.0, "step": 1}]
        ),
        "both/a.jsonl": text,
        "both/b.parquet": "x",
        "hollow/readme.md": "x",
        "part/1.jsonl": text,
        "part/2.jsonl": "",
        "run/state.json": "{}",
        "run/metrics.jsonl": '{"step": 0}\n',
        "wide.jsonl": text_of([{f"c{i}": i for i in range(99)}]),
    }
    for name, content in files.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(content)
    (here / "damaged.jsonl.gz").write_bytes(gzip.compress(text.encode())[:-2] + b"xx")
    (here / "no.jsonl.gz").write_bytes(b"no gzip at all")


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ("", "analyze needs a log: a file, or the folder that a trainer wrote"),
        ("log.jsonl -o /dev/full", "/dev/full is there and no HTML page"),
        ("gone.jsonl", "there is no file or folder gone.jsonl"),
        ("empty.jsonl", "empty.jsonl: expected rollouts, found no whole row"),
        ("blank.jsonl", "blank.jsonl: expected rollouts, found no whole row"),
        ("cut.jsonl", "cut.jsonl: expected rollouts, found no whole row"),
        ("cut_within.jsonl", 'row 32: expected a JSON object, found \'{"step": 4'),
        ("list.jsonl", "row 1: expected a JSON object, found list"),
        ("text.jsonl", "row 1: expected a JSON object, found 'step 1: reward 0.5'"),
        ("damaged.jsonl.gz", "expected gzip data, found a part that is damaged"),
        ("no.jsonl.gz", "expected gzip data, found a part that is damaged"),
        ("fake.parquet", "expected a Parquet file, found 16 bytes without a footer"),
        ("void.parquet", "expected a Parquet file, found 0 bytes without a footer"),
        ("notes.txt", "found a file called 'notes.txt'"),
        ("hollow", "folder hollow: expected TRL's completions"),
        ("both", "expected files of one format, found .parquet and .jsonl"),
        ("mixed", "b.jsonl: expected the columns of mixed/a.jsonl (step, prompt"),
        ("verl log.jsonl", "log.jsonl: expected verl as verl/1.jsonl is, found jsonl"),
        ("part", "2.jsonl: expected rollouts as in part/1.jsonl, found no row"),
        ("run", "run directory run has no rollouts.jsonl.gz, which analyze reads: put it back, or"),
        ("wide.jsonl", "found the columns c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 and 87"),
        ("log.jsonl log.jsonl", "log.jsonl is given twice"),
        ("log.jsonl --format trl", "expected trl, found a .jsonl file"),
        ("log.jsonl --format verl", "expected verl with the columns gts, input, output, score too"),
        ("no_reward.jsonl", "expected a reward (reward, score, rewards) or a verdict"),
        ("no_problem.jsonl", "expected a column that tells problems apart"),
        ("kinds.jsonl", "expected values of one kind in 'reward', found float, str"),
        ("words.jsonl", "expected numbers in 'reward', found 'good'"),
        ("lacking.jsonl", "row 2: expected the columns of the first row, found none called"),
        ("step.jsonl", "expected a whole number of steps in 'step', found 0.5"),
        ("verdict.jsonl", "expected a verdict (1 or 0, true or false) in 'correct', found 0.5"),
        ("word.jsonl", "expected a verdict (right, wrong"),
        ("log.jsonl --reward rewrad", "has no column 'rewrad'; did you mean 'reward'?"),
        ("log.jsonl --reward reward=two", "with a finite number but 0, got 'reward=two'"),
        ("log.jsonl --reward reward=nan", "with a finite number but 0, got 'reward=nan'"),
        ("log.jsonl --reward reward=0", "with a finite number but 0, got 'reward=0'"),
        ("log.jsonl --reward reward reward=2", "--reward names column 'reward' twice"),
        ("log.jsonl --threshold nan", "--threshold is a finite number, got nan"),
        ("log.jsonl --group-size 3", "a group size of 3 is given, but groups are told by"),
        ("mixed/a.jsonl mixed/../mixed/a.jsonl", "a.jsonl is given twice"),
        ("log.jsonl --weight remax", "weight remax needs the signal 'greedy_rewards_P'"),
        ("log.jsonl --compare nope", "unknown weight 'nope'"),
        ("log.jsonl --group-size 0", "--group-size is at least 1, got 0"),
        ("log.jsonl -o mixed", "cannot write the report mixed: Is a directory"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line_with_what_was_expected(here, capsys, argv, wanted):
    prepare(here)
    before = sorted(here.rglob("*"))
    code, out, err = run(capsys, *argv.split())
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert wanted in err
    assert sorted(here.rglob("*")) == before
