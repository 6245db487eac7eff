"""DRY and repeated n-grams, biases of sequences and bans: against slow twins and transformers, on ragged histories."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decodekit.errors import OptionError
from decodekit.sampling import (
    DRY,
    AllowedTokens,
    BadWords,
    FrequencyPenalty,
    History,
    MinTokens,
    NoRepeatNGram,
    PresencePenalty,
    RepetitionPenalty,
    SequenceBias,
)
from tests.reference import sampling as slow

INF = math.inf
V = 5
# Ids 5 and 6 lie outside the row of logits; few ids, so that repeats are long.
TOKENS = st.lists(st.integers(0, 6) | st.integers(0, 1), max_size=24)
TEXTS = st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=4)
BREAKERS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=3, unique=True)


def logits_for(texts: list[tuple[list[int], list[int]]]) -> Tensor:
    return torch.randn(len(texts), V, generator=torch.Generator().manual_seed(len(texts))) * 3


def history_of(texts: list[tuple[list[int], list[int]]]) -> History:
    return History.from_lists([prompt for prompt, _ in texts], [output for _, output in texts])


def same(got: Tensor, expected: list[float]) -> bool:
    return bool(torch.allclose(got, torch.tensor(expected), rtol=1e-5, atol=1e-5))


@given(TEXTS, st.floats(0.1, 2), st.floats(1, 2.5), st.integers(1, 4), BREAKERS, st.none() | st.integers(1, 20))
@settings(deadline=None, max_examples=120)
def test_dry(
    texts: list[tuple[list[int], list[int]]],
    multiplier: float,
    base: float,
    allowed: int,
    breakers: list[tuple[int, ...]],
    window: int | None,
) -> None:
    logits = logits_for(texts)
    got = DRY(multiplier, base, allowed, tuple(breakers), window)(logits, history_of(texts))
    for n, (prompt, output) in enumerate(texts):
        prefix = (prompt + output)[-window:] if window else prompt + output
        assert same(got[n], slow.dry(logits[n].tolist(), prefix, multiplier, base, allowed, breakers))


def test_dry_by_hand() -> None:
    """llama.cpp's example: a b c c b c y a b c. Extended by c: a repeat of 3; by b: of 1; by y: of 2."""
    a, b, c, y = 0, 1, 2, 3
    prefix = [a, b, c, c, b, c, y, a, b, c]
    assert slow.dry_lengths(prefix) == {a: 0, b: 1, c: 3, y: 2}
    history = History.from_lists([prefix], [[]])
    zeros = torch.zeros(1, 5)
    assert DRY(1.0, 2.0, 1)(zeros, history).tolist() == [[0, -1, -4, -2, 0]]
    assert DRY(1.0, 2.0, 2)(zeros, history).tolist() == [[0, 0, -2, -1, 0]]
    assert DRY(1.0, 2.0, 1, breakers=((b,),))(zeros, history).tolist() == [[0, 0, -1, -1, 0]]  # only `c` repeats
    assert DRY(1.0, 2.0, 1, breakers=((y, a),))(zeros, history).tolist() == [[0, -1, -2, -2, 0]]  # `b c` at most
    assert DRY(1.0, 2.0, 1, breakers=((c,),))(zeros, history).tolist() == [[0] * 5]


def test_a_long_repeat_has_a_finite_penalty() -> None:
    history = History.from_lists([[1] * 2000], [[]])
    got = DRY(0.8)(torch.zeros(1, 3), history)
    assert got[0, 1] < -1e29 and got.isfinite().all()
    assert DRY(0.0)(torch.zeros(1, 3), history).tolist() == [[0.0] * 3]


@given(TEXTS, st.integers(1, 4))
@settings(deadline=None, max_examples=100)
def test_no_repeat_ngram(texts: list[tuple[list[int], list[int]]], size: int) -> None:
    got = NoRepeatNGram(size)(logits_for(texts), history_of(texts))
    for n, (prompt, output) in enumerate(texts):
        removed = {token for token in slow.repeated_ngram_ends(prompt + output, size) if token < V}
        assert {token for token in range(V) if got[n, token] == -INF} == removed


@given(
    TEXTS, st.dictionaries(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple), st.floats(-5, 5), min_size=1)
)
@settings(deadline=None, max_examples=100)
def test_sequence_bias(texts: list[tuple[list[int], list[int]]], biases: dict[tuple[int, ...], float]) -> None:
    logits = logits_for(texts)
    got = SequenceBias(biases)(logits, history_of(texts))
    for n, (prompt, output) in enumerate(texts):
        assert same(got[n], slow.sequence_bias(logits[n].tolist(), prompt + output, biases))


@given(TEXTS, st.none() | st.integers(1, 6), st.floats(0.5, 2), st.floats(-2, 2), st.booleans())
@settings(deadline=None, max_examples=100)
def test_penalties_over_a_window(
    texts: list[tuple[list[int], list[int]]], window: int | None, repetition: float, penalty: float, counts_prompt: bool
) -> None:
    logits, history = logits_for(texts), history_of(texts)
    repeated = RepetitionPenalty(repetition, window)(logits, history)
    presence = PresencePenalty(penalty, window, counts_prompt)(logits, history)
    frequency = FrequencyPenalty(penalty, window, counts_prompt)(logits, history)
    for n, (prompt, output) in enumerate(texts):
        row, prefix = logits[n].tolist(), prompt + output
        last = prefix[-window:] if window else prefix
        assert same(repeated[n], slow.repetition_penalty(row, last, repetition))
        counted = last if counts_prompt else output[-window:] if window else output
        assert same(presence[n], slow.openai_penalties(row, counted, penalty, 0.0))
        assert same(frequency[n], slow.openai_penalties(row, counted, 0.0, penalty))


def test_bans() -> None:
    logits = torch.zeros(2, 5)
    history = History.from_lists([[1, 2], [2]], [[3], []])
    assert (BadWords([[4], [2, 3, 0], [2, 1]])(logits, history) == -INF).tolist() == [
        [True, False, False, False, True],
        [False, True, False, False, True],
    ]
    assert (AllowedTokens([3, 1, 3])(logits) > -INF)[0].tolist() == [False, True, False, True, False]
    assert (MinTokens(1, (0, 4))(logits, history) == -INF).tolist() == [[False] * 5, [True, False, False, False, True]]
    assert repr(MinTokens(1, (4, 0))) == "MinTokens(1, end_ids=(0, 4))"
    assert repr(SequenceBias({(2, 1): -INF})) == "SequenceBias({(2, 1): -inf})"


def test_equal_transformers() -> None:
    import transformers as hf

    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(16, 12, generator=generator) * 3
    ids = torch.randint(0, 12, (16, 30), generator=generator)
    history = History(ids, torch.full((16,), 10), torch.full((16,), 30))
    for size in (1, 2, 3):
        expected = hf.NoRepeatNGramLogitsProcessor(size)(ids, logits)
        assert torch.equal(NoRepeatNGram(size)(logits, history), expected)
    last = ids[0, -2:].tolist()
    biases = {(3,): 1.5, (*last, 4): -2.0, (last[1], 4): 0.5, (last[1], 7): -INF}
    expected = hf.SequenceBiasLogitsProcessor({key: float(bias) for key, bias in biases.items()})(ids, logits)
    assert torch.allclose(SequenceBias(biases)(logits, history), expected)
    words = [[3], [*last, 4], [last[1], 0]]
    assert torch.equal(BadWords(words)(logits, history), hf.NoBadWordsLogitsProcessor(words)(ids, logits))
    for least in (19, 20, 21):
        theirs = hf.MinNewTokensLengthLogitsProcessor(10, least, [2, 5])
        assert torch.equal(MinTokens(least, (2, 5))(logits, history), theirs(ids, logits))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DRY(-1.0), "dry_multiplier must be"),
        (lambda: DRY(1.0, 0.5), "dry_base must be a finite number of at least 1"),
        (lambda: DRY(1.0, allowed_length=0), "dry_allowed_length must be"),
        (lambda: DRY(1.0, breakers=((),)), "dry_breakers must be a non-empty sequence of token ids"),
        (lambda: NoRepeatNGram(0), "no_repeat_ngram_size must be"),
        (lambda: SequenceBias({}), "sequence_bias must be a mapping"),
        (lambda: SequenceBias({(1,): INF}), "must be a finite number or -inf, got inf"),
        (lambda: BadWords([]), "bad_words must be at least one sequence"),
        (lambda: BadWords([[-1]]), "bad_words must be a non-empty sequence of token ids"),
        (lambda: AllowedTokens([]), "allowed_tokens must be at least one token id"),
        (lambda: MinTokens(0, (1,)), "min_tokens must be an integer of at least 1"),
        (lambda: MinTokens(2, ()), "end_ids must be at least one token id"),
        (lambda: RepetitionPenalty(1.1, window=0), "penalty_window must be an integer of at least 1"),
    ],
)
def test_a_setting_out_of_range_is_refused(make: object, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        make()  # type: ignore[operator]
    assert message in str(caught.value)


def test_ids_beyond_the_row_are_refused() -> None:
    history = History.from_lists([[1]], [[]])
    for processor in (AllowedTokens([5]), MinTokens(1, (5,)), SequenceBias({(5,): 1.0}), SequenceBias({(1, 5): 1.0})):
        with pytest.raises(OptionError, match="token id 5 is outside the 5 logits"):
            processor(torch.zeros(1, 5), history)
