"""Entropy in nats: of the next token, of a finite set of answers, and its change in a step."""

import math
from dataclasses import dataclass
from typing import Literal

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


def token_entropy_of_hidden_nats(
    hidden_ND: Array,
    head_VD: Array,
    bias_V: Array | None = None,
    *,
    temperature: float = 1.0,
    chunk_rows: int = 128,
) -> Array:
    """Exact entropy of the next token from hidden states, without the tensor of all logits.

    ``H(softmax((hidden @ head.T + bias) / temperature))``, a chunk of tokens at a time: at most
    ``chunk_rows * V`` logits exist at once (78 MB in float32 for 128 rows of 151,936 words), and a
    few temporaries of that size. Cost: ``2 N D V`` operations, those of the logits themselves.

    Args:
        hidden_ND: What the output head is applied to, shape ``[..., D]``, NumPy or torch.
        head_VD: Weight of the output head, of the same namespace.
        bias_V: Its bias, if it has one.
        temperature: Of the sampling, above 0.
        chunk_rows: Tokens at a time, at least 1.

    Returns:
        Shape ``[...]``; values, dtypes and NaN as in ``token_entropy_nats``. The logits are made in
        the dtype of the head, and widened to float32 before anything is summed.

    Raises:
        UsageError: Shapes that do not fit, a temperature that is not above 0, no rows in a chunk.

    >>> token_entropy_of_hidden_nats(np.ones((1, 3, 2)), np.zeros((5, 2)), chunk_rows=2).shape
    (1, 3)
    """
    xp = array_namespace(hidden_ND, head_VD)
    if head_VD.ndim != 2 or hidden_ND.ndim < 1 or hidden_ND.shape[-1] != head_VD.shape[1]:
        raise UsageError(
            "entropy needs hidden states [..., D] and a head [V, D], got shapes "
            f"{tuple(hidden_ND.shape)} and {tuple(head_VD.shape)}"
        )
    if not 0 < temperature < math.inf:
        raise UsageError(f"temperature must be finite and above 0, got {temperature}")
    if chunk_rows < 1:
        raise UsageError(f"chunk_rows must be at least 1, got {chunk_rows}")
    # Flattened first: a chunk is of tokens, whatever the number of axes, never of the vocabulary.
    flat_ND = xp.reshape(hidden_ND, (-1, hidden_ND.shape[-1]))
    parts = []
    for start in range(0, flat_ND.shape[0], chunk_rows):
        logits_NV = flat_ND[start : start + chunk_rows] @ head_VD.T
        if bias_V is not None:
            logits_NV = logits_NV + bias_V
        if temperature != 1.0:
            logits_NV = logits_NV / temperature
        parts.append(token_entropy_nats(logits_NV))
    if not parts:
        return token_entropy_nats(flat_ND @ head_VD.T).reshape(hidden_ND.shape[:-1])
    return xp.reshape(xp.concat(parts), hidden_ND.shape[:-1])


def mean_entropy_nats(
    entropy_BT: Array, mask_BT: Array, kind: Literal["token", "sequence"] = "token"
) -> float | None:
    """Mean entropy over the tokens of answers, padding left out.

    Args:
        entropy_BT: Entropy of each token; anything where the mask is False.
        mask_BT: True at answer tokens.
        kind: ``token`` weighs every token alike, ``sequence`` every answer: its own mean first.

    Returns:
        Nats; None where there is no token: nothing was measured, which is not an entropy of 0.

    Raises:
        UsageError: Shapes that differ, or another kind.

    >>> entropy, mask = [[1.0, 2.0, 9.0], [3.0, 9.0, 9.0]], [[1, 1, 0], [1, 0, 0]]
    >>> mean_entropy_nats(entropy, mask), mean_entropy_nats(entropy, mask, "sequence")
    (2.0, 2.25)
    """
    entropy_BT = np.asarray(entropy_BT, dtype=np.float64)
    mask_BT = np.asarray(mask_BT, dtype=bool)
    if entropy_BT.ndim != 2 or entropy_BT.shape != mask_BT.shape:
        raise UsageError(
            "mean entropy needs entropies and a mask of one shape [answers, tokens], got "
            f"{entropy_BT.shape} and {mask_BT.shape}"
        )
    if kind not in ("token", "sequence"):
        raise UsageError(f"kind must be token or sequence, got {kind!r}")
    if not mask_BT.any():
        return None
    if kind == "token":
        return float(entropy_BT[mask_BT].mean())
    num_tokens_B = mask_BT.sum(1)
    total_B = np.where(mask_BT, entropy_BT, 0.0).sum(1)
    return float((total_B / np.maximum(num_tokens_B, 1))[num_tokens_B > 0].mean())


@dataclass(frozen=True)
class EntropyTerms:
    """What equation (7) is made of, in nats per unit of step size.

    Args:
        drift: ``(m_S - m_F) H``: mean weight times mean entropy.
        covariance: ``Cov(A, log pi)`` over all tokens.
        covariance_within: ``E[A (log pi + H)]``: the covariance within each context, averaged over
            contexts.
        mean_weight: ``m_S - m_F``.
    """

    drift: float
    covariance: float
    covariance_within: float
    mean_weight: float


def entropy_terms(weights_N: Array, logprobs_N: Array, entropy_N: Array) -> EntropyTerms | None:
    """The drift and covariance terms of the first-order change of entropy.

    Equation (7) as printed: ``dH ~ eta [(m_S - m_F) H - Cov(A, log pi)]``, that is
    ``eta (drift - covariance)``. For one softmax over all its actions the two exact statements are
    ``dH = -eta Cov`` for a natural-gradient step (``pi exp(eta A)``, normalised) and
    ``dH = eta (drift - mean_weight - Cov)`` for the step ``pi (1 + eta A)`` that is not normalised.
    Neither has the drift term as printed, so nothing here predicts a sign: log both terms beside
    the measured change.

    A trainer samples one token in each of many contexts. Over such tokens ``covariance`` also holds
    what differs between contexts, such as weights being larger where tokens are less certain;
    ``covariance_within`` does not, because ``E[log pi + H] = 0`` in every context. With one context
    and all actions in proportion to their probability the two are equal.

    Args:
        weights_N: Policy weight of each sampled token (that of its rollout).
        logprobs_N: Its log-probability in nats under the policy it was drawn from.
        entropy_N: Entropy in nats of the distribution it was drawn from.

    Returns:
        The terms; None where there is no token.

    Raises:
        UsageError: Not three flat arrays of one length, or values that are not finite.

    Source: FADE (arXiv 2607.01490), equation 7; the form within contexts is ours.

    >>> terms = entropy_terms([1.0, 0.0], np.log([0.5, 0.5]), np.log([2.0, 2.0]))
    >>> round(terms.drift, 6), abs(round(terms.covariance, 6))  # log(2) / 2
    (0.346574, 0.0)
    """
    weights_N, logprobs_N, entropy_N = (
        np.asarray(values, dtype=np.float64) for values in (weights_N, logprobs_N, entropy_N)
    )
    if weights_N.ndim != 1 or not weights_N.shape == logprobs_N.shape == entropy_N.shape:
        raise UsageError(
            "the terms of (7) need a weight, a log-probability and an entropy for each token, got "
            f"shapes {weights_N.shape}, {logprobs_N.shape} and {entropy_N.shape}"
        )
    for name, values_N in (("weight", weights_N), ("log-probability", logprobs_N)):
        if not np.isfinite(values_N).all():
            raise UsageError(
                f"the terms of (7) need a finite {name}, got {values_N[~np.isfinite(values_N)][0]}"
            )
    if len(weights_N) == 0:
        return None
    mean_weight, mean_entropy = float(weights_N.mean()), float(entropy_N.mean())
    centred_N = weights_N - mean_weight
    return EntropyTerms(
        drift=mean_weight * mean_entropy,
        covariance=float(np.mean(centred_N * (logprobs_N - logprobs_N.mean()))),
        covariance_within=float(np.mean(weights_N * (logprobs_N + entropy_N))),
        mean_weight=mean_weight,
    )


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
