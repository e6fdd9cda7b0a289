"""Entropy in nats: of the next token, and of a finite set of answers."""

import math

import numpy as np
from array_api_compat import array_namespace

from gradmass.types import Array, UsageError


def token_entropy_nats(logits: Array) -> Array:
    """Exact entropy of the softmax over the last axis.

    ``H = log Z - sum_v p_v z_v`` with ``z = logits - max``, ``Z = sum_v exp(z_v)`` and
    ``p = exp(z) / Z``. Both terms are at least 0, so the result is too.

    Args:
        logits: Shape ``[..., V]``, V >= 1, NumPy or torch. Divide by the temperature first. A logit
            of -inf is a forbidden token: probability 0, and it adds 0.

    Returns:
        Shape ``[...]``, in [0, log V] nats; float64 for float64 logits, float32 for any other
        dtype. NaN where the softmax is not defined: every logit -inf, or one +inf or NaN. (It does
        not raise, which on a GPU would wait for the result.)

    Raises:
        UsageError: There is no last axis, or it is empty.

    >>> token_entropy_nats(np.array([[0.0, 0.0], [0.0, -np.inf]]))  # log 2 and certainty
    array([0.69314718, 0.        ])
    """
    xp = array_namespace(logits)
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise UsageError(f"logits need a vocabulary as last axis, got shape {tuple(logits.shape)}")
    if logits.dtype != xp.float64:
        logits = xp.astype(logits, xp.float32)
    highest = xp.max(logits, axis=-1, keepdims=True)
    is_defined = xp.isfinite(highest)
    # Rows without a softmax are computed as if uniform, so that no step warns, then marked.
    shifted = xp.where(is_defined, logits - xp.where(is_defined, highest, 0.0), 0.0)
    mass = xp.exp(shifted)
    total = xp.sum(mass, axis=-1, keepdims=True)
    # 0 * -inf is NaN: forbidden tokens get a finite logit, their mass is 0 already.
    shifted = xp.where(xp.isfinite(shifted), shifted, 0.0)
    entropy = xp.log(total) - xp.sum(mass * shifted, axis=-1, keepdims=True) / total
    return xp.where(is_defined, entropy, math.nan)[..., 0]


def entropy_nats(probabilities: Array) -> float:
    """Entropy of a finite distribution given by weights: ``-sum_i p_i log p_i``, ``p = w / sum w``.

    Args:
        probabilities: Finite weights of at least 0, shape ``[A]``; they need not sum to 1.

    Returns:
        In [0, log A] nats; 0.0 where the weights sum to 0 (none at all included).

    Raises:
        UsageError: A weight that is negative, infinite or NaN; not a flat array.

    >>> entropy_nats([3.0, 3.0]) == math.log(2)
    True
    """
    weights_A = np.asarray(probabilities, dtype=np.float64)
    if weights_A.ndim != 1:
        raise UsageError(f"a distribution is a flat array of weights, got shape {weights_A.shape}")
    is_weight_A = np.isfinite(weights_A) & (weights_A >= 0)
    if not is_weight_A.all():
        i = int(is_weight_A.argmin())
        raise UsageError(
            f"weight {i} of a distribution is {weights_A[i]}; it must be finite and at least 0"
        )
    weights_A = weights_A[weights_A > 0]
    if len(weights_A) == 0:
        return 0.0
    # By the largest first: the sum of huge weights would overflow.
    weights_A = weights_A / weights_A.max()
    weights_A = weights_A[weights_A > 0]
    probabilities_A = weights_A / weights_A.sum()
    return max(0.0, float(-np.sum(probabilities_A * np.log(probabilities_A))))


def num_effective(probabilities: Array) -> float:
    """How many answers carry weight: ``exp(entropy)`` of the normalised weights.

    With the probabilities of a problem's right answers: n if n of them are equally likely and the
    others are not found, 1 if a single one has all the weight.

    Args:
        probabilities: As in ``entropy_nats``.

    Returns:
        In [1, A]; 0.0 where the weights sum to 0, since then no answer carries any.

    Raises:
        UsageError: As in ``entropy_nats``.

    >>> round(num_effective([0.1, 0.1, 0.0]), 12), num_effective([0.0, 0.0])
    (2.0, 0.0)
    """
    entropy = entropy_nats(probabilities)
    return math.exp(entropy) if np.any(np.asarray(probabilities) > 0) else 0.0
