"""A recipe as a run of verl: its data, its configuration, and the command that starts it."""

import re
import sys
from collections.abc import Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from gradmass.config import Recipe
from gradmass.engines.verl_config import ACTOR, ROLLOUT
from gradmass.engines.verl_settings import ESTIMATOR
from gradmass.engines.verl_task import TASK_FILE, task_rows
from gradmass.record.files import write_json
from gradmass.tables import to_tables
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

TEMPLATE = '{% for message in messages %}{{ message["content"] }}{% endfor %}'
"""The prompt as it is: it is rendered here, and verl sends every prompt through a template."""
NO_DUAL_CLIP = 1e6
"""verl clips negative weights once more, where the ratio is above this; recipes do not."""


def limits_of(recipe: Recipe) -> list[str]:
    """What of a recipe a run of verl leaves out, a line each; nothing here changes the training.

    >>> limits_of(Recipe())[0]
    'evaluation is by sampling: pass@k is estimated, never exact'
    """
    found = ["evaluation is by sampling: pass@k is estimated, never exact"]
    if recipe.probe.every or recipe.probe.rank_every:
        found.append("probe: gradients by verdict, hidden states and ranks are not measured")
    if recipe.model.dtype == "float32":
        found.append("model.dtype: parameters are float32, and verl computes in bfloat16")
    if recipe.train.threads:
        found.append(f"train.threads = {recipe.train.threads}: Ray decides")
    return found


def command_for(recipe: Recipe, out_dir: Path, model_path: str, *, num_gpus: int = 1) -> list[str]:
    """Write what verl reads, and say how to start it.

    The prompts are those of the recipe in its order, written out for every step. The trainer is
    ``gradmass_sync``; metrics go to ``verl/metrics.jsonl``, rollouts to ``verl/rollouts``.

    Args:
        recipe: Of the run.
        out_dir: Its folder; everything is written to ``verl`` in it.
        model_path: Folder in Hugging Face format, or a name of the hub.
        num_gpus: Of this machine.

    Returns:
        The command, word by word.

    Raises:
        UsageError: The recipe asks for what verl does not do, or the folder cannot be written.
    """
    _check(recipe, num_gpus)
    folder = out_dir.absolute() / "verl"
    if Path(model_path).exists():
        model_path = str(Path(model_path).absolute())  # Ray's processes start elsewhere
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = _tokenizer(model_path)
        prompts = _write_data(recipe, folder, tokenizer, model_path)
    except OSError as error:
        raise UsageError(f"cannot write what verl reads to {folder}: {error}") from error
    longest = max(map(len, tokenizer(prompts, add_special_tokens=False)["input_ids"]))
    settings = (
        _data(recipe, folder, longest)
        | _policy(recipe, model_path)
        | _loss(recipe)
        | _run(recipe, folder, num_gpus)
    )
    words = [f"{name}={quoted(value)}" for name, value in settings.items()]
    environment = f"VERL_FILE_LOGGER_PATH={folder / 'metrics.jsonl'}"
    return ["env", environment, sys.executable, "-m", "verl.trainer.main_ppo", *words]


def quoted(value: Any) -> str:
    r"""A value as Hydra's command line reads it.

    >>> print(quoted({"a": [1, 2.5, None], "b": "it's"}))
    {a:[1,2.5,null],b:'it\'s'}
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        # A backslash is itself unless a quote follows.
        doubled = re.sub(r"(\\+)(?='|\Z)", r"\1\1", value)
        return "'" + doubled.replace("'", "\\'") + "'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{quoted(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(quoted, value)) + "]"
    return repr(value)


def _check(recipe: Recipe, num_gpus: int) -> None:
    train, loss = recipe.train, recipe.loss
    # Field, value, the value that verl can do, why.
    fixed = (
        ("train.policy_lag", train.policy_lag, 0, "gradmass_sync trains on policy"),
        ("train.max_lag", train.max_lag, 0, "gradmass_sync trains on policy"),
        ("loss.importance_cap", loss.importance_cap, 0.0, "verl corrects for vLLM's numbers alone"),
        ("loss.truncated", loss.truncated, "count", "verl counts cut answers"),
        ("entropy.is_adaptive", recipe.entropy.is_adaptive, False, "its coefficient is fixed"),
        ("equalise", recipe.equalise, "none", "verl's hook has no factor"),
        ("optim.type", recipe.optim.type, "adamw", "its optimiser is AdamW"),
    )
    for name, value, possible, why in fixed:
        if value != possible:
            raise UsageError(
                f"{name} = {value!r}: {why}; set {possible!r}, or train with --engine local"
            )
    if train.steps % train.updates_per_batch:
        raise UsageError(
            f"train.steps = {train.steps} is no multiple of train.updates_per_batch = "
            f"{train.updates_per_batch}: verl makes all updates of a batch"
        )
    rollouts = train.prompts_per_step * train.group_size
    if num_gpus < 1 or rollouts % num_gpus:
        raise UsageError(
            f"a batch of {rollouts} rollouts is not shared evenly by {num_gpus} GPUs: change "
            "train.prompts_per_step or the number of GPUs"
        )


def _write_data(recipe: Recipe, folder: Path, tokenizer: Any, model_path: str) -> list[str]:
    """Write both data sets and the task's description; the prompts."""
    import pyarrow
    import pyarrow.parquet

    from gradmass.training.policy import dressed_task

    train = recipe.train
    task = dressed_task(recipe.prompt, recipe.task, tokenizer, model_path)
    first, *others = task.splits
    num_problems = dict.fromkeys(others, recipe.eval.num_problems) | {first: train.num_problems}
    by_split = {split: task.problems(split, number) for split, number in num_problems.items()}
    described = {
        "task": to_tables(recipe.task),
        "format": recipe.prompt.format,
        "num_problems": num_problems,
    }
    write_json(folder / TASK_FILE, described)
    num_batches = train.steps // train.updates_per_batch
    drawn = islice(cycle(by_split[first]), num_batches * train.prompts_per_step)
    sets = {
        "train": [(first, problem) for problem in drawn],
        # verl wants held-out prompts even of a task that has none.
        "val": [(split, problem) for split in others or [first] for problem in by_split[split]],
    }
    for name, problems in sets.items():
        rows = task_rows(problems, task, folder / TASK_FILE)
        draft = folder / f".{name}.parquet.draft"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), draft)
        draft.replace(folder / f"{name}.parquet")
    return sorted({problem.prompt for problems in by_split.values() for problem in problems})


def _tokenizer(model_path: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_path)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"cannot read the tokenizer of model {model_path!r}: {reason}") from error


def _data(recipe: Recipe, folder: Path, longest: int) -> dict[str, Any]:
    manager = "reward.reward_manager"
    return {
        "data.train_files": str(folder / "train.parquet"),
        "data.val_files": str(folder / "val.parquet"),
        "data.train_batch_size": recipe.train.prompts_per_step,
        "data.shuffle": False,
        "data.seed": recipe.seed,
        "data.max_prompt_length": longest,
        "data.max_response_length": recipe.train.max_new_tokens,
        f"{manager}.source": "importlib",
        f"{manager}.name": "TaskRewardManager",
        f"{manager}.module.path": "pkg://gradmass.engines.verl_task",
    }


def _policy(recipe: Recipe, model_path: str) -> dict[str, Any]:
    found = {
        "actor_rollout_ref.model.path": model_path,
        "actor_rollout_ref.model.custom_chat_template": TEMPLATE,
        "actor_rollout_ref.model.enable_gradient_checkpointing": (
            recipe.model.gradient_checkpointing
        ),
        "actor_rollout_ref.model.lora_rank": recipe.lora.rank,
        "actor_rollout_ref.model.lora_alpha": recipe.lora.alpha,
        "actor_rollout_ref.model.target_modules": list(recipe.lora.targets) or "all-linear",
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.n": recipe.train.group_size,
        f"{ROLLOUT}.seed": recipe.seed,
        f"{ROLLOUT}.temperature": 1.0,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
    }
    validation = {
        "n": max(1, recipe.eval.num_samples),
        "do_sample": True,
        "temperature": 1.0,
    }
    return found | {f"{ROLLOUT}.val_kwargs.{key}": value for key, value in validation.items()}


def _loss(recipe: Recipe) -> dict[str, Any]:
    weight, loss, optim = recipe.weight, recipe.loss, recipe.optim
    table = to_tables(weight)
    is_registered = table["type"] in WEIGHTS.names()
    estimator = f"{ESTIMATOR}_{weight.name}" if is_registered else ESTIMATOR
    constant = loss.aggregation == "constant"
    aggregation = "seq-mean-token-sum-norm" if constant else loss.aggregation
    found = {
        "algorithm.adv_estimator": estimator,
        "+algorithm.gradmass": {"mode": "weight", "success": "acc", "weight": table},
        f"{ACTOR}.loss_agg_mode": aggregation,
        f"{ACTOR}.entropy_coeff": recipe.entropy.coef,
        f"{ACTOR}.clip_ratio_low": loss.clip_low,
        f"{ACTOR}.clip_ratio_high": loss.clip_high,
        f"{ACTOR}.clip_ratio_c": NO_DUAL_CLIP,
        f"{ACTOR}.ppo_mini_batch_size": recipe.train.prompts_per_step,
        f"{ACTOR}.ppo_epochs": recipe.train.updates_per_batch,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.use_kl_loss": loss.kl_coef > 0,
        f"{ACTOR}.optim.lr": optim.lr,
        f"{ACTOR}.optim.betas": list(optim.betas),
        f"{ACTOR}.optim.weight_decay": optim.weight_decay,
        f"{ACTOR}.grad_clip": optim.max_grad_norm,
    }
    if constant:
        found[f"{ACTOR}.loss_scale_factor"] = recipe.train.max_new_tokens
    if loss.kl_coef > 0:
        found |= {f"{ACTOR}.kl_loss_coef": loss.kl_coef, f"{ACTOR}.kl_loss_type": loss.kl_estimator}
    return found


def _run(recipe: Recipe, folder: Path, num_gpus: int) -> dict[str, Any]:
    updates = recipe.train.updates_per_batch
    num_batches = recipe.train.steps // updates
    return {
        "trainer.v1.trainer_mode": "gradmass_sync",
        "trainer.n_gpus_per_node": num_gpus,
        "trainer.nnodes": 1,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": num_batches,
        "trainer.save_freq": max(1, recipe.train.checkpoint_every // updates),
        "trainer.test_freq": max(1, recipe.eval.every // updates)
        if recipe.eval.every
        else num_batches,
        "trainer.logger": ["console", "file"],
        "trainer.project_name": "gradmass",
        "trainer.experiment_name": folder.parent.name,
        "trainer.default_local_dir": str(folder / "checkpoints"),
        "trainer.rollout_data_dir": str(folder / "rollouts"),
    }
