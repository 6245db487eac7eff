"""Longest matches and likeliest paths by trying everything, and the draft length that is best."""

from __future__ import annotations

from collections.abc import Sequence


def matches(tokens: Sequence[int], text: Sequence[int], length: int) -> list[int]:
    """Indices of the tokens behind every occurrence of the last `length` tokens of `text`; -1 is no token."""
    ending = list(text[len(text) - length :])
    return [
        end for end in range(length, len(tokens)) if list(tokens[end - length : end]) == ending and tokens[end] != -1
    ]


def longest_match(tokens: Sequence[int], text: Sequence[int], max_match: int) -> tuple[list[int], int]:
    """The matches of the longest ending that has any."""
    for length in range(min(max_match, len(text)), 0, -1):
        if found := matches(tokens, text, length):
            return found, length
    return [], 0


def likeliest_path(
    tokens: Sequence[int], places: Sequence[int], max_tokens: int, min_probability: float
) -> tuple[list[int], float]:
    """At every token of the path all places are looked at anew: which go along, and what comes then."""
    path: list[int] = []
    share, expected = 1.0, 0.0
    while len(path) < max_tokens:
        there = [p + len(path) for p in places if list(tokens[p : p + len(path)]) == path]
        following = [tokens[p] for p in there if p < len(tokens)]
        candidates = [token for token in following if token != -1]
        if not candidates:
            break
        last_at = {token: index for index, token in enumerate(following)}
        token = max(candidates, key=lambda one: (following.count(one), last_at[one]))
        share *= following.count(token) / len(following)
        if share < min_probability:
            break
        path.append(token)
        expected += share
    return path, expected
