"""Prefixes that are kept for later requests: a radix tree over token ids, bounded in bytes.

    add  S U M A          root ─ S U M A          a prefix of four tokens
    add  S U M B C        root ─ S U M ┬ A        the edge is divided; the node between holds nothing
                                       └ B C
    match S U M X         3 tokens of S U M A: any prefix below begins with them
    match S U M B C D     5 tokens of S U M B C

Only equal tokens match, and of them those of the same salt: each salt has a tree, and all share the bound. What else
changes the keys and values (the model's weights, a contrast) has a store of its own.
When the bytes are used up, the prefix goes that was used least recently. A use counts for all prefixes on the way to
it, so that nothing goes before what stands on it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from decodekit.models.causal_lm import Prefix


@dataclass(eq=False)
class RadixNode:
    """A node of the tree.

    Args:
        edge: the tokens from the parent to here.
        parent: None for a root.
        children: by the first token of their edges.
        prefix: what is kept of all tokens from the root to here; None if nothing ends here.
        salt: of a root.
    """

    edge: tuple[int, ...] = ()
    parent: RadixNode | None = None
    children: dict[int, RadixNode] = field(default_factory=dict)
    prefix: Prefix | None = None
    salt: Hashable = None

    @property
    def with_prefix(self) -> RadixNode:
        """This node or one below that holds a prefix; there is one at the end of every branch."""
        node = self
        while node.prefix is None:
            node = next(iter(node.children.values()))
        return node


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of first tokens that two lists, or two tuples, share."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high - 1:  # the first `low` are equal, the first `high` are not
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


class PrefixStore:
    """Prefixes by their tokens.

    Args:
        max_bytes: most bytes of all prefixes; a function is asked when the first one comes.
    """

    num_tokens: int = 0
    """Tokens that the edges stand for, shared ones counted once."""
    num_bytes: int = 0
    """Memory of all prefixes."""

    def __init__(self, max_bytes: int | Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._roots: dict[Hashable, RadixNode] = {}  # by salt; none without a prefix below
        self._by_use: OrderedDict[RadixNode, None] = OrderedDict()  # those with a prefix, the least recently used first

    def __len__(self) -> int:
        return len(self._by_use)

    @property
    def max_bytes(self) -> int:
        """Most bytes of all prefixes."""
        if callable(self._max_bytes):
            self._max_bytes = self._max_bytes()
        return self._max_bytes

    def match(self, tokens: Sequence[int], salt: Hashable = None) -> tuple[Prefix | None, int]:
        """The prefix of a salt with the most of the first tokens, and how many of them it has."""
        root = self._roots.get(salt)
        node, num_matched, _ = (RadixNode(), 0, 0) if root is None else _walk(root, tuple(tokens))
        if num_matched == 0:
            return None, 0
        holder = node.with_prefix
        assert holder.prefix is not None
        self._touch(holder)
        return holder.prefix, min(num_matched, holder.prefix.num_tokens)

    def add(self, tokens: Sequence[int], prefix: Prefix, salt: Hashable = None) -> bool:
        """Keep a prefix of tokens; whether it is kept: not if it is there already, or is too large.

        What is not kept is the caller's, who must release it.
        """
        tokens = tuple(tokens[: prefix.num_tokens])
        if not tokens or prefix.num_bytes > self.max_bytes:
            return False
        node, num_matched, num_on_edge = _walk(self._roots.setdefault(salt, RadixNode(salt=salt)), tokens)
        if num_on_edge < len(node.edge):
            node = self._divide(node, num_on_edge)
        if num_matched < len(tokens):
            child = RadixNode(tokens[num_matched:], node)
            node.children[tokens[num_matched]] = child
            self.num_tokens += len(child.edge)
            node = child
        elif node.prefix is not None:
            self._touch(node)
            return False
        node.prefix = prefix
        self._by_use[node] = None
        self.num_bytes += prefix.num_bytes
        self._touch(node)
        while self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._by_use)))
        return True

    def clear(self) -> None:
        """Release all prefixes."""
        while self._by_use:
            self._drop(next(iter(self._by_use)))

    def _divide(self, node: RadixNode, num_on_edge: int) -> RadixNode:
        """Put a node on an edge, behind its first tokens."""
        parent = node.parent
        assert parent is not None
        upper = RadixNode(node.edge[:num_on_edge], parent, {node.edge[num_on_edge]: node})
        parent.children[node.edge[0]] = upper
        node.edge, node.parent = node.edge[num_on_edge:], upper
        return upper

    def _touch(self, node: RadixNode) -> None:
        """A prefix was used, and with it those that it stands on, which must stay longer."""
        above: RadixNode | None = node
        while above is not None:
            if above in self._by_use:
                self._by_use.move_to_end(above)
            above = above.parent

    def _drop(self, node: RadixNode) -> None:
        """Release a prefix, and take out the nodes that nothing is below of."""
        assert node.prefix is not None
        del self._by_use[node]
        self.num_bytes -= node.prefix.num_bytes
        node.prefix.release()
        node.prefix = None
        while node.parent is not None and not node.children and node.prefix is None:
            del node.parent.children[node.edge[0]]
            self.num_tokens -= len(node.edge)
            node = node.parent
        if node.parent is None and not node.children:
            del self._roots[node.salt]


def _walk(node: RadixNode, tokens: tuple[int, ...]) -> tuple[RadixNode, int, int]:
    """The node on whose edge the tokens part with the tree, how many matched in all, and how many on that edge."""
    num_matched = 0
    while num_matched < len(tokens):
        child = node.children.get(tokens[num_matched])
        if child is None:
            break
        rest = tokens[num_matched : num_matched + len(child.edge)]
        num_on_edge = num_common(child.edge, rest)
        num_matched += num_on_edge
        if num_on_edge < len(child.edge):
            return child, num_matched, num_on_edge
        node = child
    return node, num_matched, len(node.edge)
