"""Which answers are the gold answer: the pairs of answers.tsv, each decided by hand."""

from pathlib import Path

LINES = (Path(__file__).parent / "answers.tsv").read_text(encoding="utf-8").splitlines()[1:]
ROWS = [tuple(line.split("\t")) for line in LINES]


def pairs_that_are(expected):
    return [(gold, answer) for _, is_expected, gold, answer in ROWS if is_expected == expected]


def test_equal_answers_are_right(outcomes):
    pairs = pairs_that_are("right")
    found = outcomes(pairs)
    assert len(pairs) > 150
    assert [pair for pair, outcome in zip(pairs, found, strict=True) if outcome != "right"] == []


def test_other_answers_are_not(outcomes):
    pairs = pairs_that_are("wrong")
    assert len(pairs) > 100
    found = zip(pairs, outcomes(pairs), strict=True)
    assert [pair for pair, outcome in found if outcome not in ("wrong", "unparsed")] == []


def test_every_gold_equals_itself_in_a_box(outcomes):
    pairs = [(gold, rf"so it is $\boxed{{{gold}}}$.") for gold in sorted({row[2] for row in ROWS})]
    found = outcomes(pairs)
    assert [pair for pair, outcome in zip(pairs, found, strict=True) if outcome != "right"] == []
