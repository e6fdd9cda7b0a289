"""The weight of any objective of the solve rate, given by its slope."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from array_api_compat import device

from gradmass.types import Array, State, UsageError
from gradmass.weights.base import Groups, Weight, register_weight

OPERATORS: dict[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
    ast.UAdd: lambda a: a,
    ast.USub: lambda a: -a,
}
FUNCTIONS = ("exp", "log", "sqrt")


@register_weight("surrogate")
@dataclass(frozen=True, kw_only=True)
class Surrogate(Weight):
    """GRPO times the slope of an objective F of the solve rate, which you name.

    ``w_i = F'(rbar) (r_i - rbar)``. Gradient masses for binary rewards, large groups:
    ``m_S = m_F = p (1 - p) F'(p)``; in expectation the gradient of F(p), biased at finite group
    sizes. Slope 1 is ``grpo``, ``1/p`` ``maxrl``, ``1/sqrt(p*(1-p))`` ``grpo_std``,
    ``(1-p)**(alpha-1)`` with a number for alpha ``power``.

    Edge cases: 0 for groups of equal rewards and groups of one. A slope without a finite value at a
    group's mean raises.

    Source: the recipe of Thrampoulidis et al., arXiv 2510.23049: a weight for every surrogate F.

    >>> import numpy as np
    >>> Surrogate(slope="1/p").update(np.array([[1.0, 0.0, 0.0, 0.0]]), {})[0]
    array([[ 3., -1., -1., -1.]])
    """

    zero_sum: ClassVar = True
    domain: ClassVar = "unit"
    keeps_sign: ClassVar = False

    slope: str
    """F'(p) from p, the mean reward of a group, and G, its rollouts: numbers, + - * / **, brackets,
    sqrt, log, exp."""

    def __post_init__(self) -> None:
        """Refuse what is not such an expression."""
        one_group = {"p": np.array([[0.5]]), "G": np.array([[2.0]])}
        try:
            with np.errstate(all="ignore"):
                _evaluate(_parse(self.slope), np, one_group, self.slope)
        except (SyntaxError, OverflowError, RecursionError, MemoryError) as error:
            raise UsageError(
                f"surrogate needs slope to be an expression such as '1/p', got {self.slope!r}"
            ) from error

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``F'(rbar) (r - rbar)``."""
        xp, p_P1 = groups.xp, groups.inner_mean_P1
        quantities = {"p": p_P1, "G": groups.num_scored_P1}
        with np.errstate(all="ignore"):  # what has no value is named below
            slope_P1 = _evaluate(_parse(self.slope), xp, quantities, self.slope) + 0.0 * p_P1
        is_bad_P1 = ~xp.isfinite(slope_P1) & ~groups.is_tied_P1
        if bool(xp.any(is_bad_P1)):
            first = int(xp.argmax(xp.astype(is_bad_P1, xp.uint8)))
            p, size = (value[first, 0].item() for value in quantities.values())
            raise UsageError(
                f"the slope {self.slope!r} of surrogate is {slope_P1[first, 0].item()} at "
                f"p = {p:g}, G = {size:g}; it must be finite for 0 < p < 1"
            )
        return xp.where(groups.is_tied_P1, 0.0, slope_P1) * groups.centred_PG


@cache
def _parse(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


def _evaluate(node: ast.expr, xp: Any, quantities: Mapping[str, Array], text: str) -> Array:
    """The value of an expression; what is not arithmetic in the quantities raises."""

    def value_of(part: ast.expr) -> Array:
        return _evaluate(part, xp, quantities, text)

    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](value_of(left), value_of(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](value_of(operand))
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            # As an array: floats of Python raise where arrays give infinity or NaN.
            return xp.asarray(float(value), dtype=xp.float64, device=device(quantities["p"]))
        case ast.Name(id=name) if name in quantities:
            return quantities[name]
        case ast.Call(func=ast.Name(id=name), args=[part], keywords=[]) if name in FUNCTIONS:
            return getattr(xp, name)(value_of(part))
    raise UsageError(
        "surrogate needs slope made of p, G, numbers, + - * / **, sqrt, log and exp, "
        f"got {ast.unparse(node)!r} in {text!r}"
    )
