"""Truncations by the whole law, against slow twins and transformers, and the laws that all processors obey."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from decodekit.errors import OptionError
from decodekit.sampling import (
    DRY,
    XTC,
    AllowedTokens,
    BadWords,
    DynamicTemperature,
    Epsilon,
    Eta,
    History,
    LogitsProcessor,
    MinTokens,
    NoRepeatNGram,
    PLess,
    Quadratic,
    SequenceBias,
    Temperature,
    TopA,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Watermark,
)
from tests.reference import sampling as slow
from tests.sizes import few

INF = math.inf

TIED_ROWS = st.lists(st.one_of(st.integers(-3, 3).map(float), st.just(-INF)), min_size=2, max_size=40)
SMOOTH_ROWS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=40)
EXTREME_ROWS = st.lists(st.sampled_from([-INF, -1e30, -1e4, 0.0, 88.0, 1e4, 1e30]), min_size=2, max_size=8)
ROWS = st.one_of(TIED_ROWS, SMOOTH_ROWS).filter(lambda row: max(row) > -INF)


def rows_of(seed: int, num_rows: int = 200, vocab_size: int = 50) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * 3


def kept(logits: Tensor) -> list[bool]:
    return (logits > -INF)[0].tolist()


def support(row: list[float]) -> list[bool]:
    return [z > -INF for z in row]


# --- slow twins ------------------------------------------------------------------------------------------------------


@given(ROWS, st.floats(0.01, 0.99))
@settings(deadline=None, max_examples=100)
def test_typical(row: list[float], mass: float) -> None:
    assume(slow.typical_margin(row, mass) > 1e-4)
    assert kept(Typical(mass)(torch.tensor([row]))) == support(slow.typical(row, mass))


@given(ROWS, st.floats(0.001, 0.9))
@settings(deadline=None, max_examples=100)
def test_epsilon(row: list[float], epsilon: float) -> None:
    assume(slow.floor_margin(row, epsilon) > 1e-5)
    assert kept(Epsilon(epsilon)(torch.tensor([row]))) == support(slow.floor_cut(row, epsilon))


@given(ROWS, st.floats(0.001, 0.9))
@settings(deadline=None, max_examples=100)
def test_eta(row: list[float], epsilon: float) -> None:
    floor = slow.eta_floor(row, epsilon)
    assume(slow.floor_margin(row, floor) > 1e-5)
    assert kept(Eta(epsilon)(torch.tensor([row]))) == support(slow.floor_cut(row, floor))


@given(ROWS, st.floats(0.01, 1.0))
@settings(deadline=None, max_examples=100)
def test_top_a(row: list[float], a: float) -> None:
    floor = a * max(slow.softmax(row)) ** 2
    assume(slow.floor_margin(row, floor) > 1e-5)
    assert kept(TopA(a)(torch.tensor([row]))) == support(slow.floor_cut(row, floor))


@given(ROWS, st.floats(0.05, 4.0))
@settings(deadline=None, max_examples=100)
def test_top_n_sigma(row: list[float], n: float) -> None:
    floor = slow.top_n_sigma_floor(row, n)
    assume(min(abs(z - floor) for z in row) > 1e-4 or floor == max(row))
    assert kept(TopNSigma(n)(torch.tensor([row]))) == [z >= floor for z in row]


@given(ROWS, st.floats(0.0, 1.0), st.integers(1, 50))
@settings(deadline=None, max_examples=100)
def test_top_h(row: list[float], h: float, num_candidates: int) -> None:
    expected, margin = slow.top_h(row, h, num_candidates)
    assume(margin > 1e-5)
    assert kept(TopH(h, num_candidates)(torch.tensor([row]))) == support(expected)


@given(ROWS)
@settings(deadline=None, max_examples=100)
def test_p_less(row: list[float]) -> None:
    floor = slow.collision(row)
    assume(slow.floor_margin(row, floor) > 1e-5)
    assert kept(PLess()(torch.tensor([row]))) == support(slow.floor_cut(row, floor)) == support(slow.p_less(row))


def test_p_less_by_hand() -> None:
    rows = torch.tensor([[0.5, 0.25, 0.15, 0.1], [0.4, 0.35, 0.15, 0.1], [0.25, 0.25, 0.25, 0.25]]).log()
    assert (PLess()(rows) > -INF).tolist() == [[True, False, False, False], [True, True, False, False], [True] * 4]
    uniform = torch.full((1, 1000), math.pi)
    assert torch.equal(PLess()(uniform), uniform)


def test_p_less_is_taken_of_what_the_temperature_leaves() -> None:
    logits = rows_of(21)
    counts = [(PLess()(logits / t) > -INF).sum() for t in (0.5, 1.0, 4.0)]
    assert counts[0] < counts[1] < counts[2]


def test_top_n_sigma_does_not_depend_on_temperature() -> None:
    logits = rows_of(11)
    for temperature in (0.3, 5.0):
        scaled = (TopNSigma(1.0)(Temperature(temperature)(logits)) > -INF).float()
        assert (scaled != (TopNSigma(1.0)(logits) > -INF)).float().mean() < 1e-4


def test_exactly_k_takes_the_lowest_ids_of_ties() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0], [-INF, 1.0, -INF, -INF, -INF]])
    assert TopK(2, exact=True)(logits).tolist() == [[1.0, 2.0, *[-INF] * 3], [-INF, 1.0, *[-INF] * 3]]
    assert TopK(3, exact=True)(logits).tolist()[0] == [1.0, 2.0, 1.0, -INF, -INF]
    assert repr(TopK(2, exact=True)) == "TopK(2, exact=True)"
    tied = rows_of(12).round()
    assert (TopK(7, exact=True)(tied) > -INF).sum(dim=-1).tolist() == [7] * 200


# --- transformers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "name", "setting"),
    [
        (Typical(0.2), "TypicalLogitsWarper", 0.2),
        (Typical(0.9), "TypicalLogitsWarper", 0.9),
        (Epsilon(0.02), "EpsilonLogitsWarper", 0.02),
        (Epsilon(0.9), "EpsilonLogitsWarper", 0.9),
        (Eta(0.02), "EtaLogitsWarper", 0.02),
        (Eta(0.5), "EtaLogitsWarper", 0.5),
        (TopH(0.4), "TopHLogitsWarper", 0.4),
        (TopH(0.9), "TopHLogitsWarper", 0.9),
    ],
    ids=repr,
)
def test_equals_transformers(ours: LogitsProcessor, name: str, setting: float) -> None:
    """A decision within rounding may differ: at most one row of 200 does."""
    import transformers

    logits = rows_of(13)
    logits[100:, :10] = -INF
    expected = getattr(transformers, name)(setting)(None, logits)
    differs = (ours(logits, None) != expected).any(dim=-1)
    assert differs.sum() <= 1
    if isinstance(ours, Typical | Epsilon | Eta):
        logits = logits.round()  # ties: kept or removed together on both sides
        assert (ours(logits, None) != getattr(transformers, name)(setting)(None, logits)).any(dim=-1).sum() <= 1


# --- laws of every processor -----------------------------------------------------------------------------------------

TRUNCATIONS: list[LogitsProcessor] = [
    TopK(2), TopK(2, exact=True), TopP(0.7), Typical(0.5), Typical(0.01), Epsilon(0.2), Eta(0.2), TopNSigma(0.5),
    TopA(0.3), TopH(0.4), TopH(0.0), PLess(), XTC(0.5, 0.1), XTC(1.0, 0.1),
    XTC(0.5, 0.1, then=(TopK(2), Temperature(0.5))),
]  # fmt: skip
SHAPES: list[LogitsProcessor] = [DynamicTemperature(0.5, 1.5), Quadratic(0.3), Quadratic(0.3, 2.0)]
BANS: list[LogitsProcessor] = [
    DRY(0.8), NoRepeatNGram(2), SequenceBias({(1,): 0.5, (3, 1): -INF, (3, 0): 1.0}), BadWords([[0, 0, 3]]),
    AllowedTokens([0, 2, 3]), MinTokens(3, (1,)), Watermark(),
]  # fmt: skip


def history_of(logits: Tensor) -> History:
    return History.from_lists([[1, 2]] * len(logits), [[0, 0, 3]] * len(logits))


def applied(processor: LogitsProcessor, logits: Tensor) -> Tensor:
    return processor(logits, history_of(logits) if processor.needs_history else None)


@pytest.mark.parametrize("processor", [*TRUNCATIONS, *SHAPES, *BANS], ids=repr)
class TestLaws:
    def test_all_but_one_removed(self, processor: LogitsProcessor) -> None:
        got = applied(processor, torch.tensor([[-INF, -INF, 1.0, -INF]]))
        assert kept(got) == [False, False, True, False]

    def test_a_removed_token_stays_removed(self, processor: LogitsProcessor) -> None:
        got = applied(processor, torch.tensor([[-INF, 3.0, 1.0, 2.0, -INF]]))
        assert got[0, 0] == got[0, 4] == -INF

    def test_a_row_without_tokens_stays_one(self, processor: LogitsProcessor) -> None:
        assert applied(processor, torch.full((1, 4), -INF)).tolist() == [[-INF] * 4]

    def test_nan_is_not_hidden(self, processor: LogitsProcessor) -> None:
        assert applied(processor, torch.full((1, 4), math.nan)).isnan().any()
        assert applied(processor, torch.tensor([[0.0, -1.0, math.nan, 1.0]])).isnan().any()

    def test_the_argument_is_not_changed(self, processor: LogitsProcessor) -> None:
        logits = rows_of(8, 3, 10)
        before = logits.clone()
        applied(processor, logits)
        assert torch.equal(logits, before)

    def test_rows_do_not_influence_each_other(self, processor: LogitsProcessor) -> None:
        logits = rows_of(9, 5, 10)
        logits[3, 2:] = -INF
        whole = applied(processor, logits)
        assert torch.equal(whole, torch.cat([applied(processor, logits[n : n + 1]) for n in range(5)]))

    @few(11)
    @given(st.one_of(ROWS, EXTREME_ROWS))
    @settings(deadline=None, max_examples=30)
    def test_never_nan(self, processor: LogitsProcessor, row: list[float]) -> None:
        row = (row + [0.0] * 4)[: max(4, len(row))]
        got = applied(processor, torch.tensor([row]))
        assert not got.isnan().any() and not (got == INF).any()


@few(5)
@pytest.mark.parametrize("processor", TRUNCATIONS, ids=repr)
@given(ROWS)
@settings(deadline=None, max_examples=30)
def test_a_truncation_leaves_a_token(processor: LogitsProcessor, row: list[float]) -> None:
    assert (processor(torch.tensor([row]), None) > -INF).any()


LIKELIEST_FIRST: list[Callable[[], LogitsProcessor]] = [
    lambda: Epsilon(0.05), lambda: Eta(0.05), lambda: TopNSigma(1.0), lambda: TopA(0.2), lambda: TopH(0.5),
    PLess,
]  # fmt: skip


@pytest.mark.parametrize("make", LIKELIEST_FIRST)
def test_what_is_likelier_than_a_kept_token_is_kept(make: Callable[[], LogitsProcessor]) -> None:
    logits = rows_of(14).round()
    got = make()(logits, None)
    least_kept = torch.where(got > -INF, logits, INF).amin(dim=-1, keepdim=True)
    assert torch.equal(got > -INF, logits >= least_kept)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Typical(0.0), "typical_p must be a number above 0 and at most 1, got 0.0"),
        (lambda: Epsilon(1.0), "epsilon_cutoff must be a number above 0 and below 1, got 1.0"),
        (lambda: Eta(math.nan), "eta_cutoff must be"),
        (lambda: TopNSigma(0.0), "top_n_sigma must be a finite number above 0"),
        (lambda: TopA(1.5), "top_a must be a number from 0 to 1"),
        (lambda: TopH(-0.1), "top_h must be a number from 0 to 1"),
        (lambda: TopH(0.5, 0), "num_candidates must be an integer of at least 1"),
    ],
)
def test_a_setting_out_of_range_is_refused(make: Callable[[], LogitsProcessor], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        make()
    assert message in str(caught.value)
