"""What every test has: one thread, no network, and the shipped checkpoint loaded once."""

import copy
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import pytest
import torch
from hypothesis import settings
from transformers import AutoModelForCausalLM, GPT2Config, MistralConfig

from gradmass.tasks.countdown import Countdown
from gradmass.training.evaluate import evaluate_exactly
from gradmass.training.model import load_model

torch.set_num_threads(1)
# No test is timed: on a busy machine an example may take long.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
os.chdir(Path(__file__).parents[1])  # golden/weight_fields.json names a file from here


@pytest.fixture(scope="session")
def shipped():
    """The shipped policy and its tokenizer; never changed (use ``policy`` for a copy)."""
    model, tokenizer = load_model("countdown-tiny")
    return model, tokenizer


@pytest.fixture
def policy(shipped):
    """A copy of the shipped policy that a test may change."""
    return copy.deepcopy(shipped[0])


@pytest.fixture(scope="session")
def tokenizer(shipped):
    return shipped[1]


@pytest.fixture(scope="session")
def held_out():
    """200 test problems of the default Countdown."""
    return Countdown().problems("test", 200)


@pytest.fixture(scope="session")
def shipped_evaluation(shipped, held_out):
    """The shipped policy evaluated exactly on ``held_out``."""
    return evaluate_exactly(*shipped, Countdown(), held_out)


@pytest.fixture(scope="session", params=["gpt2", "mistral"])
def other_policy(request):
    """Untrained policies that see what Qwen2 does not: absolute positions, a sliding window."""
    tokens = {"vocab_size": 21, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    configs = {
        "gpt2": GPT2Config(**tokens, n_embd=32, n_layer=2, n_head=2, n_positions=64),
        "mistral": MistralConfig(
            **tokens,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=48,
            sliding_window=8,
        ),
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(configs[request.param])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)  # far from uniform over tokens
    return model.eval()
