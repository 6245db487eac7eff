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

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from decodekit.constraints.engine.automaton import DEAD, Int32Array, UInt8Array
from decodekit.constraints.engine.bitmask import bitmask_from_ids, first_id, num_set, num_words
from decodekit.constraints.engine.compiled.kernel_runs import MAX_RETURNED, Runner
from decodekit.constraints.engine.configurations import Configuration, Entry, StackCut, State
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.engine.token_index import (
    NO_NODES,
    Part,
    TokenIndex,
    Walk,
    WayOut,
    all_tokens,
    byte_tokens,
    tokens_after,
)
from decodekit.constraints.memory_account import Account, is_exceeded, share
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


@dataclass(frozen=True, slots=True)
class _Shared:
    """The mask of states that are the same in the upper frames of their stacks.

    Attributes:
        words: the tokens that need no more frames, int32 [words].
        returned: nodes of tries at and below which tokens need more.
    """

    words: Int32Array
    returned: tuple[tuple[TokenIndex, int], ...]


def _memory(shared: _Shared | None) -> int:
    return _MASK_BYTES if shared is None else _MASK_BYTES + shared.words.nbytes


class Masks:
    """The masks of the states of one recogniser over one vocabulary. Thread-safe."""

    _are_kernels_loaded: ClassVar[bool] = False

    def __init__(self, recogniser: Recogniser, vocabulary: Vocabulary) -> None:
        self._recogniser = recogniser
        self._runner = Runner(recogniser)
        self._tokens = all_tokens(vocabulary)
        self._parts = tokens_after(vocabulary)
        self._byte_tokens = byte_tokens(vocabulary)
        self._leads: dict[int, int] = {}
        self._num_words = num_words(vocabulary.size)
        self._eos_words = bitmask_from_ids(sorted(vocabulary.eos_token_ids), vocabulary.size)
        self._kept: OrderedDict[State, Int32Array] = OrderedDict()  # oldest first
        self._num_allowed: dict[State, int] = {}  # of those whose tokens were counted
        self._is_branching: set[State] = set()  # known, without the mask, to allow more than one token
        self._account, self._shared_account = Account(), Account()
        self._density: dict[int, bool] = {}  # by lexical state
        # By upper configurations, and whether the text may end; the one that was used last at the end.
        self._shared: OrderedDict[tuple[frozenset[Configuration], bool], _Shared | None] = OrderedDict()

    def load(self) -> None:
        """Load the compiled functions, once in a process: it takes a tenth of a second, which no mask should take."""
        if Masks._are_kernels_loaded:
            return
        whole = self._tokens.whole
        with self._recogniser.automaton.lock:
            whole.reached(self._recogniser.automaton, DEAD)
            self._runner.add_tokens(whole.trie, NO_NODES, self._eos_words)
            self._runner.run(whole.trie, NO_NODES, (), self._eos_words, whole.bytes_above)
        Masks._are_kernels_loaded = True

    def mask(self, state: State) -> Int32Array:
        """The tokens that `state` allows, end-of-sequence tokens included, int32 [words]; not to be written to."""
        words = self._kept.get(state)
        return in_turns(lambda: self._made(state)) if words is None else words

    def _made(self, state: State) -> Int32Array:
        with self._recogniser.automaton.lock:
            words = self._kept.get(state)
            if words is None:
                words = self._make(state)
                self._keep(state, words)
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
        return text is not None or (self._recogniser.permitted[reader] < 0 and self._is_dense(lexical))

    def walks_of(self, configuration: Configuration) -> Iterator[tuple[TokenIndex, Walk]]:
        """The walks of such a one: which tokens stay inside its lexeme, and where tokens leave it."""
        lexical, reader, stack, text = configuration
        unused: Int32Array = np.zeros(self._num_words, np.int32)
        follow = (lambda _: _ANY_BYTE) if text is not None else (lambda walk: self._bytes_after(reader, stack, walk))
        return self._walks(lexical, self._tokens, unused, follow)

    def tokens_of(self, configurations: Iterable[Configuration]) -> Int32Array:
        """The tokens that some configurations allow, int32 [words]. The automaton's lock is held."""
        words: Int32Array = np.zeros(self._num_words, np.int32)
        self._add(configurations, self._tokens, words, [])
        return words

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
        return self._allowed(states.configurations[state], states.is_accepting(state))[0]

    def _cut(self, state: State, num_frames: int) -> frozenset[Configuration] | None:
        """The configurations of a state with so many frames of their stacks; None if no stack has more."""
        upper = self._recogniser.stacks.upper
        configurations = self._recogniser.states.configurations[state]
        if all(upper(stack, num_frames) == stack for _, _, stack, _ in configurations):
            return None
        return frozenset(
            (lexical, reader, upper(stack, num_frames), text) for lexical, reader, stack, text in configurations
        )

    def _shared_mask(self, key: tuple[frozenset[Configuration], bool]) -> _Shared | None:
        """The mask of configurations with cut stacks, kept; None if too much depends on what was cut."""
        if key in self._shared:
            self._shared.move_to_end(key)
            return self._shared[key]
        found: _Shared | None = None
        try:
            words, returned = self._allowed(tuple(key[0]), key[1])
            if len(returned) <= MAX_RETURNED:
                found = _Shared(words, tuple(returned))
        except StackCut:
            pass
        self._shared[key] = found
        self._shared_account.add(_memory(found))
        while self._shared_account.num_bytes > share(MASK_CACHE_BYTES, 4) // 2 and len(self._shared) > 1:
            _, oldest = self._shared.popitem(last=False)
            self._shared_account.add(-_memory(oldest))
        return found

    def _completed(self, shared: _Shared, state: State) -> Int32Array:
        """The mask of a state, from that of its upper frames."""
        if not shared.returned:
            return shared.words
        recogniser, words = self._recogniser, shared.words
        for index, node in shared.returned:
            path = index.bytes_above(node, 0, int(index.trie.depth[node]) - 1)
            before = recogniser.read(state, path)
            if before is not None:
                words = shared.words.copy() if words is shared.words else words
                root = np.array([node], np.int32)
                configurations = recogniser.states.configurations[before]
                self._runner.run(index.trie, root, configurations, words, index.bytes_above)
        return words

    def _keep(self, state: State, words: Int32Array) -> None:
        self._kept[state] = words
        self._account.add(_MASK_BYTES + words.nbytes)
        bound = share(MASK_CACHE_BYTES, 4)
        while (self._account.num_bytes > bound or is_exceeded()) and len(self._kept) > 1:
            oldest, forgotten = self._kept.popitem(last=False)
            self._num_allowed.pop(oldest, None)
            self._account.add(-_MASK_BYTES - forgotten.nbytes)

    def _allowed(
        self, configurations: tuple[Configuration, ...], is_accepting: bool
    ) -> tuple[Int32Array, list[tuple[TokenIndex, int]]]:
        """The tokens that configurations allow, and the nodes of tries that have to be looked at with whole stacks.

        Raises:
            StackCut: there are too many of these.
        """
        words = self._eos_words.copy() if is_accepting else np.zeros(self._num_words, np.int32)
        returned: list[tuple[TokenIndex, int]] = []
        self._add(configurations, self._tokens, words, returned)
        return words, returned

    def _add(
        self,
        configurations: Iterable[Configuration],
        part: Part,
        words: Int32Array,
        returned: list[tuple[TokenIndex, int]],
    ) -> None:
        """Add the tokens of a part that configurations allow, and the nodes at which their stacks are cut."""
        together: list[Configuration] = []
        for configuration in configurations:
            text = configuration[3]
            if not self.is_walked(configuration):
                together.append(configuration)
            elif text is not None:
                self._captured(configuration, part, text, words, returned)
            else:
                self._dense(configuration, part, words, returned)
        if together:
            whole = part.whole
            roots = whole.top
            if part is self._tokens:
                leads = 0
                for lexical, reader, *_ in together:
                    leads |= self._leads_to_dense(lexical, reader)
                for number, (byte, after) in enumerate(self._parts):
                    if leads >> number & 1:
                        roots = self._add_after(byte, after, roots, together, words, returned)
            nodes = self._runner.run(whole.trie, roots, together, words, whole.bytes_above)
            returned += ((whole, node) for node in nodes)

    def _add_after(
        self,
        byte: int,
        part: Part,
        roots: Int32Array,
        configurations: list[Configuration],
        words: Int32Array,
        returned: list[tuple[TokenIndex, int]],
    ) -> Int32Array:
        """Add the tokens that begin with a byte, by way of what follows it; returns the nodes that remain to be done.

        A blank or a bracket is rarely the end of what it allows: after it there is often a name, a number or a string,
        whose tokens are known.
        """
        after, _ = self._recogniser.advance(configurations, byte)
        self._runner.add_tokens(part.whole.trie, np.array([part.whole.root], np.int32), words)
        self._add(after, part, words, returned)
        others: Int32Array = roots[roots != part.whole.root]
        return others

    def _leads_to_dense(self, lexical: int, reader: int) -> int:
        """Bitset: bit i is set if a lexeme that allows many bytes starts at or after the first byte of part i.

        An int, so that the garbage collector has nothing to scan.
        """
        key = lexical << 32 | reader
        known = self._leads.get(key)
        if known is None:
            known = 0
            if self._recogniser.permitted[reader] < 0:
                for number, (byte, _) in enumerate(self._parts):
                    target = self._recogniser.automaton.step(lexical, byte)
                    if target != DEAD and (self._is_dense(target) or self._ends_before_dense(target, reader)):
                        known |= 1 << number
            self._leads[key] = known
        return known

    def _ends_before_dense(self, lexical: int, reader: int) -> bool:
        """Whether a lexeme may end here and one that allows many bytes begin."""
        recogniser = self._recogniser
        ending = int(recogniser.automaton.endings[lexical])
        return (
            ending > 0
            and not recogniser.captures[reader]
            and any(
                recogniser.permitted[other] < 0 and not recogniser.captures[other] and self._is_dense(start)
                for start, other, _ in recogniser.leave(reader, ending).starts
            )
        )

    def _is_dense(self, lexical: int) -> bool:
        is_dense = self._density.get(lexical)
        if is_dense is None:
            first = self._recogniser.automaton.first_bytes(lexical)
            is_dense = self._density[lexical] = int(np.count_nonzero(first)) >= _MANY_BYTES
        return is_dense

    def _walks(
        self, lexical: int, part: Part, words: Int32Array, bytes_after: Callable[[Walk], UInt8Array]
    ) -> Iterator[tuple[TokenIndex, Walk]]:
        """The walks of a lexeme, whose tokens inside are added; with too many exits, those before some bytes alone."""
        automaton = self._recogniser.automaton
        for index in part.by_length:
            walk = index.walk(automaton, lexical)
            if walk.inside is not None:
                words |= walk.inside
            yield index, walk if walk.is_complete else index.walk(automaton, lexical, bytes_after(walk))

    def _dense(
        self, configuration: Configuration, part: Part, words: Int32Array, returned: list[tuple[TokenIndex, int]]
    ) -> None:
        """Add the tokens of a configuration by the walk of its lexeme; and the nodes at which its stack is cut."""
        lexical, reader, stack, _ = configuration
        recogniser = self._recogniser
        for index, walk in self._walks(lexical, part, words, lambda walk: self._bytes_after(reader, stack, walk)):
            for label_set in walk.label_sets:
                nodes = self._go_on(
                    index,
                    recogniser.resolve(recogniser.leave(reader, label_set), stack),
                    walk.before.get(label_set, NO_NODES),
                    walk.at.get(label_set, NO_NODES),
                    words,
                )
                returned += ((index, node) for node in nodes)

    def _go_on(
        self, index: TokenIndex, entry: Entry, before: Int32Array, at: Int32Array, words: Int32Array
    ) -> list[int]:
        """Add the tokens that leave a lexeme at some nodes, after which the configurations of `entry` go on.

        Returns:
            The nodes at which a stack is cut.
        """
        configurations, is_accepting = entry
        if not configurations and not is_accepting:
            return []
        if len(at):
            self._runner.add_tokens(index.trie, at, words)
        if not configurations or not len(before):
            return []
        return self._runner.run(index.trie, before, tuple(configurations), words, index.bytes_above)

    def _bytes_after(self, reader: int, stack: int, walk: Walk) -> UInt8Array:
        """The bytes that may come after a lexeme, uint8 [256]."""
        recogniser = self._recogniser
        follow = np.zeros(256, np.uint8)
        for label_set in walk.label_sets:
            follow |= recogniser.first_bytes(recogniser.resolve(recogniser.leave(reader, label_set), stack)[0])
        return follow

    def _captured(
        self,
        configuration: Configuration,
        part: Part,
        text: bytes,
        words: Int32Array,
        returned: list[tuple[TokenIndex, int]],
    ) -> None:
        """Add the tokens of a configuration that captures: what follows depends on the bytes of each token."""
        lexical, reader, stack, _ = configuration
        recogniser = self._recogniser
        for index, walk in self._walks(lexical, part, words, lambda _: _ANY_BYTE):
            for label_set in walk.label_sets:
                ways = index.ways_out(walk, label_set)
                listed = self._fresh_ways(index, walk, label_set, configuration, ways, words, returned)
                before, at = walk.before.get(label_set, NO_NODES), walk.at.get(label_set, NO_NODES)
                for prefix in ways if listed is None else listed:
                    way = ways[prefix]
                    entry = recogniser.resolve(recogniser.leave(reader, label_set, text + prefix), stack)
                    nodes = self._go_on(index, entry, before[way.before], at[way.at], words)
                    returned += ((index, node) for node in nodes)

    def _fresh_ways(
        self,
        index: TokenIndex,
        walk: Walk,
        label_set: int,
        configuration: Configuration,
        ways: dict[bytes, WayOut],
        words: Int32Array,
        returned: list[tuple[TokenIndex, int]],
    ) -> list[bytes] | None:
        """Add the tokens with which the text becomes one that is not listed; returns the ways to those that are.

        None if every way has to be looked at by itself.
        """
        _, reader, stack, text = configuration
        common = self._recogniser.fresh(reader, label_set)
        if common is None or text is None:
            return None
        fresh, following = common
        so_far = fresh.decode(text)
        if so_far is None:
            return None
        by_text = index.ways_by_text(walk, label_set, fresh)
        if sum(map(len, by_text.values())) < len(ways):  # a way that is half of an escape
            return None
        start = len(so_far)
        listed = [
            prefix
            for known in fresh.listed
            if known.startswith(so_far) and (prefixes := by_text.get(known[start:])) is not None
            for prefix in prefixes
        ]
        before, at = walk.before.get(label_set, NO_NODES), walk.at.get(label_set, NO_NODES)
        if listed:
            before = np.delete(before, np.concatenate([ways[prefix].before for prefix in listed]))
            at = np.delete(at, np.concatenate([ways[prefix].at for prefix in listed]))
        try:
            nodes = self._go_on(index, self._recogniser.resolve(following, stack), before, at, words)
        except TextNeeded:
            return None
        returned += ((index, node) for node in nodes)
        return listed
