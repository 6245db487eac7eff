"""The examples of the README and of the pages in docs/ run and print what they say; the files they name exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import decodekit as dk
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


NUMBER = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?")


def figures_of(record: object) -> Iterator[float]:
    """Every number of a record, at any depth."""
    if isinstance(record, dict | list):
        for value in record.values() if isinstance(record, dict) else record:
            yield from figures_of(value)
    elif isinstance(record, int | float) and not isinstance(record, bool):
        yield float(record)


def is_recorded(figure: str, record: object) -> bool:
    """Whether a figure, such as ``1,004`` or ``0.59``, is a number of the record, rounded."""
    digits = len(figure.partition(".")[2])
    return any(f"{value:,.{digits}f}" == figure for value in figures_of(record))


def test_the_figures_of_the_readme_are_those_of_the_records() -> None:
    record: Any = None
    num_figures = 0
    for row in re.findall(r"^\|(.*)\|$", README.read_text(encoding="utf-8"), re.MULTILINE):
        cells = row.split("|")
        if len(cells) != 6:
            continue
        link = re.search(r"\((benchmarks/results/.*?)\), ([0-9a-f]{7})", cells[5])
        if link is not None:  # the rows below, without a link, are of the same record
            record = json.loads((ROOT / link[1]).read_text(encoding="utf-8"))
            assert record["commit"].startswith(link[2])
        for figure in NUMBER.findall(" ".join(cells[1:5])):
            assert is_recorded(figure, record), (figure, row)
            num_figures += 1
    assert num_figures >= 30


def test_a_figure_that_is_not_recorded_is_noticed() -> None:
    record = {"rows": [{"mean": 1004.5, "share": 0.592, "is_warm": True}]}
    assert [is_recorded(figure, record) for figure in ("1,004", "1,004.5", "0.59")] == [True] * 3
    assert not any(is_recorded(figure, record) for figure in ("1,005", "0.60", "2", "592"))


def test_the_make_targets_exist() -> None:
    text = README.read_text(encoding="utf-8")
    targets = set(re.findall(r"`make ([a-z-]+)", text)) | set(re.findall(r"^\$ make ([a-z]+)", text, re.MULTILINE))
    assert {"demo", "test", "test-slow", "test-gpu", "bench", "train", "help"} <= targets
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert targets <= rules
