"""Checkpoints in every form, and what is wrong with them in one line."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from transformers import Qwen2Config, Qwen2ForCausalLM

from gradmass.spectra.files import open_checkpoint
from gradmass.types import UsageError


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def model(seed, *, tied=False, vocab=40, dtype=torch.float32):
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
    )
    return Qwen2ForCausalLM(config).to(dtype)


@pytest.fixture
def folders(tmp_path):
    """Two models, whole, before and after a change of every tensor."""
    before, after = model(0), model(1)
    before.save_pretrained(tmp_path / "before")
    after.save_pretrained(tmp_path / "after")
    return tmp_path / "before", tmp_path / "after"


def to_bin(folder, out, *, zipped=True, num_shards=1):
    """The same model as ``torch.save`` stores it."""
    out.mkdir()
    (out / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    placed = {}
    for i in range(num_shards):
        part = {name: tensors[name] for name in names[i::num_shards]}
        file = f"pytorch_model-{i + 1:05}-of-{num_shards:05}.bin"
        file = "pytorch_model.bin" if num_shards == 1 else file
        placed |= dict.fromkeys(part, file)
        torch.save(part, out / file, _use_new_zipfile_serialization=zipped)
    if num_shards > 1:
        index = {"metadata": {}, "weight_map": placed}
        (out / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return out


def numbers(entry):
    return {key: entry[key] for key in ("matrices", "modules", "notes")}


def test_shards_pickles_and_single_files_hold_the_same_model(folders, tmp_path, entry_of):
    before, after = folders
    expected = numbers(entry_of(before, after))
    assert len(expected["matrices"]) == 16
    model(1).save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    forms = [
        tmp_path / "shards",
        to_bin(after, tmp_path / "bin"),
        to_bin(after, tmp_path / "old bin", zipped=False),
        to_bin(after, tmp_path / "bins", num_shards=3),
        after / "model.safetensors",
        tmp_path / "bin" / "pytorch_model.bin",
    ]
    for form in forms:
        assert numbers(entry_of(before, form)) == expected, form
    torch.save({"model": load_file(after / "model.safetensors")}, tmp_path / "nested.pt")
    assert numbers(entry_of(before, tmp_path / "nested.pt")) == expected


def test_shares_and_groups_add_up(folders, entry_of):
    entry = entry_of(*folders)
    assert list(entry) == ["base", "tuned", "matrices", "modules", "notes"]
    assert list(entry["matrices"][0]) == [
        "name",
        "shape",
        "r_1",
        "r_1_noise",
        "stable_rank",
        "energy_share",
        "parameter_share",
        "singular_values",
        "changed_fraction",
    ]
    modules = {row["name"]: row for row in entry["modules"]}
    for share in ("energy_share", "parameter_share"):
        assert sum(row[share] for row in modules.values()) == pytest.approx(1.0)
    rows = [row for row in entry["matrices"] if row["name"].endswith("q_proj.weight")]
    (group,) = [row for name, row in modules.items() if name == "model.layers.*.self_attn.q_proj"]
    assert group["num_tensors"] == len(rows) == 2
    energy = sum(row["energy_share"] for row in rows)
    assert group["energy_share"] == pytest.approx(energy)
    mean = sum(row["energy_share"] * row["r_1"] for row in rows) / energy
    assert group["r_1"] == pytest.approx(mean)
    squares = sum(row["singular_values"][2] ** 2 for row in rows)
    assert group["singular_values"][2] ** 2 == pytest.approx(squares)
    assert modules["vectors (norms, biases)"]["r_1"] is None


def test_modules_selects_by_a_regular_expression(folders, entry_of):
    entry = entry_of(*folders, modules=r"layers\.1\..*q_proj\.weight")
    (row,) = entry["matrices"]
    assert row["name"] == "model.layers.1.self_attn.q_proj.weight"
    assert (row["energy_share"], row["parameter_share"]) == (1.0, 1.0)
    assert "only what matches" in entry["notes"][-1]
    with pytest.raises(UsageError, match="selects none of the 27 tensors"):
        entry_of(*folders, modules="nothing")
    with pytest.raises(UsageError, match=r"'\(' is no regular expression"):
        entry_of(*folders, modules="(")


# Tied heads and vocabularies


def test_a_tied_head_is_counted_once_wherever_it_is_stored(tmp_path, entry_of):
    model(0, tied=True).save_pretrained(tmp_path / "a")
    tuned = model(1, tied=True)
    tuned.save_pretrained(tmp_path / "b")
    expected = entry_of(tmp_path / "a", tmp_path / "b")
    assert not any("head" in row["name"] for row in expected["matrices"])
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "stored.safetensors")
    entry = entry_of(tmp_path / "a", tmp_path / "stored.safetensors")
    assert entry["matrices"] == expected["matrices"]
    assert "lm_head.weight equals the embedding in both: tied, and counted once" in entry["notes"]


def test_an_alias_in_the_metadata_names_the_tied_tensor(tmp_path, entry_of):
    for seed, name in enumerate("ab"):
        made = model(seed, tied=True)
        save_model(made, str(tmp_path / f"{name}.safetensors"))
    found = open_checkpoint(tmp_path / "a.safetensors")
    assert len(found.aliases) == 1
    names = [
        row["name"]
        for row in entry_of(tmp_path / "a.safetensors", tmp_path / "b.safetensors")["matrices"]
    ]
    assert len(names) == 15


def test_a_head_that_was_untied_is_compared_with_the_embedding(tmp_path, entry_of):
    model(0, tied=True).save_pretrained(tmp_path / "a")
    tuned = model(0, tied=True)
    tuned.save_pretrained(tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + noise(40, 16)
    save_file(tensors, tmp_path / "untied.safetensors")
    entry = entry_of(tmp_path / "a", tmp_path / "untied.safetensors")
    (head,) = [row for row in entry["matrices"] if row["name"] == "lm_head.weight"]
    assert head["energy_share"] == 1.0
    assert head["singular_values"][0] == pytest.approx(
        float(torch.linalg.svdvals(noise(40, 16))[0]), rel=1e-5
    )
    assert any(
        "lm_head.weight is tied to model.embed_tokens.weight" in note for note in entry["notes"]
    )


@pytest.mark.parametrize("sizes", [(40, 44), (44, 40)])
def test_vocabularies_of_different_sizes_are_compared_on_the_shared_rows(tmp_path, entry_of, sizes):
    for seed, size in enumerate(sizes):
        model(seed, vocab=size).save_pretrained(tmp_path / f"{seed}")
    entry = entry_of(tmp_path / "0", tmp_path / "1")
    (head,) = [row for row in entry["matrices"] if row["name"] == "lm_head.weight"]
    before, after = (
        load_file(tmp_path / f"{i}/model.safetensors")["lm_head.weight"] for i in (0, 1)
    )
    values = torch.linalg.svdvals(after[:40].double() - before[:40].double())
    assert head["shape"] == [40, 16]
    assert head["singular_values"] == pytest.approx(values[:8].tolist(), rel=1e-5)
    expected = f"lm_head.weight has {sizes[0]} rows in BASE and {sizes[1]} in TUNED: the first 40"
    assert any(note.startswith(expected) for note in entry["notes"])


def test_constants_and_counters_are_not_compared(pair, entry_of):
    weights = {"w": noise(4, 4), "attn.rotary_emb.inv_freq": noise(3), "step": torch.tensor([1])}
    entry = entry_of(*pair(weights, {"w": noise(4, 4, seed=1), "step": torch.tensor([2])}))
    assert [row["name"] for row in entry["matrices"]] == ["w"]
    assert entry["notes"] == ["step is torch.int64, no weight: not compared"]


# What is refused


def cut(file, share=0.6):
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])


def test_damage_and_mismatch_are_one_line_that_names_file_or_tensor(folders, tmp_path, entry_of):
    before, after = folders

    def refused(tuned, shown):
        with pytest.raises(UsageError) as caught:
            entry_of(before, tuned)
        assert "\n" not in str(caught.value)
        for part in (shown,) if isinstance(shown, str) else shown:
            assert part in str(caught.value)

    refused(tmp_path / "nowhere", "neither a folder nor a file")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "empty is no model: it has no model.safetensors")
    (tmp_path / "notes.txt").write_text("x")
    refused(tmp_path / "notes.txt", "notes.txt is no checkpoint")

    for name in ("header", "body"):
        model(1).save_pretrained(tmp_path / name)
        cut(tmp_path / name / "model.safetensors", {"header": 0.001, "body": 0.6}[name])
        refused(tmp_path / name, (f"{name}/model.safetensors", "damaged or cut short"))
    for name, zipped in (("cut bin", True), ("cut old bin", False)):
        folder = to_bin(after, tmp_path / name, zipped=zipped)
        cut(folder / "pytorch_model.bin")
        refused(folder, f"{name}/pytorch_model.bin")
    torch.save({"w": object}, tmp_path / "code.bin")
    refused(tmp_path / "code.bin", ("code.bin", "more than tensors"))
    torch.save({"w": 3}, tmp_path / "number.bin")
    refused(tmp_path / "number.bin", "'w' is int")

    model(1).save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    shards = sorted((tmp_path / "shards").glob("*.safetensors"))
    second = load_file(shards[1])
    name, moved = next(iter(second.items()))
    save_file({k: v for k, v in second.items() if k != name} or {"x": moved}, shards[1])
    refused(tmp_path / "shards", (shards[1].name, f"lacks {name}"))
    shards[1].unlink()
    refused(tmp_path / "shards", f"the shard {shards[1]} is missing")
    (tmp_path / "shards" / "model.safetensors.index.json").unlink()
    refused(tmp_path / "shards", f"the shard {shards[1]} is missing")

    tensors = load_file(after / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] = noise(25, 16)
    save_file(tensors, tmp_path / "wide.safetensors")
    refused(
        tmp_path / "wide.safetensors",
        "model.layers.1.mlp.up_proj.weight is [24, 16]",
    )
    tensors = load_file(after / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"], tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "less.safetensors")
    refused(tmp_path / "less.safetensors", ("different architectures", "(and 1 more such"))
    tensors = load_file(after / "model.safetensors")
    tensors["lm_head.weight"] = torch.ones(40, 16, dtype=torch.int8)
    save_file(tensors, tmp_path / "int8.safetensors")
    refused(tmp_path / "int8.safetensors", "lm_head.weight in")
