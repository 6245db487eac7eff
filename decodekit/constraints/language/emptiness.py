"""Whether an intersection or a complement has any word: decided by exploring its derivatives, and remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from decodekit.errors import ResourceLimitError

if TYPE_CHECKING:
    from decodekit.constraints.language.ir import Node

MAX_SEARCH_STATES: Final = 10_000
"""Bound on the nodes that one search may explore."""
MAX_SEARCH_ROWS: Final = 2_000_000
"""Bound on the transitions of these nodes, each counted once for every condition of its intersection: their time."""

_emptiness: WeakKeyDictionary[Node, bool] = WeakKeyDictionary()

deciders: list[Callable[[Node], bool | None]] = []
"""What answers for languages whose words it can read in larger steps than bytes; None for all other nodes."""


def _decided(node: Node) -> bool | None:
    """Whether a node is empty, if that is known or some decider knows it."""
    known = _emptiness.get(node)
    if known is None:
        for decide in deciders:
            known = decide(node)
            if known is not None:
                _emptiness[node] = known
                break
    return known


def _width(node: Node) -> int:
    """Number of conditions of an intersection."""
    return len(getattr(node, "operands", ()))


def search_is_empty(root: Node) -> bool:
    """Whether `root` has no word: a depth-first search for a derivative that has the empty word.

    What it learns is kept for every node that it decides, as long as the node lives.

    Raises:
        ResourceLimitError: it explored `MAX_SEARCH_STATES` nodes, or their many transitions, without a decision.
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
                _emptiness[found] = False
                found = parents[found]
            return False
        if known:
            continue
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
        _emptiness[node] = True
    return True
