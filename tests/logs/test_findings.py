"""Each number of the document equals plain loops over the rows."""

import math
import random
from collections import defaultdict

import pytest

from gradmass.logs import analyse, read_log
from gradmass.weights import WEIGHTS


def make_rows(seed=0, steps=5, sizes=(1, 2, 3, 5, 4)):
    """Ragged groups, problems that come again, repeated answers, unscored rollouts, log-probs."""
    rng = random.Random(seed)
    rows = []
    for step in range(1, steps + 1):
        for group, size in enumerate(sizes):
            problem = f"problem {rng.randrange(8)}"
            rate = rng.choice([0.0, 0.3, 0.7, 1.0])
            for _ in range(size):
                tokens = rng.randrange(1, 6)
                verdict = "right" if rng.random() < rate else "wrong"
                rows.append(
                    {
                        "step": step,
                        "group": group,
                        "problem_id": problem,
                        "completion": str(rng.randrange(4)),
                        "verdict": "error" if rng.random() < 0.1 else verdict,
                        "logprobs": [-rng.random() for _ in range(tokens)],
                    }
                )
    rng.shuffle(rows)
    return rows


@pytest.fixture(scope="module")
def rows():
    return make_rows()


@pytest.fixture
def document(rows, write_rows):
    log = read_log([write_rows("log.jsonl", rows)])
    return analyse(log, WEIGHTS["grpo"](), [WEIGHTS["grpo_std"](), WEIGHTS["remax"]()])


def groups_of(rows):
    groups = defaultdict(list)
    for row in rows:
        groups[row["step"], row["group"]].append(row)
    return groups


def grpo(rows):
    """Weight of each row, by its identity."""
    weights = {}
    for group in groups_of(rows).values():
        scored = [row for row in group if row["verdict"] != "error"]
        mean = sum(row["verdict"] == "right" for row in scored) / max(1, len(scored))
        for row in group:
            weights[id(row)] = (row["verdict"] == "right") - mean if row in scored else 0.0
    return weights


def test_masses_and_their_parts(rows, document):
    weights = grpo(rows)
    entry = document["weights"][0]
    m_S = sum(weights[id(row)] for row in rows if row["verdict"] == "right") / len(rows)
    m_F = -sum(weights[id(row)] for row in rows if row["verdict"] == "wrong") / len(rows)
    assert entry["label"] == document["weight_in_use"] == "grpo"
    assert entry["m_S"] == pytest.approx(m_S, rel=1e-12)
    assert entry["m_F"] == pytest.approx(m_F, rel=1e-12)
    positive = [0.0] * 10
    for group in groups_of(rows).values():
        scored = [row for row in group if row["verdict"] != "error"]
        right = sum(row["verdict"] == "right" for row in scored)
        tenth = min(9, 10 * right // max(1, len(scored)))
        positive[tenth] += sum(weights[id(row)] for row in group if row["verdict"] == "right")
    expected = [mass / len(rows) for mass in positive]
    assert entry["positive_by_solve_rate"] == pytest.approx(expected, rel=1e-12)
    for window, (first, last) in enumerate(document["log"]["windows"]):
        part = [row for row in rows if first <= row["step"] <= last]
        mass = sum(weights[id(row)] for row in part if row["verdict"] == "right") / len(part)
        assert entry["by_window"][window]["m_S"] == pytest.approx(mass, rel=1e-12)


def test_token_mean_weighs_by_length_within_a_step(rows, document):
    weights, total = grpo(rows), 0.0
    for step in range(1, 6):
        part = [row for row in rows if row["step"] == step]
        mean = sum(len(row["logprobs"]) for row in part) / len(part)
        total += sum(
            weights[id(row)] * len(row["logprobs"]) / mean
            for row in part
            if row["verdict"] == "right"
        )
    assert document["weights"][0]["token_mean"]["unit"] == "tokens"
    assert document["weights"][0]["token_mean"]["m_S"] == pytest.approx(total / len(rows))


def kish_share(sizes):
    """0 for a step without any weight."""
    squares = sum(size**2 for size in sizes)
    return sum(sizes) ** 2 / squares / len(sizes) if squares else 0.0


def test_effective_shares_are_kish_in_the_mean_step(rows, document):
    weights, by_rollout, by_group = grpo(rows), [], []
    for step in range(1, 6):
        sizes = [abs(weights[id(row)]) for row in rows if row["step"] == step]
        by_rollout.append(kish_share(sizes))
        means = [
            sum(abs(weights[id(row)]) for row in group) / len(group)
            for (at, _), group in groups_of(rows).items()
            if at == step
        ]
        by_group.append(kish_share(means))
    entry = document["weights"][0]
    assert entry["effective_rollouts"] == pytest.approx(sum(by_rollout) / 5)
    assert entry["effective_groups"] == pytest.approx(sum(by_group) / 5)


def test_groups_and_their_cost(rows, document):
    kinds, cost, tokens = defaultdict(int), 0, 0
    for group in groups_of(rows).values():
        right = sum(row["verdict"] == "right" for row in group)
        wrong = sum(row["verdict"] == "wrong" for row in group)
        kind = {(1, 1): "mixed", (1, 0): "too_easy", (0, 1): "too_hard", (0, 0): "unscored"}[
            bool(right), bool(wrong)
        ]
        kinds[kind] += 1
        if kind != "mixed":
            cost += len(group)
            tokens += sum(len(row["logprobs"]) for row in group)
    found, num = document["groups"], len(groups_of(rows))
    assert {kind: round(found[kind] * num) for kind in kinds} == kinds
    assert found["cost"]["rollouts"] == pytest.approx(cost / len(rows))
    all_tokens = sum(len(row["logprobs"]) for row in rows)
    assert found["cost"]["generated"] == pytest.approx(tokens / all_tokens)


def test_answers_lengths_and_entropy(rows, document):
    repeats, seen = 0, set()
    for row in rows:
        key = row["step"], row["group"], row["completion"]
        repeats += key in seen
        seen.add(key)
    assert document["duplicates"]["share"] == pytest.approx(repeats / len(rows))
    right = [len(row["logprobs"]) for row in rows if row["verdict"] == "right"]
    assert document["lengths"]["right"] == pytest.approx(sum(right) / len(right))
    every = [logprob for row in rows for logprob in row["logprobs"]]
    assert document["entropy"]["mean"] == pytest.approx(-sum(every) / len(every))
    assert document["entropy"]["unit"] == "nats a token"


def test_problems_over_their_visits(rows, document):
    visits = defaultdict(list)
    for (_, _), group in sorted(groups_of(rows).items(), key=lambda item: item[0][0]):
        scored = [row for row in group if row["verdict"] != "error"]
        if scored:
            right = sum(row["verdict"] == "right" for row in scored)
            visits[group[0]["problem_id"]].append((right, len(scored)))
    again = {problem: pairs for problem, pairs in visits.items() if len(pairs) > 1}
    found = document["problems"]
    assert found["num_visited_again"] == len(again)
    never = [problem for problem, pairs in again.items() if not sum(r for r, _ in pairs)]
    assert found["never_solved"]["num"] == len(never)
    assert {item["problem"] for item in found["never_solved"]["most_tried"]} <= set(never)
    always = [p for p, pairs in again.items() if all(r == n for r, n in pairs)]
    assert found["always_solved"]["num"] == len(always)


def test_what_a_weight_needs_and_the_log_lacks_is_said_and_stops_nothing(document):
    assert [entry["label"] for entry in document["weights"]] == ["grpo", "grpo_std", "remax"]
    assert "greedy_rewards_P" in document["weights"][2]["not_computed"]


def test_the_mean_solve_rate_overstates_the_share_of_mixed_groups(write_rows):
    # One problem in five is at 1/2, one solved, three hopeless; github.com/jsboige/CoursIA 10603.
    rows = [
        {"problem_id": f"{problem}", "correct": right}
        for problem, rights in (
            *((name, [0] * 8) for name in "abc"),
            ("d", [1] * 8),
            ("e", [1, 0] * 4),
        )
        for right in rights
    ]
    groups = analyse(read_log([write_rows("log.jsonl", rows)]))["groups"]
    assert groups["mixed"] == pytest.approx(0.2)
    assert groups["mixed_if_all_alike"] == pytest.approx(1 - 0.3**8 - 0.7**8)
    assert groups["mixed_if_all_alike"] == pytest.approx(0.94228638)


@pytest.mark.parametrize(("name", "factor"), [("grpo", 1.0), ("grpo", 2.5), ("grpo_std", 0.5)])
def test_logged_weights_are_recognised_up_to_a_factor(write_rows, name, factor):
    rng = random.Random(1)
    rows = []
    for group in range(40):
        rewards = [rng.randrange(2) for _ in range(6)]
        mean = sum(rewards) / 6
        deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 5) or 1.0
        scale = factor / deviation if name == "grpo_std" else factor
        rows += [
            {"prompt": f"{group}", "reward": r, "advantage": scale * (r - mean)} for r in rewards
        ]
    entry = analyse(read_log([write_rows("log.jsonl", rows)]))["weights"][0]
    assert entry["label"] == "as logged"
    # Leave-one-out is GRPO times a constant where all groups are of one size.
    assert entry["like"]["weight"] == name
    assert entry["like"]["factor"] == pytest.approx(factor, rel=1e-4)


def test_logged_weights_of_no_known_rule_are_called_so(write_rows):
    rows = [
        {"prompt": f"{i // 4}", "reward": i % 2, "advantage": (-1) ** (i // 3) * i}
        for i in range(40)
    ]
    found = analyse(read_log([write_rows("log.jsonl", rows)]))
    assert found["weights"][0]["like"] is None
    assert any("by what rule" in said for said in found["cannot_tell"])


def test_a_weight_with_memory_goes_through_the_steps_in_order(write_rows):
    rows = [
        {"step": step, "prompt": f"{step}", "reward": reward, "entropy": 1.0 / step}
        for step in (3, 1, 2)
        for reward in (1.0, 1.0, 1.0, 0.0)
    ]
    entry = analyse(read_log([write_rows("log.jsonl", rows)]), WEIGHTS["fade"]())["weights"][0]
    rate, entropy = 0.5, None
    for step in (1, 2, 3):
        rate = 0.98 * rate + 0.02 * 0.75
        entropy = 1.0 if entropy is None else 0.98 * entropy + 0.02 / step
    assert entry["state"]["solve_rate_ema"] == pytest.approx(rate)
    assert entry["state"]["entropy_ema"] == pytest.approx(entropy)
    assert entry["state"]["alpha"] == pytest.approx(max(1.0, 3 * (1 - rate) / (2 * rate)))
