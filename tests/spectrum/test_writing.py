"""Models with part of a change: what they hold, and that nothing is left half-written."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gradmass.cli import main
from gradmass.spectra import compare as compare_module
from gradmass.spectra.compare import Split
from gradmass.training.model import load_model
from gradmass.types import UsageError

MATRIX = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def models(tmp_path, shipped):
    """The shipped model, and the same after a change of every tensor."""
    policy, tokenizer = shipped
    for name in ("base", "tuned"):
        policy.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    file = tmp_path / "tuned" / "model.safetensors"
    torch.manual_seed(0)
    tensors = load_file(file)
    for name, tensor in tensors.items():
        tensors[name] = tensor + 0.1 * torch.randn(tensor.shape)
    save_file(tensors, file, metadata={"format": "pt"})
    (tmp_path / "tuned" / "trainer_state.json").write_text("{}")
    return tmp_path / "base", tmp_path / "tuned"


def truncated(before, after, rank):
    """The first directions of a change, by its decomposition."""
    left, values, right = np.linalg.svd(after.double().numpy() - before.double().numpy())
    return torch.from_numpy((left[:, :rank] * values[:rank]) @ right[:rank]).float()


def stored(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


@pytest.mark.parametrize("rank", [1, 3])
def test_keep_and_drop_part_the_change_of_every_matrix(models, tmp_path, entry_of, rank):
    base, tuned = models
    for part in ("keep", "drop"):
        entry_of(base, tuned, split=Split(part, rank, tmp_path / part))
    before, after = stored(base), stored(tuned)
    kept, dropped = stored(tmp_path / "keep"), stored(tmp_path / "drop")
    assert before.keys() == kept.keys() == dropped.keys()
    for name, tensor in before.items():
        if tensor.ndim == 1:  # one direction: its change itself
            torch.testing.assert_close(kept[name], after[name])
            torch.testing.assert_close(dropped[name], tensor)
            continue
        first = truncated(tensor, after[name], rank)
        torch.testing.assert_close(kept[name], tensor + first, atol=2e-5, rtol=0)
        torch.testing.assert_close(dropped[name], after[name] - first, atol=2e-5, rtol=0)


def test_what_is_written_loads_with_its_tokenizer(models, tmp_path, entry_of, held_out):
    base, tuned = models
    entry_of(base, tuned, split=Split("drop", 1, tmp_path / "out"))
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == sorted(
        file.name for file in tuned.iterdir() if file.name != "trainer_state.json"
    )
    policy, tokenizer = load_model(str(tmp_path / "out"))
    dropped = stored(tmp_path / "out")
    for name, parameter in policy.named_parameters():
        assert torch.equal(parameter.detach(), dropped[name])
    assert tokenizer(held_out[0].prompt)["input_ids"]


def test_dropping_what_was_added_gives_the_base_back(models, tmp_path, entry_of):
    base, tuned = models
    tensors = stored(base)
    tensors[MATRIX] = tensors[MATRIX] + torch.outer(torch.randn(256), torch.randn(64))
    save_file(tensors, tuned / "model.safetensors", metadata={"format": "pt"})
    entry_of(base, tuned, split=Split("drop", 1, tmp_path / "out"))
    torch.testing.assert_close(
        stored(tmp_path / "out")[MATRIX], stored(base)[MATRIX], atol=1e-5, rtol=0
    )


def test_dtype_and_shards_stay_and_rounding_is_noted(models, tmp_path, entry_of):
    base, tuned = models
    for folder in models:
        policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        policy.save_pretrained(folder, max_shard_size="100KB")
        (folder / "model.safetensors").unlink()
    entry = entry_of(base, tuned, split=Split("keep", 1, tmp_path / "out"))
    written = tmp_path / "out" / "model.safetensors.index.json"
    index = json.loads((tuned / "model.safetensors.index.json").read_text())
    assert json.loads(written.read_text())["weight_map"] == index["weight_map"]
    assert {tensor.dtype for tensor in stored(tmp_path / "out").values()} == {torch.bfloat16}
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert not any(note.startswith("rounding to") for note in entry["notes"])


def test_a_part_that_bf16_rounds_away_is_noted(tmp_path, entry_of, golden):
    torch.manual_seed(0)
    start = torch.randn(400, 300).bfloat16()
    # Each direction of a flat change is a hundred times smaller than the change itself.
    tuned = (start.float() * (1 + 0.02 * torch.randn(400, 300))).bfloat16()
    for name, tensor in (("a", start), ("b", tuned)):
        (tmp_path / name).mkdir()
        shutil.copy(golden / "hf_tied_single" / "config.json", tmp_path / name)
        save_file({"w": tensor}, tmp_path / name / "model.safetensors")
    entry = entry_of(tmp_path / "a", tmp_path / "b", split=Split("keep", 1, tmp_path / "out"))
    written = stored(tmp_path / "out")["w"].double() - start.double()
    kept = truncated(start, tuned, 1).double()
    lost = float(((written - kept) ** 2).sum() / (kept**2).sum())
    (note,) = [note for note in entry["notes"] if note.startswith("rounding to bfloat16 moved")]
    assert float(note.partition(" by ")[2].split()[0]) == pytest.approx(lost, rel=0.05)


def test_pickled_weights_are_written_as_safetensors(models, tmp_path, entry_of):
    base, tuned = models
    torch.save(stored(tuned), tuned / "pytorch_model.bin")
    expected = stored(tuned)
    (tuned / "model.safetensors").unlink()
    entry_of(base, tuned, split=Split("keep", 64, tmp_path / "out"))
    for name, tensor in stored(tmp_path / "out").items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=0)
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


def test_only_selected_modules_lose_directions(models, tmp_path, entry_of):
    base, tuned = models
    entry_of(base, tuned, modules="up_proj", split=Split("drop", 1, tmp_path / "out"))
    written, after = stored(tmp_path / "out"), stored(tuned)
    changed = {name for name in after if not torch.equal(written[name], after[name])}
    assert changed == {name for name in after if "up_proj" in name}


def test_an_adapter_is_written_as_the_merged_model(golden, tmp_path, entry_of):
    base, adapter = golden / "hf_untied_sharded", golden / "lora_rslora_pattern_nonzero"
    entry_of(base, adapter, split=Split("keep", 2, tmp_path / "out"))
    merged = stored(golden / "merged_lora_rslora_pattern_nonzero")
    written = stored(tmp_path / "out")
    assert written.keys() == merged.keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(written[name], tensor, atol=1e-6, rtol=1e-6)
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for change, shown in (
        ({"modules": "q_proj"}, "--modules with -o needs a merged model"),
        ({"base": golden / "hf_tied_single", "adapter": golden / "lora_save_head_tied"}, "cannot"),
    ):
        with pytest.raises(UsageError, match=shown):
            entry_of(
                change.get("base", base),
                change.get("adapter", adapter),
                modules=change.get("modules"),
                split=Split("keep", 1, tmp_path / "no"),
            )


def test_rows_of_a_longer_vocabulary_stay_as_tuned(models, tmp_path, entry_of):
    base, tuned = models
    tensors = stored(tuned)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tensors[name] = torch.cat([tensors[name], torch.full((2, 64), 7.0)])
    save_file(tensors, tuned / "model.safetensors", metadata={"format": "pt"})
    entry_of(base, tuned, split=Split("drop", 1, tmp_path / "out"))
    assert torch.equal(stored(tmp_path / "out")["lm_head.weight"][-2:], torch.full((2, 64), 7.0))


@pytest.mark.parametrize("failure", ["nan", "same", "write"])
def test_a_failure_leaves_nothing_behind(models, tmp_path, entry_of, monkeypatch, failure):
    base, tuned = models
    if failure == "nan":
        tensors = stored(tuned)
        tensors["model.norm.weight"][0] = torch.nan
        save_file(tensors, tuned / "model.safetensors", metadata={"format": "pt"})
    if failure == "write":
        monkeypatch.setattr(compare_module.ModelWriter, "put", lambda *arguments: 1 / 0)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((UsageError, ZeroDivisionError)):
        entry_of(
            base, base if failure == "same" else tuned, split=Split("keep", 1, tmp_path / "out")
        )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--keep-rank", "1"], "need each other"),
        (["-o", "OUT"], "need each other"),
        (["--keep-rank", "1", "--drop-rank", "1", "-o", "OUT"], "exclude each other"),
        (["--drop-rank", "0", "-o", "OUT"], "--drop-rank is at least 1, got 0"),
        (["--keep-rank", "1", "-o", "BASE"], "already used"),
        (["--top", "0"], "--top must be at least 1, got 0"),
        (["--plot", "x.pdf"], ".svg or .png, got 'x.pdf'"),
        (["--moduls", "x"], "unknown flag --moduls; did you mean '--modules'?"),
        (["--modules", "nope"], "--modules selects none"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(models, tmp_path, capsys, flags, shown):
    base, tuned = models
    words = {"OUT": str(tmp_path / "out"), "BASE": str(base)}
    with pytest.raises(SystemExit) as stopped:
        main(["spectrum", str(base), str(tuned), *(words.get(flag, flag) for flag in flags)])
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert shown in lines[0]
    assert not (tmp_path / "out").exists()


def test_the_command_prints_tables_json_and_a_figure(models, tmp_path, capsys):
    _, tuned = models
    with pytest.raises(SystemExit) as stopped:
        main(["spectrum", "countdown-tiny", str(tuned)])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "layers.*.mlp.up_proj" in text
    assert "layers.1.mlp.up_proj" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    figure = tmp_path / "spectra.svg"
    with pytest.raises(SystemExit):
        main(["spectrum", "countdown-tiny", str(tuned), "--json", "--plot", str(figure)])
    entry = json.loads(capsys.readouterr().out)
    assert len(entry["matrices"]) == 16
    assert "Energy by direction" in figure.read_text()


def test_a_run_directory_stands_for_its_last_checkpoint(models, tmp_path, capsys):
    base, tuned = models
    run = tmp_path / "run"
    shutil.copytree(tuned, run / "checkpoints" / "step-000003")
    state = {"schema": 1, "step": 3, "status": "finished", "weight": {}, "sizes": {}}
    (run / "state.json").write_text(json.dumps(state))
    with pytest.raises(SystemExit) as stopped:
        main(["spectrum", str(base), str(run), "--json"])
    assert stopped.value.code == 0
    assert json.loads(capsys.readouterr().out)["tuned"].endswith("step-000003")
