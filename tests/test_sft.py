"""The supervised start against a loop written from its description, one row at a time."""

import dataclasses
import itertools
import math

import pytest
import torch

from gradmass.config import SftRecipe, SftTrainConfig, TinyModelConfig
from gradmass.tasks.countdown import Countdown
from gradmass.training.evaluate import evaluate_exactly
from gradmass.training.model import character_tokenizer, load_model, tiny_model
from gradmass.training.sft import supervise
from gradmass.types import UsageError

RECIPE = SftRecipe(
    seed=3,
    task=Countdown(min_numbers=2, max_numbers=3, max_number=9, max_target=20, max_ood_target=50),
    model=TinyModelConfig(
        hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, max_positions=24
    ),
    train=SftTrainConfig(steps=40, batch_size=16, lr=1e-2, warmup_steps=4, num_eval_problems=3),
)


def with_train(**fields):
    return dataclasses.replace(RECIPE, train=dataclasses.replace(RECIPE.train, **fields))


def run(recipe, out):
    rows = []
    supervise(recipe, out, rows.append)
    return rows


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Rows and folder of a short run."""
    out = tmp_path_factory.mktemp("sft") / "model"
    return run(RECIPE, out), out


def literal_run(recipe, rates):
    """Losses and model, one demonstration at a time: no padding, prompts left out by hand."""
    tokenizer = character_tokenizer(recipe.task.alphabet)
    model = tiny_model(recipe.model, tokenizer, recipe.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.99), weight_decay=recipe.train.weight_decay
    )
    stream, losses = recipe.task.demonstrations("train"), []
    for rate in rates:
        terms = []
        for problem, answer in itertools.islice(stream, recipe.train.batch_size):
            prompt, target = (tokenizer(text)["input_ids"] for text in (problem.prompt, answer))
            target = [*target, tokenizer.eos_token_id]
            logits_TV = model(input_ids=torch.tensor([prompt + target])).logits[0]
            for t, token in enumerate(target):
                row = logits_TV[len(prompt) - 1 + t]
                terms.append(row.logsumexp(0) - row[token])
        loss = sum(terms) / len(terms)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        for parameter in model.parameters():
            parameter.grad *= min(1.0, 1 / norm)
        optimizer.param_groups[0]["lr"] = recipe.train.lr * rate
        optimizer.step()
    return losses, model


@pytest.mark.parametrize(
    ("lr", "tolerance"),
    [(1e-2, 1e-5), (0.3, 1e-3)],  # at the second, gradients are longer than 1, and clipped
)
def test_first_updates_equal_the_literal_loop(tmp_path, lr, tolerance):
    # Up over two updates, then a cosine to a tenth: halfway, .1 + .9 / 2.
    recipe = with_train(steps=4, warmup_steps=2, lr=lr)
    losses, model = literal_run(recipe, rates=[0.5, 1.0, 0.55, 0.1])
    rows = run(recipe, tmp_path / "model")
    assert [row["loss/value"] for row in rows] == pytest.approx(losses, abs=tolerance)
    trained, _ = load_model(str(tmp_path / "model"))
    for (name, parameter), expected in zip(
        trained.named_parameters(), model.parameters(), strict=True
    ):
        # A bias on all keys hardly moves attention: AdamW enlarges a gradient that is rounding.
        bound = lr if "k_proj.bias" in name else tolerance
        assert (parameter - expected).abs().max() < bound, name


def test_the_loss_starts_at_chance_and_falls(result):
    losses = [row["loss/value"] for row in result[0]]
    assert losses[0] == pytest.approx(math.log(21), abs=0.1)
    assert sum(losses[-5:]) / 5 < losses[0] - 1


def test_a_row_is_reported_after_every_update_and_the_last_is_evaluated(result):
    rows, out = result
    assert [row["step"] for row in rows] == list(range(1, 41))
    assert all(set(row) == {"step", "loss/value"} for row in rows[:-1])
    model, tokenizer = load_model(str(out))
    for split in ("test", "ood"):
        problems = RECIPE.task.problems(split, 3)
        summary = evaluate_exactly(model, tokenizer, RECIPE.task, problems).summary()
        for key, value in summary.items():
            assert rows[-1][f"{split}/{key}"] == pytest.approx(value, rel=1e-6)
    assert not any(key.startswith("train/") for key in rows[-1])


def test_the_same_seed_gives_the_same_bits(result, tmp_path):
    torch.manual_seed(99)  # whatever the generator was
    rows = run(RECIPE, tmp_path / "again")
    assert rows == result[0]
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (result[1] / name).read_bytes()


def test_another_seed_gives_another_model(result, tmp_path):
    rows = run(dataclasses.replace(with_train(steps=1), seed=4), tmp_path / "other")
    assert rows[0]["loss/value"] != result[0][0]["loss/value"]


def test_the_result_is_a_model_in_hugging_face_format(result):
    model, tokenizer = load_model(str(result[1]))
    assert model.config.max_position_embeddings == 24
    assert len(tokenizer) == model.config.vocab_size == 2 + len(RECIPE.task.alphabet)


def test_an_output_in_use_is_refused_and_left_alone(tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for out, message in (
        (tmp_path / "used", "already used"),
        (tmp_path / "file", "already used"),
        (tmp_path / "file" / "below", "cannot write"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            run(RECIPE, out)
        assert "\n" not in str(error.value)
        assert str(out) in str(error.value)
    assert [file.name for file in (tmp_path / "used").iterdir()] == ["notes.txt"]
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_folder_and_one_to_be_made_are_used(tmp_path):
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "a" / "b"):
        run(with_train(steps=1), out)
        assert (out / "model.safetensors").is_file()


def test_a_model_too_short_for_a_solved_problem_is_refused(tmp_path):
    shape = dataclasses.replace(RECIPE.model, max_positions=10)
    with pytest.raises(UsageError, match=r"has \d+ tokens, model.max_positions = 10 is too few"):
        run(dataclasses.replace(RECIPE, model=shape), tmp_path / "model")
    # As many positions as tokens are enough.
    longest = max(
        len(problem.prompt) + len(answer) + 1
        for problem, answer in itertools.islice(RECIPE.task.demonstrations("train"), 16)
    )
    shape = dataclasses.replace(RECIPE.model, max_positions=longest)
    run(dataclasses.replace(with_train(steps=1), model=shape), tmp_path / "fits")
