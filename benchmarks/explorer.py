"""How fast the explorer is: bytes, first view, and from a slider to its picture, in a browser.

    python benchmarks/explorer.py [--repeats 41] [--json]

Headless Chromium; a picture counts when the frame after it has begun. *Busy* is what the page's
thread works for a move, script to paint, whatever else runs; for the others nothing else should.
"""

import argparse
import contextlib
import io
import json
import shutil
import statistics
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from gradmass.commands.explore import main as explore

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VIEWS = {
    "4 weights, groups of 8": "",
    "8 weights, groups of 128": "#G=128&w=grpo&w=power:alpha=3&w=fade&w=grpo_std&w=maxrl"
    "&w=pkpo_s:k=4&w=qae&w=maclaurin:T=16",
}
SLIDERS = {
    "solve rate": "#p",
    "alpha": "#weights li:nth-child(2) input",
    "group size": "#size input",
    "playhead": "#at",
}
TARGETS = {"bytes": 500_000, "first view, ms": 1000, "slider to picture, ms": 50}
MOVE = """
const [selector, repeats, done] = arguments;
const input = document.querySelector(selector), script = [], frame = [];
const low = Number(input.min), high = Number(input.max);
const next = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
(async () => {
  for (let i = 0; i < repeats; i++) {
    await next();
    const start = performance.now();
    input.value = low + (((i * 0.618) % 1) * (high - low));
    input.dispatchEvent(new Event("input"));
    script.push(performance.now() - start);
    await next();
    frame.push(performance.now() - start);
  }
  done([script, frame]);
})();
"""


def browser() -> webdriver.Chrome:
    program, driver = next(filter(None, map(shutil.which, BROWSERS)), None), "chromedriver"
    if program is None or shutil.which(driver) is None:
        raise SystemExit(
            "benchmarks/explorer.py needs a browser: apt-get install chromium chromium-driver"
        )
    options = Options()
    options.binary_location = program
    for switch in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"):
        options.add_argument(switch)
    return webdriver.Chrome(options=options, service=Service(shutil.which(driver)))


def first_view_ms(driver: webdriver.Chrome, page: str) -> float:
    driver.get("about:blank")
    driver.get(page)
    driver.execute_async_script("setTimeout(arguments[0], 300)")
    entry = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
    return float(driver.execute_script(entry))


def busy_ms(driver: webdriver.Chrome) -> float:
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1e3 * next(m["value"] for m in metrics if m["name"] == "TaskDuration")


def measure(repeats: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "explorer.html"
        with contextlib.redirect_stdout(io.StringIO()):
            explore(["-o", str(file)])
        found: dict[str, float] = {"bytes": file.stat().st_size}
        driver = browser()
        try:
            for view, address in VIEWS.items():
                page = f"file://{file}{address}"
                found[f"{view}: first view, ms"] = statistics.median(
                    first_view_ms(driver, page) for _ in range(5)
                )
                driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
                for name, selector in SLIDERS.items():
                    before = busy_ms(driver)
                    script, frame = driver.execute_async_script(MOVE, selector, repeats)
                    found[f"{view}: {name}, script, ms"] = statistics.median(script)
                    found[f"{view}: {name}, to picture, ms"] = statistics.median(frame)
                    found[f"{view}: {name}, busy, ms"] = (busy_ms(driver) - before) / repeats
        finally:
            driver.quit()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.repeats)
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:60} {value:12,.1f}")
    print("targets:", ", ".join(f"{name} below {value:,}" for name, value in TARGETS.items()))


if __name__ == "__main__":
    main()
