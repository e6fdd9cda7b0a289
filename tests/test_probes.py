"""How far the output head has moved, against NumPy's singular values of a planted change."""

import copy

import numpy as np
import pytest
import torch

from gradmass.config import TinyModelConfig
from gradmass.training.model import character_tokenizer, tiny_model
from gradmass.training.probes.change import ChangeProbe

SHAPE = TinyModelConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
NUM_TOKENS = 12


@pytest.fixture
def model():
    return tiny_model(SHAPE, character_tokenizer("0123456789"), 0)


def plant(model, changes):
    """Add float32 arrays to parameters by name; returns what was added, after rounding."""
    made = {}
    with torch.no_grad():
        for name, change in changes.items():
            parameter = model.get_parameter(name)
            before = parameter.detach().double().numpy().copy()
            parameter += torch.as_tensor(change, dtype=parameter.dtype)
            made[name] = parameter.detach().double().numpy() - before
    return made


def test_a_model_that_has_not_moved_has_no_shares(model):
    row = ChangeProbe(model).measure(model)
    assert row["rank/head_top1_share"] is None
    assert row["rank/head_energy_share"] is None
    assert row["rank/head_change_norm"] == 0


@pytest.mark.parametrize("rank", [1, 2, 5, 12])
def test_share_norm_and_energy_are_those_of_the_singular_values(model, rank):
    probe, rng = ChangeProbe(model), np.random.default_rng(rank)
    head = rng.normal(size=(NUM_TOKENS, rank)) @ rng.normal(size=(rank, 16))
    embedding, norm = rng.normal(size=(NUM_TOKENS, 16)), rng.normal(size=16)
    made = plant(
        model,
        {"lm_head.weight": head, "model.embed_tokens.weight": embedding, "model.norm.weight": norm},
    )
    sigma = np.linalg.svd(made["lm_head.weight"], compute_uv=False)
    energy = {name: (change**2).sum() for name, change in made.items()}
    row = probe.measure(model)
    assert row["rank/head_top1_share"] == pytest.approx(sigma[0] ** 2 / (sigma**2).sum(), rel=1e-9)
    assert row["rank/head_change_norm"] == pytest.approx(np.sqrt((sigma**2).sum()), rel=1e-9)
    share = energy["lm_head.weight"] / sum(energy.values())
    assert row["rank/head_energy_share"] == pytest.approx(share, rel=1e-9)
    assert (row["rank/head_top1_share"] > 1 - 1e-9) == (rank == 1)


def test_a_change_elsewhere_gives_the_head_no_energy(model):
    probe = ChangeProbe(model)
    plant(model, {"model.norm.weight": np.ones(16)})
    row = probe.measure(model)
    assert row["rank/head_energy_share"] == 0
    assert row["rank/head_change_norm"] == 0
    assert row["rank/head_top1_share"] is None


def test_the_parameter_share_is_what_equal_moves_would_give(model):
    probe = ChangeProbe(model)
    plant(model, {name: np.full(p.shape, 2.0) for name, p in model.named_parameters()})
    row = probe.measure(model)
    num_parameters = sum(p.numel() for p in model.parameters())
    assert row["rank/head_parameter_share"] == NUM_TOKENS * 16 / num_parameters
    assert row["rank/head_energy_share"] == pytest.approx(
        row["rank/head_parameter_share"], rel=1e-6
    )


def test_the_noise_value_is_that_of_gaussian_changes(model):
    row = ChangeProbe(model).measure(model)
    rng, shares = np.random.default_rng(5), []
    for _ in range(400):
        sigma = np.linalg.svd(rng.normal(size=(NUM_TOKENS, 16)), compute_uv=False)
        shares.append(sigma[0] ** 2 / (sigma**2).sum())
    standard_error = np.std(shares) * np.sqrt(1 / 400 + 1 / 200)
    assert abs(row["rank/head_top1_share_noise"] - np.mean(shares)) < 4 * standard_error


def test_a_large_head_has_the_edge_as_its_noise_value():
    tokenizer = character_tokenizer("0")
    tokenizer.add_tokens([f"<{i}>" for i in range(7_000 - len(tokenizer))])
    model = tiny_model(SHAPE, tokenizer, 0)
    row = ChangeProbe(model).measure(model)
    edge = (np.sqrt(7_000) + np.sqrt(16)) ** 2 / (7_000 * 16)
    assert row["rank/head_top1_share_noise"] == pytest.approx(edge, rel=1e-12)


def test_the_start_is_a_copy_and_another_model_of_the_shape_can_be_measured(model):
    probe, other = ChangeProbe(model), copy.deepcopy(model)
    plant(other, {"lm_head.weight": np.full((NUM_TOKENS, 16), 0.5)})
    assert probe.measure(other)["rank/head_change_norm"] == pytest.approx(0.5 * np.sqrt(192))
    assert probe.measure(model)["rank/head_change_norm"] == 0
    plant(model, {"lm_head.weight": np.full((NUM_TOKENS, 16), 0.5)})
    assert probe.measure(model)["rank/head_change_norm"] == pytest.approx(0.5 * np.sqrt(192))


def test_the_head_of_a_tied_model_is_its_embedding(model):
    model.config.tie_word_embeddings = True
    model.tie_weights()
    probe = ChangeProbe(model)
    plant(model, {"model.embed_tokens.weight": np.ones((NUM_TOKENS, 16))})
    row = probe.measure(model)
    assert row["rank/head_energy_share"] == 1
    assert row["rank/head_top1_share"] == pytest.approx(1)


def test_changes_in_half_precision_are_not_rounded(model):
    model = model.to(torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight.fill_(1.0)
    probe = ChangeProbe(model)
    with torch.no_grad():
        model.lm_head.weight[0, 0] = 256.0  # 255 is no bfloat16
    assert probe.measure(model)["rank/head_change_norm"] == 255.0
