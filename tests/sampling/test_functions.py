"""Each pointwise processor against its slow twin, against transformers' own, and on its edge cases."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decodekit.errors import OptionError
from decodekit.sampling import (
    FrequencyPenalty,
    LogitBias,
    MinP,
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    apply_bitmask,
    pipeline,
)
from decodekit.sampling.processors.history import History
from tests.reference import sampling as slow

INF = math.inf

# Few distinct values, so that ties are common; -inf for removed tokens; at least one token is left.
TIED_ROWS = st.lists(
    st.one_of(st.integers(-3, 3).map(float), st.just(-INF)), min_size=2, max_size=40
).filter(lambda row: max(row) > -INF)  # fmt: skip
SMOOTH_ROWS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=40)
ROWS = st.one_of(TIED_ROWS, SMOOTH_ROWS)


def rows_of(seed: int, num_rows: int = 16, vocab_size: int = 50) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * 3


def same(got: Tensor, expected: list[float], tolerance: float = 2e-6) -> bool:
    return bool(torch.allclose(got.squeeze(0), torch.tensor(expected), rtol=tolerance, atol=tolerance))


# --- slow twins ------------------------------------------------------------------------------------------------------


@given(ROWS, st.floats(0.05, 20))
@settings(deadline=None, max_examples=50)
def test_temperature(row: list[float], temperature: float) -> None:
    assert same(Temperature(temperature)(torch.tensor([row])), slow.temperature(row, temperature), 1e-5)


@given(ROWS, st.integers(1, 45))
@settings(deadline=None, max_examples=100)
def test_top_k(row: list[float], k: int) -> None:
    assert TopK(k)(torch.tensor([row])).squeeze(0).tolist() == slow.top_k(row, k)


@given(ROWS, st.floats(0.01, 1.0))
@settings(deadline=None, max_examples=100)
def test_top_p(row: list[float], p: float) -> None:
    if p < 1.0 and slow.top_p_margin(row, p) < 1e-5:
        return
    expected = row if p == 1.0 else slow.top_p(row, p)
    assert TopP(p)(torch.tensor([row])).squeeze(0).tolist() == expected


@given(ROWS, st.floats(0.0, 1.0))
@settings(deadline=None, max_examples=100)
def test_min_p(row: list[float], min_p: float) -> None:
    if slow.min_p_margin(row, min_p) < 1e-5 and 0 < min_p < 1:
        return
    expected = row if min_p == 0 else slow.min_p(row, min_p)
    assert MinP(min_p)(torch.tensor([row])).squeeze(0).tolist() == expected


TOKENS = st.lists(st.integers(0, 11), max_size=12)


@given(
    st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=4), st.floats(0.2, 3), st.floats(-2, 2), st.floats(-2, 2)
)
@settings(deadline=None, max_examples=100)
def test_penalties(
    texts: list[tuple[list[int], list[int]]], repetition: float, presence: float, frequency: float
) -> None:
    # Ids 8 to 11 lie outside the row of 8 logits; rows of unequal length are padded.
    logits = rows_of(len(texts), len(texts), 8)
    history = History.from_lists([prompt for prompt, _ in texts], [output for _, output in texts])
    repeated = RepetitionPenalty(repetition)(logits, history)
    openai = PresencePenalty(presence)(logits, history)
    openai = FrequencyPenalty(frequency)(openai, history)
    for n, (prompt, output) in enumerate(texts):
        row = logits[n].tolist()
        assert same(repeated[n], slow.repetition_penalty(row, prompt + output, repetition), 1e-5)
        assert same(openai[n], slow.openai_penalties(row, output, presence, frequency), 1e-5)


@given(ROWS, st.dictionaries(st.integers(0, 1), st.floats(-100, 100, width=32) | st.just(-INF), min_size=1))
@settings(deadline=None, max_examples=50)
def test_logit_bias(row: list[float], biases: dict[int, float]) -> None:
    got = LogitBias(biases)(torch.tensor([row]))
    assert same(got, slow.logit_bias(row, biases), 1e-5)


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 100])
def test_bitmask(vocab_size: int) -> None:
    words = np.random.default_rng(vocab_size).integers(-(2**31), 2**31, (3, (vocab_size + 31) // 32)).astype(np.int32)
    logits = rows_of(0, 3, vocab_size)
    got = apply_bitmask(logits, torch.from_numpy(words))
    allowed = pipeline._unpack_on_device(torch.from_numpy(words), vocab_size)  # as on a GPU
    assert torch.equal(allowed, pipeline._unpack_on_host(torch.from_numpy(words), vocab_size))
    for n in range(3):
        assert got[n].tolist() == slow.bitmask(logits[n].tolist(), words[n].tolist())


def test_bitmask_of_another_shape_is_refused() -> None:
    with pytest.raises(OptionError, match=r"shape \(1, 2\) for logits of shape \(1, 32\)"):
        apply_bitmask(torch.zeros(1, 32), torch.zeros(1, 2, dtype=torch.int32))


# --- transformers ----------------------------------------------------------------------------------------------------


def theirs(name: str, *arguments: object) -> Callable[[Tensor | None, Tensor], Tensor]:
    import transformers

    processor: Callable[[Tensor | None, Tensor], Tensor] = getattr(transformers, name)(*arguments)
    return processor


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 1.3, 10.0])
def test_temperature_equals_transformers(temperature: float) -> None:
    logits = rows_of(1)
    expected = theirs("TemperatureLogitsWarper", temperature)(None, logits)
    assert torch.equal(Temperature(temperature)(logits), expected)


@pytest.mark.parametrize("k", [1, 2, 7, 49, 50, 1000])
@pytest.mark.parametrize("has_ties", [False, True])
def test_top_k_equals_transformers(k: int, has_ties: bool) -> None:
    logits = rows_of(2).round() if has_ties else rows_of(2)
    assert torch.equal(TopK(k)(logits), theirs("TopKLogitsWarper", k)(None, logits))


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.9, 0.95, 0.999])
def test_top_p_equals_transformers(p: float) -> None:
    logits = rows_of(3, num_rows=200)
    rows = [n for n in range(200) if slow.top_p_margin(logits[n].tolist(), p) > 1e-6]
    assert len(rows) > 190
    assert torch.equal(TopP(p)(logits)[rows], theirs("TopPLogitsWarper", p)(None, logits)[rows])


@pytest.mark.parametrize("p", [0.25, 0.6, 0.9])
def test_top_p_of_ties_keeps_as_many_as_transformers(p: float) -> None:
    logits = rows_of(4, num_rows=200).round()
    rows = [n for n in range(200) if slow.top_p_margin(logits[n].tolist(), p) > 1e-6]
    assert len(rows) > 150
    ours, reference = TopP(p)(logits)[rows], theirs("TopPLogitsWarper", p)(None, logits)[rows]
    assert torch.equal(ours.sort().values, reference.sort().values)


@pytest.mark.parametrize("min_p", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_min_p_equals_transformers(min_p: float) -> None:
    logits = rows_of(5)
    assert torch.equal(MinP(min_p)(logits), theirs("MinPLogitsWarper", min_p)(None, logits))


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.2, 3.0])
def test_repetition_penalty_equals_transformers(penalty: float) -> None:
    logits = rows_of(6)
    ids = torch.randint(0, 50, (16, 20), generator=torch.Generator().manual_seed(6))
    history = History(ids, torch.full((16,), 12), torch.full((16,), 20))
    ours = RepetitionPenalty(penalty)(logits, history)
    assert torch.allclose(ours, theirs("RepetitionPenaltyLogitsProcessor", penalty)(ids, logits), rtol=1e-6, atol=1e-6)


def test_all_of_them_in_a_row_equal_transformers() -> None:
    ours, reference = rows_of(7, 100), rows_of(7, 100)
    for kind, value, name in (
        (Temperature, 0.8, "TemperatureLogitsWarper"),
        (TopK, 20, "TopKLogitsWarper"),
        (TopP, 0.9, "TopPLogitsWarper"),
        (MinP, 0.05, "MinPLogitsWarper"),
    ):
        ours, reference = kind(value)(ours), theirs(name, value)(None, reference)
    law, expected = ours.softmax(-1), reference.softmax(-1)
    assert torch.allclose(law, expected, rtol=0, atol=1e-6)


# --- edge cases ------------------------------------------------------------------------------------------------------


def test_ties_at_the_kth_value_are_all_kept() -> None:
    assert TopK(2)(torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0]])).tolist() == [[1.0, 2.0, 1.0, -INF, 1.0]]


def test_equal_tokens_enter_the_nucleus_in_order_of_id() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0]])
    assert TopP(0.3)(logits).tolist() == [[-INF, 1.0, -INF, -INF, -INF]]
    assert TopP(0.6)(logits).tolist() == [[-INF, 1.0, -INF, 1.0, -INF]]
    assert TopP(0.75)(logits).tolist() == [[0.0, 1.0, -INF, 1.0, -INF]]


@pytest.mark.parametrize("peak", [0.0, 50.0, -50.0])
def test_the_likeliest_token_always_stays(peak: float) -> None:
    logits = torch.tensor([[peak - 9.0, peak, peak - 9.0]])
    expected = [[-INF, peak, -INF]]
    assert TopP(1e-9)(logits).tolist() == expected
    assert MinP(1.0)(logits).tolist() == expected
    assert TopK(1)(logits).tolist() == expected


EVERY_FUNCTION: dict[str, Callable[[Tensor], Tensor]] = {
    "temperature": lambda z: Temperature(0.5)(z),
    "top_k": lambda z: TopK(2)(z),
    "top_p": lambda z: TopP(0.7)(z),
    "min_p": lambda z: MinP(0.2)(z),
    "repetition": lambda z: RepetitionPenalty(1.3)(z, one_history(z)),
    "presence": lambda z: PresencePenalty(0.5)(z, one_history(z)),
    "frequency": lambda z: FrequencyPenalty(0.5)(z, one_history(z)),
    "logit_bias": lambda z: LogitBias({0: 5.0, 2: -5.0})(z),
    "bitmask": lambda z: apply_bitmask(z, torch.full((len(z), 1), -1, dtype=torch.int32)),
}


def one_history(logits: Tensor) -> History:
    return History.from_lists([[1, 2]] * len(logits), [[0, 0, 3]] * len(logits))


@pytest.mark.parametrize("name", EVERY_FUNCTION)
class TestLaws:
    def test_all_but_one_removed(self, name: str) -> None:
        got = EVERY_FUNCTION[name](torch.tensor([[-INF, -INF, 1.0, -INF]]))
        assert (got > -INF).tolist() == [[False, False, True, False]]

    def test_a_removed_token_stays_removed(self, name: str) -> None:
        got = EVERY_FUNCTION[name](torch.tensor([[-INF, 3.0, 1.0, 2.0, -INF]]))
        assert got[0, 0] == got[0, 4] == -INF

    def test_a_row_without_tokens_stays_one(self, name: str) -> None:
        assert EVERY_FUNCTION[name](torch.full((1, 4), -INF)).tolist() == [[-INF] * 4]

    def test_nan_is_not_hidden(self, name: str) -> None:
        assert EVERY_FUNCTION[name](torch.full((1, 4), math.nan)).isnan().any()
        assert EVERY_FUNCTION[name](torch.tensor([[0.0, math.nan, 1.0, -1.0]])).isnan().any()

    def test_the_argument_is_not_changed(self, name: str) -> None:
        logits = rows_of(8, 3, 10)
        before = logits.clone()
        EVERY_FUNCTION[name](logits)
        assert torch.equal(logits, before)

    def test_rows_do_not_influence_each_other(self, name: str) -> None:
        logits = rows_of(9, 5, 10)
        whole = EVERY_FUNCTION[name](logits)
        assert torch.equal(whole, torch.cat([EVERY_FUNCTION[name](logits[n : n + 1]) for n in range(5)]))


def test_logit_bias_beyond_the_row_is_refused() -> None:
    with pytest.raises(OptionError, match="token id 4 is outside the 4 logits"):
        LogitBias({4: 1.0})(torch.zeros(1, 4))


def test_history_counts_prompt_and_output_apart() -> None:
    history = History.from_lists([[1, 2, 3], [4]], [[5], [6, 7]])
    assert history.token_ids.tolist() == [[1, 2, 3, 5], [4, 6, 7, -1]]
    assert history.places(with_prompt=True).tolist() == [[True] * 4, [True, True, True, False]]
    assert history.places(with_prompt=False).tolist() == [[False, False, False, True], [False, True, True, False]]
    with pytest.raises(OptionError, match="2 prompts and 1 outputs"):
        History.from_lists([[1], [2]], [[]])
