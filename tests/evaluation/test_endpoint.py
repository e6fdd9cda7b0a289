"""Servers: what faults do to an evaluation (nothing), and what ends it (one line)."""

import gzip
import json
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from gradmass.evaluation import Question, Sampling
from gradmass.evaluation.answers import request_seed
from gradmass.evaluation.endpoint import Endpoint
from gradmass.tasks import Problem

FAULTS = [
    "drop",
    "late",
    "cut body",
    "cut connection",
    "repeated",
    (500, '{"object": "error", "message": "engine", "type": "InternalServerError", "code": 500}'),
    (429, '{"error": {"message": "slow", "code": "rate_limit_exceeded"}}', {"retry-after": "0.1"}),
    (503, '{"object": "error", "message": "The request queue is full.", "code": 503}'),
    (502, "<html><body>502 Bad Gateway</body></html>"),
    (
        200,
        '{"id": "x", "choices": [{"index": 0, "message": {"content": ""}, '
        '"finish_reason": "abort"}]}',
    ),
    (200, '{"error": {"message": "engine failed", "code": 500}}'),
    (200, '{"choices": []}'),
    "doubled",
]
"""What goes wrong with a request; only the last is an answer all the same."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Waits of milliseconds, and answers given up after half a second."""
    monkeypatch.setitem(Endpoint.__init__.__kwdefaults__, "first_wait_s", 0.001)
    monkeypatch.setitem(Endpoint.__init__.__kwdefaults__, "timeout_s", 0.5)


def write(prompt, seed):
    """Right for a third of the seeds."""
    i = int(prompt.partition(",")[0])
    return str(2 * i + 1 + (seed % 3 > 0))


def samples(folder):
    with gzip.open(Path(folder) / "samples.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def by_key(rows):
    return {(row["problem_id"], row["sample"]): row for row in rows}


def asking(stub, sums, *flags, out="out", concurrency=4):
    return [
        "eval", "stub", "--endpoint", stub.url, "--task", sums, "--num-samples", 8, "--k", 1, 8,
        "--max-new-tokens", 9, "--concurrency", concurrency, "--out", out, *flags,
    ]  # fmt: skip


def test_an_evaluation_of_a_server_is_that_of_its_answers(command, serve, sums):
    stub = serve(write)
    out, err = command(*asking(stub, sums, "--json", "--seed", 5))
    assert err == ""
    results = json.loads(out)
    right = {i: [request_seed(5, f"sum-{i}", j) % 3 == 0 for j in range(8)] for i in range(6)}
    (split,) = results["splits"]
    assert split["sampled_pass@1"] == pytest.approx(sum(map(sum, right.values())) / 48)
    assert split["sampled_pass@8"] == sum(map(any, right.values())) / 6
    assert split["samples"]["outcomes"] == {
        "right": sum(map(sum, right.values())),
        "wrong": 48 - sum(map(sum, right.values())),
    }
    rows = by_key(samples("out"))
    for i in range(6):
        for j in range(8):
            row = rows.pop((f"sum-{i}", j))
            assert row["correct"] is right[i][j]
            assert row["completion"] == write(f"{i},", request_seed(5, f"sum-{i}", j))
            assert row["num_tokens"] == len(row["completion"])
    assert rows == {}
    path, headers, body = stub.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == "Bearer EMPTY"
    assert body["messages"] == [{"role": "user", "content": body["messages"][0]["content"]}]
    assert (body["model"], body["temperature"], body["top_p"]) == ("stub", 1.0, 1.0)
    assert body["max_tokens"] == 9
    assert json.loads(Path("out/results.json").read_text())["splits"] == results["splits"]
    assert not Path("out/waiting.jsonl").exists()


def test_plain_prompts_stop_texts_and_the_key_reach_the_server(command, serve, sums, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    stub = serve(write)
    plain = ["--prompt", "plain", "--stop", "\n", "END", "--temperature", 0.5, "--top-p", 0.9]
    command(*asking(stub, sums, *plain))
    path, headers, body = stub.requests[0]
    assert path == "/v1/completions"
    assert headers["authorization"] == "Bearer secret"
    assert body["stop"] == ["\n", "END"]
    assert (body["temperature"], body["top_p"]) == (0.5, 0.9)
    assert "," in body["prompt"]


@pytest.mark.parametrize("prompt_format", ["chat", "plain"])
def test_faults_change_no_sample_lose_none_and_double_none(command, serve, sums, prompt_format):
    def faults(prompt, seed, number):
        # Most requests go wrong once or twice, all kinds of ways.
        if number < seed % 3:
            return FAULTS[(seed // 3 + number) % len(FAULTS)]
        return None

    flags = ["--prompt", prompt_format, "--json"]
    good, bad = serve(write), serve(write, faults)
    calm = json.loads(command(*asking(good, sums, *flags, out="good"))[0])
    out, err = command(*asking(bad, sums, *flags, out="bad", concurrency=8))
    assert err == ""
    assert sum(bad.asked.values()) > 70
    troubled = json.loads(out)
    for row in [*calm["splits"], *troubled["splits"]]:
        del row["time/eval_s"]
    assert troubled["splits"] == calm["splits"]
    assert len(samples("bad")) == len(samples("good")) == 48
    assert by_key(samples("bad")) == by_key(samples("good"))
    assert set(good.asked.values()) == {1}


def test_every_kind_of_fault_is_met(serve):
    """One request, that goes wrong in each way in turn."""
    stub = serve(lambda prompt, seed: f"{seed}", lambda *key: None)
    engine = Endpoint(
        url=stub.url, model="m", prompt_format="chat", sampling=Sampling(max_new_tokens=5),
        num_tries=len(FAULTS), first_wait_s=1e-4,
    )  # fmt: skip
    warm, question = (Question(Problem(name, name, None), 0) for name in ("warm", "asked"))
    (first,) = ask(engine, [warm])
    time.sleep(0.15)  # as old as a response has to be to be given again
    stub.faults = lambda prompt, seed, number: FAULTS[number] if number < len(FAULTS) else None
    (answer,) = ask(engine, [question])
    assert first.completion == str(request_seed(0, "warm", 0))
    assert answer.completion == str(request_seed(0, "asked", 0))
    assert stub.asked["asked", request_seed(0, "asked", 0)] == len(FAULTS)


def ask(engine, questions):
    found = []
    for answers in engine.answers(questions, lambda question: False, lambda answer: None):
        found += answers
    return found


def body_of(choice, **more):
    return {"id": "1", "created": 1, "choices": [{"index": 0, **choice}], **more}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (  # vLLM, which writes what is null
            body_of(
                {
                    "message": {"content": "7", "tool_calls": [], "reasoning": None},
                    "finish_reason": "stop",
                    "stop_reason": None,
                },
                usage={"completion_tokens": 2, "prompt_tokens_details": None},
            ),
            {"completion": "7", "is_truncated": False, "num_tokens": 2, "reasoning": None},
        ),
        (  # the reasoning used up all tokens
            body_of(
                {"message": {"content": None, "reasoning": "still"}, "finish_reason": "length"}
            ),
            {"completion": "", "is_truncated": True, "num_tokens": None, "reasoning": "still"},
        ),
        (  # SGLang, which leaves out what is null
            body_of(
                {
                    "message": {"content": "x", "reasoning_content": "so", "tool_calls": None},
                    "finish_reason": "stop",
                    "matched_stop": 151645,
                },
                metadata={"weight_version": "default"},
            ),
            {"completion": "x", "is_truncated": False, "num_tokens": None, "reasoning": "so"},
        ),
        (
            body_of({"message": {"content": ""}, "finish_reason": "content_filter"}),
            {"completion": "", "failure": "withheld by the server's content filter"},
        ),
        (  # choices in any order
            {
                "choices": [
                    {"index": 1, "message": {"content": "b"}, "finish_reason": "stop"},
                    {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"},
                ]
            },
            {"completion": "a"},
        ),
    ],
)
def test_real_responses_are_read(serve, body, expected):
    stub = serve(write, lambda *_: (200, json.dumps(body)))
    engine = Endpoint(
        url=stub.url, model="m", prompt_format="chat", sampling=Sampling(max_new_tokens=5)
    )
    (answer,) = ask(engine, [Question(Problem("a", "1,2=", None), 3)])
    assert (answer.problem_id, answer.sample) == ("a", 3)
    for name, value in expected.items():
        assert getattr(answer, name) == value


def test_a_server_with_one_id_for_all_may_give_equal_answers(serve):
    """Refusing equal texts there would make answers look more diverse than they are."""
    stub = serve(write)
    texts = iter(["5", "7"] + ["7"] * 20)

    def faults(*_):
        choice = {"message": {"content": next(texts)}, "finish_reason": "stop"}
        return 200, json.dumps(body_of(choice))

    stub.faults = faults
    engine = Endpoint(
        url=stub.url, model="m", prompt_format="chat", concurrency=1,
        sampling=Sampling(max_new_tokens=5),
    )  # fmt: skip
    answers = ask(engine, [Question(Problem("a", "1,2=", None), j) for j in range(20)])
    assert Counter(answer.completion for answer in answers) == {"5": 1, "7": 19}
    assert sum(stub.asked.values()) == 20


QUOTA = '{"error": {"message": "Quota exhausted.", "code": "insufficient_quota"}}'
RATE = '{"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}'
NESTED = '{"error": {"message": "The model `stub` does not exist.", "code": 404}}'
LONG = '{"object": "error", "message": "The input (9000 tokens) is longer", "code": 400}'
PAGE = "<!DOCTYPE html><html>hello</html>"


@pytest.mark.parametrize(
    ("fault", "wanted", "num_asked"),
    [
        ((401, '{"error": "Unauthorized"}'), "refuses the key (HTTP 401: Unauthorized): set", 1),
        ((403, ""), "refuses the key (HTTP 403: no words): set OPENAI_API_KEY", 1),
        ((404, NESTED), "often ends in /v1 (HTTP 404: The model `stub` does not exist.)", 1),
        ((400, LONG), "refuses the request (HTTP 400: The input (9000 tokens) is longer)", 1),
        ((429, QUOTA), "refuses the request (HTTP 429: Quota exhausted.)", 1),
        ((429, RATE), "sample 0, in 8 tries; the last: HTTP 429: Rate limit reached", 8),
        ((429, RATE, {"retry-after": "86400"}), "asks to wait 86400 s (HTTP 429: Rate", 1),
        ((500, '{"object": "error", "message": "boom"}'), "8 tries; the last: HTTP 500: boom", 8),
        ((502, "<html>502 Bad Gateway</html>"), "in 8 tries; the last: HTTP 502: an HTML page", 8),
        ((200, PAGE), "answers with an HTML page: it is not the address of a server's API", 1),
        ((200, "[1]"), "in 8 tries; the last: an answer that is no object: '[1]'", 8),
        ("cut body", "in 8 tries; the last: half an answer of", 8),
        ("drop", "in 8 tries; the last: ", 8),
        ("late", "in 8 tries; the last: no answer in time", 8),
    ],
)  # fmt: skip
def test_what_stays_wrong_is_one_line_and_loses_nothing(
    command, serve, sums, monkeypatch, fault, wanted, num_asked
):
    """The last question meets the fault; the answers before it are kept, and asked no more."""
    stub = serve(write)
    bad = request_seed(0, "sum-5", 0)
    stub.faults = lambda prompt, seed, number: fault if seed == bad else None
    argv = asking(stub, sums, concurrency=1)
    argv[argv.index("--num-samples") + 1] = 1
    del argv[argv.index("--k") : argv.index("--k") + 3]
    if fault == "late":
        monkeypatch.setitem(Endpoint.__init__.__kwdefaults__, "timeout_s", 0.1)
    out, err = command(*argv, code=2)
    assert out == ""
    assert err.startswith(f"gradmass: error: {stub.url} ")
    assert err.count("\n") == 1
    assert wanted in err
    assert stub.asked[f"{5},{6}=", bad] == num_asked
    assert by_key(samples("out")).keys() == {(f"sum-{i}", 0) for i in range(5)}
    stub.faults = lambda *_: None
    command(*argv)
    assert by_key(samples("out")).keys() == {(f"sum-{i}", 0) for i in range(6)}
    assert all(number == 1 for number in stub.given.values())


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ((401, '{"error": "Unauthorized"}'), "refuses the key (HTTP 401: Unauthorized)"),
        ((200, PAGE), "answers with an HTML page"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_before_anything_is_asked(
    command, serve, sums, page, wanted
):
    stub = serve(write)
    stub.models = lambda handler: stub.send(handler, *page)
    _, err = command(*asking(stub, sums), code=2)
    assert wanted in err
    assert stub.requests == []
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "page", [(404, "{}"), (501, ""), (500, "{}"), (200, '{"data": "hal')], ids=str
)
def test_a_server_that_lists_no_models_is_asked_all_the_same(command, serve, sums, page):
    stub = serve(write)
    stub.models = lambda handler: stub.send(handler, *page)
    command(*asking(stub, sums))
    assert len(stub.requests) == 48


def test_an_unreachable_server_is_one_line(command, sums):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    argv = ["eval", "m", "--endpoint", url, "--task", sums, "--out", "out"]
    _, err = command(*argv, code=2)
    assert err.startswith(f"gradmass: error: no server answers at {url}: ")
    assert err.count("\n") == 1
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--endpoint", "localhost:8000"], "--endpoint needs an address such as http://localhost"),
        (["--concurrency", "0"], "--concurrency must be at least 1, got 0"),
    ],
)
def test_odd_flags_are_one_line(command, serve, sums, flags, wanted):
    argv = asking(serve(write), sums, *flags)
    assert command(*argv, code=2)[1].startswith(f"gradmass: error: {wanted}")


def test_no_more_than_the_concurrency_is_under_way(serve):
    under_way, most = set(), []

    def watched(prompt, seed):
        under_way.add(seed)
        most.append(len(under_way))
        time.sleep(0.02)
        under_way.discard(seed)
        return "1"

    stub = serve(watched)
    engine = Endpoint(
        url=stub.url, model="m", prompt_format="chat", concurrency=3,
        sampling=Sampling(max_new_tokens=5),
    )  # fmt: skip
    ask(engine, [Question(Problem("a", "1,2=", None), j) for j in range(30)])
    assert max(most) == 3


def test_requests_go_on_while_the_verifier_works(serve):
    """A slow consumer: all answers are there, and kept, long before it has seen them."""
    stub, kept = serve(write), []
    engine = Endpoint(
        url=stub.url, model="m", prompt_format="chat", concurrency=2,
        sampling=Sampling(max_new_tokens=5),
    )  # fmt: skip
    questions = [Question(Problem("a", "1,2=", None), j) for j in range(20)]
    stream = engine.answers(questions, lambda question: False, kept.append)
    num_seen = len(next(stream))
    deadline = time.monotonic() + 20
    while len(kept) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(kept) == 20
    assert num_seen + sum(map(len, stream)) == 20


def test_where_the_consumer_fails_no_more_is_asked(serve):
    stub = serve(lambda prompt, seed: time.sleep(0.02) or "1")
    engine = Endpoint(
        url=stub.url, model="m", prompt_format="chat", concurrency=2,
        sampling=Sampling(max_new_tokens=5),
    )  # fmt: skip
    questions = [Question(Problem("a", "1,2=", None), j) for j in range(200)]
    stream = engine.answers(questions, lambda question: False, lambda answer: None)
    next(stream)
    stream.close()
    num_asked = sum(stub.asked.values())
    assert num_asked < 20
    time.sleep(0.1)
    # Those under way may still have reached the server.
    assert sum(stub.asked.values()) <= num_asked + 2
    assert "gradmass-endpoint" not in {thread.name for thread in threading.enumerate()}


def test_seeds_of_requests_are_distinct_and_small():
    seeds = [request_seed(s, p, j) for s in (0, 1) for p in ("a", "b") for j in range(500)]
    assert len(set(seeds)) == 2000
    assert all(0 <= seed < 2**31 for seed in seeds)
