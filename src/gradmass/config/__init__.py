"""What a recipe holds: a frozen dataclass for each section, every field with its meaning."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from gradmass.config.checks import at_least, check_threads, one_of
from gradmass.config.models import LoraConfig, ModelConfig, PromptConfig
from gradmass.config.sft import (
    DataConfig,
    SftRecipe,
    SftTrainConfig,
    StartConfig,
    TinyModelConfig,
)
from gradmass.masses import Equalise, equalise_factor, parse_prior
from gradmass.tables import from_spec
from gradmass.tasks import Task
from gradmass.tasks.countdown import Countdown
from gradmass.types import UsageError
from gradmass.weights import Weight
from gradmass.weights.fade import Fade

__all__ = [
    "DataConfig",
    "EntropyConfig",
    "EvalConfig",
    "LoraConfig",
    "LossConfig",
    "ModelConfig",
    "OptimConfig",
    "ProbeConfig",
    "PromptConfig",
    "Recipe",
    "SftRecipe",
    "SftTrainConfig",
    "StartConfig",
    "TinyModelConfig",
    "TrainConfig",
]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How rollouts are drawn and how many updates are made."""

    steps: int = 500
    """Number of updates of the policy."""
    num_problems: int = 2000
    """Problems drawn once from the training split, in fixed order, cycled."""
    prompts_per_step: int = 32
    """Problems in a batch."""
    group_size: int = 8
    """Rollouts of each problem, sampled at temperature 1."""
    max_new_tokens: int = 20
    """Longest answer in tokens, end token included; a longer one is cut and counts as unparsed."""
    updates_per_batch: int = 1
    """Updates made on each batch of rollouts."""
    policy_lag: int = 0
    """Rollouts come from the policy of exactly this many updates ago (0: the one being trained).
    What is known ahead by that is sampled and judged while the policy is updated; which rollouts a
    batch holds does not depend on timing."""
    max_lag: int = 0
    """Above 0, sampling and judging go on in the background, and a batch comes from the newest
    policy there is when its sampling begins: at most this many updates behind at its first update.
    How many depends on timing, so equal recipes give unequal rows; policy_lag is the other way."""
    max_error_rate: float = 0.5
    """Stop when more than this share of a batch's verdicts are infrastructure errors."""
    checkpoint_every: int = 100
    """Updates between checkpoints; the last update is always followed by one."""
    tokens_at_once: int = 16_384
    """Prompt and answer tokens in one forward and backward pass. A larger batch takes several,
    sorted by length, whose gradients are added up: it changes memory and last bits alone."""
    threads: int = 0
    """CPU threads of torch; 0 measures once which number is fastest. Last bits depend on it, so it
    is stored with the run."""

    def __post_init__(self) -> None:
        """Refuse numbers that make no run."""
        at_least("train", self, 0, "policy_lag", "max_lag")
        at_least("train", self, 1, "tokens_at_once")
        check_threads(self.threads)
        at_least("train", self, 1, "steps", "num_problems", "prompts_per_step", "group_size")
        at_least("train", self, 1, "max_new_tokens", "updates_per_batch", "checkpoint_every")
        if self.prompts_per_step > self.num_problems:
            raise UsageError(
                f"train.num_problems = {self.num_problems} is fewer than a batch needs "
                f"(train.prompts_per_step = {self.prompts_per_step})"
            )
        if self.policy_lag and self.max_lag:
            raise UsageError(
                f"train.policy_lag = {self.policy_lag} (always so many updates) and train.max_lag "
                f"= {self.max_lag} (at most so many) exclude each other: set one to 0"
            )
        if not 0 <= self.max_error_rate <= 1:
            raise UsageError(
                f"train.max_error_rate must be within [0, 1], got {self.max_error_rate}"
            )


AGGREGATIONS = ("constant", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum")


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The clipped policy-gradient loss (docs/training.md)."""

    clip_low: float = 0.2
    """Lower clip: ratios below 1 - clip_low get no gradient where the weight is negative."""
    clip_high: float = 0.2
    """Upper clip: ratios above 1 + clip_high get no gradient where the weight is positive."""
    aggregation: Literal["constant", "token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = (
        "constant"
    )
    """What the loss of a token is divided by: rollouts times max_new_tokens, tokens of the batch,
    rollouts times tokens of its own rollout, or rollouts. The first and the last keep the gradient
    masses what the weight says."""
    truncated: Literal["count", "mask", "exclude"] = "count"
    """Rollouts cut at max_new_tokens: failures like others; or left out of the loss, above and
    below the line, but not out of their group's baseline; or left out of both."""
    importance_cap: float = 0.0
    """Above 0: truncated importance sampling. The ratio to the policy that drew a token becomes a
    factor, cut at this and without gradient; clips are then about the policy at the batch's first
    update. 0: one ratio, to the policy that drew, which the clips bound."""
    kl_coef: float = 0.0
    """Coefficient of the KL term to the starting policy."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimate of the KL divergence: the log-ratio, whose gradient is 0 on average; half its
    square, whose gradient is that of KL(policy, start); or k3, that of KL(start, policy). On
    policy; each a term of the loss."""

    def __post_init__(self) -> None:
        """Refuse clips outside [0, 1] below and negative coefficients."""
        one_of("loss.aggregation", self.aggregation, AGGREGATIONS)
        one_of("loss.truncated", self.truncated, ("count", "mask", "exclude"))
        one_of("loss.kl_estimator", self.kl_estimator, ("k1", "k2", "k3"))
        if not 0 <= self.clip_low <= 1:
            raise UsageError(f"loss.clip_low must be within [0, 1], got {self.clip_low}")
        for name in ("clip_high", "importance_cap", "kl_coef"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UsageError(
                    f"loss.{name} must be finite and at least 0, got {getattr(self, name)}"
                )


@dataclass(frozen=True, kw_only=True)
class EntropyConfig:
    """An entropy bonus in the loss, fixed or adaptive: a rival of FADE."""

    coef: float = 0.0
    """Coefficient of the mean token entropy, in nats, that is taken off the loss; where adaptive,
    the one to start from."""
    is_adaptive: bool = False
    """Move the coefficient after every update: up while the entropy is at most the target, else
    down; and use it only after an update at which the entropy was at most the target."""
    target: float = 0.2
    """Mean token entropy in nats that an adaptive coefficient defends."""
    step: float = 0.005
    """How far an adaptive coefficient moves in an update."""
    min: float = 0.0
    """Smallest adaptive coefficient."""
    max: float = 1.0
    """Largest adaptive coefficient."""

    def __post_init__(self) -> None:
        """Refuse what is no bonus, and bounds in the wrong order."""
        for name in ("coef", "target", "step", "min", "max"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UsageError(
                    f"entropy.{name} must be finite and at least 0, got {getattr(self, name)}"
                )
        if self.is_adaptive and not self.min <= self.coef <= self.max:
            raise UsageError(
                f"entropy.coef = {self.coef} must lie within entropy.min = {self.min} and "
                f"entropy.max = {self.max}"
            )


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimiser; its learning rate is constant."""

    type: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or plain gradient descent without momentum."""
    lr: float = 2e-4
    """Learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW) or L2 (SGD)."""
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this Euclidean norm."""

    def __post_init__(self) -> None:
        """Refuse numbers no optimiser takes."""
        one_of("optim.type", self.type, ("adamw", "sgd"))
        for name in ("lr", "max_grad_norm"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(
                    f"optim.{name} must be finite and above 0, got {getattr(self, name)}"
                )
        if not 0 <= self.weight_decay < float("inf"):
            raise UsageError(
                f"optim.weight_decay must be finite and at least 0, got {self.weight_decay}"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"optim.betas must be within [0, 1), got {list(self.betas)}")


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """What is measured before the first update, every few updates, and after the last."""

    every: int = 100
    """Updates between evaluations; 0 evaluates at the start and the end only."""
    num_problems: int = 100
    """Problems of each split that is not trained on."""
    num_samples: int = 100
    """Answers sampled for each problem, to stand beside the exact value; 0 samples none."""

    def __post_init__(self) -> None:
        """Refuse numbers that measure nothing."""
        at_least("eval", self, 0, "every", "num_samples")
        at_least("eval", self, 1, "num_problems")


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """What is looked at in training beyond what every update shows; no number changes by it."""

    every: int = 100
    """Updates between looks that take passes of their own (gradients by verdict, signal to noise,
    hidden states, the entropy after the update); the first update is looked at too. 0: none."""
    rank_every: int = 100
    """Updates between the singular values of the change of every matrix; 0: none. The output head
    is measured at every evaluation anyway."""
    weights: tuple[str, ...] = ("grpo", "power")
    """Other weights to judge on the same rollouts, as NAME or NAME:field=value,field=value."""

    def __post_init__(self) -> None:
        """Refuse periods below 0 and weights that are none."""
        at_least("probe", self, 0, "every", "rank_every")
        _ = self.others

    @cached_property
    def others(self) -> tuple[Weight, ...]:
        """The weights named by ``weights``."""
        return tuple(from_spec(Weight, spec) for spec in self.weights)  # type: ignore[type-abstract]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a training run."""

    seed: int = 0
    """Seed of every random draw of the run."""
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    task: Task = field(default_factory=Countdown)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    weight: Weight = field(default_factory=Fade)
    equalise: Equalise = "none"
    """Multiply the weight so that its total mass is that of grpo: at p = 1/2 (mass_at_half), or on
    average over the prior (mean_mass). One number for the run, from the weight's initial state."""
    prior: str = "uniform"
    """Solve rates that equalise reckons with: uniform, beta:a,b, or a file of them."""
    train: TrainConfig = field(default_factory=TrainConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)

    def __post_init__(self) -> None:
        """Refuse sections that do not fit together."""
        if self.weight.needs_group and self.train.group_size < 2:
            raise UsageError(
                f"train.group_size = {self.train.group_size}: weight {self.weight.label} compares "
                "the rollouts of a group and needs at least 2 (reinforce does not)"
            )
        if self.train.group_size < self.weight.min_group_size:
            raise UsageError(
                f"train.group_size = {self.train.group_size}: weight {self.weight.label} needs "
                f"groups of at least {self.weight.min_group_size}"
            )
        for other in self.probe.others:
            if self.train.group_size < other.min_group_size:
                raise UsageError(
                    f"probe.weights: {other.label} needs groups of at least "
                    f"{other.min_group_size}, train.group_size is {self.train.group_size}"
                )
        if self.seed < 0:
            raise UsageError(f"seed must be at least 0, got {self.seed}")
        _ = self.weight_factor  # computed now: a mass that cannot be equalised is refused

    @cached_property
    def weight_factor(self) -> float:
        """What ``equalise`` multiplies the weight by."""
        prior = parse_prior(self.prior)
        return equalise_factor(self.weight, self.equalise, self.train.group_size, prior=prior)
