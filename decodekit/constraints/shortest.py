"""Short words of a regular language."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from typing import Final

from decodekit.constraints.ir import ByteMask, Node

_PREFERRED: Final = tuple(b"a01") + tuple(range(0x21, 0x7F)) + tuple(range(256))


def shortest_words(node: Node, count: Callable[[], None] | None = None) -> Iterator[tuple[bytes, Hashable]]:
    """Words of a regular language with their labels, shortest first: one for each remainder that can end.

    Args:
        node: the language.
        count: called for every remainder that is found; it may raise to bound the search.
    """
    seen = {node}
    layer = [(b"", node)]
    while layer:
        following: list[tuple[bytes, Node]] = []
        for word, rest in layer:
            for label in rest.labels:
                yield word, label
            for mask, target in rest.transitions():
                if target not in seen and not target.is_empty:
                    if count is not None:
                        count()
                    seen.add(target)
                    following.append((word + bytes((representative(mask),)), target))
        layer = following


@lru_cache(maxsize=65_536)
def representative(mask: ByteMask) -> int:
    """One byte of a set, a letter or digit if there is one."""
    return next(byte for byte in _PREFERRED if mask >> byte & 1)
