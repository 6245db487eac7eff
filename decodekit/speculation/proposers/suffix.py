"""Suffix decoding: the text goes on as it mostly did after the longest of its endings that came before.

    tokens so far       a b c d   a b c e   x a b c
    longest ending      a b c came twice before; d followed once, and e, the latest
    path                e with a share of 1/2 of the places, then x a b c, as that place goes on
    length              it ends below a share of 0.1, and after 8 tokens for each of the three tokens of the match

The method is that of SuffixDecoding (Oliaro et al. 2024): the longest ending of the text that occurs in the prompt, in
the text itself or in earlier texts; from there the likeliest path by the counts of what followed; the longer the match,
the longer the draft. With one occurrence, the latest, it is prompt lookup (Saxena 2023); with a corpus alone it is the
retrieval of REST (He et al. 2023).

They keep suffix trees. Here the tokens are an array, and the longest match is found by narrowing: the places of the
last token, of these the ones with the last but one before them, and so on. That is exact, needs nothing but the tokens
(4 bytes each, where a tree or an automaton of Python objects takes hundreds), takes a text back by being shorter, and
costs one comparison of an array: some 30 microseconds for 65,536 tokens, and less than the walk through a tree for the
thousand tokens of a row.

Prompt lookup has no counts: the text goes on as it did the last time its latest tokens came.

    prompt          The  cat  sat  on  the  mat  .
    text            The  cat  sat
    looked up       The  cat  sat                       the last 3 tokens; they came before, at the start of the prompt
    draft           on  the  mat  .  The  cat  sat      what followed there, at most `num_tokens`
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from decodekit.errors import OptionError
from decodekit.sampling.checks import COUNT, POSITIVE, SHARE, at_least, require
from decodekit.speculation.proposer import Context, Draft
from decodekit.speculation.verification import num_equal

Places = npt.NDArray[np.intp]
Tokens = npt.NDArray[np.int32]

SEPARATOR: Final = -1
"""Stands after every text; not a token."""

MAX_PLACES: Final = 256
"""Of the places of a match the latest ones are counted."""


class SuffixCorpus:
    """A bounded store of texts, the latest ones, for `Suffix(corpus=...)`.

    Threads and jobs may share one. A pickled one takes its texts along, and the two go their own ways.

    Args:
        max_tokens: of all texts together, a separator for each included; the oldest texts leave first, and of a text
            that is longer the end is kept.

    Raises:
        OptionError: the number is below 2.
    """

    def __init__(self, max_tokens: int = 65_536) -> None:
        at_least(2).require("max_tokens", max_tokens)
        self.max_tokens = max_tokens
        # Rows that have gone add from a garbage collection, in the middle of anything, so that adding takes no lock.
        self._added: deque[Tokens] = deque()
        self._texts: deque[Tokens] = deque()
        self._whole: Tokens = np.empty(0, np.int32)
        self._lock = threading.Lock()

    @property
    def tokens(self) -> Tokens:
        """All texts, the oldest first, with a separator after each; int32 [n], never written to again.

        Costs a copy of the whole store after texts were added.
        """
        if self._added:
            with self._lock:
                self._take_in()
        return self._whole

    def add(self, text: Sequence[int]) -> None:
        """Store a text; an empty one is nothing."""
        if len(text):
            self._added.append(np.append(np.asarray(text, np.int32)[1 - self.max_tokens :], np.int32(SEPARATOR)))

    def _take_in(self) -> None:
        num_tokens = len(self._whole)
        while self._added:
            text = self._added.popleft()
            self._texts.append(text)
            num_tokens += len(text)
            while num_tokens > self.max_tokens:
                num_tokens -= len(self._texts.popleft())
        if self._texts:
            self._whole = np.concatenate(self._texts)

    def __len__(self) -> int:
        """Number of texts."""
        _ = self.tokens
        return len(self._texts)

    def __repr__(self) -> str:
        return f"SuffixCorpus({len(self)} texts, {len(self.tokens):,} of {self.max_tokens:,} tokens)"

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            self._take_in()
            return {"max_tokens": self.max_tokens, "texts": list(self._texts)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["max_tokens"])  # type: ignore[misc]  # the lock is new, all else as it was
        for text in state["texts"]:
            self.add(text[:-1])


@dataclass(frozen=True)
class Suffix:
    """Copies what mostly followed the longest ending of the text that occurred before.

    Looks at the row's own prompt and text, and at `corpus`; the longer match counts, of equal ones that with the larger
    number of tokens to be expected by its counts. It pays where texts quote their prompt or resemble one another.

    Args:
        max_tokens: most tokens of a draft.
        max_match: longer endings are not told apart.
        min_match: shorter ones are not a reason to guess.
        tokens_per_match: most tokens of a draft for every token of the match; more save passes and waste tokens.
        min_probability: the draft ends where a smaller share of the matching places continues with it.
        corpus: texts of other rows; what a row came to is added when it has finished. None looks at the row alone.

    Raises:
        OptionError: numbers out of range.
    """

    max_tokens: int = 16
    max_match: int = 32
    min_match: int = 1
    tokens_per_match: float = 8.0
    min_probability: float = 0.1
    corpus: SuffixCorpus | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_match", "min_match"):
            COUNT.require(name, getattr(self, name))
        if self.min_match > self.max_match:
            raise OptionError(f"min_match={self.min_match} is above max_match={self.max_match}", at="min_match")
        POSITIVE.require("tokens_per_match", self.tokens_per_match)
        SHARE.require("min_probability", self.min_probability)
        is_one = self.corpus is None or isinstance(self.corpus, SuffixCorpus)
        require("corpus", self.corpus, is_one, "None or a SuffixCorpus")

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """The likeliest continuation by counts; see `Proposer.propose`."""
        return [self._draft(context, limit) for context, limit in zip(contexts, limits, strict=True)]

    def _draft(self, context: Context, limit: int) -> Draft:
        row = context.memory.get(self)
        if row is None:
            row = context.memory[self] = RowTokens(context)
            if self.corpus is not None:
                # The list grows on with its row, so that the end of the text is in it when the row has gone.
                weakref.finalize(row, self.corpus.add, context.root.text).atexit = False
        own = row.update(context.text)
        best, best_rank = [], (0, 0.0)
        for tokens in (own,) if self.corpus is None else (own, self.corpus.tokens):
            places, length = longest_match(tokens, own, self.max_match)
            if length < max(self.min_match, best_rank[0]):
                continue
            most = min(limit, self.max_tokens, max(1, int(length * self.tokens_per_match)))
            drafted, expected = likeliest_path(tokens, places, most, self.min_probability)
            if (length, expected) > best_rank and drafted:
                best, best_rank = drafted, (length, expected)
        return Draft(best, match=best_rank[0])


def longest_match(tokens: Tokens, text: Tokens, max_match: int) -> tuple[Places, int]:
    """The places after the longest ending of `text` that occurs in `tokens` before another token, and its length.

    Ascending; none and 0 if the last token does not occur.
    """
    if not len(tokens) or not len(text):
        return np.empty(0, np.intp), 0
    places = np.flatnonzero(tokens[:-1] == text[-1]) + 1
    places = places[tokens[places] != SEPARATOR]
    length = 0
    longer = places
    while len(longer):
        places, length = longer, length + 1
        if length == min(max_match, len(text)):
            break
        longer = places[places > length]
        longer = longer[tokens[longer - length - 1] == text[-length - 1]]
    return places, length


def likeliest_path(tokens: Tokens, places: Places, max_tokens: int, min_probability: float) -> tuple[list[int], float]:
    """The path that most of the latest `places` take, of equally many that of the latest one.

    And how many of its tokens are to be expected: the sum of the shares along it.
    """
    path: list[int] = []
    share, expected = 1.0, 0.0
    places = places[-MAX_PLACES:]
    while len(path) < max_tokens:
        places = places[places < len(tokens)]
        following = tokens[places]
        counts = Counter(following[::-1].tolist())  # the latest first, so that it comes first among equals
        num_places = counts.total()
        counts.pop(SEPARATOR, None)
        if not counts:
            break
        token = max(counts, key=counts.__getitem__)
        share *= counts[token] / num_places
        if share < min_probability:
            break
        path.append(token)
        expected += share
        places = places[following == token] + 1
    return path, expected


class RowTokens:
    """Prompt and text of a row in one array that has room to grow."""

    def __init__(self, context: Context) -> None:
        self._num_prompt_tokens = len(context.prompt)
        self._text: list[int] = []
        self._tokens: Tokens = np.empty(2 * len(context.prompt) + 64, np.int32)
        self._tokens[: len(context.prompt)] = context.prompt

    def update(self, text: Sequence[int]) -> Tokens:
        """Prompt and `text`, which is longer than before or was taken back; valid until the next call."""
        known = self._text
        if list(text[: len(known)]) != known:
            del known[num_equal(known, text) :]
        begin = self._num_prompt_tokens + len(known)
        new = text[len(known) :]
        end = begin + len(new)
        if end > len(self._tokens):
            self._tokens = np.concatenate([self._tokens[:begin], np.empty(end + 64, np.int32)])
        self._tokens[begin:end] = new
        known += new
        return self._tokens[:end]


@dataclass(frozen=True)
class PromptLookup:
    """Copies what followed the latest occurrence of the last n tokens, the longest n that occurred first.

    Costs no model and no memory but an array of the row's own tokens. It pays where texts quote their prompt:
    extraction, summaries, edits of code (Saxena 2023, `prompt_lookup_num_tokens` of transformers; here the most
    recent match counts, and lengths from `max_ngram` down to `min_ngram` are tried). `Suffix` finds its matches in the
    same way, and chooses among all of them by their counts.

    Args:
        max_ngram: the longest run of tokens that is looked up.
        num_tokens: most tokens of a draft.
        min_ngram: the shortest run.

    Raises:
        OptionError: a number is out of range.
    """

    max_ngram: int = 3
    num_tokens: int = 10
    min_ngram: int = 1

    def __post_init__(self) -> None:
        for name in ("max_ngram", "num_tokens", "min_ngram"):
            COUNT.require(name, getattr(self, name))
        if self.min_ngram > self.max_ngram:
            raise OptionError(f"min_ngram={self.min_ngram} is above max_ngram={self.max_ngram}", at="min_ngram")

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Draft]:
        """The tokens behind the latest occurrence; see `Proposer.propose`."""
        return [self._draft(context, limit) for context, limit in zip(contexts, limits, strict=True)]

    def _draft(self, context: Context, limit: int) -> Draft:
        limit = min(limit, self.num_tokens)
        if limit < 1:
            return Draft()
        row = context.memory.get(self)
        if row is None:
            row = context.memory[self] = RowTokens(context)
        tokens = row.update(context.root.text)
        latest = tokens
        if context.guessed:  # guessed tokens are part of what is looked up, never of what is copied
            latest = np.append(tokens[-self.max_ngram :], np.asarray(context.guessed, np.int32))
        places, length = longest_match(tokens, latest, self.max_ngram)
        if length < self.min_ngram:
            return Draft()
        place = places[-1]
        return Draft(tuple(tokens[place : place + limit].tolist()), match=length)
