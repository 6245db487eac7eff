"""The tokens that tell choices apart: a trie of their spellings, cut where only one choice is left.

    choices  1  12  true      tokens  1  2  12  t  tr  ...  and $, the end of the text

    root      1 -> node "1"     12 -> 12     t, tr, ... -> true      nothing else begins with these bytes
    node "1"  2 -> 12           $ -> 1

A token of an edge has the probability that the masked model gives it: its share among the tokens of all edges of the
node. The probability of a choice is the sum over all ways to it. What comes after a choice is settled need not be
looked at: whatever tokens spell the rest, the mask lets no other choice come of them.

With ``spelling="any"`` the edges are all tokens that the mask allows (`Spellings`); with ``"canonical"`` those with
which the tokenizer's own cut of some choice goes on (`Cuts`). Nodes are made when they are asked for: a long beginning
that choices have in common can be spelled in thousands of ways, nearly all of them without any probability.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask

if TYPE_CHECKING:
    from decodekit.constraints.matching.matcher import Matcher
    from decodekit.vocabulary import Vocabulary

MOST_KEPT: Final = 1 << 18
"""So many edges of a trie are kept for later prompts, about 16 bytes each."""

NO_CHOICE: Final = -1
"""What an edge leads to that is no choice."""

Ints: TypeAlias = npt.NDArray[np.int64]


class Edges(NamedTuple):
    """The edges of a node.

    Attributes:
        token_ids: the tokens that may follow, int64 [E].
        choices: the choice that each settles, int64 [E]; `NO_CHOICE` where none is, or where several are left.
        nodes: by place among the edges, where several are left.
    """

    token_ids: Ints
    choices: Ints
    nodes: dict[int, TrieNode]


@dataclass(eq=False, slots=True)
class TrieNode:
    """Tokens after which several choices are left.

    Args:
        tokens: from the root on.
        state: what the trie knows of them.
        edges: once they were asked for.
    """

    tokens: tuple[int, ...]
    state: Any
    edges: Edges | None = None


class ChoiceTrie(ABC):
    """The spellings of choices. Threads may share it.

    Args:
        texts: the choices, all different.
        state: of the root.
    """

    def __init__(self, texts: Sequence[str], state: object) -> None:
        self.texts = tuple(texts)
        self._state = state
        self._num_kept = 0
        self._root = TrieNode((), state)

    @property
    def root(self) -> TrieNode | None:
        """The node without tokens; None for a single choice."""
        return self._root if len(self.texts) > 1 else None

    def edges(self, node: TrieNode) -> Edges:
        """The edges of a node."""
        if node.edges is None:
            node.edges = self._edges(node)
            self._num_kept += len(node.edges.token_ids)
            if self._num_kept > MOST_KEPT:  # whoever is at a node holds it, and what it leads to
                self._num_kept, self._root = 0, TrieNode((), self._state)
        return node.edges

    @abstractmethod
    def _edges(self, node: TrieNode) -> Edges:
        """The edges of a node, found out."""

    @abstractmethod
    def reach(self, node: TrieNode) -> int:
        """The reach of a node: how much of the choices its tokens spell. What follows the most is likely to be read."""

    @abstractmethod
    def members(self, node: TrieNode) -> Ints:
        """The choices that are left after a node."""

    def width(self, most: int) -> int:
        """The number of token rows to all nodes but the root, as far as a few nodes say; at most `most`."""
        waiting, num_rows = deque([self._root]), 0
        for _ in range(8 * most):
            if not waiting or num_rows >= most:
                break
            node = waiting.popleft()
            following = self.edges(node).nodes
            num_rows += not following and node is not self._root
            waiting += following.values()
        return max(1, min(most, num_rows + len(waiting)))


class Spellings(ChoiceTrie):
    """All ways to spell choices that a constraint admits.

    Args:
        texts: the choices, all different.
        matcher: what may come.
        vocabulary: of the tokens.
        before: bytes that have to come before each choice.
        is_part: whether the text goes on after a choice. What the constraint admits besides `before` and the choices is
            then no choice.
    """

    def __init__(
        self,
        texts: Sequence[str],
        matcher: Matcher,
        vocabulary: Vocabulary,
        before: bytes = b"",
        *,
        is_part: bool = False,
    ) -> None:
        super().__init__(texts, (b"", matcher.fork()))
        self._vocabulary, self._pieces = vocabulary, matcher.token_texts
        self._begun = _Beginnings([before + text.encode() for text in texts], vocabulary, is_part=is_part)

    def reach(self, node: TrieNode) -> int:
        """Bytes."""
        return len(node.state[0])

    def members(self, node: TrieNode) -> Ints:
        """Those that begin with its bytes."""
        return self._begun.members(node.state[0])

    def _edges(self, node: TrieNode) -> Edges:
        text, state = node.state
        words = allocate_bitmask(1, self._vocabulary.size)
        state.fill_bitmask(words)
        token_ids = ids_from_bitmask(words[0]).astype(np.int64)
        choices, nodes = np.full_like(token_ids, NO_CHOICE), dict[int, TrieNode]()
        for place, token in enumerate(token_ids.tolist()):
            if token in self._vocabulary.eos_token_ids:
                choices[place] = self._begun.ended(text)
                continue
            longer = text + (self._pieces[token] or b"")
            settled = self._begun.settled(longer)
            if settled is not None:
                choices[place] = settled
                continue
            after = state.fork()
            if not after.accept(token):
                raise RuntimeError(f"{type(after).__name__} refused token {token}, which its own mask allowed")
            nodes[place] = TrieNode((*node.tokens, token), (longer, after))
        return Edges(token_ids, choices, nodes)


class Cuts(ChoiceTrie):
    """One spelling of each choice.

    Args:
        texts: the choices, all different.
        cuts: their tokens.
        end_ids: tokens that end a text, for a cut with which another one begins.
    """

    def __init__(self, texts: Sequence[str], cuts: Sequence[Sequence[int]], end_ids: Collection[int]) -> None:
        super().__init__(texts, range(len(cuts)))
        self._cuts, self._end_ids = cuts, sorted(end_ids)

    def reach(self, node: TrieNode) -> int:
        """The number of choices that begin so."""
        return len(node.state)

    def members(self, node: TrieNode) -> Ints:
        """Those whose cuts begin so."""
        return np.array(node.state, np.int64)

    def _edges(self, node: TrieNode) -> Edges:
        following: dict[int, list[int]] = {}  # the choices that begin so, by their next token
        for number in node.state:
            cut = self._cuts[number]
            for token in cut[len(node.tokens) : len(node.tokens) + 1] or self._end_ids:
                following.setdefault(token, []).append(number)
        single = [some[0] if len(some) == 1 else NO_CHOICE for some in following.values()]
        nodes = {
            place: TrieNode((*node.tokens, token), some)
            for place, (token, some) in enumerate(following.items())
            if len(some) > 1
        }
        return Edges(np.array([*following], np.int64), np.array(single, np.int64), nodes)


class _Beginnings:
    """The choices that are settled by beginnings.

    Args:
        texts: bytes of the choices.
        vocabulary: spells them.
        is_part: whether more may follow a choice.
    """

    def __init__(self, texts: Sequence[bytes], vocabulary: Vocabulary, *, is_part: bool) -> None:
        self._texts = texts
        self._numbers = {text: number for number, text in enumerate(texts)}
        self._sorted = sorted(texts)
        self._order = np.array([self._numbers[text] for text in self._sorted], np.int64)
        self._is_part = is_part
        pieces = {piece for piece in vocabulary.token_bytes if piece}
        self._pieces = pieces if any(bytes((byte,)) not in pieces for byte in set(b"".join(texts))) else None
        self._longest = max(map(len, pieces), default=1)
        self._ends: dict[bytes, set[int]] = {}

    def ended(self, text: bytes) -> int:
        """The choice that a whole text is."""
        return self._numbers.get(text, NO_CHOICE)

    def members(self, text: bytes) -> Ints:
        """The choices that begin so."""
        first = bisect_left(self._sorted, text)
        return self._order[first : bisect_left(self._sorted, text + b"\xff")]  # no UTF-8 has this byte

    def settled(self, text: bytes) -> int | None:
        """The only choice that may come of a beginning, or `NO_CHOICE`; None where several may."""
        left = self.members(text)
        if len(left) > 1:
            return None
        if len(left) == 1:
            only = int(left[0])
            return only if self._is_spelled(self._texts[only], len(text)) else NO_CHOICE
        ends = (text[:end] for end in range(len(text), 0, -1)) if self._is_part else ()
        return next((self._numbers[one] for one in ends if one in self._numbers), NO_CHOICE)

    def _is_spelled(self, text: bytes, start: int) -> bool:
        """Whether the tokens spell a choice from `start` on; a masked model may come where they do not."""
        if self._pieces is None or self._is_part:
            return True
        if text not in self._ends:
            ends = {len(text)}
            for begin in range(len(text) - 1, -1, -1):
                lengths = range(1, min(self._longest, len(text) - begin) + 1)
                if any(begin + n in ends and text[begin : begin + n] in self._pieces for n in lengths):
                    ends.add(begin)
            self._ends[text] = ends
        return start in self._ends[text]
