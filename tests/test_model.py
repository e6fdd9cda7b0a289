"""Models and tokenizers: the shipped checkpoint, what is saved and read back, what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
)
from transformers.utils import logging

from gradmass.config import TinyModelConfig
from gradmass.tasks.countdown import Countdown
from gradmass.training.model import (
    END,
    PAD,
    character_tokenizer,
    check_fit,
    load_model,
    resolve_model,
    save_model,
    tiny_model,
    without_progress_bars,
)
from gradmass.types import UsageError

SHIPPED = Path(resolve_model("countdown-tiny"))
SMALL = TinyModelConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)


@pytest.fixture
def folder(tmp_path):
    """A checkpoint that a test may damage."""
    tokenizer = character_tokenizer("0123456789+=")
    save_model(tiny_model(SMALL, tokenizer, 0), tokenizer, tmp_path / "model")
    return tmp_path / "model"


def change(file, **values):
    """Set fields of a JSON file; None takes one out."""
    content = json.loads(file.read_text()) | values
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def refusal(folder):
    """The message with which a folder is refused, which is one line that names it."""
    with pytest.raises(UsageError) as error:
        load_model(str(folder))
    assert "\n" not in str(error.value)
    assert repr(str(folder)) in str(error.value)
    return str(error.value)


# The shipped checkpoint.


def test_the_shipped_checkpoint_loads_with_transformers_alone(shipped):
    model = AutoModelForCausalLM.from_pretrained(SHIPPED)
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    assert isinstance(model, Qwen2ForCausalLM)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    tokens = torch.tensor([tokenizer("1,2=3:1+2")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, shipped[0](tokens).logits)


def test_the_shipped_checkpoint_is_small():
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 1_000_000


def test_the_shipped_head_is_not_the_embedding(shipped):
    model, _ = shipped
    assert not model.config.tie_word_embeddings
    head, embedding = model.lm_head.weight, model.get_input_embeddings().weight
    assert head.data_ptr() != embedding.data_ptr()
    assert (head - embedding).abs().max() > 0.1
    assert model.dtype == torch.float32
    assert not model.training


def test_the_shipped_policy_starts_where_the_demo_needs_it(shipped_evaluation):
    assert len(shipped_evaluation.solve_probability_N) == 200
    summary = shipped_evaluation.summary()
    assert 0.1 <= summary["pass@1"] <= 0.35
    assert summary["pass@100"] > 0.8


def test_the_shipped_tokenizer_reads_and_writes_every_prompt_and_answer(shipped):
    model, tokenizer = shipped
    task = Countdown()
    assert tokenizer.padding_side == "left"
    assert (tokenizer.pad_token, tokenizer.eos_token) == (PAD, END)
    assert max(tokenizer.pad_token_id, tokenizer.eos_token_id) < model.config.vocab_size
    for split in task.splits:
        for problem in task.problems(split, 20):
            for text in (problem.prompt, *task.solutions(problem)[:20]):
                tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
                assert len(tokens) == len(text)
                assert max(tokens) < model.config.vocab_size
                assert tokenizer.decode(tokens) == text


# Made from nothing, saved, read back.


@pytest.mark.parametrize("alphabet", ["0123456789+-*/(),=:", "ab ", "ab\n\t", "→×é1", "aA.,'<>"])
def test_a_character_tokenizer_is_the_same_after_saving(tmp_path, alphabet):
    tokenizer = character_tokenizer(alphabet)
    save_model(tiny_model(SMALL, tokenizer, 0), tokenizer, tmp_path)
    loaded = load_model(str(tmp_path))[1]
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 1)
    for text in (alphabet, alphabet[::-1], alphabet[-1] * 3, alphabet[0] + alphabet[-1] * 2):
        tokens = tokenizer(text)["input_ids"]
        assert loaded(text)["input_ids"] == tokens
        assert loaded.decode(tokens) == tokenizer.decode(tokens) == text


def test_a_character_is_a_token():
    tokenizer = character_tokenizer("0123456789+-*/(),=: \n")
    assert len(tokenizer) == 2 + 21
    assert tokenizer("10 =\n")["input_ids"] == [3, 2, 21, 19, 22]


def test_a_model_is_read_back_bit_for_bit(folder):
    original = tiny_model(SMALL, character_tokenizer("0123456789+="), 0)
    model, _ = load_model(str(folder))
    assert not model.training
    for (name, a), (other, b) in zip(
        original.named_parameters(), model.named_parameters(), strict=True
    ):
        assert name == other
        assert torch.equal(a, b)


def test_a_model_keeps_the_precision_it_was_saved_in(folder):
    model, tokenizer = load_model(str(folder))
    save_model(model.to(torch.bfloat16), tokenizer, folder)
    assert load_model(str(folder))[0].dtype == torch.bfloat16


def test_a_tied_model_is_no_model_with_missing_parameters(folder):
    model, tokenizer = load_model(str(folder))
    model.config.tie_word_embeddings = True
    model.tie_weights()
    save_model(model, tokenizer, folder)
    loaded, _ = load_model(str(folder))
    assert loaded.lm_head.weight.data_ptr() == loaded.get_input_embeddings().weight.data_ptr()


def test_the_seed_decides_a_tiny_model():
    tokenizer = character_tokenizer("01")
    heads = [tiny_model(SMALL, tokenizer, seed).lm_head.weight for seed in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_a_tiny_model_has_the_shape_asked_for_and_a_head_of_its_own():
    model = tiny_model(SMALL, character_tokenizer("01"), 0)
    assert model.dtype == torch.float32
    assert model.lm_head.weight.shape == model.get_input_embeddings().weight.shape == (4, 16)
    assert not torch.equal(model.lm_head.weight, model.get_input_embeddings().weight)
    # Embedding, head, final norm; in the block: q, k, v with biases, o, three of the MLP, 2 norms.
    block = 3 * (16 * 16 + 16) + 16 * 16 + 3 * 16 * 32 + 2 * 16
    assert sum(p.numel() for p in model.parameters()) == 2 * 4 * 16 + 16 + block


# What is refused.


def test_an_unknown_model_names_the_shipped_ones(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "nowhere", tmp_path / "empty"):
        message = refusal(path)
        assert "config.json" in message
        assert "countdown-tiny" in message
    with pytest.raises(UsageError, match="no model at 'countdown-tinny'"):
        resolve_model("countdown-tinny")


def test_a_folder_is_taken_as_it_is(folder):
    assert resolve_model(str(folder)) == str(folder)
    assert Path(resolve_model("countdown-tiny"), "config.json").is_file()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model_type": "t5"}'])
def test_a_damaged_configuration_is_refused(folder, content):
    (folder / "config.json").write_text(content)
    assert refusal(folder).startswith("cannot load a model from")


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_damaged_weights_are_refused(folder, size):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    assert refusal(folder).startswith("cannot load a model from")


def test_missing_weights_are_refused(folder):
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(folder)


def test_weights_of_another_shape_are_refused(folder):
    change(folder / "config.json", intermediate_size=48)
    assert refusal(folder).startswith("cannot load a model from")


def test_parameters_are_never_made_up(folder):
    change(folder / "config.json", num_hidden_layers=2, layer_types=["full_attention"] * 2)
    message = refusal(folder)
    assert "lack 12 parameters" in message
    assert "model.layers.1." in message


@pytest.mark.parametrize("content", ["", "{", "{}"])
def test_a_damaged_tokenizer_is_refused(folder, content):
    (folder / "tokenizer.json").write_text(content)
    assert refusal(folder).startswith("cannot load a model from")


def test_a_missing_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json" in refusal(folder)
    (folder / "tokenizer_config.json").unlink()
    assert "tokenizer.json" in refusal(folder)


@pytest.mark.parametrize("end", [None, "<another>"])
def test_a_tokenizer_without_an_end_token_the_model_knows_is_refused(folder, end):
    change(folder / "tokenizer_config.json", eos_token=end)
    assert "no end token" in refusal(folder)


def test_a_tokenizer_without_padding_pads_with_the_end_token(folder):
    change(folder / "tokenizer_config.json", pad_token=None)
    model, tokenizer = load_model(str(folder))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 1
    encoded = tokenizer(["1", "1+1"], padding=True, return_tensors="pt")
    assert encoded["attention_mask"].tolist() == [[0, 0, 1], [1, 1, 1]]
    assert model(**encoded).logits.shape == (2, 3, 14)


# Progress bars.


@pytest.fixture
def progress_bars():
    was_enabled = logging.is_progress_bar_enabled()
    yield
    (logging.enable_progress_bar if was_enabled else logging.disable_progress_bar)()


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_progress_bar_setting_of_transformers_is_put_back(progress_bars, folder, is_enabled):
    (logging.enable_progress_bar if is_enabled else logging.disable_progress_bar)()
    with without_progress_bars():
        assert not logging.is_progress_bar_enabled()
    assert logging.is_progress_bar_enabled() == is_enabled
    with pytest.raises(RuntimeError), without_progress_bars():
        raise RuntimeError
    assert logging.is_progress_bar_enabled() == is_enabled
    load_model(str(folder))
    shutil.rmtree(folder)
    with pytest.raises(UsageError):
        load_model(str(folder))
    assert logging.is_progress_bar_enabled() == is_enabled


def test_loading_and_saving_draw_no_bars(progress_bars, folder, capfd):
    logging.enable_progress_bar()
    model, tokenizer = load_model(str(folder))
    save_model(model, tokenizer, folder)
    assert capfd.readouterr() == ("", "")


def test_prompts_the_tokenizer_cannot_read_are_refused(shipped):
    model, tokenizer = shipped
    check_fit(model, tokenizer, ["3,4=7:", "25,25,25,25=200:"], 20)
    with pytest.raises(UsageError, match=r"reads the prompt '3x4=7:' as '34=7:'"):
        check_fit(model, tokenizer, ["3,4=7:", "3x4=7:"], 20)


def test_prompts_that_leave_no_room_for_an_answer_are_refused(shipped):
    model, tokenizer = shipped
    check_fit(model, tokenizer, ["3,4=7:"], 64 - 6)
    with pytest.raises(UsageError, match="make 65 tokens, the model has 64 positions"):
        check_fit(model, tokenizer, ["3,4=7:"], 64 - 5)
