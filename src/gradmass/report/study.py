"""The page of a study: what is shown, what is not, by how much, and how sure that is.

Made from the small results alone; with half of the runs it says so and shows what they say.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gradmass.metrics.seeds import Interval, t_interval
from gradmass.report.plots import svg
from gradmass.report.study_plots import figures
from gradmass.report.study_replicate import Repeated, repeated, replication_lines
from gradmass.study import PlannedRun, Result, Study
from gradmass.study.design import Part, Setting
from gradmass.study.measures import MEASURE, doublings_to
from gradmass.study.plan import settings_of
from gradmass.study.results import read_all
from gradmass.study.verdicts import Comparison, Decided, compare, decide
from gradmass.types import UsageError

ARM_MEASURES = (
    "pass@1 at the end",
    "pass@10 at the end",
    "pass@100 at the end",
    "area under pass@1",
    "area under pass@100",
    "midpoint of pass@1",
    "ceiling of pass@1",
    "half-life of the entropy",
    "entropy at the end",
    "r_1 over noise at the end",
)
"""What the table of arms shows of each arm by itself."""
IN_ROLLOUTS = {"midpoint of pass@1", "half-life of the entropy"}
"""Measures in doublings of rollouts, shown as rollouts."""


def write_study(
    study: Study, folder: Path, file: Path, command: str, replicate: Path | None = None
) -> None:
    """Write the page and its figures, beside it in ``images``.

    Args:
        study: The study.
        folder: Its results.
        file: The page, Markdown.
        command: What made it, for its first line.
        replicate: Results of the same arms with other seeds, to see whether it comes out again.

    Raises:
        UsageError: No results, or a page that cannot be written.
    """
    results = read_all(folder, study)
    if not results:
        raise UsageError(f"{folder} has no result of study {study.name} (gradmass study ...)")
    again = None
    if replicate is not None:
        others = read_all(replicate, study)
        both = {run.seed for run in results if run.kind == "main"} & {
            run.seed for run in others if run.kind == "main"
        }
        if both or not others:
            why = f"seed {min(both)} is in both" if both else "it has no result"
            raise UsageError(f"{replicate} is no replicate of {folder}: {why}")
        again = repeated(study, results, others)
    images = file.parent / "images"
    try:
        images.mkdir(parents=True, exist_ok=True)
        names: list[tuple[str, str]] = []
        for title, figure in figures(study, results):
            name = f"study_{study.name}_{len(names) + 1}.svg"
            (images / name).write_text(svg(figure), encoding="utf-8")
            names.append((title, name))
        text = page(study, results, names, command, again)
        draft = file.with_name(f".{file.name}.draft")
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error


def page(
    study: Study,
    results: Mapping[PlannedRun, Result],
    images: Sequence[tuple[str, str]],
    command: str,
    again: Sequence[Repeated] | None = None,
) -> str:
    """The page as Markdown."""
    parts = [
        f"<!-- Written by: {command} -->",
        f"# Results of the study `{study.name}`",
        "\n".join(_progress(study, results)),
    ]
    if study.hypotheses:
        decided = decide(study, results)
        parts += ["## Claims", "\n".join(_claims(study, decided))]
        parts += ["\n".join(_comparisons(study, decided))]
    parts += ["## Arms", _arms_note(), *_arms(study, results)]
    parts += ["## Differences from the first arm, exploratory", *_differences(study, results)]
    if again is not None:
        parts += ["## Repeated with other seeds", "\n".join(replication_lines(again))]
    rates = list(_rates(study, results))
    if rates:
        parts += ["## Learning rates", "\n".join(rates)]
    parts += ["## Figures"]
    parts += [f"{title}\n\n![{title}](images/{name})" for title, name in images]
    parts += ["## Made with", "\n".join(_made_with(results))]
    return "\n\n".join(parts) + "\n"


def _progress(study: Study, results: Mapping[PlannedRun, Result]) -> Iterator[str]:
    main = {run: result for run, result in results.items() if run.kind == "main"}
    places = list(settings_of(study))
    wanted = len(study.arms) * len(places) * study.num_seeds
    whole = [
        seed
        for seed in study.seeds
        if sum(run.seed == seed for run in main) == len(study.arms) * len(places)
    ]
    diverged = [run.name for run, result in main.items() if result.status == "diverged"]
    hours = sum(result.seconds for result in results.values()) / 3600
    yield (
        f"**{len(main)} of {wanted} runs are in; {len(whole)} of {study.num_seeds} seeds are "
        f"complete.** {hours:.1f} CPU hours, learning rates included."
        + ("" if len(main) == wanted else " What follows is provisional.")
    )
    if diverged:
        yield f"Diverged, and left out with their pairs: {', '.join(diverged)}."


def _claims(study: Study, decided: Sequence[Decided]) -> Iterator[str]:
    yield "| | claim | decision | p, Holm | comparisons that hold by themselves |"
    yield "|---|---|---|---|---|"
    for item in decided:
        holds = [
            comparison
            for part, comparison in item.comparisons
            if comparison.p_values(part)[0] <= 0.025
        ]
        fewest = min((len(c.seeds) for _, c in item.comparisons), default=0)
        # The rule is for all seeds; a look at fewer decides nothing.
        early = f" (provisional: {fewest} of {study.num_seeds} seeds)"
        decision = f"**{item.decision}**" + early * (fewest < study.num_seeds)
        yield (
            f"| {item.hypothesis.name} | {item.hypothesis.claim} | {decision} | "
            f"{item.p_adjusted:.2g} | {len(holds)} of {len(item.comparisons)} |"
        )


def _comparisons(study: Study, decided: Sequence[Decided]) -> Iterator[str]:
    yield (
        "Each comparison: mean difference over seeds with its 95% t interval, the exact one-sided "
        "p of the claim and of its reverse, p of equivalence within the margin, and the difference "
        "that as many seeds with this spread find four times in five."
    )
    yield ""
    yield (
        "| | measure | arms | task | seeds | first | second | difference | other problems too | "
        "p | reverse | equal | could find |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    for item in decided:
        for part, comparison in item.comparisons:
            yield _comparison_row(study, item.hypothesis.name, part, comparison)


def _comparison_row(study: Study, name: str, part: Part, comparison: Comparison) -> str:
    p, reverse, equal = comparison.p_values(part)
    could = f"{comparison.detectable(study.alpha / 2):.3f}" if len(comparison.seeds) > 1 else "–"
    censored = f" ({comparison.num_censored} runs never there)" if comparison.num_censored else ""
    left_out = f" ({comparison.num_left_out} left out)" if comparison.num_left_out else ""
    cells = (
        name,
        f"{comparison.measure}, {part.direction}{censored}",
        f"{comparison.arm} - {comparison.against}",
        comparison.setting,
        f"{len(comparison.seeds)}{left_out}",
        f"{comparison.value_S.mean():.3f}",
        f"{comparison.other_S.mean():.3f}",
        interval_text(comparison.interval),
        "–" if comparison.crossed is None else interval_text(comparison.crossed),
        f"{p:.2g}",
        f"{reverse:.2g}",
        f"{equal:.2g}",
        could,
    )
    return f"| {' | '.join(cells)} |"


def interval_text(interval: Interval) -> str:
    """A mean with its ends, signed.

    >>> interval_text(Interval(0.1, -0.05, 0.25))
    '+0.100 [-0.050, +0.250]'
    """
    if math.isinf(interval.low):
        return f"{interval.mean:+.3f} [one seed]"
    return f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def _arms_note() -> str:
    return (
        "Mean over seeds, with half the width of its 95% t interval. Midpoint, level and half-life "
        "are in thousands of rollouts (means of logarithms); midpoint and ceiling of the sigmoid "
        "leave out runs that do not reach past their midpoint."
    )


def _arms(study: Study, results: Mapping[PlannedRun, Result]) -> Iterator[str]:
    for setting, axes in settings_of(study):
        lines = [f"| {_place(setting, axes)} | seeds | {' | '.join(ARM_MEASURES)} | to the level |"]
        lines.append("|---" * (len(ARM_MEASURES) + 3) + "|")
        for arm in study.arms:
            runs = [
                result
                for run, result in results.items()
                if (run.kind, run.setting, run.axes, run.arm)
                == ("main", setting.name, axes, arm.name)
                and result.status == "finished"
            ]
            if runs:
                cells = [_cell(runs, measure) for measure in ARM_MEASURES]
                cells.append(_to_level(runs, setting))
                lines.append(f"| {arm.name} | {len(runs)} | {' | '.join(cells)} |")
        if len(lines) > 2:
            yield "\n".join(lines)


def _cell(runs: Sequence[Result], measure: str) -> str:
    pairs = [MEASURE[measure](run, run, None) for run in runs]
    values = [pair[0] for pair in pairs if pair is not None]
    return _spread(values, measure in IN_ROLLOUTS) if values else "–"


def _to_level(runs: Sequence[Result], setting: Setting) -> str:
    if setting.level is None:
        return "–"
    found = [doublings_to(run, setting.level) for run in runs]
    never = sum(not is_there for _, is_there in found)
    return _spread([value for value, _ in found], True) + (f" ({never} never)" if never else "")


def _spread(values: Sequence[float], is_log2: bool) -> str:
    interval = t_interval(values)
    half = interval.high - interval.mean
    if is_log2:
        times = "" if math.isinf(half) else f" x/÷ {2**half:.2f}"
        return f"{2**interval.mean / 1000:.2f}k{times}"
    return f"{interval.mean:.3f}" + ("" if math.isinf(half) else f" ± {half:.3f}")


TO_LEVEL = "doublings of rollouts to the level"
DIFFERENCES = (
    "pass@1 at the end",
    TO_LEVEL,
    "pass@100 at equal pass@1",
    "entropy at equal pass@1",
    "r_1 over noise at equal pass@1",
)


def _differences(study: Study, results: Mapping[PlannedRun, Result]) -> Iterator[str]:
    first = study.arms[0].name
    yield (
        f"Arm minus `{first}`, paired by seed, with 95% t intervals over seeds; not corrected for "
        "their number."
    )
    for setting, axes in settings_of(study):
        shown = [m for m in DIFFERENCES if m != TO_LEVEL or setting.level is not None]
        heads = [_place(setting, axes), *shown]
        lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for arm in study.arms[1:]:
            found = [compare(results, setting, measure, arm.name, first, axes) for measure in shown]
            if any(found):
                cells = ["–" if c is None else interval_text(c.interval) for c in found]
                lines.append(f"| {arm.name} | {' | '.join(cells)} |")
        if len(lines) > 2:
            yield "\n".join(lines)


def _rates(study: Study, results: Mapping[PlannedRun, Result]) -> Iterator[str]:
    chosen: dict[tuple[str, str], set[float]] = {}
    for run in results:
        if run.kind == "main" and run.lr is not None:
            chosen.setdefault((run.setting, run.arm), set()).add(run.lr)
    if not chosen:
        return
    names = [setting.name for setting in study.settings]
    yield f"| arm | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for arm in study.arms:
        rates = [sorted(chosen.get((name, arm.name), ())) for name in names]
        yield f"| {arm.name} | {' | '.join(', '.join(f'{r:g}' for r in row) for row in rates)} |"


def _made_with(results: Mapping[PlannedRun, Result]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for result in results.values():
        env = result.environment
        packages = ", ".join(f"{name} {env['packages'][name]}" for name in ("torch", "numpy"))
        dirty = " (with changes)" if env["is_dirty"] else ""
        key = f"commit {str(env['commit'])[:10]}{dirty}, {packages}, {env['processor']}"
        seen[key] = seen.get(key, 0) + 1
    yield from (f"- {count} runs: {key}" for key, count in seen.items())
    yield "- Seed and setting of every run are in the name of its file."


def _place(setting: Setting, axes: Sequence[tuple[str, int | float | str]]) -> str:
    return ", ".join([setting.name, *(f"{f.rpartition('.')[2]} {v}" for f, v in axes)])
