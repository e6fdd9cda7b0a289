"""A person with a mouse, a keyboard or a phone."""

import io
import time

import matplotlib.image
import numpy as np
import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.support.select import Select

from gradmass.masses import BetaPrior, axes_of, masses_of
from gradmass.report.explorer import example_run
from gradmass.weights import WEIGHTS
from gradmass.weights.fade import Fade

pytestmark = pytest.mark.browser

PRIOR = BetaPrior(0.5, 1.2)
EXAMPLE = example_run()


def shown(value):
    """A number as the page writes it."""
    return "–" if value is None else f"{round(value, 12) + 0.0:.4g}".replace("-", "−")


def drag(page, element, dx, dy=0):
    ActionChains(page.driver).click_and_hold(element).move_by_offset(dx, dy).release().perform()


def press(page, element, *keys):
    page.driver.execute_script("arguments[0].focus()", element)
    ActionChains(page.driver).send_keys(*keys).perform()


def slider(page, row, field):
    rows = page.all(f"#weights li:nth-child({row}) .slider")
    (found,) = [label for label in rows if label.text.startswith(field)]
    return found.find_element("css selector", "input")


def numbers(weight, p=0.3, size=8):
    masses = masses_of(weight, np.array([p]), size)
    return {"m_S": shown(masses.m_S_N[0]), "m_F": shown(masses.m_F_N[0])}


def assert_shows(page, label, expected):
    row = page.table("at-p")[label]
    assert {key: row[key] for key in expected} == expected


def luminance(page):
    """Mean brightness of a screenshot, 0 to 1."""
    pixels = matplotlib.image.imread(io.BytesIO(page.driver.get_screenshot_as_png()))
    return float(pixels[..., :3].mean())


def test_the_first_view_shows_the_numbers_of_the_library(page):
    assert list(page.table("at-p")) == ["grpo", "power(alpha=3)", "asym_grpo_delta", "fade"]
    assert_shows(page, "grpo", numbers(WEIGHTS["grpo"]()))
    assert_shows(page, "power(alpha=3)", numbers(WEIGHTS["power"](alpha=3.0)))
    weight = WEIGHTS["power"](alpha=3.0)
    axes = axes_of(weight, masses_of(weight, np.array([0.3]), 8), prior=PRIOR)
    assert page.table("over-problems")["power(alpha=3)"] == {
        "peak S": shown(axes.peak_S),
        "peak F": shown(axes.peak_F),
        "centroid S": shown(axes.centroid_S),
        "centroid F": shown(axes.centroid_F),
        "scale at 1/2": shown(axes.scale_at_half),
        "scale": shown(axes.scale_mean),
        "lr factor": shown(axes.learning_rate_factor),
        "useful groups": shown(axes.useful_groups),
        "effective groups": shown(axes.effective_groups),
    }


def test_a_weight_is_added_exchanged_and_removed_by_clicks(page):
    page.find("#add").click()
    assert len(page.table("at-p")) == 5
    Select(page.find("#weights li:nth-child(5) select")).select_by_value("maxrl")
    assert_shows(page, "maxrl", numbers(WEIGHTS["maxrl"]()))
    page.find("#weights li:nth-child(1) .remove").click()
    assert list(page.table("at-p")) == ["power(alpha=3)", "asym_grpo_delta", "fade", "maxrl"]
    for _ in range(4):
        page.find("#add").click()
    assert not page.find("#add").is_enabled()
    assert len(page.table("at-p")) == 8


def test_all_weights_can_be_removed(page):
    for _ in range(4):
        page.find("#weights li:nth-child(1) .remove").click()
    assert page.table("at-p") == {}
    assert page.complaints() == []


def test_a_slider_is_dragged_and_the_picture_follows(page):
    before = page.find("#masses").get_attribute("innerHTML")
    drag(page, slider(page, 2, "alpha"), 25)
    alpha = float(slider(page, 2, "alpha").get_attribute("value"))
    assert alpha > 3.2
    assert page.find("#masses").get_attribute("innerHTML") != before
    assert_shows(page, f"power(alpha={alpha:g})", numbers(WEIGHTS["power"](alpha=alpha)))


def test_the_group_size_moves_by_the_keyboard(page):
    size = page.find("#size input")
    press(page, size, Keys.ARROW_RIGHT)
    assert page.find("#size output").text == "10"
    assert size.get_attribute("aria-valuetext") == "10 rollouts"
    assert_shows(page, "power(alpha=3)", numbers(WEIGHTS["power"](alpha=3.0), size=10))
    press(page, size, Keys.END)
    assert page.find("#size output").text == "128"
    press(page, size, Keys.HOME)
    assert_shows(page, "grpo", numbers(WEIGHTS["grpo"](), size=2))


def test_a_group_that_is_too_small_says_so_in_its_row(page):
    page.open("#w=pkpo_sloo:k=8&w=grpo")
    row = page.find("#at-p tbody tr").text
    assert "takes no groups of 8" in row
    assert page.complaints() == []


def test_every_control_is_reached_by_the_tab_key(page):
    reached = set()
    for _ in range(60):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        found = page.js("document.activeElement.id || document.activeElement.className")
        reached.add(found)
    wanted = {"share", "theme", "add", "p", "play", "at", "target", "half", "copy-command"}
    assert wanted <= reached


def test_the_solve_rate_is_picked_on_the_chart(page):
    chart = page.find("#masses")
    ActionChains(page.driver).move_to_element(chart).click().perform()
    p = float(page.find("#p").get_attribute("value"))
    assert 0.4 < p < 0.6
    assert_shows(page, "grpo", numbers(WEIGHTS["grpo"](), p=p))
    drag(page, chart, 200)
    assert float(page.find("#p").get_attribute("value")) > p + 0.1
    press(page, page.find("#p"), Keys.HOME)
    assert_shows(page, "grpo", numbers(WEIGHTS["grpo"](), p=0.01))


def library_after(at, **fields):
    """Alpha and delta of FADE after the example's batches up to one."""
    fade = Fade(entropy_form="relative", **fields)
    state = fade.init()
    for rate, entropy in list(zip(EXAMPLE["solve_rate"], EXAMPLE["entropy_nats"], strict=True))[
        : at + 1
    ]:
        counts = {"num_success": rate * 256, "num_scored": 256}
        _, state = fade.update(np.array([[1.0, 0.0]]), state, entropy_nats=entropy, **counts)
    return {key: shown(fade.report(state)[key]) for key in ("alpha", "delta")}


def now(page):
    return {key: page.find(f"#now-{key}").text for key in ("alpha", "delta")}


def test_the_target_entropy_is_dragged_and_delta_follows(page):
    assert now(page) == library_after(299)
    handle = page.find("#target")
    page.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", handle)
    drag(page, handle.find_element("css selector", "span"), 0, -40)
    target = float(handle.get_attribute("aria-valuenow"))
    assert target > 0.3
    assert not page.find("#half").is_selected()
    assert now(page) == library_after(299, target_entropy=target)
    drag(page, handle.find_element("css selector", "span"), 0, 400)
    assert page.find("#now-delta").text == "1"
    press(page, handle, Keys.END)
    highest = float(handle.get_attribute("aria-valuenow"))
    assert now(page) == library_after(299, target_entropy=highest)
    page.find("#half").click()
    assert now(page) == library_after(299)


def test_the_weight_fade_stands_where_the_playhead_does(page):
    at = page.find("#at")
    press(page, at, Keys.HOME)
    assert page.find("#now-step").text == "1"
    assert now(page) == library_after(0)
    first = page.table("at-p")["fade"]
    press(page, at, Keys.END)
    last = page.table("at-p")["fade"]
    assert first["m_S / m_F"] == "1"
    assert last["m_S / m_F"] == library_after(299)["delta"]
    assert first["m_S"] != last["m_S"]


def test_play_moves_the_playhead_until_it_is_paused(page):
    press(page, page.find("#at"), Keys.HOME)
    page.find("#play").click()
    assert page.find("#play").text == "❚❚ Pause"
    time.sleep(1.0)
    page.find("#play").click()
    step = int(page.find("#now-step").text)
    assert 2 < step < 300
    time.sleep(0.3)
    assert int(page.find("#now-step").text) == step


def test_a_view_is_in_the_address_and_comes_back_from_it(page):
    Select(page.find("#equalise select")).select_by_visible_text("mean_mass")
    Select(page.find("#prior select")).select_by_index(1)
    drag(page, slider(page, 2, "alpha"), -20)
    press(page, page.find("#size input"), Keys.ARROW_LEFT)
    press(page, page.find("#target"), Keys.ARROW_UP)
    press(page, page.find("#at"), Keys.ARROW_LEFT)
    page.find("#weights li:nth-child(1) .remove").click()
    time.sleep(0.3)
    address = page.js("location.hash")
    for part in ("G=7", "equalise=mean_mass", "prior=run:0", "w=power:alpha=", "fade=", "at=298"):
        assert part in address
    ids = ("masses", "at-p", "over-problems", "objective", "fade-delta", "command")
    before = [page.find(f"#{id_}").get_attribute("innerHTML") for id_ in ids]
    page.open(address)
    assert [page.find(f"#{id_}").get_attribute("innerHTML") for id_ in ids] == before


def test_going_back_to_another_address_shows_its_view(page):
    page.driver.execute_script("location.hash = '#w=maxrl&G=4'")
    time.sleep(0.2)
    assert list(page.table("at-p")) == ["maxrl"]
    assert page.find("#size output").text == "4"


@pytest.mark.parametrize(
    "part",
    [
        "w=nonsense",
        "w=power:alpha=zero",
        "w=power:alpha=1e9",
        "w=power:sigma=2",
        "G=9",
        "p=2",
        "prior=gamma:1,2",
        "prior=beta:0,0",
        "prior=run:99",
        "equalise=yes",
        "fade=ema:3",
        "at=-1",
        "theme=pink",
        "%E0%A4%A",
        "<script>alert(1)</script>",
    ],
)
def test_an_address_that_is_not_understood_is_said_and_the_rest_is_shown(page, part):
    page.open(f"#w=grpo&{part}&w=maxrl")
    notice = page.find("#notice")
    assert notice.is_displayed()
    assert "was not understood" in notice.text
    assert list(page.table("at-p")) == ["grpo", "maxrl"]
    assert page.complaints() == []


def test_light_and_dark_follow_the_system_and_the_button(page):
    assert luminance(page) > 0.85
    page.open(theme="dark")
    assert luminance(page) < 0.25
    page.find("#theme").click()
    assert page.find("#theme").text == "☀ Light"
    assert luminance(page) > 0.85
    page.find("#theme").click()
    assert luminance(page) < 0.25
    time.sleep(0.3)
    assert "theme=dark" in page.js("location.hash")


def test_a_screenshot_of_the_picture_has_every_colour_that_is_shown(page):
    page.open("#w=grpo&w=power:alpha=3&w=fade&w=asym_grpo_delta")
    png = page.find("#masses").screenshot_as_png
    pixels = (matplotlib.image.imread(io.BytesIO(png))[..., :3] * 255).round().astype(int)
    for name in ("--w0", "--w1", "--w2", "--w3"):
        style = "getComputedStyle(document.documentElement).getPropertyValue(args[0]).trim()"
        code = page.js(style, name)
        wanted = np.array([int(code[i : i + 2], 16) for i in (1, 3, 5)])
        assert (np.abs(pixels - wanted).max(axis=-1) <= 2).sum() > 50, name


def test_a_phone_shows_the_whole_page_without_scrolling_sideways(page):
    page.open(width=360, height=740)
    assert page.js("document.documentElement.scrollWidth") <= 360
    for element in page.all("button, select, input[type=range], #target, .chart"):
        box = element.rect
        assert box["x"] >= 0, element.get_attribute("outerHTML")
        assert box["x"] + box["width"] <= 361, element.get_attribute("outerHTML")
    heights = [button.rect["height"] for button in page.all("#add, #share, #theme, #play, select")]
    assert min(heights) >= 32
    # The picture comes before its controls, where it can be seen while they are found.
    assert page.find("#masses").rect["y"] < page.find("#weights").rect["y"]
