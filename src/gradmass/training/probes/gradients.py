"""Gradients taken apart: by verdict, by rollout, by problem."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradmass.config import LossConfig
from gradmass.training.aggregation import rollouts_in_loss
from gradmass.training.batch import Batch
from gradmass.training.loss import batch_loss
from gradmass.training.rollout import Rollouts, answer_logprobs

MAX_PROBLEMS = 32
"""Problems of a batch whose gradients are taken one by one: its first ones."""
MAX_ROLLOUTS = 8
"""Rollouts of each verdict whose gradients are taken one by one: the first in the batch."""
SKETCH_SIZE = 1 << 20
"""Longest gradient that is kept whole. A longer one is folded into this many numbers, which moves
inner products by a thousandth of the product of the lengths."""


def verdict_gradients(
    config: LossConfig,
    policy: PreTrainedModel,
    start_policy: PreTrainedModel | None,
    batch: Batch,
    denominator_B: Tensor,
) -> dict[str, float | None]:
    """Norms of the parts of an update's gradient: right rollouts, wrong ones, and the KL term.

    The parts are those of the loss itself, with ratios, clipping and aggregation; they sum to the
    gradient before it is scaled to its largest norm, but for an entropy bonus. Cost: a forward and
    a backward pass over the rollouts that have a weight, and over all where a KL term is on.

    Returns:
        ``gradient/right_norm``, ``gradient/wrong_norm``, their cosine (-1: they cancel; None where
        one is 0), and ``gradient/kl_norm`` where a KL term is on.
    """
    is_right_B = torch.as_tensor(batch.successes_PG.reshape(-1), device=batch.weights_B.device)
    parameters = [p for p in policy.parameters() if p.requires_grad]

    def part(is_part_B: Tensor) -> list[Tensor]:
        rows = (is_part_B & (batch.weights_B != 0)).nonzero()[:, 0]
        if not len(rows):
            return [torch.zeros_like(p) for p in parameters]
        loss = batch_loss(
            config, policy, None, batch.rollouts, batch.weights_B, rows, denominator_B
        )
        return _gradient(loss.value, parameters)

    right, wrong = part(is_right_B), part(~is_right_B)
    right_norm, wrong_norm = _dot(right, right) ** 0.5, _dot(wrong, wrong) ** 0.5
    product = right_norm * wrong_norm
    row: dict[str, float | None] = {
        "gradient/right_norm": right_norm,
        "gradient/wrong_norm": wrong_norm,
        "gradient/cosine": _dot(right, wrong) / product if product else None,
    }
    if start_policy is not None:
        rows = rollouts_in_loss(config, batch.rollouts).nonzero()[:, 0]
        if not len(rows):
            return row | {"gradient/kl_norm": 0.0}
        zero_B = torch.zeros_like(batch.weights_B)
        loss = batch_loss(config, policy, start_policy, batch.rollouts, zero_B, rows, denominator_B)
        term = _gradient(loss.value, parameters)
        row["gradient/kl_norm"] = _dot(term, term) ** 0.5
    return row


def score_squares(
    policy: PreTrainedModel,
    rollouts: Rollouts,
    successes_PG: np.ndarray,
    mask_PG: np.ndarray,
    most: int = MAX_ROLLOUTS,
) -> tuple[float | None, float | None]:
    """``E |g|^2`` of single rollouts by verdict, ``g = grad log pi(answer)`` without any weight.

    Means over the first scored rollouts of each verdict. Cost: a forward and a backward pass of one
    rollout, for each.

    Args:
        policy: Whose scores.
        rollouts: The batch.
        successes_PG: Which rollouts are right.
        mask_PG: Which are scored.
        most: Rollouts of each verdict.

    Returns:
        That of right rollouts and that of wrong ones; None where there is no rollout.
    """
    parameters = [p for p in policy.parameters() if p.requires_grad]
    is_right_B, is_scored_B = successes_PG.reshape(-1), mask_PG.reshape(-1)

    def square(i: int) -> float:
        index = torch.tensor([i], device=policy.device)
        score = _gradient(answer_logprobs(policy, rollouts, index).sum(), parameters)
        return _dot(score, score)

    def mean_square(is_side_B: np.ndarray) -> float | None:
        squares = [square(i) for i in np.flatnonzero(is_side_B & is_scored_B)[:most].tolist()]
        return float(np.mean(squares)) if squares else None

    return mean_square(is_right_B), mean_square(~is_right_B)


@dataclass(frozen=True)
class GroupGradients:
    """Gradients of the groups of a batch under several weights, by their inner products.

    Args:
        dots_KK: Inner products of the columns.
        problem_K: The problem (row of the batch) of each column.
        weights_KG: The weight that each rollout of its problem has in a column.
        is_side_K: Whether a column is that of all right or of all wrong rollouts of its problem.
    """

    dots_KK: np.ndarray
    problem_K: np.ndarray
    weights_KG: np.ndarray
    is_side_K: np.ndarray

    def dots(self, weights_PG: np.ndarray) -> np.ndarray | None:
        """Inner products of the groups' gradients under weights.

        Args:
            weights_PG: Weights of the problems that were looked at.

        Returns:
            Shape ``[P, P]``; None if the weights of some group are no combination of its columns.
        """
        coefficient_PK = np.zeros((len(weights_PG), len(self.problem_K)))
        for problem, weights_G in enumerate(weights_PG):
            columns = np.flatnonzero(self.problem_K == problem)
            found = self._combination(weights_G, columns)
            if found is None:
                return None
            coefficient_PK[problem, columns] = found
        dots_PP: np.ndarray = coefficient_PK @ self.dots_KK @ coefficient_PK.T
        return dots_PP

    def _combination(self, weights_G: np.ndarray, columns: np.ndarray) -> np.ndarray | None:
        """Coefficients of at least 0, since clipping depends on the sign of a weight."""
        weights_KG = self.weights_KG[columns]
        squares_K = np.maximum(np.square(weights_KG).sum(1), np.finfo(float).tiny)
        along_K = np.maximum(0.0, weights_KG @ weights_G / squares_K)
        sides_K = np.where(self.is_side_K[columns], along_K, 0.0)
        one_column = np.diag(along_K)
        tolerance = 1e-9 * np.abs(weights_G).max()
        for coefficients_K in (sides_K, *one_column):
            if np.abs(coefficients_K @ weights_KG - weights_G).max() <= tolerance:
                return coefficients_K
        return None


def group_gradients(
    config: LossConfig,
    policy: PreTrainedModel,
    batch: Batch,
    others_PG: Sequence[np.ndarray],
) -> GroupGradients:
    """Gradients of each problem's rollouts, ready to be combined under any of the given weights.

    A column is ``sum_i c_i sum_t f_it rho_it [not clipped] grad log pi_it`` over the rollouts of a
    problem, divided by G, with the loss's ratio rho and its factor f of truncated importance
    sampling, 1 without. Each problem has a column of its right rollouts (c = 1) and one of its
    wrong ones (c = -1); weights that differ among rollouts of one verdict, or push them the other
    way, get columns of their own. Problems on which every given weight is 0 have none.

    Cost: a forward pass over the rollouts of ``MAX_PROBLEMS`` problems, a backward pass for each
    column, and columns times parameters (at most ``SKETCH_SIZE``) in float32.
    """
    parameters = [p for p in policy.parameters() if p.requires_grad]
    group_size = batch.weights_PG.shape[1]
    columns: list[Tensor] = []
    problems: list[int] = []
    weighed: list[np.ndarray] = []
    are_sides: list[bool] = []
    for problem in range(min(MAX_PROBLEMS, len(batch.weights_PG))):
        sides, own = _columns(
            batch.successes_PG[problem],
            batch.mask_PG[problem],
            [weights_PG[problem] for weights_PG in (batch.weights_PG, *others_PG)],
        )
        if not sides:
            continue
        num_left = len(sides) + len(own)
        rows = torch.arange(group_size, device=policy.device) + problem * group_size
        ratio_GT, factor_GT = _ratios(config, policy, batch.rollouts, rows)
        mask_GT = batch.rollouts.answer_mask_BT[rows]
        for weights_G in (*sides, *own):
            num_left -= 1
            c_G1 = torch.as_tensor(weights_G, dtype=ratio_GT.dtype, device=policy.device)[:, None]
            is_kept_GT = torch.where(
                c_G1 > 0, ratio_GT <= 1 + config.clip_high, ratio_GT >= 1 - config.clip_low
            )
            total = (c_G1 * ratio_GT * factor_GT * (is_kept_GT & mask_GT)).sum() / group_size
            columns.append(_flat(_gradient(total, parameters, keep_graph=num_left > 0)))
        problems += [problem] * (len(sides) + len(own))
        are_sides += [True] * len(sides) + [False] * len(own)
        weighed += [*sides, *own]
    if not columns:
        empty = np.zeros(0, dtype=np.int64)
        return GroupGradients(np.zeros((0, 0)), empty, np.zeros((0, group_size)), empty == 0)
    matrix_KN = torch.stack(columns)
    dots_KK = (matrix_KN @ matrix_KN.T).double().cpu().numpy()
    return GroupGradients(dots_KK, np.array(problems), np.stack(weighed), np.array(are_sides))


def _columns(
    is_right_G: np.ndarray, is_scored_G: np.ndarray, weights: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What the columns of a problem weigh its rollouts with: both verdicts, and weights' own."""
    if not any(weights_G.any() for weights_G in weights):
        return [], []
    sides = [
        sign * (is_side_G & is_scored_G)
        for sign, is_side_G in ((1.0, is_right_G), (-1.0, ~is_right_G))
        if (is_side_G & is_scored_G).any()
    ]
    own = []
    for weights_G in weights:
        is_by_verdict = all(
            np.ptp(weights_G[side_G != 0]) <= 1e-12 * np.abs(weights_G).max()
            and (weights_G * side_G).min() >= 0
            for side_G in sides
        )
        if not is_by_verdict:
            own.append(weights_G)
    return sides, own


def _ratios(
    config: LossConfig, policy: PreTrainedModel, rollouts: Rollouts, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """The ratios that are clipped, and the factors beside them; 1 at padding."""
    mask_GT, behaviour_GT = rollouts.answer_mask_BT[rows], rollouts.logprobs_BT[rows]
    proximal_GT = behaviour_GT if rollouts.proximal_BT is None else rollouts.proximal_BT[rows]
    gap_GT = answer_logprobs(policy, rollouts, rows) - proximal_GT
    factor_GT = (proximal_GT - behaviour_GT).exp().clamp(max=config.importance_cap or math.inf)
    return torch.where(mask_GT, gap_GT, 0.0).exp(), factor_GT


def _gradient(
    value: Tensor, parameters: Sequence[Tensor], keep_graph: bool = False
) -> list[Tensor]:
    """The gradient without touching ``.grad``, which belongs to the update."""
    found = torch.autograd.grad(value, parameters, retain_graph=keep_graph, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(sum((x.double() * y.double()).sum() for x, y in zip(a, b, strict=True)))


def _flat(gradient: Sequence[Tensor], size: int = SKETCH_SIZE) -> Tensor:
    """A gradient as one vector; a long one by a count sketch, the same for every gradient.

    Every entry is added to one of ``size`` places with a random sign, both fixed by the parameter's
    place: inner products are right on average, with a standard deviation of at most
    ``sqrt(2 / size)`` of the product of the lengths.
    """
    if sum(g.numel() for g in gradient) <= size:
        return torch.cat([g.reshape(-1).float() for g in gradient])
    sketch = torch.zeros(size, device=gradient[0].device)
    for i, g in enumerate(gradient):
        random = torch.Generator().manual_seed(i)
        place = torch.randint(2 * size, (g.numel(),), generator=random).to(g.device)
        signed = torch.where(place >= size, -1.0, 1.0) * g.reshape(-1).float()
        sketch.index_add_(0, place % size, signed)
    return sketch
