"""The slow twin of decoding with a guard: no cache, no batch, each row of logits from scratch, bans in a dict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from decodekit.constraints.constraint import Guard, Refusal
from decodekit.vocabulary import Vocabulary
from tests.reference.generation import Law

Choose = Callable[[Tensor, list[int], list[int]], int]


def is_final(matcher: Any, vocabulary: Vocabulary) -> bool:
    """Whether the language accepts the text and no token can follow; `matcher` has no guard."""
    others = [token for token in range(vocabulary.size) if token not in vocabulary.eos_token_ids]
    return matcher.is_accepting and not any(matcher.validate([token]) for token in others)


def guarded_decode(
    law: Law,
    prompt: Sequence[int],
    choose: Choose,
    vocabulary: Vocabulary,
    matcher: Any,
    guard: Guard,
    *,
    max_new_tokens: int,
    max_rollbacks: int = 64,
    refuses_prefix: Callable[[bytes], Refusal | None] = lambda text: None,
) -> tuple[list[int], str, int]:
    """Token ids, finish reason, and number of rollbacks.

    Args:
        matcher: of the language without the guard, at its beginning.
        refuses_prefix: why the guard refuses all texts with a beginning.
    """
    tokens: list[int] = []
    bans: dict[tuple[int, ...], set[int]] = {}  # by prefix; forgotten when the text goes back behind it
    num_rollbacks = 0

    def num_allowed(matcher: Any, text: list[int]) -> int:
        here = matcher.fork()
        assert all(here.accept(token) for token in text)
        return sum(bool(here.validate([token])) for token in range(vocabulary.size))

    def distance_back(number: int) -> int:
        lubys = [1]
        while len(lubys) < number:
            lubys = [*lubys, *lubys, 2 * lubys[-1]]
        return lubys[number - 1]

    while True:
        here = matcher.fork()
        assert all(here.accept(token) for token in tokens)
        if tokens and tokens[-1] in vocabulary.eos_token_ids:
            return tokens, "stop", num_rollbacks
        if tokens and is_final(here, vocabulary):
            return tokens, "complete", num_rollbacks
        if len(tokens) == max_new_tokens:
            return tokens, "length", num_rollbacks
        logits = law([*prompt, *tokens]).clone()
        banned = bans.get(tuple(tokens), set())
        far: dict[int, int] = {}  # tokens whose refusal takes back more than themselves, with what can stay
        for token in range(len(logits)):
            text = vocabulary.decode([*tokens, token])
            is_allowed = bool(here.validate([token])) and token not in banned
            if is_allowed:
                after = here.fork()
                after.accept(token)
                is_end = token in vocabulary.eos_token_ids or is_final(after, vocabulary)
                refusal = guard.refuses(text) if is_end else refuses_prefix(text)
                if refusal is not None:
                    keep = longest_within(tokens, refusal.keep, vocabulary)
                    if keep == len(tokens) and (is_end or not tokens):
                        is_allowed = False
                    else:  # what is refused early counts as taken back, if only by no token
                        far[token] = keep
            if not is_allowed:
                logits[token] = -math.inf
        token = -1
        if logits.max() == -math.inf:
            place = len(tokens) - 1
        else:
            token = choose(logits, list(prompt), tokens)
            if token not in far:
                tokens.append(token)
                continue
            place = far[token]
        if not tokens or num_rollbacks == max_rollbacks:
            return tokens, "dead_end", num_rollbacks
        num_rollbacks += 1
        begin, end = max(0, place - distance_back(num_rollbacks) + 1), place if token < 0 else len(tokens)
        with_choice = [n for n in range(end + 1) if n == len(tokens) or num_allowed(matcher, tokens[:n]) > 1]
        place = next((n for n in with_choice if n >= begin), max(with_choice, default=0))  # ahead, or else before
        bans = {prefix: ids for prefix, ids in bans.items() if len(prefix) <= place}
        bans.setdefault(tuple(tokens[:place]), set()).add([*tokens, token][place])
        tokens = tokens[:place]


def longest_within(tokens: Sequence[int], keep: int, vocabulary: Vocabulary) -> int:
    """The largest number of tokens whose bytes lie within the first `keep`."""
    return max(n for n in range(len(tokens) + 1) if len(vocabulary.decode(tokens[:n])) <= keep)
