"""Processors and pipelines as values: what is refused, how they compose and print, where the mask goes."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decodekit import sampling
from decodekit.errors import OptionError
from decodekit.sampling import (
    Candidates,
    FrequencyPenalty,
    History,
    LogitBias,
    LogitsProcessor,
    MinP,
    Pipeline,
    PresencePenalty,
    RepetitionPenalty,
    Stage,
    Temperature,
    TopK,
    TopP,
)

INF = math.inf


@pytest.mark.parametrize(
    ("make", "value", "message"),
    [
        (Temperature, 0, "temperature must be a finite number above 0, got 0"),
        (Temperature, 0.0, 'strategy="greedy"'),
        (Temperature, -1.0, "got -1.0"),
        (Temperature, math.nan, "got nan"),
        (Temperature, INF, "got inf"),
        (Temperature, "1", "got '1'"),
        (Temperature, True, "got True"),
        (TopK, 0, "leaving top_k out"),
        (TopK, -3, "top_k must be an integer of at least 1, got -3"),
        (TopK, 2.0, "got 2.0"),
        (TopK, True, "got True"),
        (TopP, 0.0, "top_p must be a number above 0 and at most 1, got 0.0"),
        (TopP, 1.01, "got 1.01"),
        (TopP, math.nan, "got nan"),
        (MinP, -0.1, "min_p must be a number from 0 to 1, got -0.1"),
        (MinP, 1.5, "got 1.5"),
        (RepetitionPenalty, 0.0, "repetition_penalty must be a finite number above 0"),
        (PresencePenalty, 2.5, "presence_penalty must be a number from -2 to 2, got 2.5"),
        (FrequencyPenalty, -2.5, "frequency_penalty must be a number from -2 to 2, got -2.5"),
        (LogitBias, {}, "logit_bias must be a mapping from token ids to biases"),
        (LogitBias, {-1: 1.0}, "must be a token id, got -1"),
        (LogitBias, {"a": 1.0}, "must be a token id, got 'a'"),
        (LogitBias, {3: INF}, r"logit_bias\[3\] must be a finite number or -inf, got inf"),
        (LogitBias, {3: math.nan}, "got nan"),
    ],
)
def test_a_setting_out_of_range_is_refused(make: type[LogitsProcessor], value: object, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        make(value)  # type: ignore[call-arg]
    assert message.replace("\\", "") in str(caught.value)
    assert caught.value.code == "DK305"


@pytest.mark.parametrize("value", [Temperature(1.0), TopK(1), TopP(1.0), MinP(0), MinP(1), RepetitionPenalty(1.0)])
def test_limits_of_the_ranges_are_accepted(value: LogitsProcessor) -> None:
    assert value(torch.tensor([[1.0, 2.0]]), History.from_lists([[0]], [[]])).max() == 2.0


def test_processors_are_values() -> None:
    assert Temperature(0.8) == Temperature(0.8) != Temperature(0.7)
    assert len({TopK(5), TopK(5), TopP(0.5)}) == 2
    assert LogitBias({2: 1.0, 1: -INF}) == LogitBias({1: -INF, 2: 1.0})
    pipeline = Temperature(0.8) | TopK(50)
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline
    with pytest.raises(AttributeError):
        Temperature(0.8).temperature = 1.0  # type: ignore[misc]


def test_composition_is_associative_and_readable() -> None:
    a, b, c = Temperature(0.8), TopK(50), TopP(0.95)
    assert (a | b) | c == a | (b | c) == Pipeline([a, b, c])
    assert repr(a | b | c) == "Temperature(0.8) | TopK(50) | TopP(0.95)"
    assert repr(Pipeline([a])) == "Pipeline([Temperature(0.8)])"
    assert repr(LogitBias({3: -INF})) == "LogitBias({3: -inf})"
    assert list(Pipeline() | a | Pipeline()) == [a]
    assert not (a | b).needs_history and (a | RepetitionPenalty(1.1)).needs_history


def test_what_is_not_a_processor_is_refused() -> None:
    with pytest.raises(OptionError, match=r"processors must be logits processors, got 0\.8"):
        Pipeline([0.8])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        Temperature(0.8) | 50  # type: ignore[operator]


def test_a_penalty_without_history_is_refused() -> None:
    with pytest.raises(OptionError, match=r"RepetitionPenalty\(1\.2\) needs the history"):
        Pipeline([RepetitionPenalty(1.2)])(torch.zeros(1, 4))


def words(*token_ids: int, vocab_size: int = 8) -> Tensor:
    mask = np.zeros((1, (vocab_size + 31) // 32), dtype=np.uint32)
    for token in token_ids:
        mask[0, token // 32] |= np.uint32(1 << token % 32)
    return torch.from_numpy(mask.view(np.int32))


LOGITS = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0]])


@pytest.mark.parametrize(
    "pipeline",
    [
        TopK(2) | Temperature(0.5),
        Temperature(0.5) | TopK(2),
        LogitBias({0: 3.0}) | TopK(2),
        TopK(2) | LogitBias({0: 3.0}),
    ],
    ids=repr,
)
def test_the_mask_comes_before_truncation(pipeline: Pipeline) -> None:
    kept = pipeline(LOGITS, mask=words(4, 6, 7)) > -INF
    assert kept[0].nonzero().flatten().tolist() == [4, 6]
    # The negative control: masked after top-k, the row would have no token left.
    assert (pipeline(LOGITS) > -INF)[0, [4, 6, 7]].sum() == 0


def test_a_bias_acts_before_the_mask_and_cannot_undo_it() -> None:
    @dataclass(frozen=True, repr=False)
    class Overwrite(LogitsProcessor):
        stage = Stage.BIAS

        def __call__(self, logits: Tensor, history: History | None = None) -> Tensor:
            return torch.zeros_like(logits)

    pipeline = Overwrite() | TopK(3)
    assert repr(pipeline) == "Overwrite() | TopK(3)"
    assert (pipeline(LOGITS, mask=words(2, 5)) > -INF)[0].nonzero().flatten().tolist() == [2, 5]


def test_the_mask_of_an_empty_pipeline() -> None:
    assert Pipeline()(LOGITS, mask=words(1)).tolist() == [[-INF, 4.0, *[-INF] * 6]]


def test_trace_shows_support_and_mass_after_each_step() -> None:
    law = torch.tensor([[0.5, 0.25, 0.125, 0.125, 0.0, 0.0, 0.0, 0.0]])
    pipeline = LogitBias({7: -INF}) | Temperature(2.0) | TopK(2)
    steps = pipeline.trace(law.log(), mask=words(0, 1, 2))
    assert [step.name for step in steps] == ["logits", "LogitBias({7: -inf})", "mask", "Temperature(2.0)", "TopK(2)"]
    assert [step.support for step in steps] == [(4,), (4,), (3,), (3,), (2,)]
    assert [step.mass[0] for step in steps] == pytest.approx([1, 1, 0.875, 0.875, 0.75])
    assert torch.equal(steps[-1].logits, pipeline(law.log(), mask=words(0, 1, 2)))
    assert Pipeline().trace(LOGITS, mask=words(1))[-1].support == (1,)


def one_by_one(pipeline: Pipeline, logits: Tensor, mask: Tensor | None) -> Tensor:
    """The slow twin of a pipeline of non-biases: the mask, then every processor on the whole row."""
    if mask is not None:
        logits = sampling.apply_bitmask(logits, mask)
    for processor in pipeline:
        logits = processor(logits, None)
    return logits


def is_a_close_call(pipeline: Pipeline, logits: Tensor, mask: Tensor | None) -> bool:
    """Whether the p of some top-p is so near to the mass of a prefix that rounding decides."""
    if mask is not None:
        logits = sampling.apply_bitmask(logits, mask)
    for processor in pipeline:
        if isinstance(processor, TopP) and processor.p < 1:
            mass = logits.double().softmax(dim=-1).sort(descending=True).values.cumsum(dim=-1)
            if ((mass - processor.p).abs() < 1e-6).any():
                return True
        logits = processor(logits, None)
    return False


PROCESSORS = st.one_of(
    st.sampled_from([0.3, 0.8, 1.0, 1.5, 7.0]).map(Temperature),
    st.integers(1, 20).map(TopK),
    st.floats(0.05, 0.999).map(TopP),
    st.just(TopP(1.0)),
    st.floats(0.0, 0.9).map(MinP),
)


@given(
    st.lists(PROCESSORS, min_size=1, max_size=5).map(Pipeline),
    st.integers(0, 2**32 - 1),
    st.sampled_from([2, 9, 200, 1024, 1300]),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_candidates_stand_for_the_whole_row(
    pipeline: Pipeline, seed: int, vocab_size: int, has_ties: bool, is_masked: bool
) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, 4, (3, vocab_size)).astype(np.float32))
    if has_ties:
        logits = logits.round()
    mask = None
    if is_masked:
        bits = rng.random((3, (vocab_size + 31) // 32 * 32)) < rng.choice([0.05, 0.5])
        bits[:, rng.integers(vocab_size)] = True
        mask = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
    if is_a_close_call(pipeline, logits, mask):
        return
    expected = one_by_one(pipeline, logits, mask)
    assert torch.equal(pipeline(logits, mask=mask), expected)
    rows = pipeline.narrow(logits, mask=mask)
    seeds, positions = [seed] * 3, [0, 1, 2]
    assert torch.equal(
        sampling.sample(rows, seeds, [0] * 3, positions), sampling.sample(expected, seeds, [0] * 3, positions)
    )


def test_candidates_are_used_where_they_can_be() -> None:
    logits = torch.randn(2, 2000, generator=torch.Generator().manual_seed(0)) * 3
    assert isinstance((Temperature(0.8) | TopK(5) | TopP(0.9) | MinP(0.1)).narrow(logits), Candidates)
    assert isinstance((TopK(5) | LogitBias({1: 1.0})).narrow(logits), Tensor)  # a bias changes the order
    assert isinstance((TopK(600) | TopP(0.9)).narrow(logits), Tensor)  # too many to be worth it
    assert isinstance(Pipeline([TopK(5)]).narrow(logits[:, :1000]), Tensor)  # a narrow row
    rows = Pipeline([TopK(5)]).narrow(logits.round())
    assert isinstance(rows, Candidates)
    assert ((rows.logits > -INF).sum(axis=1) > 5).any()  # with ties
    assert torch.equal(rows.dense(), TopK(5)(logits.round()))
    assert isinstance(Pipeline([TopP(0.2)]).narrow(logits), Candidates)
    assert isinstance(Pipeline([TopP(0.99)]).narrow(logits / 3), Tensor)  # more than a quarter of the row


def test_a_nucleus_of_a_wide_row() -> None:
    logits = torch.randn(4, 50_000, generator=torch.Generator().manual_seed(3)) * 3
    logits[1] = logits[1].round()
    pipeline = TopP(0.3) | MinP(0.01)
    rows = pipeline.narrow(logits)
    assert isinstance(rows, Candidates)
    assert torch.equal(rows.dense(), one_by_one(pipeline, logits, None))


def test_temperatures_that_make_equal_what_was_not_settle_the_order_anew() -> None:
    # Neighbouring floats below 2 that become equal when divided; the larger one has the larger id.
    low = torch.tensor(1.9)
    while (high := torch.nextafter(low, torch.tensor(2.0))) / 1.5 != low / 1.5:
        low = high
    logits = torch.arange(-1.0, -2001.0, -1.0).unsqueeze(0)
    logits[0, 2], logits[0, 6] = low, high
    pipeline = TopK(3) | Temperature(1.5) | TopP(0.4)
    expected = one_by_one(pipeline, logits, None)
    assert (expected > -INF)[0].nonzero().flatten().tolist() == [2]
    assert torch.equal(pipeline(logits), expected)
    assert isinstance((TopK(3) | Temperature(1.4) | TopP(0.4)).narrow(logits), Candidates)


def test_half_precision_logits_are_processed_in_float32() -> None:
    got = (Temperature(3.0) | TopK(3))(LOGITS.to(torch.bfloat16))
    assert got.dtype == torch.float32
    assert torch.equal(got, (Temperature(3.0) | TopK(3))(LOGITS))


def test_biases_that_only_together_leave_float32_can_forbid() -> None:
    processor = sampling.SequenceBias({(3,): -6e29, (4, 3): -6e29})
    assert processor.can_forbid and list(processor.may_forbid(8)) == [3]
    assert not sampling.SequenceBias({(3,): -6e29, (4, 2): -6e29}).can_forbid


def test_a_bad_word_beyond_the_row_is_refused_by_its_own_name() -> None:
    with pytest.raises(OptionError, match="token id 9 is outside the 4 logits") as caught:
        sampling.BadWords([[9]])(torch.zeros(1, 4), History.from_lists([[1]], [[2]]))
    assert caught.value.at == "bad_words"
