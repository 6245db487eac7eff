"""The tokens after which a text can still end in time, found without trying one after the other.

Example: a name of at most 60 characters is being read, and after this token five more may come. Of 131,072 tokens some
128,900 stay in the string. They lead to hundreds of states, which differ in how many characters may follow, but after
each of them the shortest rest is ``"}``: they are one class, and one question answers for all of them. Tokens that end
in half a character are a few classes more, by the bytes that it lacks. A few hundred tokens leave the string; those
among them that the constraint allows here are looked at one by one, and are classes by the state that they lead to.

So a state has its tokens in classes, each with a representative, the token with the least id. The classes are kept;
which of them end in time is asked for each number of tokens that is left. The tokens of a class lead to one state, or
to states with equally short words of the lexeme that is read and the same behind it. A captured text makes every token
a state of its own (the key of an object); those that can become no declared or used key are as good as one another.
Where that is not certain (numbers of which no two may be equal), a class may hold a token that is further from the end
than its representative: who draws one asks for it again.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import count
from typing import Final

import numpy as np

from decodekit.constraints.completion.shortest_completions import Completions
from decodekit.constraints.engine.automaton import Int32Array
from decodekit.constraints.engine.bitmask import bitmask_from_ids, first_id, flags_from_bitmask, ids_from_bitmask
from decodekit.constraints.engine.configurations import Configuration, State
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.engine.successors import successor, token_bytes_of
from decodekit.constraints.engine.token_index import Exits, all_tokens
from decodekit.constraints.engine.token_masks import Masks
from decodekit.constraints.language.shortest import shortest_word
from decodekit.constraints.memory_account import Memo
from decodekit.constraints.network import Fresh
from decodekit.errors import ResourceLimitError
from decodekit.vocabulary import Vocabulary

MAX_STATES: Final = 256
"""States whose classes are kept, per grammar."""
MAX_SINGLE: Final = 4096
"""So many tokens are looked at one by one; where they are more and no text is captured, all are read together."""
MAX_SEARCHED: Final = 300
"""States that the search of a completion may look at where tokens are left out."""
_MAX_SETS: Final = 3  # of tokens that are left out
_MAX_INSIDE: Final = 512  # lexical states whose classes are kept
_MAX_CLASSES: Final = 4096


@dataclass(frozen=True, slots=True)
class TokenClass:
    """Tokens that leave a text equally far from its end: that with the least id, and a mask of all if it is not one."""

    representative: int
    words: Int32Array | None

    def first_without(self, forbidden: Int32Array) -> int | None:
        """The first token that is not among those of another set, int32 [words]; None if there is none."""
        if self.words is None:
            token = self.representative
            return None if forbidden[token >> 5] >> (token & 31) & 1 else token
        return first_id(self.words & ~forbidden)

    def add_to(self, row: Int32Array) -> None:
        """Set the bits of the tokens."""
        if self.words is None:
            row.view(np.uint32)[self.representative >> 5] |= np.uint32(1 << (self.representative & 31))
        else:
            row |= self.words


class BudgetedCompletion:
    """The tokens that leave enough time, for the states of one recogniser over one vocabulary. Thread-safe."""

    def __init__(self, recogniser: Recogniser, masks: Masks, completions: Completions, vocabulary: Vocabulary) -> None:
        self._recogniser, self._masks = recogniser, masks
        self._vocabulary = vocabulary
        self._completions = completions
        self._restricted: Memo[frozenset[int], Completions] = Memo(
            lambda left_out: Completions(recogniser, vocabulary, left_out, completions), _MAX_SETS
        )
        self._index = all_tokens(vocabulary).whole
        self._eos_words = bitmask_from_ids(sorted(vocabulary.eos_token_ids), vocabulary.size)
        self._classes: Memo[State, tuple[TokenClass, ...]] = Memo(self._find_classes, MAX_STATES)
        self._inside: Memo[int, tuple[Int32Array, ...]] = Memo(self._find_inside, _MAX_INSIDE)  # by lexical state

    def fill(self, row: Int32Array, num_tokens: int, state: State, left_out: frozenset[int]) -> None:
        """Write the tokens that `ends_within` allows after a state to a row, int32 [words]."""
        may_end = self._recogniser.states.is_accepting(state) and num_tokens >= 0
        row[:] = self._eos_words if may_end else 0
        for one in self.classes(state) if num_tokens >= 0 else ():
            if self.ends_within(num_tokens, state, one.representative, left_out):
                one.add_to(row)

    def ends_within(self, num_tokens: int, state: State, token: int, left_out: frozenset[int]) -> bool:
        """Whether `token` is allowed and a completion of the text after it has at most so many tokens."""
        target = successor(self._recogniser, self._vocabulary, state, token)
        if target is None or num_tokens < 0:
            return False
        if self._recogniser.states.is_accepting(target) or target == self._recogniser.ended:
            return True
        return self._without(left_out).are_enough(num_tokens, target)

    def completion(self, state: State, left_out: frozenset[int]) -> tuple[int, ...]:
        """Few tokens with which the text becomes whole."""
        completions = self._without(left_out)
        try:
            return completions.tokens(state)
        except ResourceLimitError:
            found = self._search(state, left_out) if left_out else None
            if found is None:
                raise
            return found

    def _search(self, state: State, left_out: frozenset[int]) -> tuple[int, ...] | None:
        """Tokens that make the text whole, none of those left out: what may be nearest to an end is tried first.

        For texts whose shortest completions cannot be divided into the tokens that remain, though longer ones can.
        """
        forbidden = bitmask_from_ids(left_out, self._vocabulary.size)
        order = count()
        agenda: list[tuple[int, int, State, tuple[int, ...]]] = [(0, next(order), state, ())]
        seen = {state}
        for _ in range(MAX_SEARCHED):
            if not agenda:
                return None
            *_, current, tokens = heapq.heappop(agenda)
            for one in self.classes(current):
                token = one.first_without(forbidden)
                target = None if token is None else successor(self._recogniser, self._vocabulary, current, token)
                if token is None or target is None or target in seen:
                    continue
                seen.add(target)
                so_far = (*tokens, token)
                try:
                    return so_far + self._without(left_out).tokens(target)
                except ResourceLimitError:
                    rest = len(self._completions.text(target))
                    heapq.heappush(agenda, (len(so_far) + rest, next(order), target, so_far))
        return None

    def _without(self, left_out: frozenset[int]) -> Completions:
        """The completions that have none of some tokens; kept for the few sets that were asked for last."""
        return self._restricted[left_out] if left_out else self._completions

    def classes(self, state: State) -> tuple[TokenClass, ...]:
        """The allowed tokens of a state in classes, those of the end of the text aside."""
        known = self._classes.get(state)
        if known is None:
            with self._recogniser.automaton.lock:
                known = self._classes[state]
        return known

    @property
    def num_bytes(self) -> int:
        """About how much memory is kept."""
        rows = [one.words for some in list(self._classes.values()) for one in some if one.words is not None]
        inside = sum(map(len, list(self._inside.values())))
        others = sum(one.num_bytes for one in list(self._restricted.values()))
        num_classes = sum(map(len, list(self._classes.values())))
        return others + self._eos_words.nbytes * (len(rows) + inside) + 100 * num_classes

    def _find_classes(self, state: State) -> tuple[TokenClass, ...]:
        return tuple(self._make(state))

    def _make(self, state: State) -> Iterator[TokenClass]:
        """The classes of a state. The automaton's lock is held."""
        allowed: Int32Array = self._masks.mask(state) & ~self._eos_words
        configurations = self._recogniser.states.configurations[state]
        walked = [one for one in configurations if self._masks.is_walked(one)]
        others = [one for one in configurations if not self._masks.is_walked(one)]
        if not walked:
            yield from self._by_state(state, allowed)
            return
        none: Int32Array = np.zeros_like(allowed)
        # What is allowed by a configuration that is not walked, or leaves a lexeme, is looked at one by one.
        single: Int32Array = self._masks.tokens_of(others) & allowed if others else none
        inside: Int32Array = allowed & ~single
        exits = [self._exits(one, inside) for one in walked]
        for leaving, groups in exits:
            single |= leaving
            if len(walked) > 1:
                single |= _union(groups, none)
        left = single if len(walked) > 1 else single | _union(exits[0][1], none)
        alike = [inside & ~left]  # disjoint; each stays inside the same lexemes, the same way
        for lexical, *_ in walked:
            parts = self._inside[lexical]
            parts = (*parts, ~_union(parts, none))
            alike = [both for one in alike for part in parts if (both := one & part).any()]
            if len(alike) > _MAX_CLASSES:
                yield from self._by_state(state, allowed)
                return
        if len(walked) == 1:
            alike += [words for group in exits[0][1] if (words := group & ~single).any()]
        yield from (TokenClass(first, words) for words in alike if (first := first_id(words)) is not None)
        yield from self._by_state(state, single)

    def _find_inside(self, lexical: int) -> tuple[Int32Array, ...]:
        """The tokens inside a lexeme by the shortest word that is left of it, int32 [words] each."""
        automaton = self._recogniser.automaton
        reached = self._index.reached(automaton, lexical)
        tokens = np.flatnonzero(reached)
        targets = reached[tokens]
        groups: dict[Hashable, list[int]] = {}
        for target in np.flatnonzero(np.bincount(targets)).tolist():
            groups.setdefault(self._rest_of(target), []).append(target)
        group_of = np.zeros(automaton.num_states, np.int32)
        for number, some in enumerate(groups.values()):
            group_of[some] = number
        numbers, size = group_of[targets], self._vocabulary.size
        return tuple(bitmask_from_ids(tokens[numbers == number], size) for number in range(len(groups)))

    def _rest_of(self, lexical: int) -> Hashable:
        """A key of lexical states that are equally far from their end: the shortest word, if all ends are alike."""
        node = self._recogniser.automaton.nodes[lexical]
        return lexical if node is None or node.is_labelled else shortest_word(node)

    def _exits(self, configuration: Configuration, asked: Int32Array) -> tuple[Int32Array, list[Int32Array]]:
        """Of some tokens, those that may leave the lexeme of a configuration or are apart for another reason; and those
        that leave a captured text that nobody knows, by what follows it.
        """
        _, reader, _, text = configuration
        apart: list[int] = []
        groups: dict[tuple[int, bytes], list[int]] = {}
        is_asked = flags_from_bitmask(asked)
        for index, walk in self._masks.walks_of(configuration):
            for label_set, exits in walk.exits.items():
                tokens = index.below(exits)
                tokens = tokens[is_asked[tokens] != 0]
                common = None if text is None else self._recogniser.fresh(reader, label_set)
                so_far = None if text is None or common is None else common[0].decode(text)
                if text is None or common is None or so_far is None:
                    apart += tokens.tolist()
                    continue
                fresh, ways = common[0], index.ways_out(walk, label_set)
                for known in fresh.listed:  # which the text may still become
                    if known.startswith(so_far):
                        apart += self._index.along(fresh.spell(known[len(so_far) :]))
                for token in tokens.tolist():
                    suffix = self._after_text(token, text, ways, fresh)
                    if suffix is None:
                        apart.append(token)
                    else:
                        groups.setdefault((label_set, suffix), []).append(token)
        size = self._vocabulary.size
        return bitmask_from_ids(apart, size) & asked, [bitmask_from_ids(some, size) for some in groups.values()]

    def _after_text(self, token: int, text: bytes, ways: Mapping[bytes, Exits], fresh: Fresh) -> bytes | None:
        """The bytes of a token behind the captured text that it ends; None if that is listed or its end uncertain."""
        data = self._vocabulary.token_bytes[token] or b""
        ends = [end for end in range(1, len(data) + 1) if data[:end] in ways]
        if len(ends) != 1:
            return None
        known = fresh.decode(text + data[: ends[0] - len(fresh.end)])
        return None if known is None or known in fresh.listed else data[ends[0] :]

    def _by_state(self, state: State, words: Int32Array) -> Iterator[TokenClass]:
        """Some tokens by the state that they lead to."""
        tokens = ids_from_bitmask(words)
        groups: dict[State, list[int]] = {}
        configurations = self._recogniser.states.configurations[state]
        if len(tokens) > MAX_SINGLE and all(text is None for *_, text in configurations):
            found, numbers, states = token_bytes_of(self._vocabulary).after(self._recogniser, state)
            is_asked = np.isin(found, tokens)
            found, numbers = found[is_asked], numbers[is_asked]
            for number in np.flatnonzero(np.bincount(numbers)).tolist():
                groups[states[number]] = found[numbers == number].tolist()
            tokens = tokens[~np.isin(tokens, found)]  # special tokens
        for token in tokens.tolist():
            target = successor(self._recogniser, self._vocabulary, state, token)
            if target is not None:
                groups.setdefault(target, []).append(token)
        for some in groups.values():
            others = None if len(some) == 1 else bitmask_from_ids(some, self._vocabulary.size)
            yield TokenClass(min(some), others)


def _union(some: Sequence[Int32Array], none: Int32Array) -> Int32Array:
    return reduce(np.bitwise_or, some, none)
