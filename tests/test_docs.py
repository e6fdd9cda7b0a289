"""What the documents say of the code is so: names, links, layout, examples, the list of weights."""

import ast
import doctest
import importlib.util
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from gradmass.cli import COMMANDS
from gradmass.metrics.alarms import RULES
from gradmass.rewards import Outcome
from gradmass.tasks import TASKS
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gradmass"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EQUATIONS = list(range(1, 14))

page = pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])


def blocks_of(text: str, language: str = "") -> list[str]:
    """Contents of the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(text: str) -> set[str]:
    """Anchors of the headings, spelled as on GitHub."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def names_in(file: Path) -> set[str]:
    """Functions and classes of a module, methods as Class.method."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            names |= {f"{node.name}.{method}" for method in methods}
    return names


@page
def test_every_link_within_the_repository_leads_somewhere(page):
    links = re.findall(r"\[[^]]*\]\(([^)\s]+)\)", without_blocks(page.read_text()))
    for link in links:
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(target.read_text()), link


def paper_rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "paper_map.md").read_text().splitlines()
    rows = [line.strip("|").split("|") for line in lines if re.match(r"\| \(\d", line)]
    return [[cell.strip() for cell in row] for row in rows]


def test_every_equation_has_a_row_with_functions_and_tests():
    assert [row[0] for row in paper_rows()] == [f"({number})" for number in EQUATIONS]
    for equation, meaning, functions, tests in paper_rows():
        assert meaning, equation
        assert re.findall(r"`[\w/]+\.py:\w", functions), equation
        assert re.findall(r"`[\w/]+\.py:test_", tests), equation


@pytest.mark.parametrize("row", paper_rows(), ids=lambda row: row[0])
def test_every_name_in_the_paper_map_is_there(row):
    for folder, cell in ((SOURCE, row[2]), (ROOT / "tests", row[3])):
        names = re.findall(r"`([^`]*)`", cell)
        for file, name in (entry.split(":") for entry in names):
            assert (folder / file).is_file(), file
            assert name in names_in(folder / file), f"{file}:{name}"


def test_every_equation_a_docstring_cites_is_in_the_paper_map():
    cited = set()
    for file in SOURCE.rglob("*.py"):
        for citation in re.findall(
            r"equations? ((?:\(?\d+\)?(?:, | and | to )?)+)", file.read_text()
        ):
            cited |= {int(number) for number in re.findall(r"\d+", citation)}
    assert {3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13} <= cited <= set(EQUATIONS)


def generator():
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_of_weights_is_what_make_docs_writes():
    assert generator().PAGE.read_text() == generator().weights_page(), "run: make docs"


def test_the_page_of_which_weight_is_what_make_docs_writes():
    assert generator().WHICH_PAGE.read_text() == generator().which_page(), "run: make docs"


def test_every_weight_in_the_list_states_its_masses():
    lines = (ROOT / "docs" / "weights.md").read_text().splitlines()
    masses = {line.split("`")[1]: line.split(" | ")[3] for line in lines if line.startswith("| [`")}
    assert {"fade", "grpo", "power"} <= masses.keys()
    assert [name for name, text in masses.items() if "`m_S = " not in text] == []


def test_the_layout_names_every_part_of_the_package_and_nothing_that_is_gone():
    (layout, *_) = blocks_of((ROOT / "docs" / "architecture.md").read_text())
    named, folder = set(), ""
    for line in layout.partition("src/gradmass/\n")[2].partition("\nrecipes/")[0].splitlines():
        indent = len(line) - len(line.lstrip())
        names = re.split(r" {2,}", line.strip())[0].split(" ")
        if indent == 2:
            folder = names[0] if names[0].endswith("/") else ""
        named |= {(folder if indent == 4 else "") + name for name in names}
    assert [name for name in sorted(named) if not (SOURCE / name).exists()] == []
    parts = {path.name + "/" * path.is_dir() for path in SOURCE.iterdir() if path.name[0] != "_"}
    assert parts - named == {"py.typed"}


def test_the_page_of_metrics_has_every_rule_of_a_warning():
    text = (ROOT / "docs" / "metrics.md").read_text()
    for rule in RULES:
        assert f"| {rule.name} | " in text, rule.name
        row = next(line for line in text.splitlines() if line.startswith(f"| {rule.name} |"))
        numbers = {"entropy collapse": ("20", "0.2"), "vanishing signal": ("20", "0.1")}
        numbers |= {"controller saturated": ("50",), "rank concentration": ("3", "0.9", "2")}
        for number in numbers[rule.name]:
            assert f" {number} " in f"{rule.rule} ".replace(",", " "), (rule.name, number)
            assert f" {number} " in row.replace(",", " ").replace(";", " "), (rule.name, number)


def test_contributing_lists_the_targets_of_the_makefile():
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    (listed, *_) = blocks_of((ROOT / "CONTRIBUTING.md").read_text())
    assert sorted(re.findall(r"^make ([\w-]+)", listed, flags=re.MULTILINE)) == sorted(
        set(targets) - {"help"}
    )


@page
def test_every_command_shown_exists(page):
    shown = set()
    for block in blocks_of(page.read_text(), r"\w*"):
        shown |= set(re.findall(r"^(?:\$ )?gradmass ([a-z]\w*)", block, flags=re.MULTILINE))
    assert shown <= COMMANDS.keys()


def test_the_library_example_of_the_readme_prints_what_it_shows(capsys):
    pairs = re.findall(
        r"^```python\n(.*?)^```\n+```\n(.*?)^```$",
        (ROOT / "README.md").read_text(),
        flags=re.MULTILINE | re.DOTALL,
    )
    ((code, output),) = [pair for pair in pairs if "print(" in pair[0]]
    exec(code, {})
    assert capsys.readouterr().out == output


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The class of an example, from a file as a reader would make it; forgotten afterwards."""
    texts = blocks_of((ROOT / "CONTRIBUTING.md").read_text(), "python")

    def load(registry, name):
        registry.names()
        monkeypatch.setattr(registry, "_classes", dict(registry._classes))
        (text,) = [text for text in texts if f"class {name}(" in text]
        file = tmp_path / "example.py"
        file.write_text(text)
        return registry[f"{file}:{name}"]

    return load


def test_the_weight_in_contributing_is_what_it_says(example):
    cls = example(WEIGHTS, "SideOfMean")
    weight = cls(penalty=0.25)
    assert weight.label == "side_of_mean(penalty=0.25)"
    for rewards in product((0.0, 1.0), repeat=4):
        weights_PG, _ = weight.update(np.array([rewards]), weight.init())
        is_mixed = 0 < sum(rewards) < 4
        expected = [(1.0 if reward else -0.25) if is_mixed else 0.0 for reward in rewards]
        assert weights_PG.tolist() == [expected]
    with pytest.raises(UsageError, match="at least 0, got -1"):
        cls(penalty=-1.0)
    (found,) = doctest.DocTestFinder(recurse=False).find(cls, globs={"SideOfMean": cls})
    assert doctest.DocTestRunner(verbose=False).run(found) == (0, 2)


def test_the_task_in_contributing_is_what_it_says(example):
    task = example(TASKS, "Addition")(largest=12)
    problems = {split: list(task.generate(split)) for split in task.splits}
    assert {len(found) for found in problems.values()} == {
        35,
        169 - 35,
    }  # pairs with equal residues
    assert not {p.id for p in problems["train"]} & {p.id for p in problems["test"]}
    (problem,) = [p for p in problems["train"] if p.prompt == "12+3="]
    assert task.solutions(problem) == ("15",)
    answers = {"15": "right", "14": "wrong", "015": "wrong", "": "unparsed", "1 5": "unparsed"}
    for text, outcome in answers.items():
        assert task.verify(problem, text).outcome == Outcome(outcome), text
    assert set("".join(p.prompt for p in problems["test"])) <= set(task.alphabet)
