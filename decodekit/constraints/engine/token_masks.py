"""From a state to the tokens that it allows, without trying the tokens one by one.

Example: inside of the string of ``{"name": "Jo``, 127,722 of 131,072 tokens stay in the string. The walk of the lexical
state "inside of a string" over the token trie lists them once, for every schema, with its 249 exits: the places in the
trie at a quote, and behind one. Only from there on the configuration of this state is run, which knows that ``,`` or
``}`` may follow: ``",`` is allowed, ``"]`` is not. The mask is the bits of the walk and those of the runs.

Configurations that allow few bytes are run over the token trie together. A lexeme that allows many (the inside of a
string) is walked against the trie once: tokens that stay inside are allowed whatever surrounds it, tokens that leave it
are grouped by the place where they leave, and only from there on its surroundings are run. Walks depend on the lexical
state and the vocabulary, so they are shared by all constraints; a mask depends on the state and is kept with it.

What is deep in the stack matters to few tokens, those that close everything above it. So masks of grammars are made for
states whose stacks are cut after a few frames, and shared by all states that are the same as far as that; the few
places of the trie where a token comes out below the cut are looked at again with the whole stacks. Frames that remember
what was read hardly ever come again with others below: measured on JSON Schemas, cutting costs more than it saves.

A token is allowed exactly when the state has a successor for its bytes. Tokens without bytes (special tokens, padding)
never are, the end-of-sequence tokens are exactly when the text so far is accepted. Every byte sequence that is alive
can be completed by bytes, so a vocabulary that has each single byte never meets a dead end; one that lacks some may.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from decodekit.constraints.engine.automaton import DEAD, Int32Array, UInt8Array
from decodekit.constraints.engine.bitmask import bitmask_from_ids, first_id, num_set, num_words
from decodekit.constraints.engine.compiled.kernel_runs import MAX_RETURNED, Runner
from decodekit.constraints.engine.configurations import Closure, Configuration, Entry, StackCut, State
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.engine.token_index import (
    NO_NODES,
    Exits,
    Part,
    TokenIndex,
    Walk,
    all_tokens,
    byte_tokens,
    tokens_after,
)
from decodekit.constraints.memory_account import Memo, Shelf
from decodekit.constraints.network import TextNeeded
from decodekit.constraints.priority import in_turns
from decodekit.constraints.work_budget import finished
from decodekit.vocabulary import Vocabulary

MASK_CACHE_BYTES: Final = 64 << 20
"""Bound on the masks kept for one grammar; less if the memory limit is low."""

_MANY_BYTES: Final = 24  # a lexeme that may go on with so many is walked by itself
_FEW_TRIED: Final = 2  # bytes that may tell that a text goes on
_CUTS: Final = (1, 4)  # frames of the stacks that are looked at first
_MASK_BYTES: Final = 512  # of what is kept beside the words
_ANY_BYTE: Final = np.ones(256, np.uint8)


@dataclass(slots=True)
class _Mask:
    """A mask, or one that is being made.

    Attributes:
        words: the tokens that are allowed whatever was cut from the stacks, int32 [words].
        returned: nodes of tries at and below which tokens depend on that.
    """

    words: Int32Array
    returned: list[tuple[TokenIndex, int]] = field(default_factory=list)


def _memory(words: Int32Array | None) -> int:
    return _MASK_BYTES + (0 if words is None else words.nbytes)


class Masks:
    """The masks of the states of one recogniser over one vocabulary. Thread-safe."""

    _are_kernels_loaded: ClassVar[bool] = False

    def __init__(self, recogniser: Recogniser, vocabulary: Vocabulary) -> None:
        self._recogniser = recogniser
        self._runner = Runner(recogniser)
        self._tokens = all_tokens(vocabulary)
        self._parts = tokens_after(vocabulary)
        self._byte_tokens = byte_tokens(vocabulary)
        self._num_words = num_words(vocabulary.size)
        self._eos_words = bitmask_from_ids(sorted(vocabulary.eos_token_ids), vocabulary.size)
        self._kept: Shelf[State, Int32Array] = Shelf(_memory, MASK_CACHE_BYTES, 4, is_strict=True)
        self._num_allowed: dict[State, int] = {}  # of those whose tokens were counted
        self._is_branching: set[State] = set()  # known, without the mask, to allow more than one token
        self._is_dense: Memo[int, bool] = Memo(self._find_density)  # by lexical state
        self._leads: Memo[int, int] = Memo(self._leads_to_dense)  # by lexical state and reader
        # Of states that are the same in the upper frames of their stacks; the one that was used last at the end.
        self._shared: Shelf[Entry, _Mask | None] = Shelf(
            lambda mask: _memory(None if mask is None else mask.words), MASK_CACHE_BYTES // 2, 8
        )

    def load(self) -> None:
        """Load the compiled functions, once in a process: it takes a tenth of a second, which no mask should take."""
        if Masks._are_kernels_loaded:
            return
        whole = self._tokens.whole
        with self._recogniser.automaton.lock:
            whole.reached(self._recogniser.automaton, DEAD)
            self._runner.add_tokens(whole.trie, NO_NODES, self._eos_words)
            self._runner.run(whole, NO_NODES, (), self._eos_words)
        Masks._are_kernels_loaded = True

    def mask(self, state: State) -> Int32Array:
        """The tokens that `state` allows, end-of-sequence tokens included, int32 [words]; not to be written to."""
        words = self._kept.get(state)
        return in_turns(lambda: self._made(state)) if words is None else words

    def _made(self, state: State) -> Int32Array:
        with self._recogniser.automaton.lock:
            words = self._kept.get(state)
            if words is None:
                same = self._recogniser.saturated(state, self._tokens.whole.trie.max_depth)
                words = self._kept.get(same)
                if words is None:
                    words = self._make(same)
                for one in {same, state}:
                    self._kept.keep(one, words)
        return words

    def num_allowed(self, state: State) -> int:
        """The number of tokens that `state` allows, end-of-sequence tokens included."""
        known = self._num_allowed.get(state)
        if known is None:
            known = self._num_allowed[state] = num_set(self.mask(state))
        return known

    def is_made(self, state: State, num_things: int) -> bool:
        """Whether the mask of a state is there after a slice of work of at most so many things (see `work_budget`)."""
        return state in self._kept or finished(lambda: self.mask(state), num_things)

    def only_token(self, state: State) -> int | None:
        """The one token that `state` allows; None if there are more or none.

        No mask is made where two bytes may follow that are tokens by themselves.
        """
        if state in self._is_branching:
            return None
        if state not in self._kept and self._recogniser.branches(state, self._byte_tokens):
            self._is_branching.add(state)
            return None
        return first_id(self.mask(state)) if self.num_allowed(state) == 1 else None

    def goes_on(self, state: State) -> bool:
        """Whether a few bytes tell that a token may follow; no mask is made."""
        configurations = self._recogniser.states.configurations[state]
        if state in self._kept or not configurations:
            return False
        with self._recogniser.automaton.lock:
            first = np.flatnonzero(self._recogniser.first_bytes(configurations[:1]) & self._byte_tokens)
        return any(self._recogniser.step(state, byte) is not None for byte in first[:_FEW_TRIED].tolist())

    def is_walked(self, configuration: Configuration) -> bool:
        """Whether a configuration is looked at by a walk of its lexeme, because it allows many tokens."""
        lexical, reader, _, text = configuration
        return text is not None or (self._recogniser.permitted[reader] < 0 and self._is_dense[lexical])

    def walks_of(self, configuration: Configuration) -> Iterator[tuple[TokenIndex, Walk]]:
        """The walks of such a one: which tokens stay inside its lexeme, and where tokens leave it."""
        return self._walks(configuration, self._tokens, np.zeros(self._num_words, np.int32))

    def tokens_of(self, configurations: Iterable[Configuration]) -> Int32Array:
        """The tokens that some configurations allow, int32 [words]. The automaton's lock is held."""
        return self._allowed(configurations, False).words

    def _make(self, state: State) -> Int32Array:
        """The mask of a state, from that of a state with cut stacks if that is enough."""
        states = self._recogniser.states
        for num_frames in () if self._recogniser.root_frame.has_registers else _CUTS:
            cut = self._cut(state, num_frames)
            if cut is None:
                break
            shared = self._shared_mask((cut, states.is_accepting(state)))
            if shared is not None:
                return self._completed(shared, state)
        return self._allowed(states.configurations[state], states.is_accepting(state)).words

    def _cut(self, state: State, num_frames: int) -> frozenset[Configuration] | None:
        """The configurations of a state with so many frames of their stacks; None if no stack has more."""
        upper = self._recogniser.stacks.upper
        whole = self._recogniser.states.configurations[state]
        if all(upper(stack, num_frames) == stack for _, _, stack, _ in whole):
            return None
        return frozenset((lexical, reader, upper(stack, num_frames), text) for lexical, reader, stack, text in whole)

    def _shared_mask(self, key: Entry) -> _Mask | None:
        """The mask of configurations with cut stacks, kept; None if too much depends on what was cut."""
        if key in self._shared:
            self._shared.move_to_end(key)
            return self._shared[key]
        found: _Mask | None = None
        try:
            found = self._allowed(*key)
            if len(found.returned) > MAX_RETURNED:
                found = None
        except StackCut:
            pass
        self._shared.keep(key, found)
        return found

    def _completed(self, shared: _Mask, state: State) -> Int32Array:
        """The mask of a state, from that of its upper frames."""
        words = shared.words.copy() if shared.returned else shared.words
        for index, node in shared.returned:
            before = self._recogniser.read(state, index.bytes_above(node, 0, int(index.trie.depth[node]) - 1))
            if before is not None:
                configurations = self._recogniser.states.configurations[before]
                self._runner.run(index, np.array([node], np.int32), configurations, words)
        return words

    def _allowed(self, configurations: Iterable[Configuration], is_accepting: bool) -> _Mask:
        """The tokens that configurations allow, those of the end of a text among them if it may end.

        Raises `StackCut` where too many nodes have to be looked at with whole stacks.
        """
        mask = _Mask(self._eos_words.copy() if is_accepting else np.zeros(self._num_words, np.int32))
        self._add(configurations, self._tokens, mask)
        return mask

    def _add(self, configurations: Iterable[Configuration], part: Part, mask: _Mask) -> None:
        """Add the tokens of a part that configurations allow."""
        together: list[Configuration] = []
        for configuration in configurations:
            if self.is_walked(configuration):
                self._add_walked(configuration, part, mask)
            else:
                together.append(configuration)
        if not together:
            return
        roots = part.whole.top
        if part is self._tokens:
            leads = 0
            for lexical, reader, *_ in together:
                leads |= self._leads[lexical << 32 | reader]
            for number, (byte, after) in enumerate(self._parts):
                # A blank or a bracket is rarely the end of what it allows: after it there is often a name, a number or
                # a string, whose tokens are known.
                if leads >> number & 1:
                    root = after.whole.root
                    roots = roots[roots != root]
                    self._runner.add_tokens(after.whole.trie, np.array([root], np.int32), mask.words)
                    self._add(self._recogniser.advance(together, byte)[0], after, mask)
        self._run(part.whole, roots, together, mask)

    def _run(self, index: TokenIndex, nodes: Int32Array, configurations: Iterable[Configuration], mask: _Mask) -> None:
        """Add the tokens at and below some nodes that configurations allow."""
        if returned := self._runner.run(index, nodes, tuple(configurations), mask.words):
            mask.returned += ((index, node) for node in returned)

    def _leads_to_dense(self, key: int) -> int:
        """Bitset: bit i is set if a lexeme that allows many bytes starts at or after the first byte of part i.

        Asked for ``lexical state << 32 | reader``: an int, so that the garbage collector has nothing to scan.
        """
        lexical, reader = key >> 32, key & 0xFFFFFFFF
        found = 0
        for number, (byte, _) in enumerate(self._parts if self._recogniser.permitted[reader] < 0 else ()):
            target = self._recogniser.automaton.step(lexical, byte)
            if target != DEAD and (self._is_dense[target] or self._ends_before_dense(target, reader)):
                found |= 1 << number
        return found

    def _ends_before_dense(self, lexical: int, reader: int) -> bool:
        """Whether a lexeme may end here and one that allows many bytes begin."""
        recogniser = self._recogniser
        ending = int(recogniser.automaton.endings[lexical])
        return (
            ending > 0
            and not recogniser.captures[reader]
            and any(
                recogniser.permitted[other] < 0 and not recogniser.captures[other] and self._is_dense[start]
                for start, other, _ in recogniser.leave(reader, ending).starts
            )
        )

    def _find_density(self, lexical: int) -> bool:
        return int(np.count_nonzero(self._recogniser.automaton.first_bytes(lexical))) >= _MANY_BYTES

    def _walks(self, configuration: Configuration, part: Part, words: Int32Array) -> Iterator[tuple[TokenIndex, Walk]]:
        """The walks of a lexeme, whose tokens inside are added; with too many exits, those before some bytes alone."""
        lexical, reader, stack, text = configuration
        automaton = self._recogniser.automaton
        for index in part.by_length:
            walk = index.walk(automaton, lexical)
            if walk.inside is not None:
                words |= walk.inside
            if not walk.is_complete:
                follow = self._bytes_after(reader, stack, walk) if text is None else _ANY_BYTE
                walk = index.walk(automaton, lexical, follow)
            yield index, walk

    def _bytes_after(self, reader: int, stack: int, walk: Walk) -> UInt8Array:
        """The bytes that may come after a lexeme, uint8 [256]."""
        recogniser = self._recogniser
        follow = np.zeros(256, np.uint8)
        for label_set in walk.exits:
            follow |= recogniser.first_bytes(recogniser.resolve(recogniser.leave(reader, label_set), stack)[0])
        return follow

    def _add_walked(self, configuration: Configuration, part: Part, mask: _Mask) -> None:
        """Add the tokens of a configuration by the walk of its lexeme.

        If it captures, what follows depends on the bytes of each token.
        """
        _, reader, stack, text = configuration
        leave = self._recogniser.leave
        for index, walk in self._walks(configuration, part, mask.words):
            for label_set, exits in walk.exits.items():
                if text is None:
                    self._go_on(index, leave(reader, label_set), stack, exits, mask)
                    continue
                ways = index.ways_out(walk, label_set)
                listed = self._fresh_ways(index, walk, label_set, configuration, mask)
                for prefix in ways if listed is None else listed:
                    before, at = ways[prefix]
                    some = Exits(exits.before[before], exits.at[at])
                    self._go_on(index, leave(reader, label_set, text + prefix), stack, some, mask)

    def _go_on(self, index: TokenIndex, closure: Closure, stack: int, exits: Exits, mask: _Mask) -> None:
        """Add the tokens that leave a lexeme at some exits, each followed by a closure."""
        configurations, is_accepting = self._recogniser.resolve(closure, stack)
        if len(exits.at) and (configurations or is_accepting):
            self._runner.add_tokens(index.trie, exits.at, mask.words)
        if len(exits.before) and configurations:
            self._run(index, exits.before, configurations, mask)

    def _fresh_ways(
        self, index: TokenIndex, walk: Walk, label_set: int, configuration: Configuration, mask: _Mask
    ) -> list[bytes] | None:
        """Add the tokens with which the text becomes one that is not listed; returns the ways to those that are.

        None if every way has to be looked at by itself.
        """
        _, reader, stack, text = configuration
        common = self._recogniser.fresh(reader, label_set)
        if common is None or text is None:
            return None
        fresh, closure = common
        so_far = fresh.decode(text)
        if so_far is None:
            return None
        ways, by_text = index.ways_out(walk, label_set), index.ways_by_text(walk, label_set, fresh)
        if sum(map(len, by_text.values())) < len(ways):  # a way that is half of an escape
            return None
        start = len(so_far)
        listed = [
            prefix
            for known in fresh.listed
            if known.startswith(so_far) and (prefixes := by_text.get(known[start:])) is not None
            for prefix in prefixes
        ]
        exits = walk.exits[label_set]
        if listed:
            places = zip(*(ways[prefix] for prefix in listed), strict=True)
            exits = Exits(*(np.delete(nodes, np.concatenate(some)) for nodes, some in zip(exits, places, strict=True)))
        try:
            self._go_on(index, closure, stack, exits, mask)
        except TextNeeded:
            return None
        return listed
