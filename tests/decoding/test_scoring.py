"""Scores against one law per prefix, added up by hand."""

from __future__ import annotations

import pytest
import torch

from decodekit.decoding.loop.batch import similar_lengths
from decodekit.decoding.loop.host_pass import right_padded
from decodekit.decoding.search import text_scores as scoring
from decodekit.decoding.search.text_scores import token_logprobs, token_scores
from tests.reference.generation import ToyLM, hashed_law

V = 16
TEXTS = [[1, 2, 3, 4, 5, 6, 7], [3], [9, 9], [4, 4, 4, 4], [], [0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 2]]


@pytest.mark.parametrize("max_tokens", [1, 3, 7, 1000])
def test_equals_brute_force(max_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any size of the passes: rows of unequal length, in groups and in chunks."""
    monkeypatch.setattr(scoring, "SCORE_TOKENS", max_tokens)
    law = hashed_law(V)
    model = ToyLM(law, V)
    scores = token_logprobs(model, TEXTS)
    for text, score in zip(TEXTS, scores, strict=True):
        expected = [float(torch.log_softmax(law(text[:i]), -1)[text[i]]) for i in range(1, len(text))]
        assert score == pytest.approx(expected, abs=1e-6)
    # Of a text that is greedy where its index is even, whether each token is the likeliest.
    greedy = [3]
    for index in range(1, 9):
        best = law(greedy).argsort(descending=True)
        greedy.append(int(best[index % 2]))
    assert [is_likeliest for _, is_likeliest in token_scores(ToyLM(law, V), [greedy])[0]] == [False, True] * 4
    assert all(sum(call) <= max(max_tokens, 1) for call in model.calls)


def test_nothing_to_predict_needs_no_model() -> None:
    model = ToyLM(hashed_law(V), V)
    assert token_logprobs(model, [[3], []]) == [[], []]
    assert model.calls == []


def test_large_vocabularies_have_smaller_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "SCORE_LOGITS", 4 * V)
    model = ToyLM(hashed_law(V), V)
    token_logprobs(model, [list(range(10))])
    assert model.calls == [[4], [4], [1]]


def test_groups() -> None:
    assert list(similar_lengths([5, 1, 30, 2, 2], 6)) == [[1, 3, 4], [0], [2]]
    # 40 + 60 tokens with 20 of padding; a third row of 160 would need 220 more
    assert list(similar_lengths([160, 40, 60, 170], 1000)) == [[1, 2], [0, 3]]
    assert list(similar_lengths([], 6)) == []
    assert right_padded([[1, 2], [3]]).tolist() == [[1, 2], [3, 0]]
