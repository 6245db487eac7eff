"""The tokens that may follow sequences which another engine's loop extends, reorders, forks and rolls back.

Such a loop hands over whole rows of token ids, prompt included, and nothing else. A row that was there before, or whose
tokens but the last were, goes on from there; any other row is a prompt, after which the text of the constraint begins::

    matchers = PrefixMatchers(grammar)        # the constraint: [0-9]+
    matchers.masks([[7, 7]])                  # a prompt: the digits
    matchers.masks([[7, 7, 4]])               # the prompt, then "4": the digits and the end of the text
    matchers.masks([[7, 7, 5]])               # a rewinding: "5" in place of "4"; the digits and the end of the text
    matchers.masks([[7, 7, 5], [7, 7, 4]])    # another number of rows: prompts again

Who knows where the prompts end says so, and then nothing is guessed: ``masks(rows, prompt_lengths=[2])``.

No torch here and no other array library: lists, or arrays of numpy, in; int32 words of numpy out.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.matching.compiler import CompiledGrammar, compile
from decodekit.constraints.matching.matcher import Matcher
from decodekit.errors import DeadEndError, OptionError

TokenRows: TypeAlias = Sequence[Sequence[int]] | np.ndarray[Any, Any]
"""Token ids, one sequence a row, or integers [N, S]; padding on the left is part of the prompt."""

_Tokens: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class _Known:
    """A row of the last call, int64 [S]; its matcher stands behind what the constraint allows after the prompt."""

    __slots__ = ("matcher", "prompt_length", "tokens")

    def __init__(self, tokens: _Tokens, prompt_length: int, matcher: Matcher) -> None:
        self.tokens, self.prompt_length, self.matcher = tokens, prompt_length, matcher
        for token in tokens[prompt_length + matcher.num_tokens :].tolist():
            if not matcher.accept(token):
                break

    @property
    def is_refused(self) -> bool:
        """Whether the constraint does not allow some token, or the text had ended before it."""
        return self.prompt_length + self.matcher.num_tokens < len(self.tokens)

    def extended(self, row: _Tokens, matcher: Matcher) -> _Known:
        """A row with the same prompt; the matcher, in the state of this one, goes back to where they part."""
        shared = _num_shared(self.tokens, row) - self.prompt_length
        matcher.rollback(max(0, matcher.num_tokens - shared))
        return _Known(row, self.prompt_length, matcher)


class PrefixMatchers:
    """The matchers of a grammar for rows of token ids.

    What is kept are the rows of the last call with a matcher each, so memory does not grow with the number of calls:
    a row that goes back is rolled back, rows that share a past fork its matcher. Every thread has rows of its own, so
    several loops may use one object at a time; in one thread, two loops that take turns may not.

    Law: the mask of a row depends on what follows its prompt alone. With `prompt_lengths` that is so whatever was asked
    before. Without them, rows that are each a row of the call before, or such a row and one token more of which the
    constraint allows one at least, are longer texts; a rewinding loop asks for the same. `reset` says that what comes
    are prompts.

    Args:
        grammar: of the constraint.
    """

    def __init__(self, grammar: CompiledGrammar) -> None:
        self.grammar: Final = grammar
        self._local = threading.local()

    @property
    def num_words(self) -> int:
        """int32 words of a mask: as many as the tokens of the vocabulary take, rounded up."""
        return self.grammar.vocabulary.num_mask_words

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.grammar.constraint, self.grammar.vocabulary)

    def reset(self) -> None:
        """Take the rows of the next call of this thread for prompts."""
        self._local.known = []

    def masks(
        self, rows: TokenRows, prompt_lengths: Sequence[int] | None = None, out: Int32Array | None = None
    ) -> Int32Array:
        """The tokens that may follow each row.

        Args:
            rows: token ids of N rows, prompts included, of equal lengths or not.
            prompt_lengths: how many tokens of each row are its prompt; None to tell it by the call before.
            out: int32 [N, at least `num_words`], to be written to and returned; words beyond `num_words` become 0.

        Returns:
            int32 [N, num_words]; bit t % 32 of word t // 32 allows token t. Of a row whose text has ended, or that the
            constraint does not allow (a draft that is going to be refused), the end-of-sequence tokens.

        Raises:
            DeadEndError: a text may not end, and no token is allowed.
            OptionError: there are not as many prompt lengths, or rows of `out`, as rows.
            ConstraintError: the constraint outgrew a bound.
        """
        tokens = [np.array(row, dtype=np.int64) for row in rows]  # copies: who calls may write into theirs
        if prompt_lengths is not None and len(prompt_lengths) != len(tokens):
            raise OptionError(f"{len(prompt_lengths)} prompt lengths for {len(tokens)} rows", at="prompt_lengths")
        if out is None:
            out = np.zeros((len(tokens), self.num_words), np.int32)
        elif len(out) != len(tokens) or out.shape[1] < self.num_words:
            wanted = f"{len(tokens)} rows of {self.num_words} words"
            raise OptionError(f"out has {len(out)} rows of {out.shape[1]} words, not {wanted}", at="out")
        before, self._local.known = self._known, []  # nothing is known after an error
        self._local.known = known = self._placed(before, tokens, prompt_lengths)
        out[:, self.num_words :] = 0
        for row, one in enumerate(known):
            self._fill(one, out[:, : self.num_words], row)
        return out

    @property
    def rows(self) -> list[tuple[Matcher, bool]]:
        """Of each row of the last call its matcher, to ask and not to change, and whether it is still in the language.

        The matcher of a row that is not stands before the first token that the constraint does not allow.
        """
        return [(one.matcher, not one.is_refused) for one in self._known]

    @property
    def _known(self) -> list[_Known]:
        known: list[_Known] = getattr(self._local, "known", [])
        return known

    def _fill(self, known: _Known, out: Int32Array, row: int) -> None:
        matcher = known.matcher
        if not known.is_refused and not matcher.is_terminated:
            matcher.fill_bitmask(out, row)
            if not out[row].any():
                cause = "no token is allowed, and the text may not end"
                raise DeadEndError(cause, at=f"row {row}, after {matcher.num_tokens:,} tokens of its text")
            return
        out[row] = 0
        bits = out[row].view(np.uint32)
        for token in self.grammar.vocabulary.eos_token_ids:
            bits[token >> 5] |= np.uint32(1 << (token & 31))

    # --- where the rows stand ----------------------------------------------------------------------------------------

    def _placed(self, before: list[_Known], rows: list[_Tokens], prompt_lengths: Sequence[int] | None) -> list[_Known]:
        if prompt_lengths is None:
            parents = _parents(before, rows)
            if None not in parents:
                placed = self._extended(rows, parents, [0] * len(rows))
                if not rows or not all(one.is_refused and len(one.tokens) > one.prompt_length for one in placed):
                    return placed
            prompt_lengths, parents = [len(row) for row in rows], [None] * len(rows)
        else:
            parents = [_nearest(before, row, length) for row, length in zip(rows, prompt_lengths, strict=True)]
        return self._extended(rows, parents, prompt_lengths)

    def _extended(
        self, rows: list[_Tokens], parents: Sequence[_Known | None], prompt_lengths: Sequence[int]
    ) -> list[_Known]:
        """Each row from its parent, or from a prompt; the last child of a parent has its matcher, the others forks."""
        last = {id(parent): index for index, parent in enumerate(parents)}
        placed = []
        for index, (row, parent) in enumerate(zip(rows, parents, strict=True)):
            if parent is None:
                placed.append(_Known(row, prompt_lengths[index], self.grammar.matcher()))
            else:
                matcher = parent.matcher if last[id(parent)] == index else parent.matcher.fork()
                placed.append(parent.extended(row, matcher))
        return placed


def _made(constraint: Any, vocabulary: Any) -> PrefixMatchers:
    return PrefixMatchers(compile(constraint, vocabulary))


def _num_shared(one: _Tokens, other: _Tokens) -> int:
    """The number of first tokens that two rows have in common."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def _parents(before: list[_Known], rows: list[_Tokens]) -> list[_Known | None]:
    """Of each row one of the call before that has all of its tokens, or all but the last; None for a prompt."""
    if len(before) != len(rows):
        return [None] * len(rows)
    index: dict[tuple[int, bytes], _Known] = {}  # by length and tokens; made only if rows change their places
    parents: list[_Known | None] = []
    for place, row in enumerate(rows):
        if _is_parent(before[place], row):
            parents.append(before[place])
            continue
        length = len(row) - 1
        if not any(known == length for known, _ in index):
            index |= {(length, one.tokens[:length].tobytes()): one for one in before if len(one.tokens) >= length}
        found = index.get((length, row[:length].tobytes()))
        parents.append(found if found is not None and _is_parent(found, row) else None)
    return parents


def _is_parent(known: _Known, row: _Tokens) -> bool:
    length, most = len(row) - 1, known.prompt_length
    if length + 1 < most or len(known.tokens) < length or not np.array_equal(known.tokens[:length], row[:length]):
        return False
    return length >= most or bool(known.tokens[length] == row[length])


def _nearest(before: list[_Known], row: _Tokens, prompt_length: int) -> _Known | None:
    """The row of the call before that shares most with a row, and all of its prompt; None if there is none."""
    best, most = None, prompt_length - 1
    for known in before:
        if known.prompt_length == prompt_length:
            shared = _num_shared(known.tokens, row)
            if shared > most:
                best, most = known, shared
            if most == len(row):
                break
    return best
