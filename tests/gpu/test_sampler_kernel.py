"""The kernels of the sampler: interpreted against their twin, and compiled for an H100 without one."""

from __future__ import annotations

import importlib.util
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from decodekit.gpu import draw_settings, sampler
from decodekit.gpu.sampler import chosen
from tests.gpu.rows import Setting, drawn_rows, values_of
from tests.sizes import sized

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton: pip install triton", allow_module_level=True)

from decodekit.gpu.kernels import sampler_kernel
from tests.gpu.interpreting import interpreted, interpreter
from tests.gpu.offline import CARDS, compiled


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Interpreted, with small blocks."""
    module = interpreted("decodekit.gpu.kernels.sampler_kernel")
    monkeypatch.setattr(module, "BLOCK", 32)
    with interpreter():
        yield module


def assert_same(
    kernel: Any,
    logits: Tensor,
    settings: list[Setting],
    keys: Tensor,
    masks: Tensor | None,
    ids: Tensor | None,
    is_asked: bool = True,
    width: int = 1,
) -> None:
    has_cut = any(one[1] or one[2] < 1 for one in settings)
    values = torch.from_numpy(draw_settings.packed(settings, *keys.tolist(), width, is_asked))
    if ids is not None:
        values[draw_settings.MASKS :] = ids.view(-1, width).T
    given = logits, values, masks, width, has_cut
    assert kernel.launched(*given).tolist() == chosen(*given).tolist(), (settings, logits.tolist())


@sized("num_batches", 5, slow=600)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_the_kernels_are_their_twin(kernel: Any, num_batches: int) -> None:
    draw = random.Random(10)
    for _ in range(num_batches):
        batch = drawn_rows(draw, vocab_size=draw.choice((1, 2, 5, 31, 33, 64, 200)))
        assert_same(kernel, *batch, is_asked=draw.random() < 0.7)


@pytest.mark.slow
@sized("num_batches", 6, slow=600)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_one_launch_is_its_twin(kernel: Any, num_batches: int) -> None:
    """Rows without top-k and top-p: what min-p keeps is not known when blocks are looked at."""
    draw = random.Random(11)
    for _ in range(num_batches):
        logits, settings, *rest = drawn_rows(draw, vocab_size=draw.choice((1, 2, 31, 33, 64, 200)))
        settings = [(temperature, 0, 1.0, min_p, is_greedy) for temperature, _, _, min_p, is_greedy in settings]
        assert_same(kernel, logits, settings, *rest, is_asked=draw.random() < 0.5)


def test_a_small_world_through_the_kernels(kernel: Any) -> None:
    """All rows of two logits out of four numbers, each under all of some settings, in one call."""
    rows = list(itertools.product((0.0, 1.0, -math.inf, math.nan), repeat=2))
    settings = list(itertools.product((1.0, 0.5), (0, 1), (1.0, 0.6), (0.0, 0.5), (False,)))
    world = list(itertools.product(rows, settings))[::23]
    logits = torch.tensor([row for row, _ in world])
    keys = torch.stack([torch.arange(len(world)), torch.zeros(len(world)), torch.ones(len(world))]).long()
    assert_same(kernel, logits, [setting for _, setting in world], keys, None, None)


@pytest.mark.parametrize("fault", [None, "other tokens", "an error"])
def test_a_device_where_the_programs_differ_draws_by_the_twin(
    fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of the twin in place of the programs, with and without a fault of one token in one row."""

    def launched(logits: Tensor, *others: Any) -> Tensor:
        found = chosen(logits, *others)
        if fault == "an error":
            raise RuntimeError("out of resources")
        found[5, 0] += fault is not None
        return found

    monkeypatch.setattr(sampler_kernel, "launched", launched)
    monkeypatch.setattr(sampler, "missing", lambda: None)
    why = sampler.why_no_kernel.__wrapped__(torch.device("cpu"))
    assert (
        why
        == {
            None: None,
            "other tokens": "the programs of the sampler draw other tokens than their twin",
            "an error": "the programs of the sampler do not run: out of resources",
        }[fault]
    )


def test_a_device_without_memory_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that runs out once says nothing of the programs: the row is tried again, and so is the question."""

    def launched(*given: Any) -> Tensor:
        raise torch.OutOfMemoryError("out of memory (injected)")

    monkeypatch.setattr(sampler, "missing", lambda: None)
    sampler.why_no_kernel.cache_clear()
    monkeypatch.setattr(sampler_kernel, "launched", launched)
    with pytest.raises(torch.OutOfMemoryError):
        sampler.why_no_kernel(torch.device("cpu"))
    monkeypatch.setattr(sampler_kernel, "launched", chosen)
    assert sampler.why_no_kernel(torch.device("cpu")) is None
    sampler.why_no_kernel.cache_clear()


def test_a_noise_of_another_place_would_be_seen(kernel: Any) -> None:
    """A negative control."""
    logits, keys = torch.zeros(4, 64), torch.tensor([[1, 2, 3, 4], [0] * 4, [0] * 4])
    settings: list[Setting] = [(1.0, 0, 1.0, 0.0, False)] * 4
    expected = chosen(logits, values_of(settings, keys, None), None, 1, False)
    found = kernel.launched(logits, values_of(settings, keys + 1, None), None, 1, False)
    assert found[:, 0].tolist() != expected[:, 0].tolist()


ROADS: Final = {
    "a list of all tokens down to a bin": "w",
    "a list of a bin alone": "b",
    "a list of an interval that is halved": "o[wb]",
    "an interval that is halved several times": "ooo",
    "top-k ends where tokens are not counted": "e[wb]r",
    "there are too few tokens": "e[wb](?!r)",
    "one list for top-k and top-p": "wrr",
    "a list for each": "br[owb]",
    "a bin tells that the best token is kept": "^B$",
    "a bin tells that the best one of what may be kept is kept": "^BB+$",
    "a token from the list": "L",
    "a token from blocks": "[wb]r*B",
}
"""What happens to a row with top-k or top-p, as letters in its word: see `roads`."""


@pytest.fixture
def roads(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of rows that are drawn, with short lists.

    A walk lists all tokens from the top (w), those of a bin or an interval (b), or finds too many (o), behind an e if
    it goes beyond the bins. r is a bisection, B opens blocks, L draws from a list.
    """
    words: list[str] = []
    monkeypatch.setattr(kernel, "BLOCK", 64)
    monkeypatch.setattr(kernel, "_LIST", kernel.tl.constexpr(16))

    def walked(result: Any, *given: Any) -> str:
        first, last, _low, high = (one.handle.data.item() for one in given[3:7])
        is_whole = first == 0 and high == 2**63 - 1
        listed = "o" if result[0].handle.data.item() > 16 else "w" if is_whole else "b"
        return "e" * (last == kernel._LAST.value) + listed

    def told(name: str, letters: Callable[..., str]) -> None:
        before = getattr(kernel, name)

        def called(*given: Any) -> Any:
            words.extend([""] * (name in ("_decided", "_count")))
            result = before(*given)
            words[-1] += letters(result, *given)
            return result

        monkeypatch.setattr(kernel, name, called)

    told("_walk", walked)
    for name, letter in {"_decided": "", "_count": "", "_reached": "r", "_best_of": "B", "_best_listed": "L"}.items():
        told(name, lambda *_, letter=letter: letter)
    return words


def row_with_cuts(draw: random.Random, row: Tensor, setting: Setting) -> tuple[Tensor, Setting]:
    """A row as wide as it may be, or within one bin, and with top-k or top-p."""
    row = row * draw.choice((1e-4, 0.05, 1, 1, 3, 40))
    if draw.random() < 0.3:
        row = (row * 4).round() / 4  # ties in many blocks
    tops = draw.choice((1, 3, 12, 40, 90, len(row) - 1)), draw.choice((1e-3, 0.3, 0.9, 0.95, 0.9999, 1 - 2**-53))
    top_k, top_p = draw.choice(((tops[0], 1.0), (0, tops[1]), (0, tops[1]), tops))
    return row, (setting[0], top_k, top_p, draw.choice((0.0, 0.0, 0.05)), False)


@sized("num_batches", 8, slow=200)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_every_road_to_a_cut_ends_where_its_twin_does(kernel: Any, roads: list[str], num_batches: int) -> None:
    draw = random.Random(18)
    for _ in range(num_batches):
        vocab_size = draw.choice((70, 200, 333))
        logits, settings, keys, *masks = drawn_rows(draw, vocab_size=vocab_size, are_sound=True)
        made = [row_with_cuts(draw, *one) for one in zip(logits.float(), settings, strict=True)]
        rows = torch.stack([row for row, _ in made]).to(draw.choice((torch.float32, torch.float16)))
        width, is_asked = 2 - len(made) % 2, draw.random() < 0.5  # rows of one text, two by two
        settings, keys = [setting for _, setting in made[::width]], keys[:, ::width]
        assert_same(kernel, rows, settings, keys, *masks, is_asked, width)
    seen = {name: sum(re.search(letters, word) is not None for word in roads) for name, letters in ROADS.items()}
    assert sum(number > 0 for number in seen.values()) >= (6 if num_batches == 8 else len(ROADS)), seen


def test_a_cut_that_is_off_by_one_token_would_be_seen(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control."""
    logits, keys = torch.arange(0.0, -32, -1).expand(8, 32) * 0.01, torch.tensor([[*range(8)], [0] * 8, [0] * 8])
    settings: list[Setting] = [(1.0, 2, 1.0, 0.0, False), (1.0, 0, 0.05, 0.0, False)] * 4
    given = logits, values_of(settings, keys, None), None, 1, True
    before = kernel._reached
    monkeypatch.setattr(kernel, "_reached", lambda *given: before(*given) + 1)
    differs = kernel.launched(*given)[:, 0] != chosen(*given)[:, 0]
    assert differs[::2].any() and differs[1::2].any()


def launches(has_cut: bool, width: int = 1, has_masks: bool = True) -> list[Any]:
    """The end of a step: sixteen texts of 152,064 logits at some positions."""
    num_texts, vocab_size = 16, 152_064

    def made(*shape: int, kind: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    logits = made(num_texts * width, vocab_size, kind=torch.bfloat16)
    masks = made(9, vocab_size // 32) if has_masks else None
    step = (*(made(num_texts) for _ in range(3)), made(num_texts, width), made(99, kind=torch.int64))
    step = (*step, made(num_texts, 3 * width + 1))
    values, drawn = made(draw_settings.MASKS + width, num_texts), made(num_texts * width, 4)
    return sampler_kernel.launches(logits, values, masks, width, has_cut, step, drawn=drawn)


def test_launches_are_as_many_as_the_module_says() -> None:
    assert [len(launches(has_cut, width)) for width in (1, 4) for has_cut in (False, True)] == [1, 2] * 2


@pytest.mark.parametrize(
    ("place", "case"),
    [
        (0, (False,)),
        (0, (True, 1, False)),
        pytest.param(0, (False, 16), marks=pytest.mark.slow),
        pytest.param(0, (False, 1, False), marks=pytest.mark.slow),
        *(pytest.param(1, (True, width), marks=pytest.mark.slow) for width in (1, 4)),
    ],
)
@pytest.mark.parametrize("capability", [80, 90])
def test_they_compile(place: int, case: tuple[Any, ...], capability: int) -> None:
    kernel, _, arguments, constants, num_warps = launches(*case)[place]
    found = compiled(kernel, arguments, constants, num_warps, capability, **sampler_kernel._OPTIONS)
    assert found.spilled <= 16  # where ptxas makes room for one program more
    assert found.shared <= CARDS[capability].shared_bytes
    # A weight is the same number everywhere.
    assert "fma.rn.f32" not in found.ptx
    assert "div.full.f32" not in found.ptx and "div.rn.f32" in found.ptx
