"""Diagnostics in the report and on the terminal: what is shown is what was recorded."""

import re

import numpy as np
import pytest

from gradmass.commands.progress import Progress
from gradmass.config import Recipe
from gradmass.metrics.signal import solve_rates_by_problem
from gradmass.record import Run, RunWriter
from gradmass.report import diagnostics_plots
from gradmass.report import page as page_module
from gradmass.tables import load_recipe, to_tables
from gradmass.training.train import train

WARNING = {"name": "entropy collapse", "message": "it is 0.1", "cannot_tell": "why <b>"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A real run, looked at often, with a warning put in its record."""
    path = tmp_path_factory.mktemp("looked") / "run"
    flags = ["--weight=grpo", "--train.steps=5", "--train.num_problems=8", "--probe.every=2"]
    flags += ["--train.prompts_per_step=4", "--train.group_size=8", "--probe.rank_every=2"]
    flags += ["--eval.every=0", "--eval.num_problems=2", "--eval.num_samples=0"]
    recipe = load_recipe(Recipe, None, [*flags, '--probe.weights=["power", "reinforce"]'])
    config = {"label": recipe.weight.label, "recipe": to_tables(recipe)}
    writer = RunWriter.create(path, config, {"python": "3.11"})
    train(recipe, writer, lambda row: None)
    writer.log({"step": 6, "rollouts": 192, "warnings": [WARNING]})
    writer.close()
    return Run(path)


@pytest.fixture
def page(run, monkeypatch):
    """The page's words; figures have tests of their own, and take seconds."""
    monkeypatch.setattr(page_module, "inline_svg", lambda document, name: "")
    monkeypatch.setattr(page_module.plots, "svg", lambda figure: "")
    monkeypatch.setattr(
        page_module, "FIGURES", dict.fromkeys(page_module.FIGURES, lambda runs: None)
    )
    return lambda: page_module.render([run])


def lines(panel):
    return [np.array(line.get_xydata()) for line in panel.lines if len(line.get_xydata())]


def panel_of(figure, title):
    (panel,) = [p for p in figure.get_axes() if p.get_title(loc="left").startswith(title)]
    return panel


def test_warnings_stand_on_the_page_with_what_they_cannot_tell(page):
    page = page()
    assert "Step 6, entropy collapse</strong>: it is 0.1. Cannot tell why &lt;b&gt;." in page
    assert "No rule for a warning held" not in page


def test_a_page_without_warnings_says_that_this_is_no_proof_of_health(page, monkeypatch):
    monkeypatch.setattr(diagnostics_plots, "warnings_of", lambda run: [])
    assert "No rule for a warning held in this run. That is no proof of health" in page()


def test_other_weights_stand_in_a_table_with_means_over_looks(run, page):
    looked = [row["weights"] for row in run.diagnostics if row["kind"] == "signal"]
    assert len(looked) == 3
    judged = diagnostics_plots.weights_judged(run)
    assert [row["label"] for row in judged] == ["grpo", "power", "reinforce"]
    for place, row in enumerate(judged):
        ratios = [weights[place]["snr"] for weights in looked]
        known = [ratio for ratio in ratios if ratio is not None]
        assert row["num_looks"] == len(known)
        if known:
            assert row["mean_snr"] == pytest.approx(sum(known) / len(known))
        assert row["quality"] == looked[-1][place]["quality"]
    assert judged[2]["quality"] is None
    assert re.search(r"<th scope=\"row\">grpo \(in use\)</th>", page())


def test_figures_show_what_was_recorded(run):
    rows = [row for row in run.metrics if "signal/snr" in row]
    assert [row["step"] for row in rows] == [1, 2, 4]
    figure = diagnostics_plots.difficulty([run])
    known = [(row["rollouts"], row["signal/snr"]) for row in rows if row["signal/snr"] is not None]
    drawn = lines(panel_of(figure, "Signal to noise"))[0]
    np.testing.assert_allclose(drawn, known)
    difficulty = [row for row in run.diagnostics if row["kind"] == "difficulty"]
    first, last = lines(panel_of(figure, "Share of groups"))
    for found, row in ((first, difficulty[0]), (last, difficulty[-1])):
        counts = np.array(row["solve_rate_counts"])
        np.testing.assert_allclose(found[:, 1], counts / counts.sum())
        np.testing.assert_allclose(found[:, 0], np.arange(9) / 8)

    figure = diagnostics_plots.entropy_change([run])
    change = lines(panel_of(figure, "Measured change"))[0]
    np.testing.assert_allclose(change[:, 1], [row["entropy/change_nats"] for row in rows])

    figure = diagnostics_plots.matrices([run])
    (spectrum,) = [row for row in run.diagnostics if row["kind"] == "spectrum"][-1:]
    energies = lines(panel_of(figure, "Share of the change"))
    modules = spectrum["modules"]
    np.testing.assert_allclose(energies[0][:, 0], [m["energy_share"] for m in modules])
    np.testing.assert_allclose(energies[1][:, 0], [m["parameter_share"] for m in modules])
    heads = [m for m in spectrum["matrices"] if m["name"] == "lm_head.weight"]
    ranks = lines(panel_of(figure, "r₁ of the change"))
    assert ranks[0][-1, 0] == pytest.approx(heads[0]["r_1"])


def test_the_map_of_problems_holds_every_visit(run):
    visits = solve_rates_by_problem(run.rollouts())
    assert len(visits) == 8
    assert sorted(map(len, visits.values())) == [2, 2, 2, 2, 3, 3, 3, 3]
    figure = diagnostics_plots.problems([run])
    (mesh,) = [mesh for panel in figure.get_axes() for mesh in panel.collections]
    drawn = np.ma.filled(mesh.get_array(), np.nan)
    rates = sorted(([rate for _, rate in v] for v in visits.values()), key=lambda v: v[0])
    assert np.nansum(drawn) == pytest.approx(sum(map(sum, rates)))
    np.testing.assert_allclose(drawn[:, 0], [row[0] for row in rates])


def test_solve_rates_over_visits_leave_out_what_could_not_be_judged():
    rows = [
        {"problem_id": problem, "group": group, "step": step, "verdict": verdict}
        for problem, group, step, verdicts in (
            ("b", 0, 1, ("right", "wrong", "error")),
            ("a", 1, 1, ("unparsed", "timeout")),
            ("b", 2, 2, ("right", "right")),
            ("a", 3, 2, ("error", "error")),
        )
        for verdict in verdicts
    ]
    found = solve_rates_by_problem(rows)
    assert found == {"b": [(1, 0.5), (2, 1.0)], "a": [(1, 0.0)]}
    assert list(found) == ["b", "a"]


def test_runs_without_diagnostics_have_figures_that_say_so(tmp_path):
    config = {"label": "grpo", "recipe": {"weight": {"type": "grpo"}}}
    writer = RunWriter.create(tmp_path / "run", config, {})
    writer.log({"step": 0, "rollouts": 0})
    writer.close()
    for draw in diagnostics_plots.FIGURES.values():
        figure = draw([Run(tmp_path / "run")])
        texts = [text.get_text() for panel in figure.get_axes() for text in panel.texts]
        assert "not recorded in these runs" in texts


def test_a_warning_is_shown_while_the_run_goes_on(capsys):
    with Progress(9, ("loss/value",), labels=("fade",)) as progress:
        progress.show({"step": 6, "loss/value": 0.5, "warnings": [WARNING]}, "fade")
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == ("warning, fade step 6: entropy collapse: it is 0.1. Cannot tell why <b>.")
    assert shown[1].startswith("fade step 6/9 loss 0.500")
