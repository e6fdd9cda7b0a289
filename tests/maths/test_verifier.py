"""Batches of verdicts: in order, within their limits, and the same one by one."""

import importlib.util
import sys
import threading
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmass.rewards import Outcome
from gradmass.rewards.maths import MathsVerifier
from gradmass.rewards.maths import verifier as verifier_module
from gradmass.rewards.maths.judge import MAX_LENGTH, judge, shortcut
from gradmass.types import UsageError

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "maths.py"


@pytest.fixture(scope="module")
def benchmark():
    """The cases that the benchmark is run on."""
    spec = importlib.util.spec_from_file_location("benchmark_of_maths", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.slow
def test_a_batch_with_pathological_answers_is_judged_in_time_and_as_one_by_one(benchmark):
    cases = benchmark.cases(200, seed=5)
    draw = benchmark.random.Random(1)
    for i in range(10, 200, 60):
        text = rf"\boxed{{{benchmark.pathological(draw)}}}"
        cases[i] = benchmark.Case("pathological", cases[i].gold, text, "pathological")
    golds, texts = [case.gold for case in cases], [case.completion for case in cases]
    with MathsVerifier(time_limit_s=2) as verifier:
        verdicts = verifier.verify(golds, texts)
        order = list(range(0, 200, 4))[::-1]
        alone = {i: verifier.verify([golds[i]], [texts[i]])[0] for i in order}
    assert len(verdicts) == 200
    assert max(verdict.seconds for verdict in verdicts) < 3
    for case, verdict in zip(cases, verdicts, strict=True):
        if case.expected == "pathological":
            assert not verdict.is_right, case
        else:
            assert verdict.outcome == case.expected, case
    for i, verdict in alone.items():
        assert verdict.outcome == verdicts[i].outcome, cases[i]
        assert verdict.detail == verdicts[i].detail


@pytest.fixture(scope="module")
def impatient():
    """Allows a second."""
    with MathsVerifier(time_limit_s=1) as made:
        yield made


def test_an_endless_answer_times_out_in_a_thread_too(impatient):
    endless = [r"9^{9^{9^{9}}}", "10000000!", r"\sum_{k=1}^{10^{12}} \frac{1}{k}"]
    texts = [rf"\boxed{{{answer}}}" for answer in [*endless, "x+0"]]
    found = []
    thread = threading.Thread(
        target=lambda: found.extend(impatient.verify(["7"] * 3 + ["x"], texts))
    )
    thread.start()
    thread.join(timeout=30)
    assert [str(verdict.outcome) for verdict in found] == ["timeout"] * 3 + ["right"]
    assert all(0.9 < verdict.seconds < 2 for verdict in found[:3])


def test_an_endless_gold_makes_its_completions_unscorable(impatient):
    verdict, other = impatient.verify([r"9^{9^{9^{9}}}", "x"], [r"\boxed{x}", r"\boxed{x+0}"])
    assert verdict.outcome is Outcome.ERROR
    assert verdict.detail == "the gold cannot be worked out (timeout)"
    assert other.is_right


def test_an_answer_that_needs_too_much_memory_is_wrong():
    with MathsVerifier(num_workers=1, time_limit_s=30, memory_mb=64) as verifier:
        (verdict,) = verifier.verify(["7"], [r"\boxed{2^{2^{36}} + 1}"])
    assert (verdict.outcome, verdict.detail) == (Outcome.WRONG, "memory")


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        ("", "no answer in the gold ''"),
        (r"\boxed{5", r"no answer in the gold '\\boxed{5'"),
        (r"\frac{1}{", "the gold cannot be read: not understood"),
        ("1 + ", "the gold cannot be read: not understood"),
        ("x" * (MAX_LENGTH + 1), "gold of 2,001 characters: too long"),
        (None, "the gold is no text: None"),
        (204, "the gold is no text: 204"),
    ],
)
def test_a_gold_that_cannot_be_read_is_unscorable_whatever_the_answer(verifier, gold, reason):
    for verdict in verifier.verify([gold] * 3, ["5", "1 + ", "junk"]):
        assert verdict.outcome is Outcome.ERROR
        assert not verdict.is_scorable
        assert verdict.detail.startswith(reason)


def test_a_completion_that_is_no_text_is_unscorable(verifier):
    (verdict,) = verifier.verify(["5"], [None])
    assert (verdict.outcome, verdict.detail) == (
        Outcome.ERROR,
        "the completion is no text: None",
    )


def test_an_answer_that_cannot_be_read_is_unparsed(verifier):
    answers = [r"\frac{1}{", "x" * (MAX_LENGTH + 1), r"\foo{5}", "(" * 900 + ")" * 900]
    found = verifier.verify(["x+1"] * 4, answers)
    assert [str(verdict.outcome) for verdict in found] == ["unparsed"] * 4


def test_equal_pairs_are_judged_once(verifier, monkeypatch):
    asked = []
    ask = verifier._pool.map
    monkeypatch.setattr(verifier._pool, "map", lambda r: (asked.extend(r), ask(r))[1])
    texts = [r"\boxed{(x+1)^2}", r"also \boxed{(x+1)^2}", r"\boxed{x^2}"] * 5
    verdicts = verifier.verify(["x^2+2x+1"] * 15, texts)
    assert len(asked) == 2
    assert [verdict.is_right for verdict in verdicts] == [True, True, False] * 5


def test_one_verifier_serves_many_threads(verifier):
    found = {}

    def ask(n):
        golds = [f"x^2 + {i % 3}" for i in range(30)]
        answers = [f"{(i + n) % 3} + x^2" for i in range(30)]
        found[n] = [verdict.is_right for verdict in verifier.verify(golds, answers)]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == {n: [n % 3 == 0] * 30 for n in range(6)}


def slow_verdict(gold: str, answer: str) -> tuple[str, str]:
    """What a worker says, without the shortcut."""
    stages = judge(gold, answer)
    while True:
        try:
            next(stages)
        except StopIteration as stop:
            return stop.value


numbers = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.integers(0, 10**9).map("{:,}".format),
    st.integers(0, 999).map("{:03d}".format),
    st.decimals(-1000, 1000, places=3).map(str),
    st.tuples(st.integers(-99, 99), st.integers(1, 99)).map(
        lambda t: rf"\frac{{{t[0]}}}{{{t[1]}}}"
    ),
    st.tuples(st.integers(-99, 99), st.integers(1, 99)).map(lambda t: f"{t[0]}/{t[1]}"),
    st.tuples(st.integers(-99, 99), st.integers(-30, 30)).map(lambda t: f"{t[0]}e{t[1]}"),
    st.sampled_from(["$7$", "7.", " 7", "+7", "-0", r"7\,000", "0.333333", "1/3", "2 1/2"]),
)


@settings(max_examples=300, deadline=None)
@given(numbers, numbers, st.booleans())
def test_the_shortcut_says_what_the_workers_say(gold, other, is_same):
    answer = gold if is_same else other
    assert shortcut(gold, answer) == slow_verdict(gold, answer)


LARGE = st.integers(-(10**30), 10**30)
EXACT = st.integers(-(10**15) + 1, 10**15 - 1)


@settings(max_examples=200, deadline=None)
@given(LARGE, LARGE, st.integers(-3, 3))
def test_integers_are_equal_when_they_are(first, second, distance):
    for gold, answer in ((first, second), (first, first), (first, first + distance)):
        expected = "right" if gold == answer else "wrong"
        assert shortcut(str(gold), f"{answer:,}")[0] == expected


@settings(max_examples=200, deadline=None)
@given(EXACT, EXACT, st.integers(-3, 3), LARGE)
def test_whole_numbers_with_a_decimal_point_are_equal_when_they_are(first, second, distance, large):
    """Up to 15 digits, beyond which a decimal point makes them noise: larger ones to themselves."""
    near = max(1 - 10**15, min(10**15 - 1, first + distance))
    for gold, answer in ((first, second), (first, first), (first, near), (large, large)):
        expected = "right" if gold == answer else "wrong"
        assert shortcut(f"{gold}.0", str(answer))[0] == expected


@settings(max_examples=60, deadline=None)
@given(
    st.fractions(-50, 50, max_denominator=60),
    st.fractions(-50, 50, max_denominator=60),
    st.booleans(),
)
def test_the_algebra_behind_the_shortcut_agrees_with_fractions(first, second, is_same):
    second = first if is_same else second
    gold, answer = (f"x + {f.numerator}/{f.denominator}" for f in (first, second))
    expected = "right" if Fraction(first) == Fraction(second) else "wrong"
    assert slow_verdict(gold.replace("+ -", "- "), answer.replace("+ -", "- "))[0] == expected


def test_more_golds_than_completions_are_refused(verifier):
    with pytest.raises(UsageError, match="3 golds for 2 completions"):
        verifier.verify(["1"] * 3, ["1"] * 2)
    assert verifier.verify([], []) == []


def test_a_closed_verifier_says_so():
    verifier = MathsVerifier()
    verifier.close()
    verifier.close()
    with pytest.raises(UsageError, match="the verifier is closed"):
        verifier.verify(["x"], [r"\boxed{y+0}"])


def test_without_math_verify_the_way_out_is_shown(monkeypatch):
    monkeypatch.setattr(verifier_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'gradmass\[math\]'"):
        MathsVerifier()
