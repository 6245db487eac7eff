"""The matcher of a constraint with a guard: a grammar matcher that asks the guard wherever a text may end.

A guard with a reader (`EarlyGuard`) is asked before that, at every token that may complete something that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from decodekit.constraints.constraint import CompoundGuard, Guard, GuardReader, Refusal, reader_of
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.bitmask import forbid, ids_from_bitmask
from decodekit.constraints.engine.configurations import State
from decodekit.constraints.engine.division import NONE
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.engine.successors import token_bytes_of
from decodekit.constraints.explain.explanation import Explanation, as_bytes, explain_refusal
from decodekit.constraints.matching.brackets import Nesting, closing_tokens_of, completing_tokens_of
from decodekit.constraints.matching.matcher import GrammarMatcher
from decodekit.constraints.special import is_text, spellings
from decodekit.vocabulary import Vocabulary

MAX_VERDICTS: Final = 4096
"""Verdicts and sets of ending tokens that the matchers of one grammar remember, each."""

_UNKNOWN: Final = object()


class Verdicts:
    """What a guard said about texts, and which tokens end a text, for the matchers of one grammar.

    Threads may share one: an entry is written as a whole, and a lost one is asked for again.
    """

    def __init__(self, guard: Guard, recogniser: Recogniser, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._guard = guard
        self._recogniser = recogniser
        self._verdicts: dict[bytes, Refusal | None] = {}
        self._closers: dict[State, tuple[int, ...]] = {}
        self.is_of_compounds = isinstance(guard, CompoundGuard)
        self._is_loaded = False

    def load(self) -> None:
        """Sort the tokens of the vocabulary by how they end a text, once: no mask should take as long."""
        if self._is_loaded:
            return
        if self.is_of_compounds:
            closing_tokens_of(self.vocabulary)
        else:
            token_bytes_of(self.vocabulary)
        reader = self.reader()
        if reader is not None and not isinstance(reader.watch, bool):
            completing_tokens_of(self.vocabulary)
        self._is_loaded = True

    def reader(self) -> GuardReader | None:
        """A reader of the guard at the beginning of a text; None if it is asked at the end alone."""
        return reader_of(self._guard)

    def of(self, text: bytes) -> Refusal | None:
        """What the guard says about a text that the language accepts."""
        known = self._verdicts.get(text, _UNKNOWN)
        if known is not _UNKNOWN:
            return known  # type: ignore[return-value]
        verdict = self._verdicts[text] = self._guard.refuses(text)
        if len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.clear()
        return verdict

    def closers(self, state: State) -> tuple[int, ...]:
        """The tokens, those of the end of a text aside, after which the text is whole and nothing can follow."""
        known = self._closers.get(state)
        if known is None:
            tokens, numbers, states = token_bytes_of(self.vocabulary).after(self._recogniser, state)
            ends = self._recogniser.states.configurations
            final = [number for number, target in enumerate(states) if not ends[target]]
            known = tuple(int(t) for number in final for t in tokens[numbers == number])
            known = self._closers[state] = known + self._special_closers(state)
            if len(self._closers) > MAX_VERDICTS:
                self._closers.clear()
        return known

    def _special_closers(self, state: State) -> tuple[int, ...]:
        """The special tokens among them."""
        recogniser = self._recogniser
        if all(is_text(bytes((byte,))) for byte in recogniser.following_bytes(state)):
            return ()
        targets = {
            token: recogniser.join([recogniser.read(state, way) for way in ways])
            for token, ways in spellings(self.vocabulary).items()
        }
        ends = recogniser.states.configurations
        return tuple(t for t, target in targets.items() if target is not None and not ends[target])


class GuardedMatcher:
    """The matcher of a grammar with a guard. See `Matcher` for what the methods promise.

    The guard is asked about a text in two places: where an end-of-sequence token would end it, and where a token makes
    it whole and nothing can follow. Both are answered before the token is accepted, so that a finished text is one that
    the guard accepts. The reader of a guard is asked about every token: one that it refuses is not accepted either.

    The guard sees special tokens by their names (`Matcher.token_texts`), as `Constraint.parse` does.
    """

    __slots__ = ("_ends", "_inner", "_places", "_reader", "_text", "_verdicts")

    def __init__(
        self,
        inner: GrammarMatcher,
        verdicts: Verdicts,
        text: bytes = b"",
        ends: Sequence[int] = (0,),
        places: Sequence[Nesting] = (Nesting(),),
        reader: GuardReader | None = None,
    ) -> None:
        self._inner = inner
        self._verdicts = verdicts
        self._text = bytearray(text)
        self._ends = list(ends)  # length of the text before the first token and after each one
        self._places = list(places)  # the same moments, for a guard of JSON arrays and objects
        self._reader = reader

    @property
    def has_guard(self) -> bool:
        """Whether tokens of an inexact mask may be refused: they may."""
        return True

    @property
    def token_texts(self) -> Sequence[bytes | None]:
        """What each token adds to the text: its bytes; a special token its name; None for what adds nothing."""
        return self._inner.token_texts

    @property
    def text(self) -> bytes:
        """The text that the guard sees: the bytes of the tokens so far, special tokens by name."""
        return bytes(self._text)

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far, an end-of-sequence token included."""
        return self._inner.num_tokens

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here: the language and the guard accept it."""
        return self._inner.is_accepting and self._verdicts.of(bytes(self._text)) is None

    @property
    def is_terminated(self) -> bool:
        """Whether an end-of-sequence token was accepted."""
        return self._inner.is_terminated

    @property
    def can_continue(self) -> bool:
        """Whether some token that is no end-of-sequence token is allowed."""
        if not self._inner.can_continue:
            return False
        refused = self.refusals()
        return self._inner.num_continuing > len(refused.keys() - self._verdicts.vocabulary.eos_token_ids)

    def fill_bitmask(self, out: Int32Array, row: int = 0, exact: bool = True) -> None:
        """Write the allowed tokens into ``out[row]``, int32 [rows, words]."""
        self._inner.fill_bitmask(out, row)
        if exact:
            for token in self.refusals():
                forbid(out[row], token)

    def refusal(self, token: int) -> Refusal | None:
        """Why the guard refuses the text that `token` ends, or any text that begins with it; None if it does not."""
        refusal = self._at_end(token)
        if refusal is None and self._inner.after(self._inner.state, token) is not None:
            refusal = self._early(self.token_texts[token] or b"")
        return refusal

    def _at_end(self, token: int) -> Refusal | None:
        """Why the guard refuses the text that `token` ends; None if it does not, or `token` does not end it."""
        state = self._inner.state
        if token in self._verdicts.vocabulary.eos_token_ids:
            return self._verdicts.of(bytes(self._text)) if self._inner.is_accepting else None
        target = self._inner.after(state, token)
        if target is None or self._inner.recogniser.states.configurations[target]:
            return None
        return self._verdicts.of(bytes(self._text) + (self.token_texts[token] or b""))

    def refusals(self, is_early: bool = True) -> dict[int, Refusal]:
        """The tokens that are refused, with the reason; without `is_early` those only with which the text ends."""
        found = self._early_refusals() if is_early else {}
        ending = list(self._closers()) if self._inner.recogniser.states.configurations[self._inner.state] else []
        if self._inner.is_accepting:
            ending += self._verdicts.vocabulary.eos_token_ids
        return found | {token: refusal for token in ending if (refusal := self.refusal(token)) is not None}

    def _early(self, data: bytes) -> Refusal | None:
        """Why no text is accepted that goes on with some bytes."""
        reader = self._reader
        if reader is None:
            return None
        refusal = reader.read(data)
        if refusal is None:
            reader.rollback(1)
            return None
        return replace(refusal, is_early=True)

    def _early_refusals(self) -> dict[int, Refusal]:
        """The tokens that the reader of the guard refuses."""
        watch = False if self._reader is None else self._reader.watch
        if watch is False or not self._inner.recogniser.states.configurations[self._inner.state]:
            return {}
        vocabulary = self._verdicts.vocabulary
        allowed = self._inner.mask
        if watch is True:
            tokens = (token for token in ids_from_bitmask(allowed).tolist() if token not in vocabulary.eos_token_ids)
            return {token: why for token in tokens if (why := self._early(self.token_texts[token] or b"")) is not None}
        groups = completing_tokens_of(vocabulary).at(watch, allowed)
        verdicts = ((tokens, self._early(data)) for data, tokens in groups.items())
        return {token: why for tokens, why in verdicts if why is not None for token in tokens}

    def _closers(self) -> Sequence[int]:
        """The tokens after which the text is whole, so that the guard has to be asked."""
        verdicts = self._verdicts
        if not verdicts.is_of_compounds:
            return verdicts.closers(self._inner.state)
        return [
            token for token in closing_tokens_of(verdicts.vocabulary).at(self._places[-1]) if self._inner.allows(token)
        ]

    def completion(self, left_out: frozenset[int] = NONE) -> tuple[int, ...]:
        """Few tokens with which the language accepts the text; the guard is not asked."""
        return self._inner.completion(left_out)

    def fill_ending(self, out: Int32Array, num_tokens: int, left_out: frozenset[int] = NONE) -> None:
        """Write the tokens after which the language can accept the text in time, int32 [words]; no guard is asked."""
        self._inner.fill_ending(out, num_tokens, left_out)

    def can_end_within(self, num_tokens: int, token: int, left_out: frozenset[int] = NONE) -> bool:
        """Whether the text after `token` can become one of the language with so many tokens more.

        With no tokens left the text ends there, and the guard has to accept it; its reader in any case.
        """
        if not self._inner.can_end_within(num_tokens, token, left_out):
            return False
        data = self.token_texts[token] or b""
        return (num_tokens > 0 or self._verdicts.of(bytes(self._text) + data) is None) and self._early(data) is None

    def prepare(self, num_things: int, token: int | None = None) -> bool:
        """Do a part of the work of `fill_bitmask`, or of `accept` for a token; whether it needs no more."""
        return self._inner.prepare(num_things, token)

    def accept(self, token: int) -> bool:
        """Go on with `token` if it is allowed; otherwise False, and nothing changes."""
        if not 0 <= token < len(self._verdicts.vocabulary.token_bytes) or self._at_end(token) is not None:
            return False
        if not self._inner.accept(token):
            return False
        data = self.token_texts[token] or b""
        if self._reader is not None and self._reader.read(data) is not None:
            self._inner.rollback(1)
            return False
        self._text += data
        self._ends.append(len(self._text))
        if self._verdicts.is_of_compounds:
            self._places.append(self._places[-1].after(data))
        return True

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of the first `tokens` could be accepted one after the other; changes nothing."""
        num_accepted = next((count for count, token in enumerate(tokens) if not self.accept(token)), len(tokens))
        self.rollback(num_accepted)
        return num_accepted

    def rollback(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens."""
        self._inner.rollback(num_tokens)
        if self._reader is not None:
            self._reader.rollback(num_tokens)
        del self._ends[self._inner.num_tokens + 1 :]
        del self._places[self._inner.num_tokens + 1 :]
        del self._text[self._ends[-1] :]

    def fork(self) -> GuardedMatcher:
        """An independent matcher in the same state."""
        reader = None if self._reader is None else self._reader.fork()
        return GuardedMatcher(self._inner.fork(), self._verdicts, bytes(self._text), self._ends, self._places, reader)

    def forced_tokens(self) -> list[int]:
        """The run of tokens each of which is the only one that the language allows, up to one that the guard refuses.

        A token that is the only one because the guard refuses all others is not seen to be forced.
        """
        forced = self._inner.forced_tokens()
        return forced[: self.validate(forced)]

    def forced_text(self, gaps: Mapping[int, bytes] | None = None) -> bytes:
        """The run of bytes each of which is the only one that the language lets follow; the guard is not asked."""
        return self._inner.forced_text(gaps)

    def explain(self, asked: int | str | bytes) -> Explanation:
        """Whether a token or a text may come next, and why not; a guard is asked as far as it can tell."""
        explanation = self._inner.explain(asked)
        if not explanation.is_allowed:
            return explanation
        if isinstance(asked, int):
            refusal, size = self.refusal(asked), len(self._verdicts.vocabulary.token_bytes[asked] or b"")
            return explanation if refusal is None else explain_refusal(refusal, max(0, size - 1))
        data = as_bytes(asked)
        state = self._inner.recogniser.read(self._inner.state, data)
        ends = state is not None and not self._inner.recogniser.states.configurations[state]
        refusal = self._verdicts.of(bytes(self._text) + data) if ends else None
        position = max(0, len(asked) - 1)
        if refusal is None:
            refusal, num_read = self._early_within(data)
            position = num_read if isinstance(asked, bytes) else len(data[:num_read].decode("utf-8", "ignore"))
        return explanation if refusal is None else explain_refusal(refusal, position)

    def _early_within(self, data: bytes) -> tuple[Refusal | None, int]:
        """Why no text is accepted that goes on with some bytes, and behind how many of them that is known."""
        refusal, num_read = None, 0
        if self._reader is not None:
            for number in range(len(data)):
                refusal = self._reader.read(data[number : number + 1])
                if refusal is not None:
                    break
                num_read += 1
            self._reader.rollback(num_read)
        return None if refusal is None else replace(refusal, is_early=True), num_read
