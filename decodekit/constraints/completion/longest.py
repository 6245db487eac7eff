"""The most bytes of a text of a constraint: those of the longest word of its frames, None where there is none."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import repeat
from typing import Final, TypeAlias

from decodekit.constraints.language.ir import EPSILON, Product, Repeat
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.registry import Narrowed
from decodekit.constraints.language.shortest import words_by_length
from decodekit.constraints.network import Call, Frame, Read, Return
from decodekit.errors import ResourceLimitError

MAX_STEPS: Final = 50_000
"""Bound on the frames and lexical nodes that are looked at."""

_Way: TypeAlias = tuple[int, tuple[Frame, ...]]
"""Bytes, and the frames whose words follow."""


def most_bytes(root: Frame) -> int | None:
    """The length of the longest text; None if there is no bound.

    A frame that comes back to itself has no bound, since whatever a frame offers can be completed. Where what follows a
    captured lexeme depends on its text, a shortest one stands for all.
    """
    most: dict[Frame, int] = {}
    ways_of: dict[Frame, list[_Way]] = {}
    steps = _steps_left()
    # From the root to the frame in question: no recursion, texts may be deep.
    path: dict[Frame, None] = {root.outward(): None}
    while path:
        frame = next(reversed(path))
        if frame not in ways_of:
            found = _ways(frame, steps)
            if found is None:
                return None
            ways_of[frame] = found
        unknown = next((part for _, parts in ways_of[frame] for part in parts if part not in most), None)
        if unknown is None:
            most[frame] = max((num + sum(most[part] for part in parts) for num, parts in ways_of[frame]), default=0)
            del path[frame]
        elif unknown in path:
            return None
        else:
            path[unknown] = None
    return most[root.outward()]


def _steps_left() -> Iterator[None]:
    """One for each node and edge that may be looked at; to ask for more is an error."""
    yield from repeat(None, MAX_STEPS)
    raise ResourceLimitError(f"more than {MAX_STEPS:,} steps are needed to tell how long a text can get")


def _ways(frame: Frame, steps: Iterator[None]) -> list[_Way] | None:
    """The ways through a frame, those that are longest of their kind; None if a lexeme has no bound."""
    next(steps)
    ways: list[_Way] = []
    for move in frame.moves():
        if isinstance(move, Return):
            ways.append((0, ()))
        elif isinstance(move, Call):
            ways.append((0, (move.callee.outward(), move.then.outward())))
        elif isinstance(move, Read) and not move.node.is_empty:
            words = _longest_words(move.node, steps)
            if words is None:
                return None
            for label, length in words.items():
                text = b""
                if move.capture:  # a shortest word with the label, which some word has
                    layers = words_by_length(move.node)
                    text = next(word for layer in layers for word, known in layer if known == label)
                ways += [(length, (after.outward(),)) for after in (move.reader or frame).after(label, text)]
    return ways


def _longest_words(node: Node, steps: Iterator[None]) -> dict[Hashable, int] | None:
    """By label, the length of the longest word; None if words have no bound."""
    order: list[Node] = []  # each node after all that can follow it
    successors: dict[Node, list[tuple[Node, int]]] = {}
    stack: list[tuple[Node, bool]] = [(node, False)]
    on_path: set[Node] = set()
    while stack:
        current, is_done = stack.pop()
        if is_done:
            on_path.discard(current)
            order.append(current)
            continue
        if current in successors:
            continue
        next(steps)
        following = _following(current, steps)
        if following is None:
            return None
        successors[current] = following
        on_path.add(current)
        stack.append((current, True))
        for target, _ in following:
            if target in on_path:
                return None  # every node is alive, so a cycle is a word without bound
            stack.append((target, False))
    # Forward, in topological order: the longest way to each node.
    longest = {node: 0}
    found: dict[Hashable, int] = {}
    for current in reversed(order):
        length = longest[current]
        for label in current.labels:
            found[label] = max(found.get(label, 0), length)
        for target, step in successors[current]:
            longest[target] = max(longest.get(target, 0), length + step)
    return found


def _following(node: Node, steps: Iterator[None]) -> list[tuple[Node, int]] | None:
    """The nodes that a longest word of a node may go on with, and the bytes before each; None if no word is longest.

    Counted characters are read at once: a text of at most 32,767 characters would have half a million places.
    """
    narrowed = node if isinstance(node, Narrowed) and node.is_by_parts else None
    inner = node if narrowed is None else narrowed.node
    head, tail = (inner.head, inner.tail) if isinstance(inner, Product) else (inner, EPSILON)
    if not isinstance(head, Repeat) or head.is_labelled or head.can_be_empty:
        return [(target, 1) for _, target in node.transitions() if not target.is_empty]
    if narrowed is not None:
        tail = narrowed.narrowed(tail)
    body = head.body if narrowed is None else narrowed.narrowed(head.body)
    words = {} if head.max is None else _longest_words(body, steps)
    if not words:
        return None
    assert head.max is not None
    return [(tail, head.max * words[None])]
