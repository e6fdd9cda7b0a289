"""What ``passk`` and ``compare`` are about: models measured on problems, from any file."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from gradmass.metrics.estimates import Exact, Interval, Measured, Sampled
from gradmass.metrics.passk import KS, ladder
from gradmass.record import Run
from gradmass.record.judged import Judged, check_threshold, counted, read_judged
from gradmass.types import UsageError


@dataclass(frozen=True)
class Model:
    """One model on one set of problems.

    Args:
        label: How it is called: its file or folder, and the part of it.
        source: File or folder.
        part: Split or step, empty where there is one.
        problem_ids: In the order of the values.
        measured: Counts of samples, or exact probabilities.
        judged: The samples it comes from, None for exact ones.
        unscored_ids: Problems without any scorable sample, which are left out.
        note: What a reader has to know of it.
    """

    label: str
    source: Path
    part: str
    problem_ids: tuple[str, ...]
    measured: Measured
    judged: Judged | None = None
    unscored_ids: tuple[str, ...] = ()
    note: str = ""

    @property
    def what(self) -> str:
        """Problems, samples, and what was left out, in words."""
        parts = [counted(len(self.problem_ids), "problem")]
        if self.measured.num_samples_range is None:
            parts.append("exact")
        else:
            low, high = self.measured.num_samples_range
            samples = counted(high, "sample")
            parts.append(f"{samples} each" if low == high else f"{low} to {samples} each")
            parts.append(f"{self.measured.num_unscorable} unscorable")
        if self.unscored_ids:
            left_out = counted(len(self.unscored_ids), "problem")
            parts.append(f"{left_out} without a scorable sample left out")
        return ", ".join(parts + [self.note] * bool(self.note))

    def place_of(self, problem_id: str) -> str:
        """The file, and the line on which a problem comes first if the file has lines."""
        if self.judged is not None:
            line = self.judged.line_of(problem_id)
            return f"{self.source}, line {line}" if line else str(self.source)
        return str(self.source)

    def on(self, problem_ids: Sequence[str]) -> "Model":
        """The same on some of its problems, in their order."""
        place = {name: i for i, name in enumerate(self.problem_ids)}
        keep = [place[name] for name in problem_ids]
        measured = self.measured
        if isinstance(measured, Sampled):
            right_N, samples_N = measured.num_correct_N[keep], measured.num_samples_N[keep]
            measured = replace(measured, num_correct_N=right_N, num_samples_N=samples_N)
        else:
            measured = Exact(measured.solve_probability_N[keep])
        return replace(self, problem_ids=tuple(problem_ids), measured=measured)


def load(path: Path, score: str | None, threshold: float | None) -> list[Model]:
    """Read a run directory's exact evaluations, or judged samples; one model a split or step.

    Raises:
        UsageError: As in ``read_judged``; a run without exact evaluations; no scorable sample.
    """
    if path.is_dir() and (path / "evaluations.jsonl").is_file():
        return _exact(path, threshold)
    found = read_judged(path, score=score, threshold=threshold)
    return [_sampled(judged, _label(path, judged.part)) for judged in found]


def load_all(
    paths: Sequence[Path], score: str | None, threshold: float | None
) -> list[list[Model]]:
    """Read several, with labels that differ; a list for each path."""
    loaded = []
    for path in paths:
        with Console(stderr=True).status(f"reading {path}"):
            loaded.append(load(path, score, threshold))
    seen = Counter(model.label for models in loaded for model in models)
    return [
        [
            model if seen[model.label] == 1 else replace(model, label=_full_label(model))
            for model in models
        ]
        for models in loaded
    ]


def checked_ks(models: Sequence[Model], texts: Sequence[str]) -> tuple[int, ...]:
    """The k asked for, with commas or spaces between, or those that all models can tell.

    Raises:
        UsageError: A k that is no number, below 1, twice, or above the samples of a problem.
    """
    ks = [_whole(part) for text in texts for part in text.split(",") if part]
    if texts and not ks:
        raise UsageError(f"--k needs whole numbers, got {' '.join(texts)!r}")
    if len(set(ks)) < len(ks) or any(k < 1 for k in ks):
        raise UsageError(f"--k needs different numbers of at least 1, got {' '.join(map(str, ks))}")
    ranges = [model.measured.num_samples_range for model in models]
    fewest = [low for low, _ in filter(None, ranges)]
    if not ks:
        return ladder(min(fewest)) if fewest else KS
    for model in models:
        if model.judged is not None:
            model.judged.scored().check_ks(ks)
    return tuple(sorted(ks))


def check_interval(models: Sequence[Model], interval: Interval) -> None:
    """Refuse what an interval for problems like these cannot be drawn from.

    Args:
        models: One, or two that are compared and have the same problems.
        interval: What the interval is for.

    Raises:
        UsageError: There is only one problem.
    """
    if interval != "problems-like-these" or len(models[0].problem_ids) > 1:
        return
    left_out = len({name for model in models for name in model.unscored_ids})
    beside = f", beside {left_out} without a scorable sample" if left_out else ""
    raise UsageError(
        f"{' and '.join(map(_full_label, models))}: an interval for another set of such problems "
        f"needs at least 2 problems, got 1{beside}; for this very one: --interval these-problems"
    )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--k needs whole numbers, got {text!r}; files come before --k") from None


def _sampled(judged: Judged, label: str) -> Model:
    scored = judged.scored()
    num_unscorable = int(judged.num_unscorable_N.sum())
    return Model(
        label,
        judged.source,
        judged.part,
        scored.problem_ids,
        Sampled(scored.num_correct_N, scored.num_samples_N, num_unscorable),
        judged,
        tuple(sorted({*judged.problem_ids} - {*scored.problem_ids})),
        judged.note,
    )


def _exact(path: Path, threshold: float | None) -> list[Model]:
    """The last exact evaluation of each split of a run."""
    check_threshold(threshold)
    beside = "" if threshold is None else "; not graded by --threshold"
    last = {row["split"]: row for row in Run(path).evaluations}
    if not last:
        raise UsageError(
            f"run {path} has no exact evaluation; sample it: gradmass eval {path} --out DIR"
        )
    return [
        Model(
            _label(path, split),
            path,
            split,
            tuple(row["problem_ids"]),
            Exact(np.array(row["solve_probability"])),
            note=f"step {row['step']}{beside}",
        )
        for split, row in last.items()
    ]


def _label(path: Path, part: str) -> str:
    """A file's name without suffixes, or its folder's where the file is called as all are."""
    name = path.name
    for suffix in (".gz", ".jsonl", ".json", ".eval"):
        name = name.removesuffix(suffix)
    if name in ("samples", "rollouts", "eval_results", "", "..") or path.is_dir():
        folder = path if path.is_dir() else path.parent
        name = folder.resolve().name
    return f"{name} ({part})" if part else name


def _full_label(model: Model) -> str:
    return f"{model.source} ({model.part})" if model.part else str(model.source)
