"""Weights on categorical policies with shared features: a model of training, not training."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmass.advice.intervals import mean_interval
from gradmass.masses import Prior
from gradmass.types import UsageError
from gradmass.weights import Weight

KS = (1, 10, 100)
ADAM = (0.9, 0.999, 1e-8)
ASSUMPTIONS = (
    "{problems} problems, each one choice among {answers} answers, of which 1 to {most_right} are "
    "right: no tokens, no lengths, every answer can be drawn at once",
    "a logit is a start, plus a part of the problem's own, plus a part x' W e that all problems "
    "share (x and e random, W a matrix of {features} by {features}); both parts are trained",
    "starts are such that solve rates have the distribution given; answers differ by normal "
    "logits of deviation {spread:g}",
    "Adam, rate {rate:g}, {steps} batches of {batch} problems in a fixed order, clipped ratios at "
    "1 - {clip:g} and 1 + {clip:g}; a batch is drawn by the policy of {lag} batches before and "
    "updated on {updates} time(s)",
    "evaluated on the trained problems; pass@k and entropy are exact; the change of W is compared "
    "by the share of its largest squared singular value",
)


@dataclass(frozen=True)
class Setup:
    """What is simulated.

    Args:
        group_size: G.
        lag: Batches between drawing and updating.
        updates_per_batch: Updates on each batch.
        seeds: Pairs of runs.
        steps: Batches.
        problems: Problems, all of them seen again and again.
        batch: Problems a batch.
        answers: Answers of each problem.
        features: Side of the shared matrix.
        spread: Deviation of the starting logits.
        rate: Learning rate of Adam.
        clip: PPO's clipping range.
    """

    group_size: int
    lag: int = 0
    updates_per_batch: int = 1
    seeds: int = 8
    steps: int = 150
    problems: int = 64
    batch: int = 16
    answers: int = 32
    features: int = 12
    spread: float = 1.5
    rate: float = 0.02
    clip: float = 0.2

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        for name, least in (("group_size", 1), ("lag", 0), ("updates_per_batch", 1), ("seeds", 2)):
            if getattr(self, name) < least:
                shown = name.replace("_", " ")
                raise UsageError(f"{shown} is at least {least}, got {getattr(self, name)}")

    @property
    def most_right(self) -> int:
        """Most right answers a problem has."""
        return self.answers // 4

    def assumptions(self) -> list[str]:
        """In words."""
        values = {**vars(self), "most_right": self.most_right, "updates": self.updates_per_batch}
        return [text.format(**values) for text in ASSUMPTIONS]


def simulate(
    weights: Sequence[Weight],
    baseline: Weight,
    setup: Setup,
    prior: Prior,
    on_run: Callable[[int], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Train the model under each weight and under a baseline from the same draws.

    Args:
        weights: To compare.
        baseline: What they are compared with.
        setup: Sizes.
        prior: Solve rates of the problems at the start.
        on_run: Called with the number of runs done so far.

    Returns:
        For each weight ``label`` and for each of ``pass@1``, ``pass@10``, ``pass@100``,
        ``entropy_nats``, ``rank_top1_share``: its ``mean`` at the end, and the paired difference
        to the baseline as ``difference``, ``low``, ``high`` (95% t-interval over seeds) and
        ``sign`` (1, -1, or 0 where the interval holds 0); or ``not_computed``, why not.
    """
    base, done = [], 0
    for seed in range(setup.seeds):
        base.append(_run(baseline, setup, prior, seed))
        done += 1
        on_run(done)
    entries: list[dict[str, Any]] = []
    for weight in weights:
        ends = []
        try:
            for seed in range(setup.seeds):
                ends.append(_run(weight, setup, prior, seed))
                done += 1
                on_run(done)
        except UsageError as error:
            entries.append({"label": weight.label, "not_computed": str(error)})
            continue
        entries.append({"label": weight.label, **_compared(ends, base)})
    return entries


def _compared(
    ends: Sequence[dict[str, float]], base: Sequence[dict[str, float]]
) -> dict[str, dict[str, float]]:
    found = {}
    for key in base[0]:
        own_N = np.array([end[key] for end in ends])
        difference_N = own_N - np.array([end[key] for end in base])
        mean, low, high = mean_interval(difference_N)
        found[key] = {
            "mean": float(own_N.mean()),
            "difference": mean,
            "low": low,
            "high": high,
            "sign": int(low > 0) - int(high < 0),
        }
    return found


@dataclass
class _World:
    """Problems, and what is not trained of the policy."""

    start_NA: np.ndarray
    is_right_NA: np.ndarray
    x_ND: np.ndarray
    e_NAD: np.ndarray

    @classmethod
    def make(cls, setup: Setup, prior: Prior, rng: np.random.Generator) -> "_World":
        shape = setup.problems, setup.answers
        start_NA = setup.spread * rng.standard_normal(shape)
        right_N1 = rng.integers(1, setup.most_right + 1, setup.problems)[:, None]
        is_right_NA = np.arange(setup.answers) < right_N1
        rate_N = _rates(prior, setup.problems)
        # Shift the right answers' logits so that they have exactly the solve rate together.
        mass_NA = np.exp(start_NA)
        now_N = (mass_NA * is_right_NA).sum(1) / (mass_NA * ~is_right_NA).sum(1)
        start_NA += is_right_NA * np.log(rate_N / (1 - rate_N) / now_N)[:, None]
        scale = 1 / math.sqrt(setup.features)
        x_ND = scale * rng.standard_normal((setup.problems, setup.features))
        e_NAD = scale * rng.standard_normal((*shape, setup.features))
        return cls(start_NA, is_right_NA, x_ND, e_NAD)

    def logits(self, own_NA: np.ndarray, shared_DD: np.ndarray, at: Any) -> np.ndarray:
        """Logits of some problems."""
        shared = np.einsum("nd,nad->na", self.x_ND[at] @ shared_DD, self.e_NAD[at])
        logits_NA: np.ndarray = self.start_NA[at] + own_NA[at] + shared
        return logits_NA


def _rates(prior: Prior, num: int) -> np.ndarray:
    """Solve rates at even steps of the prior's distribution, off 0 and 1."""
    rate_M, share_M = prior.nodes()
    order = np.argsort(rate_M)
    up_to_M = np.cumsum(share_M[order])
    middle_N = (np.arange(num) + 0.5) / num
    place_N = np.minimum(np.searchsorted(up_to_M, middle_N), len(rate_M) - 1)
    return np.clip(rate_M[order][place_N], 1e-4, 1 - 1e-4)


def _run(weight: Weight, setup: Setup, prior: Prior, seed: int) -> dict[str, float]:
    """One training run; its numbers at the end."""
    world = _World.make(setup, prior, np.random.default_rng([seed, 0]))
    order = np.random.default_rng([seed, 1])
    draws = np.random.default_rng([seed, 2])
    own_NA = np.zeros_like(world.start_NA)
    shared_DD = np.zeros((setup.features, setup.features))
    moments = [np.zeros_like(theta) for theta in (own_NA, own_NA, shared_DD, shared_DD)]
    state, updates, batches = weight.init(), 0, []
    past: list[tuple[np.ndarray, np.ndarray]] = []
    greedy_N = np.full(setup.problems, 0.5)
    for step in range(setup.steps):
        if not batches:
            batches = np.array_split(order.permutation(setup.problems), setup.problems // setup.batch)
        at_P = batches.pop()
        past = [*past, (own_NA.copy(), shared_DD.copy())][-setup.lag - 1 :]
        old_PA = _log_softmax(world.logits(*past[0], at_P))
        # Gumbel's trick: one uniform number an answer, the same for every weight.
        noise_PGA = draws.gumbel(size=(len(at_P), setup.group_size, setup.answers))
        answer_PG = (old_PA[:, None] + noise_PGA).argmax(2)
        reward_PG = np.take_along_axis(world.is_right_NA[at_P], answer_PG, 1).astype(np.float64)
        best_P = old_PA.argmax(1)
        signals = {
            "successes_PG": reward_PG == 1,
            "num_success": int(reward_PG.sum()),
            "num_scored": reward_PG.size,
            "lengths_PG": np.ones_like(reward_PG),
            "greedy_rewards_P": world.is_right_NA[at_P, best_P].astype(np.float64),
            "solve_rate_P": greedy_N[at_P],
            "entropy_nats": float(-(np.exp(old_PA) * old_PA).sum(1).mean()),
            "entropy_kind": "simulated",
            "policy_lag": len(past) - 1,
            "step": step,
            "num_steps": setup.steps,
        }
        weight_PG, state = weight.update(reward_PG, state, **signals)
        greedy_N[at_P] = reward_PG.mean(1)
        for _ in range(setup.updates_per_batch):
            updates += 1
            slope_PA = _slope(
                world.logits(own_NA, shared_DD, at_P), old_PA, answer_PG, weight_PG, setup.clip
            )
            own_slope_NA = np.zeros_like(own_NA)
            own_slope_NA[at_P] = slope_PA
            shared_slope_DD = np.einsum(
                "pd,pe->de", world.x_ND[at_P], np.einsum("pa,pae->pe", slope_PA, world.e_NAD[at_P])
            )
            _adam(own_NA, own_slope_NA, moments[0], moments[1], updates, setup.rate)
            _adam(shared_DD, shared_slope_DD, moments[2], moments[3], updates, setup.rate)
    return _ends(world, own_NA, shared_DD)


def _slope(
    logits_PA: np.ndarray,
    old_PA: np.ndarray,
    answer_PG: np.ndarray,
    weight_PG: np.ndarray,
    clip: float,
) -> np.ndarray:
    """Gradient of the clipped objective by the logits."""
    log_PA = _log_softmax(logits_PA)
    own_PG = np.take_along_axis(log_PA, answer_PG, 1)
    ratio_PG = np.exp(own_PG - np.take_along_axis(old_PA, answer_PG, 1))
    is_clipped_PG = np.where(weight_PG > 0, ratio_PG > 1 + clip, ratio_PG < 1 - clip)
    pull_PG = np.where(is_clipped_PG, 0.0, weight_PG * ratio_PG) / weight_PG.size
    slope_PA = -pull_PG.sum(1, keepdims=True) * np.exp(log_PA)
    np.add.at(slope_PA, (np.arange(len(slope_PA))[:, None], answer_PG), pull_PG)
    return slope_PA


def _adam(
    theta: np.ndarray,
    slope: np.ndarray,
    mean: np.ndarray,
    square: np.ndarray,
    count: int,
    rate: float,
) -> None:
    """One step uphill, in place."""
    beta1, beta2, eps = ADAM
    mean += (1 - beta1) * (slope - mean)
    square += (1 - beta2) * (slope**2 - square)
    corrected = np.sqrt(square / (1 - beta2**count)) + eps
    theta += rate * mean / (1 - beta1**count) / corrected


def _ends(world: _World, own_NA: np.ndarray, shared_DD: np.ndarray) -> dict[str, float]:
    log_NA = _log_softmax(world.logits(own_NA, shared_DD, slice(None)))
    policy_NA = np.exp(log_NA)
    rate_N = np.clip((policy_NA * world.is_right_NA).sum(1), 0.0, 1.0)
    found = {f"pass@{k}": float((1 - (1 - rate_N) ** k).mean()) for k in KS}
    found["entropy_nats"] = float(-(policy_NA * log_NA).sum(1).mean())
    energy_K = np.linalg.svd(shared_DD, compute_uv=False) ** 2
    found["rank_top1_share"] = float(energy_K[0] / energy_K.sum()) if energy_K.any() else 0.0
    return found


def _log_softmax(logits_PA: np.ndarray) -> np.ndarray:
    shifted_PA = logits_PA - logits_PA.max(1, keepdims=True)
    log_PA: np.ndarray = shifted_PA - np.log(np.exp(shifted_PA).sum(1, keepdims=True))
    return log_PA
