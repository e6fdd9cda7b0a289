"""DAPO's dynamic sampling: which groups carry a signal, and which to sample anew.

The weight of DAPO is ``grpo_std``. Of its other parts, clipping and the mean over tokens belong to
the loss, and the penalty for long answers to the reward.
"""

from gradmass.types import Array
from gradmass.weights.groups import group_rewards
from gradmass.weights.grpo import Grpo


def informative_groups(rewards_PG: Array, mask: Array | None = None) -> Array:
    """Tell the groups whose scored rollouts differ in reward from those that are all equal.

    DAPO drops the others, and samples on until the batch is full of informative groups. Filter by
    verdicts, not by shaped rewards: a penalty for length makes groups of wrong answers differ. Give
    the raw counts of the batch (``num_success``, ``num_scored``) to a weight that follows the solve
    rate, since the groups that are left have another.

    Filtering leaves each weight as it is, and changes which problems are seen: the share of groups
    kept is ``1 - p^G - (1 - p)^G``.

    Args:
        rewards_PG: Rewards, a row for each prompt. NumPy or torch, any real or boolean dtype.
        mask: True where a rollout is scored, shape ``[P, G]``; None if all are.

    Returns:
        Booleans of shape ``[P]``: False for groups of equal rewards, of one scored rollout and of
        none.

    Raises:
        UsageError: Rewards that are not a matrix or not finite, a mask of another shape.

    Source: Yu et al. 2025, arXiv 2503.14476, section 3.2.

    >>> import numpy as np
    >>> informative_groups(np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))
    array([ True, False, False])
    """
    groups = group_rewards(rewards_PG, mask)
    Grpo().check_groups(groups)
    return ~groups.is_tied_P1[:, 0]
