"""A recipe as a run of verl: every override is accepted, and the answers are judged as here."""

import asyncio
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from gradmass.config import EntropyConfig, LoraConfig, LossConfig, Recipe, TrainConfig
from gradmass.engines.verl_command import command_for, quoted
from gradmass.engines.verl_settings import read_settings
from gradmass.tables import from_spec, load_recipe
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore")]
MODEL = "src/gradmass/checkpoints/countdown-tiny"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    recipe = load_recipe(Recipe, "demo", ["--train.steps=3", "--train.prompts_per_step=4"])
    folder = tmp_path_factory.mktemp("it's a run")
    return recipe, folder / "verl", command_for(recipe, folder, MODEL)


def overrides(command):
    assert command[0] == "env"
    assert command[2:5] == [sys.executable, "-m", "verl.trainer.main_ppo"]
    return command[5:]


def test_verl_s_own_loader_takes_every_override(run, compose):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    recipe, folder, command = run
    config = compose(*overrides(command))
    validate_config(config, need_reference_policy(config), need_critic(config))
    assert config.data.train_files == str(folder / "train.parquet")
    assert config.actor_rollout_ref.actor.optim.lr == recipe.optim.lr
    assert config.actor_rollout_ref.actor.loss_agg_mode == "seq-mean-token-sum-norm"
    assert config.actor_rollout_ref.actor.loss_scale_factor == recipe.train.max_new_tokens
    assert config.actor_rollout_ref.rollout.n == recipe.train.group_size
    assert config.trainer.v1.trainer_mode == "gradmass_sync"
    from gradmass.engines.verl_estimators import plain

    (weight,) = read_settings(plain(config.algorithm)).weights
    assert weight == recipe.weight


def test_the_trainer_takes_the_configuration(run, compose):
    from verl.trainer.ppo.v1 import get_trainer_cls

    config = compose(*overrides(run[2]))
    made = get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    assert made._gradmass.weights[0].label == run[0].weight.label


def test_the_command_runs_until_verl_asks_for_a_gpu(run, tmp_path):
    small = [
        "ray_kwargs.ray_init.num_cpus=8",
        "+ray_kwargs.ray_init.include_dashboard=False",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=2",
    ]
    done = subprocess.run(
        [*run[2], *small],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    # The trainer was found in verl's own process, made, and given its tokenizer and data.
    assert "Total available GPUs 0 is less than total desired GPUs 1" in done.stderr
    assert "trainer_base.py" in done.stderr


def test_the_prompts_are_the_recipe_s_in_order_and_the_template_adds_nothing(run, compose):
    from transformers import AutoTokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    recipe, folder, command = run
    config = compose(*overrides(command))
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.chat_template = config.actor_rollout_ref.model.custom_chat_template
    data = RLHFDataset([str(folder / "train.parquet")], tokenizer, config.data)
    problems = recipe.task.problems("train", recipe.train.num_problems)
    assert len(data) == 12
    for i, problem in enumerate(problems[:12]):
        row = data[i]
        text = tokenizer.apply_chat_template(
            row["raw_prompt"], tokenize=False, add_generation_prompt=True
        )
        assert text == problem.prompt
        assert row["reward_model"]["ground_truth"] == problem.id
        assert len(tokenizer(text)["input_ids"]) <= config.data.max_prompt_length
    sources = RLHFDataset([str(folder / "val.parquet")], tokenizer, config.data)
    assert len(sources) == recipe.eval.num_problems * (len(recipe.task.splits) - 1)


def test_answers_are_judged_by_the_recipe_s_task_through_verl_s_loader(run, compose):
    from transformers import AutoTokenizer
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    recipe, folder, command = run
    config = compose(*overrides(command))
    tokenizer = AutoTokenizer.from_pretrained(MODEL)

    async def score(problem, text, is_ended):
        manager = load_reward_manager(config, tokenizer)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += [tokenizer.eos_token_id] * is_ended
        padding = [0] * (20 - len(ids))
        data = DataProto.from_dict(
            tensors={
                "responses": torch.tensor([ids + padding]),
                "attention_mask": torch.tensor([[1] * (3 + len(ids)) + padding]),
            },
            non_tensors={
                "reward_model": np.array([{"ground_truth": problem.id}], dtype=object),
                "extra_info": np.array(
                    [{"task": str(folder / "task.json"), "split": "train"}], dtype=object
                ),
            },
        )
        return await manager.run_single(data)

    problem = recipe.task.problems("train", 5)[4]
    right = recipe.task.solutions(problem)[0]
    for text, is_ended, reward, verdict in (
        (right, True, 1.0, "right"),
        (right, False, 0.0, "unparsed"),
        ("1+1", True, 0.0, "wrong"),
        ("", True, 0.0, "unparsed"),
    ):
        found = asyncio.run(score(problem, text, is_ended))
        assert found["reward_score"] == reward
        assert found["reward_extra_info"]["acc"] == bool(reward)
        assert found["reward_extra_info"]["verdict"] == verdict, text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train": TrainConfig(policy_lag=1)},
            "policy_lag = 1: gradmass_sync trains on policy",
        ),
        ({"train": TrainConfig(steps=3, updates_per_batch=2)}, "is no multiple of"),
        ({"equalise": "mean_mass"}, "equalise = 'mean_mass': verl's hook has no factor"),
    ],
)
def test_what_verl_does_not_do_is_refused_and_nothing_is_written(changes, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        command_for(Recipe(**changes), tmp_path / "run", MODEL)
    assert not (tmp_path / "run").exists()


def test_a_folder_or_a_model_that_is_not_there_is_said_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    recipe = Recipe(train=TrainConfig(steps=1))
    with pytest.raises(UsageError, match=r"cannot write what verl reads to .*file/verl"):
        command_for(recipe, tmp_path / "file", MODEL)
    with pytest.raises(UsageError, match="cannot read the tokenizer of model '/no/such'"):
        command_for(recipe, tmp_path / "run", "/no/such")


def test_a_kl_term_and_a_weight_with_another_inside_reach_verl(tmp_path, compose):
    weight = from_spec(Weight, "constant_mass:inner=power,inner.alpha=3")
    recipe = Recipe(
        weight=weight,
        loss=LossConfig(kl_coef=0.02, kl_estimator="k2", aggregation="seq-mean-token-mean"),
        entropy=EntropyConfig(coef=0.01),
        lora=LoraConfig(rank=4, targets=("q_proj",)),
        train=TrainConfig(steps=2, prompts_per_step=2),
    )
    config = compose(*overrides(command_for(recipe, tmp_path, MODEL, num_gpus=2)))
    assert config.actor_rollout_ref.actor.kl_loss_coef == 0.02
    assert config.actor_rollout_ref.actor.use_kl_loss is True
    assert config.actor_rollout_ref.actor.kl_loss_type == "k2"
    assert config.actor_rollout_ref.actor.loss_agg_mode == "seq-mean-token-mean"
    assert config.actor_rollout_ref.actor.entropy_coeff == 0.01
    assert config.actor_rollout_ref.model.lora_rank == 4
    assert config.actor_rollout_ref.model.target_modules == ["q_proj"]
    from gradmass.engines.verl_estimators import plain

    assert read_settings(plain(config.algorithm)).weights == (weight,)


@pytest.mark.parametrize(
    "text", ["it's", "a\\b", "ends\\", "\\'", "a, b: {c} [d]", "ünï ☃", "", "null", "1", '"x"']
)
def test_texts_survive_hydra_s_command_line(text, compose):
    config = compose(f"trainer.experiment_name={quoted(text)}")
    assert config.trainer.experiment_name == text


def test_the_verifiers_are_verl_s_custom_reward_function(compose):
    from verl.trainer.ppo.reward import get_custom_reward_fn

    config = compose(
        "reward.custom_reward_function.path=pkg://gradmass.rewards.functions",
        "reward.custom_reward_function.name=compute_score",
    )
    score = get_custom_reward_fn(config)
    found = score(
        data_source="x", solution_str=r"so \boxed{0.5}", ground_truth="1/2", extra_info={}
    )
    assert (found["score"], found["acc"], found["verdict"]) == (1.0, True, "right")
    wrong = score(data_source="x", solution_str=r"\boxed{0.6}", ground_truth="1/2", extra_info={})
    assert (wrong["score"], wrong["verdict"]) == (0.0, "wrong")


def test_the_verifiers_go_through_verl_s_naive_manager(compose):
    from transformers import AutoTokenizer
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    config = compose(
        "reward.custom_reward_function.path=src/gradmass/rewards/functions.py",
        "reward.custom_reward_function.name=compute_score",
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    ids = tokenizer("7", add_special_tokens=False)["input_ids"]

    async def score(truth):
        data = DataProto.from_dict(
            tensors={
                "responses": torch.tensor([ids]),
                "attention_mask": torch.ones(1, 2 + len(ids), dtype=torch.int64),
            },
            non_tensors={
                "reward_model": np.array([{"ground_truth": truth}], dtype=object),
                "data_source": np.array(["x"], dtype=object),
                "extra_info": np.array([{}], dtype=object),
            },
        )
        return await load_reward_manager(config, tokenizer).run_single(data)

    found = asyncio.run(score("7"))
    assert found["reward_extra_info"]["verdict"] in ("right", "unparsed")
    assert found["reward_score"] == float(found["reward_extra_info"]["acc"])


def test_every_registered_weight_has_an_estimator():
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    assert {f"gradmass_{name}" for name in WEIGHTS.names()} < ADV_ESTIMATOR_REGISTRY.keys()
