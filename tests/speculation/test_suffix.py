"""Suffix decoding against trying everything; the corpus; the same text whatever it proposes."""

from __future__ import annotations

import gc
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodekit.errors import OptionError
from decodekit.speculation import Chain, Context, PromptLookup, Suffix, SuffixCorpus
from decodekit.speculation.proposers.suffix import likeliest_path, longest_match
from decodekit.strategy import Greedy, Sample
from tests.reference import speculation as reference
from tests.sizes import few
from tests.speculation.test_same_text import CONSTRAINTS, STRATEGIES, Prophet, assert_equals_the_plain_loop

some_tokens = st.lists(st.integers(-1, 3), max_size=40)
some_text = st.lists(st.integers(0, 3), max_size=20)


@given(tokens=some_tokens, text=some_text, max_match=st.integers(1, 6), min_probability=st.sampled_from([0.0, 0.3, 1]))
def test_match_and_path_equal_their_twins(
    tokens: list[int], text: list[int], max_match: int, min_probability: float
) -> None:
    array = np.array(tokens, np.int32)
    places, length = longest_match(array, np.array(text, np.int32), max_match)
    assert (places.tolist(), length) == reference.longest_match(tokens, text, max_match)
    path, expected = likeliest_path(array, places, 5, min_probability)
    assert (path, pytest.approx(expected)) == reference.likeliest_path(tokens, places.tolist(), 5, min_probability)


@given(prompt=st.lists(st.integers(0, 3), min_size=1, max_size=20), texts=st.lists(some_text, max_size=5))
def test_drafts_as_texts_grow_and_are_taken_back(prompt: list[int], texts: list[list[int]]) -> None:
    """What a row remembers is what a new row would find."""
    proposer, memory = Suffix(max_tokens=4, max_match=5), dict[Any, Any]()
    for text in [part for whole in texts for part in (whole, whole[: len(whole) // 2], [*whole, 1, 2])]:
        [draft] = proposer.propose([Context(prompt, text, memory=memory)], [3])
        whole = [*prompt, *text]
        places, length = reference.longest_match(whole, whole, 5)
        path, _ = reference.likeliest_path(whole, places, 3, 0.1)
        assert list(draft.tokens) == (path if length else [])


def test_what_followed_most_often_counts_and_then_the_latest() -> None:
    def drafted(tokens: list[int], **options: Any) -> list[int]:
        return list(Suffix(**options).propose([Context(tokens, [])], [8])[0].tokens)

    assert drafted([1, 2, 7, 1, 2, 7, 1, 2, 8, 1, 2]) == [7, 1, 2, 8, 1, 2]
    assert drafted([1, 2, 7, 9, 1, 2, 8, 5, 1, 2]) == [8, 5, 1, 2]
    assert drafted([1, 2, 7, 9, 1, 2, 8, 5, 1, 2], min_probability=0.6) == []
    assert drafted([1, 2, 7, 9, 5, 2, 8, 9, 1, 2]) == [7, 9, 5, 2, 8, 9, 1, 2]  # the longer match, not the later
    assert drafted([1, 2, 7, 9, 5, 2, 8, 9, 1, 2], tokens_per_match=0.5) == [7]
    assert drafted([2, 7, 2], min_match=2) == []
    assert drafted([1]) == [] and drafted([1, 2, 3]) == []


def test_the_longer_match_of_row_and_corpus() -> None:
    corpus = SuffixCorpus()
    corpus.add([5, 6, 7, 8, 9])
    proposer = Suffix(corpus=corpus)
    [draft] = proposer.propose([Context([7, 1], [6, 7])], [8])
    assert draft.tokens == [8, 9]  # two tokens match; nothing beyond the end of a text
    [draft] = proposer.propose([Context([4, 6, 7, 1], [4, 6, 7])], [8])
    assert draft.tokens[0] == 1


def test_a_finished_row_joins_the_corpus() -> None:
    corpus = SuffixCorpus()
    proposer = Suffix(corpus=corpus)
    text = [3, 4]
    context = Context([1, 2], text)
    proposer.propose([context], [4])
    proposer.propose([context], [4])
    text += [5, 6]
    assert len(corpus) == 0
    del context
    gc.collect()
    assert corpus.tokens.tolist() == [3, 4, 5, 6, -1]


def test_the_corpus_is_bounded() -> None:
    corpus = SuffixCorpus(max_tokens=8)
    for text in ([1, 2], [3, 4], [], [5]):
        corpus.add(text)
    assert corpus.tokens.tolist() == [1, 2, -1, 3, 4, -1, 5, -1] and len(corpus) == 3
    corpus.add([6])
    assert corpus.tokens.tolist() == [3, 4, -1, 5, -1, 6, -1]
    corpus.add([*range(20)])
    assert corpus.tokens.tolist() == [13, 14, 15, 16, 17, 18, 19, -1]
    for wrong in (1, 2.5, True):
        with pytest.raises(OptionError):
            SuffixCorpus(wrong)  # type: ignore[arg-type]


def test_a_row_may_leave_while_the_corpus_is_read() -> None:
    """A collection in the middle of reading adds a text: no lock is waited for, and the text is there the next time."""
    corpus = SuffixCorpus()
    corpus.add([1])
    with corpus._lock:
        corpus.add([2])
    assert corpus.tokens.tolist() == [1, -1, 2, -1]


def test_threads_and_copies() -> None:
    corpus = SuffixCorpus(max_tokens=300)
    threads = [threading.Thread(target=lambda: [corpus.add([1, 2]) for _ in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(corpus) == 100 and len(corpus.tokens) == 300
    copy = pickle.loads(pickle.dumps(Suffix(corpus=corpus))).corpus
    assert (copy.tokens == corpus.tokens).all() and copy.max_tokens == 300
    copy.add([9])
    assert 9 in copy.tokens and 9 not in corpus.tokens


@few(1)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=range(len(STRATEGIES)))
def test_the_text_stays_the_same(strategy: Any) -> None:
    prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [4, 4, 4, 4], [0]]
    for num_rows, texts in ((1, None), (3, CONSTRAINTS[2])):
        for max_tokens in (1, 8):
            suffix = Suffix(max_tokens, corpus=SuffixCorpus())
            for proposer in (suffix, suffix, Chain((PromptLookup(), suffix))):
                assert_equals_the_plain_loop(
                    strategy,
                    proposer=lambda _, p=proposer: p,
                    prompts=prompts,
                    texts=texts,
                    max_new_tokens=16,
                    num_rows=num_rows,
                )
            assert texts is not None or len(suffix.corpus or ()) > 0


def test_a_corpus_saves_passes() -> None:
    """The second time a text comes, the first time is known; a wrong corpus saves nothing."""
    suffix = Suffix(corpus=SuffixCorpus())
    costs = []
    for _ in range(2):
        results = assert_equals_the_plain_loop(Greedy(), proposer=lambda _: suffix, salt=3, num_rows=1)
        costs.append(sum(result.stats.num_forwards for result in results))
    assert costs[1] < 0.7 * costs[0]
    plain = assert_equals_the_plain_loop(Sample(), proposer=lambda _: Prophet({}, 1.0, 4), salt=3)
    assert sum(result.stats.num_forwards for result in plain) > costs[1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_match": 1.5},
        {"min_match": True},
        {"min_match": 33},
        {"tokens_per_match": 0},
        {"min_probability": 1.5},
        {"corpus": [1, 2]},
    ],
)
def test_options_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Suffix(**wrong)
