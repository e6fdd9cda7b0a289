"""What a GRPOConfig does to a weight after the hook, and what of TRL the hook relies on."""

from collections.abc import Mapping
from typing import Any

from gradmass.engines.flags import Flag, Rule, acting, is_set
from gradmass.engines.upstream import Symbol

TRAINER = "trainer/grpo_trainer.py:GRPOTrainer"
TRL_SYMBOLS = (
    Symbol(
        f"{TRAINER}._generate_and_score_completions",
        ("self", "inputs"),
        ("_calculate_rewards", "advantages", "completion_mask", "num_generations"),
    ),
    Symbol(
        f"{TRAINER}._calculate_rewards",
        ("self", "inputs", "prompts", "completions", "completion_ids_list"),
        ("gather",),
    ),
    Symbol(f"{TRAINER}._prepare_inputs", ("self", "generation_batch"), ("shuffle_sequence_dict",)),
    Symbol(f"{TRAINER}.compute_loss", ("self", "model", "inputs"), ("_compute_loss",)),
    Symbol(f"{TRAINER}._compute_loss", ("self", "model", "inputs"), ("advantages", "entropy")),
    Symbol(
        f"{TRAINER}._get_per_token_logps_and_entropies",
        ("self", "model", "input_ids", "attention_mask", "logits_to_keep"),
    ),
    Symbol(f"{TRAINER}._save_checkpoint", ("self", "model", "trial")),
    Symbol("trainer/utils.py:shuffle_sequence_dict", ("seq_dict",)),
    Symbol("trainer/utils.py:split_tensor_dict", ("tensor_dict", "num_chunks")),
    *(
        Symbol(f"{TRAINER}.__init__.{name}")
        for name in (
            "_metrics",
            "_logs",
            "num_generations",
            "num_generations_eval",
            "reward_weights",
            "reward_func_names",
            "scale_rewards",
            "multi_objective_aggregation",
        )
    ),
)
TRANSFORMERS_SYMBOLS = (
    Symbol("trainer.py:Trainer._save_checkpoint", ("self", "model", "trial")),
    Symbol("trainer.py:Trainer._load_optimizer_and_scheduler", ("self", "checkpoint")),
    Symbol("trainer.py:Trainer._get_output_dir", ("self", "trial")),
)
TRIED = ("0.27.0", "1.16.0")
"""Oldest and newest TRL the hooks are tried with."""

LOSSES = {
    "grpo": "divides each answer by its own length: short answers weigh more a token",
    "sapo": "divides each answer by its own length, and its ratio has a temperature for each sign",
    "bnpo": "divides by the tokens of the micro-batch: long answers weigh more",
    "dapo": "divides by the tokens of the batch: long answers weigh more",
    "cispo": "divides by the tokens of the batch, and clips positive weights only",
    "vespo": "divides by the tokens of the batch, and scales the signs by different powers",
    "luspo": "sums over tokens without a constant: long answers weigh more",
}
# Field, whether a value acts on the weight, severity, meaning.
RULES: tuple[Rule, ...] = (
    (
        "multi_objective_aggregation",
        lambda value: value == "normalize_then_sum",
        "refused",
        "it normalises each reward by itself, and a weight replaces it: set sum_then_normalize",
    ),
    (
        "scale_rewards",
        lambda value: str(value).lower() not in ("none", "false"),
        "replaced",
        "the weight is instead of TRL's own scaling, which is turned off",
    ),
    (
        "use_liger_kernel",
        is_set,
        "changes the weight",
        "entropy is estimated from sampled tokens with vLLM; else fade and the like are refused",
    ),
    (
        "mask_truncated_completions",
        is_set,
        "changes the weight",
        "cut answers count in the baseline and have no gradient; logged masses leave them out",
    ),
    (
        "off_policy_mask_threshold",
        is_set,
        "changes the weight",
        "it drops answers of negative weight alone, so m_F is less than logged",
    ),
    (
        "top_entropy_quantile",
        lambda value: value is not None and value < 1,
        "changes the weight",
        "only the most uncertain tokens carry the weight",
    ),
    (
        "use_adaptive_entropy",
        is_set,
        "changes the weight",
        "a second controller holds the entropy that delta follows",
    ),
    (
        "entropy_coef",
        is_set,
        "changes the weight",
        "the entropy bonus is gradient that no weight governs",
    ),
    ("beta", is_set, "changes the weight", "the KL term is gradient that no weight governs"),
    (
        "top_p",
        lambda value: value is not None and value < 1,
        "changes the weight",
        "entropy is of the whole softmax, not of the truncated one that is sampled from",
    ),
    (
        "top_k",
        is_set,
        "changes the weight",
        "entropy is of the whole softmax, not of the truncated one that is sampled from",
    ),
    (
        "min_p",
        is_set,
        "changes the weight",
        "entropy is of the whole softmax, not of the truncated one that is sampled from",
    ),
    (
        "repetition_penalty",
        lambda value: value not in (None, 1, 1.0),
        "changes the weight",
        "entropy is of the softmax without the penalty that is sampled with",
    ),
)


def flags(config: Mapping[str, Any]) -> list[Flag]:
    """Settings that act on a weight after it is computed.

    Args:
        config: Fields of a GRPOConfig by name; those that are missing are not judged.

    >>> [flag.severity for flag in flags({"loss_type": "dapo", "top_p": 0.9, "beta": 0.0})]
    ['changes the weight', 'changes the weight']
    >>> flags({"loss_type": "dr_grpo", "scale_rewards": "none"})
    []
    """
    found = acting(RULES, config)
    loss = config.get("loss_type")
    if loss in LOSSES:
        meaning = f"{LOSSES[loss]}; dr_grpo keeps the gradient masses what the weight says"
        found.append(Flag("loss_type", loss, "changes the weight", meaning))
    return found
