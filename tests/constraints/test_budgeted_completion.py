"""The tokens after which a text can end in time: the classes against every token by itself."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from decodekit.constraints import Choices, Grammar, JsonSchema, Regex, as_constraint
from decodekit.constraints.completion.budgeted_completion import BudgetedCompletion
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.constraints.matching.matcher import GrammarMatcher
from decodekit.errors import ResourceLimitError
from decodekit.vocabulary import Vocabulary
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary, tekken_vocabulary
from tests.sizes import few

RULES: dict[str, Any] = {
    "nested": {
        "type": "object",
        "properties": {
            "title": {"type": "string", "minLength": 2, "maxLength": 20},
            "items": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {"n": {"type": "number"}, "a": {"type": "string"}},
                    "required": ["a"],
                },
            },
            "born": {"type": "string", "format": "date"},
        },
        "required": ["title", "items"],
    },
    "closed": JsonSchema(
        {
            "type": "object",
            "properties": {"ab": {"type": ["string", "null"]}, "abc": {"enum": ["x", "longer"]}, "b": {"minimum": 7}},
            "required": ["abc"],
            "additionalProperties": False,
        },
        order="any",
    ),
    "any JSON": {},
    "distinct texts": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 2},
    "counts": Regex("[a-z ]{3,9}(x[0-9]{2}|[A-Z]{1,4})"),
    "words": Choices(["a", "abc", "b é", "null", "nullable"]),
    "labels": {
        "oneOf": [{"type": "string", "pattern": "^[a-z]+$", "maxLength": 6}, {"type": "string", "pattern": "^[0-9a]+$"}]
    },
    "calls": Grammar('start: item ("," " "? item)*\nitem: /[a-z]+/ "(" start? ")" | "[" /[^\\]]*/ "]"'),
}
INEXACT = {"distinct texts"}
"""Here a token may belong to a class whose representative is nearer to the end; who draws one asks again."""


def matcher_of(rule: object, vocabulary: Vocabulary) -> GrammarMatcher:
    matcher = CompiledGrammar(as_constraint(rule), vocabulary).matcher()
    assert isinstance(matcher, GrammarMatcher)
    return matcher


def allowed(matcher: GrammarMatcher, vocabulary: Vocabulary) -> list[int]:
    row = allocate_bitmask(1, vocabulary.size)
    matcher.fill_bitmask(row)
    return [token for token in ids_from_bitmask(row[0]).tolist() if token not in vocabulary.eos_token_ids]


def walk(matcher: GrammarMatcher, vocabulary: Vocabulary, rng: random.Random, num_tokens: int) -> None:
    """Random tokens, as long as any is allowed."""
    for _ in range(num_tokens):
        some = allowed(matcher, vocabulary)
        if not some:
            return
        assert matcher.accept(rng.choice(some))


def budgets(matcher: GrammarMatcher) -> list[int]:
    """Around the least number of tokens, where it decides."""
    least = len(matcher.completion())
    return sorted({max(0, least + extra) for extra in (-2, -1, 0, 1, 2, 5)} | {0, 400})


def compare(matcher: GrammarMatcher, vocabulary: Vocabulary, tokens: list[int], left_out: frozenset[int]) -> int:
    """How many of some tokens are refused by the classes or by themselves and not by both, over all budgets."""
    row = np.zeros(vocabulary.num_mask_words, np.int32)
    num_differences = 0
    for budget in budgets(matcher):
        matcher.fill_ending(row, budget, left_out)
        found = set(ids_from_bitmask(row).tolist())
        assert found <= {*allowed(matcher, vocabulary), *vocabulary.eos_token_ids}
        wanted = {token for token in tokens if matcher.can_end_within(budget, token, left_out)}
        num_differences += len((found & set(tokens)) ^ wanted)
    return num_differences


@few(2)
@pytest.mark.parametrize("name", RULES)
def test_classes_are_what_every_token_says_by_itself(name: str) -> None:
    rng, vocabulary = random.Random(3), adversarial_vocabulary()
    tokens = list(range(vocabulary.size))
    for number in range(12):
        matcher = matcher_of(RULES[name], vocabulary)
        walk(matcher, vocabulary, rng, rng.randrange(10))
        left_out = frozenset(rng.sample(tokens, 40)) if number % 3 == 0 else frozenset()
        try:
            assert compare(matcher, vocabulary, tokens, left_out) == 0 or name in INEXACT
        except Exception:
            print(matcher.text)
            raise


@pytest.mark.slow
@pytest.mark.left_out
def test_classes_on_a_real_vocabulary() -> None:
    """Some tokens of each state: those that are allowed, and others."""
    rng, vocabulary = random.Random(4), tekken_vocabulary()
    for name in RULES.keys() - INEXACT:
        for _ in range(6):
            matcher = matcher_of(RULES[name], vocabulary)
            walk(matcher, vocabulary, rng, rng.randrange(20))
            some = allowed(matcher, vocabulary)
            tokens = [*rng.sample(some, min(200, len(some))), *rng.sample(range(vocabulary.size), 200)]
            assert compare(matcher, vocabulary, tokens, frozenset()) == 0


def test_negative_control_classes_that_are_too_large_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without telling what is left of a lexeme."""
    monkeypatch.setattr(BudgetedCompletion, "_rest_of", lambda self, lexical: 0)
    matcher, vocabulary = matcher_of(RULES["counts"], adversarial_vocabulary()), adversarial_vocabulary()
    assert compare(matcher, vocabulary, list(range(vocabulary.size)), frozenset()) > 0


def test_a_string_has_few_classes() -> None:
    """However many tokens stay in it and however they lead on."""
    matcher = matcher_of(RULES["nested"], tekken_vocabulary())
    vocabulary = tekken_vocabulary()
    for byte in b'{"title":"abc':
        assert matcher.accept(vocabulary.token_bytes.index(bytes((byte,))))
    classes = matcher._in_time.classes(matcher.state)
    assert len(classes) < 60 and len(allowed(matcher, vocabulary)) > 100_000


def test_what_cannot_be_divided_is_searched() -> None:
    """Without the single quote and brace, only tokens that hold them with something else can end the text."""
    vocabulary = Vocabulary([b'{"a":', b'"', b"}", b'x"}', b"b", b"x", b'y"', None], [7])
    rule = JsonSchema(
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False},
        whitespace="compact",
    )
    assert matcher_of(rule, vocabulary).completion() == (0, 1, 1, 2)
    found = matcher_of(rule, vocabulary).completion(frozenset({2}))
    assert b"".join(vocabulary.token_bytes[token] or b"" for token in found) == b'{"a":"x"}' and 2 not in found
    with pytest.raises(ResourceLimitError, match="without those that may be forbidden"):
        matcher_of(rule, vocabulary).completion(frozenset({2, 3}))


def test_texts_are_looked_for_in_the_bytes_that_remain() -> None:
    vocabulary = byte_vocabulary()
    matcher = matcher_of(Regex('"[a-c]{4,}"'), vocabulary)
    left_out = frozenset({ord("a")})
    assert bytes(matcher.completion(left_out)) == b'"bbbb"' and bytes(matcher.completion()) == b'"aaaa"'
    assert matcher.can_end_within(5, ord('"'), left_out) and not matcher.can_end_within(4, ord('"'), left_out)
