"""Hidden states, their entropy and what they share, against one forward pass a token."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from gradmass.config import Recipe
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.tasks.countdown import Countdown
from gradmass.training.probes import schedule
from gradmass.training.probes.change import ChangeProbe
from gradmass.training.probes.states import (
    answer_states,
    entropy_of,
    is_plain_head,
    shared_row,
)
from gradmass.training.rollout import sample, uniforms
from gradmass.training.train import train

P, G, T = 4, 3, 20


@pytest.fixture
def rollouts(policy, tokenizer):
    prompts = [problem.prompt for problem in Countdown().problems("train", P)]
    return sample(policy, tokenizer, prompts, uniforms((P * G, T), 5, "rollout"))


def literal_states(policy, rollouts, i):
    """Logits and hidden states before each answer token of a rollout, without padding or head."""
    prompt = rollouts.prompt_BT[i][rollouts.prompt_mask_BT[i]].tolist()
    answer = rollouts.answer_BT[i][rollouts.answer_mask_BT[i]].tolist()
    with torch.no_grad():
        output = policy(torch.tensor([prompt + answer]), output_hidden_states=True)
    window = slice(len(prompt) - 1, len(prompt) + len(answer) - 1)
    return output.logits[0, window].double(), output.hidden_states[-1][0, window].double()


def test_states_are_those_the_tokens_are_drawn_from(policy, rollouts):
    states = answer_states(policy, rollouts)
    for i in range(P * G):
        _, hidden = literal_states(policy, rollouts, i)
        found = states.hidden_BTD[i][states.mask_BT[i]].double()
        torch.testing.assert_close(found, hidden, atol=1e-4, rtol=1e-4)


def test_entropy_of_states_is_the_mean_over_answer_tokens(policy, rollouts):
    entropies = []
    for i in range(P * G):
        logits, _ = literal_states(policy, rollouts, i)
        p = logits.softmax(-1)
        entropies += (-(p * p.log()).sum(-1)).tolist()
    found = entropy_of(policy, answer_states(policy, rollouts))
    assert found == pytest.approx(math.fsum(entropies) / len(entropies), rel=1e-5)
    # On policy it is what was recorded in sampling.
    assert found == pytest.approx(rollouts.mean_entropy_nats, rel=1e-5)


def test_entropy_follows_the_policy_and_not_the_one_that_drew(policy, rollouts):
    before = entropy_of(policy, answer_states(policy, rollouts))
    with torch.no_grad():
        policy.lm_head.weight *= 3  # sharper
    assert entropy_of(policy, answer_states(policy, rollouts)) < 0.7 * before


def test_logits_that_are_capped_after_the_head_are_noticed(policy, rollouts, monkeypatch):
    assert is_plain_head(policy, rollouts)
    forward = policy.forward

    def capped(*arguments, **options):
        output = forward(*arguments, **options)
        output.logits = 2 * torch.tanh(output.logits / 2)
        return output

    monkeypatch.setattr(policy, "forward", capped)
    assert not is_plain_head(policy, rollouts)


def test_a_model_with_capped_logits_is_trained_and_told_of_once(tmp_path, monkeypatch):
    flags = ["--weight=grpo", "--train.steps=3", "--train.num_problems=2", "--probe.every=1"]
    flags += ["--train.prompts_per_step=2", "--train.group_size=2", "--probe.rank_every=0"]
    flags += ["--eval.every=0", "--eval.num_problems=1", "--eval.num_samples=0"]
    recipe = load_recipe(Recipe, None, flags)
    monkeypatch.setattr(schedule, "is_plain_head", lambda policy, rollouts: False)
    writer = RunWriter.create(tmp_path / "run", {"label": "x", "recipe": to_tables(recipe)}, {})

    def die(row):
        if row["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, writer, die)
    writer.close()
    writer = RunWriter.resume(tmp_path / "run", {})
    assert train(recipe, writer, lambda row: None)
    writer.close()
    rows = Run(tmp_path / "run").metrics
    told = [(row["step"], w["name"]) for row in rows for w in row.get("warnings", [])]
    assert told == [(1, "not measured")]
    for row in rows[1:]:
        assert "signal/snr" in row
        assert not any(key.startswith(("states/", "rank/m", "entropy/change")) for key in row)


def test_other_architectures_have_plain_heads_too(other_policy, tokenizer):
    prompts = [problem.prompt for problem in Countdown().problems("train", 2)]
    rollouts = sample(other_policy, tokenizer, prompts, uniforms((4, 8), 5, "rollout"))
    assert is_plain_head(other_policy, rollouts)
    found = entropy_of(other_policy, answer_states(other_policy, rollouts))
    assert found == pytest.approx(rollouts.mean_entropy_nats, rel=1e-4)


def test_what_rollouts_share_is_that_of_their_mean_hidden_states(policy, rollouts):
    start = ChangeProbe(policy)
    with torch.no_grad():
        policy.lm_head.weight += 0.01 * torch.randn(
            policy.lm_head.weight.shape, generator=torch.Generator().manual_seed(0)
        )
    successes = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]], dtype=bool)
    mask = np.ones((P, G), dtype=bool)
    mask[3, 0] = False
    change = start.head_change(policy)
    row = shared_row(answer_states(policy, rollouts), successes, mask, change)

    scored = [i for i in range(P * G) if mask.reshape(-1)[i]]
    means = {i: literal_states(policy, rollouts, i)[1].mean(0).numpy() for i in scored}
    _, sigma, right = np.linalg.svd(np.stack(list(means.values())))
    u = right[0]
    assert row["states/shared_energy"] == pytest.approx(sigma[0] ** 2 / (sigma**2).sum(), rel=1e-4)
    rest = {i: h - (h @ u) * u for i, h in means.items()}
    for name, side in (("right", True), ("wrong", False)):
        members = [i for i in scored if successes.reshape(-1)[i] == side]
        pairs = {
            (i, j): rest[i] @ rest[j] / np.linalg.norm(rest[i]) / np.linalg.norm(rest[j])
            for i, j in combinations(members, 2)
        }
        across = [value for (i, j), value in pairs.items() if i // G != j // G]
        key = f"states/rho_perp_{name}"
        assert row[key] == pytest.approx(np.mean(list(pairs.values())), abs=1e-4)
        assert row[f"{key}_across"] == pytest.approx(np.mean(across), abs=1e-4)
    assert row["rank/m1_norm"] == pytest.approx(np.linalg.norm(change @ u), rel=1e-4)
    rest_norm = np.linalg.norm(change - np.outer(change @ u, u))
    assert row["rank/m2_norm"] == pytest.approx(rest_norm, rel=1e-4)


def test_a_verdict_with_no_rollout_or_one_has_no_correlation(policy, rollouts):
    successes = np.zeros((P, G), dtype=bool)
    successes[0, 0] = True
    mask, change = np.ones((P, G), dtype=bool), np.ones((21, 64))
    states = answer_states(policy, rollouts)
    assert shared_row(states, successes, mask, change)["states/rho_perp_right"] is None
    successes[0, 0] = False
    row = shared_row(states, successes, mask, change)
    assert row["states/rho_perp_right"] is None
    assert row["states/rho_perp_wrong"] is not None
