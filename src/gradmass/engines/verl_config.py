"""What a configuration of verl does to a weight, and what of verl the hooks rely on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradmass.engines.flags import Flag, Rule, acting, is_set
from gradmass.engines.upstream import Symbol

V1 = "trainer/ppo/v1"
TRAINER = f"{V1}/trainer_base.py:PPOTrainer"
VERL_SYMBOLS = (
    Symbol(
        "trainer/ppo/core_algos.py:register_adv_est", ("name_or_enum",), ("ADV_ESTIMATOR_REGISTRY",)
    ),
    Symbol("trainer/ppo/core_algos.py:get_adv_estimator_fn", ("name_or_enum",)),
    Symbol(
        "trainer/ppo/ray_trainer.py:compute_advantage",
        ("data", "adv_estimator"),
        ("token_level_rewards", "response_mask", "index", "uid", "config", "get_adv_estimator_fn"),
    ),
    Symbol("utils/checkpoint/checkpoint_manager.py:find_latest_ckpt_path", ("path",)),
    # From here on: the trainer that verl has had since 0.9.0.
    Symbol(f"{TRAINER}.__init__", ("self", "config"), ("trainer_mode",), True),
    Symbol(
        f"{TRAINER}._step_once",
        ("self", "metrics", "timing_raw", "sample_batch_size"),
        ("_compute_old_log_prob", "_compute_advantage", "_update_actor", "update"),
        True,
    ),
    Symbol(
        f"{TRAINER}._compute_old_log_prob",
        ("self", "batch", "metrics"),
        ("actor/entropy", "entropy", "old_log_probs"),
        True,
    ),
    Symbol(
        f"{TRAINER}._compute_advantage",
        ("self", "batch", "metrics"),
        ("compute_advantage_for_multi_trajectories", "rm_scores", "advantages", "kv_batch_put"),
        True,
    ),
    Symbol(f"{TRAINER}._update_actor", ("self", "batch", "metrics"), ("update_actor",), True),
    Symbol(f"{TRAINER}._save_checkpoint", ("self",), ("default_local_dir", "global_steps"), True),
    Symbol(f"{TRAINER}._load_checkpoint", ("self",), ("global_steps", "resume_mode"), True),
    Symbol(f"{V1}/trainer_base.py:register_trainer", ("name",), ("TRAINER_REGISTRY",), True),
    Symbol(
        f"{V1}/utils.py:compute_advantage_for_multi_trajectories",
        ("data", "batch_keys", "adv_estimator"),
        ("compute_advantage", "rsplit"),
        True,
    ),
    Symbol(
        f"{V1}/replay_buffer.py:ReplayBuffer._evict_terminal_groups",
        ("self", "global_steps", "partition_id", "eviction_reasons"),
        ("DAPO_FILTERED_REWARD_COUNTS_KEY",),
        True,
    ),
    Symbol(
        f"{V1}/agent_loop_tq.py:AgentLoopWorkerTQ._agent_loop_postprocess",
        ("self", "output"),
        ("reward_extra_info", "extra_fields", "min_global_steps"),
        True,
    ),
    Symbol("trainer/ppo/checkpoint_callback.py:build_checkpoint_callback", ("config",), (), True),
)
TRIED = ("0.6.1", "0.9.1")
"""Oldest and newest verl the hooks are tried with; the trainer from 0.9.0."""

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
LOSSES = {
    "token-mean": "divides by the tokens of the mini-batch: long answers weigh more",
    "token-sum": "sums over tokens without a constant: long answers weigh more",
    "seq-mean-token-mean": "divides each answer by its length: short answers weigh more a token",
}
RULES: tuple[Rule, ...] = (
    (
        "algorithm.use_kl_in_reward",
        is_set,
        "refused",
        "it takes the KL term off the reward that a weight judges by: set "
        f"{ACTOR}.use_kl_loss instead",
    ),
    (
        "algorithm.norm_adv_by_std_in_grpo",
        is_set,
        "replaced",
        "it is of verl's own grpo; a weight is instead of it",
    ),
    (
        "algorithm.filter_groups.enable",
        is_set,
        "changes the weight",
        "solved and unsolved groups are evicted before; the gradmass_* trainers add their counts "
        "to the solve rate, an estimator alone follows what is left",
    ),
    (
        "algorithm.rollout_correction.bypass_mode",
        is_set,
        "changes the weight",
        "no entropy is measured: it is estimated from the sampled tokens",
    ),
    (
        "algorithm.rollout_correction.rollout_is",
        is_set,
        "changes the weight",
        "its importance weights multiply the weight",
    ),
    (
        "algorithm.rollout_correction.rollout_rs",
        is_set,
        "changes the weight",
        "rejected tokens stay in the baseline and have no gradient",
    ),
    (
        f"{ACTOR}.loss_agg_mode",
        LOSSES.__contains__,
        "changes the weight",
        "seq-mean-token-sum-norm keeps the gradient masses what the weight says",
    ),
    (
        f"{ACTOR}.policy_loss.loss_mode",
        lambda value: value not in (None, "vanilla"),
        "changes the weight",
        "another surrogate than the clipped ratio: what it clips or drops depends on the sign",
    ),
    (
        f"{ACTOR}.use_kl_loss",
        is_set,
        "changes the weight",
        "the KL term is gradient that no weight governs",
    ),
    (
        f"{ACTOR}.entropy_coeff",
        is_set,
        "changes the weight",
        "the entropy bonus is gradient that no weight governs",
    ),
    (
        f"{ROLLOUT}.top_p",
        lambda value: value is not None and value < 1,
        "changes the weight",
        "entropy is of the whole softmax, not of the truncated one that is sampled from",
    ),
    (
        f"{ROLLOUT}.top_k",
        lambda value: value is not None and value > 0,
        "changes the weight",
        "entropy is of the whole softmax, not of the truncated one that is sampled from",
    ),
    (
        "distillation.enabled",
        is_set,
        "changes the weight",
        "the distillation loss is gradient that no weight governs",
    ),
)


def dotted(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name.

    >>> dotted({"a": {"b": 1, "c": {"d": None}}, "e.f": 2})
    {'a.b': 1, 'a.c.d': None, 'e.f': 2}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= dotted(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def flags(config: Mapping[str, Any]) -> list[Flag]:
    """Settings that act on a weight after it is computed.

    Args:
        config: Of a run, nested or by dotted name; settings that are missing are not judged.

    >>> [flag.name for flag in flags({"algorithm": {"use_kl_in_reward": True, "gamma": 1.0}})]
    ['algorithm.use_kl_in_reward']
    >>> flags({"actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum-norm"})
    []
    """
    settings = dotted(config)
    found = []
    for flag in acting(RULES, settings):
        meaning = flag.meaning
        if flag.name == f"{ACTOR}.loss_agg_mode":
            meaning = f"{LOSSES[flag.value]}; {meaning}"
        found.append(Flag(flag.name, flag.value, flag.severity, meaning))
    name = settings.get("algorithm.adv_estimator")
    trainer = str(settings.get("trainer.v1.trainer_mode", ""))
    is_ours = isinstance(name, str) and name.partition("_")[0] == "gradmass"
    if is_ours and not (trainer.startswith("gradmass_") and settings.get("trainer.use_v1", True)):
        meaning = (
            "entropy, verdicts, raw counts and checkpoints do not reach an estimator alone: set "
            "trainer.v1.trainer_mode=gradmass_sync (verl from 0.9.0)"
        )
        found.append(Flag("algorithm.adv_estimator", name, "changes the weight", meaning))
    return found


def defaults(folder: Path) -> dict[str, Any]:
    """The engine's own settings by dotted name, from the configuration in its wheel."""
    import yaml  # comes with omegaconf, on which verl builds

    file = folder / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    if not file.is_file():
        return {}
    return dotted(yaml.safe_load(file.read_text(encoding="utf-8")))
