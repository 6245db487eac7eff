"""The four peers, each against the laws and some languages; what holds is the table in docs/other-engines.md.

pip install --no-deps --target /tmp/peers llguidance xgrammar apache-tvm-ffi outlines-core lm-format-enforcer
PYTHONPATH=/tmp/peers:. python -m pytest -m slow tests/integrations/test_peers.py
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import decodekit as dk
from decodekit.errors import ConstraintError
from decodekit.integrations.backends import BACKENDS
from decodekit.testing import check_language, check_matcher
from decodekit.vocabulary import Vocabulary
from tests.integrations.test_backends import PACKAGES

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "other-engines.md"
NUM_WALKS = 12
OBJECT = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "string"},
        "c": {"type": "array", "items": {"type": "boolean"}},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
OPTIONAL = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "additionalProperties": False,
}
STRING = dk.JsonSchema({"type": "string"})
NESTED = {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}


def bytes_and(*pieces: bytes | str) -> Vocabulary:
    """All bytes, two ends of the text, and some tokens; rows of logits are wider."""
    rows = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    return Vocabulary([*(bytes([i]) for i in range(256)), None, None, *rows], [256, 257], 258 + len(rows) + 20)


TEXT = bytes_and('{"', '":', '"a"', "aa", "12", "true", ", ", '"}', '": "', "bc", "abc")
HALVES = bytes_and("é", "日", "日".encode()[:2], "日".encode()[1:], b"a\xc3", b'\xa9"', "日本".encode()[1:4])

LAWS: dict[str, tuple[Vocabulary, list[object]]] = {
    "laws: objects, patterns, choices": (
        TEXT,
        [dk.JsonSchema(OBJECT), dk.Regex("a(bc)*[0-9]{2,3}"), dk.Choices(["yes", "no", "yesno"])],
    ),
    "laws: grammars": (
        TEXT,
        [dk.Grammar('start: "a" start "b" | "12"\n'), dk.Grammar('root ::= "a" root "b" | "12"\n')],
    ),
    "laws: tokens of parts of characters": (HALVES, [STRING, dk.Regex("[aéè日本]+")]),
    "laws: two tokens of equal bytes": (bytes_and("a", '"', "12", "12"), [STRING, dk.Regex("[a1-3]*")]),
    "laws: no end-of-sequence token": (Vocabulary([*(bytes([i]) for i in range(256)), b"ab"], []), [dk.Regex("(ab)+")]),
}
LANGUAGES: dict[str, tuple[object, list[str], list[str]]] = {
    "`[é日]+x?`": (dk.Regex("[é日]+x?"), ["éé日", "日x"], ["x"]),
    "strings in UTF-8": (STRING, ['"a"', '"é日"', '"😀"'], ['"a', '"\n"']),
    "strings with `\\u00e9`": (STRING, ['"\\n"', '"\\u00e9"'], []),
    "numbers": (dk.JsonSchema({"type": "number"}), ["1.5", "-0.25", "0"], ["01", "1.", "--1", ""]),
    "integers from 10 to 1999": (
        dk.JsonSchema({"type": "integer", "minimum": 10, "maximum": 1999}),
        ["10", "1999", "57"],
        ["9", "2000", "010", "-10"],
    ),
    "an enum of several types": (dk.JsonSchema({"enum": ["a", "b", 1, None]}), ['"a"', "1", "null"], ['"c"', "2"]),
    "`minLength`, `maxLength`": (
        dk.JsonSchema({"type": "string", "minLength": 1, "maxLength": 3}),
        ['"abc"', '"a"'],
        ['""', '"abcd"'],
    ),
    "`pattern`": (dk.JsonSchema({"type": "string", "pattern": "^[a-c]+$"}), ['"abc"'], ['"d"', '""']),
    "optional properties": (dk.JsonSchema(OPTIONAL), ["{}", '{"b":1}', '{"a":1,"b":2}'], ['{"c":1}', '{"a":"x"}']),
    "`anyOf`": (
        dk.JsonSchema({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "boolean"}}]}),
        ["1", "[true]", "[]"],
        ['"a"', "[1]"],
    ),
    "a schema that refers to itself": (dk.JsonSchema(NESTED), ["[[],[[]]]", "[]"], ["[1]"]),
}


def rows_of(page: str) -> dict[str, dict[str, str]]:
    """The cells of the table of laws and languages: by row, then by backend."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    heads = next(line for line in lines if all(name in line for name in BACKENDS))
    names = [cell.strip(" `") for cell in heads.strip("|").split("|")][1:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in cells if row[0] in {**LAWS, **LANGUAGES}}


TABLE = rows_of(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_every_row() -> None:
    assert TABLE.keys() == {**LAWS, **LANGUAGES}.keys()
    assert all(row.keys() == BACKENDS.keys() for row in TABLE.values())


@pytest.fixture(params=BACKENDS)
def peer(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{name} is not installed")
    return name


def verdict(check: Any) -> str:
    """``yes``, ``no`` or ``refused``, and on failure why."""
    try:
        check()
    except ConstraintError as error:
        return f"refused: {error}"
    except AssertionError as error:
        return f"no: {error}"
    return "yes"


@pytest.mark.parametrize("law", LAWS)
def test_laws(peer: str, law: str) -> None:
    vocabulary, constraints = LAWS[law]

    def check() -> None:
        for constraint in constraints:
            grammar = dk.compile(dk.backend(peer)(constraint), vocabulary)
            for seed in range(NUM_WALKS):
                check_matcher(grammar.matcher(), vocabulary, seed=seed)

    found = verdict(check)
    assert found.partition(":")[0] == TABLE[law][peer], found


@pytest.mark.parametrize("language", LANGUAGES)
def test_languages(peer: str, language: str) -> None:
    constraint, accepts, rejects = LANGUAGES[language]
    found = verdict(lambda: check_language(dk.backend(peer)(constraint), accepts=accepts, rejects=rejects))
    assert found.partition(":")[0] == TABLE[language][peer], found


@pytest.mark.parametrize("language", LANGUAGES)
def test_ours_beside_them(language: str) -> None:
    constraint, accepts, rejects = LANGUAGES[language]
    if isinstance(constraint, dk.JsonSchema):
        constraint = dk.JsonSchema(constraint.schema, whitespace="any", escapes="any", numbers="any")
    check_language(constraint, accepts=accepts, rejects=rejects)


@pytest.mark.parametrize("options", [{}, {"strategy": "sample", "seed": 3}, {"speculate": "grammar"}])
def test_our_loop_under_a_peer(peer: str, options: dict[str, Any]) -> None:
    """One text for every draft, as under our own engine; and a value that the schema allows."""
    llm = dk.LLM.load("tiny")
    schema = {
        "type": "object",
        "properties": {"number": {"type": "string", "maxLength": 10}, "total": {"type": "integer"}},
        "required": ["number", "total"],
        "additionalProperties": False,
    }
    constraint = dk.backend(peer)(schema)
    settings: Any = {"constraint": constraint, "max_new_tokens": 60, **options}
    done = llm.generate("Invoice A-17, total 40 EUR.\n", **settings)
    assert done.error is None and set(done.value) == {"number", "total"}
    plain = llm.generate("Invoice A-17, total 40 EUR.\n", **{**settings, "speculate": None, "fast_forward": "off"})
    assert plain.text == done.text


def test_forced_text_is_forced(peer: str) -> None:
    """Byte for byte: no other byte is in the mask."""
    vocabulary = bytes_and()
    matcher = dk.compile(dk.backend(peer)(dk.Choices(["abcdef", "abcxyz"])), vocabulary).matcher()
    for byte in matcher.forced_text():
        assert matcher.forced_tokens()[:1] == [byte] and matcher.accept(byte)


def test_special_tokens_and_grammars_of_peers() -> None:
    pytest.importorskip("outlines_core", reason="outlines-core is not installed")
    with pytest.raises(ConstraintError):
        dk.compile(dk.backend("outlines-core")(dk.Grammar('start: "a"\n')), TEXT)
