"""The size of things: functions fit on a screen, rooms have few files beside them, nothing is written twice."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.package_sources import SOURCES, nodes

LONGEST_FUNCTION = 80
MEDIAN_FUNCTION = 7
MOST_FILES = 10  # of a room, beside its own rooms and `__init__`
MOST_LINES = 93370
"""Lines of the package. The number only falls: whoever makes the package lighter lowers it."""
SLACK = 400
EQUAL_LINES = 10


def functions(source: str) -> Iterator[tuple[str, int]]:
    """The functions of a module, inner ones too, with their numbers of lines."""
    for node in nodes(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def code_lines(source: str) -> list[tuple[int, str]]:
    """The lines that are no import, no comment and not blank, with their numbers."""
    skipped: set[int] = set()
    for node in nodes(source):
        if isinstance(node, ast.Import | ast.ImportFrom):
            skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = ((number, line.strip()) for number, line in enumerate(source.splitlines(), 1) if number not in skipped)
    return [(number, line) for number, line in lines if line and not line.startswith("#")]


def repeated(sources: dict[str, str]) -> list[str]:
    """The pairs of places that share `EQUAL_LINES` lines of code, one after the other."""
    seen: dict[tuple[str, ...], str] = {}
    found = []
    for name, source in sources.items():
        lines = code_lines(source)
        for start in range(len(lines) - EQUAL_LINES + 1):
            run = tuple(line for _, line in lines[start : start + EQUAL_LINES])
            here = f"{name}:{lines[start][0]}"
            if run in seen:
                found.append(f"{seen[run]} and {here}")
            seen.setdefault(run, here)
    return found


def test_functions_fit_on_a_screen() -> None:
    lengths = [(length, f"{name} in {file}") for file in SOURCES for name, length in functions(SOURCES[file])]
    assert [name for length, name in lengths if length > LONGEST_FUNCTION] == []
    assert median(length for length, _ in lengths) <= MEDIAN_FUNCTION


def files_of_rooms(files: list[str]) -> dict[str, int]:
    """How many files each room has beside its own rooms and `__init__`."""
    return Counter(str(Path(file).parent) for file in files if Path(file).name != "__init__.py")


def test_a_room_has_few_files() -> None:
    crowded = {room: count for room, count in files_of_rooms([*SOURCES]).items() if count > MOST_FILES}
    assert crowded == {}
    assert files_of_rooms(["a/__init__.py", "a/b.py", "a/c/d.py", "a/e.py"]) == {"a": 2, "a/c": 1}


def test_the_package_only_gets_lighter() -> None:
    lines = sum(len(source.splitlines()) for source in SOURCES.values())
    assert lines <= MOST_LINES, "what is added has to take something away"
    assert lines > MOST_LINES - SLACK, f"lighter: lower MOST_LINES to {lines}"


def test_nothing_is_written_twice() -> None:
    assert repeated(SOURCES) == []


def classes_of_one_name(sources: dict[str, str]) -> list[str]:
    """The names that several classes have, with their files."""
    files: dict[str, list[str]] = {}
    for file, source in sources.items():
        for node in nodes(source):
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(file)
    return [f"{name} in {', '.join(places)}" for name, places in files.items() if len(places) > 1]


def test_no_two_classes_have_one_name() -> None:
    assert classes_of_one_name(SOURCES) == []
    assert classes_of_one_name({"a": "class A: ...", "b": "def f():\n    class A: ..."}) == ["A in a, b"]


def test_what_is_written_twice_is_found() -> None:
    block = "\n".join(f"x{i} = {i}" for i in range(EQUAL_LINES))
    assert repeated({"a": f"import a\n{block}", "b": f"y = 1\n\n# a comment\n{block}"}) == ["a:2 and b:4"]
    assert repeated({"a": block, "b": block.rpartition("\n")[0]}) == []
    long = "def f():\n" + "    pass\n" * LONGEST_FUNCTION
    assert list(functions(long)) == [("f", LONGEST_FUNCTION + 1)]
