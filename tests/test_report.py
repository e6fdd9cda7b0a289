"""None"""

import itertools
import json
import math
import re
from pathlib import Path

import matplotlib
import pytest
from reported import (
    EVIL,
    NUM_PROBLEMS,
    Checker,
    gain,
    pass_at,
    start_probability,
    words,
    write_run,
)

from gradmass.record import Run, RunWriter
from gradmass.report import plots
from gradmass.report.arms import arms_of
from gradmass.report.evaluations import at_equal_pass_at_1, compare
from gradmass.report.page import write_report
from gradmass.types import UsageError


def report(runs: list[Run], folder: Path) -> str:
    write_report(runs, folder / "report.html")
    return (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    root = tmp_path_factory.mktemp("runs")
    return [
        write_run(root / "fade", "fade"),
        write_run(root / "grpo", "grpo", completion=EVIL),
        write_run(
            root / "power",
            "power",
            num_steps=5,
            status="interrupted",
            label="power<b>",
            recipe={"optim": {"lr": 0.01}},
        ),
        write_run(root / "other", "mine.py:Mine", ids="other-"),
    ]


@pytest.fixture(scope="module")
def page(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> str:
    return report(runs, tmp_path_factory.mktemp("out"))


def test_tags_nest_and_references_resolve_within_the_page(page):
    checked = Checker(page)
    assert checked.open == []
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert max(checked.ids.values()) == 1
    used = {value for _, value in checked.links}
    used |= {f"#{name}" for name in re.findall(r"url\(#([^)]+)\)", page)}
    assert len(used) > 20
    assert used == {f"#{name}" for name in checked.ids if f"#{name}" in used}


def test_page_loads_nothing_from_anywhere(page):
    checked = Checker(page)
    assert all(value.startswith("#") for _, value in checked.links)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & checked.tags.keys()
    assert re.findall(r"url\((?!#)|@import|@font-face|fetch\(|XMLHttpRequest|import\(", page) == []
    addresses = set(re.findall(r"https?://[^\"'\s<]+", page))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_every_run_and_its_status_is_shown(page):
    text = words(page)
    for label in ("fade", "grpo", "power<b>", "mine.py:Mine"):
        assert label in text
    assert "power<b> was interrupted at step 5 of 8." in text
    assert "of its 100 rollouts; they count neither" in text  # 5 unscorable


def test_differences_are_those_of_a_plain_loop(page):
    cells = table_row(page, "Difference of exact pass@k from grpo", "fade")
    assert cells[1] == "8"
    expected = []
    for split, k in itertools.product(("test", "ood"), (1, 10, 100)):
        total = 0.0
        for i in range(NUM_PROBLEMS):
            start = start_probability(split, i)
            mine, theirs = (start + gain(name, split, 8, i) for name in ("fade", "grpo"))
            total += (1 - theirs) ** k - (1 - mine) ** k
        expected.append(total / NUM_PROBLEMS)
    for cell, mean in zip(cells[2:], expected, strict=True):
        shown = re.search(r"([+−]?)(\d?\.\d{3}) \[", cell)
        assert shown, cell
        assert float(shown[2]) * (-1 if shown[1] == "−" else 1) == pytest.approx(mean, abs=6e-4)
    # The same gain on each problem leaves no doubt; gains and losses in equal number nothing but.
    assert cells[2] == "+.050 [.050, .050]"
    assert cells[5].startswith("cannot tell .000 [−.0")


def test_verdict_is_in_words_and_warns_that_seeds_are_not_in_it(page):
    text = words(page)
    assert "fade against grpo at step 8, on 20 test problems: pass@1 +.050 [.050, .050]," in text
    assert "on 20 ood problems: pass@1 cannot tell from these runs: .000 [" in text
    assert "They are not over seeds." in text
    # Power alone has another learning rate than grpo.
    verdicts = re.findall(r'<p class="verdict">(.*?)</p>', page, re.DOTALL)
    assert ["also differ in optim.lr:" in verdict for verdict in verdicts] == [False, True, False]
    assert page.count("also differ in") == 1


def test_runs_of_unequal_length_are_compared_at_the_last_step_both_evaluated(page):
    assert table_row(page, "Where each run ended", "power<b>")[1:4] == ["interrupted", "5", "100"]
    assert table_row(page, "Difference of exact", "power<b>")[1] == "4"


def test_other_problems_are_not_compared(page):
    cells = table_row(page, "Difference of exact", "mine.py:Mine")
    assert cells[1:] == [
        "cannot tell from these runs: they were not evaluated on the same problems"
    ]
    assert table_row(page, "At equal pass@1", "mine.py:Mine") == []


def test_the_same_ids_in_another_task_are_other_problems(runs, tmp_path):
    harder = write_run(tmp_path / "harder", recipe={"task": {"type": "countdown", "seed": 1}})
    assert compare(runs[0], runs[1], 8, 8).obstacle == ""
    assert compare(harder, runs[1], 8, 8).obstacle == "they were not evaluated on the same problems"


def rollouts_of(page: str) -> dict:
    """The data of the browser of rollouts."""
    (text,) = re.findall(r'id="rollouts">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def table_row(page: str, heading: str, label: str) -> list[str]:
    """Texts of the cells of a run's row in the table under a heading."""
    table = page[page.index(heading) :].partition("</table>")[0]
    for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL):
        cells = [words(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        if cells[0] == label:
            return cells
    return []


def test_equal_pass_at_1_interpolates_between_evaluations(runs):
    # On test problems, power ends lowest, at step 5: .295 + .05. Grpo is there five eighths along.
    level, (fade, grpo, power) = at_equal_pass_at_1(runs[:3], "test")
    assert level == pytest.approx(0.345)
    starts = [start_probability("test", i) for i in range(NUM_PROBLEMS)]
    at_0, at_4, at_5, at_8 = (
        pass_at([p + 0.01 * step for p in starts], 100) for step in (0, 4, 5, 8)
    )
    assert power == pytest.approx(at_5)
    assert grpo == pytest.approx(0.75 * at_4 + 0.25 * at_8)
    fade_at_4 = pass_at([p + 0.04 + 0.05 for p in starts], 100)  # pass@1 .295 + .09
    assert fade == pytest.approx(at_0 + 5 / 9 * (fade_at_4 - at_0))


def test_text_of_the_record_is_escaped(page):
    assert "<script>alert" not in page
    assert "<b> was" not in page
    assert page.count("</script>") == Checker(page).tags["script"] == 2
    assert EVIL in {row[4] for row in rollouts_of(page)["rows"]}


def test_fields_that_differ_come_before_all_fields(page):
    differing, _, full = page.partition("Every field")
    differing = differing[differing.index("The fields in which the runs differ") :]
    fields = re.findall(r'<th scope="row">([a-z_.]+)</th>', differing)
    assert fields == ["weight.type", "weight.alpha_max", "optim.lr"]
    assert '<th scope="row">task.type</th><td colspan="4">countdown</td>' in full


@pytest.mark.slow
def test_equal_records_give_equal_bytes(tmp_path):
    pages = []
    for name in ("a", "b"):
        run = write_run(tmp_path / name / "run", "fade")
        write_report([run], tmp_path / name / "new" / "folder" / "page.html")
        pages.append((tmp_path / name / "new" / "folder" / "page.html").read_text())
    assert pages[0] == pages[1]
    assert [path.name for path in (tmp_path / "a" / "new" / "folder").iterdir()] == ["page.html"]
    # A single run is compared with its own start: each test problem gained .08 + .05.
    assert "fade against its own start" in pages[0]
    assert table_row(pages[0], "Difference of exact pass@k", "fade")[2] == "+.130 [.130, .130]"
    assert "At equal pass@1:" not in pages[0]


def test_a_run_that_has_only_started(tmp_path):
    run = write_run(tmp_path / "run", num_steps=0, status="running")
    page = report([run], tmp_path)
    assert "grpo is running, or was stopped without notice: recorded to step 0 of 8." in page
    assert "cannot tell from this run: there is no evaluation after the start" in page
    assert rollouts_of(page)["rows"] == []
    assert Checker(page).open == []


def test_two_runs_of_one_label_are_told_apart_by_folder_and_dashes(tmp_path):
    seeds = [write_run(tmp_path / name) for name in ("seed0", "seed1")]
    first, second = (arm.look for arm in arms_of(seeds))
    assert (first.label, second.label) == ("grpo (seed0)", "grpo (seed1)")
    assert first.color == second.color
    assert first.dash != second.dash


def test_colours_belong_to_names_whatever_else_is_drawn(runs):
    alone = [arms_of([run])[0].look.color for run in runs]
    assert [arm.look.color for arm in arms_of(runs)] == alone
    assert [arm.look.color for arm in arms_of(runs[::-1])] == alone[::-1]
    assert len(set(alone)) == len(alone)
    assert alone[3] == "#999933"  # an unknown name keeps its colour in every process


def test_what_is_not_recorded_is_said_and_not_drawn(runs):
    with_alpha, without = plots.svg(plots.masses(runs)), plots.svg(plots.masses(runs[1:]))
    assert with_alpha.count("not recorded in these runs") == 0
    assert without.count("not recorded in these runs") == 2  # alpha and delta


def test_figures_ignore_and_keep_the_settings_of_the_user(runs):
    usual = plots.svg(plots.tradeoff(runs))
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.grid": False}):
        assert plots.svg(plots.tradeoff(runs)) == usual
        assert matplotlib.rcParams["font.size"] == 30


def test_both_halves_of_a_figure_are_windows_on_one_drawing(page):
    figures = re.findall(r'<div class="drawing".*?</div>', page, re.DOTALL)
    assert len(figures) == 14
    for figure in figures:
        (x, _, width, height), (x_2, _, width_2, height_2) = (
            [float(number) for number in box.split()]
            for box in re.findall(r'<svg viewBox="([^"]+)"', figure)
        )
        assert (x, x_2, width, height) == (0, width, width_2, height_2)
        assert figure.count("<use ") > figure.count("</use>")
        assert 'data-width="%g"' % (2 * width) in figure


def test_rolling_mean_is_centred_and_shorter_at_the_ends():
    values = [float(i * i % 7) for i in range(12)]
    for window in (1, 2, 5, 30):
        for i, mean in enumerate(plots.rolling_mean(values, window)):
            near = range(i - (window - 1) // 2, i + window // 2 + 1)
            inside = [values[j] for j in near if 0 <= j < len(values)]
            assert math.isclose(mean, sum(inside) / len(inside))


def test_curves_of_long_runs_are_thinned_and_say_so(tmp_path):
    writer = RunWriter.create(
        tmp_path / "long", {"label": "grpo", "recipe": {"weight": {"type": "grpo"}}}, {}
    )
    for step in range(2500):
        writer.log({"step": step, "rollouts": 8 * step, "rollout/solve_rate": step % 10 / 10})
    writer.close()
    figure = plots.groups([Run(tmp_path / "long")])
    raw, mean = figure.subfigs[0].subfigs[1].axes[0].lines
    assert len(raw.get_xdata()) == len(mean.get_xdata()) == 834  # every third
    assert raw.get_xdata()[1] == 24
    assert "(1 in 3 drawn)" in plots.svg(figure)


def test_no_run_and_one_run_twice_are_refused(runs, tmp_path):
    with pytest.raises(UsageError, match="at least one run directory, got none"):
        write_report([], tmp_path / "page.html")
    again = Run(runs[0].path / ".." / runs[0].path.name)
    with pytest.raises(UsageError, match=r"fade is given 2 times"):
        write_report([runs[0], again], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_task_with_splits_of_other_names_is_reported_like_any(tmp_path):
    page = report([write_run(tmp_path / w, w, splits=("dev",)) for w in ("grpo", "fade")], tmp_path)
    text = words(page)
    assert "Pass@1, dev problems" in text
    assert "ood" not in text
    expected = pass_at([start_probability("dev", i) + 0.08 for i in range(NUM_PROBLEMS)], 1)
    assert f"{expected:.3f}".lstrip("0") in text


@pytest.mark.slow
def test_without_listed_answers_the_sampled_values_are_shown_and_called_so(tmp_path):
    pair = [write_run(tmp_path / w, w, splits=("dev",), is_exact=False) for w in ("grpo", "fade")]
    text = words(report(pair, tmp_path))
    assert "Pass@100, dev problems (sampled)" in text
    assert "does not list its right answers" in text
    assert ".380" in text  # sampled pass@k at step 8


def test_a_run_that_never_evaluated_has_a_report(tmp_path):
    text = words(report([write_run(tmp_path / "run", splits=())], tmp_path))
    assert "no evaluation after the start" in text


@pytest.mark.slow
def test_a_report_replaces_a_page_and_no_other_file(tmp_path):
    run = write_run(tmp_path / "run")
    config = run.path / "config.json"
    before = config.read_bytes()
    with pytest.raises(UsageError, match=r"config\.json is there and no HTML page"):
        write_report([run], config)
    assert config.read_bytes() == before
    write_report([run], tmp_path / "page.html")
    write_report([run], tmp_path / "page.html")


@pytest.mark.parametrize("place", ["folder", "file/page.html"])
def test_a_place_that_cannot_be_written_is_one_line(place, runs, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write the report .*; name another file") as error:
        write_report(runs[:1], tmp_path / place)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
