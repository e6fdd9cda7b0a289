"""The sections of a recipe that say which model is asked, how, and what of it is trained."""

from dataclasses import dataclass
from typing import Literal

from gradmass.config.checks import at_least, one_of
from gradmass.types import UsageError


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which policy to start from."""

    path: str = "countdown-tiny"
    """A folder in Hugging Face format, or the name of a checkpoint that ships with the package."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Numbers the model computes with. Under bfloat16 what is trained has float32 copies, which the
    optimiser changes: an update of RL is smaller than the spacing of bfloat16."""
    gradient_checkpointing: bool = False
    """Compute each block anew for the gradient instead of keeping what happened in it: less memory,
    a third more time."""

    def __post_init__(self) -> None:
        """Refuse other numbers."""
        one_of("model.dtype", self.dtype, ("float32", "bfloat16"))


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Train a low-rank adapter instead of the model (needs peft)."""

    rank: int = 0
    """Rank of the adapter of each matrix; 0 trains all parameters."""
    alpha: int = 32
    """The adapter counts alpha / rank times."""
    targets: tuple[str, ...] = ()
    """Last parts of the names of the matrices, such as q_proj; all but the output head if none."""

    def __post_init__(self) -> None:
        """Refuse numbers that make no adapter."""
        at_least("lora", self, 0, "rank")
        at_least("lora", self, 1, "alpha")


@dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """What the model reads of a problem, and what form its answer must have."""

    template: Literal["plain", "chat"] = "plain"
    """The problem's text, to be continued, or as a user's message in the tokenizer's chat template.
    Either way what the tokenizer puts before every text (a start token) stands there."""
    system: str = ""
    """A system message before it, in the chat template."""
    instruction: str = ""
    """Text put behind every problem, on a line of its own."""
    format: Literal["none", "answer", "think_answer"] = "none"
    """What a completion has to be: anything; text that ends in one <answer>...</answer>; or
    <think>...</think> and <answer>...</answer> alone. It is right where format and answer both are;
    the verifier sees what stands between the answer's tags."""

    def __post_init__(self) -> None:
        """Refuse a system message that no template could hold."""
        one_of("prompt.template", self.template, ("plain", "chat"))
        one_of("prompt.format", self.format, ("none", "answer", "think_answer"))
        if self.system and self.template == "plain":
            raise UsageError(
                'prompt.system is a message of a chat: set prompt.template = "chat", or put the '
                "text in prompt.instruction"
            )
