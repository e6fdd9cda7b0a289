"""``gradmass explore`` from its arguments to the file; what the page does is in tests/browser."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from gradmass.cli import main
from gradmass.masses import masses_of
from gradmass.record import RunWriter
from gradmass.report.explorer import GROUP_SIZES, example_run, formula_names, render
from gradmass.weights import WEIGHTS


def explore(*argv, code=0):
    with pytest.raises(SystemExit) as ended:
        main(["explore", *argv])
    assert ended.value.code == code


def data_of(file):
    text = file.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_run(path, rows=(), evaluations=(), rollouts=(), weight=None):
    recipe = {"weight": weight or {"type": "grpo"}, "task": {"type": "countdown"}}
    recipe["train"] = {"steps": 9}
    writer = RunWriter.create(path, {"label": "grpo", "recipe": recipe}, {})
    for row in rows:
        writer.log(row)
    for row in evaluations:
        writer.log_evaluation(row)
    if rollouts:
        writer.log_rollouts(rollouts)
    writer.close()
    return path


def batch(step, rate=0.5, entropy=1.0, **more):
    row = {"step": step, "rollouts": 8 * step, "rollout/solve_rate": rate}
    return {**row, "entropy/mean_nats": entropy, **more}


def test_without_arguments_it_writes_the_page_and_says_where(tmp_path, capsys):
    explore()
    assert capsys.readouterr().out == "explorer.html\n"
    data = data_of(tmp_path / "explorer.html")
    assert [shown["name"] for shown in data["view"]] == ["grpo", "power", "asym_grpo_delta", "fade"]
    assert data["run"] == example_run()
    assert data["group_sizes"] == list(GROUP_SIZES)
    explore("--json", "-o", "deep/er/page.html")
    assert json.loads(capsys.readouterr().out) == {"explorer": "deep/er/page.html"}
    assert (tmp_path / "deep/er/page.html").stat().st_size < 500_000


def test_equal_arguments_make_equal_bytes(tmp_path):
    explore("-o", "one.html")
    explore("-o", "two.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_the_page_says_of_each_weight_what_its_class_does(tmp_path):
    explore()
    cards = {card["name"]: card for card in data_of(tmp_path / "explorer.html")["weights"]}
    assert cards.keys() == set(formula_names()) <= set(WEIGHTS.names())
    assert cards["power"]["fields"]["alpha"] == [
        2.0,
        "Exponent of the failure rate in the masses, above 0.",
    ]
    assert cards["psr"]["on_ties"] == "value"


def test_weights_without_a_formula_are_tabulated(tmp_path):
    (tmp_path / "mine.py").write_text("def mine(rewards):\n    return rewards / len(rewards)\n")
    explore("mine.py:mine", "clip:inner=pkpo_s,inner.k=4", "grpo", "power:alpha=3")
    data = data_of(tmp_path / "explorer.html")
    labels = [table["label"] for table in data["tables"]]
    assert [shown["name"] for shown in data["view"]] == [*labels, "grpo", "power"]
    mine, clipped = data["tables"]
    assert mine["sizes"]["2"] == {"success": [0, 0.5, 0.5], "failure": [0, 0, 0]}
    assert list(mine["sizes"]) == [str(size) for size in GROUP_SIZES]
    # Groups that are too small for it are left out.
    assert list(clipped["sizes"]) == [str(size) for size in GROUP_SIZES if size >= 4]
    weight = WEIGHTS["clip"](inner=WEIGHTS["pkpo_s"](k=4))
    w_S = masses_of(weight, np.array([1 - 1e-12]), 4).w_S_N[0]
    assert clipped["sizes"]["4"]["success"][4] == pytest.approx(w_S)
    assert data["view"][3]["fields"] == {"alpha": 3.0}


def test_a_run_is_read_batch_by_batch(tmp_path):
    rows = [
        {"step": 0, "rollouts": 0, "test/pass@1": 0.2},
        batch(1, 0.25, 0.9),
        batch(2, 0.5, 0.8, rollouts=8),  # a second update on the first batch
        batch(3, None, 0.7),
    ]
    rates = {"problem_ids": ["a", "b"], "solve_probability": [1.0000000000000002, 0.5]}
    evaluations = [{"step": step, "split": "test", **rates} for step in (0, 3, 6)]
    run = write_run(tmp_path / "run", rows, evaluations)
    explore("--run", str(run))
    read = data_of(tmp_path / "explorer.html")["run"]
    assert read["step"] == [0, 2]
    assert read["solve_rate"] == [0.25, None]
    assert read["entropy_nats"] == [0.9, 0.7]
    assert read["num_steps"] == 9
    labels = ["test problems at step 6", "test problems at step 0"]
    assert read["priors"] == [
        {"label": label, "num_problems": 2, "rates": [0.5, 1.0], "shares": [0.5, 0.5]}
        for label in labels
    ]


def test_without_evaluations_the_solve_rates_are_those_of_training(tmp_path):
    verdicts = {"a": ["right", "wrong", "error"], "b": ["wrong", "unparsed"], "c": ["error"]}
    rollouts = [
        {"problem_id": id_, "verdict": verdict, "step": 1}
        for id_, found in verdicts.items()
        for verdict in found
    ]
    run = write_run(tmp_path / "run", [batch(1)], rollouts=rollouts)
    explore("--run", str(run))
    (prior,) = data_of(tmp_path / "explorer.html")["run"]["priors"]
    assert prior["label"] == "problems as they were trained on"
    assert dict(zip(prior["rates"], prior["shares"], strict=True)) == {0.0: 0.5, 0.5: 0.5}


def test_a_run_under_fade_brings_its_own_parameters(tmp_path):
    weight = {"type": "fade", "alpha_max": 2.0, "target_entropy": 0.25}
    run = write_run(tmp_path / "run", [batch(1)], weight=weight)
    explore("--run", str(run))
    controller = data_of(tmp_path / "explorer.html")["run"]["fade"]
    assert controller == {"alpha_max": 2.0, "target_entropy": 0.25}


def test_nothing_of_the_data_ends_its_script():
    page = render({"run": {"label": "</script>/* style.css */<!--"}})
    assert page.count("</script>") == 2
    assert "\\u003c/script>/* style.css */\\u003c!--" in page


ERRORS = [
    ("nonsense", "unknown weight 'nonsense'"),
    ("power:alpha=-1", "power needs a finite alpha above 0, got -1"),
    ("fade fade:ema=0.5", "the page has one controller: give fade once"),
    (" ".join(f"power:alpha={i}" for i in range(1, 10)), "at most 8 weights at once, got 9"),
    ("constant_mass", "explore cannot show constant_mass"),
    ("--run nowhere", "nowhere is no run directory"),
    ("--run empty", "run empty has no row with rollout/solve_rate or entropy/mean_nats yet"),
    ("-o folder", "cannot write the explorer folder: Is a directory; name another file"),
    ("-o notes.txt", "notes.txt is there and no HTML page; name another file for the explorer"),
    ("--rum x", "unknown flag --rum; did you mean '--run'?"),
]


@pytest.mark.parametrize(("argv", "message"), ERRORS, ids=[argv for argv, _ in ERRORS])
def test_what_cannot_be_explored_is_said_in_one_line(tmp_path, capsys, argv, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("keep me")
    write_run(tmp_path / "empty", [{"step": 0, "rollouts": 0}])
    explore(*argv.split(), code=2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gradmass: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert (tmp_path / "notes.txt").read_text() == "keep me"
    assert not list(tmp_path.glob("*.html"))


def test_it_needs_neither_torch_nor_matplotlib_nor_jinja(tmp_path):
    code = (
        "import sys\nfrom gradmass.commands.explore import main\nmain([])\n"
        "print({'torch', 'matplotlib', 'jinja2'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "explorer.html\nset()\n"
