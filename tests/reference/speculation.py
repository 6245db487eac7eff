"""Longest matches, likeliest paths and the laws of short texts by trying everything."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from decodekit.sampling import History


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


def text_law(
    strategy: Any, after: Callable[[int], Tensor], prompt: Sequence[int], num_tokens: int, matcher: Any = None
) -> dict[tuple[int, ...], float]:
    """The probability of every text, one token after the other: mask, pipeline and Mirostat on one row at a time.

    Args:
        strategy: draws from the softmax of what its pipeline leaves.
        after: logits float32 [V] of the token after a token.
        prompt: token ids.
        num_tokens: most tokens of a text.
        matcher: the constraint; a text ends where it is complete or has ended, and where no token may come.
    """
    texts: dict[tuple[int, ...], float] = {}

    def extend(text: list[int], probability: float, state: Any, mu: Tensor | None) -> None:
        is_done = state is not None and (state.is_terminated or (state.is_accepting and not state.can_continue))
        if is_done or len(text) == num_tokens:
            texts[tuple(text)] = probability
            return
        logits = after([*prompt, *text][-1])
        mask = None
        if state is not None:
            mask = torch.zeros(1, -(-len(logits) // 32), dtype=torch.int32)
            state.fill_bitmask(mask.numpy())
        rows = strategy.pipeline(logits[None], History.from_lists([list(prompt)], [text]), mask)
        if float(rows.max()) == -math.inf:  # a dead end
            texts[tuple(text)] = probability
            return
        kept = rows if mu is None else strategy.mirostat.process(rows, mu)
        law = kept[0].double().softmax(-1).tolist()
        for token, p in enumerate(law):
            if p == 0:
                continue
            following = None if state is None else state.fork()
            assert following is None or following.accept(token)
            moved = None if mu is None else strategy.mirostat.advance(mu, rows, kept, torch.tensor([token]))
            extend([*text, token], probability * p, following, moved)

    start = None if strategy.mirostat is None else strategy.mirostat.start(1)
    extend([], 1.0, None if matcher is None else matcher.fork(), start)
    return texts
