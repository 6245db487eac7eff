"""Measures of repetition, in and among texts: distinct-n, rep-n and self-BLEU, as functions of words.

Words are runs of letters, and single digits and marks, so that figures of models with different tokenizers compare, and
a number that goes on for ever is repetition.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

Words: TypeAlias = Sequence[str]
NGram: TypeAlias = tuple[str, ...]

MAX_ORDER = 4
"""Longest n-grams of BLEU."""

_WORD = re.compile(r"[^\W\d_]+|[^\s]")


def words_of(text: str) -> list[str]:
    """The words of a text, in order."""
    return _WORD.findall(text)


def ngrams(words: Words, n: int) -> list[NGram]:
    """The n-grams of one text, in order: len(words) - n + 1 of them, none of a shorter text."""
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def distinct(texts: Sequence[Words], n: int) -> float | None:
    """Different n-grams of all texts over their number, from 0 (all repeated) to 1; None if no text has n words.

    Source: distinct-n of Li et al. 2016, "A Diversity-Promoting Objective Function for Neural Conversation Models".
    """
    grams = [gram for words in texts for gram in ngrams(words, n)]
    return len(set(grams)) / len(grams) if grams else None


def repetition(words: Words, n: int) -> float | None:
    """The share of n-grams of one text that occurred in it before: 1 - different / all; None with fewer than n words.

    Source: seq-rep-n of Welleck et al. 2020, "Neural Text Generation with Unlikelihood Training".
    """
    grams = ngrams(words, n)
    return 1 - len(set(grams)) / len(grams) if grams else None


def self_bleu(texts: Sequence[Words]) -> float | None:
    """The mean BLEU of each text against all others: 1 where all are alike; None with fewer than two texts.

    Source: Zhu et al. 2018, "Texygen: A Benchmarking Platform for Text Generation Models".
    """
    if len(texts) < 2:
        return None
    # Of every n-gram the two largest counts in a text, and whose they are: so the largest one among all texts but one
    # is at hand for each of them, and N texts cost N passes.
    peaks: dict[NGram, list[tuple[int, int]]] = {}
    for number, words in enumerate(texts):
        for n in range(1, MAX_ORDER + 1):
            for gram, count in Counter(ngrams(words, n)).items():
                peaks[gram] = sorted([*peaks.get(gram, ()), (count, number)], reverse=True)[:2]
    lengths = [len(words) for words in texts]

    def score(number: int, words: Words) -> float:
        def limit(gram: NGram) -> int:
            return next((count for count, owner in peaks[gram] if owner != number), 0)

        return _bleu(words, limit, lengths[:number] + lengths[number + 1 :])

    return math.fsum(score(*one) for one in enumerate(texts)) / len(texts)


def _bleu(hypothesis: Words, limit: Callable[[NGram], int], lengths: Sequence[int]) -> float:
    """BLEU of one text, from 0 to 1: brevity penalty times the geometric mean of the smoothed precisions.

    The precision of order n is the share of n-grams that a reference has, each counted at most as often as in the
    reference that has it most (Papineni et al. 2002). Orders above 1 have one added to both counts, so that one missing
    order does not make all zero (Lin and Och 2004; method 2 of Chen and Cherry 2014). Orders go up to `MAX_ORDER`, or
    to the length of the hypothesis if that is less. The brevity penalty, exp(1 - r / c), takes for r the length of the
    reference nearest to c, the shorter of two; `lengths` are those of the references, `limit` says how often an n-gram
    counts at most.
    """
    if not hypothesis:
        return 0.0
    logs = []
    for n in range(1, min(MAX_ORDER, len(hypothesis)) + 1):
        counts = Counter(ngrams(hypothesis, n))
        matched = sum(min(count, limit(gram)) for gram, count in counts.items())
        added = int(n > 1)
        precision = (matched + added) / (counts.total() + added)
        if precision == 0:
            return 0.0
        logs.append(math.log(precision))
    c = len(hypothesis)
    r = min(lengths, key=lambda length: (abs(length - c), length))
    return min(1.0, math.exp(1 - r / c)) * math.exp(math.fsum(logs) / len(logs))
