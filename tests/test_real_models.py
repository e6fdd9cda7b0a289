"""What real models need, on small ones: adapters, bfloat16, checkpointed blocks, threads."""

import copy
import json
import math

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gradmass.cli import main
from gradmass.config import LoraConfig, ModelConfig, OptimConfig, Recipe
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.training import threads
from gradmass.training.lora import adapted_matrices, has_adapter
from gradmass.training.masters import make_optimizer, trained_parameters
from gradmass.training.model import load_model
from gradmass.training.policy import copy_policy, load_policy
from gradmass.training.rollout import answer_logprobs, sample, uniforms
from gradmass.training.train import train
from gradmass.types import UsageError

PROMPTS = ("1,2=3:", "10,11,12,13=100:")
SMALL = (
    "--train.steps=4",
    "--train.num_problems=8",
    "--train.prompts_per_step=4",
    "--train.group_size=4",
    "--train.threads=1",
    "--eval.num_problems=2",
    "--eval.num_samples=2",
    "--eval.every=0",
    "--weight=reinforce",
    "--weight.signed=true",
    "--probe.every=2",
    "--probe.rank_every=2",
    "--optim.lr=1e-2",
)


def run_of(folder, *flags, steps=4):
    recipe = load_recipe(Recipe, None, [*SMALL, f"--train.steps={steps}", *flags])
    writer = RunWriter.create(folder, {"label": "x", "recipe": to_tables(recipe)}, {})
    assert train(recipe, writer, lambda row: None)
    writer.close()
    return Run(folder)


def comparable(rows):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("lora") / "run", "--lora.rank=4", "--loss.kl_coef=0.01")


def test_an_adapter_starts_as_the_model_and_is_all_that_is_trained(shipped):
    policy, tokenizer, _ = load_policy(ModelConfig(), LoraConfig(rank=4), seed=3)
    draws_BT = uniforms((4, 12), 0, "test")
    expected = sample(*shipped, PROMPTS, draws_BT)
    found = sample(policy, tokenizer, PROMPTS, draws_BT)
    assert torch.equal(found.answer_BT, expected.answer_BT)
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert not any("lm_head" in name for name in trained)
    same, _, _ = load_policy(ModelConfig(), LoraConfig(rank=4), seed=3)
    other, _, _ = load_policy(ModelConfig(), LoraConfig(rank=4), seed=4)
    name = next(name for name in trained if "lora_A" in name)
    assert torch.equal(policy.get_parameter(name), same.get_parameter(name))
    assert not torch.equal(policy.get_parameter(name), other.get_parameter(name))


def test_a_second_policy_shares_what_is_not_trained():
    policy, _, _ = load_policy(ModelConfig(), LoraConfig(rank=4), seed=3)
    second = copy_policy(policy)
    for (name, a), (_, b) in zip(policy.named_parameters(), second.named_parameters(), strict=True):
        assert (a.data_ptr() == b.data_ptr()) == (not a.requires_grad), name
    with torch.no_grad():
        for p in policy.parameters():
            if p.requires_grad:
                p += 1.0
    draws_BT = uniforms((2, 3), 0, "test")
    tokenizer = load_model("countdown-tiny")[1]
    rollouts = sample(second, tokenizer, PROMPTS, draws_BT)
    rows = torch.arange(2)
    assert not torch.allclose(
        answer_logprobs(policy, rollouts, rows), answer_logprobs(second, rollouts, rows)
    )


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_checkpoint_is_an_adapter_that_peft_loads_and_that_merges(lora_run, tmp_path, capsys):
    folder = lora_run.model_dir
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 32)
    assert not (folder / "model.safetensors").exists()
    base = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"])
    adapted = peft.PeftModel.from_pretrained(base, folder).eval()
    with pytest.raises(SystemExit) as stop:
        main(["merge", str(lora_run.path), "--out", str(tmp_path / "merged"), "--json"])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == "float32"
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    tokens = torch.tensor([tokenizer(PROMPTS[1])["input_ids"]])
    plain, _ = load_model("countdown-tiny")
    with torch.no_grad():
        wanted = adapted(tokens).logits
        torch.testing.assert_close(merged(tokens).logits, wanted, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            load_model(str(folder))[0](tokens).logits, wanted, atol=1e-4, rtol=1e-4
        )
        assert not torch.allclose(plain(tokens).logits, wanted, atol=1e-3)


def test_what_is_measured_of_an_adapter_is_the_change_of_its_matrices(lora_run):
    matrices = [row for row in lora_run.diagnostics if row["kind"] == "spectrum"][-1]["matrices"]
    start, _ = load_model("countdown-tiny")
    end, _ = load_model(str(lora_run.model_dir))
    assert len(matrices) == 2 * 7
    for row in matrices:
        with torch.no_grad():
            change = end.get_parameter(row["name"]) - start.get_parameter(row["name"])
        singular = torch.linalg.svdvals(change.double())
        assert row["norm"] == pytest.approx(float(singular.square().sum().sqrt()), rel=1e-3)
        assert row["singular_values"][0] == pytest.approx(float(singular[0]), rel=1e-3)
        assert all(value < 1e-3 * singular[0] for value in row["singular_values"][4:])  # rank 4
    last = lora_run.metrics[-1]
    assert (last["rank/head_top1_share"], last["rank/head_change_norm"]) == (None, 0.0)
    assert all(math.isfinite(row["loss/value"]) for row in lora_run.metrics[1:])


@pytest.mark.parametrize(
    "flags",
    [
        ["--lora.rank=4", "--train.policy_lag=2"],
        ["--model.dtype=bfloat16"],
        ["--train.tokens_at_once=100"],
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, flags):
    whole = run_of(tmp_path / "whole", *flags)
    recipe = load_recipe(Recipe, None, [*SMALL, *flags, "--train.checkpoint_every=2"])
    folder = tmp_path / "broken"
    writer = RunWriter.create(folder, {"label": "x", "recipe": to_tables(recipe)}, {})

    class Stop(Exception):
        pass

    def stop(row):
        if row["step"] == 3:
            raise Stop

    with pytest.raises(Stop):
        train(recipe, writer, stop)
    writer.fail()
    writer.close()
    writer = RunWriter.resume(folder, {})
    assert writer.resumed_from.step == 2
    assert train(recipe, writer, lambda row: None)
    writer.close()
    assert comparable(Run(folder).metrics) == comparable(whole.metrics)


def test_steps_smaller_than_the_spacing_of_bfloat16_add_up():
    policy, _, stored = load_policy(ModelConfig(dtype="bfloat16"), LoraConfig(), seed=0)
    assert stored == torch.float32
    assert {p.dtype for p in policy.parameters()} == {torch.bfloat16}
    optimizer = make_optimizer(OptimConfig(type="sgd", lr=1.0), policy)
    weight = policy.lm_head.weight
    with torch.no_grad():
        weight.fill_(1.0)
        for master in trained_parameters(optimizer):
            if master.shape == weight.shape:
                master.fill_(1.0)
    for _ in range(16):  # each a sixteenth of the spacing at 1
        optimizer.zero_grad()
        (weight.float().sum() * -(2.0**-11)).backward()
        assert weight.grad is None  # added up in float32
        optimizer.step()
    assert float(weight.detach()[0, 0]) == 1.0 + 2.0**-7
    state = copy.deepcopy(optimizer.state_dict())
    again, _, _ = load_policy(ModelConfig(dtype="bfloat16"), LoraConfig(), seed=0)
    other = make_optimizer(OptimConfig(type="sgd", lr=1.0), again)
    other.load_state_dict(state)
    assert float(again.lm_head.weight.detach()[0, 0]) == 1.0 + 2.0**-7


def test_checkpointed_blocks_give_the_same_gradient_and_are_computed_again(shipped):
    config = ModelConfig(gradient_checkpointing=True)
    policy, tokenizer, _ = load_policy(config, LoraConfig(), seed=0)
    rollouts = sample(policy, tokenizer, PROMPTS, uniforms((4, 12), 0, "test"))
    assert torch.equal(
        rollouts.answer_BT, sample(*shipped, PROMPTS, uniforms((4, 12), 0, "test")).answer_BT
    )
    calls = []
    policy.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    plain = copy.deepcopy(shipped[0])
    plain.model.layers[0].self_attn.register_forward_hook(lambda *_: None)  # by its own forward
    for model in (policy, plain):
        answer_logprobs(model, rollouts, torch.arange(4)).sum().backward()
    assert len(calls) == 2
    for (name, p), q in zip(policy.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)


def test_threads_are_measured_where_the_recipe_gives_none(monkeypatch):
    recipe = load_recipe(Recipe, None, ["--train.group_size=2"])
    times = {1: 1.0, 2: 0.6, 4: 0.59}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    tried = []
    monkeypatch.setattr(torch, "set_num_threads", tried.append)
    monkeypatch.setattr(threads, "_seconds", lambda *_: times[tried[-1]])
    assert threads.resolve_threads(recipe).train.threads == 2  # 4 gains too little to be worth it
    assert tried == [1, 2, 4, 4]
    given = load_recipe(Recipe, None, ["--train.threads=3"])
    assert threads.resolve_threads(given) is given


def test_threads_are_measured_on_a_rollout_where_a_pass_holds_no_more():
    recipe = load_recipe(Recipe, None, ["--train.tokens_at_once=1", "--train.group_size=2"])
    policy, tokenizer, _ = load_policy(recipe.model, recipe.lora, recipe.seed)
    assert threads._seconds(recipe, policy, tokenizer) > 0


def test_the_work_threads_are_measured_on_is_the_recipe_s():
    recipe = load_recipe(Recipe, None, ["--train.group_size=2", "--train.max_new_tokens=4"])
    policy, tokenizer, _ = load_policy(recipe.model, recipe.lora, recipe.seed)
    before = [p.clone() for p in policy.parameters()]
    assert threads._seconds(recipe, policy, tokenizer) > 0
    assert all(torch.equal(p, q) for p, q in zip(policy.parameters(), before, strict=True))
    assert all(p.grad is None for p in policy.parameters())


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"rank": 2, "targets": ("nowhere",)}, r"lora.targets = \['nowhere'\]: .*not found"),
        ({"rank": 10**6}, "lora.rank = 1000000 is above the rank of any matrix of the model, "),
        ({"rank": -1}, "lora.rank must be at least 0, got -1"),
        ({"rank": 2, "alpha": 0}, "lora.alpha must be at least 1, got 0"),
    ],
)
def test_an_adapter_that_cannot_be_is_refused_in_one_line(lora, message):
    with pytest.raises(UsageError, match=message) as error:
        load_policy(ModelConfig(), LoraConfig(**lora), seed=0)
    assert "\n" not in str(error.value)


def test_targets_are_the_matrices_that_get_an_adapter():
    policy, _, _ = load_policy(ModelConfig(), LoraConfig(rank=2, targets=("q_proj",)), seed=0)
    assert has_adapter(policy)
    assert [name for name, _, _ in adapted_matrices(policy)] == [
        f"model.layers.{i}.self_attn.q_proj.weight" for i in range(2)
    ]


def test_a_damaged_adapter_and_none_at_all_are_refused(lora_run, tmp_path, capsys):
    for argv, message in (
        (["merge", "countdown-tiny", "--out", str(tmp_path / "x")], "no adapter in"),
        (["merge", str(lora_run.path), "--out", str(lora_run.path)], "is already used"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(argv)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"adapter_config.json is damaged"):
        load_model(str(broken))
    config = (lora_run.model_dir / "adapter_config.json").read_text()
    (broken / "adapter_config.json").write_text(config)
    (broken / "adapter_model.safetensors").write_bytes(b"no")
    with pytest.raises(UsageError, match="cannot load the adapter in") as error:
        load_model(str(broken))
    assert "\n" not in str(error.value)
