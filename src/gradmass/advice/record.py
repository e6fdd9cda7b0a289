"""The track record: what was predicted, what was measured, and the score.

predictions/published.json      published comparisons of two weights, a look back
predictions/study_*.json        forecasts, recorded before their runs; outcomes added afterwards
"""

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

from gradmass.masses import BetaPrior
from gradmass.masses.alignment import alignment
from gradmass.tables import from_spec
from gradmass.types import UsageError
from gradmass.weights import Weight

Sign = Literal["up", "down", "none"]
SCHEMA = 1
USUAL_GROUP_SIZE = 8
"""Taken where a publication does not say its group size."""
SAME = 1e-3
"""Relative difference of two alignments below which two objectives count as the same."""


def predicted_sign(method: float, baseline: float) -> Sign:
    """Sign of the change in pass@k by the implied objectives.

    Args:
        method: Alignment of the method with pass@k.
        baseline: Likewise of the baseline.

    >>> predicted_sign(0.9, 1.0), predicted_sign(0.9, 0.8), predicted_sign(0.9, 0.90001)
    ('down', 'up', 'none')
    """
    if abs(method - baseline) <= SAME * max(abs(method), abs(baseline)):
        return "none"
    return "up" if method > baseline else "down"


def outcome_of(predicted: Sign, low: float, high: float) -> str:
    """What a measured interval says of a prediction.

    Args:
        predicted: The sign.
        low: Lower end of the interval of the measured difference.
        high: Upper end.

    Returns:
        ``undecided`` where the interval holds 0, except that a prediction of no difference is
        ``consistent`` then; else ``hit`` or ``miss``.

    >>> outcome_of("up", 0.1, 0.3), outcome_of("up", -0.3, -0.1), outcome_of("up", -0.1, 0.3)
    ('hit', 'miss', 'undecided')
    >>> outcome_of("none", -0.1, 0.3), outcome_of("none", 0.1, 0.3)
    ('consistent', 'miss')
    """
    if low <= 0 <= high:
        return "consistent" if predicted == "none" else "undecided"
    return "hit" if predicted == ("up" if low > 0 else "down") else "miss"


def score(cells: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Count predictions, beside those of two rules that know nothing.

    Args:
        cells: Each with ``predicted``, ``low`` and ``high``.

    Returns:
        ``num``; ``hit``, ``miss``, ``undecided`` and ``consistent`` (no difference predicted, none
        decided); ``decided``, how many measured differences exclude 0; ``no_difference``, how many
        the rule "there is no difference" has right: those not decided; ``always_up``, how many of
        the decided ones went up, which is what "the new method wins" has right; ``p_value``, the
        chance of as many hits or more from coin flips, None without hits and misses.
    """
    cells = list(cells)
    found: dict[str, Any] = dict.fromkeys(("hit", "miss", "undecided", "consistent"), 0)
    for cell in cells:
        found[outcome_of(cell["predicted"], cell["low"], cell["high"])] += 1
    decided = [cell for cell in cells if not cell["low"] <= 0 <= cell["high"]]
    tosses = found["hit"] + found["miss"]
    tail = sum(math.comb(tosses, n) for n in range(found["hit"], tosses + 1))
    return {
        "num": len(cells),
        **found,
        "decided": len(decided),
        "no_difference": len(cells) - len(decided),
        "always_up": sum(cell["low"] > 0 for cell in decided),
        "p_value": tail / 2**tosses if tosses else None,
    }


@lru_cache(maxsize=1)
def track_record() -> dict[str, Any]:
    """All predictions with their outcomes and scores.

    Returns:
        ``published``: ``about``, ``noise``, ``cells`` (one for each comparison and k) and
        ``scores`` for ``pass@1`` and ``pass@k``; ``forecasts``: for each file ``about``, ``rule``,
        ``recorded``, ``cells`` (one for each prediction and experiment with an outcome),
        ``waiting`` (predictions without one), ``scores`` by basis.

    Raises:
        UsageError: A file of another version.
    """
    folder = files("gradmass.advice") / "predictions"
    documents = {
        item.name: json.loads(item.read_text(encoding="utf-8"))
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.name.endswith(".json")
    }
    for name, document in documents.items():
        if document.get("schema") != SCHEMA:
            raise UsageError(f"{name} has schema {document.get('schema')!r}, expected {SCHEMA}")
    published = documents.pop("published.json")
    return {
        "published": _published(published),
        "forecasts": [_forecasts(document) for document in documents.values()],
    }


def _published(document: dict[str, Any]) -> dict[str, Any]:
    cells = [
        {
            **{key: comparison[key] for key in ("id", "source", "model", "note")},
            "baseline": comparison["baseline"]["weight"],
            "method": comparison["method"]["weight"],
            "k": measured["k"],
            "diff": measured["diff"],
            "low": measured["diff"] - measured["noise"],
            "high": measured["diff"] + measured["noise"],
            "predicted": predicted_sign(
                *(
                    _alignment(
                        comparison[side]["weight"],
                        measured["k"],
                        comparison["group_size"] or USUAL_GROUP_SIZE,
                    )
                    for side in ("method", "baseline")
                )
            ),
        }
        for comparison in document["comparisons"]
        for measured in comparison["measured"]
    ]
    for cell in cells:
        cell["outcome"] = outcome_of(cell["predicted"], cell["low"], cell["high"])
    return {
        "about": document["about"],
        "noise": document["noise"],
        "num_comparisons": len(document["comparisons"]),
        "num_sources": len({comparison["source"] for comparison in document["comparisons"]}),
        "cells": cells,
        "scores": {
            "pass@1": score(cell for cell in cells if cell["k"] == 1),
            "pass@k": score(cell for cell in cells if cell["k"] > 1),
        },
    }


@lru_cache
def _alignment(spec: str, k: int, group_size: int) -> float:
    weight = from_spec(Weight, spec)  # type: ignore[type-abstract]
    return alignment(weight, k, group_size, BetaPrior())


def _forecasts(document: dict[str, Any]) -> dict[str, Any]:
    cells = [
        {
            **{key: prediction[key] for key in ("id", "weight", "quantity", "predicted", "basis")},
            **outcome,
            "outcome": outcome_of(prediction["predicted"], outcome["low"], outcome["high"]),
        }
        for prediction in document["predictions"]
        for outcome in prediction["outcomes"]
    ]
    bases = dict.fromkeys(prediction["basis"] for prediction in document["predictions"])
    return {
        **{key: document[key] for key in ("name", "about", "rule", "decision", "recorded")},
        "num_predictions": len(document["predictions"]),
        "waiting": [
            prediction["id"] for prediction in document["predictions"] if not prediction["outcomes"]
        ],
        "cells": cells,
        "scores": {
            basis: score(cell for cell in cells if cell["basis"] == basis) for basis in bases
        },
    }
