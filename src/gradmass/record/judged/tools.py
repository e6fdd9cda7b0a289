"""Results of other tools: evalplus, LiveCodeBench and lm-eval. inspect has a file of its own."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradmass.record.judged.rows import Row, batches
from gradmass.record.judged.tally import NOT_GIVEN, Judged, Tally
from gradmass.registry import nearest
from gradmass.types import UsageError

PASSED = ("pass", "success")
"""Status of a sample that passed, in evalplus of today and before 0.2."""
SELECTIONS = ("take_first", "take_first_k", "majority_vote")
"""lm-eval's filters that pick among the repeats of a document."""


def read_evalplus(path: Path, content: Mapping[str, Any], score: str | None) -> list[Judged]:
    """Read ``*eval_results.json``: ``base`` tests, or ``plus``, which demands both.

    The default is ``plus`` where it was run. Files of before 0.2 hold pairs of status and details.
    """
    tasks: dict[str, list[tuple[str, str | None]]] = {}
    for task_id, found in content["eval"].items():
        if isinstance(found, Mapping):
            base = [status for status, _ in found["base"]]
            plus = [status for status, _ in found["plus"]] or [None] * len(base)
            tasks[task_id] = list(zip(base, plus, strict=True))
        else:
            tasks[task_id] = [(run["base_status"], run.get("plus_status")) for run in found]
    has_plus = all(plus is not None for statuses in tasks.values() for _, plus in statuses)
    name = choose(path, score, ["plus", "base"] if has_plus else ["base"], default=True)
    tally = Tally(path)
    for task_id, statuses in tasks.items():
        for of_base, of_plus in statuses:
            is_right = of_base in PASSED and (name == "base" or of_plus in PASSED)
            tally.add(task_id, is_right, f"{path}, {task_id}")
    return [tally.judged(name)]


def read_livecodebench(path: Path, content: Sequence[Any]) -> list[Judged]:
    """Read ``*_eval_all.json`` by question, or ``*_eval.json`` by position.

    A sample is right if it passed all its tests; what its harness could not finish is wrong, as in
    its own pass@1.
    """
    tally = Tally(path)
    if "detail" in content[0]:
        for position, samples in content[1].items():
            for results in samples:
                is_right = all(result > 0 for result in results)
                tally.add(position, is_right, f"{path}, problem {position}")
    else:
        for problem in content:
            for is_right in problem["graded_list"]:
                tally.add(problem["question_id"], is_right, f"{path}, {problem['question_id']}")
    return [tally.judged("graded")]


def read_lm_eval(path: Path, score: str | None, threshold: float | None) -> list[Judged]:
    """Read ``samples_*.jsonl`` of lm-eval; ``score`` is METRIC,FILTER, as in its results.

    lm-eval logs one line a document and filter, and one score a line: that of the filtered answer.
    Where a document was asked once, that is its verdict. Where it was asked several times
    (``repeats``), the scores of the single answers are in no file. They are made again with the
    task's own filters and ``exact_match`` from ``results_*.json`` beside the samples, and the file
    is refused unless that gives every score it does have.
    """
    rows = [pair for lines, rows in batches(path) for pair in zip(lines, rows, strict=True)]
    names = {f"{metric},{row['filter']}" for _, row in rows for metric in row["metrics"]}
    name = choose(path, score, sorted(names))
    metric, _, filter_name = name.partition(",")
    rows = [(line, row) for line, row in rows if row["filter"] == filter_name]
    grade = None
    if any(len(_answers(row)) > 1 for _, row in rows):
        grade = _grader(path, rows, metric, filter_name)
    tally = Tally(path, threshold)
    for line, row in rows:
        where = f"{path}, line {line}"
        if grade is None:
            tally.add(row["doc_id"], row[metric], where, answer=_filtered(row), line=line)
            continue
        for text in _answers(row):
            answer, is_right = grade(text, row["target"])
            tally.add(row["doc_id"], is_right, where, answer=answer, line=line)
    note = "" if grade is None else "each repeat graded anew by the task's filters and exact_match"
    return [tally.judged(name, note)]


def choose(path: Path, wanted: str | None, names: Sequence[str], *, default: bool = False) -> str:
    """Which of a file's scores to count: the wanted one, the only one, or the first by default.

    Raises:
        UsageError: None is wanted and there are several, or the wanted one is not there.
    """
    if wanted is None and (len(names) == 1 or (default and names)):
        return names[0]
    if wanted is None:
        listed = ", ".join(names)
        raise UsageError(f"{path} has several scores ({listed}); say which with --score")
    if wanted not in names:
        raise UsageError(f"{path} has no score {wanted!r}{nearest(wanted, names)}")
    return wanted


def _answers(row: Row) -> list[str]:
    """All answers to a document's one request."""
    first = row["resps"][0]
    return first if isinstance(first, list) else [first]


def _filtered(row: Row) -> Any:
    first = row["filtered_resps"][0]
    return first if isinstance(first, str) else NOT_GIVEN


def _grader(
    path: Path, rows: Iterable[tuple[int, Row]], metric: str, filter_name: str
) -> Callable[[str, str], tuple[str, bool]]:
    """What turns an answer and its target into the filtered answer and its verdict."""
    steps, options = _config(path, metric, filter_name)

    def filtered(text: str) -> str:
        for step in steps:
            text = _apply(path, step, text)
        return text

    def grade(text: str, target: str) -> tuple[str, bool]:
        answer = filtered(text)
        return answer, _normal(answer, options) == _normal(target, options)

    for line, row in rows:
        kept = row["filtered_resps"][0]
        for answer in [kept] if isinstance(kept, str) else kept:
            is_right = _normal(answer, options) == _normal(row["target"], options)
            known = answer in [filtered(text) for text in _answers(row)]
            if not known or (isinstance(kept, str) and float(is_right) != row[metric]):
                raise UsageError(
                    f"{path}, line {line}: lm-eval stores no score of single repeats, and grading "
                    f"them anew does not give the score that it has, {metric} = {row[metric]} of "
                    f"{answer!r}; grade them yourself and give rows of problem_id and correct"
                )
    return grade


def _config(
    path: Path, metric: str, filter_name: str
) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
    """Filters that change texts, and options of exact_match, from the results of the same run."""
    stem = path.name.removesuffix(".jsonl").removeprefix("samples_")
    task, _, time = stem.rpartition("_")
    file = path.with_name(f"results_{time}.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))["configs"][task]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"{path} has several answers a document, and lm-eval stores one score for all; to "
            f"grade each, {file.name} with the task's configuration has to lie beside it"
        ) from error
    named = [entry for entry in config.get("filter_list") or [] if entry["name"] == filter_name]
    steps = named[0]["filter"] if named else []
    options = [entry for entry in config["metric_list"] if entry["metric"] == metric]
    if metric != "exact_match" or not options:
        raise UsageError(
            f"{path} has several answers a document; gradmass can grade each by exact_match, not "
            f"by {metric}: grade them yourself and give rows of problem_id and correct"
        )
    return [step for step in steps if step["function"] not in SELECTIONS], options[0]


def _apply(path: Path, step: Mapping[str, Any], text: str) -> str:
    """One of lm-eval's filters of single answers."""
    match step["function"]:
        case "regex":
            found = re.findall(step.get("regex_pattern", r"#### (\-?[0-9\.\,]+)"), text)
            if not found:
                return str(step.get("fallback", "[invalid]"))
            choice = found[step.get("group_select", 0)]
            parts = [choice] if isinstance(choice, str) else [part for part in choice if part]
            return parts[0].strip()
        case "remove_whitespace":
            return text.removeprefix(" ")
        case "lowercase":
            return text.lower()
        case "uppercase":
            return text.upper()
        case unknown:
            raise UsageError(
                f"{path} has several answers a document, and gradmass does not know lm-eval's "
                f"filter {unknown!r} to grade each; grade them yourself and give rows of "
                "problem_id and correct"
            )


def _normal(text: str, options: Mapping[str, Any]) -> str:
    """A text as lm-eval's exact_match compares it."""
    for pattern in options.get("regexes_to_ignore") or []:
        text = re.sub(pattern, "", text)
    if options.get("ignore_case"):
        text = text.lower()
    ignored = ""
    if options.get("ignore_punctuation"):
        ignored += "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    if options.get("ignore_numbers"):
        ignored += "0123456789"
    return text.translate(str.maketrans("", "", ignored))
