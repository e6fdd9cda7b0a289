"""The report in a browser: three weights with three seeds each, and the browser of rollouts."""

import itertools
from pathlib import Path

import axe_core_python
import pytest

from gradmass.record import Run, RunWriter
from gradmass.report.page import write_report

pytestmark = pytest.mark.browser

AXE = Path(axe_core_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
MAX_SECONDS, MAX_BYTES = 2.0, 5_000_000
STEPS, ROLLOUTS = 60, 16


def write_run(path, weight, seed):
    recipe = {
        "seed": seed,
        "task": {"type": "countdown"},
        "weight": {"type": weight},
        "train": {"steps": STEPS, "group_size": 8},
    }
    writer = RunWriter.create(path, {"label": weight, "engine": "local", "recipe": recipe}, {})
    for step in range(STEPS + 1):
        row = {"step": step, "rollouts": ROLLOUTS * step}
        if step % 20 == 0:
            value = 0.2 + 0.001 * step * (1 + seed)
            row |= {f"test/pass@{k}": 1 - (1 - value) ** k for k in (1, 10, 100)}
        if step:
            row |= {"rollout/solve_rate": 0.3 + 0.01 * (step % 7), "entropy/mean_nats": 1.0}
            row |= {"mass/positive": 0.1, "mass/negative": 0.1 + 0.01 * seed}
            writer.log_rollouts(rollouts(step))
        writer.log(row)
    writer.checkpoint(STEPS, {}, "finished", lambda folder: None)
    writer.close()
    return Run(path)


def rollouts(step):
    for i in range(ROLLOUTS):
        right = i % 4 == 0
        yield {
            "step": step,
            "prompt": f"numbers {step}-{i // 8}:",
            "completion": f"<b>answer</b> {step}.{i}",
            "problem_id": f"train{i // 8}",
            "group": i // 8,
            "verdict": "right" if right else "wrong",
            "detail": "" if right else f"equals {i}",
            "weight": 0.1 * i - 0.75,
            "num_tokens": 9,
        }


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    arms = itertools.product(("fade", "grpo", "power"), range(3))
    write_report([write_run(folder / f"{w}{s}", w, s) for w, s in arms], folder / "page.html")
    return folder / "page.html"


@pytest.fixture
def opened(driver, file):
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.get_log("browser")  # forget what other pages said
    driver.get(f"file://{file}")
    return driver


def shown(driver):
    """The cells of the rows that the browser of rollouts shows."""
    cells = "[...row.cells].map((cell) => cell.innerText.trim())"
    rows = f"[...document.querySelectorAll('#shown tr')].map((row) => {cells})"
    return driver.execute_script(f"return {rows}")


def count(driver):
    return driver.find_element("id", "found").text


def test_it_opens_fast_is_small_and_asks_for_nothing(opened, file):
    assert file.stat().st_size < MAX_BYTES
    seconds = []
    for _ in range(3):
        opened.get(f"file://{file}")
        timing = "return performance.getEntriesByType('navigation')[0].loadEventEnd"
        seconds.append(opened.execute_script(timing) / 1000)
    assert min(seconds) < MAX_SECONDS
    assert [entry for entry in opened.get_log("browser") if entry["level"] != "INFO"] == []
    names = "return performance.getEntriesByType('resource').map(r => r.name)"
    assert opened.execute_script(names) == []


def test_filters_narrow_and_weights_are_sorted(opened):
    form = opened.find_element("css selector", ".browser")
    assert count(opened) == "640 of 640 sampled rollouts of fade, seed 0."
    assert len(shown(opened)) == 50
    weights = [float(row[3].replace("−", "-")) for row in shown(opened)]
    assert weights == sorted(weights, reverse=True)
    form.find_element("name", "step").send_keys("60")
    assert count(opened) == (
        "16 of 640 sampled rollouts of fade, seed 0. Step 60 sampled 16 rollouts: "
        "4 right, 12 wrong."
    )
    form.find_element("name", "verdict").send_keys("✓ right")
    assert [row[1] for row in shown(opened)] == [f"<b>answer</b> 60.{i}" for i in (12, 8, 4, 0)]
    form.find_element("name", "problem").send_keys("TRAIN1")
    assert [row[1] for row in shown(opened)] == [f"<b>answer</b> 60.{i}" for i in (12, 8)]
    form.find_element("name", "text").send_keys("60.8")
    assert [row[1] for row in shown(opened)] == ["<b>answer</b> 60.8"]
    form.find_element("name", "order").send_keys("weight, lowest")
    form.find_element("name", "text").clear()
    form.find_element("name", "text").send_keys("nowhere")
    assert count(opened).startswith("0 of 640")
    assert shown(opened) == []


def test_another_run_and_more_rows(opened):
    form = opened.find_element("css selector", ".browser")
    form.find_element("name", "run").send_keys("power, seed 2")
    assert count(opened) == "640 of 640 sampled rollouts of power, seed 2."
    more = opened.find_element("id", "more")
    more.send_keys("\n")  # from the keyboard
    assert len(shown(opened)) == 100


def test_no_serious_accessibility_fault(opened):
    opened.execute_script(AXE)
    found = opened.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    worst = [v["id"] for v in found["violations"] if v["impact"] in ("serious", "critical")]
    assert worst == []


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_nothing_is_wider_than_the_window(opened, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
