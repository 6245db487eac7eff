"""The page of chat templates is what the code makes of them, row by row, and its counts are those of its rows."""

from __future__ import annotations

import re
from typing import Final

import pytest
import transformers

from decodekit.constraints.tool_calls import FORMATS
from tests.chat.cases import CALLS
from tests.chat.corpus import Entry, needs_corpus
from tests.chat.round_trips import RoundTrips
from tests.chat.templates_page import PAGE, Group, cells_of, faults_of, group_of, groups, lost_of, page

TEXT: Final = PAGE.read_text(encoding="utf-8")
LEAST_WHOLE, LEAST_TOLD, LEAST_READ = 87, 97, 96


def rows(title: str) -> list[list[str]]:
    """The cells of the table whose head begins with a title."""
    table = TEXT.partition(f"\n| {title} |")[2].partition("\n\n")[0]
    return [re.split(r" \| ", line[2:-2]) for line in table.splitlines()[2:]]


def plain() -> list[str]:
    """The templates without a row."""
    (names,) = re.findall(r"write conversations and parts: (.*)\.$", TEXT, re.MULTILINE)
    return str(names).split(", ")


def test_the_counts_are_those_of_the_rows() -> None:
    table = rows("template | conversation")
    assert all(len(row) == 8 for row in table)
    names = [name for row in table for name in row[0].split(", ")] + plain()
    assert len(names) == len({*names})
    count = re.search(r"Of (\d+) templates", TEXT)
    assert count is not None and int(count[1]) == len(names) >= 178
    whole = told = 0
    for row in table:
        num = len(row[0].split(", "))
        read, _, written = row[6].partition(" of ")
        whole += num * (read == written != "")
        told += num * (row[5] != "")
    assert f"**{whole} of them with every case read back**" in " ".join(TEXT.split()) and whole >= LEAST_WHOLE
    unread = re.search(r"So for (\d+) of the (\d+) there is no case", " ".join(TEXT.split()))
    assert unread is not None and int(unread[1]) >= LEAST_READ
    # Those without tools that tell a format, and no calls, are known by marks that they cut off.
    assert told >= LEAST_TOLD


def test_what_is_not_written_is_named() -> None:
    """Each row says how many of the cases the template writes; the others stand in the table of reasons."""
    lost: dict[str, int] = {}
    for titles, cases, why in rows("templates | cases"):
        assert why
        for name in titles.split(", "):
            lost[name] = lost.get(name, 0) + (len(CALLS) if cases == "all" else len(cases.split(", ")))
    for row in rows("template | conversation"):
        written = int(row[6].partition(" of ")[2] or 0)
        is_asked = bool(row[3] or row[6])
        for name in row[0].split(", "):
            assert lost.get(name, 0) == (len(CALLS) - written if is_asked else 0), name


def test_a_page_of_few() -> None:
    first, *others = CALLS
    whole = RoundTrips("a/b", FORMATS["hermes"], passed=others, lost={first: "x | y"}, reads_tools=True)
    whole.conversations = dict.fromkeys(["question", "rounds", "parts", "turn 2"], "")
    half = RoundTrips("c", FORMATS["mistral"], passed=["one"], failed={"null": "refused"}, lost={}, reads_tools=True)
    half.untold = ["one"]
    silent = RoundTrips("d", lost=dict.fromkeys(CALLS, "lost"), reads_tools=True)
    talking = RoundTrips("e", lost=dict.fromkeys(CALLS, "lost"), conversations={"rounds": "", "parts": ""})
    text = page([Group(("a/b", "b"), whole), Group(("c",), half), Group(("d",), silent), Group(("e",), talking)])
    assert "| a/b, b | yes | yes | yes | 2 | `<tool_call>⏎" in text and "| 19 of 19 |  |\n" in text
    assert "Of 5 templates (1 of them copies of another)" in text and "conversations and parts: e.\n" in text
    assert "**2 of them with every case read back**" in " ".join(text.split())  # a/b and its copy, of three
    assert "So for 3 of the 4 there is no case" in " ".join(text.split()) and "they write without: c (1)." in text
    assert "| c | null | refused |" in text and "| a/b, b | one | x \\| y |" in text and "| d | all | lost |" in text


def test_a_fault_is_no_whole_row() -> None:
    for fault in ({"failed": {"one": "x"}}, {"thoughts_failed": {"one": "x"}}, {"conversations": {"parts": "x"}}):
        found = RoundTrips("a", FORMATS["hermes"], lost={}, **fault)  # type: ignore[arg-type]
        assert not found.is_whole and list(faults_of(found).values()) == ["x"]
    assert not RoundTrips("a", None, "does not tell", lost={}).is_whole


@needs_corpus
@pytest.mark.slow
@pytest.mark.parametrize(("names", "entry"), groups().items(), ids=lambda one: one[0] if isinstance(one, tuple) else "")
def test_the_page_is_what_the_code_gives(names: tuple[str, ...], entry: Entry) -> None:
    version = re.search(r"transformers ([\d.]+)", TEXT)
    if version is None or version[1] != transformers.__version__:
        pytest.skip(f"the page is of another transformers, and {transformers.__version__} is installed")
    group = group_of(names, entry)
    if group.is_plain:
        assert {*names} <= {*plain()}
    else:
        assert f"\n| {' | '.join(cells_of(group))} |\n" in TEXT, cells_of(group)
    assert [row[1] for row in rows("template | case") if row[0] == group.title] == [*faults_of(group.found)]
    if group.is_asked:
        assert sum(map(len, lost_of(group.found).values())) == len(group.found.lost)
