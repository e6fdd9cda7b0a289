"""LoRA adapters as PEFT wrote them: exact from their factors, and the same as the merged model."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradmass.types import UsageError

MERGED = [
    ("hf_tied_single", "lora_qv_nonzero", 4),
    ("hf_untied_sharded", "lora_rslora_pattern_nonzero", 4),
]


def edited(folder, out, *, config=None, tensors=None):
    """A copy of an adapter with other settings or tensors."""
    shutil.copytree(folder, out)
    settings = json.loads((folder / "adapter_config.json").read_text()) | (config or {})
    (out / "adapter_config.json").write_text(json.dumps(settings))
    stored = load_file(folder / "adapter_model.safetensors") | (tensors or {})
    stored = {name: tensor for name, tensor in stored.items() if tensor is not None}
    save_file(stored, out / "adapter_model.safetensors")
    return out


@pytest.mark.parametrize(("base", "adapter", "num_changed"), MERGED)
def test_an_adapter_says_the_same_as_the_model_it_was_merged_into(
    golden, entry_of, base, adapter, num_changed
):
    apart = entry_of(golden / base, golden / adapter)
    merged = entry_of(golden / base, golden / f"merged_{adapter}")
    merged_rows = {row["name"]: row for row in merged["matrices"] if row["energy_share"]}
    assert len(apart["matrices"]) == len(merged_rows) == num_changed
    for row in apart["matrices"]:
        other = merged_rows[row["name"]]
        assert row["shape"] == other["shape"]
        for key in ("r_1", "stable_rank", "energy_share", "parameter_share", "changed_fraction"):
            assert row[key] == pytest.approx(other[key], rel=1e-5), (row["name"], key)
        num = len(row["singular_values"])
        assert row["singular_values"] == pytest.approx(other["singular_values"][:num], rel=1e-5)
        # Rank one beside rank eight: noise is not the same.
        assert row["r_1_noise"] > other["r_1_noise"]
    assert any(note.startswith("an adapter of rank") for note in apart["notes"])


@pytest.mark.parametrize(("use_rslora", "scale"), [(False, 2.0), (True, 4.0)])
def test_the_scale_is_alpha_over_r_or_over_its_root(tmp_path, entry_of, use_rslora, scale):
    torch.manual_seed(0)
    left, right = torch.randn(16, 4), torch.randn(4, 32)
    save_file({"model.q_proj.weight": torch.randn(16, 32)}, tmp_path / "base.safetensors")
    (tmp_path / "adapter").mkdir()
    prefix = "base_model.model.model.q_proj"
    factors = {f"{prefix}.lora_A.weight": right, f"{prefix}.lora_B.weight": left}
    save_file(factors, tmp_path / "adapter" / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_rslora": use_rslora}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    entry = entry_of(tmp_path / "base.safetensors", tmp_path / "adapter")
    (row,) = entry["matrices"]
    values = scale * torch.linalg.svdvals(left.double() @ right.double())
    assert row["singular_values"] == pytest.approx(values[:4].tolist(), rel=1e-9)
    assert row["r_1"] == pytest.approx(float(values[0] ** 2 / values.square().sum()), rel=1e-9)


def test_an_adapter_of_the_embedding_acts_transposed(golden, tmp_path, entry_of):
    torch.manual_seed(0)
    prefix = "base_model.model.model.embed_tokens"
    right, left = torch.randn(2, 32), torch.randn(8, 2)
    tensors = {f"{prefix}.lora_embedding_A": right, f"{prefix}.lora_embedding_B": left}
    adapter = edited(golden / "lora_embed_tied", tmp_path / "a", tensors=tensors)
    entry = entry_of(golden / "hf_tied_single", adapter)
    (row,) = [row for row in entry["matrices"] if row["energy_share"]]
    values = torch.linalg.svdvals(2 * (left.double() @ right.double()).T)
    assert (row["name"], row["shape"]) == ("model.embed_tokens.weight", [32, 8])
    assert row["singular_values"] == pytest.approx(values[:2].tolist(), rel=1e-9)


def test_whole_tensors_in_an_adapter_are_compared_as_they_are(golden, tmp_path, entry_of):
    name = "base_model.model.lm_head.weight"
    stored = load_file(golden / "lora_save_head_tied" / "adapter_model.safetensors")[name]
    torch.manual_seed(0)
    change = torch.randn(32, 8)
    adapter = edited(
        golden / "lora_save_head_tied", tmp_path / "a", tensors={name: stored + change}
    )
    entry = entry_of(golden / "hf_tied_single", adapter)
    (row,) = [row for row in entry["matrices"] if row["energy_share"]]
    assert row["name"] == "lm_head.weight"
    values = torch.linalg.svdvals(change.double())
    assert row["singular_values"] == pytest.approx(values.tolist(), rel=1e-5)
    assert any("no longer in TUNED" in note for note in entry["notes"])


def test_rows_of_single_tokens_replace_those_of_the_embedding(golden, tmp_path, entry_of):
    name = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
    rows = load_file(golden / "lora_trainable_tokens" / "adapter_model.safetensors")[name]
    embedding = load_file(golden / "hf_tied_single" / "model.safetensors")[
        "model.embed_tokens.weight"
    ]
    assert torch.equal(rows, embedding[[3, 5]])
    change = torch.tensor([[3.0] + [0.0] * 7, [0.0, 4.0] + [0.0] * 6])
    adapter = edited(
        golden / "lora_trainable_tokens", tmp_path / "a", tensors={name: rows + change}
    )
    entry = entry_of(golden / "hf_tied_single", adapter)
    (row,) = [row for row in entry["matrices"] if row["energy_share"]]
    assert row["shape"] == [32, 8]
    assert row["singular_values"] == pytest.approx([4.0, 3.0], rel=1e-6)
    assert row["r_1"] == pytest.approx(16 / 25, rel=1e-6)


def test_a_fresh_adapter_changes_nothing(golden, entry_of):
    with pytest.raises(UsageError, match="hold the same weights"):
        entry_of(golden / "hf_tied_single", golden / "lora_bias")


FACTOR = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


@pytest.mark.parametrize(
    ("config", "tensors", "shown"),
    [
        ({"use_dora": True}, {}, "uses use_dora"),
        ({"peft_type": "LOHA"}, {}, "adapter of type 'LOHA'"),
        ({"init_lora_weights": "pissa_niter_4"}, {}, "init_lora_weights = pissa_niter_4"),
        ({}, {FACTOR.format("A"): None}, "has only lora_B of model.layers.0.self_attn.q_proj"),
        ({}, {FACTOR.format("A"): torch.ones(2, 9)}, "by a matrix of [8, 9]"),
        ({}, {FACTOR.format("B"): torch.full((8, 2), torch.nan)}, "holds nan (row 0, column 0)"),
        ({}, {"base_model.model.other.lora_A.weight": torch.ones(2, 8)}, "has only lora_A"),
        ({}, {"base_model.model.value_head.weight": torch.ones(1, 8)}, "changes value_head.weight"),
    ],
)
def test_what_is_no_plain_lora_is_refused_in_one_line(
    golden, tmp_path, entry_of, config, tensors, shown
):
    adapter = edited(golden / "lora_qv_nonzero", tmp_path / "a", config=config, tensors=tensors)
    with pytest.raises(UsageError) as caught:
        entry_of(golden / "hf_tied_single", adapter)
    assert shown in str(caught.value)
    assert "\n" not in str(caught.value)


def test_dora_as_peft_writes_it_is_refused(golden, entry_of):
    with pytest.raises(UsageError, match=r"use_dora.*merge_and_unload"):
        entry_of(golden / "hf_untied_sharded", golden / "lora_dora")


def test_an_adapter_of_another_model_is_refused(golden, tmp_path, entry_of):
    own = "base_model.model.model.embed_tokens.base_layer.weight"
    adapter = edited(
        golden / "lora_embed_tied", tmp_path / "other", tensors={own: torch.zeros(32, 8)}
    )
    with pytest.raises(UsageError, match="made on another model"):
        entry_of(golden / "hf_tied_single", adapter)
    with pytest.raises(UsageError, match=r"BASE .* is an adapter"):
        entry_of(golden / "lora_qv_nonzero", golden / "hf_tied_single")
    (tmp_path / "a").mkdir()
    shutil.copy(golden / "lora_qv_nonzero" / "adapter_config.json", tmp_path / "a")
    with pytest.raises(UsageError, match=r"no adapter_model.safetensors or .bin"):
        entry_of(golden / "hf_tied_single", tmp_path / "a")
