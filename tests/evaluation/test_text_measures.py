from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodekit.evaluation.measures.repetition import distinct, ngrams, repetition, self_bleu, words_of
from tests.reference.evaluation import plain_bleu

TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=9), min_size=2, max_size=5)


def test_words_are_runs_of_letters_and_single_digits_and_marks() -> None:
    expected = ["{", '"', "id", '"', ":", '"', "TK", "-", "4", "2", '"', "}", "Über", "_", "all", ",", "x", "1"]
    assert words_of('{"id":"TK-42"} Über_all, x1\n') == expected
    assert words_of(" \n") == []


def test_distinct_by_hand() -> None:
    texts = [["a", "b", "a", "b"], ["a", "b"]]
    assert distinct(texts, 1) == 2 / 6
    assert distinct(texts, 2) == 2 / 4  # ab ba ab, ab
    assert distinct(texts, 3) == 1.0  # aba, bab
    assert distinct([["a"]], 2) is None
    assert distinct([], 1) is None


def test_repetition_by_hand() -> None:
    assert repetition(["a"] * 5, 4) == 1 - 1 / 2
    assert repetition(["a", "b", "a", "b"], 2) == pytest.approx(1 / 3)
    assert repetition(["a", "b", "c", "d"], 2) == 0.0
    assert repetition(["a"], 2) is None


def test_self_bleu_by_hand() -> None:
    assert self_bleu([["a", "b"], ["a", "b"]]) == 1.0
    assert self_bleu([["a"], ["b"], ["c"]]) == 0.0
    # a b | a c: 1/2 and (0+1)/(1+1), twice
    assert self_bleu([["a", "b"], ["a", "c"]]) == pytest.approx((1 / 2 * 1 / 2) ** 0.5)
    # One word against four: brevity exp(1 - 4 / 1); four against one: 1/4, (0+1)/(3+1), (0+1)/(2+1), (0+1)/(1+1).
    expected = (math.exp(-3) + (1 / 4 * 1 / 4 * 1 / 3 * 1 / 2) ** 0.25) / 2
    assert self_bleu([["a"], ["a", "b", "c", "d"]]) == pytest.approx(expected)
    assert self_bleu([["a"]]) is None


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_self_bleu_agrees_with_plain_counting(texts: list[list[str]]) -> None:
    expected = [plain_bleu(text, texts[:i] + texts[i + 1 :]) for i, text in enumerate(texts)]
    assert self_bleu(texts) == pytest.approx(sum(expected) / len(expected))


@given(st.lists(st.sampled_from("ab"), max_size=12), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_repetition_is_what_a_look_back_finds(words: list[str], n: int) -> None:
    grams = ngrams(words, n)
    repeated = sum(gram in grams[:i] for i, gram in enumerate(grams))
    assert repetition(words, n) == (pytest.approx(repeated / len(grams)) if grams else None)
    assert distinct([words], n) == (pytest.approx(1 - repeated / len(grams)) if grams else None)
