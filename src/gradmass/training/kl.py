"""Estimates of the KL divergence from the policy to the one it started from, token by token."""

from typing import Literal

from torch import Tensor


def kl_estimate(gap_NT: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """An estimate of ``KL(policy, start)`` in nats at each token drawn from the policy.

    With ``d = log pi - log pi_start``: k1 is ``d``, k2 ``d^2 / 2``, k3 ``exp(-d) - 1 + d``. k1 and
    k3 are unbiased, k3 is never below 0, k2 is biased where the policies differ.

    As a *term of a loss* they are another matter, since only the log-probability is differentiated
    and not the distribution that tokens are drawn from. At tokens drawn from the policy:

    - k1 has the gradient ``grad log pi``, whose mean is 0: it keeps nothing in place and adds noise
    - k2 has ``d grad log pi``, whose mean is the gradient of ``KL(policy, start)`` exactly
    - k3 has ``(1 - exp(-d)) grad log pi``, whose mean is the gradient of ``KL(start, policy)``

    All of them token by token: what a token does to the divergence of later ones is not counted.

    Args:
        gap_NT: ``d``, in nats; carries the gradient.
        estimator: Which one.

    Source: http://joschu.net/blog/kl-approx.html; on gradients, and on that, arXiv 2506.09477.
    """
    if estimator == "k1":
        return gap_NT
    if estimator == "k2":
        return 0.5 * gap_NT.square()
    return (-gap_NT).exp() - 1.0 + gap_NT
