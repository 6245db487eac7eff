"""Slow twin of decisions: every admitted spelling of every choice, with a fresh forward pass for each token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

Admits = Callable[[tuple[int, ...], bytes], list[int]]
"""The tokens that may follow some tokens, with their bytes; those that end the text aside."""


def any_spelling(choices: Sequence[bytes], pieces: Sequence[bytes | None]) -> Admits:
    """All tokens with which the text is the beginning of a choice."""

    def admits(tokens: tuple[int, ...], text: bytes) -> list[int]:
        return [
            token
            for token, piece in enumerate(pieces)
            if piece and any(one.startswith(text + piece) for one in choices)
        ]

    return admits


def own_cut(cuts: Collection[Sequence[int]]) -> Admits:
    """The tokens with which the cut of a choice goes on."""

    def admits(tokens: tuple[int, ...], text: bytes) -> list[int]:
        n = len(tokens)
        return sorted({cut[n] for cut in cuts if len(cut) > n and tuple(cut[:n]) == tokens})

    return admits


def choice_law(
    fresh: Callable[[list[int]], Tensor],
    prompt: Sequence[int],
    choices: Sequence[bytes],
    pieces: Sequence[bytes | None],
    end_ids: Collection[int],
    admits: Admits,
    *,
    process: Callable[[Tensor], Tensor] = lambda logits: logits,
    renormalises: bool = True,
) -> dict[bytes, float]:
    """The probability of every choice, given that the text becomes whole.

    Args:
        fresh: logits [V] after some tokens.
        prompt: tokens.
        choices: as bytes.
        pieces: bytes of the tokens.
        end_ids: tokens that end a text.
        admits: the mask.
        process: what logits go through, those of masked tokens being -inf.
        renormalises: False is a negative control: masked tokens keep their share of the distribution.
    """
    law = dict.fromkeys(choices, 0.0)

    def walk(tokens: tuple[int, ...], text: bytes, p: float) -> None:
        allowed, is_whole = admits(tokens, text), text in law
        if is_whole and not allowed:
            law[text] += p
            return
        ends = [*end_ids] if is_whole else []
        if not allowed and not ends:
            return  # a dead end
        logits = fresh([*prompt, *tokens]).double()
        if renormalises:
            kept = torch.full_like(logits, -torch.inf)
            kept[[*allowed, *ends]] = logits[[*allowed, *ends]]
            logits = process(kept)
        row = torch.softmax(logits, dim=-1).tolist()
        for token in ends:
            law[text] += p * row[token]
        for token in allowed:
            walk((*tokens, token), text + (pieces[token] or b""), p * row[token])

    walk((), b"", 1.0)
    total = sum(law[choice] for choice in choices)
    return {choice: law[choice] / total for choice in choices}


def part_law(
    fresh: Callable[[list[int]], Tensor],
    prompt: Sequence[int],
    matcher: Any,
    pieces: Sequence[bytes | None],
    before: bytes,
    values: Sequence[bytes],
) -> list[float]:
    """The probability of every value that a longer text may have where `before` comes first.

    No value is the beginning of another one but in front of what ends it, so the longest that fits is meant.
    """
    law = [0.0] * len(values)

    def walk(tokens: tuple[int, ...], text: bytes, state: Any, p: float) -> None:
        logits = fresh([*prompt, *tokens]).double()
        allowed = [token for token in range(len(logits)) if state.validate([token])]
        kept = torch.full_like(logits, -torch.inf)
        kept[allowed] = logits[allowed]
        row = torch.softmax(kept, dim=-1).tolist()
        for token in allowed:
            longer = text + (pieces[token] or b"")
            is_open = any((before + value).startswith(longer) for value in values) and pieces[token] is not None
            if is_open:
                after = state.fork()
                assert after.accept(token)
                walk((*tokens, token), longer, after, p * row[token])
                continue
            ended = [number for number, value in enumerate(values) if longer.startswith(before + value)]
            if ended:
                law[max(ended, key=lambda number: len(values[number]))] += p * row[token]

    walk((), b"", matcher, 1.0)
    return [share / sum(law) for share in law]
