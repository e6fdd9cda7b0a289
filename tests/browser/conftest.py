"""The explorer in a headless browser; ``make test-browser`` says what has to be installed."""

import json
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from gradmass.cli import main

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    "--headless=new",
    "--no-sandbox",  # which root, in a container, cannot have
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1400,1000",
)


def start_browser():
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.fail("no browser to test with: apt-get install chromium chromium-driver")
    options = Options()
    options.binary_location = browser
    for switch in SWITCHES:
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


class Page:
    """A page in the browser, with what a test asks of it."""

    def __init__(self, driver, file):
        self.driver, self.file = driver, file

    def open(self, address="", *, width=1400, height=1000, theme="light"):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get("about:blank")
        self.driver.get(f"file://{self.file}{address}")
        return self

    def js(self, expression, *arguments):
        """Value of an expression; ``args`` are its arguments."""
        return self.driver.execute_script(
            f"const args = arguments; return {expression};", *arguments
        )

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def table(self, id_):
        """The cells of a table by label of the weight and head of the column."""
        heads = [cell.text for cell in self.all(f"#{id_} thead th")][1:]
        found = {}
        for row in self.all(f"#{id_} tbody tr"):
            label = row.find_element("css selector", "th").text.strip()
            cells = row.find_elements("css selector", "td")
            found[label] = dict(zip(heads, (cell.text for cell in cells), strict=False))
        return found

    def complaints(self):
        return [entry for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def requests(self):
        """Addresses asked for since the last call."""
        messages = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        sent = [m for m in messages if m["method"] == "Network.requestWillBeSent"]
        return {message["params"]["request"]["url"] for message in sent}


@pytest.fixture(scope="session")
def driver():
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Write an explorer by the command."""
    folder = tmp_path_factory.mktemp("explorer")

    def write(name, *argv):
        file = folder / f"{name}.html"
        if not file.exists():
            with pytest.raises(SystemExit) as ended:
                main(["explore", *argv, "-o", str(file)])
            assert ended.value.code == 0
        return file

    return write


@pytest.fixture
def page(driver, written):
    return Page(driver, written("plain")).open()
