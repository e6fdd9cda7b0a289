"""``gradmass passk`` and ``gradmass compare`` from their arguments to what they print and write."""

import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradmass.cli import main
from gradmass.record import RunWriter

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def command(capsys):
    """Run a command; gives its stdout and stderr."""

    def run(*argv, code=0):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in argv])
        out, err = capsys.readouterr()
        assert ended.value.code == code, err
        return out, err

    return run


def write(name, rows):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_model(name, rates, num_samples=16, seed=0):
    """Samples of a model by the solve rate of each problem."""
    generator = random.Random(seed)
    write(
        name,
        [
            {"problem_id": f"p{i}", "sample": j, "correct": generator.random() < rate}
            for i, rate in enumerate(rates)
            for j in range(num_samples)
        ],
    )


def write_run(path, probabilities, task_seed=0):
    """A run whose last exact evaluation has these probabilities."""
    recipe = {"task": {"type": "countdown", "seed": task_seed}, "weight": {"type": "grpo"}}
    writer = RunWriter.create(Path(path), {"label": "grpo", "recipe": recipe}, {})
    for step, shift in ((0, 0.5), (4, 0.0)):
        for split, by_problem in probabilities.items():
            values = [p * (1 - shift) for p in by_problem]
            ids = [f"{split}{i}" for i in range(len(values))]
            writer.log_evaluation(
                {"step": step, "split": split, "problem_ids": ids, "solve_probability": values}
            )
    writer.close()


def test_json_has_value_and_interval_of_each_k_and_what_they_rest_on(command):
    write("rows.jsonl", [{"problem_id": str(i % 30), "correct": i % 7 == 0} for i in range(480)])
    with Path("rows.jsonl").open("a") as file:
        file.write('{"problem_id": "3", "correct": null}\n')
    found = json.loads(command("passk", "rows.jsonl", "--k", "1,10", "--json")[0])
    assert [entry["k"] for entry in found["pass_at_k"]] == [1, 10]
    for entry in found["pass_at_k"]:
        assert 0 <= entry["low"] < entry["value"] < entry["high"] <= 1
        assert entry["interval"] == "problems-like-these"
    right = [sum(i % 7 == 0 for i in range(p, 480, 30)) for p in range(30)]
    for entry in found["pass_at_k"]:
        missed = [math.comb(16 - c, entry["k"]) / math.comb(16, entry["k"]) for c in right]
        assert entry["value"] == pytest.approx(1 - sum(missed) / 30)
    assert (found["num_problems"], found["num_samples"], found["num_unscorable"]) == (30, 481, 1)
    assert found["samples_per_problem"] == [16, 16]


def test_without_k_one_run_gives_the_whole_ladder_with_n_and_interval(command):
    write_model("a.jsonl", [0.1, 0.5, 0.3, 0.9])
    out, err = command("passk", "a.jsonl")
    assert err == ""
    assert out.startswith("a: 4 problems, 16 samples each, 0 unscorable\n")
    rows = re.findall(r"^ (\d+) +(\d\.\d{3}) +\[(\d\.\d{3}), (\d\.\d{3})\]", out, re.MULTILINE)
    assert [int(k) for k, *_ in rows] == [1, 2, 4, 8, 16]
    assert "95% interval for another set of such problems." in out
    out, _ = command("passk", "a.jsonl", "--interval", "these-problems")
    assert "95% interval for these very problems, sampled again." in out


def test_unscorable_samples_lower_n_and_problems_without_any_other_are_left_out(command):
    rows = [{"problem_id": p, "correct": c} for p in "ab" for c in (True, False, None)]
    write("a.jsonl", [*rows, {"problem_id": "c", "correct": None}])
    found = json.loads(command("passk", "a.jsonl", "--json")[0])
    assert found["samples_per_problem"] == [2, 2]
    assert (found["num_problems"], found["num_problems_left_out"]) == (2, 1)
    assert (found["num_samples"], found["num_unscorable"]) == (7, 3)
    out, _ = command("passk", "a.jsonl")
    assert "2 samples each, 3 unscorable, 1 problem without a scorable sample left out" in out


def test_several_models_are_a_list_and_share_their_ladder(command):
    write_model("a.jsonl", [0.2, 0.4], 16)
    write_model("b.jsonl", [0.2, 0.4], 4)
    found = json.loads(command("passk", "a.jsonl", "b.jsonl", "--json")[0])
    assert [model["label"] for model in found] == ["a", "b"]
    assert [[e["k"] for e in model["pass_at_k"]] for model in found] == [[1, 2, 4]] * 2


def test_models_of_one_name_are_told_apart_by_their_path(command):
    for folder in ("x", "y"):
        Path(folder).mkdir()
        write_model(f"{folder}/rows.jsonl", [0.2, 0.4])
    found = json.loads(command("passk", "x/rows.jsonl", "y/rows.jsonl", "--json")[0])
    assert [model["label"] for model in found] == ["x/rows.jsonl", "y/rows.jsonl"]


@pytest.mark.parametrize(
    ("name", "score", "value"),
    [
        ("toy-sums_zstd.eval", "match", 0.5),
        ("samples_solution.eval_results.json", "plus", 0.5),
        ("Scenario.codegeneration_2_0.2_eval_all.json", "graded", 0.5),
        ("samples.jsonl_results.jsonl", "passed", 1 / 3),
    ],
)
def test_files_of_other_tools_give_their_own_pass_at_1(command, name, score, value):
    found = json.loads(command("passk", FIXTURES / name, "--k", 1, "--json")[0])
    assert found["score"] == score
    assert found["pass_at_k"][0]["value"] == pytest.approx(value)


def test_answers_give_votes_and_distinct_right_answers(command):
    samples = [("7", True), ("7", True), ("8", False), ("9", False)]
    write(
        "a.jsonl", [{"problem_id": p, "correct": c, "answer": x} for p in "ab" for x, c in samples]
    )
    found = json.loads(command("passk", "a.jsonl", "--k", 1, 4, "--answers", "--json")[0])
    assert [entry["value"] for entry in found["maj_at_k"]] == [0.5, 1.0]
    assert [entry["value"] for entry in found["distinct_right_at_k"]] == [0.5, 1.0]
    assert [entry["value"] for entry in found["pass_hat_k"]] == [0.5, 0.0]
    out, _ = command("passk", "a.jsonl", "--answers")
    assert re.search(r"pass\^k +maj@k +distinct right", out)


def test_a_run_directory_is_evaluated_exactly_at_its_last_step(command):
    write_run("run", {"test": [0.5, 0.1, 0.3], "ood": [0.2, 0.0, 0.1]})
    test, ood = json.loads(command("passk", "run", "--k", 2, "--json")[0])
    assert (test["part"], ood["part"]) == ("test", "ood")
    assert test["pass_at_k"][0]["value"] == pytest.approx((0.75 + 0.19 + 0.51) / 3)
    assert test["num_samples"] is None
    assert command("passk", "run")[0].startswith("run (test): 3 problems, exact, step 4\n")


def test_rollouts_of_training_give_a_curve_of_each_step(command):
    write(
        "rollouts.jsonl",
        [
            {"step": s, "problem_id": "p", "group": 4 * s + g, "verdict": v}
            for s in (1, 2)
            for g in range(4)
            for v in ["right"] * (g * s % 4) + ["wrong"] * (4 - g * s % 4)
        ],
    )
    first, second = json.loads(command("passk", "rollouts.jsonl", "--json")[0])
    assert (first["part"], second["part"]) == ("step 1", "step 2")
    assert [e["value"] for e in first["pass_at_k"]] == pytest.approx(
        [6 / 16, (0.5 + 5 / 6 + 1) / 4, 0.75]
    )
    assert second["pass_at_k"][0]["value"] == pytest.approx(4 / 16)


def test_tables_for_a_paper(command):
    write_model("base_8b.jsonl", [0.2, 0.4, 0.6])
    write_model("fade.jsonl", [0.3, 0.5, 0.7])
    values = [
        [100 * e[key] for e in model["pass_at_k"] for key in ("value", "low", "high")]
        for model in json.loads(
            command("passk", "base_8b.jsonl", "fade.jsonl", "--k", 1, 8, "--json")[0]
        )
    ]
    out, _ = command("passk", "base_8b.jsonl", "fade.jsonl", "--k", 1, 8, "--table", "md")
    lines = out.splitlines()
    assert lines[:2] == ["| model | pass@1 | pass@8 |", "|---|---|---|"]
    for line, name, numbers in zip(lines[2:4], ("base_8b", "fade"), values, strict=True):
        assert line.startswith(f"| {name} | ")
        found = re.findall(r"\d+\.\d", line.removeprefix(f"| {name}"))
        assert found == [f"{number:.1f}" for number in numbers]
    text = " ".join(lines[5:])
    assert "another set of such problems. Each model: 3 problems, 16 samples each" in text
    out, _ = command("passk", "base_8b.jsonl", "fade.jsonl", "--k", 1, 8, "--table", "latex")
    assert r"base\_8b & " in out
    assert out.count(r"\\") == 3
    assert r"95\% intervals" in out


def test_the_figure_has_a_curve_and_a_band_of_each_model(command):
    write_model("base.jsonl", [0.2, 0.4, 0.6])
    write_model("fade.jsonl", [0.3, 0.5, 0.7])
    out, _ = command("passk", "base.jsonl", "fade.jsonl", "--plot", "fig.svg")
    assert out.endswith("fig.svg\n")
    svg = Path("fig.svg").read_text()
    for text in (">base<", ">fade<", ">pass@k<", ">16<", "another set of such problems"):
        assert text in svg
    assert svg.count('id="FillBetweenPolyCollection') == 2
    assert "#d55e00" in svg  # fade's colour
    command("passk", "base.jsonl", "--k", 4, "--plot", "one.png")
    assert Path("one.png").read_bytes().startswith(b"\x89PNG")


# compare


def test_a_comparison_is_paired_and_says_which_passes_more(command):
    rates = [i / 60 for i in range(60)]
    write_model("a.jsonl", [min(1, rate + 0.25) for rate in rates], 32)
    write_model("b.jsonl", rates, 16, seed=1)
    found = json.loads(command("compare", "a.jsonl", "b.jsonl", "--k", 1, 4, "--json")[0])
    assert found["num_problems"] == 60
    assert found["a"]["samples_per_problem"] == [32, 32]
    for row in found["differences"]:
        assert 0 < row["low"] < row["difference"] < row["high"]
        assert row["difference"] == pytest.approx(row["a"] - row["b"])
        assert row["is_decided"]
        assert 2 <= row["num_problems_needed"] < 60
    swapped = json.loads(command("compare", "b.jsonl", "a.jsonl", "--k", 1, 4, "--json")[0])
    for row, other in zip(found["differences"], swapped["differences"], strict=True):
        assert (row["low"], row["high"]) == (-other["high"], -other["low"])
    out, _ = command("compare", "a.jsonl", "b.jsonl", "--k", 1, 4)
    assert out.count("A passes more") == 2
    assert "B passes more" in command("compare", "b.jsonl", "a.jsonl", "--k", 1)[0]
    out, _ = command("compare", "a.jsonl", "a.jsonl", "--k", 1)
    assert re.search(r" 1 .* \+0\.000 .* not told apart +-", out)
    out, _ = command("compare", "a.jsonl", "b.jsonl", "--interval", "these-problems")
    assert "problems needed" not in out


def test_order_and_number_of_rows_do_not_matter_to_a_comparison(command):
    write_model("a.jsonl", [0.3, 0.6, 0.9])
    lines = Path("a.jsonl").read_text().splitlines()
    Path("b.jsonl").write_text("\n".join(reversed(lines)))
    (row,) = json.loads(command("compare", "a.jsonl", "b.jsonl", "--k", 4, "--json")[0])[
        "differences"
    ]
    assert row["difference"] == 0


def test_two_runs_are_compared_exactly_split_by_split(command):
    write_run("a", {"test": [0.5, 0.1, 0.4], "ood": [0.2, 0.0, 0.3]})
    write_run("b", {"test": [0.4, 0.1, 0.2], "ood": [0.2, 0.1, 0.4]})
    test, ood = json.loads(command("compare", "a", "b", "--k", 1, "--json")[0])
    assert (test["part"], ood["part"]) == ("test", "ood")
    assert test["differences"][0]["difference"] == pytest.approx(0.1)
    assert ood["differences"][0]["difference"] == pytest.approx(-0.2 / 3)


def test_problems_that_one_side_could_not_score_are_left_out_of_both(command):
    write("a.jsonl", [{"problem_id": p, "correct": True} for p in "abc"])
    write(
        "b.jsonl",
        [{"problem_id": p, "correct": c} for p, c in zip("abc", (True, None, False), strict=True)],
    )
    found = json.loads(command("compare", "a.jsonl", "b.jsonl", "--json")[0])
    assert (found["num_problems"], found["num_problems_left_out"]) == (2, 1)
    assert found["differences"][0]["difference"] == 0.5


def test_what_is_not_told_apart_needs_more_problems_than_there_are(command):
    for n, verdict, needed in ((3, "not told apart", "4"), (4, "A passes more", "3")):
        for name, is_right in (("a.jsonl", True), ("b.jsonl", False)):
            write(name, [{"problem_id": str(i % n), "correct": is_right} for i in range(4 * n)])
        out, _ = command("compare", "a.jsonl", "b.jsonl", "--k", 1)
        assert re.search(rf" 1 .* \+1\.000 .* {verdict} +{needed} *$", out, re.MULTILINE)


def test_verdicts_that_a_threshold_does_not_judge_are_said(command):
    write("clear.jsonl", [{"problem_id": p, "correct": True} for p in "aabb"])
    write("mixed.jsonl", [{"problem_id": p, "correct": c} for p in "ab" for c in (True, 0.7, 0.2)])
    write("graded.jsonl", [{"problem_id": p, "correct": c} for p in "ab" for c in (0.7, None)])
    write_run("run", {"test": [0.1, 0.2]})
    clear = "the verdicts are true or false, not graded by --threshold"
    notes = {
        "clear.jsonl": clear,
        "mixed.jsonl": "2 verdicts are true or false, not graded by --threshold",
        "graded.jsonl": "",
        "run": "step 4; not graded by --threshold",
        FIXTURES / "samples_solution.eval_results.json": clear,
    }
    for name, note in notes.items():
        assert json.loads(command("passk", name, "--threshold", 0.5, "--json")[0])["note"] == note
    assert json.loads(command("passk", "clear.jsonl", "--json")[0])["note"] == ""
    out, _ = command("passk", "clear.jsonl", "--threshold", 0.5)
    assert out.startswith("clear: 2 problems, 2 samples each, 0 unscorable, the verdicts are true ")
    both = command("compare", "clear.jsonl", "graded.jsonl", "--threshold", 0.5, "--json")[0]
    assert [json.loads(both)[side]["note"] for side in "ab"] == [clear, ""]


def test_one_problem_has_an_interval_for_itself_and_is_called_one(command):
    write("lone.jsonl", [{"problem_id": "p0", "correct": True}])
    out, _ = command("passk", "lone.jsonl", "--interval", "these-problems")
    assert out.startswith("lone: 1 problem, 1 sample each, 0 unscorable\n")


# What a user can do wrong


def test_mistakes_are_one_line_each(command):
    write_model("a.jsonl", [0.2, 0.4], 4)
    write(
        "one.jsonl", [{"problem_id": "p0", "correct": True}, {"problem_id": "x", "correct": True}]
    )
    write("lone.jsonl", [{"problem_id": "p0", "correct": True}])
    write("left.jsonl", [{"problem_id": p, "correct": p == "a" or None} for p in "abc"])
    write("null.jsonl", [{"problem_id": "p0", "correct": None}])
    write("empty.jsonl", [])
    write_run("run", {"test": [0.1, 0.2]})
    write_run("seed", {"test": [0.1, 0.2]}, task_seed=1)
    write_run("never", {})
    cases = {
        "passk": "passk needs samples",
        "passk nope.jsonl": "there is no file nope.jsonl",
        "passk empty.jsonl": "empty.jsonl has no rows",
        "passk null.jsonl": "null.jsonl: none of its samples is scorable (it has 1 sample)",
        "passk a.jsonl --k 1 8": "a.jsonl: pass@8 needs 8 scorable samples of every problem, but 2 "
        "of 2 problems have fewer, 'p0' only 4; lower k to 4",
        "passk a.jsonl --k 0": "--k needs different numbers of at least 1, got 0",
        "passk a.jsonl --k 2 2": "got 2 2",
        "passk a.jsonl --k x": "--k needs whole numbers, got 'x'",
        "passk --k 1 a.jsonl": "passk needs samples",
        "passk a.jsonl --k 1 b.jsonl": "got 'b.jsonl'; files come before --k",
        "passk lone.jsonl": "lone.jsonl: an interval for another set of such problems needs at "
        "least 2 problems, got 1; for this very one: --interval these-problems",
        "passk left.jsonl": "got 1, beside 2 without a scorable sample; for this very one",
        "passk a.jsonl --answers": "a.jsonl does not tell the answer of every sample",
        "passk a.jsonl --plot a.pdf": "--plot writes .svg or .png, got 'a.pdf'",
        "passk a.jsonl --plot no/a.svg": "--plot no/a.svg: there is no folder 'no'; make it first",
        "passk a.jsonl --k --json": "--k needs a value",
        "passk a.jsonl --k ,": "--k needs whole numbers, got ','",
        "compare a.jsonl a.jsonl --k": "--k needs a value (gradmass compare --help)",
        "passk a.jsonl --threshold nan": "--threshold must be a finite number such as 0.5, got nan",
        "passk run --threshold nan": "--threshold must be a finite number such as 0.5, got nan",
        "compare a.jsonl a.jsonl --threshold=-inf": "such as 0.5, got -inf",
        "compare lone.jsonl lone.jsonl": "lone.jsonl and lone.jsonl: an interval for another set",
        "passk a.jsonl --interval both": "'both' is not one of problems-like-these, these-problems",
        "passk never": "run never has no exact evaluation",
        "compare a.jsonl": "missing B",
        "compare a.jsonl one.jsonl": "a.jsonl, line 5: problem 'p1' is not in one.jsonl; 1 of 2",
        "compare one.jsonl a.jsonl": "one.jsonl, line 2: problem 'x' is not in a.jsonl; 1 of 2",
        "compare a.jsonl a.jsonl --k 5": "a.jsonl: pass@5 needs 5 scorable samples",
        "compare run seed": "different problems: task.seed is 0 and 1",
    }
    for argv, shown in cases.items():
        out, err = command(*argv.split(), code=2)
        assert out == ""
        assert err.startswith("gradmass: error: ")
        assert err.count("\n") == 1
        assert shown in err, argv


def test_looking_at_samples_loads_nothing_slow():
    write_model("a.jsonl", [0.2, 0.4])
    script = (
        "import sys\nfrom gradmass.cli import main\n"
        "try: main(['passk', 'a.jsonl'])\nexcept SystemExit: pass\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pass@k" in done.stdout
    assert not {"torch", "transformers", "matplotlib", "scipy"} & set(done.stderr.split())
