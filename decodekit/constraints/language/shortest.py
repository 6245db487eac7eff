"""Short words of a regular language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from operator import itemgetter
from typing import Final, TypeAlias

from decodekit.constraints.language.ir import ALL_BYTES, label_range
from decodekit.constraints.language.node import ByteMask, Node

Word: TypeAlias = tuple[bytes, Hashable]
"""A word of a regular language, and its label."""

_PREFERRED: Final = tuple(b"a01") + tuple(range(0x21, 0x7F)) + tuple(range(256))


def words_by_length(
    node: Node,
    count: Callable[[], None] | None = None,
    usable: ByteMask = ALL_BYTES,
    permitted: bytes | None = None,
    *,
    again: bool = False,
) -> Iterator[list[Word]]:
    """Words of a regular language with their labels: those of length 0, of length 1, and so on; some lists are empty.

    Args:
        count: called for every remainder that is found; it may raise to bound the search.
        usable: the bytes that a word may have.
        permitted: one byte for each label, 1 if words may end with it; None if any label will do.
        again: a word of every length for each remainder that can end. Else one in all, a shortest one.
    """
    seen = {node}
    layer = [(b"", node)]
    while layer:
        yield [(word, label) for word, rest in layer for label in rest.labels if is_permitted(label, permitted)]
        following: list[tuple[bytes, Node]] = []
        if again:
            seen.clear()
        for word, rest in layer:
            for mask, target in rest.transitions():
                if target not in seen and mask & usable and not target.is_empty and _leads_on(target, permitted):
                    if count is not None:
                        count()
                    seen.add(target)
                    following.append((word + bytes((representative(mask & usable),)), target))
        layer = following


def is_permitted(label: Hashable, permitted: bytes | None) -> bool:
    """Whether a label is in a selection; labels that are not numbers always are."""
    return permitted is None or type(label) is not int or bool(permitted[label])


def _leads_on(node: Node, permitted: bytes | None) -> bool:
    """Whether some word may end with a permitted label."""
    labels = None if permitted is None or not node.is_labelled else label_range(node)
    return permitted is None or labels is None or 1 in permitted[slice(*labels)]


def few_by_length(
    node: Node,
    num_each: int,
    count: Callable[[], None] | None = None,
    usable: ByteMask = ALL_BYTES,
    permitted: bytes | None = None,
) -> Iterator[list[Word]]:
    """The first words of each label among `words_by_length`, equally long ones in the order of their bytes.

    The search ends with the last label if the node says which ones there are, and else with the last remainder, of
    which a text of at most 32,767 characters has so many.
    """
    num_labels = None if node.is_labelled else 1
    if node.is_labelled and node.label_range is not None:
        low, high = node.label_range
        num_labels = high - low if permitted is None else permitted[low:high].count(1)
    num_seen: Counter[Hashable] = Counter()
    num_full = 0
    for layer in words_by_length(node, count, usable, permitted):
        few = []
        for word, label in sorted(layer, key=itemgetter(0)):
            num_seen[label] += 1
            num_full += num_seen[label] == num_each
            if num_seen[label] <= num_each:
                few.append((word, label))
        yield few
        if num_full == num_labels:
            return


def shortest_word(node: Node, count: Callable[[], None] | None = None, usable: ByteMask = ALL_BYTES) -> Word | None:
    """A shortest word of a regular language; None if it has none."""
    return next((word for layer in words_by_length(node, count, usable) for word in layer), None)


@lru_cache(maxsize=65_536)
def representative(mask: ByteMask) -> int:
    """One byte of a set, a letter or digit if there is one."""
    return next(byte for byte in _PREFERRED if mask >> byte & 1)
