"""Tests that have many cases: which of them are in the ordinary run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

WORLD = """
import pytest
from tests.sizes import few

@few(3, "4")
@pytest.mark.parametrize("case", range(12))
def test_many(case): pass

@few(2)
@pytest.mark.parametrize("case", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_some(case): pass
"""


def test_few_cases_are_spread_over_all_of_them(pytester: pytest.Pytester) -> None:
    """What is slow already is not among those that are counted; one case that is asked for is run."""
    root = Path(__file__).parent.parent
    pytester.makeconftest(
        f"import sys\nsys.path.insert(0, {str(root)!r})\nfrom tests.sizes import thin_out\n"
        "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_collection_modifyitems(items): thin_out(items)\n"
    )
    pytester.makepyfile(test_world=WORLD)
    run = ("--collect-only", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist")
    found = [line.split("::")[1] for line in pytester.runpytest(*run).outlines if "::" in line]
    assert found == ["test_many[2]", "test_many[4]", "test_many[6]", "test_many[10]", "test_some[0]", "test_some[2]"]
    fuzzed = pytester.runpytest(*run, "-m", "not slow or left_out").outlines
    assert sum("test_many[" in line for line in fuzzed) == 12 and not any("test_some[1]" in line for line in fuzzed)
    alone = pytester.runpytest(*run, "test_world.py::test_many[5]").outlines
    assert any("test_many[5]" in line for line in alone)
