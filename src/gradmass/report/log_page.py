"""One self-contained HTML page about a rollout log: what ``gradmass analyze`` found."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gradmass.report import log_plots
from gradmass.report.page import inline_svg
from gradmass.report.plots import svg
from gradmass.report.writing import write_page


def write_log_page(document: dict[str, Any], sections: dict[str, list[str]], out: Path) -> None:
    """Write the page; it needs nothing beside itself, no network. Equal findings give equal bytes.

    Args:
        document: What ``gradmass.logs.analyse`` returns.
        sections: Sentences by section: ``what``, ``groups``, ``rewards``, ``problems``,
            ``answers``, and ``weights``, rows of cells under a row of headers.
        out: The HTML file; replaced whole.

    Raises:
        UsageError: The file cannot be written.
    """
    write_page(out, lambda: render(document, sections), "report")


def render(document: dict[str, Any], sections: dict[str, Any]) -> str:
    """The page as text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = {
        name: inline_svg(svg(draw(document)), name)
        for name, (draw, is_there) in log_plots.FIGURES.items()
        if is_there(document)
    }
    return environment.get_template("log.html.j2").render(
        document=document, sections=sections, figures=figures
    )
