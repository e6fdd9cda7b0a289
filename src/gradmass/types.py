"""Words that every module speaks: shape suffixes, arrays, and the error a user sees.

Shape suffixes on names: ``P`` prompts, ``G`` rollouts a prompt, ``B = P * G`` rollouts,
``T`` tokens, ``V`` vocabulary, ``K`` values of k in pass@k. ``rewards_PG`` is a matrix with a row
for each prompt; ``mean_P1`` keeps the summed axis so that it broadcasts.
"""

from typing import Any, TypeAlias

Array: TypeAlias = Any
"""A NumPy array or torch tensor (anything array-api-compat understands)."""

State: TypeAlias = dict[str, Any]
"""What a weight carries from step to step. Plain JSON, so that every engine can checkpoint it."""


def shortened(text: str) -> str:
    """The start of a text, of 80 characters at most, for a message.

    >>> shortened("9" * 100)[-6:]
    '999...'
    """
    return text if len(text) <= 80 else f"{text[:77]}..."


class UsageError(ValueError):
    """Input that cannot be used: one line that shows the offending value and the way out.

    The command prints the message alone, without a stack trace, and exits with code 2.
    """
