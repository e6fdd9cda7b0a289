"""What ``mkdocs build`` needs beside plain Markdown: pages made of other files, links that hold.

The pages of the site are those of ``docs/``, the README, CONTRIBUTING and the changelog, a page of
reference for each part of the package, made of its docstrings, and the explorer itself.
"""

import contextlib
import io
import posixpath
import re
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from gradmass.commands.explore import main as explore

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "gradmass"
FROM_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages that lie beside ``docs/``, and what they are called on the site."""
WITHOUT_REFERENCE = {"cli", "commands", "checkpoints", "__main__"}
"""Parts that are used from the command line alone, or hold no code."""
LINK = re.compile(r"\[([^]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def parts() -> list[str]:
    """Modules and packages directly under the package, by name."""
    names = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    return sorted(name for name in names - WITHOUT_REFERENCE if not name.startswith("_"))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of reference in the navigation."""
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = [{name: f"reference/{name}.md"} for name in parts()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and the explorer."""
    for name, place in FROM_ROOT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    for name in parts():
        text = f"# {name}\n\n::: gradmass.{name}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        page = Path(folder) / "page.html"
        explore(["-o", str(page)])
        content = page.read_text(encoding="utf-8")
    files.append(File.generated(config, "explorer/page.html", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links into the repository to where their target is on the site."""
    origin = {place: name for name, place in FROM_ROOT.items()}.get(page.file.src_uri)
    source = ROOT / (origin or f"docs/{page.file.src_uri}")
    if page.file.src_uri.startswith("reference/"):
        return markdown
    pieces = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    pieces[::2] = [
        LINK.sub(lambda found: moved(found, source, page), piece) for piece in pieces[::2]
    ]
    # A file that is made with the site: on its own the page can only name it.
    text = "".join(pieces).replace(
        "`explorer/page.html`", "[explorer/page.html](explorer/page.html)"
    )
    return linked_names(text) if page.file.src_uri == "paper_map.md" else text


def moved(found: re.Match[str], source: Path, page: Page) -> str:
    """A link as the page on the site needs it; the text alone where the site has no such page."""
    text, target, anchor = found[1], found[2], found[3] or ""
    if not target or "://" in target:
        return found[0]
    path = (source.parent / target).resolve()
    inside = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else target
    if inside in FROM_ROOT:
        place = FROM_ROOT[inside]
    elif inside.startswith("docs/"):
        place = inside.removeprefix("docs/")
    elif inside.startswith("src/gradmass/"):
        place = (
            f"reference/{Path(inside).relative_to('src/gradmass').parts[0].removesuffix('.py')}.md"
        )
    else:
        return f"{text} (`{inside}`)" if inside not in text else f"`{inside}`"
    start = posixpath.dirname(page.file.src_uri)
    return f"[{text}]({posixpath.relpath(place, start)}{anchor})"


def linked_names(text: str) -> str:
    """Names of functions, ``weights/base.py:Weight.update``, as links into the reference."""

    def link(found: re.Match[str]) -> str:
        module = found[1].replace("/", ".")
        file = PACKAGE / f"{found[1]}.py"
        if not file.exists() or found[1].split("/")[0] in WITHOUT_REFERENCE:
            return found[0]
        return f"[{found[0]}][gradmass.{module}.{found[2]}]"

    return re.sub(r"`([\w/]+)\.py:([A-Za-z][\w.]*)`", link, text)
