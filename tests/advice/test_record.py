"""The track record: outcomes follow from the numbers, predictions were never touched."""

import importlib.util
import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from gradmass.advice import track_record
from gradmass.advice.record import outcome_of, predicted_sign, score
from gradmass.cli import main
from gradmass.commands.advise_tables import score_text
from gradmass.masses import BetaPrior
from gradmass.masses.alignment import alignment
from gradmass.tables import from_spec
from gradmass.weights import Weight

ROOT = Path(__file__).parents[2]
FOLDER = files("gradmass.advice") / "predictions"
PUBLISHED = json.loads((FOLDER / "published.json").read_text())


def test_scores_by_hand():
    cells = [
        {"predicted": "up", "low": 0.1, "high": 0.2},  # hit
        {"predicted": "down", "low": 0.1, "high": 0.2},  # miss
        {"predicted": "down", "low": -0.2, "high": -0.1},  # hit
        {"predicted": "up", "low": -0.1, "high": 0.2},  # undecided
        {"predicted": "none", "low": -0.1, "high": 0.2},  # consistent
        {"predicted": "none", "low": 0.1, "high": 0.2},  # miss
    ]
    assert [outcome_of(c["predicted"], c["low"], c["high"]) for c in cells] == [
        *("hit", "miss", "hit", "undecided", "consistent", "miss"),
    ]
    assert score(cells) == {
        **{"num": 6, "hit": 2, "miss": 2, "undecided": 1, "consistent": 1},
        **{"decided": 4, "no_difference": 2, "always_up": 3},
        "p_value": (6 + 4 + 1) / 16,  # two, three or four heads of four
    }
    assert score([])["p_value"] is None


def test_published_comparisons_have_their_sources():
    comparisons = PUBLISHED["comparisons"]
    assert len({c["id"] for c in comparisons}) == len(comparisons) >= 8
    assert len({c["source"] for c in comparisons}) >= 8
    for comparison in comparisons:
        assert re.match(r"https://(arxiv\.org/abs/\d{4}\.\d{5}|teilo\.xyz/)", comparison["source"])
        assert comparison["where"]
        for measured in comparison["measured"]:
            assert measured["noise"] > 0


def test_the_signs_are_those_of_the_alignments():
    cells = iter(track_record()["published"]["cells"])
    for comparison in PUBLISHED["comparisons"]:
        for measured in comparison["measured"]:
            method, baseline = (
                alignment(
                    from_spec(Weight, comparison[side]["weight"]),
                    measured["k"],
                    comparison["group_size"] or 8,
                    BetaPrior(),
                )
                for side in ("method", "baseline")
            )
            cell = next(cells)
            assert cell["predicted"] == predicted_sign(method, baseline)
            assert cell["diff"] == measured["diff"]


@pytest.mark.parametrize("name", ["study_countdown_tiny", "simulated_countdown_tiny"])
def test_forecasts_are_complete_and_outcomes_say_where_they_come_from(name):
    document = json.loads((FOLDER / f"{name}.json").read_text())
    ids = [prediction["id"] for prediction in document["predictions"]]
    assert len(set(ids)) == len(ids)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", document["recorded"])
    for prediction in document["predictions"]:
        assert prediction["predicted"] in ("up", "down", "none")
        from_spec(Weight, prediction["weight"])
        for outcome in prediction["outcomes"]:
            assert outcome["low"] <= outcome["difference"] <= outcome["high"]
            assert len(outcome["seeds"]) >= 3
            assert outcome["command"].startswith(("gradmass train", "gradmass study"))
            assert outcome["commit"]


def test_at_least_ten_forecasts_have_an_outcome():
    forecasts = track_record()["forecasts"]
    assert sum(f["num_predictions"] - len(f["waiting"]) for f in forecasts) >= 10


def test_the_page_of_the_record_is_what_make_docs_writes():
    spec = importlib.util.spec_from_file_location("record", ROOT / "docs" / "generate_record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.record_page(), "run: make docs"


def test_what_is_said_of_the_scores_is_so():
    text = " ".join((ROOT / "docs" / "advise.md").read_text().split())
    for name, found in track_record()["published"]["scores"].items():
        assert f"{name}: {score_text(found)}" in text


def test_the_command_keeps_the_three_parts_apart(capsys):
    argv = ["advise", "--group-size", "4", "--seeds", "0", "--weights", "maxrl", "grpo"]
    with pytest.raises(SystemExit) as ended:
        main([*argv, "--json"])
    assert ended.value.code == 0
    document = json.loads(capsys.readouterr().out)
    assert [entry["label"] for entry in document["exact"]] == ["grpo", "maxrl"]
    assert document["simulated"] is None
    assert document["record"]["published"]["num_comparisons"] == len(PUBLISHED["comparisons"])
    with pytest.raises(SystemExit):
        main(argv)
    out = capsys.readouterr().out
    places = [out.index(part) for part in ("1. Exact", "2. Simulated", "3. How often")]
    assert places == sorted(places)
    assert "the implied objective of maxrl predicts pass@1 down" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--group-size 0", "group size must be a whole number from 1 to 4096, or inf, got 0"),
        ("--solve-rates beta:1", "prior 'beta:1' is not beta:a,b with two numbers"),
        ("--solve-rates gone.txt", "neither uniform nor beta:a,b nor a file that can be read"),
        ("--weights nope", "unknown weight 'nope'"),
        ("--seeds 1", "seeds is at least 2, got 1"),
        ("--seeds 0 --lag 2", "--lag and --updates-per-batch act in the simulation"),
        ("--lag -1", "lag is at least 0, got -1"),
    ],
)
def test_what_cannot_be_advised_on_is_refused(capsys, flags, message):
    with pytest.raises(SystemExit) as ended:
        main(["advise", *flags.split()])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err
