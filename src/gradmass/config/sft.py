"""What a recipe of a supervised start holds."""

from dataclasses import dataclass, field, fields

from gradmass.config.checks import at_least, check_threads
from gradmass.config.models import LoraConfig, ModelConfig, PromptConfig
from gradmass.tasks import Task
from gradmass.tasks.countdown import Countdown
from gradmass.types import UsageError


@dataclass(frozen=True, kw_only=True)
class TinyModelConfig:
    """The shape of a Qwen2 made from nothing."""

    hidden_size: int = 64
    """Width of the residual stream; a multiple of num_heads."""
    num_layers: int = 2
    """Transformer blocks."""
    num_heads: int = 4
    """Attention heads, with as many key-value heads."""
    intermediate_size: int = 256
    """Width of the gated feed-forward layer."""
    max_positions: int = 64
    """Longest prompt plus answer in tokens."""

    def __post_init__(self) -> None:
        """Refuse shapes that make no model."""
        at_least("model", self, 1, *(f.name for f in fields(self)))
        if self.hidden_size % (2 * self.num_heads):
            raise UsageError(
                "model.hidden_size must be a multiple of 2 * model.num_heads (rotary embeddings "
                f"pair a head's channels), got {self.hidden_size} for {self.num_heads} heads"
            )


@dataclass(frozen=True, kw_only=True)
class SftTrainConfig:
    """How the supervised start is trained."""

    steps: int = 500
    """Number of updates."""
    batch_size: int = 256
    """Solved problems in a batch; those that a task generates are never seen twice."""
    lr: float = 3e-3
    """Largest learning rate of AdamW."""
    warmup_steps: int = 50
    """Updates over which the learning rate rises; then it falls on a cosine to a tenth."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    num_eval_problems: int = 200
    """Problems of each held-out split on which the result is evaluated exactly; 0: none."""
    tokens_at_once: int = 16_384
    """Tokens in one forward and backward pass; a larger batch takes several."""
    threads: int = 0
    """CPU threads of torch; 0 leaves the number to torch."""

    def __post_init__(self) -> None:
        """Refuse numbers that make no run."""
        at_least("train", self, 1, "steps", "batch_size", "tokens_at_once")
        at_least("train", self, 0, "num_eval_problems")
        at_least("train", self, 0, "warmup_steps")
        check_threads(self.threads)
        if not 0 < self.lr < float("inf"):
            raise UsageError(f"train.lr must be finite and above 0, got {self.lr}")
        if not 0 <= self.weight_decay < float("inf"):
            raise UsageError(
                f"train.weight_decay must be finite and at least 0, got {self.weight_decay}"
            )


@dataclass(frozen=True, kw_only=True)
class StartConfig(ModelConfig):
    """The model to go on from, instead of a tiny one made from nothing."""

    path: str = ""
    """A folder in Hugging Face format, or a shipped checkpoint; empty: make the tiny Qwen2 of
    [model]."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Solved problems of your own, instead of the task's."""

    path: str = ""
    """JSON Lines, Parquet or a folder of them; a row has prompt and completion, both texts or both
    lists of messages, or messages, of which every turn of the assistant is learnt. Rows are cycled,
    shuffled by the seed. Empty: solved problems of the task."""


@dataclass(frozen=True, kw_only=True)
class SftRecipe:
    """Everything that decides a supervised start."""

    seed: int = 0
    """Seed of the initial parameters, below 2^63; the solved problems follow task.seed."""
    task: Task = field(default_factory=Countdown)
    model: TinyModelConfig = field(default_factory=TinyModelConfig)
    start: StartConfig = field(default_factory=StartConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    data: DataConfig = field(default_factory=DataConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    train: SftTrainConfig = field(default_factory=SftTrainConfig)

    def __post_init__(self) -> None:
        """Refuse seeds that torch does not take."""
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must be at least 0 and below 2^63, got {self.seed}")
        if not self.start.path:
            for name, value in (("data.path", self.data.path), ("lora.rank", self.lora.rank)):
                if value:
                    raise UsageError(
                        f"{name} = {value!r} needs a model to go on from: set start.path"
                    )
            if self.prompt != PromptConfig():
                raise UsageError("[prompt] needs a model to go on from: set start.path")
