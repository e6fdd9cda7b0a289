"""Which part of a completion is the program."""

import time

import pytest

from gradmass.rewards.blocks import find_program
from gradmass.types import UsageError

F = "def f(x):\n    return x"


def block(text: str, mark: str = "python", fence: str = "```") -> str:
    return f"{fence}{mark}\n{text}\n{fence}\n"


@pytest.mark.parametrize("mark", ["python", "py", "python3", "Python", ""])
@pytest.mark.parametrize("fence", ["```", "~~~", "`````"])
def test_a_fenced_block_is_found(mark, fence):
    assert find_program("Here:\n" + block(F, mark, fence) + "Done.", "last", "f") == F


@pytest.mark.parametrize(
    ("rule", "expected"), [("last", "x = 3"), ("first", "x = 1"), ("longest", "x = 22")]
)
def test_the_rule_picks_among_equals(rule, expected):
    text = block("x = 1") + block("x = 22") + block("x = 3")
    assert find_program(text, rule, None) == expected


@pytest.mark.parametrize("rule", ["last", "first", "longest"])
def test_a_block_that_defines_the_entry_point_is_preferred(rule):
    text = block("import math  # long, and no solution at all") + block(F) + block("print(f(1))")
    assert find_program(text, rule, "f") == F


def test_a_block_that_reads_the_input_is_preferred():
    text = block("n = int(input())\nprint(n)") + "For example:\n" + block("print(3)")
    assert find_program(text, "last", None) == "n = int(input())\nprint(n)"


def test_the_last_of_two_solutions_is_a_correction():
    text = block(F) + "Wait.\n" + block(F + " + 1")
    assert find_program(text, "last", "f") == F + " + 1"
    assert find_program(text, "first", "f") == F


@pytest.mark.parametrize("name", ["f2", "ff", "g"])
def test_a_name_that_begins_alike_is_another_name(name):
    text = block(f"def {name}(x): pass") + block(F) + block(f"{name}(1)")
    assert find_program(text, "first", "f") == F


def test_methods_assignments_and_classes_define_an_entry_point():
    for text in ("class Solution:\n    def f(self): pass", "f = lambda x: x", "class f: pass"):
        assert find_program(block(text) + block("f(1)"), "last", "f") == text


def test_other_languages_and_sample_outputs_are_no_programs():
    text = block("int main() {}", "cpp") + block(F) + block("3", "text") + block("4", "")
    assert find_program(text, "last", None) == F
    assert find_program(block("int main() {}", "cpp"), "last", None) is None


def test_thoughts_do_not_count():
    thought = "<think>" + block("def f(x): return 0")
    assert find_program(thought + "</think>" + block(F), "first", "f") == F
    assert find_program(thought + "</think> no code", "last", "f") is None
    assert find_program(thought, "last", "f") is None
    assert find_program(thought[len("<think>") :] + "</think>" + block(F), "first", "f") == F


def test_a_block_left_open_is_a_block():
    assert find_program("```python\n" + F, "last", "f") == F


def test_an_indented_block_loses_its_indent():
    text = "1. Do:\n   ```python\n   def f(x):\n       return x\n   ```\n"
    assert find_program(text, "last", "f") == F


def test_a_fence_within_a_longer_fence_is_text():
    inner = 'x = """\n```\n"""'
    assert find_program(block(inner, fence="````"), "last", None) == inner


@pytest.mark.parametrize("text", ["", "no code", "```", "``` \n```", "```python\n\n```"])
def test_without_a_block_there_is_no_program(text):
    assert find_program(text, "last", "f") is None


def test_whole_takes_all_of_it():
    assert find_program(F, "whole", "f") == F


def test_an_unknown_rule_is_refused():
    with pytest.raises(UsageError, match="'second' is not one of last, first, longest, whole"):
        find_program("", "second", None)


@pytest.mark.parametrize(
    "text",
    [
        "```" + "x" * 10**6 + "`",
        "```python\n" + "\n" * 10**6 + "```",
        "```python\n" + " \n" * 10**6 + "x",
        "`" * 10**6,
        ("```\n" * 10**5),
        "```python\ndef " + " " * 10**6,
    ],
    ids=lambda text: text[:14],
)
def test_no_completion_takes_long_to_read(text):
    started = time.perf_counter()
    for entry_point in ("f", None):
        find_program(text, "last", entry_point)
    assert time.perf_counter() - started < 5.0
