"""Short completions: they complete, they are shortest in bytes, and they do not depend on what was asked before."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from decodekit.constraints import Choices, Constraint, JsonSchema, Regex, as_constraint
from decodekit.constraints.completion import shortest_completions
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.engine.configurations import State
from decodekit.constraints.json_schema.frames.schema_frames import ObjectFrame
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.constraints.matching.matcher import GrammarMatcher
from decodekit.constraints.network import Frame
from decodekit.errors import ResourceLimitError
from decodekit.vocabulary import Vocabulary
from tests.reference.vocabularies import adversarial_tokens, byte_vocabulary
from tests.sizes import few, sized, thinned

VOCABULARY = byte_vocabulary([*adversarial_tokens(), b"aaaa", b"    ", b'"b":', b'{"a"', b"null,"])
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "left": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                "value": {"type": "integer", "minimum": 10},
                "rest": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            },
            "required": ["left", "value"],
        }
    },
}
CASES: list[Any] = [
    Regex("(ab|c)*d{2,5}"),
    Choices(["a", "bcd", "bce"]),
    TREE,
    {"type": "object", "properties": {"a": {"type": "string", "minLength": 5}, "b": {}}, "required": ["b"]},
    {"type": "array", "minItems": 2, "items": {"enum": [12, "a b", None, [1]]}},
    {"type": "object", "minProperties": 2},
    JsonSchema({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}, whitespace=2),
    {},
]


INTEGER = {"type": "integer"}
KEYS = [f"key{number}" for number in range(12)]
LONG = {"type": "string", "maxLength": 32_767}
WORD = {"type": "string", "pattern": "^[a-z-]+$", "maxLength": 30_000}
MOST_STEPS = 20_000  # a tenth of what is allowed
FAR: dict[str, tuple[JsonSchema, bytes]] = {
    "required keys in any order": (
        JsonSchema({"properties": dict.fromkeys(KEYS, INTEGER), "required": KEYS, "type": "object"}, order="any"),
        b'{"key7":1,',
    ),
    "required keys that none declares": (JsonSchema({"required": KEYS, "type": "object"}, order="any"), b"{"),
    "many optional keys of which some must be": (
        JsonSchema(
            {"properties": dict.fromkeys(KEYS, INTEGER), "minProperties": 6, "additionalProperties": False}, order="any"
        ),
        b'{"key7":1,',
    ),
    "distinct numbers": (JsonSchema({"type": "array", "items": INTEGER, "uniqueItems": True, "minItems": 13}), b"[5"),
    "distinct long strings": (
        JsonSchema({"type": "array", "items": LONG, "uniqueItems": True, "minItems": 3}),
        b'["abc","a',
    ),
    "long strings": (
        JsonSchema({"type": "object", "properties": dict.fromkeys("abcdef", WORD), "required": ["f"]}),
        b'{"a":"x',
    ),
    "one of two long strings": (
        JsonSchema({"oneOf": [WORD, {"type": "string", "pattern": "^[0-9]+$", "maxLength": 30_000}]}),
        b'"',
    ),
    "a long string or another": (
        JsonSchema({"if": {"pattern": "^[a-z-]+$"}, "then": {"maxLength": 30_000}, "else": {"minLength": 20}}),
        b'"a',
    ),
    "long keys": (
        JsonSchema({"patternProperties": {"^[a-z]{1,5000}$": LONG, "^[0-9]{1,5000}$": LONG}, "minProperties": 3}),
        b'{"a',
    ),
}
RULES: list[Any] = [*CASES, *(rule for rule, _ in FAR.values())]


def matcher_of(rule: object, vocabulary: Vocabulary = VOCABULARY) -> GrammarMatcher:
    matcher = CompiledGrammar(as_constraint(rule), vocabulary).matcher()  # not the one that others have warmed
    assert isinstance(matcher, GrammarMatcher)
    return matcher


def walk(matcher: GrammarMatcher, rng: random.Random, num_tokens: int) -> None:
    """Random tokens, half of the time one with several bytes."""
    for _ in range(num_tokens):
        out = allocate_bitmask(1, VOCABULARY.size)
        matcher.fill_bitmask(out)
        allowed = [token for token in ids_from_bitmask(out[0]).tolist() if token != 256]
        if not allowed:
            return
        long = [token for token in allowed if token > 256]
        assert matcher.accept(rng.choice(long if long and rng.random() < 0.5 else allowed))


def fewest_bytes(matcher: GrammarMatcher, limit: int) -> int | None:
    """Breadth first over all bytes: the slow twin."""
    layer: set[State] = {matcher.state}
    seen = set(layer)
    for length in range(limit + 1):
        if any(map(matcher.recogniser.states.is_accepting, layer)):
            return length
        after = {matcher.recogniser.step(state, byte) for state in layer for byte in range(256)}
        layer = {state for state in after if state is not None} - seen
        seen |= layer
    return None


def fewest_tokens(matcher: GrammarMatcher, limit: int) -> int | None:
    """Breadth first over all tokens."""
    layer: set[State] = {matcher.state}
    seen = set(layer)
    for length in range(limit + 1):
        if any(map(matcher.recogniser.states.is_accepting, layer)):
            return length
        after = {matcher.after(state, token) for state in layer for token in range(VOCABULARY.size)}
        layer = {state for state in after if state is not None} - seen
        seen |= layer
    return None


def byte_length(tokens: Iterable[int]) -> int:
    return sum(len(VOCABULARY.token_bytes[token] or b"") for token in tokens)


@few(5)
@thinned("rule", RULES, keep=[rule for rule in RULES if rule is not FAR["distinct numbers"][0]])
@sized("num_walks", 3, slow=8)
def test_completions_complete_and_do_not_depend_on_what_was_asked(rule: object, num_walks: int) -> None:
    rng = random.Random(1)
    warm = matcher_of(rule)
    for _ in range(num_walks):
        matcher = warm.fork()
        walk(matcher, rng, rng.randrange(8))
        completion = matcher.completion()
        fresh = matcher_of(rule)
        assert all(fresh.accept(byte) for byte in matcher.text)
        assert fresh.completion() == completion
        assert matcher.validate(completion) == len(completion)
        for token in completion:
            assert matcher.can_end_within(len(completion), token)
            assert matcher.accept(token)
        assert matcher.is_accepting and matcher.completion() == ()


# Without objects that take any key: every beginning of a key is a state of its own, too many for the twin.
@pytest.mark.parametrize("rule", [CASES[number] for number in (0, 1, 4, 6)], ids=lambda rule: repr(rule)[:40])
def test_completions_are_shortest_in_bytes_and_never_below_the_fewest_tokens(rule: object) -> None:
    rng = random.Random(2)
    bytes_only = byte_vocabulary()
    for num_tokens in (0, 3, 5):
        matcher = matcher_of(rule)
        walk(matcher, rng, num_tokens)
        plain = matcher_of(rule, bytes_only)
        assert all(plain.accept(byte) for byte in matcher.text)
        shortest = fewest_bytes(matcher, 6)
        if shortest is not None:
            assert len(plain.completion()) == shortest  # every byte a token: exact
            fewest = fewest_tokens(matcher, 1)
            assert fewest is None or fewest <= len(matcher.completion()) <= shortest


@pytest.mark.parametrize(
    ("rule", "num_tokens"),
    [
        (Choices(["a", "bcd"]), 1),
        (Regex("a{8}"), 2),
        (Regex("[a-z ]{8}x"), 3),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, 3),  # `{"a":`, `null`, `}`
        ({"type": "string", "minLength": 8}, 4),
        (JsonSchema({"type": "array", "minItems": 3, "items": {"const": None}}, whitespace="compact"), 5),
        (True, 1),
    ],
)
def test_numbers_of_tokens(rule: object, num_tokens: int) -> None:
    assert len(matcher_of(rule).completion()) == num_tokens


def test_the_twin_would_notice_a_longer_one() -> None:
    """Negative control: a completion that is not shortest is told from one that is."""
    matcher = matcher_of(Choices(["ab", "abcdef"]))
    assert fewest_bytes(matcher, 7) == 2 != len(b"abcdef")


def test_a_vocabulary_without_the_bytes_is_an_error() -> None:
    vocabulary = Vocabulary([b"a", b"b", None], [2])
    with pytest.raises(ResourceLimitError, match="no tokens for the shortest completion"):
        matcher_of(Regex("ab|c"), vocabulary).completion()
    assert len(matcher_of(Regex("ab|cdef"), vocabulary).completion()) == 2


def test_bounds_are_kept() -> None:
    deep: dict[str, Any] = {"type": "null"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"d": deep}, "required": ["d"]}
    assert len(matcher_of(deep).completion()) <= 60 * 6 + 4
    long: Constraint = JsonSchema({"type": "string", "minLength": 3000})
    assert len(matcher_of(long).completion()) <= 3002 / 4 + 4


@pytest.mark.parametrize("name", FAR)
def test_the_way_out_is_found_soon(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, text = FAR[name]
    matcher = matcher_of(rule, byte_vocabulary())
    monkeypatch.setattr(shortest_completions, "MAX_SEARCH", MOST_STEPS)
    assert len(matcher.completion()) < 200
    for byte in text:
        assert matcher.accept(byte)
        completion = matcher.completion()
        end = matcher.fork()
        assert all(map(end.accept, completion)) and end.is_accepting


@pytest.mark.parametrize("name", ["required keys in any order", "many optional keys of which some must be"])
def test_negative_control_orders_are_too_many(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObjectFrame, "outward", Frame.outward)
    monkeypatch.setattr(shortest_completions, "MAX_SEARCH", MOST_STEPS)
    with pytest.raises(ResourceLimitError, match="no shortest text was found"):
        matcher_of(FAR[name][0]).completion()


def test_negative_control_distinct_numbers_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortest_completions, "MAX_EXACT", 1 << 40)
    monkeypatch.setattr(shortest_completions, "MAX_SEARCH", MOST_STEPS)
    with pytest.raises(ResourceLimitError, match="no shortest text was found"):
        matcher_of(FAR["distinct numbers"][0]).completion()


OBJECTS: list[Any] = [
    {"properties": {"a": INTEGER, "b": {"minimum": 10}, "c": {"const": ""}}, "required": ["b", "d"]},
    {
        "properties": {"aa": {"const": 1}, "b": {"type": "array", "minItems": 1}, "c": {}},
        "minProperties": 3,
        "patternProperties": {"^a": {"type": "integer"}, "^x": {"minLength": 3, "type": "string"}},
    },
    {"properties": {"a": {}, "b": {}, "c": {}}, "dependentRequired": {"a": ["b"], "b": ["c"]}, "minProperties": 1},
    {
        "properties": {"a": INTEGER, "b": INTEGER},
        "not": {"properties": {"b": {"minimum": 5}, "c": {"const": 1}}},
        "required": ["a"],
        "maxProperties": 3,
    },
    {
        "properties": {"a": {"enum": [1, 22]}, "b": {"enum": [[], 333]}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    {
        "propertyNames": {"pattern": "^[ab]{1,2}$"},
        "minProperties": 2,
        "required": ["bb"],
        "unevaluatedProperties": INTEGER,
    },
]


@few(3)
@pytest.mark.parametrize("number", range(len(OBJECTS)))
def test_members_in_one_order_are_as_short_as_in_any(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow twin searches all orders."""
    rule = JsonSchema({"type": "object", **OBJECTS[number]}, order="any", whitespace="compact")
    rng = random.Random(number)
    num_bytes = 0
    for _ in range(12):
        matcher = matcher_of(rule)
        walk(matcher, rng, rng.randrange(8))
        found = byte_length(matcher.completion())
        with monkeypatch.context() as patch:
            patch.setattr(ObjectFrame, "outward", Frame.outward)
            twin = matcher_of(rule)
            assert all(map(twin.accept, matcher.text))
            assert byte_length(twin.completion()) == found
        num_bytes += found
    assert num_bytes > 12


def test_the_text_so_far_is_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what is left is known from the state, a long text costs no more than a short one."""
    matcher = matcher_of({"type": "array", "items": {"type": "string"}})
    assert all(matcher.accept(byte) for byte in b'["a"' + b', "b"' * 50)

    def text(self: GrammarMatcher) -> bytes:
        raise AssertionError("the text was asked for")

    monkeypatch.setattr(GrammarMatcher, "text", property(text))
    assert matcher.completion() == (ord("]"),)
    assert matcher.can_end_within(3, ord(",")) and not matcher.can_end_within(0, ord(","))
    with pytest.raises(AssertionError, match="was asked for"):
        matcher.explain(0)
