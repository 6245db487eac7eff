"""The node of a regular language, as the engine sees it: its derivatives by each byte, and whether it has any word.

A node for ``ab|b`` has the transitions ``a -> b`` and ``b -> ""``; the node of ``""`` is nullable and has none. Whether
a node has a word at all is plain for most; for an intersection or a complement `search_is_empty` explores what follows
until it meets a node that is nullable, and remembers what it learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, TypeAlias

from decodekit.constraints.language.blocks import Block
from decodekit.constraints.work_budget import spend
from decodekit.errors import ResourceLimitError

ByteMask: TypeAlias = int
"""A set of bytes: bit b of a 256-bit integer."""

Transitions: TypeAlias = "tuple[tuple[ByteMask, Node], ...]"
"""Disjoint, non-empty byte sets with what remains after any of their bytes; other bytes lead to `EMPTY`."""

MAX_SEARCH_STATES: Final = 10_000
"""Bound on the nodes that one search may explore."""
MAX_SEARCH_ROWS: Final = 2_000_000
"""Bound on the transitions of these nodes, each counted once for every condition of its intersection: their time."""


class Node:
    """A regular language of bytes. Immutable, compared by value; for the nodes of this module that is identity.

    A front end may add its own lazily derived nodes: give `transitions` and `labels`, and value equality with a hash
    (a frozen dataclass does), so that equal remainders are recognised.
    """

    # No ABC: its instance checks take a quarter of the time of making derivatives.

    __slots__ = ()

    @property
    def can_be_empty(self) -> bool:
        """Whether the language may be empty although the constructors did not see it. False skips the search."""
        return True

    @property
    def is_labelled(self) -> bool:
        """Whether a word may end with a label other than None."""
        return True

    @property
    def has_counts(self) -> bool:
        """Whether `saturated` may differ from the node itself."""
        return False

    @property
    def label_range(self) -> tuple[int, int] | None:
        """The labels of all words are the numbers from the first to before the second; None if a node does not know."""
        return None

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """The labels with which the empty word ends here: ``()`` if it is not a word, ``(None,)`` without a label."""
        raise NotImplementedError(f"{type(self).__name__} has no labels")

    def transitions(self) -> Transitions:
        """The derivatives by each possible first byte. Targets are never `EMPTY` itself but may be empty languages."""
        raise NotImplementedError(f"{type(self).__name__} has no transitions")

    def possible_bytes(self) -> ByteMask:
        """Bytes among which are all that a word may begin with; told without derivatives where that is simple."""
        mask = 0
        for row, _ in self.transitions():
            mask |= row
        return mask

    def block(self) -> Block[Node] | None:
        """The states of all remainders at once, if the node is a list of words that can give them; else None."""
        return None

    def forget(self) -> None:
        """Let go of what `transitions` keeps, where it is cheap to make again: somebody has written it down."""

    def saturated(self, limit: int) -> Node:
        """A node with the same derivatives and ends for the next `limit` bytes, with counts beyond them forgotten.

        X{0,900} and X{0,800} are both X{0,} to who looks no further than 16 bytes. Complements stay as they are, and so
        do intersections but for those with a bound that is out of sight (see `Both`), because their counts decide
        together what is empty.
        """
        return self._saturate(limit) if self.has_counts else self

    def _saturate(self, limit: int) -> Node:
        return self

    def bounds(self) -> tuple[int, int] | None:
        """Bytes that suffice for a word, and bytes that suffice to complete any beginning of one; None if not known."""
        return None

    @property
    def is_nullable(self) -> bool:
        """Whether the empty word belongs to the language."""
        return bool(self.labels)

    def derivative(self, byte: int) -> Node:
        """The words that follow `byte` (0..255)."""
        bit = 1 << byte
        for mask, target in self.transitions():
            if mask & bit:
                return target
        return EMPTY

    @property
    def is_empty(self) -> bool:
        """Whether the language has no word; exact."""
        return self.can_be_empty and self._is_empty()

    def _is_empty(self) -> bool:
        return search_is_empty(self)

    def known_emptiness(self) -> bool | None:
        """Whether a search has found the language to have no word; None if there was none yet."""
        return _emptiness.get(self)

    def remember_emptiness(self, is_empty: bool) -> None:
        """Keep what a search has found out."""
        _emptiness[self] = is_empty


class Empty(Node):
    """The language without words."""

    __slots__ = ()

    is_labelled = False  # there is no word
    labels = ()

    def transitions(self) -> Transitions:
        """None."""
        return ()

    def _is_empty(self) -> bool:
        return True

    def __reduce__(self) -> str:
        return "EMPTY"

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Final[Node] = Empty()
"""The language without words."""


# -- whether a language has a word

_emptiness: dict[Node, bool] = {}  # of nodes that do not keep it themselves

forgetters: list[Callable[[], object]] = [_emptiness.clear]
"""What lets go of the answers about nodes that somebody keeps; `ir.sweep` asks for it."""

deciders: list[Callable[[Node], bool | None]] = []
"""What answers for languages whose words it can read in larger steps than bytes; None for all other nodes."""


def _decided(node: Node) -> bool | None:
    """Whether a node is empty, if that is known or some decider knows it."""
    known = node.known_emptiness()
    if known is None:
        known = next((told for decide in deciders if (told := decide(node)) is not None), None)
        if known is not None:
            node.remember_emptiness(known)
    return known


def _width(node: Node) -> int:
    return len(getattr(node, "operands", ()))


def search_is_empty(root: Node) -> bool:
    """Whether `root` has no word: a bounded depth-first search for a derivative that has the empty word.

    What it learns is kept for every node that it decides, as long as the node lives.
    """
    known = _decided(root)
    if known is not None:
        return known
    parents: dict[Node, Node | None] = {root: None}
    stack = [root]
    num_rows = 0
    while stack:
        node = stack.pop()
        known = None if node is root else _decided(node)
        if node.is_nullable or known is False or not node.can_be_empty:
            found: Node | None = node
            while found is not None:
                found.remember_emptiness(False)
                found = parents[found]
            return False
        if known:
            continue
        if getattr(node, "_transitions", None) is None:  # made now, and kept where the node keeps them
            spend()
        # Successors with fewer open ends first (they are popped last-in first-out): nullable ones decide at once.
        transitions = node.transitions()
        num_rows += len(transitions) * (1 + _width(node))
        successors = [target for _, target in transitions if target not in parents]
        # Then those with fewer conditions left: an intersection loses an operand that everything satisfies.
        successors.sort(key=lambda target: (target.is_nullable or not target.can_be_empty, -_width(target)))
        for target in successors:
            parents[target] = node
            stack.append(target)
        if len(parents) > MAX_SEARCH_STATES or num_rows > MAX_SEARCH_ROWS:
            raise ResourceLimitError(
                f"more than {len(parents) - 1:,} states are needed to tell whether an intersection is empty",
                hint="use fewer or simpler patterns together",
            )
    for node in parents:
        node.remember_emptiness(True)
    return True
