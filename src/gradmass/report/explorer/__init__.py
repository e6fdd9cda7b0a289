"""The explorer: masses, objective, axes and FADE's controller on a page that computes them.

``page.html`` with ``style.css`` and the scripts beside it, in one file that asks the network for
nothing. ``numbers.js`` and ``weights.js`` do what ``gradmass.masses`` and the weights do,
``controller.js`` what the schedules do; ``drawing.js`` draws, ``state.js`` is the address,
``controls.js``, ``fade.js`` and ``app.js`` are what a hand touches.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradmass.report.writing import write_page

FOLDER = Path(__file__).parent
SCRIPTS = (
    "numbers.js",
    "weights.js",
    "controller.js",
    "state.js",
    "drawing.js",
    "pictures.js",
    "fade.js",
    "controls.js",
    "app.js",
)
"""In the order they need each other."""
GROUP_SIZES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128)
"""Where the slider of the group size can stand."""


def formula_names() -> tuple[str, ...]:
    """Weights that the page computes by itself, with sliders for their fields."""
    text = (FOLDER / "weights.js").read_text(encoding="utf-8")
    formulas = text.partition("const FORMULAS = {")[2].partition("\n};")[0]
    return tuple(re.findall(r"^  (\w+): \{", formulas, flags=re.MULTILINE))


def example_run() -> dict[str, Any]:
    """Solve rates and entropies of a recorded run, for a page without a run of its own."""
    content: dict[str, Any] = json.loads((FOLDER / "example.json").read_text(encoding="utf-8"))
    return content


def write_explorer(data: Mapping[str, Any], out: Path) -> None:
    """Write the page.

    Args:
        data: Plain JSON. ``weights``: what each weight with a formula says of itself (``name``,
            ``summary``, ``on_ties``, ``fields``). ``tables``: other weights (``label``, ``sizes``
            from group size to ``success`` and ``failure``). ``view``: the weights shown at first,
            labels or ``{"name", "fields"}``. ``run``: what the controller is played over.
        out: The HTML file.

    Raises:
        UsageError: The file cannot be written, or is there and no HTML page.
    """
    write_page(out, lambda: render(data), "explorer")


def render(data: Mapping[str, Any]) -> str:
    """The page as text; equal data give equal text."""
    scripts = [(FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS]
    # Within a script a tag could end it, whatever JSON it stands in.
    content = json.dumps({**data, "group_sizes": GROUP_SIZES}, allow_nan=False, ensure_ascii=False)
    parts = {
        "/* style.css */": (FOLDER / "style.css").read_text(encoding="utf-8"),
        "/* data */": content.replace("<", "\\u003c"),
        "/* scripts */": "\n".join(scripts),
    }
    page = (FOLDER / "page.html").read_text(encoding="utf-8")
    # In one pass, so that nothing of the data is taken for a place to fill.
    pattern = "|".join(map(re.escape, parts))
    return re.sub(pattern, lambda found: parts[found[0]], page)
