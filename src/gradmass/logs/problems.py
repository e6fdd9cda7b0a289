"""Problems over their visits: never solved, always solved, gained, lost."""

from typing import Any

import numpy as np

from gradmass.logs.layout import Layout
from gradmass.logs.rollouts import Rollouts

MOST = 5
"""Problems shown of each kind."""


def problems_of(log: Rollouts, layout: Layout) -> dict[str, Any] | None:
    """What became of the problems that were met at least twice.

    A visit is a group with a verdict. A problem never moves if all its rollouts at all visits were
    wrong, or all right: at a solve rate p that happens by chance in ``(1 - p)^n`` of the cases
    after n rollouts, so n is told.

    Returns:
        Counts and the problems with the most rollouts; None without verdicts.
    """
    if log.verdicts is None:
        return None
    num_P, right_P = layout.is_scored_PG.sum(1), layout.is_right_PG.sum(1)
    is_visit_P = num_P > 0
    problem_V = log.problem_B[layout.row_PG[:, 0]][is_visit_P]
    num_V, right_V = num_P[is_visit_P], right_P[is_visit_P]
    rate_V = right_V / num_V
    codes, first_N, place_V = np.unique(problem_V, return_index=True, return_inverse=True)
    place_V = place_V.reshape(-1)
    visits_N = np.bincount(place_V)
    tried_N, solved_N = np.bincount(place_V, num_V), np.bincount(place_V, right_V)
    last_N = len(place_V) - 1 - np.unique(problem_V[::-1], return_index=True)[1]
    is_again_N = visits_N >= 2
    change_N = rate_V[last_N] - rate_V[first_N]
    kinds = {
        "never_solved": is_again_N & (solved_N == 0),
        "always_solved": is_again_N & (solved_N == tried_N),
    }
    found: dict[str, Any] = {
        "num": len(codes),
        "num_visited_once": int((~is_again_N).sum()),
        "num_visited_again": int(is_again_N.sum()),
        "num_up": int((is_again_N & (change_N > 0)).sum()),
        "num_down": int((is_again_N & (change_N < 0)).sum()),
        "mean_change": float(change_N[is_again_N].mean()) if is_again_N.any() else None,
    }
    for kind, is_kind_N in kinds.items():
        at_N = np.flatnonzero(is_kind_N)
        top_N = at_N[np.argsort(-tried_N[at_N], kind="stable")][:MOST]
        found[kind] = {
            "num": len(at_N),
            "median_rollouts": float(np.median(tried_N[at_N])) if len(at_N) else None,
            "most_tried": [
                {
                    "problem": log.problems[codes[n]] if log.problems else str(codes[n]),
                    "rollouts": int(tried_N[n]),
                    "visits": int(visits_N[n]),
                }
                for n in top_N
            ],
        }
    return found
