"""Guards at the matcher: the laws, and the exact mask against trying every token."""

from __future__ import annotations

import json
import random
import re
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

from decodekit.constraints import Constraint, Guard, Guarded, Refusal, Regex, TextReader, compile
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.engine.successors import TokenBytes
from decodekit.constraints.matching.guarded_matcher import GuardedMatcher
from decodekit.constraints.matching.matcher import GrammarMatcher
from decodekit.constraints.network import Frame
from decodekit.errors import ConstraintError, InvalidConstraintError, UnknownNameError
from decodekit.testing import check_guard, check_language, check_matcher
from decodekit.vocabulary import Vocabulary
from tests.reference.vocabularies import byte_vocabulary

WORDS = [b"ab", b"ba", b"abc", b"bb", b"cc", b"ac", b"aa", b"1]", b",1", b"1,2", b"[1", b"]", b"2"]
VOCABULARY = byte_vocabulary(WORDS, num_eos=2)
LETTERS = Regex("[abc]{1,4}|a*")


def is_fine(text: str) -> bool:
    return sum(map(ord, text)) % 3 == 0


def increasing(items: list[int]) -> bool | str:
    return items == sorted(set(items)) or f"{items} does not increase"


LISTS = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3}
GUARDED = [Guarded(LETTERS, is_fine), Guarded(LISTS, increasing), Guarded(LETTERS, lambda text: False)]


def mask(matcher: Any, exact: bool) -> set[int]:
    out = allocate_bitmask(1, VOCABULARY.size)
    matcher.fill_bitmask(out, 0, exact=exact)
    return set(ids_from_bitmask(out[0]).tolist())


def walk(matcher: Any, rng: random.Random, num_tokens: int) -> None:
    for _ in range(num_tokens):
        allowed = sorted(mask(matcher, exact=True) - VOCABULARY.eos_token_ids)
        if not allowed:
            return
        assert matcher.accept(rng.choice(allowed))


def test_a_guarded_constraint_is_a_value() -> None:
    assert Guarded(LETTERS, is_fine) == Guarded(LETTERS, is_fine) != Guarded(LETTERS, len)
    assert compile(Guarded(LETTERS, is_fine), VOCABULARY) is compile(Guarded(LETTERS, is_fine), VOCABULARY)
    assert Guarded(LISTS, increasing).parse("[1,2]") == [1, 2]
    with pytest.raises(ValueError, match="does not increase"):
        Guarded(LISTS, increasing).parse("[2,1]")
    with pytest.raises(FrozenInstanceError):
        GUARDED[0].function = len  # type: ignore[misc]


def test_what_is_no_guard_is_refused() -> None:
    with pytest.raises(InvalidConstraintError, match="function of the value"):
        Guarded(LETTERS, True)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="no constraint 'pattern'"):
        Guarded("pattern", is_fine)


def test_languages() -> None:
    check_language(GUARDED[0], accepts=["", "c", "ab", "aaa", "abc"], rejects=["a", "b", "aa", "aaaa", "abcabc"])
    check_language(GUARDED[1], accepts=["[1,2]", "[1, 2]"], rejects=["[1 , 2]", "[2,1]", "[1,1]", "[1,2,2]", "[1]"])


@pytest.mark.parametrize("guarded", GUARDED)
def test_laws(guarded: Guarded) -> None:
    for seed in range(3):
        matcher = compile(guarded, VOCABULARY).matcher()
        assert isinstance(matcher, GuardedMatcher) and matcher.has_guard
        check_matcher(matcher, VOCABULARY, num_tokens=6, seed=seed)


@pytest.mark.parametrize("guarded", GUARDED)
def test_the_exact_mask_is_that_of_trying_every_token(guarded: Guarded) -> None:
    """A token is allowed if the language goes on after it, or the text after it is whole and the guard accepts it."""
    rng = random.Random(0)
    guard = guarded.guard()
    plain = compile(guarded.constraint, VOCABULARY)
    num_cleared = 0
    for _ in range(20):
        matcher = compile(guarded, VOCABULARY).matcher()
        walk(matcher, rng, rng.randrange(6))
        assert isinstance(matcher, GuardedMatcher)
        text = matcher.text
        expected, loose = set(), set()
        for token in range(VOCABULARY.size):
            inner = plain.matcher()
            assert all(inner.accept(byte) for byte in text)
            if not inner.accept(token):
                continue
            loose.add(token)
            whole = text + (VOCABULARY.token_bytes[token] or b"")
            if not inner.can_continue and guard.refuses(whole) is not None:
                num_cleared += 1
                assert matcher.refusal(token) == guard.refuses(whole)
            else:
                expected.add(token)
                assert matcher.refusal(token) is None
        assert mask(matcher, exact=True) == expected
        assert mask(matcher, exact=False) == loose
        assert set(matcher.refusals()) == loose - expected
    assert num_cleared > 0  # negative control: the inexact mask is another


def test_no_refused_text_is_ever_finished() -> None:
    grammar = compile(GUARDED[2], VOCABULARY)
    matcher = grammar.matcher()
    assert matcher.accept(ord("a"))
    assert not matcher.is_accepting and not matcher.accept(256) and not matcher.accept(257)
    assert matcher.validate([ord("a"), ord("b"), ord("c")]) == 2
    assert matcher.num_tokens == 1


def test_an_exception_of_the_function_is_an_error_with_its_place() -> None:
    def broken(value: object) -> bool:
        raise KeyError("tax")

    matcher = compile(Guarded(LISTS, broken), VOCABULARY).matcher()
    assert all(matcher.accept(byte) for byte in b"[1,2")
    with pytest.raises(ConstraintError, match="broken raised KeyError: 'tax'") as caught:
        matcher.accept(ord("]"))
    assert caught.value.at == "[1, 2]"


def test_guards_of_guards_are_all_asked() -> None:
    rule = Guarded(Guarded(LISTS, increasing), lambda items: len(items) == 2)
    check_language(rule, accepts=["[1,2]"], rejects=["[1,2,2]", "[2,1]", "[1,1,1]"])


@pytest.mark.parametrize("pattern", ["[abc]{1,4}|a*", "(ab|abc|bb)+c", "."])
def test_all_tokens_at_once_lead_where_each_leads(pattern: str) -> None:
    vocabulary = Vocabulary([*VOCABULARY.token_bytes, b"", b"abc"], VOCABULARY.eos_token_ids)
    matcher = compile(Regex(pattern), vocabulary).matcher()
    assert isinstance(matcher, GrammarMatcher)
    while True:
        tokens, numbers, states = TokenBytes(vocabulary).after(matcher.recogniser, matcher.state)
        found = {int(token): states[number] for token, number in zip(tokens, numbers, strict=True)}
        for token, data in enumerate(vocabulary.token_bytes):
            expected = matcher.after(matcher.state, token) if data else None
            assert found.get(token) is expected
        if matcher.num_tokens == 3 or not any(matcher.accept(byte) for byte in b"abc"):
            break


def test_values_are_what_the_constraint_parses() -> None:
    seen: list[object] = []
    rule = Guarded(LISTS, lambda items: seen.append(items) or True)
    matcher = compile(rule, VOCABULARY).matcher()
    assert all(matcher.accept(byte) for byte in b"[2,1]")
    assert seen == [[2, 1]] and json.loads("[2,1]") == seen[0]


class Early:
    """Refuses texts with an "a" behind a "b", as soon as it comes."""

    def refuses(self, text: bytes) -> Refusal | None:
        return self.refuses_prefix(text)

    def refuses_prefix(self, text: bytes) -> Refusal | None:
        found = re.search(b"b.*a", text)
        return None if found is None else Refusal(found.end() - 1, "the text", "an a behind a b")

    def reader(self) -> TextReader:
        return TextReader(self.refuses_prefix)


@dataclass(frozen=True)
class Sorted(Constraint):
    def root(self) -> Frame:
        return LETTERS.root()

    def parse(self, text: str) -> object:
        return text

    def guard(self) -> Guard:
        return Early()


@pytest.mark.parametrize("rule", [Sorted(), Guarded(Sorted(), lambda text: text != "ac")])
def test_a_guard_of_the_user_that_refuses_early(rule: Constraint) -> None:
    check_language(rule, accepts=["abc", "aabb", "c", "cb"], rejects=["ba", "cbca"])
    check_guard(Early(), ["abc", "aba", "ba", "ca", "bca"])
    for seed in range(3):
        check_matcher(compile(rule, VOCABULARY).matcher(), VOCABULARY, num_tokens=6, seed=seed)
    matcher = compile(rule, VOCABULARY).matcher()
    assert matcher.accept(ord("c")) and matcher.accept(ord("b"))
    refused = matcher.refusals()
    assert set(refused) == {ord("a"), *(VOCABULARY.token_bytes.index(word) for word in (b"ab", b"aa", b"ac", b"ba"))}
    assert all(refusal.is_early or refusal.keep < 4 for refusal in refused.values())
    assert matcher.validate(list(b"bba")) == 2 and not matcher.accept(ord("a"))
    explanation = matcher.explain("ba")
    assert not explanation.is_allowed and "an a behind a b" in str(explanation) and explanation.position == 1
