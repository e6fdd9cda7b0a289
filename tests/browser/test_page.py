"""The page as a whole: its size, its speed, its manners, and what it makes of other data."""

import itertools
import json
import statistics
import time
from pathlib import Path
from xml.etree import ElementTree

import axe_core_python
import numpy as np
import pytest

from gradmass.commands.masses import main as masses_command
from gradmass.masses import masses_of
from gradmass.record import Run, RunWriter
from gradmass.report.explorer import render
from gradmass.tables import from_spec
from gradmass.weights import Weight

pytestmark = pytest.mark.browser

AXE = Path(axe_core_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
WORST = (
    "#G=128&w=grpo&w=power:alpha=3&w=fade&w=grpo_std&w=maxrl&w=pkpo_s:k=4&w=qae&w=maclaurin:T=16"
)
OWN = '''
from dataclasses import dataclass
from gradmass.weights import Weight


@dataclass(frozen=True, kw_only=True)
class Cubic(Weight):
    """Reward minus group mean, times the cube of the failure rate."""

    scale: float = 1.0

    def formula(self, groups, state, signals):
        return self.scale * (1 - groups.mean_P1) ** 3 * groups.centred_PG


def halves(rewards):
    return rewards / 2
'''


@pytest.fixture
def open_page(page, written):
    """Open the page that the command writes of other arguments."""

    def open_other(name, *argv):
        return type(page)(page.driver, written(name, *argv)).open()

    return open_other


def test_the_page_is_one_file_below_500_kb_that_asks_for_nothing(page):
    assert page.file.stat().st_size < 500_000
    page.requests()
    page.complaints()
    page.open()
    assert page.requests() <= {f"file://{page.file}", "about:blank", "data:,"}
    assert page.complaints() == []
    text = page.file.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_the_first_view_is_there_within_a_second(page):
    times = []
    for _ in range(3):
        page.open()
        page.js("document.fonts.ready && 0")
        entry = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
        deadline = time.monotonic() + 5
        while (found := page.js(entry)) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        times.append(found)
    assert statistics.median(times) < 1000


MOVE = """
const [selector, times, done] = arguments, input = document.querySelector(selector);
let i = 0;
const step = () => {
  if (i++ === times) return done();
  input.value = Number(input.min) + (i / (times + 1)) * (input.max - input.min);
  input.dispatchEvent(new Event("input"));
  requestAnimationFrame(() => setTimeout(step)); // once the frame is drawn
};
step();
"""


def ms_of_a_move(page, selector, times=20):
    """What moving a slider takes the page, from script to paint, whatever else the machine does."""
    page.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})

    def busy_s():
        metrics = page.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        (found,) = [m["value"] for m in metrics if m["name"] == "TaskDuration"]
        return found

    page.driver.execute_async_script(MOVE, selector, 3)
    before = busy_s()
    page.driver.execute_async_script(MOVE, selector, times)
    return 1e3 * (busy_s() - before) / times


def test_a_slow_page_would_be_seen(page):
    """The clock of the tests above counts what the page works, not what passes."""
    work = "for (let i = 0, x = 0; i < 3e8; i++) x += Math.sqrt(i);"
    page.driver.execute_script(f"const inner = render; render = () => {{ {work} inner(); }};")
    assert ms_of_a_move(page, "#p", times=3) > 100


@pytest.mark.parametrize(("address", "selector"), [("", "#p"), (WORST, "#p"), (WORST, "#at")])
def test_a_slider_moves_the_picture_within_50_ms(page, address, selector):
    page.open(address)
    assert ms_of_a_move(page, selector) < 50


@pytest.mark.parametrize("view", [{}, {"theme": "dark"}, {"width": 390, "height": 800}])
def test_axe_finds_no_serious_fault(page, view):
    page.open("#w=fade&w=maxrl&w=pkpo_sloo:k=8&nonsense", **view)
    page.driver.execute_script(AXE)
    results = page.driver.execute_async_script("axe.run().then(arguments[0])")
    serious = [
        (fault["id"], [node["html"] for node in fault["nodes"]])
        for fault in results["violations"]
        if fault["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert len(results["passes"]) > 15


def rgb(code):
    return np.array([int(code[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def linear(colour):
    return np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    weights = np.array([0.2126, 0.7152, 0.0722])
    high, low = sorted((linear(rgb(c)) @ weights for c in (one, other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_line_stands_out_and_has_a_dash_of_its_own(page, theme):
    page.open(WORST, theme=theme)
    style = "getComputedStyle(document.documentElement).getPropertyValue(args[0]).trim()"
    card = page.js(style, "--card")
    for slot in range(8):
        assert contrast(page.js(style, f"--w{slot}"), card) >= 3, slot
    looks = page.js("looksOf(state.weights)")
    assert len({look["color"] for look in looks}) == len(looks) == 8
    assert len({look["dash"] for look in looks}) == 8


# Machado, Oliveira and Fernandes 2009: what is left of linear RGB without one kind of cone.
WITHOUT_CONE = {
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
}


def lab(linear_rgb):
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.clip(xyz @ linear_rgb / np.array([0.9505, 1.0, 1.089]), 1e-9, None))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", WITHOUT_CONE)
def test_colours_differ_for_colour_blind_readers(page, theme, kind):
    page.open(theme=theme)
    style = "getComputedStyle(document.documentElement).getPropertyValue(args[0]).trim()"
    colours = [linear(rgb(page.js(style, f"--w{slot}"))) for slot in range(8)]
    seen = [lab(np.clip(np.array(WITHOUT_CONE[kind]) @ colour, 0, 1)) for colour in colours]
    for (i, one), (j, other) in itertools.combinations(enumerate(seen), 2):
        assert np.linalg.norm(one - other) > 12, (i, j)


def saved(page, folder, selector, name):
    """The file that a click saves."""
    behaviour = {"behavior": "allow", "downloadPath": str(folder)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    page.find(selector).click()
    file, deadline = folder / name, time.monotonic() + 10
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return file


def test_the_command_with_the_saved_rates_prints_what_is_shown(page, tmp_path, monkeypatch, capsys):
    page.open("#prior=run:0&w=power:alpha=2.5&w=grpo_std&equalise=mean_mass&p=0.4")
    saved(page, tmp_path, "#save-rates", "rates.txt")
    monkeypatch.chdir(tmp_path)
    words = page.find("#command").text.split()
    assert words[:2] == ["gradmass", "masses"]
    assert masses_command([*words[2:], "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    for entry, row, axes in zip(
        entries,
        page.table("at-p").values(),
        page.table("over-problems").values(),
        strict=True,
    ):
        assert float(row["m_S"]) == pytest.approx(entry["m_S"][0], rel=5e-4)
        assert float(axes["scale"]) == pytest.approx(entry["axes"]["scale_mean"], rel=5e-4)
        useful = entry["axes"]["useful_groups"]
        assert float(axes["useful groups"]) == pytest.approx(useful, rel=5e-4)


def test_a_picture_is_saved_as_svg_with_its_colours(page, tmp_path):
    file = saved(page, tmp_path, '[data-save="masses"]', "masses.svg")
    root = ElementTree.fromstring(file.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in file.read_text()
    assert "#0072b2" in file.read_text()


def test_weights_of_a_file_are_tabulated_by_the_library(open_page, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    specs = [f"{file}:Cubic:scale=2", f"{file}:halves", "clip:inner=maxrl", "grpo"]
    page = open_page("own", *specs)
    rows = list(page.table("at-p").values())
    assert len(rows) == 4
    for spec, row in zip(specs, rows, strict=True):
        if "halves" in spec:
            assert (row["m_S"], row["m_F"]) == ("0.15", "0")
            continue
        masses = masses_of(from_spec(Weight, spec), np.array([0.3]), 8)
        assert float(row["m_S"]) == pytest.approx(masses.m_S_N[0], rel=5e-4)
        assert float(row["m_F"]) == pytest.approx(masses.m_F_N[0], rel=5e-4)
    assert str(file) in page.find("#command").text
    assert page.complaints() == []


def test_a_run_brings_its_metrics_its_controller_and_its_solve_rates(open_page, tmp_path):
    weight = {"type": "fade", "alpha_max": 2.0, "entropy_form": "relative"}
    recipe = {"weight": weight, "train": {"steps": 4}, "task": {"type": "countdown"}}
    path = tmp_path / "runs" / "one"
    writer = RunWriter.create(path, {"label": "fade(alpha_max=2.0)", "recipe": recipe}, {})
    writer.log({"step": 0, "rollouts": 0})
    for step in range(1, 5):
        row = {"step": step, "rollouts": 8 * step, "rollout/solve_rate": 0.1 * step}
        writer.log({**row, "entropy/mean_nats": 1.0 - 0.2 * step})
    rates = [0.0, 0.25, 0.25, 0.9]
    ids = list("abcd")
    row = {"step": 4, "split": "test", "problem_ids": ids, "solve_probability": rates}
    writer.log_evaluation(row)
    writer.close()
    page = open_page("run", "--run", str(path))
    assert page.js("priorOf(state)") == {
        "kind": "measured",
        "label": "test problems at step 4",
        "num_problems": 4,
        "rates": [0.0, 0.25, 0.9],
        "shares": [0.25, 0.5, 0.25],
    }
    assert page.find("#run-label").text == "fade(alpha_max=2.0) (one)"
    assert page.js("state.fade.alpha_max") == 2
    assert page.js("RUN.step") == [0, 1, 2, 3]
    assert page.find("#now-step").text == "4"
    assert Run(path).label in page.driver.page_source


def large_run(num_steps, num_problems):
    steps = list(range(num_steps))
    return {
        "label": "large",
        "is_example": False,
        "num_steps": num_steps,
        "fade": {},
        "step": steps,
        "solve_rate": [step / num_steps for step in steps],
        "entropy_nats": [1 - 0.9 * step / num_steps for step in steps],
        "priors": [
            {
                "label": "many",
                "rates": [(i + 0.5) / num_problems for i in range(num_problems)],
                "shares": [1 / num_problems] * num_problems,
                "num_problems": num_problems,
            }
        ],
    }


def open_with_run(page, tmp_path, run):
    file = tmp_path / "page.html"
    file.write_text(render({**page.js("PAGE"), "run": run}), encoding="utf-8")
    return type(page)(page.driver, file).open()


def test_a_run_of_many_steps_and_problems_still_moves_at_once(page, tmp_path):
    page = open_with_run(page, tmp_path, large_run(50_000, 10_000))
    for selector in ("#p", "#at"):
        assert ms_of_a_move(page, selector) < 50, selector
    assert page.complaints() == []


@pytest.mark.parametrize(
    "change",
    [
        {"entropy_nats": [None, None, None]},
        {"solve_rate": [None, None, None]},
        {"priors": []},
        {"step": [7], "solve_rate": [0.5], "entropy_nats": [0.0]},
        {"num_steps": 1},
        {"label": "läbel 名前 " * 30},
        {"fade": {"alpha_max": 40.0, "ema": 0.001, "target_entropy": 3.5}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_run_that_lacks_something_is_shown_as_far_as_it_goes(page, tmp_path, change):
    page = open_with_run(page, tmp_path, {**large_run(3, 4), **change})
    assert page.complaints() == []
    assert len(page.table("at-p")) == 4
    assert "NaN" not in page.find("main").get_attribute("innerHTML")
    assert page.js("document.documentElement.scrollWidth") <= 1400


def test_sliders_reach_what_the_page_was_written_with(open_page):
    page = open_page("wide", "power:alpha=20", "rs_grpo:beta=-9")
    assert [i.get_attribute("value") for i in page.all("#weights input")] == ["20", "-9"]
    page.find("#weights li:nth-child(2) .remove").click()
    time.sleep(0.3)
    page.open(page.js("location.hash"))
    assert not page.find("#notice").is_displayed()
    assert list(page.table("at-p")) == ["power(alpha=20)"]


def test_text_of_a_run_cannot_become_part_of_the_page(page, tmp_path):
    data = page.js("PAGE")
    data["run"]["label"] = "</script><script>document.title = 'taken'</script>/* scripts */"
    file = tmp_path / "evil.html"
    file.write_text(render(data), encoding="utf-8")
    other = type(page)(page.driver, file).open()
    assert "explorer" in page.driver.title
    assert other.find("#run-label").text == data["run"]["label"]
    assert other.complaints() == []
