"""What a user sees of a server that has to be asked again."""

import re

import pytest

from gradmass.evaluation import endpoint
from gradmass.evaluation.endpoint import Endpoint


def write(prompt, seed):
    return "1"


@pytest.mark.parametrize("page", ['{"choices": []}', '{"choices": null}', '{"id": "x"}'])
def test_a_server_that_never_answers_says_what_is_waited_for_and_ends_in_one_line(
    command, serve, sums, monkeypatch, page
):
    monkeypatch.setitem(Endpoint.__init__.__kwdefaults__, "first_wait_s", 0.01)
    monkeypatch.setattr(endpoint, "SAID_FROM_S", 0.0)
    stub = serve(write, lambda prompt, seed, number: (200, page))
    _, err = command(
        *("eval", "stub", "--endpoint", stub.url, "--task", sums, "--num-samples", 1, "--k", 1),
        *("--concurrency", 1, "--out", "out"),
        code=2,
    )
    said, failed = err.strip().splitlines()
    assert re.fullmatch(
        rf"gradmass: note: asking {stub.url} again in 0 s \(try 2 of 8\) for problem 'sum-0', "
        r"sample 0: an answer without a choice: .*",
        said,
    )
    assert "in 8 tries; the last: an answer without a choice: {" in failed


def test_short_waits_are_not_worth_a_word_and_long_ones_one_in_a_while(serve, monkeypatch):
    said = []
    engine = Endpoint(
        url="http://localhost", model="stub", prompt_format="plain", sampling=None, say=said.append
    )
    question = type("Q", (), {"problem": type("P", (), {"id": "p"}), "sample": 3})
    clock = [100.0]
    monkeypatch.setattr(endpoint.time, "monotonic", lambda: clock[0])
    for seconds, wait_s in ((0, 1.9), (0, 2.0), (5, 60.0), (4.9, 4.0), (0.2, 4.0)):
        clock[0] += seconds
        engine._say(question, 2, wait_s, "HTTP 503: full")
    assert said == [
        f"asking http://localhost again in {wait} s (try 2 of 8) for problem 'p', sample 3: "
        "HTTP 503: full"
        for wait in (2, 4)
    ]
