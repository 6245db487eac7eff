"""docs/options.md and the typed fields of options are what the declarations say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from decodekit.processor_names import PROCESSORS
from decodekit.sampling import TopA
from decodekit.sampling.options.declared import Option, options_of
from decodekit.sampling.options.option_fields import KINDS, ProcessorKeywords
from decodekit.strategy import GenerateKeywords
from tests import options_page


def test_the_page_and_the_fields_are_up_to_date() -> None:
    assert options_page.PAGE.read_text(encoding="utf-8") == options_page.page(), "run `make options`"
    assert options_page.FIELDS.read_text(encoding="utf-8") == options_page.fields_file(), "run `make options`"


def test_every_option_has_a_row() -> None:
    tables = options_page.page().partition(options_page.MARK)[2]
    assert {*re.findall(r"^\| `(\w+)` \|", tables, re.MULTILINE)} == {*GenerateKeywords.__annotations__}


def test_a_row_says_what_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    row = "| `top_a` | a number from 0 to 1 | `None` | Keep tokens of at least this times the square of the largest"
    assert row in options_page.page()
    declared = options_page.declared()
    kind, field, option = declared["top_a"]
    changed: dict[str, tuple[object, str, Option]] = {"top_a": (kind, field, replace(option, text="Keep all. Or not."))}
    monkeypatch.setattr(options_page, "declared", lambda: declared | changed)
    assert "| `top_a` | a number from 0 to 1 | `None` | Keep all. | `TopA` | - |" in options_page.page()


def test_sentences() -> None:
    assert (
        options_page.sentence("keep ``x`` (Tang et al. 2024); see ``apply_x``. More.") == "Keep `x` (Tang et al. 2024)."
    )
    assert options_page.sentence("one\n    line. And another.") == "One line."


def test_fields_follow_from_the_list() -> None:
    assert [kind.__name__ for kind in KINDS] == [*PROCESSORS]
    names = [one.name for kind in KINDS for one in options_of(kind).values()]
    assert list(ProcessorKeywords.__annotations__) == list(dict.fromkeys(names))
    assert options_of(TopA)["a"].name == "top_a"
