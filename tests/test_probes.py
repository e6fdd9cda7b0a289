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
    standard_error = np.std(shares) * np.sqrt(1 / 400 + 1 / 40)
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


# Every matrix


def by_name(rows):
    return {row["name"]: row for row in rows}


def test_spectra_are_those_of_every_matrix_and_energies_of_every_module(model):
    probe, rng = ChangeProbe(model), np.random.default_rng(0)
    made = plant(model, {n: rng.normal(size=p.shape) for n, p in model.named_parameters()})
    found = probe.spectra(model)
    matrices = by_name(found["matrices"])
    assert set(matrices) == {name for name, change in made.items() if change.ndim == 2}
    total = sum((change**2).sum() for change in made.values())
    num_parameters = sum(change.size for change in made.values())
    for name, row in matrices.items():
        sigma = np.linalg.svd(made[name], compute_uv=False)
        energy = (sigma**2).sum()
        assert row["shape"] == list(made[name].shape)
        assert row["r_1"] == pytest.approx(sigma[0] ** 2 / energy, rel=1e-9)
        assert row["stable_rank"] == pytest.approx(energy / sigma[0] ** 2, rel=1e-9)
        assert row["singular_values"] == pytest.approx(sigma[:8].tolist(), rel=1e-9)
        assert row["norm"] == pytest.approx(np.sqrt(energy), rel=1e-9)
        assert row["energy_share"] == pytest.approx(energy / total, rel=1e-9)
        assert row["parameter_share"] == made[name].size / num_parameters
        assert row["changed_fraction"] == 1.0
        m, n = made[name].shape
        rng = np.random.default_rng(7)
        sigma = [np.linalg.svd(rng.normal(size=(m, n)), compute_uv=False) for _ in range(50)]
        shares = [values[0] ** 2 / np.sum(values**2) for values in sigma]
        error = np.std(shares) * np.sqrt(1 / 50 + 1 / 40)
        assert row["r_1_noise"] == pytest.approx(np.mean(shares), abs=4 * error + 1e-12)
    for key in ("energy_share", "parameter_share"):
        assert sum(row[key] for row in found["modules"]) == pytest.approx(1)


def test_modules_gather_the_layers():
    shape = TinyModelConfig(hidden_size=16, num_layers=3, num_heads=2, intermediate_size=32)
    model = tiny_model(shape, character_tokenizer("0123456789"), 0)
    probe = ChangeProbe(model)
    plant(model, {f"model.layers.{i}.mlp.up_proj.weight": np.ones((32, 16)) for i in (0, 2)})
    modules = by_name(probe.spectra(model)["modules"])
    assert modules["model.layers.*.mlp.up_proj"]["energy_share"] == 1
    num_parameters = sum(p.numel() for p in model.parameters())
    share = 3 * 32 * 16 / num_parameters
    assert modules["model.layers.*.mlp.up_proj"]["parameter_share"] == pytest.approx(share)
    assert modules["model.norm"]["energy_share"] == 0
    assert "lm_head" in modules


def test_a_model_that_has_not_moved_has_spectra_of_nothing(model):
    found = ChangeProbe(model).spectra(model)
    for row in found["matrices"]:
        assert row["r_1"] is None
        assert row["energy_share"] is None
        assert row["norm"] == row["changed_fraction"] == 0
        assert set(row["singular_values"]) == {0.0}


def test_a_start_in_bfloat16_shows_what_storing_it_again_would_hide(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    probe = ChangeProbe(model)
    rng = np.random.default_rng(0)
    name = "model.layers.0.mlp.up_proj.weight"
    rank_one = np.outer(rng.normal(size=32), rng.normal(size=16))
    plant(model, {name: 1e-6 * rank_one, "lm_head.weight": np.ones((NUM_TOKENS, 16))})
    row = by_name(probe.spectra(model, torch.bfloat16)["matrices"])[name]
    assert row["r_1"] == pytest.approx(1, abs=1e-3)  # the trained weights are float32
    assert row["changed_fraction"] < 0.2
    assert row["is_hidden_by_rounding"]
    head = by_name(probe.spectra(model, torch.bfloat16)["matrices"])["lm_head.weight"]
    assert head["changed_fraction"] == 1.0
    assert not head["is_hidden_by_rounding"]
    kept = by_name(probe.spectra(model)["matrices"])[name]
    assert "is_hidden_by_rounding" not in kept


def test_singular_values_of_a_bfloat16_identity_are_ones(model):
    model = model.to(torch.bfloat16)
    head = model.lm_head.weight
    with torch.no_grad():
        head.zero_()
    probe = ChangeProbe(model)
    with torch.no_grad():
        head[:, :NUM_TOKENS] = torch.eye(NUM_TOKENS, dtype=torch.bfloat16)
    row = by_name(probe.spectra(model, torch.bfloat16)["matrices"])["lm_head.weight"]
    assert row["singular_values"] == [1.0] * 8
