"""`check_matcher` finds a matcher whose preparation never ends, or moves it."""

from __future__ import annotations

import pytest

from decodekit import testing
from decodekit.constraints import Regex, compile
from decodekit.constraints.matching.matcher import GrammarMatcher
from tests.reference.vocabularies import byte_vocabulary

VOCABULARY = byte_vocabulary([b"ab", b"ba"])


def check() -> None:
    testing.check_matcher(compile(Regex("(ab|ba)*c"), VOCABULARY).matcher(), VOCABULARY, num_tokens=4)


def test_a_matcher_keeps_the_laws() -> None:
    check()


def test_a_preparation_without_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrammarMatcher, "prepare", lambda *_: False)
    with pytest.raises(AssertionError, match="needs more than"):
        check()


def test_a_preparation_that_accepts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(self: GrammarMatcher, num_things: int, token: int | None = None) -> bool:
        if token is not None:
            self.accept(token)
        return True

    monkeypatch.setattr(GrammarMatcher, "prepare", prepare)
    with pytest.raises(AssertionError, match="moves the matcher"):
        check()
