"""Points at which a truncation compares what is equal: the row decides the same in every batch, width and layout.

A *point* is a law whose probabilities are known as fractions, a processor whose limit is exactly one of the numbers
that it is compared with, and the tokens that stay by the definition in exact arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

import decodekit as dk
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.wrappers.contrast_model import IMPLAUSIBLE, amateurish, layered
from decodekit.sampling import (
    XTC,
    Candidates,
    Epsilon,
    Eta,
    LogitsProcessor,
    MinP,
    MirostatTruncation,
    Pipeline,
    Temperature,
    TopA,
    TopH,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    apply_mirostat,
    tolerances,
)
from decodekit.sampling.mirostat import mirostat_k
from tests.models import architectures
from tests.reference.generation_tokenizer import small_tokenizer
from tests.sizes import few

INF = math.inf
F = Fraction


@dataclass(frozen=True)
class Bits:
    """Mirostat's cut at so many bits, to be called as a processor is."""

    mu: float

    def __call__(self, logits: Tensor, history: None = None) -> Tensor:
        return apply_mirostat(logits, torch.full((len(logits),), self.mu))


@dataclass(frozen=True)
class Point:
    """Args: the finite logits of a row, what is done to them, the numbers of those that stay."""

    logits: tuple[float, ...]
    processor: Any
    kept: tuple[int, ...]

    def __str__(self) -> str:
        shown = ", ".join(f"{z:.4g}" for z in self.logits[:4])
        return f"{self.processor!r} of {len(self.logits)} tokens {shown}"


def exactly_kept(processor: LogitsProcessor, law: list[Fraction]) -> tuple[int, ...]:
    """By the definitions, in fractions; settings are the decimals that they are written as."""
    largest, setting = max(law), F(str(next(iter(vars(processor).values()))))
    if isinstance(processor, TopP):
        order = sorted(range(len(law)), key=lambda i: (-law[i], i))
        return tuple(sorted(i for place, i in enumerate(order) if sum(law[j] for j in order[:place]) < setting))
    if isinstance(processor, XTC):
        top = [p for p in law if p >= F(str(processor.threshold))]
        return tuple(i for i, p in enumerate(law) if not top or p <= min(top))
    floor = {MinP: setting * largest, Epsilon: setting, TopA: setting * largest**2}[type(processor)]  # type: ignore[index]
    return tuple(i for i, p in enumerate(law) if p >= floor or p == largest)


LAWS = (
    (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4), (0.5, 0.25, 0.25), (0.375, 0.375, 0.125, 0.125), (0.9, 0.1),
    (0.6, 0.3, 0.1), (0.35, 0.35, 0.3), (0.7, 0.1, 0.1, 0.1), (0.55, 0.25, 0.2),
)  # fmt: skip


def points() -> Iterator[Point]:
    """All of them."""
    for n in (*range(1, 9), 1000):  # n equal tokens, by themselves and far from 0
        shares = range(1, n + 1) if n < 9 else (1, 300, 500, 999)
        every = tuple(range(n))
        for shift in (0.0, 1000.0, -1000.0, 1e-3):
            row = (shift,) * n
            for k in shares:
                if k < n:
                    yield Point(row, TopP(k / n), tuple(range(k)))
                yield Point(row, TopH(k / n), every)
                yield Point(row, Typical(k / n), every)
            others: list[Any] = [MinP(1.0), TopA(1.0), TopNSigma(1.0), TopNSigma(1e-9), Bits(math.log2(n)), TopK(1)]
            if n > 1:
                others += [Epsilon(1 / n), Eta(1 / n), Eta(0.999), XTC(1.0, 1 / n)]
            for processor in others:
                yield Point(row, processor, every)
    for row in LAWS:
        law = [F(str(p)) for p in row]
        for shift in (0.0, 1e-3, -5.0):
            logits = tuple(math.log(p) + shift for p in law)
            for share in sorted({sum(sorted(law, reverse=True)[:k], F(0)) for k in range(1, len(law))}):
                yield Point(logits, TopP(float(share)), exactly_kept(TopP(float(share)), law))
            for p in sorted(set(law)):
                limits = [MinP(float(p / max(law))), Epsilon(float(p)), TopA(min(1.0, float(p / max(law) ** 2)))]
                limits += [XTC(1.0, float(p))] if p <= F(1, 2) else []
                for limit in limits:
                    if not isinstance(limit, XTC) and F(str(next(iter(vars(limit).values())))).denominator > 10**6:
                        continue  # no short decimal, so that the point itself is none
                    yield Point(logits, limit, exactly_kept(limit, law))
    half = (math.log(0.5), math.log(0.25), math.log(0.25))  # -ln p is as far from H for all three
    for processor, kept in (
        (Typical(0.25), (0, 1, 2)), (Typical(0.5), (0, 1, 2)), (Typical(0.75), (0, 1, 2)), (Eta(0.5), (0, 1, 2)),
        (TopH(1 / 3), (0,)), (TopH(2 / 3), (0, 1, 2)), (Bits(2.0), (0, 1, 2)), (Bits(1.0), (0,)),
    ):  # fmt: skip
        yield Point(half, processor, kept)
    for n in (3, 5, 6, 7):  # and for all of these
        row = (math.log(0.5), *[math.log(0.5 / n)] * n)
        yield from (Point(row, Typical(mass), tuple(range(n + 1))) for mass in (0.1, 0.5, 0.7))
    steps = tuple(map(math.log, (0.5, 0.25, 0.125, 0.125)))
    for processor, kept in ((TopH(2 / 7), (0,)), (TopH(4 / 7), (0, 1)), (Bits(3.0), (0, 1, 2, 3)), (Bits(2.0), (0, 1))):
        yield Point(steps, processor, kept)
    # k tokens above m others: the others are (k + m) / sqrt(k m) deviations below, whatever the difference.
    for k, m in ((1, 1), (1, 4), (4, 1), (2, 8), (1, 9), (4, 9), (1, 2), (2, 1), (1, 999)):
        n = (k + m) / math.sqrt(k * m)
        for difference in (1e-3, math.log(2), 3.7, 25.0):
            for shift in (0.0, 1000.0, 1e-3):
                row = (*[shift + difference] * k, *[shift] * m)
                yield Point(row, TopNSigma(n), tuple(range(k + m)))
                yield Point(row, TopNSigma(n * (1 - 1e-4)), tuple(range(k)))


Layout: TypeAlias = tuple[str, Tensor, int]
SIZES = (((3, 1),), ((8, 7), (64, 33)), ())
"""Not every point in every batch: the next one has the same limit by other numbers."""
POINTS = list(points())
KINDS = sorted({type(point.processor).__name__ for point in POINTS})


def placed(point: Point, width: int) -> tuple[Tensor, list[int]]:
    """The row with its tokens at places of a wider one, and the places that stay."""
    places = [(7 + 31 * i) % width for i in range(len(point.logits))] if width % 31 else list(range(len(point.logits)))
    row = torch.full((width,), -INF)
    places.sort()
    row[places] = torch.tensor(point.logits, dtype=torch.float32)
    return row, [places[i] for i in point.kept]


@lru_cache(maxsize=8)
def neighbours(width: int) -> Tensor:
    return torch.randn(64, width, generator=torch.Generator().manual_seed(width)) * 3


def layouts(row: Tensor, sizes: Sequence[tuple[int, int]] = ((3, 1), (8, 7), (64, 33))) -> Iterator[Layout]:
    """Batches in which the row stands, and its number there."""
    width = len(row)
    yield "alone", row[None].clone(), 0
    for size, place in sizes:
        batch = neighbours(width)[:size].clone()
        batch[place] = row
        yield f"one of {size}", batch, place
        if size == 3:
            yield "with strides between rows", batch.repeat_interleave(2, dim=0)[::2], place
            yield "with strides between tokens", batch.T.contiguous().T, place
            odd = torch.full((size, width + 1), 5.0)[:, 1:]
            odd.copy_(batch)
            yield "from an odd address", odd, place


def left(logits: Tensor) -> list[int]:
    return (logits > -INF).nonzero().flatten().tolist()


def failures(kind: str, widths: tuple[int, ...] = (0, 50)) -> list[str]:
    """The places where something else stays than should. XTC with probability 1 removes what it cuts."""
    found = []
    for number, point in enumerate([one for one in POINTS if type(one.processor).__name__ == kind]):
        is_small = len(point.logits) < 100
        for extra in widths if is_small else widths[:1]:
            row, kept = placed(point, len(point.logits) + extra)
            for name, batch, place in layouts(row, SIZES[number % len(SIZES)] if is_small else ((3, 1),)):
                if left(point.processor(batch, None)[place]) != kept:
                    found.append(f"{point} {name}, width {len(row)}")
    return found


@few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_decides_as_exact_arithmetic(kind: str) -> None:
    assert failures(kind) == []


@pytest.mark.parametrize("kind", KINDS)
def test_wide_rows_too(kind: str) -> None:
    """From 1,024 tokens on compiled code decides, for top-k, top-p and min-p."""
    some = [point for point in POINTS if type(point.processor).__name__ == kind][::11]
    for point in some:
        row, kept = placed(point, 5000)
        for name, batch, place in layouts(row, ((3, 1),)):
            assert left(point.processor(batch, None)[place]) == kept, f"{point} {name}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_of_every_point_at_the_width_of_a_vocabulary(kind: str) -> None:
    assert failures(kind, (131_072,)) == []


@pytest.mark.parametrize("kind", ["TopP", "MinP", "TopK"])
def test_pipelines_that_narrow_decide_the_same(kind: str) -> None:
    """What makes candidates of rows, beside rows that are too narrow for it."""
    for number, point in enumerate([one for one in POINTS if type(one.processor).__name__ == kind]):
        for width in (len(point.logits) + 50, 5000)[: 1 + (number % 5 == 0)]:
            row, kept = placed(point, width)
            for before in ((), (TopK(1000),), (Temperature(1.0), TopP(1.0))):
                pipeline = Pipeline([*before, point.processor])
                for _, batch, place in islice(layouts(row, ((3, 1),)), 2):
                    rows = pipeline.narrow(batch)
                    dense = rows.dense() if isinstance(rows, Candidates) else rows
                    assert left(dense[place]) == kept, f"{pipeline!r} of {point}, width {width}"


def test_at_least_one_point_of_each_kind_needs_the_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control. Without a margin, numbers in float64 alone do not help: logits are rounded themselves."""
    monkeypatch.setattr(tolerances, "MARGIN", 0.0)
    failing = [kind for kind in KINDS if failures(kind, (0,))]
    assert set(failing) >= {"MinP", "Epsilon", "TopA", "TopNSigma", "Typical", "XTC", "Bits", "TopH", "TopP"}


def test_rounding_decided_two_deviations() -> None:
    """Negative control: the formula in float32, with sums in float64, loses the second of two tokens now and then."""
    rows = torch.randn(300, 2, generator=torch.Generator().manual_seed(0)) * 3
    deviations = rows.double().std(dim=-1, correction=0, keepdim=True)
    floor = rows.amax(dim=-1, keepdim=True) - (2.0 * deviations).to(torch.float32)
    lost = (rows < floor).any(dim=-1)
    assert 20 < int(lost.sum()) < 280
    assert (TopNSigma(2.0)(rows) > -INF).all()


def test_margins_are_small() -> None:
    """What is a thousandth off a limit is decided by the limit, and a share near 1 keeps all but what it names."""
    law = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    for processor, kept in (
        (MinP(0.5005), 2), (MinP(0.4995), 3), (Epsilon(0.2002), 2), (Epsilon(0.1998), 3), (TopP(0.7007), 3),
        (TopP(0.6993), 2), (TopA(0.6257), 3), (TopA(0.6243), 4),
    ):  # fmt: skip
        assert len(left(processor(law, None)[0])) == kept, processor
    assert tolerances.reached(0.5) == 0.5 - tolerances.MARGIN / 2
    assert 1 - tolerances.reached(1 - 1e-9) == pytest.approx(1e-9, rel=1e-4)


def test_limits_are_rounded_up() -> None:
    """No float32 below the limit in float64 passes, and none at it or above fails."""
    peaks = torch.tensor([[1000.0], [-3.3], [0.0], [1e-30], [1e30]])
    for distance in (0.0, 1e-9, 0.1, math.pi, 700.0):
        limits = peaks.double() - distance
        found = tolerances.lowest_kept(peaks, torch.tensor(distance, dtype=torch.float64))
        below = torch.nextafter(found, torch.full_like(found, -INF))
        assert (found.double() >= limits).all() and (below.double() < limits).all()
        assert tolerances.lowest_kept_of(peaks.numpy(), distance).tolist() == found.tolist()
    assert tolerances.lowest_kept(torch.tensor([[-INF, -INF], [INF, 0.0], [math.nan, 0.0]]), 1.0).isnan().all()


def test_plausible_tokens() -> None:
    """Contrasts keep what is at least so likely, too."""
    for law, share, kept in (
        ((0.4, 0.3, 0.2, 0.1), 0.5, 3),
        ((0.5, 0.25, 0.25), 0.5, 3),
        ((0.4, 0.3, 0.2, 0.1), 0.25, 4),
    ):
        for shift in (0.0, 1e-3, -5.0):
            logits = torch.tensor([law]).log() + shift
            for scores in (amateurish(logits, torch.zeros_like(logits), share, 0.5), layered(logits, [logits], share)):
                assert int((scores > IMPLAUSIBLE / 2).sum()) == kept, (law, share, shift)


def test_the_number_of_tokens_of_mirostat_1() -> None:
    """A flat law keeps all its tokens, however many bits."""
    for vocab_size in (2, 3, 7, 10, 100, 1000):
        rows = torch.full((1, vocab_size), 0.5)
        assert int(mirostat_k(rows, torch.tensor([math.log2(vocab_size)]))) == vocab_size
    assert MirostatTruncation(version=1).process(torch.zeros(3, 8), torch.full((3,), 3.0)).tolist() == [[0.0] * 8] * 3


def test_texts_do_not_depend_on_the_batch_where_two_tokens_are_left() -> None:
    """Of two tokens the second is two deviations below, so that the last bits of a model's logits decided each draw."""
    llm = dk.LLM(HuggingFaceLM(architectures.build("llama")), small_tokenizer())
    options: dict[str, Any] = {
        "strategy": dk.Sample(top_n_sigma=2.0, seed=3), "constraint": dk.Regex("[xy]{16}"), "max_new_tokens": 20,
    }  # fmt: skip
    prompts = [f"the {i}" for i in range(6)]
    together = [one.text for one in llm.generate(prompts, batch_size=6, **options)]
    assert together == [llm.generate(prompt, **options).text for prompt in prompts]
    assert all({"x", "y"} <= set(text) for text in together)  # both are left
