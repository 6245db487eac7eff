"""The tokens that tell choices apart: a trie of their spellings, cut where only one choice is left.

    choices  1  12  true      tokens  1  2  12  t  tr  ...  and $, the end of the text

    root      1 -> node "1"     12 -> 12     t, tr, ... -> true      nothing else begins with these bytes
    node "1"  2 -> 12           $ -> 1

A token of an edge has the probability that the masked model gives it: its share among the tokens of all edges of the
node. The probability of a choice is the sum over all ways to it. What comes after a choice is settled need not be
looked at: whatever tokens spell the rest, the mask lets no other choice come of them.

With ``spelling="any"`` the edges are all tokens that the mask allows; with ``"canonical"`` those with which the
tokenizer's own cut of some choice goes on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.errors import ResourceLimitError

if TYPE_CHECKING:
    from decodekit.constraints.matching.matcher import Matcher
    from decodekit.vocabulary import Vocabulary

MAX_NODES: Final = 2048
"""Most beginnings of choices, each in each of its spellings, that have to be read."""

MAX_EDGES: Final = 1 << 18
"""Most tokens after all of them."""

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


class TrieNode(NamedTuple):
    """Tokens after which several choices are left.

    Attributes:
        tokens: from the root on.
        token_ids: those that may follow, int64 [E].
        targets: what each leads to, int64 [E]: choice i is i; then comes one for what is no choice, then the nodes.
    """

    tokens: tuple[int, ...]
    token_ids: Ints
    targets: Ints


class TriePath(NamedTuple):
    """Tokens to read in one row, and the nodes, by number, that the last of them lead to."""

    tokens: tuple[int, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ChoiceTrie:
    """The spellings of choices.

    Args:
        texts: the choices.
        nodes: a node comes after those before it; the first has no tokens. None at all for a single choice.
    """

    texts: tuple[str, ...]
    nodes: tuple[TrieNode, ...]

    @cached_property
    def paths(self) -> tuple[TriePath, ...]:
        """Rows of tokens that lead to all nodes but the first, each node once."""
        order = sorted(range(1, len(self.nodes)), key=lambda number: self.nodes[number].tokens)
        paths, passed = [], list[int]()
        for number, following in zip(order, [*order[1:], None], strict=False):
            passed.append(number)
            tokens = self.nodes[number].tokens
            if following is None or self.nodes[following].tokens[: len(tokens)] != tokens:
                paths.append(TriePath(tokens, tuple(passed)))
                passed = []
        return tuple(paths)

    @property
    def depth(self) -> int:
        """Most tokens of a path."""
        return max((len(path.tokens) for path in self.paths), default=0)

    def log_masses(self, log_probs: Sequence[Floats]) -> Floats:
        """The log-probability of each choice, float64 [C]; -inf for one that cannot come.

        Args:
            log_probs: by node, those of its tokens, float64 [E].
        """
        num_choices = len(self.texts)
        if not self.nodes:
            return np.zeros(1)
        masses = np.full(num_choices + 1 + len(self.nodes), -np.inf)
        masses[num_choices + 1] = 0.0
        for number, (node, own) in enumerate(zip(self.nodes, log_probs, strict=True), num_choices + 1):
            np.logaddexp.at(masses, node.targets, masses[number] + own)
        return masses[:num_choices]


def trie_of_spellings(
    texts: Sequence[str], matcher: Matcher, vocabulary: Vocabulary, before: bytes = b"", *, is_part: bool = False
) -> ChoiceTrie:
    """The trie of all ways to spell choices that a constraint admits.

    Args:
        texts: the choices, all different.
        matcher: what may come.
        vocabulary: of the tokens.
        before: bytes that have to come before each choice.
        is_part: whether the text goes on after a choice. What the constraint admits besides `before` and the choices is
            then no choice.

    Raises:
        ResourceLimitError: there are too many ways.
    """
    if len(texts) == 1:
        return ChoiceTrie(tuple(texts), ())
    choices = _Choices([before + text.encode() for text in texts], vocabulary, is_part=is_part)
    end_ids, pieces = vocabulary.eos_token_ids, matcher.token_texts
    words = allocate_bitmask(1, vocabulary.size)
    # Of each node its tokens, their bytes, and the state after them.
    waiting: deque[tuple[tuple[int, ...], bytes, Matcher]] = deque([((), b"", matcher)])
    nodes, num_nodes, num_edges = list[TrieNode](), 1, 0
    while waiting:
        tokens, text, state = waiting.popleft()
        state.fill_bitmask(words)
        token_ids = ids_from_bitmask(words[0]).astype(np.int64)
        num_edges += len(token_ids)
        if num_nodes > MAX_NODES or num_edges > MAX_EDGES:
            raise _too_many(texts)
        targets = np.empty_like(token_ids)
        for place, token in enumerate(token_ids.tolist()):
            if token in end_ids:
                targets[place] = choices.ended(text)
                continue
            longer = text + (pieces[token] or b"")
            settled = choices.settled(longer)
            if settled is None:
                after = state.fork()
                if not after.accept(token):
                    raise RuntimeError(f"{type(after).__name__} refused token {token}, which its own mask allowed")
                waiting.append(((*tokens, token), longer, after))
                settled = len(texts) + 1 + num_nodes
                num_nodes += 1
            targets[place] = settled
        nodes.append(TrieNode(tokens, token_ids, targets))
    return ChoiceTrie(tuple(texts), tuple(nodes))


def trie_of_cuts(texts: Sequence[str], cuts: Sequence[Sequence[int]], end_ids: Collection[int]) -> ChoiceTrie:
    """The trie of choices in one spelling each.

    Args:
        texts: the choices, all different.
        cuts: their tokens.
        end_ids: tokens that end a text, for a cut with which another one begins.

    Raises:
        ResourceLimitError: the choices have too many common beginnings.
    """
    if len(texts) == 1:
        return ChoiceTrie(tuple(texts), ())
    # Of each node its tokens, and the choices that begin so.
    waiting: deque[tuple[tuple[int, ...], Sequence[int]]] = deque([((), range(len(cuts)))])
    nodes, num_nodes = list[TrieNode](), 1
    while waiting:
        tokens, numbers = waiting.popleft()
        following: dict[int, list[int]] = {}
        edges: list[tuple[int, int]] = []
        for number in numbers:
            if len(cuts[number]) == len(tokens):
                edges += ((token, number) for token in sorted(end_ids))
            else:
                following.setdefault(cuts[number][len(tokens)], []).append(number)
        for token, some in following.items():
            if len(some) == 1:
                edges.append((token, some[0]))
            else:
                edges.append((token, len(texts) + 1 + num_nodes))
                num_nodes += 1
                waiting.append(((*tokens, token), some))
        if num_nodes > MAX_NODES:
            raise _too_many(texts)
        table = np.array(edges, dtype=np.int64).reshape(-1, 2)
        nodes.append(TrieNode(tokens, table[:, 0].copy(), table[:, 1].copy()))
    return ChoiceTrie(tuple(texts), tuple(nodes))


def _too_many(texts: Sequence[str]) -> ResourceLimitError:
    return ResourceLimitError(
        f"the beginnings that {len(texts):,} choices have in common can be spelled in more than {MAX_NODES:,} ways, or "
        f"lead to more than {MAX_EDGES:,} tokens",
        at="choices",
        hint='spelling="canonical", fewer choices, or choices that differ sooner: put what all begin with at the end '
        "of the prompt",
    )


class _Choices:
    """Which choice a beginning settles.

    Args:
        texts: bytes of the choices.
        vocabulary: spells them.
        is_part: whether more may follow a choice.
    """

    def __init__(self, texts: Sequence[bytes], vocabulary: Vocabulary, *, is_part: bool) -> None:
        self._numbers = {text: number for number, text in enumerate(texts)}
        self._sorted = sorted(texts)
        self._is_part, self._none = is_part, len(texts)
        pieces = {piece for piece in vocabulary.token_bytes if piece}
        self._pieces = pieces if any(bytes((byte,)) not in pieces for byte in set(b"".join(texts))) else None
        self._longest = max(map(len, pieces), default=1)
        self._ends: dict[bytes, set[int]] = {}

    def ended(self, text: bytes) -> int:
        """The choice that a whole text is."""
        return self._numbers.get(text, self._none)

    def settled(self, text: bytes) -> int | None:
        """The only choice that may come of a beginning, or what stands for none; None where several may."""
        first = bisect_left(self._sorted, text)
        num_left = bisect_left(self._sorted, text + b"\xff") - first  # no UTF-8 has this byte
        if num_left > 1:
            return None
        if num_left == 1:
            only = self._sorted[first]
            return self._numbers[only] if self._is_spelled(only, len(text)) else self._none
        ends = (text[:end] for end in range(len(text), 0, -1)) if self._is_part else ()
        return next((self._numbers[one] for one in ends if one in self._numbers), self._none)

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
