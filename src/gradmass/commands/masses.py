"""``gradmass masses``: what does a weight do at each solve rate, before anything is trained?"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from gradmass.commands.arguments import check_plot, parse
from gradmass.masses import (
    Equalise,
    FunctionWeight,
    Masses,
    Prior,
    axes_of,
    equalise_factor,
    finite_group_bias,
    masses_of,
    objective_of,
    parse_prior,
)
from gradmass.masses.canonical import neutral_signals
from gradmass.registry import load_object
from gradmass.tables import from_spec, split_spec
from gradmass.types import State, UsageError
from gradmass.weights import Weight

CURVE_N = np.arange(1, 100) / 100
"""Solve rates of a figure or of JSON, if none are given."""
TABLE_N = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
"""Solve rates of the table, if none are given."""

AXES = {
    "peak_S": "peak S",
    "peak_F": "peak F",
    "centroid_S": "centroid S",
    "centroid_F": "centroid F",
    "scale_at_half": "scale at 1/2",
    "scale_mean": "scale",
    "learning_rate_factor": "lr factor",
    "useful_groups": "useful",
    "effective_groups": "effective",
}
OF_PRIOR = ("scale_mean", "useful_groups", "effective_groups")


@dataclass(frozen=True)
class Arguments:
    """Show the gradient masses, axes and implied objective of policy weights.

    gradmass masses fade grpo power:alpha=3 --group-size 8. A weight is NAME or
    NAME:field=value,field=value (inner.alpha=3 for a field of a field); NAME is registered, or
    path/to/file.py:Name for a class or a plain function from rewards to weights of your own.
    """

    weights: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHT [WEIGHT ...]")
    ] = ()
    """Weights to compare."""
    group_size: str = "8"
    """Rollouts of a problem: a whole number, or inf for the limit of large groups."""
    p: Annotated[tuple[str, ...], tyro.conf.arg(metavar="P [P ...]")] = ()
    """Solve rates above 0 and below 1, with commas or spaces between."""
    prior: str | None = None
    """Solve rates of the problems: uniform, beta:a,b, or a file of them, a JSON list or one a
    line."""
    equalise: Equalise = "none"
    """Scale each weight to GRPO's total mass at p = 1/2, or to its mean over the prior."""
    state: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """JSON state to hold fixed, or a run's state.json; the initial state if not given."""
    lengths: str | None = None
    """Mean tokens of right and of wrong rollouts, RIGHT,WRONG: masses under token-mean too."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write m_S and m_F over p as a figure: .svg or .png."""
    json: bool = False
    """Print JSON."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parse(Arguments, "masses", argv)
    if not arguments.weights:
        raise UsageError("masses needs a weight, such as fade (gradmass weights lists them)")
    check_plot(arguments.plot)
    group_size = read_group_size(arguments.group_size)
    is_curve = arguments.json or arguments.plot is not None
    p_N = read_p(arguments.p) if arguments.p else CURVE_N if is_curve else TABLE_N
    prior = None if arguments.prior is None else parse_prior(arguments.prior)
    lengths = None if arguments.lengths is None else read_lengths(arguments.lengths)
    weights = [read_weight(spec) for spec in arguments.weights]
    state = None if arguments.state is None else read_state(arguments.state)
    if state is not None and not any(weight.init() for weight in weights):
        raise UsageError(f"--state {arguments.state}: none of these weights has a state")
    pictures = [
        Picture.take(
            weight,
            p_N,
            group_size,
            prior=prior,
            equalise=arguments.equalise,
            state=state if weight.init() else None,
            lengths=lengths,
        )
        for weight in weights
    ]
    if arguments.plot is not None:
        write_plot(pictures, arguments.plot)
    if arguments.json:
        print(json.dumps([picture.entry() for picture in pictures], allow_nan=False))
    elif arguments.plot is None:
        print_tables(pictures, prior is not None)
    else:
        print(arguments.plot)
    return 0


@dataclass(frozen=True)
class Picture:
    """All there is to say of one weight."""

    weight: Weight
    masses: Masses
    axes: dict[str, Any]
    prior: Prior | None
    equalise: Equalise
    factor: float
    objective_N: np.ndarray
    objective_zero: float
    bias_N: list[float | None]
    """Slope of the objective minus that of infinite groups."""
    parameters: dict[str, Any]
    """What the weight reports of the state that is held fixed."""
    token_mean: tuple[np.ndarray, ...] | None
    """Both masses where the loss is divided by the number of tokens."""

    @classmethod
    def take(
        cls,
        weight: Weight,
        p_N: np.ndarray,
        group_size: float,
        *,
        prior: Prior | None,
        equalise: Equalise,
        state: State | None,
        lengths: tuple[float, float] | None,
    ) -> "Picture":
        """Compute everything, scaled as ``equalise`` says."""
        factor = equalise_factor(weight, equalise, group_size, prior=prior, state=state)
        masses = masses_of(weight, p_N, group_size, prior=prior, state=state)
        bias_N = np.full(len(p_N), np.nan)
        if not isinstance(weight, FunctionWeight):  # it may be meant for this group size alone
            bias_N = finite_group_bias(weight, masses, prior=prior, state=state)
        objective_N, zero = objective_of(weight, p_N, group_size, prior=prior, state=state)
        masses = masses.scaled(factor)
        axes = axes_of(weight, masses, prior=prior, state=state, factor=factor)
        report = weight.report(weight.init() if state is None else state)
        return cls(
            weight,
            masses,
            asdict(axes),
            prior,
            equalise,
            factor,
            factor * objective_N,
            zero,
            [None if math.isnan(bias) else factor * bias for bias in bias_N.tolist()],
            {key: value for key, value in report.items() if value is not None},
            None if lengths is None else masses.token_mean(*lengths),
        )

    def entry(self) -> dict[str, Any]:
        """Plain JSON, with arrays over p."""
        masses = self.masses
        entry = {
            "label": masses.label,
            "group_size": "inf" if masses.group_size == math.inf else masses.group_size,
            "prior": None if self.prior is None else self.prior.label,
            "equalise": self.equalise,
            "factor": self.factor,
            "parameters": self.parameters,
            "p": masses.p_N.tolist(),
            "m_S": masses.m_S_N.tolist(),
            "m_F": masses.m_F_N.tolist(),
            "w_S": masses.w_S_N.tolist(),
            "w_F": masses.w_F_N.tolist(),
            "objective": self.objective_N.tolist(),
            "objective_zero": self.objective_zero,
            "objective_slope": masses.objective_slope_N.tolist(),
            "objective_slope_bias": self.bias_N,
            "error": masses.error,
            "axes": self.axes,
        }
        if self.token_mean is not None:
            m_S_N, m_F_N = self.token_mean
            entry["token_mean"] = {"m_S": m_S_N.tolist(), "m_F": m_F_N.tolist()}
        return entry

    @property
    def note(self) -> str:
        """Under which circumstances the masses hold."""
        size = self.masses.group_size
        parts = ["infinite groups" if size == math.inf else f"groups of {size:g}"]
        if self.prior is not None:
            parts.append(f"prior {self.prior.label}")
        if self.equalise != "none":
            parts.append(f"times {self.factor:.4g} ({self.equalise})")
        shown = {key: value for key, value in self.parameters.items() if key in ("alpha", "delta")}
        parts += [f"{key} {value:.4g}" for key, value in shown.items()]
        signals = neutral_signals(self.weight, np.zeros((1, 1)))
        parts += [f"{key} {np.asarray(value).item()}" for key, value in signals.items()]
        if self.masses.error > 0:
            parts.append(f"error below {self.masses.error:.0e}")
        return ", ".join(parts)


def read_weight(spec: str) -> Weight:
    """A weight from its name and fields, or a plain function of a file of the user's."""
    name, fields = split_spec(spec)
    if ".py:" in name:
        found = load_object("weight", name)
        if callable(found) and not isinstance(found, type):
            if fields:
                raise UsageError(f"{name} is a plain function and has no fields, got {fields!r}")
            return FunctionWeight(function=found, source=name)
    return from_spec(Weight, spec)  # type: ignore[type-abstract]


def read_group_size(text: str) -> float:
    """A whole number or infinity; its range is checked where it is used."""
    try:
        return math.inf if text == "inf" else int(text)
    except ValueError:
        raise UsageError(f"--group-size is a whole number or inf, got {text!r}") from None


def read_p(texts: Sequence[str]) -> np.ndarray:
    """Solve rates."""
    numbers = [part for text in texts for part in text.split(",") if part]
    try:
        return np.array([float(number) for number in numbers])
    except ValueError:
        raise UsageError(f"--p needs numbers above 0 and below 1, got {numbers}") from None


def read_lengths(text: str) -> tuple[float, float]:
    """Mean tokens of right and wrong rollouts."""
    try:
        right, wrong = map(float, text.split(","))
    except ValueError:
        raise UsageError(f"--lengths needs two numbers, RIGHT,WRONG, got {text!r}") from None
    return right, wrong


def read_state(file: Path) -> State:
    """A weight's state from JSON, or from the ``state.json`` of a run."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--state {file} cannot be read: {error}") from error
    if isinstance(content, dict) and {"schema", "weight"} <= content.keys():
        content = content["weight"]
    if not isinstance(content, dict):
        raise UsageError(f"--state {file} holds no state of a weight, but {content!r}")
    return content


def write_plot(pictures: Sequence[Picture], file: Path) -> None:
    """Draw the masses over p."""
    from gradmass.report.mass_plots import Curve, figure_of_masses, save

    curves = [
        Curve(
            picture.masses.label,
            picture.weight.name or picture.masses.label,
            picture.masses.p_N.tolist(),
            picture.masses.m_S_N.tolist(),
            picture.masses.m_F_N.tolist(),
        )
        for picture in pictures
    ]
    save(figure_of_masses(curves), file)


def print_tables(pictures: Sequence[Picture], has_prior: bool) -> None:
    """Print a table of masses for each weight, then one of axes for all."""
    console = Console()
    if not console.is_terminal:
        console.width = 120
    for picture in pictures:
        masses = picture.masses
        console.print(f"[bold]{_plain(masses.label)}[/]: {_plain(picture.note)}")
        table = Table("p", "m_S", "m_F", "m_S/m_F", "w_S", "w_F", "F", "F'", "F' - limit", box=None)
        columns: list[Sequence[float | None]] = [
            masses.p_N.tolist(),
            masses.m_S_N.tolist(),
            masses.m_F_N.tolist(),
            picture.axes["sign_ratio"],
            masses.w_S_N.tolist(),
            masses.w_F_N.tolist(),
            picture.objective_N.tolist(),
            masses.objective_slope_N.tolist(),
            [None if bias is None else round(bias, 6) for bias in picture.bias_N],
        ]
        if picture.token_mean is not None:
            table.add_column("m_S by tokens")
            table.add_column("m_F by tokens")
            columns += [column_N.tolist() for column_N in picture.token_mean]
        for row in zip(*columns, strict=True):
            table.add_row(*map(_number, row))
        console.print(table)
        console.print()
    headers = {name: header for name, header in AXES.items() if has_prior or name not in OF_PRIOR}
    table = Table("axes", *headers.values(), box=None)
    for picture in pictures:
        values = (picture.axes[name] for name in headers)
        table.add_row(_plain(picture.masses.label), *map(_number, values))
    console.print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{round(value, 12) + 0.0:.4g}"


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
