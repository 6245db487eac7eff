"""`whitespace="natural"`: one way of laying a text out, whatever the text. Small worlds, gone through completely."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from decodekit.constraints.engine.automaton import Automaton
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.frames import layout
from decodekit.constraints.json_schema.frames import schema_frames as frames
from decodekit.constraints.language import ir
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.errors import OptionError
from tests.reference.vocabularies import byte_vocabulary

INDENTS = ("  ", "    ", "\t")
VALUES: list[Any] = [
    True,
    "a b",
    [],
    {},
    [True],
    {"a": True},
    [True, None],
    {"a": True, "b": None},
    [[]],
    [{}],
    {"a": []},
    {"a": {}},
    [[True]],
    [[True, None], [True]],
    {"a": [True, None]},
    {"a": {"b": True}},
    {"a": {"b": [True, None]}, "c": None},
    [{"a": True, "b": [None]}, [], [[True]], None],
    {"a": [{"b": None}, {"b": None}], "c": {}},
    [[[True]]],
    {"a": {"b": {"c": {"d": True}}}},
]


def indented(value: Any, indent: str, depth: int = 0) -> Iterator[str]:
    """A value as `json.dumps` indents it, where each container inside may also stand on one line."""
    if not isinstance(value, dict | list) or not value:
        yield json.dumps(value)
        return
    parts = []
    for key in value if isinstance(value, dict) else range(len(value)):
        inner = value[key]
        ways = {*indented(inner, indent, depth + 1), json.dumps(inner)}
        parts.append([f'"{key}": {way}' if isinstance(value, dict) else way for way in ways])
    before, after = "\n" + indent * (depth + 1), "\n" + indent * depth
    first, last = "{}" if isinstance(value, dict) else "[]"
    for chosen in itertools.product(*parts):
        yield first + before + f",{before}".join(chosen) + after + last


def natural(value: Any) -> set[str]:
    """The texts of a value under the policy, as its description says."""
    texts = {json.dumps(value, separators=(",", ":")), json.dumps(value)}
    return texts.union(*(indented(value, indent) for indent in INDENTS))


def texts(rule: JsonSchema) -> set[str]:
    """All texts that a rule accepts; they have to be few."""
    found = set()
    mask = allocate_bitmask(1, byte_vocabulary().size)
    agenda = [(b"", CompiledGrammar(rule, byte_vocabulary()).matcher())]
    while agenda:
        data, matcher = agenda.pop()
        matcher.fill_bitmask(mask)
        for token in ids_from_bitmask(mask[0]).tolist():
            if token == 256:
                found.add(data.decode())
                continue
            after = matcher.fork()
            assert after.accept(token)
            agenda.append((data + bytes([token]), after))
    return found


def rule_of(value: Any, whitespace: Any = "natural") -> JsonSchema:
    return JsonSchema({"const": value}, whitespace=whitespace, escapes="needed")


@pytest.mark.parametrize("value", VALUES, ids=json.dumps)
def test_the_texts_of_a_value(value: Any) -> None:
    """All texts that are accepted, over all bytes: those of the description, and no other one."""
    found = texts(rule_of(value))
    assert found == natural(value)
    for text in found:
        assert text == text.strip() and json.loads(text) == value
    for indent in (2, 4, "\t"):
        assert json.dumps(value, indent=indent) in found


def test_the_description_says_what_is_expected() -> None:
    assert natural([True, [None, 1]]) == {
        "[true,[null,1]]",
        "[true, [null, 1]]",
        *(f"[\n{i}true,\n{i}[null, 1]\n]" for i in INDENTS),
        *(f"[\n{i}true,\n{i}[\n{i}{i}null,\n{i}{i}1\n{i}]\n]" for i in INDENTS),
    }


def test_a_layout_that_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison fails where compact and spaced are one layout with a blank that may be missing."""
    blank = ir.optional(ir.literal(b" "))
    forgetful = layout.Layout(comma=ir.concat(ir.literal(b","), blank), colon=ir.concat(ir.literal(b":"), blank))
    monkeypatch.setattr(frames, "outermost", lambda whitespace: forgetful)
    value = {"a": True, "b": [None, True]}
    rule = JsonSchema({"const": value, "title": "forgetful"}, whitespace="natural", escapes="needed")
    assert texts(rule) - natural(value)
    # A small value does not tell: the world has to be large enough.
    small = JsonSchema({"const": [True], "title": "forgetful"}, whitespace="natural", escapes="needed")
    assert not texts(small) - natural([True])


@pytest.mark.parametrize("whitespace", [0, 2, 4, 7, "\t"])
def test_an_indentation_is_that_of_json(whitespace: Any) -> None:
    for value in VALUES:
        assert texts(rule_of(value, whitespace)) == {json.dumps(value, indent=whitespace)}


def num_alternatives(schema: Any, whitespace: Any, data: bytes) -> int:
    """The configurations of the state after some bytes."""
    recogniser = Recogniser(JsonSchema(schema, whitespace=whitespace).root(), Automaton())
    state = recogniser.read(recogniser.root, data)
    assert state is not None, data
    return len(recogniser.states.configurations[state])


def test_a_settled_layout_is_one_alternative() -> None:
    """As soon as the bytes tell the layouts apart, one is followed, however deep the text is."""
    # Before the first key: the end and four layouts; behind it, one with and one without a blank.
    for data, num in {b"{": 5, b'{"a': 1, b'{"a"': 2, b'{"a":': 2, b"[true": 3}.items():
        assert num_alternatives({}, "natural", data) == num, data
    lists = {"type": "array", "items": {"$ref": "#"}}
    for schema, compact, laid_out in (
        ({}, b'{"a":1', (b'{"a":1', b'{"a": 1', b'{\n\t"a": 1')),
        ({}, b"[1,[true", (b"[1,[true", b"[1, [true", b"[\n  1,\n  [true", b"[\n  1,\n  [\n    true")),
        (lists, b"[[],[[]", (b"[[],[[]", b"[[], [[]", b"[\n\t[],\n\t[\n\t\t[]")),
    ):
        for data in laid_out:
            assert num_alternatives(schema, "natural", data) == num_alternatives(schema, "compact", compact), data


@pytest.mark.parametrize("bad", ["spaced", " ", "\t\t", -1, 17, True, 2.0, None, ["natural"]])
def test_what_is_no_policy_is_refused(bad: Any) -> None:
    with pytest.raises(OptionError, match="no white space policy"):
        JsonSchema({}, whitespace=bad)
