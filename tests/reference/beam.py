"""Slow twins of beam search: every text, and a search over lists."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import torch

from tests.reference.generation import Law

Text = tuple[int, ...]


def text_log_prob(law: Law, prompt: Sequence[int], text: Sequence[int]) -> float:
    """The log-probability of a text, token by token."""
    total = 0.0
    for place, token in enumerate(text):
        total += float(torch.log_softmax(law([*prompt, *text[:place]]), dim=-1)[token])
    return total


def all_texts(vocab_size: int, max_tokens: int, eos_token_ids: frozenset[int]) -> Iterator[Text]:
    """Every text that ends with an end-of-sequence token, or has `max_tokens` tokens."""
    for length in range(1, max_tokens + 1):
        for text in itertools.product(range(vocab_size), repeat=length):
            if any(token in eos_token_ids for token in text[:-1]):
                continue
            if text[-1] in eos_token_ids or length == max_tokens:
                yield text


def texts_of_words(words: Collection[bytes], pieces: Sequence[bytes], max_tokens: int) -> set[Text]:
    """Every text of `max_tokens` tokens at most that is a word; the token behind `pieces` ends one that could go on.

    Args:
        words: a language, as far as longer words than these fit into no budget.
        pieces: the bytes of the tokens.
        max_tokens: of a text. One with so many needs no token that ends it.
    """
    found: set[Text] = set()
    beginnings = {word[:end] for word in words for end in range(len(word))}
    for length in range(max_tokens + 1):
        for text in itertools.product(range(len(pieces)), repeat=length):
            word = b"".join(pieces[token] for token in text)
            if word in words:
                is_over = word not in beginnings or length == max_tokens
                found.add(text if is_over else (*text, len(pieces)))
    return found


def best_texts(
    law: Law,
    prompt: Sequence[int],
    vocab_size: int,
    max_tokens: int,
    eos_token_ids: frozenset[int],
    penalty: float,
    world: Collection[Text] = (),
) -> list[tuple[float, Text]]:
    """Every text, of a world if one is given, with its score, best first."""
    every = world or all_texts(vocab_size, max_tokens, eos_token_ids)
    return sorted(((text_log_prob(law, prompt, text) / len(text) ** penalty, text) for text in every), reverse=True)


def diverse_beam_search(
    law: Law,
    prompt: Sequence[int],
    vocab_size: int,
    max_tokens: int,
    eos_token_ids: frozenset[int],
    *,
    num_groups: int,
    group_size: int,
    diversity_penalty: float,
    length_penalty: float,
    world: Collection[Text] = (),
) -> list[tuple[float, Text]]:
    """Vijayakumar et al. 2016, algorithm 1, over lists; all ended texts of all groups with their scores, best first.

    The penalties stay in the sums.

    Texts are given up as transformers does: a group is over when `group_size` texts have ended and its best hypothesis
    has no better score at its present length than the worst of these. With a world, hypotheses are the beginnings of
    its texts.
    """
    world = world or {*all_texts(vocab_size, max_tokens, eos_token_ids)}
    beginnings = {text[:end] for text in world for end in range(len(text) + 1)}

    def score(text: Text, log_prob: float) -> float:
        return log_prob / len(text) ** length_penalty

    live: list[list[tuple[Text, float]]] = [[((), 0.0)] for _ in range(num_groups)]
    ended: list[list[tuple[float, Text]]] = [[] for _ in range(num_groups)]
    for _ in range(max_tokens):
        taken: list[int] = []
        for group in range(num_groups):
            if not live[group]:
                continue
            options = []
            for text, log_prob in live[group]:
                step = torch.log_softmax(law([*prompt, *text]), dim=-1).tolist()
                for token in range(vocab_size):
                    total = log_prob + step[token] - diversity_penalty * taken.count(token)
                    if (*text, token) in beginnings:
                        options.append((total, (*text, token)))
            options.sort(reverse=True)
            options = options[: max(2, 1 + len(eos_token_ids)) * group_size]
            ends = [text in world for _, text in options]
            ended[group] += [
                (score(text, total), text)
                for (total, text), has_ended in list(zip(options, ends, strict=True))[:group_size]
                if has_ended
            ]
            ended[group] = sorted(ended[group], reverse=True)[:group_size]
            going = [(text, total) for (total, text), has_ended in zip(options, ends, strict=True) if not has_ended]
            going = sorted(going, key=lambda one: -one[1])[:group_size]
            is_full = len(ended[group]) == group_size
            if is_full and going and score(*going[0]) <= ended[group][-1][0]:
                going = []
            live[group] = going
            taken += [text[-1] for text, _ in going]
    return sorted((one for group in ended for one in group), reverse=True)
