"""The ways in which `tests.breakages` breaks a module, and the tests that it runs then."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

from tests.breakages import Breakage, Covering, breakages, drawn, is_python

SOURCE = '''
LIMIT = 3


def first(rows: list[int], *, most: int = 5) -> int:
    """The é first that is small: 1."""
    if not rows or most < 1:
        raise ValueError(f"no {1 + 1}")
    rows.sort(key=abs)
    return min(rows[: most], key=lambda é: é + 2)
'''
WAYS = {
    "if rows or most < 1:",
    "if ((not rows)):",
    "if ((most < 1)):",
    "if not rows or most <= 1:",
    "if not rows or most < 2:",
    "if False and (not rows or most < 1):",
    "rows.sort()",
    "None",
    "return max(rows[: most], key=lambda é: é + 2)",
    "return min(rows[: (most) + 1], key=lambda é: é + 2)",
    "return min(rows[: most], )",
    "return min(rows[: most], key=lambda é: é - 2)",
    "return min(rows[: most], key=lambda é: é + 3)",
}


def changed(source: str, one: Breakage) -> str:
    """The line that is another one in the broken source."""
    pairs = zip(source.splitlines(), one.apply(source).splitlines(), strict=True)
    (line,) = [new for old, new in pairs if old != new]
    return line.strip().replace("if (rows) or", "if rows or")


def test_all_ways_to_break_a_function() -> None:
    found = breakages("a.py", SOURCE)
    assert {changed(SOURCE, one) for one in found} == WAYS
    assert all(one.line in (7, 9, 10) for one in found)


def test_a_seed_draws_lines_of_all_files() -> None:
    sources = {"a.py": SOURCE, "b.py": SOURCE.replace("5", "6")}
    places = drawn(3, 5, sources)
    assert places == drawn(3, 5, sources) != drawn(4, 5, sources)
    assert len({(one.file, one.line) for one in places}) == 5
    assert {(one.file, one.line) for one in drawn(3, 99, sources)} == {(f, n) for f in sources for n in (7, 9, 10)}
    assert all(is_python(one.apply(sources[one.file])) for one in drawn(3, 99, sources))


def test_the_cheapest_test_of_each_file_is_run_first() -> None:
    seconds = {"a.py::one": 3.0, "a.py::two": 2.0, "a.py::three": 9.0, "b.py::one": 40.0, "c.py::one": 0.0}
    covering = SimpleNamespace(seconds=defaultdict(float, seconds))
    chosen = Covering.chosen(covering, set(seconds), 46)  # type: ignore[arg-type]
    assert chosen == ["c.py::one", "a.py::two", "b.py::one", "a.py::one"]
    assert Covering.chosen(covering, set(seconds), 0) == chosen[:3]  # type: ignore[arg-type]
