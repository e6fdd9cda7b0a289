"""What the loss of TRL says over an accumulation window: entropy, and clipping by sign."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gradmass.types import UsageError

EXACT = "exact softmax entropy"
SAMPLED = "minus the log-probability of the sampled tokens"
TRUNCATIONS = ("top_p", "top_k", "min_p")


class Window:
    """Sums over the micro-batches of one update; on the device until it is closed.

    Args:
        needs_entropy: Whether a weight follows the entropy, so that a loss without is refused.
    """

    def __init__(self, needs_entropy: bool) -> None:
        self.needs_entropy, self.kind = needs_entropy, EXACT
        self._sums: list[Tensor] = []
        self._clips: list[tuple[float, float]] = []

    def add(
        self,
        inputs: Mapping[str, Any],
        entropies: Tensor | None,
        clip_shares: tuple[float, float],
        trainer: Any,
    ) -> None:
        """Add a micro-batch of this process.

        Args:
            inputs: What TRL's loss was given.
            entropies: Of each token, if the loss measured them.
            clip_shares: TRL's own shares of tokens clipped above and below, NaN where it has none.
            trainer: For the settings of its sampling.
        """
        mask = inputs["completion_mask"]
        if inputs.get("tool_mask") is not None:
            mask = mask * inputs["tool_mask"]
        total = self._entropy_sum(inputs, entropies, mask, trainer)
        num_tokens_B, advantages_B = mask.sum(1), inputs["advantages"]
        # TRL's shares are of tokens, or of rows where its ratio is that of a whole answer.
        is_by_token = trainer.importance_sampling_level == "token"
        rows_B = num_tokens_B if is_by_token else torch.ones_like(num_tokens_B)
        counts_4B = [num_tokens_B, rows_B * (advantages_B > 0), rows_B * (advantages_B < 0), rows_B]
        self._sums.append(torch.cat([total.view(1), torch.stack(counts_4B).sum(1).float()]))
        self._clips.append(clip_shares)

    def _entropy_sum(
        self, inputs: Mapping[str, Any], entropies: Tensor | None, mask: Tensor, trainer: Any
    ) -> Tensor:
        """Sum over the answer tokens, exact or estimated; NaN where not known."""
        if entropies is not None:
            self.kind = EXACT
            return (entropies.detach().float() * mask).sum()
        # A fused loss (Liger, Unsloth) keeps its entropies to itself.
        logps = inputs.get("sampling_per_token_logps", inputs.get("old_per_token_logps"))
        reason = "this trainer's loss measures no entropy, and keeps no log-probabilities"
        if logps is not None:
            cut = [name for name in TRUNCATIONS if _truncates(trainer, name)]
            if not cut:
                self.kind = SAMPLED
                return -(torch.nan_to_num(logps.detach().float()) * mask).sum()
            reason = (
                "this trainer's loss measures no entropy, and that of the sampled tokens is not "
                f"the policy's with {cut[0]} = {getattr(trainer, cut[0])}"
            )
        if self.needs_entropy:
            raise UsageError(
                f"{reason}: take TRL's own loss (use_liger_kernel=False), or a weight that does "
                "not follow it, such as fade with delta_schedule='constant'"
            )
        return torch.full((), torch.nan, device=mask.device)

    def close(self, reduce: Callable[[Tensor], Tensor]) -> tuple[float | None, dict[str, float]]:
        """Sum over the window and over processes, and start the next one.

        Args:
            reduce: Sums a tensor over all processes.

        Returns:
            Mean entropy in nats over all answer tokens, None where it is not known; and the clipped
            share of the tokens of each sign.
        """
        sums_M5: list[list[float]] = reduce(torch.stack(self._sums)).tolist()
        clips_M2 = self._clips
        self._sums, self._clips = [], []
        entropy_sum, num_tokens, *signs, _ = map(sum, zip(*sums_M5, strict=True))
        nats = None
        if num_tokens > 0 and math.isfinite(entropy_sum):
            # Rounding may leave a certain policy a hair below 0.
            nats = max(0.0, entropy_sum / num_tokens)
        # TRL's shares are of the tokens of both signs; of one sign's they are more.
        shares = {}
        for name, total, clips_M in zip(
            ("positive", "negative"), signs, zip(*clips_M2, strict=True), strict=True
        ):
            clipped = sum(clip * sums[4] for clip, sums in zip(clips_M, sums_M5, strict=True))
            if total > 0 and math.isfinite(clipped):
                shares[f"clip/{name}"] = clipped / total
        return nats, shares


def last_clip_shares(metrics: Mapping[str, list[float]]) -> tuple[float, float]:
    """Shares of tokens clipped above and below, as TRL's loss has just logged them."""
    high, low = (metrics.get(f"clip_ratio/{name}_mean", []) for name in ("high", "low"))
    return float(high[-1]) if high else math.nan, float(low[-1]) if low else math.nan


def _truncates(trainer: Any, name: str) -> bool:
    """Whether tokens are drawn from a part of the softmax only."""
    value = getattr(trainer, name, None)
    return bool(value) and not (name == "top_p" and float(value or 0) >= 1)
