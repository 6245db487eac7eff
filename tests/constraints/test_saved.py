"""Compiled grammars on disk: what is read is what was written, for the same vocabulary and for no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import decodekit
from decodekit.constraints.author.members import sample_text
from decodekit.constraints.composition.choices import Choices
from decodekit.constraints.composition.combinators import Concat, Many, OneOf, Optional, Text
from decodekit.constraints.composition.composed import Special
from decodekit.constraints.composition.guarded import Guarded
from decodekit.constraints.composition.tags import Reasoned, Tag, Tagged
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.grammar.grammar import Grammar
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.matching import saved
from decodekit.constraints.matching.compiler import CompiledGrammar, compile
from decodekit.constraints.regex.regex import Regex
from decodekit.errors import (
    ConstraintError,
    InvalidConstraintError,
    NameNotFoundError,
    UnsupportedSchemaError,
    VocabularyMismatchError,
)
from decodekit.vocabulary import Vocabulary
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary

BYTES = Vocabulary([*byte_vocabulary().token_bytes, None], [256], special_tokens={"<eos0>": 256, "<think>": 257})
SCHEMA = {"properties": {"z": {"type": "integer"}, "a": {"$ref": "https://example.org/b"}}, "required": ["a"]}

CONSTRAINTS: list[Constraint] = [
    Regex(r"é+\d{2,}"),
    Regex(r"a.b", "ecma"),
    Choices(["yes", "no", "\u2028"]),
    JsonSchema(SCHEMA, "assert", 2, "any", {"https://example.org/b": {"type": "null"}}),
    JsonSchema({"type": "string"}, whitespace="compact"),
    JsonSchema({"type": "string"}, escapes="needed"),
    JsonSchema({"type": "number"}, numbers="any"),
    Grammar('start: "a" [start] "b"\n'),
    Grammar('root ::= "a" root? "b"\n', start="root"),
    Concat("Answer: ", Regex(r"\d+"), Optional("!")),
    OneOf(Choices(["a", "b"]), Many(JsonSchema({"type": "null"}), 1, 3, separator=", ")),
    Tagged(Tag("<f>", JsonSchema({"type": "object"}), "</f>"), max_tags=2),
    Reasoned(JsonSchema({"type": "integer"}), "<think>", "</think>", max_chars=5),
    Concat(Special("<think>"), Text(max_chars=3)),
]


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda constraint: type(constraint).__name__)
def test_what_is_read_is_what_was_written(constraint: Constraint, tmp_path: Path) -> None:
    path = tmp_path / "grammar.json"
    grammar = compile(constraint, BYTES)
    grammar.save(path)
    loaded = CompiledGrammar.load(path, BYTES)
    assert loaded.constraint == constraint and loaded is grammar
    assert json.loads(path.read_text())["decodekit"] == decodekit.__version__
    assert list(tmp_path.iterdir()) == [path]


def test_a_grammar_of_one_line(tmp_path: Path) -> None:
    """It is read as a text, never as the name of a file, so a line end is put behind it."""
    compile(Grammar('start: "a"+'), BYTES).save(tmp_path / "g")
    loaded = CompiledGrammar.load(tmp_path / "g", BYTES)
    assert isinstance(loaded.constraint, Grammar) and loaded.constraint.text == 'start: "a"+\n'
    assert loaded.matcher().validate(list(b"aaab")) == 3


def test_the_order_of_properties_is_kept(tmp_path: Path) -> None:
    compile(JsonSchema({"properties": {"z": True, "a": True}}), BYTES).save(tmp_path / "g")
    loaded = CompiledGrammar.load(tmp_path / "g", BYTES).constraint
    assert isinstance(loaded, JsonSchema) and list(loaded.schema["properties"]) == ["z", "a"]  # type: ignore[index, call-overload]


def test_another_vocabulary(tmp_path: Path) -> None:
    compile(Regex("a"), BYTES).save(tmp_path / "g")
    other = adversarial_vocabulary()
    with pytest.raises(VocabularyMismatchError) as caught:
        CompiledGrammar.load(tmp_path / "g", other)
    assert BYTES.fingerprint in caught.value.cause and other.fingerprint in caught.value.cause
    same = Vocabulary(BYTES.token_bytes, BYTES.eos_token_ids, BYTES.size, BYTES.special_tokens)
    assert CompiledGrammar.load(tmp_path / "g", same).constraint == Regex("a")


class Point(BaseModel):
    x: int


class Own(Constraint):
    """A constraint that the module does not know."""

    def root(self) -> Any:
        return Regex("a").root()

    def parse(self, text: str) -> str:
        return text


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        (JsonSchema(Point), "Python type"),
        (Guarded(Regex("a"), lambda text: True), "a Guarded cannot be saved"),
        (Own(), "an? Own cannot be saved"),
        (Concat("a", Guarded(Regex("a"), lambda text: True)), "a Guarded cannot be saved"),
    ],
)
def test_python_objects_are_refused_by_name(constraint: Constraint, said: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSchemaError, match=said):
        compile(constraint, BYTES).save(tmp_path / "g")
    assert list(tmp_path.iterdir()) == []


GOOD = {
    "format": saved.FORMAT,
    "decodekit": "0",
    "vocabulary": {"fingerprint": BYTES.fingerprint},
    "constraint": {"Regex": {"pattern": "a"}},
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "decodekit grammar 2"}, "this version reads"),
        ({"format": "something"}, "no saved grammar"),
        ({"constraint": {"Path": {}}}, "no constraint"),
        ({"constraint": {"Regex": {"pattern": "a", "run": "rm"}}}, "arguments of Regex"),
        ({"constraint": {"Regex": {"pattern": 3}}}, "Regex"),
        ({"constraint": {"Regex": {"pattern": "("}}}, "\\(|group|bracket|end"),
        ({"constraint": {"Choices": {"texts": {"Regex": {"pattern": "a"}}}}}, "Choices|choice"),
        ({"constraint": "a"}, "no constraint"),
        ({"constraint": {"JsonSchema": {}}}, "arguments of JsonSchema"),
        ({"constraint": {"Grammar": {"text": "/etc/hostname", "syntax": "lark"}}}, "line 1"),
        ({"constraint": {"Grammar": {"text": ["x"]}}}, "Grammar"),
        ({"vocabulary": 3}, "None"),
    ],
)
def test_files_of_another_hand(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "g"
    path.write_text(json.dumps(GOOD))
    assert CompiledGrammar.load(path, BYTES).constraint == Regex("a")
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises((ConstraintError, VocabularyMismatchError), match=said):
        CompiledGrammar.load(path, BYTES)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\x00", "[" * 100_000, '{"format": null}'])
def test_files_that_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "g").write_text(text)
    with pytest.raises(ConstraintError):
        CompiledGrammar.load(tmp_path / "g", BYTES)
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConstraintError):
        CompiledGrammar.load(tmp_path / "b", BYTES)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NameNotFoundError, match="there is no file"):
        CompiledGrammar.load(tmp_path / "nowhere", BYTES)


def test_a_saved_grammar_has_the_texts_of_its_constraint(tmp_path: Path) -> None:
    for number, constraint in enumerate(CONSTRAINTS[:-1]):
        compile(constraint, BYTES).save(tmp_path / str(number))
        matcher = CompiledGrammar.load(tmp_path / str(number), BYTES).matcher()
        data = sample_text(constraint, seed=number, size=30).encode()
        assert matcher.validate(list(data)) == len(data)
