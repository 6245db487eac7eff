r"""`escapes="needed"`: what is generated under ``escapes="any"``, but for texts with a needless escape."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.strings import string_escapes as escapes
from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.strings.string_escapes import spelled
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.constraints.matching.matcher import Matcher
from decodekit.errors import ConstraintError, OptionError
from tests.constraints.json_schema.fuzzing import DRAFTS, Source
from tests.constraints.json_schema.test_mask_oracle import SCHEMAS, compare
from tests.reference.any_json import any_json
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary
from tests.sizes import few

NEEDED = [f"\\{letter}" for letter in '"\\bfnrt'] + [
    rf"\u{number:{form}}" for number in (0x22, 0x5C, *range(0x20)) for form in ("04x", "04X")
]
ODD = {
    "properties": {"a/b": {"const": "x/y"}, 'q"\\': {"type": "string", "maxLength": 3}, "\n\u2028": {}, "😀": {}},
    "patternProperties": {r"^\\u": {"type": "string", "pattern": '^["\u0000-\u001fa/]*$'}},
    "minProperties": 1,
}  # fmt: skip


def escape_at_end(data: bytes) -> str | None:
    """The escape that a text ends in, empty if it ends in none; None if some escape in it is needless."""
    begun, in_string = "", False
    for byte in data:
        if not in_string:
            in_string = byte == 0x22
        elif begun or byte == 0x5C:
            begun += chr(byte)
            if begun in NEEDED:
                begun = ""
            elif not any(escape.startswith(begun) for escape in NEEDED):
                return None
        else:
            in_string = byte != 0x22
    return begun


def expected_bytes(matcher: Matcher, data: bytes) -> list[int]:
    """The bytes that may follow: `matcher` has read the text and takes any escape."""
    found = []
    for byte in range(256):
        place = matcher.fork()
        begun = escape_at_end(data + bytes([byte]))
        if begun is None or not place.accept(byte):
            continue
        ways = [escape[len(begun) :].encode() for escape in NEEDED if escape.startswith(begun)] if begun else [b""]
        if any(place.validate(list(way)) == len(way) for way in ways):
            found.append(byte)
    return found


def walk(schema: Any, rng: random.Random, num_steps: int, **options: Any) -> int:
    """Hold the bytes that may follow against those of the wider language without needless escapes; how many places."""
    vocabulary = byte_vocabulary()
    grammars = [CompiledGrammar(any_json(schema, escapes=way, **options), vocabulary) for way in ("any", "needed")]
    wide, narrow = (grammar.matcher() for grammar in grammars)
    mask = allocate_bitmask(1, vocabulary.size)
    data = b""
    for number in range(num_steps):
        narrow.fill_bitmask(mask)
        found = [token for token in ids_from_bitmask(mask[0]).tolist() if token not in vocabulary.eos_token_ids]
        assert found == expected_bytes(wide, data), (schema, data)
        assert narrow.is_accepting == wide.is_accepting
        if not found:
            return number + 1
        byte = 0x5C if 0x5C in found and rng.random() < 0.3 else rng.choice(found)
        assert narrow.accept(byte) == wide.accept(byte)
        if narrow.num_tokens != len(data) + 1:
            return number + 1  # a guard's refusal
        data += bytes([byte])
    return num_steps


@few(2)
@pytest.mark.parametrize("order", ["any", "declared"])
@pytest.mark.parametrize("name", [*SCHEMAS, "odd"])
def test_against_the_wider_language(name: str, order: Any) -> None:
    schema = {**SCHEMAS, "odd": ODD}[name]
    num_places = sum(
        walk(schema, random.Random(f"{name} {seed}"), 25, order=order, format="assert") for seed in range(3)
    )
    assert num_places >= 9


@few(2)
@pytest.mark.parametrize("draft", DRAFTS)
def test_random_schemas(draft: int) -> None:
    num_places = 0
    for seed in range(12):
        try:
            num_places += walk(Source(random.Random(seed), draft).root(), random.Random(seed), 15)
        except ConstraintError:
            continue
    assert num_places >= 30


@pytest.mark.parametrize("name", ["an object", "strings", "patterned keys", "recursive", "odd"])
def test_masks(name: str) -> None:
    rule = JsonSchema({**SCHEMAS, "odd": ODD}[name], escapes="needed", order="any")
    assert sum(compare(rule, adversarial_vocabulary(), random.Random(seed), 6) for seed in range(3)) >= 6


def test_by_hand() -> None:
    matcher = CompiledGrammar(JsonSchema({"type": "string"}, escapes="needed"), byte_vocabulary()).matcher()
    for word in (r'"a/\"\\\n"', r'"\u0000\u001F\u0022\u005c"', '"\u007f\u2028é😀"', '""'):
        place = matcher.fork()
        assert all(place.accept(byte) for byte in word.encode()) and place.is_accepting, word
    for word in (r'"\/"', r'"\u0061"', r'"\u0020"', r'"\u007f"', r'"\ud83d\ude00"', r'"\u00e9"', r'"\u0023"'):
        assert matcher.validate(list(word.encode())) < len(word), word


def test_single_derivatives_are_those_of_the_rows() -> None:
    agenda = [spelled(ir.concat(text.words(["a/", "\x00é", '"']), text.QUOTE), "needed")]
    seen = set(agenda)
    while agenda:
        node = agenda.pop()
        possible = node.possible_bytes()
        for byte in range(256):
            target = Node.derivative(node, byte)
            assert node.derivative(byte) == target
            assert target.is_empty or possible >> byte & 1
            if not target.is_empty and target not in seen:
                seen.add(target)
                agenda.append(target)
    assert len(seen) > 12


def test_negative_control_the_oracle_tells_needless_escapes() -> None:
    assert escape_at_end(rb'{"a\n\u001') == r"\u001" and escape_at_end(rb'{"a\u006') is None
    assert escape_at_end(b'"\\"') == "" and escape_at_end(rb'["\/') is None
    matcher = CompiledGrammar(any_json({"const": "a"}), byte_vocabulary()).matcher()
    assert matcher.accept(0x22) and expected_bytes(matcher, b'"') == [ord("a")]


def test_keys_are_forced() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "null"}}, "required": ["name"], "maxProperties": 1}
    for way, forced in (("any", b'{"'), ("needed", b'{"name":null}')):
        rule = JsonSchema(schema, whitespace="compact", escapes=way)  # type: ignore[arg-type]
        assert CompiledGrammar(rule, byte_vocabulary()).matcher().forced_text() == forced


def test_lists_of_words_stay_blocks() -> None:
    table = text.WordTable(["a", "ab", "b"], text.closed, are_labelled=True)
    wide, narrow = table.node().block(), escapes.Sparing(table.node()).block()
    assert wide is not None and narrow is not None
    assert wide.num_states == narrow.num_states and len(wide.open_state) and not len(narrow.open_state)
    assert escapes.Sparing(table.node(), "\\").block() is None


def test_the_option() -> None:
    wide, narrow = JsonSchema({"type": "string"}, escapes="any"), JsonSchema({"type": "string"})
    assert wide != narrow and narrow == JsonSchema({"type": "string"}, escapes="needed")
    assert pickle.loads(pickle.dumps(narrow)) == narrow
    assert narrow.parse(r'"\u0061\/"') == "a/"  # it narrows what is generated
    with pytest.raises(OptionError, match="'some' are no escapes"):
        JsonSchema({}, escapes="some")  # type: ignore[arg-type]
