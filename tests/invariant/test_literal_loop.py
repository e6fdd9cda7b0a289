"""The trainer against a loop written from the definitions, one row and one token at a time.

The loop shares no code with the trainer: no cache, no padding, no batching, its own clipped loss,
plain optimisers. It shares the task, and the rule that draws are
``default_rng([seed, batch, *b"rollout"])``.
"""

from importlib.resources import files

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gradmass.config import Recipe
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.tasks.countdown import Countdown
from gradmass.training.train import train

CHECKPOINT = str(files("gradmass") / "checkpoints" / "countdown-tiny")
P, G, T, STEPS, LOW, HIGH = 4, 4, 18, 5, 0.02, 0.05


def literal_loop(optim, lr, lag, updates, aggregation):
    policy = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    sampler = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    end = tokenizer.eos_token_id
    task = Countdown()
    problems = task.problems("train", 6)
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = kinds[optim](policy.parameters(), lr=lr, weight_decay=0.0)
    versions = [{k: v.clone() for k, v in policy.state_dict().items()}]
    rows, step, batch = [], 0, 0
    while step < STEPS:
        sampler.load_state_dict(versions[max(0, len(versions) - 1 - lag)])
        draws = np.random.default_rng([7, batch, *b"rollout"]).random((P * G, T))
        rollouts = []
        for b in range(P * G):
            problem = problems[(batch * P + b // G) % 6]
            prompt = tokenizer(problem.prompt)["input_ids"]
            answer, old = [], []
            for t in range(T):
                with torch.no_grad():
                    logits = sampler(torch.tensor([prompt + answer])).logits[0, -1]
                p = logits.double().softmax(-1)
                token = int((p.cumsum(-1) <= draws[b, t]).sum())
                answer.append(token)
                old.append(float(p[token].log()))
                if token == end:
                    break
            is_right = (
                answer[-1] == end and task.verify(problem, tokenizer.decode(answer[:-1])).is_right
            )
            rollouts.append((prompt, answer, old, float(is_right)))
        batch += 1
        num_tokens = sum(len(answer) for _, answer, _, _ in rollouts)
        denominator = P * G * T if aggregation == "constant" else num_tokens
        for _ in range(min(updates, STEPS - step)):
            loss = torch.zeros(())
            for b, (prompt, answer, old, reward) in enumerate(rollouts):
                group = [r for _, _, _, r in rollouts[b // G * G : b // G * G + G]]
                weight = reward - sum(group) / G
                logits = policy(torch.tensor([prompt + answer])).logits[0]
                for t, token in enumerate(answer):
                    new = logits[len(prompt) - 1 + t].log_softmax(-1)[token]
                    ratio = (new - old[t]).exp()
                    clipped = ratio.clamp(1 - LOW, 1 + HIGH)
                    loss = loss - torch.minimum(ratio * weight, clipped * weight) / denominator
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.05)
            optimizer.step()
            step += 1
            versions.append({k: v.clone() for k, v in policy.state_dict().items()})
            rows.append((sum(r for *_, r in rollouts) / (P * G), float(loss.detach()), float(norm)))
    return rows, {k: v.double() for k, v in policy.state_dict().items()}


@pytest.mark.parametrize(
    ("optim", "lr", "lag", "updates", "aggregation", "tolerance"),
    [
        ("sgd", 0.5, 0, 1, "constant", 1e-4),
        ("sgd", 0.5, 2, 1, "constant", 1e-4),
        ("sgd", 0.5, 0, 3, "token-mean", 1e-4),
        # Adam divides by the gradient's size: where that is rounding noise, so is the update.
        ("adamw", 1e-3, 1, 2, "constant", 1e-2),
    ],
)
def test_first_updates_equal_the_literal_loop(
    tmp_path, optim, lr, lag, updates, aggregation, tolerance
):
    flags = {
        "seed": 7,
        "weight": "grpo",
        "train.steps": STEPS,
        "train.num_problems": 6,
        "train.prompts_per_step": P,
        "train.group_size": G,
        "train.max_new_tokens": T,
        "train.policy_lag": lag,
        "train.updates_per_batch": updates,
        "loss.clip_low": LOW,
        "loss.clip_high": HIGH,
        "loss.aggregation": aggregation,
        "optim.type": optim,
        "optim.lr": lr,
        "optim.max_grad_norm": 0.05,
        "eval.every": 0,
        "eval.num_problems": 1,
        "eval.num_samples": 0,
    }
    recipe = load_recipe(Recipe, None, [f"--{key}={value}" for key, value in flags.items()])
    writer = RunWriter.create(tmp_path / "run", {"label": "x", "recipe": to_tables(recipe)}, {})
    assert train(recipe, writer, lambda row: None)
    writer.close()

    rows, expected = literal_loop(optim, lr, lag, updates, aggregation)
    run = Run(tmp_path / "run")
    for row, (solve_rate, loss, norm) in zip(run.metrics[1:], rows, strict=True):
        assert row["rollout/solve_rate"] == solve_rate
        assert row["loss/value"] == pytest.approx(loss, abs=1e-6)
        assert row["optim/grad_norm"] == pytest.approx(norm, rel=1e-3)
    assert any(solve_rate not in (0.0, 1.0) for solve_rate, _, _ in rows)
    if updates > 1 or lag:
        assert any(row["loss/clip_share"] > 0 for row in run.metrics[1:])

    start = AutoModelForCausalLM.from_pretrained(CHECKPOINT).state_dict()
    trained = AutoModelForCausalLM.from_pretrained(run.model_dir).state_dict()
    change = sum(float((expected[k] - start[k].double()).square().sum()) for k in start)
    gap = sum(float((expected[k] - trained[k].double()).square().sum()) for k in start)
    assert change > 0
    assert (gap / change) ** 0.5 < tolerance
