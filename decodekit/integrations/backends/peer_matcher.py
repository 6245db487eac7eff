"""A text under a constraint that a peer follows, as a `Matcher` of ours.

The peer says which tokens may follow, whether the text may end, and goes on, back and aside. What our loop asks beyond
that is made of these answers:

    mask           the peer's, cut to tokens that have bytes; the end-of-sequence tokens, all or none, by is_accepting
    forced tokens  masks with one bit, one after the other
    validate       as many steps as the peer takes, then back
    explain        the text in tokens, as far as the peer takes them

A shortest completion is what no peer has: ``on_length="close"`` is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NoReturn

import numpy as np

from decodekit.constraints.constraint import Constraint, Refusal
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.bitmask import bitmask_from_ids, ids_from_bitmask
from decodekit.constraints.engine.division import NONE
from decodekit.constraints.explain.explanation import Explanation
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.constraints.matching.matcher import MAX_FORCED
from decodekit.constraints.special import token_texts
from decodekit.errors import UnsupportedSchemaError
from decodekit.integrations.backends.peer import Peer, PeerText, token_ids_by_bytes
from decodekit.vocabulary import Vocabulary

_MAX_SHOWN: Final = 8


class PeerGrammar(CompiledGrammar):
    """A constraint that a peer has compiled for a vocabulary.

    `inner` is the constraint without its backend, which the peer compiles and may refuse as `Peer.compile` says; the
    constraint as it was asked for has the last word on a finished text.
    """

    has_guard = False  # a constraint with a guard is refused
    num_bytes = 0  # the memory of the peer is not known

    def __init__(self, constraint: Constraint, peer: Peer, inner: Constraint, vocabulary: Vocabulary) -> None:
        # The parent's start is not run: states and masks are the peer's, and it keeps them itself.
        self.constraint = constraint
        self.vocabulary = vocabulary
        self._peer = peer
        self._begin = peer.compile(inner, vocabulary)
        self._texts = token_texts(vocabulary, frozenset())

    def matcher(self) -> PeerMatcher:
        """A matcher at the start of the text."""
        return PeerMatcher(self.vocabulary, self._peer.name, self._texts, self._begin())

    def release(self) -> None:
        """Nothing: the memory is the peer's."""

    def least_tokens(self, left_out: frozenset[int] = NONE) -> int:
        """Not known: raises `UnsupportedSchemaError`."""
        no_completion(self._peer.name)

    def most_tokens(self) -> int | None:
        """None: not known."""
        return None

    def __repr__(self) -> str:
        return f"PeerGrammar({self.constraint!r:.200}, {self.vocabulary!r})"


def no_completion(name: str) -> NoReturn:
    """Raise that a peer knows no shortest completion."""
    raise UnsupportedSchemaError(
        f'{name} does not say how a text is ended, so on_length="close" cannot be kept',
        at="on_length",
        hint='on_length="error" or "return", or the constraint without a backend',
    )


@lru_cache(maxsize=8)
def _with_bytes(vocabulary: Vocabulary) -> tuple[Int32Array, Int32Array]:
    """The tokens that have bytes, and those that end a text; int32 [words] each."""
    ids = [token for token, data in enumerate(vocabulary.token_bytes) if data is not None]
    return bitmask_from_ids(ids, vocabulary.size), bitmask_from_ids(sorted(vocabulary.eos_token_ids), vocabulary.size)


class PeerMatcher:
    """The `Matcher` of a peer's text. See there for what the methods promise, and the module for what they rest on."""

    has_guard: Final = False
    token_texts: Sequence[bytes | None]
    """What each token adds to the text: its bytes; None for what adds nothing."""

    def __init__(self, vocabulary: Vocabulary, name: str, texts: Sequence[bytes | None], text: PeerText) -> None:
        self.token_texts = texts
        self._vocabulary, self._name, self._text = vocabulary, name, text
        self._tokens: list[int] = []
        self._words: Int32Array | None = None  # the mask here, once it was asked for; not to be written to

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far, an end-of-sequence token included."""
        return len(self._tokens)

    @property
    def is_terminated(self) -> bool:
        """Whether an end-of-sequence token was accepted."""
        return bool(self._tokens) and self._tokens[-1] in self._vocabulary.eos_token_ids

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here, as the peer says; False once it has."""
        return not self.is_terminated and self._text.is_accepting

    @property
    def can_continue(self) -> bool:
        """Whether some token that is not an end-of-sequence token is allowed."""
        return bool((self._mask() & _with_bytes(self._vocabulary)[0]).any())

    def fill_bitmask(self, out: Int32Array, row: int = 0, exact: bool = True) -> None:
        """Write the allowed tokens into ``out[row]``, int32 [rows, words]."""
        out[row] = self._mask()

    def _mask(self) -> Int32Array:
        if self._words is None:
            words = np.zeros(self._vocabulary.num_mask_words, np.int32)
            if not self.is_terminated:
                text, eos = _with_bytes(self._vocabulary)
                self._text.fill(words)
                words &= text
                if self._text.is_accepting:
                    words |= eos
            self._words = words
        return self._words

    def refusal(self, token: int) -> Refusal | None:
        """None: there is no guard."""
        return None

    def refusals(self, is_early: bool = True) -> dict[int, Refusal]:
        """None: there is no guard."""
        return {}

    def prepare(self, num_things: int, token: int | None = None) -> bool:
        """True: the work of a peer is not divided."""
        return True

    def accept(self, token: int) -> bool:
        """Go on with `token` if the peer takes it; otherwise False, and nothing changes."""
        if self.is_terminated or not 0 <= token < self._vocabulary.size:
            return False
        if token in self._vocabulary.eos_token_ids:
            if not self._text.is_accepting:
                return False
        elif self._vocabulary.token_bytes[token] is None or not self._text.accept(token):
            return False
        self._tokens.append(token)
        self._words = None
        return True

    def validate(self, tokens: Sequence[int]) -> int:
        """The number of the first `tokens` that could be accepted one after the other; changes nothing."""
        words, count = self._words, 0
        for token in tokens:
            if not self.accept(token):
                break
            count += 1
        self.rollback(count)
        self._words = words
        return count

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens; ValueError if fewer were accepted."""
        if not 0 <= num_tokens <= len(self._tokens):
            raise ValueError(f"cannot roll back {num_tokens} of {self.num_tokens} tokens")
        if num_tokens:
            self._text.rollback(num_tokens - self.is_terminated)  # the peer has not met the end of the text
            del self._tokens[-num_tokens:]
            self._words = None

    def fork(self) -> PeerMatcher:
        """An independent matcher in the same state."""
        twin = PeerMatcher(self._vocabulary, self._name, self.token_texts, self._text.fork())
        twin._tokens, twin._words = self._tokens.copy(), self._words
        return twin

    def forced_tokens(self) -> list[int]:
        """The run of tokens each of which is the only one in the peer's mask; changes nothing."""
        before = self._words
        forced: list[int] = []
        while not self.is_accepting and len(forced) < MAX_FORCED:
            words = self._mask()
            allowed = ids_from_bitmask(words).tolist() if np.count_nonzero(words) == 1 else []
            if len(allowed) != 1 or not self.accept(allowed[0]):
                break
            forced += allowed
        if forced:
            self.rollback(len(forced))
            self._words = before
        return forced

    def forced_text(self, gaps: Mapping[int, bytes] | None = None) -> bytes:
        """The tokens that the peer calls forced; nothing is guessed beyond them."""
        return b"" if self.is_accepting or self.is_terminated else self._text.forced_text()[:MAX_FORCED]

    def explain(self, asked: int | str | bytes) -> Explanation:
        """Whether a token or a text may come next, and how far the peer takes it; changes nothing."""
        if self.is_terminated:
            return Explanation(False, "refused: the text has ended", 0)
        if isinstance(asked, int):
            if not 0 <= asked < self._vocabulary.size:
                return Explanation(False, f"refused: the vocabulary has no token {asked}", 0)
            data = self._vocabulary.token_bytes[asked]
            if data is None:
                is_allowed = self.validate([asked]) == 1
                what = "allowed" if is_allowed else f"refused by {self._name}: the text may not end here"
                return Explanation(is_allowed, what, 0)
            if self.validate([asked]) == 1:
                return Explanation(True, "allowed", len(data))
        else:
            data = asked.encode("utf-8", errors="surrogatepass") if isinstance(asked, str) else asked
        position, expected = self._read(data)
        if position == len(data) and not isinstance(asked, int):
            return Explanation(True, "allowed", len(asked))
        place = (
            f"at {data[position : position + 16].decode(errors='replace')!r}" if position < len(data) else "as a token"
        )
        hint = f"; expected {', '.join(expected)}" if expected else ""
        if isinstance(asked, str):
            position = len(data[:position].decode(errors="ignore"))
        return Explanation(False, f"refused by {self._name} {place}{hint}", position, expected)

    def _read(self, data: bytes) -> tuple[int, tuple[str, ...]]:
        """The number of the bytes that the peer takes, and the first few bytes that it would have taken there."""
        token_of, longest = token_ids_by_bytes(self._vocabulary)
        probe, position = self.fork(), 0
        while position < len(data):
            ends = range(min(position + longest, len(data)), position, -1)
            pieces = (data[position:end] for end in ends)
            taken = next((one for one in pieces if any(map(probe.accept, token_of.get(one, ())))), None)
            if taken is None:
                break
            position += len(taken)
        first = {(self._vocabulary.token_bytes[token] or b"")[:1] for token in ids_from_bitmask(probe._mask()).tolist()}
        shown = sorted(repr(byte.decode(errors="replace")) for byte in first if byte)
        return position, tuple(shown[:_MAX_SHOWN])

    def completion(self, left_out: frozenset[int] = NONE) -> tuple[int, ...]:
        """Not known: raises `UnsupportedSchemaError`."""
        no_completion(self._name)

    def can_end_within(self, num_tokens: int, token: int, left_out: frozenset[int] = NONE) -> bool:
        """Not known: raises `UnsupportedSchemaError`."""
        no_completion(self._name)

    def fill_ending(self, out: Int32Array, num_tokens: int, left_out: frozenset[int] = NONE) -> None:
        """Not known: raises `UnsupportedSchemaError`."""
        no_completion(self._name)
