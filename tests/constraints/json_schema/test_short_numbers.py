"""`numbers="short"`: of what is generated under ``numbers="any"``, integers as digits and numbers that end."""

from __future__ import annotations

import json
import pickle
import random
import struct
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any, Final

import pytest

import decodekit as dk
from decodekit.constraints import JsonSchema, explain
from decodekit.constraints.json_schema.values import short_numbers
from decodekit.constraints.json_schema.values.numbers import NumberSpec
from decodekit.constraints.json_schema.values.short_numbers import MAX_BYTES, Short, in_form
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import EMPTY, Node
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.errors import OptionError
from tests.constraints.json_schema.test_mask_oracle import compare
from tests.reference.short_numbers import short_words
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary
from tests.sizes import few, sized, thinned

NUMBERS: Final[dict[str, Any]] = {
    "any": {"type": "number"},
    "integer": {"type": "integer"},
    "above zero": {"type": "number", "exclusiveMinimum": 0},
    "below a small one": {"type": "number", "exclusiveMaximum": -1e-30},
    "sevens": {"type": "integer", "multipleOf": 7},
    "cents": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 1e6},
    "many digits": {"type": "integer", "minimum": 10**40},
    "none of the whole ones": {"type": "number", "not": {"type": "integer"}},
    "a long constant": {"const": 123456789012345678901234567890},
    "one that begins like another": {"enum": [10**24 + 1, 10**27 + 1000, 3]},
    "256 bits": {"type": "integer", "minimum": 0, "maximum": 2**256 - 1},
    "billionths": {"type": "number", "minimum": -(10**18), "maximum": 10**18, "multipleOf": 1e-9},
    "draft 4": {"$schema": "http://json-schema.org/draft-04/schema#", "enum": [10**30, 10**29], "type": "integer"},
}


WHOLE: Final = {"integer", "sevens", "many digits", "256 bits"}
"""Of these the numbers are digits alone; long listed ones may have an exponent."""


def words(node: Node, longest: int, alphabet: bytes) -> set[bytes]:
    """The words of at most so many bytes of an alphabet."""
    found, ring = set(), {b"": node}
    for _ in range(longest + 1):
        found |= {word for word, after in ring.items() if after.labels}
        steps = ((word + bytes([byte]), after.derivative(byte)) for word, after in ring.items() for byte in alphabet)
        ring = {word: after for word, after in steps if after is not EMPTY and not after.is_empty}
    return found


def small_languages(depth: int) -> Iterator[Node]:
    """All languages over a and b of so many operations."""
    if depth == 0:
        yield from (ir.literal(b"a"), ir.literal(b"b"))
        return
    yield from small_languages(depth - 1)
    for node in small_languages(depth - 1):
        yield from (ir.repeat(node), ir.repeat(node, 1), ir.optional(node), ir.repeat(node, 2, 3))
    for first, second in product(small_languages(depth - 1), repeat=2):
        yield from (ir.concat(first, second), ir.choice(first, second))
        yield ir.both(ir.repeat(ir.byte_set(b"ab")), ir.complement(first))


@few(1)
@thinned("most", range(5), keep=(0, 2, 4))
def test_all_small_languages(most: int) -> None:
    languages = set(small_languages(2))
    longest = 9  # from any beginning at most four bytes more are needed, so all shortest ways are there
    for node in languages:
        expected = short_words(words(node, longest, b"ab"), most)
        assert words(Short(node, most), longest, b"ab") == expected, (node, most)
    assert len(languages) > 200


@pytest.mark.parametrize("most", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "spec",
    [
        NumberSpec(),
        NumberSpec(is_integer=True),
        NumberSpec(low=Fraction(0), low_strict=True),
        NumberSpec(high=Fraction(-10)),
        NumberSpec(low=Fraction(10), is_integer=True),
    ],
)
def test_numbers_with_small_bounds(spec: NumberSpec, most: int) -> None:
    alphabet = b"-01.e"
    expected = short_words(words(spec.node(), 7, alphabet), most)
    assert words(Short(spec.node(), most), 7, alphabet) == {word for word in expected if len(word) <= 7}
    assert any(len(word) > most for word in words(spec.node(), 7, alphabet) - expected)  # else nothing is shown


def list_of(schema: Any, **keywords: Any) -> Any:
    dialect = {"$schema": schema["$schema"]} if "$schema" in schema else {}
    return {**dialect, "type": "array", "items": schema, **keywords}


SPECS: Final = {
    "integers": NumberSpec(is_integer=True),
    "multiples": NumberSpec(step=Fraction(3), low=Fraction(0)),
    "small ones": NumberSpec(is_integer=True, low=Fraction(-1), high=Fraction(11)),
    "listed": NumberSpec(values=frozenset({Fraction(0), Fraction(1), Fraction(-10)})),
    "some listed": NumberSpec(is_integer=True, values=frozenset({Fraction(1), Fraction(1, 2)})),
}


@pytest.mark.parametrize("name", SPECS)
def test_integers_are_their_digits_and_nothing_else(name: str) -> None:
    alphabet, spec = b"-+01.eE", SPECS[name]
    every = words(spec.node(), 5, alphabet)
    expected = {word for word in every if word.lstrip(b"-").isdigit()}
    expected.discard(b"-0")  # a spelling of 0
    assert words(in_form(spec, "short"), 5, alphabet) == expected
    assert {float(word) for word in every} >= {float(word) for word in expected}
    assert len(every) > len(expected) > 0  # else nothing is shown


def test_other_listed_numbers_keep_their_spellings() -> None:
    spec = NumberSpec(values=frozenset({Fraction(1), Fraction(1, 10), Fraction(10**30)}))
    found = words(in_form(spec, "short"), 5, b"-01.e3+")
    assert b"1" in found and b"0.1" in found and b"0.10" in found and b"1e-1" in found and b"1e30" in found
    assert not found & {b"1.0", b"1e0", b"10e-1"}


def test_what_speaks_of_the_spelling_is_left_alone() -> None:
    """In draft 4, 1.0 is no integer, and not to be one takes a point or an exponent."""
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "not": {"type": "integer"}, "multipleOf": 1}
    assert accepts(schema, "1.0") and not accepts(schema, "1")


def matcher(schema: Any, **options: Any) -> Any:
    return CompiledGrammar(JsonSchema(schema, **options), byte_vocabulary()).matcher()


def accepts(schema: Any, text: str, **options: Any) -> bool:
    found = matcher(schema, **options)
    return all(found.accept(byte) for byte in text.encode()) and found.is_accepting


@few(3)
@thinned("name", NUMBERS, keep=NUMBERS.keys() - {"billionths"})
@sized("num", 30, slow=100)
def test_what_has_room_stays_as_it_is(name: str, num: int) -> None:
    """Every double as Python prints it, every integer of 64 bits: accepted exactly where any length is."""
    rng = random.Random(name)
    doubles = (struct.unpack("<d", rng.randbytes(8))[0] for _ in range(3 * num))
    values = [value for value in doubles if value == value and abs(value) != float("inf")]
    values += [rng.randrange(-(2**63), 2**64) for _ in range(num)]
    values += [-2.2250738585072014e-308, 1.7976931348623157e308, -(2**63), 2**64 - 1, 0, -0.0, 7, 0.25, 3]
    values += [round(rng.uniform(0, 2000), 2) for _ in range(num)]
    texts = [json.dumps(value) for value in values]
    assert max(map(len, texts)) == MAX_BYTES
    answers = [accepts(NUMBERS[name], text) for text in texts]
    are_spelled_so = [name not in WHOLE or text.lstrip("-").isdigit() for text in texts]
    expected = [accepts(NUMBERS[name], text, numbers="any") for text in texts]
    assert answers == [is_accepted and is_so for is_accepted, is_so in zip(expected, are_spelled_so, strict=True)]


@few(1)
@thinned("name", NUMBERS, keep=[*NUMBERS][::2])
def test_every_number_ends(name: str) -> None:
    """Whatever a model likes to write, the number ends, with a value that the schema admits."""
    for seed, likes in enumerate(["", "0", "9", "3.", "0.e", "-0.", "1e0", "71"]):
        found, rng, text = matcher(list_of(NUMBERS[name])), random.Random(seed), "["
        assert found.accept(0x5B)
        while len(text) < 100:
            after = sorted(byte for byte in range(256) if found.validate([byte]) == 1 and chr(byte) not in ",] \n\t")
            if not after:
                break
            liked = [byte for byte in after if chr(byte) in likes]
            byte = rng.choice(liked or after)
            assert found.accept(byte)
            text += chr(byte)
        assert len(text) < 100, text
        assert found.accept(0x5D) and found.is_accepting, text
        assert dk.check(NUMBERS[name]).is_supported and accepts(NUMBERS[name], text[1:], numbers="any"), text


def test_negative_control_with_any_they_go_on() -> None:
    for name, text in (("any", "0." + "3" * 200), ("above zero", "0." + "0" * 200), ("sevens", "7" * 200)):
        found = matcher(NUMBERS[name], numbers="any")
        assert all(found.accept(byte) for byte in text.encode())
        found = matcher(NUMBERS[name])
        assert found.validate(list(text.encode())) <= MAX_BYTES


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("a long constant", ["123456789012345678901234567890"]),
        ("one that begins like another", ["3", str(10**24 + 1), str(10**27 + 1000)]),
        ("draft 4", [str(10**30), str(10**29)]),
        ("many digits", [str(10**40), "9" * 41]),
        ("256 bits", [str(2**256 - 1), str(2**255), "0"]),
        ("billionths", ["-999999999999999999.999999999", "0.000000001"]),
    ],
)
def test_what_a_schema_asks_for_has_room(name: str, texts: list[str]) -> None:
    for text in texts:
        assert accepts(NUMBERS[name], text), text


def test_a_bound_that_is_left_to_the_guard_has_room() -> None:
    schema = {"type": "integer", "minimum": 10**1_300}
    assert accepts(schema, str(10**1_300)) and not accepts(schema, "3")


@few(2)
@thinned("name", NUMBERS, keep=NUMBERS.keys() - {"sevens"})
def test_masks(name: str) -> None:
    schema = list_of(NUMBERS[name], minItems=20, uniqueItems=name in ("sevens", "any"))
    assert compare(JsonSchema(schema), adversarial_vocabulary(), random.Random(name), 40) >= 20


def test_unique_items_and_free_values_are_short_too() -> None:
    for schema in ({"type": "array", "uniqueItems": True, "items": {"type": "number"}}, {}, {"properties": {}}):
        assert matcher(schema).validate(list(b"[1" + b"0" * 60)) == 1 + MAX_BYTES
    digits = "7" * 60  # in strings and keys nothing is a number
    assert accepts({}, f'{{"{digits}":"{digits}"}}')


def test_where_the_search_meets_its_bound_a_number_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    node, text = Short(NumberSpec(low=Fraction(0), low_strict=True).node(), 3), b"0.000001"
    assert not ir.matches(node, text)
    with monkeypatch.context() as patch:
        patch.setattr(short_numbers, "_MAX_NODES", 0)
        short_numbers._bytes_to_end.cache_clear()
        assert ir.matches(node, text)
    short_numbers._bytes_to_end.cache_clear()


def test_counts_that_are_out_of_sight_are_forgotten() -> None:
    node = NumberSpec().node()
    assert Short(node, 24).saturated(23) == node.saturated(23) and Short(node, 24).saturated(24) == Short(node, 24)


def test_it_is_told_why_a_number_is_refused() -> None:
    long = "0.1234567890123456789012345"
    found = explain(JsonSchema({"properties": {"a": {"type": "number"}}}), f'{{"a": {long}}}')
    assert not found.is_allowed
    assert f'{long[:24]}… has more than 24 characters and ends as soon as it may (unless numbers="any")' in str(found)
    assert explain(JsonSchema({}, numbers="any"), long).is_allowed
    whole = explain(JsonSchema({"items": {"type": "integer"}}), "[1.0]")
    assert '1.0 is an integer, written as digits alone (unless numbers="any")' in str(whole)
    assert "digits" not in str(explain(JsonSchema({"type": "integer"}), "2.5"))
    short_but_wrong = explain(JsonSchema({"maximum": 3}), "4")
    assert "characters" not in str(short_but_wrong).split(":", 1)[1].split("needs")[1]


def test_the_option() -> None:
    wide, narrow = JsonSchema({"type": "number"}, numbers="any"), JsonSchema({"type": "number"})
    assert wide != narrow and narrow == JsonSchema({"type": "number"}, numbers="short")
    assert pickle.loads(pickle.dumps(wide)) == wide and wide.options["numbers"] == "any"
    assert narrow.parse("0." + "3" * 40) == pytest.approx(1 / 3)  # it narrows what is generated
    with pytest.raises(OptionError, match="'long' is no way to write numbers"):
        JsonSchema({}, numbers="long")  # type: ignore[arg-type]


def test_a_model_that_writes_digits_for_ever_is_ended() -> None:
    """The bundled model, made to like the digit 0: the list is whole, and with any numbers it is cut."""
    llm = dk.LLM.load("tiny")
    zero = llm.vocabulary.token_bytes.index(b"0")
    options: dict[str, Any] = {"logit_bias": {zero: 50.0}, "max_new_tokens": 64}
    schema = list_of({"exclusiveMinimum": 0, "maximum": 1, "type": "number"}, minItems=1, maxItems=1)
    done = llm.generate("Say: ", constraint=schema, **options)
    assert done.error is None and json.loads(done.text)
    cut = llm.generate("Say: ", constraint=JsonSchema(schema, numbers="any"), **options)
    assert cut.error is not None and 'numbers="short" (--numbers short)' in str(cut.error)
