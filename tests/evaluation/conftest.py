"""A task of the user's own, and a server that speaks OpenAI's protocol, well or badly."""

import json
import os
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

SUMS = '''
"""Sums of one digit: a task whose right answers are not listed."""

from dataclasses import dataclass
from typing import ClassVar

from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem, Task


@dataclass(frozen=True, kw_only=True)
class Sums(Task):
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    number: int = 6

    def generate(self, split):
        for i in range(self.number if split == "test" else 0):
            yield Problem(id=f"sum-{i}", prompt=f"{i},{i + 1}=", data=2 * i + 1)

    def verify(self, problem, completion):
        text = completion.strip()
        if text == "?":
            return Verdict(Outcome.ERROR, "the machine is out of order")
        if not text.isdigit():
            return Verdict(Outcome.UNPARSED, "no number")
        is_right = int(text) == problem.data
        return Verdict(Outcome.RIGHT if is_right else Outcome.WRONG, text)
'''


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def sums(tmp_path):
    """Name of the task in a file."""
    (tmp_path / "sums.py").write_text(SUMS)
    return "sums.py:Sums"


class Stub:
    """A server whose answers follow from prompt and seed alone.

    Args:
        write: Text of an answer, from prompt and seed.
        faults: What goes wrong with a request, from prompt, seed and how often it was asked before;
            None where nothing does.
    """

    def __init__(self, write, faults=lambda prompt, seed, number: None):
        self.write, self.faults = write, faults
        self.asked, self.given, self.requests = Counter(), Counter(), []
        self.past = []
        self.mutex = threading.Lock()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                stub.models(self)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                stub.answer(self, body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        # A client that gave up hears no more of it.
        self.server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @staticmethod
    def send(handler, *response):
        send(handler, *response)

    def models(self, handler):
        send(handler, 200, json.dumps({"object": "list", "data": [{"id": "stub"}]}))

    def answer(self, handler, body):
        is_chat = "messages" in body
        prompt = body["messages"][0]["content"] if is_chat else body["prompt"]
        key = (prompt, body["seed"])
        with self.mutex:
            number = self.asked[key]
            self.asked[key] += 1
            self.requests.append((handler.path, dict(handler.headers), body))
        fault = self.faults(*key, number)
        text = self.write(*key)
        choice = {"index": 0, "finish_reason": "stop"}
        choice |= {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        reply = {
            "id": f"stub-{abs(hash((key, number)))}",
            "created": 1767225600,
            "choices": [choice],
            "usage": {"prompt_tokens": 3, "completion_tokens": len(text)},
        }
        data = json.dumps(reply)
        if fault == "drop":
            handler.close_connection = True
            return
        if fault == "late":
            time.sleep(0.8)
        elif fault == "cut body":
            return send(handler, 200, data[: len(data) // 2])
        elif fault == "cut connection":
            handler.close_connection = True
            return send(handler, 200, data[: len(data) // 2], length=len(data))
        elif fault == "repeated":
            with self.mutex:
                old, sent = self.past[0] if self.past else ("", time.monotonic())
            # One whose own asker has read it by now.
            if time.monotonic() - sent > 0.1:
                return send(handler, 200, old)
        elif fault == "doubled":
            reply["choices"] = [choice, choice, {**choice, "index": 1}]
            data = json.dumps(reply)
        elif isinstance(fault, tuple):
            return send(handler, *fault)
        send(handler, 200, data)
        with self.mutex:
            self.past.append((data, time.monotonic()))
            self.given[key] += 1
        return None


def send(handler, status, text, headers=None, length=None):
    data = text.encode()
    kind = "text/html" if text.startswith("<") else "application/json"
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(data) if length is None else length))
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


@pytest.fixture
def serve():
    """Start a stub; stopped after the test."""
    stubs = []

    def start(*args, **kwargs):
        stubs.append(Stub(*args, **kwargs))
        return stubs[-1]

    yield start
    for stub in stubs:
        stub.close()


@pytest.fixture
def command(capsys):
    """Run a command; gives its stdout and stderr."""
    from gradmass.cli import main

    def run(*argv, code=0):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in argv])
        out, err = capsys.readouterr()
        assert ended.value.code == code, err
        return out, err

    return run
