"""The examples of the README and of the pages in docs/ run and print what they say; the files they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import decodekit as dk
from benchmarks import figures
from benchmarks.record import RESULTS
from tests.sizes import thinned

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/*.md"))]
PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
WITHOUT_EXAMPLES = {"command-line.md", "measured.md", "options.md"}
"""Pages of commands (tests/test_commands_in_docs.py runs them) and of tables."""
LONG = "comparing.md"
"""It compares strategies over several tasks."""
WITH_EXAMPLES = [page for page in PAGES[1:] if page.name not in WITHOUT_EXAMPLES]


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def said_output(block: str) -> list[str]:
    """What the comments behind calls of `print` say that they print."""
    return re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)


def is_printed(said: list[str], printed: str) -> bool:
    """Whether the lines are among the printed ones, in this order."""
    lines = iter(printed.splitlines())
    return all(any(line == other for other in lines) for line in said)


def run(page: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, object], str]:
    """Run the examples of a page one after the other; the names they leave, and all that they printed."""
    names: dict[str, object] = {}
    everything = ""
    for block in blocks_of(page):
        if re.search(r"\bmodel,\s+tokenizer\b", block):  # these stand for what a reader has loaded
            llm = dk.LLM.load("tiny")
            names.update({"model": llm.model, "tokenizer": llm.tokenizer})
        exec(compile(block, page.name, "exec", dont_inherit=True), names)
        printed = capsys.readouterr().out
        assert is_printed(said_output(block), printed), f"{page.name} says {said_output(block)}, printed is\n{printed}"
        everything += printed
    return names, everything


def test_the_examples_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    names, printed = run(README, capsys)
    out = names["out"]
    assert isinstance(out, dk.Completion)
    assert out.error is None
    assert out.value.number == "A-17"
    assert out.value.total == pytest.approx(40.20)
    assert "A-17" in printed


@thinned("name", [page.name for page in WITH_EXAMPLES], keep=[page.name for page in WITH_EXAMPLES if page.name != LONG])
def test_the_examples_of_a_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / name
    assert sum(len(said_output(block)) for block in blocks_of(page)) >= 3
    run(page, capsys)


def test_pages_without_examples_have_none() -> None:
    without = {page.name for page in PAGES if not blocks_of(page)}
    assert without == WITHOUT_EXAMPLES


def test_a_page_that_says_something_else_is_noticed() -> None:
    said = said_output("print(1 + 1)  # 2\nfor n in (3, 4):\n    print(n)\nprint(5)  # 5\n")
    assert said == ["2", "5"]
    assert is_printed(said, "2\n3\n4\n5\n")
    for printed in ("", "2\n", "5\n2\n", "2\n3\n4\n6\n", "2 5\n"):
        assert not is_printed(said, printed)


@PAGE
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert (page.parent / link).is_file(), link


def test_every_page_is_in_the_table_of_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if f"](docs/{page.name})" not in text] == []


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.name)
def test_the_figures_of_a_page_are_those_of_the_records(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- figures: ") == text.count("<!-- end -->") > 0
    assert figures.rendered(text) == text, "write them anew: python -m benchmarks.figures"


def test_a_figure_that_is_not_recorded_is_noticed() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = figures.front()
    number = re.search(r"[0-9]+", shown)
    assert number is not None and shown in page
    assert figures.rendered(page.replace(shown, shown.replace(number[0], "7", 1))) == page
    with pytest.raises(KeyError, match="nothing"):
        figures.rendered("<!-- figures: nothing -->\n<!-- end -->")


def test_every_record_is_linked_from_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [
        path.name for path in sorted(RESULTS.glob("*.json")) if f"benchmarks/results/{path.name})" not in text
    ] == []


def test_the_make_targets_exist() -> None:
    text = README.read_text(encoding="utf-8")
    targets = set(re.findall(r"`make ([a-z-]+)", text)) | set(re.findall(r"^\$ make ([a-z]+)", text, re.MULTILINE))
    assert {"demo", "test", "test-slow", "test-gpu", "bench", "train", "help"} <= targets
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert targets <= rules
