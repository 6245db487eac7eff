"""Tokens that end a JSON string, array or object: counting quotes and brackets against following every token."""

import random

import pytest

from decodekit.constraints import JsonSchema, compile
from decodekit.constraints.engine.bitmask import allocate_bitmask, bitmask_from_ids, ids_from_bitmask
from decodekit.constraints.matching.brackets import Nesting, completing_tokens_of
from decodekit.constraints.matching.guarded_matcher import GuardedMatcher
from tests.reference.vocabularies import byte_vocabulary

WORDS = [
    b"]",
    b"}]",
    b"]}",
    b"[]",
    b"{}",
    b"[[]]",
    b'""',
    b'"a"',
    b'a"',
    b'"a',
    b'"]',
    b'"}]',
    b'\\"]',
    b'""]',
    b'a"}',
    b"1]",
    b"]]]",
    b'":[',
    b"[{",
    b'{"',
]
VOCABULARY = byte_vocabulary(WORDS, num_eos=1)
ITEM = {"anyOf": [{"type": ["object", "string"]}, {"$ref": "#"}]}
SCHEMA = {"type": ["array", "object", "string"], "uniqueItems": True, "items": ITEM, "additionalProperties": ITEM}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"", Nesting(0, 0)),
        (b'{"a', Nesting(1, 1)),
        (b'[{"]}', Nesting(1, 2)),
        (b'["\\', Nesting(2, 1)),
        (b'["\\"', Nesting(1, 1)),
        (b'["\\\\"', Nesting(0, 1)),
        (b'{"a":[1,2],"', Nesting(1, 1)),
        ('["é'.encode()[:-1], Nesting(1, 1)),
    ],
)
def test_places(text: bytes, place: Nesting) -> None:
    assert Nesting().after(text) == place
    middle = len(text) // 2
    assert Nesting().after(text[:middle]).after(text[middle:]) == place


def test_tokens_by_place() -> None:
    every = bitmask_from_ids(range(VOCABULARY.size), VOCABULARY.size)

    def at(mode: int, depth: int) -> set[bytes]:
        """The tokens that may end a text; what no text has at such a place is among them, and in no mask."""
        groups = completing_tokens_of(VOCABULARY).at(Nesting(mode, depth).end, every)
        return {data for data, tokens in groups.items() if any(VOCABULARY.token_bytes[t] == data for t in tokens)}

    assert at(0, 0) >= {b"[]", b"{}", b"[[]]", b'""', b'"a"'} and not at(0, 0) & {b"]", b"[", b'"', b'"a', b"[{"}
    assert at(0, 1) >= {b"]", b"}", b"1]", b'""]'} and not at(0, 1) & {b"[]", b'""', b"[{", b'":['}
    assert at(0, 2) == {b"}]", b"]}", b"]]]"}
    assert at(0, 3) == {b"]]]"}
    assert at(1, 1) >= {b'"]', b'a"}'} and not at(1, 1) & {b'"', b'a"', b"]", b'"a"'}
    assert at(1, 2) == {b'"}]'}
    assert at(2, 1) >= {b'\\"]', b'""]', b'a"}'} and b'"]' not in at(2, 1)
    assert at(1, 0) >= {b'"', b'a"'} and not at(1, 0) & {b"]", b"a"}
    assert at(2, 0) >= {b'""', b'"a"', b'a"'} and b'"' not in at(2, 0)


def test_the_tokens_that_end_a_text_are_those_found_by_trying_all() -> None:
    grammar = compile(JsonSchema(SCHEMA, whitespace="compact"), VOCABULARY)
    rng = random.Random(1)
    found = num_states = 0
    for _ in range(30):
        matcher = grammar.matcher()
        for _ in range(rng.randrange(12)):
            assert isinstance(matcher, GuardedMatcher)
            slow = set(matcher._verdicts.closers[matcher.inner.state])
            assert set(matcher._closers()) == slow
            found, num_states = found + len(slow), num_states + 1
            out = allocate_bitmask(1, VOCABULARY.size)
            matcher.fill_bitmask(out)
            allowed = [token for token in ids_from_bitmask(out[0]).tolist() if token not in VOCABULARY.eos_token_ids]
            if not allowed:
                break
            likely = [token for token in allowed if len(VOCABULARY.token_bytes[token] or b"") > 1]
            assert matcher.accept(rng.choice(likely or allowed))
    assert found > num_states / 2  # there was something to find


def test_rollback_and_forks_keep_the_place() -> None:
    matcher = compile(JsonSchema(SCHEMA, whitespace="compact"), VOCABULARY).matcher()
    assert isinstance(matcher, GuardedMatcher)
    assert all(matcher.accept(byte) for byte in b'[{},{"a":"')
    fork = matcher.fork()
    assert isinstance(fork, GuardedMatcher)
    matcher.rollback(4)
    assert matcher._places[-1] == Nesting().after(matcher.text) == Nesting(1, 2)
    assert all(fork.accept(byte) for byte in b'"},{')
    assert fork._places[-1] == Nesting(0, 2)
    assert fork.refusal(ord("}")) is not None and not fork.accept(ord("}"))  # the first item again
    assert all(fork.accept(byte) for byte in b'"b":[]},[]') and fork._places[-1] == Nesting(0, 1)
