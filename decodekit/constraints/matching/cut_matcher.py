"""The matcher of a text whose first part is cut short: after a number of tokens, another constraint goes on.

    first    ".*</think>" and then JSON         of at most 5 tokens before the mark
    text     I   think   that   40   and        the fifth token, and no </think>
    then     "</think>" and then JSON           is what may follow

Where the text is cut depends on its tokens alone, so it is the same with drafts and without. A character that is not
whole is ended first, and so is a mark that has begun.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from copy import copy
from typing import Final

from decodekit.constraints.engine.division import NONE
from decodekit.constraints.matching.matcher import Matcher
from decodekit.constraints.matching.wrapped_matcher import WrappedMatcher

_LONGEST_REST: Final = 3
"""Bytes that a character in UTF-8 may lack."""


class CutMatcher(WrappedMatcher):
    """A matcher that goes over to another one. See `Matcher` for what the methods promise.

    Equal texts have equal masks if they are of equally many tokens.

    Args:
        first: of the text, at its beginning.
        then: of what follows where it is cut, at its beginning.
        limit: so many tokens the first part has.
        opener: begins the part that is cut; empty if the text begins in it.
        closer: ends it.
    """

    __slots__ = ("_closer", "_first", "_limit", "_opener", "_over_at", "_second", "_then", "_tokens", "token_texts")

    token_texts: Sequence[bytes | None]
    """What each token adds to the text."""

    def __init__(self, first: Matcher, then: Matcher, limit: int, opener: bytes, closer: bytes) -> None:
        self._first, self._then, self._limit = first, then, limit
        self._opener, self._closer = opener, closer
        self._second: Matcher | None = None
        self._tokens: list[int] = []  # of the first matcher
        self._over_at: int | None = None  # how many tokens have the mark in them
        self.token_texts = first.token_texts
        self._look()

    def _look(self) -> None:
        """Go over to the other matcher, if the text stands where it is cut."""
        num_tokens = len(self._tokens)
        if self._second is not None or self._over_at is not None or num_tokens < self._limit:
            return
        text = b"".join(self.token_texts[token] or b"" for token in self._tokens)
        begun = text.lstrip() if self._opener else text
        if not begun.startswith(self._opener):
            if not self._opener.startswith(begun):
                self._over_at = num_tokens
            return
        said = begun[len(self._opener) :]
        if self._closer in said:
            self._over_at = num_tokens
            return
        has_begun = any(said.endswith(self._closer[:size]) for size in range(1, len(self._closer)))
        if _is_whole(said) and not (has_begun and num_tokens < self._limit + len(self._closer)):
            self._second = self._then.fork()

    @property
    def inner(self) -> Matcher:
        """The matcher of the part that the text is in."""
        return self._first if self._second is None else self._second

    @property
    def _is_near(self) -> bool:
        """Whether the text may be cut within the tokens that end its first part."""
        is_open = self._second is None and self._over_at is None
        return is_open and len(self._tokens) + 1 + _LONGEST_REST + len(self._closer) >= self._limit

    @property
    def has_guard(self) -> bool:
        """Whether tokens of an inexact mask may be refused."""
        return self._first.has_guard or self._then.has_guard

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far, an end-of-sequence token included."""
        return len(self._tokens) + (0 if self._second is None else self._second.num_tokens)

    def completion(self, left_out: frozenset[int] = NONE) -> tuple[int, ...]:
        """Few tokens with which the text becomes whole."""
        found = self.inner.completion(left_out)
        if not self._is_near:
            return found
        twin = self.fork()
        for number, token in enumerate(found):
            if not twin.accept(token):  # it was cut before
                return found[:number] + twin.completion(left_out)
        return found

    def can_end_within(self, num_tokens: int, token: int, left_out: frozenset[int] = NONE) -> bool:
        """Whether `token` is allowed and the `completion` of the text after it has at most so many tokens."""
        if not self._is_near:
            return self.inner.can_end_within(num_tokens, token, left_out)
        twin = self.fork()
        return token not in left_out and twin.accept(token) and len(twin.completion(left_out)) <= num_tokens

    def accept(self, token: int) -> bool:
        """Go on with `token` if it is allowed; otherwise False, and nothing changes."""
        if not self.inner.accept(token):
            return False
        if self._second is None:
            self._tokens.append(token)
            self._look()
        return True

    def validate(self, tokens: Sequence[int]) -> int:
        """The number of the first `tokens` that could be accepted one after the other; changes nothing."""
        if self._second is not None or self._over_at is not None or len(self._tokens) + len(tokens) <= self._limit:
            return self.inner.validate(tokens)
        num_accepted = next((number for number, token in enumerate(tokens) if not self.accept(token)), len(tokens))
        self.rollback(num_accepted)
        return num_accepted

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens."""
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot roll back {num_tokens} of {self.num_tokens} tokens")
        if self._second is not None:
            num_second = min(num_tokens, self._second.num_tokens)
            self._second.rollback(num_second)
            num_tokens -= num_second
        if not num_tokens:
            return
        self._first.rollback(num_tokens)
        del self._tokens[-num_tokens:]
        self._second = None
        if self._over_at is not None and self._over_at > len(self._tokens):
            self._over_at = None
        self._look()

    def fork(self) -> CutMatcher:
        """An independent matcher in the same state."""
        twin = copy(self)
        twin._first, twin._tokens = self._first.fork(), self._tokens.copy()
        twin._second = None if self._second is None else self._second.fork()
        return twin

    def forced_tokens(self) -> list[int]:
        """The run of tokens each of which is the only one allowed; changes nothing."""
        forced = self.inner.forced_tokens()
        return forced[: self.validate(forced)]


def _is_whole(text: bytes) -> bool:
    """Whether a text ends between two characters."""
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    decoder.decode(text)
    return not decoder.getstate()[0]
