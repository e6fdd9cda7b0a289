"""Weights on categorical policies with shared features: a model of training, not training."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradmass.advice.intervals import mean_interval
from gradmass.masses import Prior
from gradmass.metrics.passk import KS
from gradmass.types import UsageError
from gradmass.weights import Weight

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

    def logits(self, policy: "_Policy", at: Any) -> np.ndarray:
        """Logits of some problems."""
        shared = np.einsum("nd,nad->na", self.x_ND[at] @ policy.shared_DD, self.e_NAD[at])
        logits_NA: np.ndarray = self.start_NA[at] + policy.own_NA[at] + shared
        return logits_NA


@dataclass
class _Policy:
    """What is trained, with Adam's moments of it."""

    own_NA: np.ndarray
    shared_DD: np.ndarray
    means: list[np.ndarray]
    squares: list[np.ndarray]
    updates: int = 0

    @classmethod
    def start(cls, setup: Setup) -> "_Policy":
        shapes = (setup.problems, setup.answers), (setup.features, setup.features)
        own, mean, square = ([np.zeros(shape) for shape in shapes] for _ in range(3))
        return cls(own[0], own[1], mean, square)

    def copy(self) -> "_Policy":
        """The policy as it is now, to draw from later."""
        return replace(self, own_NA=self.own_NA.copy(), shared_DD=self.shared_DD.copy())

    def climb(self, world: _World, at_P: np.ndarray, slope_PA: np.ndarray, rate: float) -> None:
        """One step of Adam up a gradient by the logits of some problems."""
        own_slope_NA = np.zeros_like(self.own_NA)
        own_slope_NA[at_P] = slope_PA
        answers_PD = np.einsum("pa,pad->pd", slope_PA, world.e_NAD[at_P])
        shared_slope_DD = world.x_ND[at_P].T @ answers_PD
        self.updates += 1
        beta1, beta2, eps = ADAM
        for theta, slope, mean, square in zip(
            (self.own_NA, self.shared_DD),
            (own_slope_NA, shared_slope_DD),
            self.means,
            self.squares,
            strict=True,
        ):
            mean += (1 - beta1) * (slope - mean)
            square += (1 - beta2) * (slope**2 - square)
            size = np.sqrt(square / (1 - beta2**self.updates)) + eps
            theta += rate * mean / (1 - beta1**self.updates) / size


def _rates(prior: Prior, num: int) -> np.ndarray:
    """Solve rates at even steps of the prior's distribution, off 0 and 1."""
    rate_M, share_M = prior.nodes()
    order = np.argsort(rate_M)
    up_to_M = np.cumsum(share_M[order])
    middle_N = (np.arange(num) + 0.5) / num
    place_N = np.minimum(np.searchsorted(up_to_M, middle_N), len(rate_M) - 1)
    rate_N: np.ndarray = np.clip(rate_M[order][place_N], 1e-4, 1 - 1e-4)
    return rate_N


def _run(weight: Weight, setup: Setup, prior: Prior, seed: int) -> dict[str, float]:
    """One training run; its numbers at the end."""
    world = _World.make(setup, prior, np.random.default_rng([seed, 0]))
    order, draws = (np.random.default_rng([seed, purpose]) for purpose in (1, 2))
    policy = _Policy.start(setup)
    past: list[_Policy] = []
    state = weight.init()
    batches: list[np.ndarray] = []
    last_rate_N = np.full(setup.problems, 0.5)
    for step in range(setup.steps):
        if not batches:
            parts = setup.problems // setup.batch
            batches = np.array_split(order.permutation(setup.problems), parts)
        at_P = batches.pop()
        past = [*past, policy.copy()][-setup.lag - 1 :]
        old_PA = _log_softmax(world.logits(past[0], at_P))
        # Gumbel's trick: the same noise of every answer under every weight.
        noise_PGA = draws.gumbel(size=(len(at_P), setup.group_size, setup.answers))
        answer_PG = (old_PA[:, None] + noise_PGA).argmax(2)
        is_right_PG = np.take_along_axis(world.is_right_NA[at_P], answer_PG, 1)
        weight_PG, state = weight.update(
            is_right_PG.astype(np.float64),
            state,
            successes_PG=is_right_PG,
            num_success=int(is_right_PG.sum()),
            num_scored=is_right_PG.size,
            lengths_PG=np.ones(is_right_PG.shape),
            greedy_rewards_P=world.is_right_NA[at_P, old_PA.argmax(1)].astype(np.float64),
            solve_rate_P=last_rate_N[at_P],
            score_squares=_score_squares(old_PA, answer_PG, is_right_PG),
            entropy_nats=float(-(np.exp(old_PA) * old_PA).sum(1).mean()),
            entropy_kind="simulated",
            policy_lag=len(past) - 1,
            step=step,
            num_steps=setup.steps,
        )
        last_rate_N[at_P] = is_right_PG.mean(1)
        for _ in range(setup.updates_per_batch):
            logits_PA = world.logits(policy, at_P)
            slope_PA = _slope(logits_PA, old_PA, answer_PG, weight_PG, setup.clip)
            policy.climb(world, at_P, slope_PA, setup.rate)
    return _ends(world, policy)


def _score_squares(
    old_PA: np.ndarray, answer_PG: np.ndarray, is_right_PG: np.ndarray
) -> tuple[float | None, float | None]:
    """Mean squared norm of scores by the logits, ``1 - 2 pi(answer) + sum pi^2``, by verdict."""
    own_PG = np.exp(np.take_along_axis(old_PA, answer_PG, 1))
    square_PG = 1 - 2 * own_PG + np.exp(2 * old_PA).sum(1, keepdims=True)
    sides = (square_PG[is_right_PG], square_PG[~is_right_PG])
    right, wrong = (float(side_B.mean()) if len(side_B) else None for side_B in sides)
    return right, wrong


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
    slope_PA: np.ndarray = -pull_PG.sum(1, keepdims=True) * np.exp(log_PA)
    np.add.at(slope_PA, (np.arange(len(slope_PA))[:, None], answer_PG), pull_PG)
    return slope_PA


def _ends(world: _World, policy: "_Policy") -> dict[str, float]:
    log_NA = _log_softmax(world.logits(policy, slice(None)))
    policy_NA = np.exp(log_NA)
    rate_N = np.clip((policy_NA * world.is_right_NA).sum(1), 0.0, 1.0)
    found = {f"pass@{k}": float((1 - (1 - rate_N) ** k).mean()) for k in KS}
    found["entropy_nats"] = float(-(policy_NA * log_NA).sum(1).mean())
    energy_K = np.linalg.svd(policy.shared_DD, compute_uv=False) ** 2
    found["rank_top1_share"] = float(energy_K[0] / energy_K.sum()) if energy_K.any() else 0.0
    return found


def _log_softmax(logits_PA: np.ndarray) -> np.ndarray:
    shifted_PA = logits_PA - logits_PA.max(1, keepdims=True)
    log_PA: np.ndarray = shifted_PA - np.log(np.exp(shifted_PA).sum(1, keepdims=True))
    return log_PA
