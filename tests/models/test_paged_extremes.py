"""Nothing over pages depends on the number of rows being small, or on their lengths being alike; nothing is held."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from decodekit.decoding.draws.device_step import DecodeStep
from decodekit.decoding.loop.device_pass import DevicePass
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.runners import paged
from decodekit.models.runners.captured import Run
from decodekit.models.runners.paged import Variant
from decodekit.models.runners.ragged import RaggedModel
from tests.models.architectures import build, tokens
from tests.models.recording import RecordedCapture
from tests.sizes import sized


def longest(num_tokens: int) -> Any:
    """A Llama of two layers with room for so many tokens of a row."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=64, max_position_embeddings=num_tokens, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def first_tokens(num_rows: int) -> torch.Tensor:
    return torch.tensor([[tokens(row, 1)[0] % 60] for row in range(num_rows)])


def sizes_captured(model: RaggedModel) -> set[int]:
    """For how many rows steps were captured."""
    assert model.paged is not None and model.paged._rows is not None
    captured = model.paged.steps_over(model.paged._rows).captured
    return {num_rows for (_, num_rows, _), one in captured.items() if one is not None}


def replays_of(
    model: RaggedModel, counts: Sequence[int], expected: Sequence[Sequence[torch.Tensor]]
) -> tuple[dict[int, int], set[int]]:
    """How many of two steps of so many rows were replayed, and for how many rows steps were captured.

    Args:
        expected: the logits of each row alone.
    """
    sizes = set[int]()
    found = {}
    for count in counts:
        assert model.paged is not None
        before = model.paged.num_replays
        cache = model.new_cache(count, 8)
        first = first_tokens(count)
        for step in range(2):
            out = model.forward(first + step, [1] * count, cache, None, "last")
            wanted = torch.stack([rows[step] for rows in expected[:count]])
            assert torch.allclose(out, wanted, atol=1e-4), count
        assert not torch.allclose(out[: count // 2], wanted.roll(1, 0)[: count // 2], atol=1e-4) or count < 4
        del cache
        found[count] = model.paged.num_replays - before
        sizes |= sizes_captured(model)  # beyond 256 rows each count has new tables
    return found, sizes


def alone(model: RaggedModel, num_rows: int) -> list[list[torch.Tensor]]:
    """The logits of two steps of each row, in a cache of its own."""
    cache = model.new_cache(1, 8)
    found = []
    for row in range(num_rows):
        cache.reset([0])
        first = first_tokens(row + 1)[row:]
        found.append([model.forward(first + step, [1], cache, None, "last")[0] for step in range(2)])
    return found


@pytest.mark.slow
@sized("most", 160, slow=1024)
def test_any_number_of_rows_is_captured(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps of 1, 2, 4 ... 256, 320 ... rows, each replayed at once; a row is what it is alone."""
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    model = RaggedModel(longest(64), use_pages=True, capture=RecordedCapture())
    counts = [count for count in (1, 2, 3, 5, 33, 100, 160, 256, 257, 320, 700, 1024) if count <= most]
    sizes = {1, 2, 4, 8, 64, 128, 192} | ({256, 320, 704, 1024} if most == 1024 else set())
    assert replays_of(model, counts, alone(model, most)) == (dict.fromkeys(counts, 2), sizes)
    assert model.paged is not None and model.paged.not_captured == []


def test_a_size_that_is_not_captured_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the second capture, of two rows, fails."""

    class Once(RecordedCapture):
        def __call__(self, run: Run, plain: Run | None = None) -> Run:
            if len(self.num_operations) == 1:
                self.num_operations.append(0)
                raise RuntimeError("not now")
            return super().__call__(run)

    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    model = RaggedModel(longest(64), use_pages=True, capture=Once())
    assert replays_of(model, (1, 2, 3), alone(model, 3)) == ({1: 2, 2: 0, 3: 2}, {1, 4})


def long_beside_short(length: int) -> tuple[RaggedModel, list[Any], Any, torch.Generator]:
    """A model with caches of a row of 10 tokens and of one of very many, and a cache of both.

    Random keys and values take the place of a prompt, which would take minutes here.
    """
    model = RaggedModel(longest(length + 64), use_pages=True)
    generator = torch.Generator().manual_seed(1)
    caches: list[Any] = [model.new_cache(1, length + 64) for _ in range(2)]
    both: Any = model.new_cache(2, length + 64)
    for row, (cache, count) in enumerate(zip(caches, (10, length), strict=True)):
        cache.reach([count], None)
        for numbers in numbers_of(cache, 0):
            numbers.normal_(generator=generator)
        cache.commit([count], None)
        both.begin_with(row, cache.keep(0, count), count)
    return model, caches, both, generator


def numbers_of(cache: Any, row: int) -> list[torch.Tensor]:
    """Keys and values of each page of a row."""
    return [
        group.bytes_of(page).view(torch.float32)
        for group in cache.rows.groups
        for page in group.rows[cache.places[row]]
        if page >= 0
    ]


def test_a_long_row_beside_a_short_one() -> None:
    """One step over rows of 10 and of very many tokens is that of each alone; and so is a draft."""
    length = 100_000
    model, caches, both, generator = long_beside_short(length)
    for width in (1, 4):
        new = torch.randint(64, (2, width), generator=generator)
        found = model.forward(new, [width] * 2, both, None, "last")
        for row, cache in enumerate(caches):
            alone = model.forward(new[row : row + 1], [width], cache, None, "last")[0]
            assert torch.allclose(found[row], alone, atol=1e-5), (row, width)
    assert both.row_lengths == (15, length + 5)


def test_a_page_of_a_long_row_that_is_another_would_be_seen() -> None:
    """Negative control: one of three thousand pages, wherever it is."""
    length = 100_000
    model, _, both, generator = long_beside_short(length)
    new = torch.randint(64, (2, 1), generator=generator)

    def logits() -> torch.Tensor:
        both.truncate([10, length])
        return model.forward(new, [1, 1], both, None, "last")

    expected, pages = logits(), numbers_of(both, 1)
    assert len(pages) > 3000
    for place in (0, len(pages) // 2, -2):  # the last one has room for the new token alone
        kept = pages[place].clone()
        pages[place].normal_(generator=generator)
        found = logits()
        pages[place].copy_(kept)
        assert torch.equal(found[0], expected[0]) and not torch.allclose(found[1], expected[1], atol=1e-4), place
    assert torch.equal(logits(), expected)


def dies(reference: weakref.ref[Any], tries: int = 20) -> bool:
    """Whether an object is gone; a thread may be about to let it go."""
    for _ in range(tries):
        gc.collect()
        if reference() is None:
            return True
        time.sleep(0.02)
    return False


class SeenSteps(paged.Steps):
    """Steps that a weak reference can see."""


class SeenCaptured(paged._Captured):
    """A captured step that a weak reference can see."""


class OnDevice(torch.Tensor):
    """The result of a step on a device that is not there."""

    is_cuda = True


def things_of(lm: Any, is_compiled: bool = False) -> dict[str, Any]:
    """All that decoding makes beside a model, by name; after steps that were captured, of the model and of the loop."""
    model = lm.runner if isinstance(lm, HuggingFaceLM) else lm
    model.paged.capture = RecordedCapture()
    if is_compiled:
        model.paged._compiler = lambda graph, inputs: graph.forward
        assert model.paged.compile_layers(), model.paged.not_compiled
    cache: Any = lm.new_cache(2, 64)
    for step in range(3):
        lm.forward(torch.full((2, 1), step), [1, 1], cache, rows=None, logits="last")
    cache.reset([0, 1])
    ahead = DevicePass(lm, model.paged, cache)
    assert ahead.warm_up(2, 1, False)
    ahead._download(torch.zeros(2, 4, dtype=torch.int32).as_subclass(OnDevice))
    steps = model.paged.steps_over(cache.rows)
    [captured] = [one for one in steps.captured.values() if one is not None]
    [decoding] = [one for one in steps.programs.values() if isinstance(one, DecodeStep)]
    return {
        "model": lm.model if isinstance(lm, HuggingFaceLM) else lm,
        "modules": model.paged._variants[Variant(is_compiled)],
        "over pages": model.paged,
        "tables": cache.rows,
        "arena": cache.rows.groups[0].store.arenas[0],
        "steps": steps,
        "captured step": captured,
        "graph": captured.run,
        "state": captured.state,
        "buffer of a state": captured.state._buffers[0],
        "decoding step": decoding,
        "graph of a decoding step": decoding._run,
        "buffer of a decoding step": decoding.state._buffers[0],
        "mask pool": ahead._pool(),
        "run ahead": ahead,
        "buffer of what comes back": ahead._there[4][0],
    }


def left_of(make: Callable[[], dict[str, Any]], kept: str | None = None) -> set[str]:
    """The names of things that are still there when all of them were let go but one."""
    things = make()
    references = {name: weakref.ref(thing) for name, thing in things.items()}
    held = things.get(kept or "")
    things.clear()
    torch._dynamo.reset()  # what was compiled is of the process
    found = {name for name, reference in references.items() if not dies(reference, 20 if held is None else 1)}
    del held
    return found


@pytest.fixture
def quick_collections() -> Iterator[None]:
    """The collector looks at what the test makes alone."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, quick_collections: None) -> None:
    """Steps are captured at once, weak references see all parts, and what comes back is brought by buffers."""
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    monkeypatch.setattr(paged, "PROOFS", paged.PROOFS[:2])  # one kind of calls is enough here
    monkeypatch.setattr(paged, "Steps", SeenSteps)
    monkeypatch.setattr(paged, "_Captured", SeenCaptured)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "Event", MagicMock())
    monkeypatch.setattr(torch.cuda, "current_stream", MagicMock())


@sized("is_compiled", False, slow=True)
def test_nothing_is_held(is_compiled: bool, seen: None) -> None:
    """Tables, arenas, captured steps, their buffers, mask pools and compiled copies die with their model."""
    torch._dynamo.reset()
    assert left_of(lambda: things_of(HuggingFaceLM(build("llama"), tier="paged"), is_compiled)) == set()


@pytest.mark.slow
def test_each_thing_that_is_held_is_seen(seen: None) -> None:
    """Negative control: one thing alone is held, each in its turn."""

    def make() -> dict[str, Any]:
        return things_of(RaggedModel(build("llama"), use_pages=True))

    names = list(make())
    assert {name: name in left_of(make, name) for name in names} == dict.fromkeys(names, True)


def test_a_thread_that_compiles_lets_its_model_go(monkeypatch: pytest.MonkeyPatch, quick_collections: None) -> None:
    """It holds the model while it compiles, which is the control, and nothing afterwards."""
    begun, goes_on = threading.Event(), threading.Event()

    def compiled_copy(*_: object) -> Any:
        begun.set()
        goes_on.wait(30)
        raise RuntimeError("nothing compiles here")

    monkeypatch.setattr(paged, "compiled_copy", compiled_copy)
    before = threading.enumerate()
    model = RaggedModel(build("llama"), use_pages=True, compiler="eager")
    assert model.paged is not None
    model.device = torch.device("cuda")
    model.paged._num_steps = paged.COMPILE_AFTER - 1
    model.paged.note_step()
    [thread] = [one for one in threading.enumerate() if one not in before]
    references = [weakref.ref(one) for one in (thread, model, model.paged, model.module)]
    del thread, model
    try:
        assert begun.wait(30) and not any(dies(reference, 1) for reference in references)
    finally:
        goes_on.set()
    assert [dies(reference, 100) for reference in references] == [True] * len(references)
