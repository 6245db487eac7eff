"""Certificates: a certified leader is the token that is drawn under every mask that allows it, all masks tried."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decodekit.sampling import (
    XTC,
    Epsilon,
    Eta,
    LogitBias,
    LogitsProcessor,
    MinP,
    Pipeline,
    PLess,
    Stage,
    Temperature,
    TopA,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    apply_bitmask,
    greedy,
    sample,
)
from decodekit.sampling.certificates import Flags, Leaders, RankStatistics, Scores, lead_greedy, lead_noisy
from tests.sizes import few

INF = math.inf
LOGITS = (-INF, -2.0, 0.0, 0.5, 1.0, 4.0)
V = 5

TRUNCATIONS: list[LogitsProcessor] = [
    TopK(1),
    TopK(2),
    TopK(3),
    TopK(2, exact=True),
    TopP(0.3),
    TopP(0.5),
    TopP(0.9),
    TopP(1.0),
    MinP(0.0),
    MinP(0.1),
    MinP(0.7),
    Epsilon(0.1),
    Eta(0.3),
    TopA(0.0),
    TopA(0.5),
    TopA(1.0),
    PLess(),
]


def every_mask(size: int) -> Tensor:
    """All masks over `size` tokens, int32 [2^size, 1]."""
    return torch.arange(1 << size, dtype=torch.int32)[:, None]


def every_row(values: tuple[float, ...], size: int) -> Tensor:
    """All rows of so many values with a finite one, float32."""
    rows = torch.tensor(list(product(values, repeat=size)))
    return rows[(rows > -INF).any(dim=-1)]


def wrongly_kept(processor: LogitsProcessor, rows: Tensor) -> tuple[int, int]:
    """How many tokens of the rows are certified, and how many of those some mask removes."""
    num_certified = num_wrong = 0
    for token in range(rows.shape[1]):
        with_token = rows[rows[:, token] > -INF]
        kept = processor.keeps(RankStatistics(with_token, torch.full((len(with_token),), token)))
        certified = with_token[torch.from_numpy(kept)]
        num_certified += len(certified)
        is_removed = torch.zeros(len(certified), dtype=torch.bool)
        for mask in every_mask(rows.shape[1]):
            if int(mask) >> token & 1:
                left = processor(apply_bitmask(certified, mask.expand(len(certified), 1)), None)
                is_removed |= left[:, token] == -INF
        num_wrong += int(is_removed.sum())
    return num_certified, num_wrong


@few(8)
@pytest.mark.parametrize("processor", TRUNCATIONS, ids=repr)
def test_a_certified_token_is_kept_under_every_mask(processor: LogitsProcessor) -> None:
    num_certified, num_wrong = wrongly_kept(processor, every_row(LOGITS, V))
    assert num_certified > 1000
    assert num_wrong == 0


class KeptUnmasked(LogitsProcessor):
    """A negative control: certifies what the truncation keeps without a mask."""

    stage = Stage.TRUNCATION

    def __init__(self, inner: LogitsProcessor) -> None:
        self.inner = inner

    def keeps(self, standing: RankStatistics) -> Flags:
        kept = self.inner(standing.logits, None).gather(1, standing.tokens[:, None])[:, 0] > -INF
        return kept.numpy()

    def __call__(self, logits: Tensor, history: object = None) -> Tensor:
        return self.inner(logits, None)


@pytest.mark.parametrize("processor", [TopP(0.9), Typical(0.5), TopNSigma(1.0), TopH(0.5)], ids=repr)
def test_what_is_kept_without_a_mask_may_be_removed_with_one(processor: LogitsProcessor) -> None:
    assert wrongly_kept(KeptUnmasked(processor), every_row(LOGITS, V))[1] > 0


@pytest.mark.parametrize("processor", [Typical(0.5), TopNSigma(1.0), TopH(0.5), XTC(0.5, 0.1)], ids=repr)
def test_other_processors_certify_nothing(processor: LogitsProcessor) -> None:
    assert not processor.certifies
    assert not Pipeline([Temperature(0.5), processor]).certifies
    assert not processor.keeps(RankStatistics(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))).any()


PIPELINES = [
    Pipeline([]),
    Pipeline([Temperature(0.8)]),
    Temperature(0.8) | TopK(2) | TopP(0.9) | MinP(0.05),
    TopP(0.8) | Temperature(2.0),
    TopK(3) | TopP(0.7),
    LogitBias({1: -INF, 2: 1.0}) | TopP(0.6) | TopK(2),
    TopA(0.3) | Eta(0.2) | Temperature(0.5),
]


def keys_of(count: int) -> tuple[list[int], list[int], list[int]]:
    return [3] * count, [0] * count, list(range(count))


@few(4)
@pytest.mark.parametrize("pipeline", PIPELINES, ids=repr)
@pytest.mark.parametrize("is_drawn", [False, True])
def test_a_certified_leader_is_the_token_under_every_mask_that_allows_it(pipeline: Pipeline, is_drawn: bool) -> None:
    rows = every_row((-INF, -1.0, 0.0, 0.25, 3.0), V)
    keys = keys_of(len(rows))
    found = pipeline.leaders(rows, None, lambda z, floor: lead_noisy(z, *keys, floor) if is_drawn else lead_greedy(z))
    assert np.mean(found.are_certified) > 0.3
    leaders, num_compared = found.tokens.numpy(), 0
    for mask in every_mask(V):
        chosen = np.flatnonzero(found.are_certified & (int(mask) >> leaders & 1).astype(bool))
        left = pipeline.narrow(rows[chosen], None, mask.expand(len(chosen), 1))
        taken = sample(left, *([one[i] for i in chosen] for one in keys)) if is_drawn else greedy(dense(left))
        assert (taken.numpy() == leaders[chosen]).all()
        num_compared += len(chosen)
    assert num_compared > 5 * len(rows)


def dense(rows: object) -> Tensor:
    return rows if isinstance(rows, Tensor) else rows.dense()  # type: ignore[attr-defined,no-any-return]


@given(st.integers(0, 2**32), st.sampled_from([64, 2048, 4096, 5000]), st.sampled_from([0.3, 1.0, 3.0, 8.0]))
def test_leaders_are_drawn_tokens_in_rows_of_any_width(seed: int, width: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(3, width, generator=generator) * spread
    rows[1].clamp_(max=float(rows[1].topk(4).values[3]))  # four equal ones at the top
    keys = [seed] * 3, [0, 1, 2], [0, 5, 9]
    found = lead_noisy(Scores(rows), *keys)
    drawn = sample(rows, *keys)
    assert (drawn[torch.from_numpy(found.are_certified)] == found.tokens[torch.from_numpy(found.are_certified)]).all()
    assert found.are_certified.any()
    assert lead_greedy(Scores(rows)).tokens.tolist() == greedy(rows).tolist() == rows.argmax(dim=-1).tolist()


@pytest.mark.parametrize("width", [4096, 6000])
def test_leaders_above_a_floor_hold_under_masks_that_allow_what_is_given(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    pipeline = Temperature(0.9) | TopK(40) | TopP(0.98) | MinP(0.02)
    num_clear = num_given = num_differing = 0
    for number in range(60):
        rows = torch.randn(4, width, generator=generator) * 2
        rows[:, :8] += torch.linspace(9, 5, 8)
        keys = [number] * 4, [0, 1, 2, 3], [number] * 4
        found = pipeline.leaders(rows, None, lambda z, floor, keys=keys: lead_noisy(z, *keys, floor))  # type: ignore
        plain = pipeline.leaders(rows, None, lambda z, floor, keys=keys: lead_noisy(z, *keys))  # type: ignore
        assert not (plain.are_certified & ~found.are_certified).any()
        num_clear += int(found.are_certified.sum())
        num_given += int((found.given != found.tokens).sum())
        for share in (0.1, 0.6, 0.95):
            allowed = torch.rand(rows.shape, generator=generator) >= share
            for tokens in (found.tokens, found.given):
                allowed[torch.arange(4), tokens] = True
            masked = rows.masked_fill(~allowed, -INF)
            drawn = sample(pipeline.narrow(masked), *keys)
            clear = torch.from_numpy(found.are_certified)
            assert (drawn == found.tokens)[clear].all()
            allowed[torch.arange(4), found.given] = found.given == found.tokens  # the control
            again = sample(pipeline.narrow(rows.masked_fill(~allowed, -INF)), *keys)
            num_differing += int((again != found.tokens)[clear].sum())
    assert num_clear > 200 and num_given > 20
    assert num_differing > 0  # what is given matters


@pytest.mark.parametrize("value", [math.nan, INF, None])
@pytest.mark.parametrize("width", [8, 4096])
def test_faulty_rows_have_no_clear_leader(value: float | None, width: int) -> None:
    rows = torch.zeros(2, width)
    rows[0, 3] = 50.0
    if value is None:
        rows[1] = -INF
    else:
        rows[1, 2] = value
    for found in (lead_greedy(Scores(rows)), lead_noisy(Scores(rows), [1, 1], [0, 0], [0, 0])):
        assert not found.are_certified[1]
    assert lead_greedy(Scores(rows)).are_certified[0]


def test_sums_that_rounding_could_decide_are_not_clear() -> None:
    keys = [1], [0], [0]
    rows = torch.zeros(1, 64)
    winner = lead_noisy(Scores(rows), *keys)
    assert winner.are_certified[0]
    best = int(winner.tokens[0])
    gap = 0.0
    noisy = sample(rows, *keys)
    assert int(noisy[0]) == best
    for step in np.arange(0.0, 20.0, 0.25):  # another token is raised until it leads
        rows[0, (best + 1) % 64] = step
        if int(sample(rows, *keys)[0]) != best:
            gap = step
            break
    low, high = gap - 0.25, gap
    for _ in range(40):
        middle = (low + high) / 2
        rows[0, (best + 1) % 64] = middle
        low, high = (low, middle) if int(sample(rows, *keys)[0]) != best else (middle, high)
    rows[0, (best + 1) % 64] = high
    assert not lead_noisy(Scores(rows), *keys).are_certified[0]


def test_what_is_searched_of_a_row_on_an_accelerator_bounds_what_is_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere:
        """Rows that say that they are on another device."""

        def __init__(self, rows: Tensor) -> None:
            self.rows, self.shape, self.device = rows, rows.shape, torch.device("meta")

        def __getattr__(self, name: str) -> object:
            return getattr(self.rows, name)

    monkeypatch.setattr("decodekit.sampling.certificates.SEARCHED", 3)
    rows = every_row((-1.0, 0.0, 2.0), V)
    for token in range(V):
        tokens = torch.full((len(rows),), token)
        here, there = RankStatistics(rows, tokens), RankStatistics(Elsewhere(rows), tokens)  # type: ignore[arg-type]
        for processor in (TopK(2), TopP(0.7), MinP(0.2)):
            assert not (processor.keeps(there) & ~processor.keeps(here)).any()
            assert processor.keeps(there).any()


def test_no_rows_have_no_leaders() -> None:
    found = (TopK(2) | TopP(0.5)).leaders(torch.zeros(0, 7), None, lambda scores, floor: lead_greedy(scores))
    assert isinstance(found, Leaders) and len(found.tokens) == len(found.are_certified) == 0


def wide_rows(seed: int, width: int = 4500) -> Tensor:
    """Rows of four kinds: smooth, with many ties, with most tokens forbidden, with a peak."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(4, width, generator=generator) * 3
    rows[1] = rows[1].round()
    rows[2, torch.rand(width, generator=generator) < 0.95] = -INF
    rows[3, seed % width] = 25.0
    return rows


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
def test_scores_are_looked_at_as_divided_rows_are(temperature: float) -> None:
    num_clear = 0
    for seed in range(20):
        rows = wide_rows(seed)
        scores, divided = Scores(rows).divided_by(temperature), Scores(Temperature(temperature)(rows))
        keys = [seed] * 4, [0] * 4, [1, 2, 3, 4]
        found, expected = lead_noisy(scores, *keys), lead_noisy(divided, *keys)
        assert (found.are_certified == expected.are_certified).all()
        assert (found.tokens == expected.tokens)[torch.from_numpy(found.are_certified)].all()
        num_clear += int(found.are_certified.sum())
        for rank in (0, 1, 5, 100, 400):  # among the 256 likeliest, and not
            tokens = rows.topk(rank + 1, dim=-1).indices[:, -1]
            assert (rows.gather(1, tokens[:, None]) > -INF).all() or rank == 400
            quick, slow = RankStatistics(scores, tokens), RankStatistics(divided.rows, tokens)
            is_there = rows.gather(1, tokens[:, None])[:, 0].numpy() > -INF
            for one, other in zip(quick.distances[is_there], slow.distances[is_there], strict=True):
                assert sorted(one[one > -INF]) == sorted(other[other > -INF])
            for processor in (TopK(3), TopK(101, exact=True), TopP(0.9), MinP(0.05), Epsilon(0.01)):
                assert (processor.keeps(quick)[is_there] == processor.keeps(slow)[is_there]).all()
    assert num_clear > 40


def test_a_forbidden_token_is_certified_by_nothing() -> None:
    rows = wide_rows(3)
    tokens = (rows == -INF).float().argmax(dim=-1)[2].expand(4)
    for processor in (TopK(3), TopP(0.9), MinP(0.05)):
        assert not processor.keeps(RankStatistics(Scores(rows), tokens))[2]


def test_a_leader_and_its_certificates_divide_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def counted(logits: Tensor, temperature: float) -> Tensor:
        calls.append(temperature)
        return logits if temperature == 1.0 else logits / temperature

    monkeypatch.setattr("decodekit.sampling.certificates.divided", counted)
    keys = keys_of(4)
    pipeline = Temperature(0.8) | TopK(50) | TopP(0.95) | MinP(0.05)
    found = pipeline.leaders(wide_rows(1), None, lambda scores, floor: lead_noisy(scores, *keys, floor))
    assert found.are_certified.any() and set(calls) <= {1.0}
    twice = Temperature(0.8) | Temperature(0.5) | TopK(50)  # the control: 0.4 at once would be rounded otherwise
    twice.leaders(wide_rows(1), None, lambda scores, floor: lead_noisy(scores, *keys, floor))
    assert [one for one in calls if one != 1.0] == [0.8]


def test_scores_that_overflow_have_no_leader() -> None:
    rows = torch.zeros(2, 4097)
    rows[:, 4096] = 1e4  # alone in its block
    rows[1, 4096] = 1.0
    found = lead_noisy(Scores(rows, 1e-35), *keys_of(2))
    assert found.are_certified.tolist() == [False, True]
