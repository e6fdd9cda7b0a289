"""Distributions of the solve rate over problems, and how many of G rollouts then succeed."""

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from gradmass.types import UsageError


def binomial_pmf(p_N: np.ndarray, trials: int) -> np.ndarray:
    """Probability of 0 to ``trials`` successes for each success rate.

    From the logarithm of exact binomial coefficients: the relative error stays below 1e-12 up to
    some thousand trials.

    Args:
        p_N: Success rates in [0, 1].
        trials: At least 0.

    Returns:
        Shape ``[N, trials + 1]``; rows sum to 1.

    >>> binomial_pmf(np.array([0.5]), 2)
    array([[0.25, 0.5 , 0.25]])
    """
    p_N1 = np.asarray(p_N, dtype=np.float64)[:, None]
    successes_S = np.arange(trials + 1)
    with np.errstate(divide="ignore"):
        log_p_N1, log_q_N1 = np.log(p_N1), np.log1p(-p_N1)
    # No successes at p = 0 and no failures at p = 1 are certain: 0 times minus infinity is 0 here.
    log_hits_NS = np.multiply(
        successes_S, log_p_N1, out=np.zeros((len(p_N1), trials + 1)), where=successes_S > 0
    )
    log_misses_NS = np.multiply(
        trials - successes_S,
        log_q_N1,
        out=np.zeros((len(p_N1), trials + 1)),
        where=successes_S < trials,
    )
    pmf_NS = np.exp(_log_choose(trials) + log_hits_NS + log_misses_NS)
    # What rounding of the logarithms is common to a row cancels here.
    normal_NS: np.ndarray = pmf_NS / pmf_NS.sum(axis=1, keepdims=True)
    return normal_NS


@lru_cache
def _log_choose(trials: int) -> np.ndarray:
    """Logarithms of the binomial coefficients, each rounded once."""
    choose, logs = 1, []
    for s in range(trials + 1):
        logs.append(math.log(choose))
        choose = choose * (trials - s) // (s + 1)
    return np.array(logs)


class Prior(ABC):
    """A distribution of solve rates over problems."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The text that ``parse_prior`` reads."""

    @abstractmethod
    def success_pmf(self, group_size: int) -> np.ndarray:
        """Share of groups with 0 to G successes, shape ``[G + 1]``, when each problem is drawn."""

    @abstractmethod
    def mean_given_successes(self, group_size: int) -> np.ndarray:
        """Mean solve rate of the problems whose group has 0 to G successes, shape ``[G + 1]``."""

    @abstractmethod
    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Solve rates and shares that sum to 1, to take means over problems in large groups."""


@dataclass(frozen=True)
class BetaPrior(Prior):
    """Solve rates from a Beta distribution; both parameters 1 is the uniform one.

    Args:
        a: From 0.001 to 1e6; below 1 many problems are hopeless.
        b: From 0.001 to 1e6; below 1 many problems are solved.
    """

    a: float = 1.0
    b: float = 1.0

    def __post_init__(self) -> None:
        """Refuse parameters that are not positive, or too extreme to integrate."""
        for name, value in (("a", self.a), ("b", self.b)):
            if not 1e-3 <= value <= 1e6:
                raise UsageError(f"a Beta prior needs {name} from 0.001 to 1e6, got {value:g}")

    @property
    def label(self) -> str:
        """``uniform`` or ``beta:a,b``."""
        return "uniform" if self.a == self.b == 1 else f"beta:{self.a:g},{self.b:g}"

    def success_pmf(self, group_size: int) -> np.ndarray:
        """The beta-binomial distribution, from the ratios of neighbours."""
        s = np.arange(group_size)
        ratios = (group_size - s) / (s + 1) * ((s + self.a) / (group_size - s - 1 + self.b))
        log_pmf_S = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
        pmf_S = np.exp(log_pmf_S - log_pmf_S.max())
        normal_S: np.ndarray = pmf_S / pmf_S.sum()
        return normal_S

    def mean_given_successes(self, group_size: int) -> np.ndarray:
        """The posterior mean."""
        s = np.arange(group_size + 1)
        mean_S: np.ndarray = (s + self.a) / (group_size + self.a + self.b)
        return mean_S

    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """The trapezoidal rule in log-odds, which converges exponentially for smooth functions."""
        spread = math.sqrt(1 / self.a + 1 / self.b)  # at most the deviation of the log-odds
        step = min(0.25, spread / 2)
        centre = math.log(self.a / self.b)
        low, high = centre - 42 / self.a - 9 * spread, centre + 42 / self.b + 9 * spread
        log_odds_M = np.linspace(low, high, math.ceil((high - low) / step))
        # log p and log (1 - p) without cancellation.
        log_share_M = -self.a * np.logaddexp(0, -log_odds_M) - self.b * np.logaddexp(0, log_odds_M)
        share_M = np.exp(log_share_M - log_share_M.max())
        with np.errstate(over="ignore"):
            p_M = np.clip(1 / (1 + np.exp(-log_odds_M)), 1e-300, 1 - 1e-16)
        return p_M, share_M / share_M.sum()


@dataclass(frozen=True)
class MeasuredPrior(Prior):
    """Solve rates as they were measured, one a problem, each as likely.

    Args:
        rates: In [0, 1].
        source: Where they come from.
    """

    rates: tuple[float, ...]
    source: str = "measured"

    def __post_init__(self) -> None:
        """Refuse what is no solve rate."""
        if not self.rates:
            raise UsageError(f"{self.source} has no solve rates")
        for rate in self.rates:
            if not 0 <= rate <= 1:
                raise UsageError(f"{self.source}: a solve rate is within 0 to 1, got {rate}")

    @property
    def label(self) -> str:
        """The source."""
        return self.source

    @cached_property
    def _distinct(self) -> tuple[np.ndarray, np.ndarray]:
        rates_N, counts_N = np.unique(np.array(self.rates, dtype=np.float64), return_counts=True)
        return rates_N, counts_N / counts_N.sum()

    def success_pmf(self, group_size: int) -> np.ndarray:
        """The mean of the binomial distributions."""
        rates_N, shares_N = self._distinct
        pmf_S: np.ndarray = shares_N @ binomial_pmf(rates_N, group_size)
        return pmf_S

    def mean_given_successes(self, group_size: int) -> np.ndarray:
        """The mean over problems, each as likely as it gives that number of successes."""
        rates_N, shares_N = self._distinct
        pmf_NS = binomial_pmf(rates_N, group_size)
        total_S = shares_N @ pmf_NS
        mean_S: np.ndarray = (shares_N * rates_N) @ pmf_NS
        return mean_S / np.where(total_S > 0, total_S, 1.0)

    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct rates, to three decimals where there are very many."""
        rates_N, shares_N = self._distinct
        if len(rates_N) > 1000:
            is_inner_N = (rates_N > 0) & (rates_N < 1)
            rounded_N = np.where(is_inner_N, np.clip(rates_N.round(3), 1e-3, 0.999), rates_N)
            rates_N, place_N = np.unique(rounded_N, return_inverse=True)
            shares_N = np.bincount(place_N.reshape(-1), weights=shares_N)
        return rates_N, shares_N


def parse_prior(text: str) -> Prior:
    """Read ``uniform``, ``beta:a,b``, or a file of solve rates: a JSON list, or one a line.

    Raises:
        UsageError: The text is none of these, or the file holds something else.

    >>> parse_prior("beta:2,0.5")
    BetaPrior(a=2.0, b=0.5)
    """
    if text == "uniform":
        return BetaPrior()
    if text.startswith("beta:"):
        try:
            a, b = map(float, text.removeprefix("beta:").split(","))
        except ValueError:
            raise UsageError(f"prior {text!r} is not beta:a,b with two numbers") from None
        return BetaPrior(a, b)
    try:
        content = Path(text).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"prior {text!r} is neither uniform nor beta:a,b nor a file that can be read: {error}"
        ) from error
    try:
        numbers = json.loads(content) if content.lstrip().startswith("[") else content.split()
        rates = tuple(float(number) for number in numbers)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{text} must hold solve rates, a JSON list or one a line: {error}"
        ) from error
    return MeasuredPrior(rates, text)
