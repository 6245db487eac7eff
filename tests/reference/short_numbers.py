"""Which words of a language are short, from the list of its words: nothing is derived, nothing is searched for."""

from __future__ import annotations

from collections.abc import Set


def short_words(words: Set[bytes], most: int) -> set[bytes]:
    """The words of at most so many bytes, and those that end soonest of all that begin with the same `most` bytes.

    Args:
        words: of a language, at least all those that may be wanted and the shortest of each beginning.
        most: the bytes.
    """
    soonest: dict[bytes, int] = {}
    for word in words:
        soonest[word[:most]] = min(len(word), soonest.get(word[:most], len(word)))
    return {word for word in words if len(word) <= most or len(word) == soonest[word[:most]]}
