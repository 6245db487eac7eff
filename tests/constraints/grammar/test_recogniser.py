"""Frames of context-free rules against the reference, on random grammars; the reference against answers by hand."""

from __future__ import annotations

import random

import pytest

from decodekit.constraints.grammar.rule_frames import root_frame
from decodekit.constraints.grammar.rules import (
    EMPTY_TEXT,
    NO_TEXT,
    Alternatives,
    Concatenated,
    Expression,
    Inline,
    Repeated,
    RuleRef,
    Rules,
    SpecialToken,
    Terminal,
    alternatives,
    repeated,
    sequence,
)
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.language import ir
from decodekit.constraints.regex.regex import Regex
from decodekit.constraints.special import spelling
from decodekit.errors import UnsatisfiableError
from tests.constraints.grammar.worlds import check_against_reference, texts_of
from tests.reference.earley import accepts, accepts_prefix, language, language_and_beginnings

A, B = Terminal(ir.literal(b"a")), Terminal(ir.literal(b"b"))
S = RuleRef("s")


def grammar(expression: Expression, ignore: bytes | None = None, **others: Expression) -> Rules:
    return Rules({"s": expression, **others}, "s", None if ignore is None else ir.literal(ignore))


# --- the reference, by hand ---

KNOWN: list[tuple[Rules, set[str], set[str]]] = [
    # rules, texts of at most four letters, beginnings of at most two letters
    (grammar(EMPTY_TEXT), {""}, {""}),
    (grammar(NO_TEXT), set(), set()),
    (grammar(sequence(A, NO_TEXT)), set(), set()),
    (grammar(alternatives(sequence(S, A), B)), {"b", "ba", "baa", "baaa"}, {"", "b", "ba"}),
    (grammar(alternatives(sequence(S, S), A)), {"a", "aa", "aaa", "aaaa"}, {"", "a", "aa"}),
    (grammar(alternatives(S, A)), {"a"}, {"", "a"}),
    (grammar(S), set(), set()),
    (
        grammar(alternatives(sequence(A, S), B, sequence(B, RuleRef("t"))), t=RuleRef("t")),
        {"b", "ab", "aab", "aaab"}, {"", "a", "b", "aa", "ab"},
    ),
    (grammar(alternatives(EMPTY_TEXT, sequence(A, S, B))), {"", "ab", "aabb"}, {"", "a", "aa", "ab"}),
    (grammar(repeated(alternatives(A, EMPTY_TEXT), 2, 3)), {"", "a", "aa", "aaa"}, {"", "a", "aa"}),
    (grammar(repeated(alternatives(A, EMPTY_TEXT), 2)), {"", "a", "aa", "aaa", "aaaa"}, {"", "a", "aa"}),
    (grammar(repeated(sequence(A, B), 2, 2)), {"abab"}, {"", "a", "ab"}),
    (grammar(Terminal(ir.repeat(ir.literal(b"a"), 3, 3))), {"aaa"}, {"", "a", "aa"}),
    (
        grammar(sequence(A, A), ignore=b"b"),
        {"aa", "baa", "aba", "aab", "bbaa", "baba", "baab", "abba", "abab", "aabb"},
        {"", "a", "b", "aa", "ab", "ba", "bb"},
    ),
    (grammar(EMPTY_TEXT, ignore=b"bb"), {"", "bb", "bbbb"}, {"", "b", "bb"}),
    (grammar(sequence(A, NO_TEXT), ignore=b"b"), set(), set()),
    (grammar(Inline(Regex("a|bb"))), {"a", "bb"}, {"", "a", "b", "bb"}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(KNOWN)))
def test_the_reference_by_hand(number: int) -> None:
    rules, whole, beginnings = KNOWN[number]
    texts = [text.decode() for text in texts_of([b"a", b"b"], 4)]
    assert {text for text in texts if accepts(rules, text.encode())} == whole
    assert {text.decode() for text in language(rules, b"ab", 4)} == whole
    assert {text for text in texts if len(text) <= 2 and accepts_prefix(rules, text.encode())} == beginnings
    assert {text.decode() for text in language_and_beginnings(rules, b"ab", 2)[1]} == beginnings


def test_the_reference_knows_special_tokens_and_single_lexemes_only() -> None:
    rules = grammar(sequence(A, SpecialToken("<x>"), B), ignore=b" ")
    assert accepts(rules, b"a " + spelling("<x>") + b" b")
    assert not accepts(rules, b"a<x>b")
    with pytest.raises(ValueError, match="the reference knows no"):
        accepts(grammar(Inline(JsonSchema({"type": "array"}))), b"[]")


# --- the engine against the reference ---


def random_expression(rng: random.Random, names: list[str], depth: int) -> Expression:
    kind = rng.randrange(10) if depth else rng.randrange(5)
    if kind < 2:
        return RuleRef(rng.choice(names))
    if kind < 5:
        return rng.choice(ATOMS)
    parts = tuple(random_expression(rng, names, depth - 1) for _ in range(rng.randrange(4)))
    if kind < 7:
        return Concatenated(parts)
    if kind < 9:
        return Alternatives(parts)
    low = rng.randrange(3)
    return Repeated(random_expression(rng, names, depth - 1), low, rng.choice([None, max(low, 1), low + 1, low + 2]))


def random_rules(rng: random.Random) -> Rules:
    names = ["s", "t", "u"][: rng.randrange(1, 4)]
    rules: dict[str, Expression] = {}
    for name in names:
        options = [random_expression(rng, names, 2) for _ in range(rng.randrange(1, 4))]
        rules[name] = alternatives(*options, *([A] if rng.random() < 0.5 else []))
    ignored = rng.choice([None, None, None, ir.literal(b"b"), ir.choice(ir.literal(b"ab"), ir.literal(b"b"))])
    return Rules(rules, "s", ignored)


ATOMS: list[Expression] = [
    A,
    B,
    Terminal(ir.literal(b"ab")),
    Terminal(ir.choice(ir.literal(b"a"), ir.literal(b"aba"))),
    Terminal(ir.repeat(ir.literal(b"b"), 1)),
    Terminal(ir.repeat(ir.byte_set(b"ab"), 0, 2)),  # may be empty
    Terminal(ir.EMPTY),
    Inline(Regex("(?!aa)[ab]+")),
    Inline(Regex("(ba)?")),
]


def check_random_rules(seed: int, max_pieces: int, mask_pieces: int) -> bool:
    rules = random_rules(random.Random(seed))
    if not accepts_prefix(rules, b""):
        with pytest.raises(UnsatisfiableError):
            root_frame(rules)
        return False
    accepted = check_against_reference(
        rules, [b"a", b"b"], max_pieces=max_pieces, mask_pieces=mask_pieces, token_pieces=3
    )
    texts, beginnings = language_and_beginnings(rules, b"ab", max_pieces)
    assert accepted == texts
    assert {text for text in texts_of([b"a", b"b"], 3) if accepts_prefix(rules, text)} == {
        text for text in beginnings if len(text) <= 3
    }
    return True


def test_random_rules() -> None:
    """Larger rules than those of `test_small_grammars`; they are many in the slow run."""
    tried = [check_random_rules(seed, max_pieces=5, mask_pieces=2) for seed in range(40)]
    assert sum(tried) > 20


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_random_rules(block: int) -> None:
    tried = [check_random_rules(1000 + 100 * block + i, max_pieces=7, mask_pieces=4) for i in range(100)]
    assert sum(tried) > 50


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (alternatives(sequence(S, A), B), alternatives(sequence(A, S), B)),
        (sequence(A, repeated(B)), sequence(A, repeated(B, 0, 3))),
        (alternatives(A, sequence(A, B)), sequence(A, B)),
        (sequence(A, B), alternatives(A, sequence(A, B))),
        (sequence(A, alternatives(A, B)), alternatives(sequence(A, A), sequence(A, B), sequence(A, B, B))),
    ],
)
def test_another_language_is_noticed(given: Expression, meant: Expression) -> None:
    with pytest.raises(AssertionError):
        check_against_reference(
            grammar(meant), [b"a", b"b"], max_pieces=5, mask_pieces=2, frame=root_frame(grammar(given))
        )
