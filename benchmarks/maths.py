"""Mathematical verdicts per second, with answers that never end among them; one run.

    python benchmarks/maths.py [--num 10000] [--workers 2] [--time-limit 2] [--plain 1000] [--json]

Distinct golds of the kinds that data sets hold, each with a completion that is right or wrong by
construction, and one in a hundred with an answer made to hang, crash or exhaust a verifier. Beside
it plain ``math_verify.parse`` and ``verify`` in this process, on the first answers that are not
pathological: it has one core and no protection but its own alarms, the verifier two workers.
"""

import argparse
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gradmass.rewards import Verdict
from gradmass.rewards.maths import MathsVerifier


@dataclass(frozen=True)
class Case:
    """A gold, a completion, and what it has to be: right, wrong, or "pathological"."""

    kind: str
    gold: str
    completion: str
    expected: str


def pathological(draw: random.Random) -> str:
    """An answer no verifier should have to read."""
    n = draw.randrange(5, 99)
    return draw.choice(
        [
            rf"{n}^{{{n}^{{{n}^{{{n}}}}}}}",
            rf"{n}00000000!",
            rf"\binom{{{n}0000000000}}{{{n}000000000}}",
            rf"\sum_{{k=1}}^{{{n}^{{9^{{9}}}}}} \frac{{1}}{{k}}",
            rf"{n} + " + "+".join(rf"\frac{{{k}}}{{x}}" for k in range(8000)),  # 100 kB
            "{" * 900 + str(n) + "}" * 900,
            "(" * 600 + f"x+{n}" + ")^{2}" * 200 + ")" * 400,
            r"\sqrt{" * 150 + str(n) + "}" * 150,
            r"\frac{1}{1+" * 120 + f"x_{n}" + "}" * 120,
            f"{n}" * 60_000,
        ]
    )


def pair(kind: str, draw: random.Random) -> tuple[str, str, str]:
    """A gold of a kind, a right answer in another form, and a wrong one."""
    a, b, c = (draw.randrange(2, 400) for _ in range(3))
    match kind:
        case "integer":
            n = draw.randrange(-(10**6), 10**6)
            return str(n), f"{n:,}", str(n + draw.choice([-1, 1, 10]))
        case "fraction":
            return rf"\frac{{{a}}}{{{b}}}", f"{a * c}/{b * c}", rf"\frac{{{a + 1}}}{{{b}}}"
        case "root":
            return rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}", rf"{a + 1}\sqrt{{{b}}}"
        case "pi":
            return rf"{a}\pi", f"{a}*pi", rf"\frac{{{a}\pi}}{{2}}"
        case "polynomial":
            right = rf"x^{{2}} + {b} + {a} x"
            return rf"x^2 + {a}x + {b}", right, f"x^2 + {a}x + {b + 1}"
        case "product":
            return f"(x-{a})(x+{b})", f"x^2 + ({b - a})x - {a * b}", f"(x+{a})(x+{b})"
        case "tuple":
            return f"({a}, {b})", rf"\left({a}, \; {b}\right)", f"({b}, {a + 1})"
        case "set":
            return rf"\{{{a}, {b + 400}\}}", rf"\{{{b + 400}, {a}\}}", rf"\{{{a}, {b + 401}\}}"
        case "interval":
            return rf"(-\infty, {a}]", rf"x \le {a}", f"x < {a}"
        case "equation":
            return f"y = {a}x + {b}", f"{a}x - y + {b} = 0", f"y = {a}x - {b}"
        case "unit":
            return rf"{a}\text{{ cm}}", f"{a} centimeters", rf"{a}\text{{ km}}"
        case "percent":
            return rf"{a}\%", f"{a}", rf"{a + 1}\%"
        case "tiny":
            return rf"\frac{{1}}{{{a + 200}!}}", rf"\frac{{{c}}}{{{c}\cdot {a + 200}!}}", "0"
        case "scientific":
            return rf"{a} \times 10^{{-{b}}}", f"{a}e-{b}", rf"{a} \times 10^{{-{b + 1}}}"
    words = draw.sample(["red", "blue", "odd", "even", "Ana", "Thursday", "north", "convex"], 2)
    return rf"\text{{{words[0]} {a}}}", f"{words[0]} {a}", f"{words[1]} {a}"


KINDS = (
    *("integer", "integer", "integer", "integer", "fraction", "fraction", "root", "pi"),
    *("polynomial", "product", "tuple", "set", "interval", "equation", "unit", "percent"),
    *("tiny", "scientific", "words"),
)


def cases(num: int, seed: int = 0) -> list[Case]:
    """Distinct cases; every hundredth is pathological."""
    draw = random.Random(seed)
    made = []
    for i in range(num):
        kind = draw.choice(KINDS)
        gold, right, wrong = pair(kind, draw)
        expected, answer = draw.choice([("right", right), ("wrong", wrong)])
        if i % 100 == 50:
            kind, expected, answer = "pathological", "pathological", pathological(draw)
        text = rf"Step {i}: so the answer is $\boxed{{{answer}}}$."
        made.append(Case(kind, gold, text, expected))
    return made


def plain_seconds(some: Sequence[Case]) -> tuple[float, Counter[str]]:
    """Seconds of math-verify alone, and how often it is wrong, by kind."""
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    mistakes: Counter[str] = Counter()
    start = time.perf_counter()
    for case in some:
        is_right = verify(parse(rf"$\boxed{{{case.gold}}}$"), parse(case.completion))
        mistakes[case.kind] += is_right != (case.expected == "right")
    return time.perf_counter() - start, +mistakes


def is_as_expected(case: Case, verdict: Verdict) -> bool:
    """Whether a verdict is the one its case was made for."""
    if case.expected == "pathological":
        return not verdict.is_right and verdict.is_scorable
    return verdict.outcome == case.expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--time-limit", type=float, default=2.0)
    parser.add_argument("--plain", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    made = cases(options.num)
    with MathsVerifier(options.workers, time_limit_s=options.time_limit) as verifier:
        verifier.verify(["x"], [r"\boxed{x+0}"])  # start what is slow to start
        start = time.perf_counter()
        verdicts = verifier.verify([c.gold for c in made], [c.completion for c in made])
        seconds = time.perf_counter() - start

        sane = [case for case in made if case.expected != "pathological"]
        start = time.perf_counter()
        verifier.verify([c.gold for c in sane[:3000]], [c.completion for c in sane[:3000]])
        sane_rate = min(3000, len(sane)) / (time.perf_counter() - start)
    some = sane[: options.plain]
    plain, mistakes = plain_seconds(some)
    rows = {
        "verdicts": len(verdicts),
        "pathological": len(made) - len(sane),
        "verdicts per second": len(verdicts) / seconds,
        "verdicts per second without the pathological": sane_rate,
        "plain math-verify without the pathological": len(some) / plain,
        "times faster than plain math-verify": sane_rate * plain / len(some),
        "slowest verdict, s": max(verdict.seconds or 0.0 for verdict in verdicts),
        "time limit, s": options.time_limit,
        "outcomes": dict(Counter(str(verdict.outcome) for verdict in verdicts)),
        "not as made": sum(not is_as_expected(*p) for p in zip(made, verdicts, strict=True)),
        "mistakes of plain math-verify": dict(mistakes),
        "of": len(some),
    }
    if options.json:
        print(json.dumps(rows))
        return
    for name, value in rows.items():
        print(f"{name:48} {value:.2f}" if isinstance(value, float) else f"{name:48} {value}")


if __name__ == "__main__":
    main()
