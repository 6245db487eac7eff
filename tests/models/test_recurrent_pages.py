"""Models with recurrent state over pages: what they give over a rectangle, as they are and replayed."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import decodekit as dk
from decodekit.decoding.loop.device_pass import warm_up
from decodekit.decoding.prefixes import row_memory as memory
from decodekit.models import huggingface
from decodekit.models.caches.paged_rows import PagedRows
from decodekit.models.caches.row_states import RowStates
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.runners import paged
from decodekit.models.runners.captured import Run
from decodekit.models.runners.recurrent import RecurrentCache, RecurrentModel
from decodekit.models.sizes import cache_sizes
from tests.models import survey
from tests.models.architectures import COMMON, CONTEXT_LENGTH, IN_CHUNKS, RECURRENT, build, tokens
from tests.models.recording import RecordedCapture
from tests.models.test_paged import ROWS, Events, difference, poison, rows_of
from tests.models.test_recurrent import BATCHED
from tests.reference.generation_tokenizer import small_tokenizer
from tests.sizes import few, sized

SURVEYED = sorted(set(BATCHED) - set(RECURRENT) - {"recurrent_gemma"})  # whose states are large: it has a test below


@functools.cache
def reads_in_chunks(name: str) -> bool:
    runner = HuggingFaceLM(built(name)).runner
    assert isinstance(runner, RecurrentModel)
    return runner.in_chunks


def built(name: str) -> Any:
    if name in RECURRENT:
        return build(name)
    model: Any = survey.build(name)
    model.config.max_position_embeddings = CONTEXT_LENGTH
    return model


def over_pages(name: str, capture: Any = None) -> RecurrentModel:
    in_chunks = name in IN_CHUNKS if name in RECURRENT else reads_in_chunks(name)
    return RecurrentModel(built(name), in_chunks, use_pages=True, capture=capture)


@torch.inference_mode()
def poison_states(rows: PagedRows, cache: RecurrentCache) -> None:
    """NaN in the states of all rows that hold nothing, and of the row that stands for none."""
    held = {place for place, read in zip(cache._places, cache.read, strict=True) if read}
    for plane in rows.states.planes:
        plane[[row for row in range(rows.num_rows + 1) if row not in held]] = torch.nan


@few(3, "qwen3_next-20")
@sized("num_passes", 20, slow=60)
@pytest.mark.parametrize("name", [*RECURRENT, *(pytest.param(name, marks=pytest.mark.slow) for name in SURVEYED)])
def test_pages_give_what_the_rectangle_gives(name: str, num_passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, drafts, steps, rows emptied, cut and copied; steps are replayed over other rows, lengths and pages."""
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    capture = RecordedCapture()
    model = over_pages(name, capture)
    plain = RecurrentModel(built(name), model.in_chunks)
    ours, theirs, events = model.new_cache(ROWS, 8), plain.new_cache(ROWS, 8), Events(seed=1)
    for number in range(num_passes):
        events.change(ours, theirs)
        poison(rows_of(model))
        poison_states(rows_of(model), ours)
        new, counts, rows, wanted = events.tokens()
        seen: list[list[Tensor] | None] = [[], []] if number % 5 == 4 else [None, None]
        out = model.forward(new % 100, counts, ours, rows, wanted, seen[0])
        assert difference(out, plain.forward(new % 100, counts, theirs, rows, wanted, seen[1])) < 1e-4
        for own, other in zip(*(one or () for one in seen), strict=True):
            for i, count in enumerate(counts):
                assert difference(own[i, :count], other[i, :count]) < 1e-4
        assert (ours.row_lengths, ours.read) == (theirs.row_lengths, theirs.read)
    assert model.paged is not None and not model.paged.not_captured
    assert model.paged.num_replays >= num_passes // 3 and len(capture.num_operations) >= 2


class Forgets(RecordedCapture):
    """Leaves out what a captured pass does last: to put the states of its rows where they are kept."""

    def __call__(self, run: Run, plain: Run | None = None) -> Run:
        put = RowStates.put
        RowStates.put = lambda *_: None  # type: ignore[method-assign]
        try:
            return super().__call__(run, plain)
        finally:
            RowStates.put = put  # type: ignore[method-assign]


def read_steps(model: RecurrentModel, num_steps: int = 8) -> list[Tensor]:
    cache = model.new_cache(2, 32)
    model.forward(torch.tensor([tokens(0, 6), tokens(1, 6)]), [6, 6], cache, None, "last")
    return [model.forward(torch.tensor([[5 + i], [9 + i]]), [1, 1], cache, None, "last") for i in range(num_steps)]


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_replay_that_leaves_other_states_is_refused(is_wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logits are right: the fault would show in those of the next step alone, when nothing is compared any more."""
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    model, plain = over_pages("lfm2", Forgets() if is_wrong else RecordedCapture()), RecurrentModel(build("lfm2"))
    for ours, theirs in zip(read_steps(model), read_steps(plain), strict=True):
        assert difference(ours, theirs) < 1e-4
    assert model.paged is not None
    assert (model.paged.num_replays == 0) == is_wrong
    assert [one.partition(": ")[2] for one in model.paged.not_captured] == [
        "a replay differs from the modules"
    ] * is_wrong


def test_a_padded_column_would_enter_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: steps of several columns are captured for keys and values alone."""
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    model, plain = over_pages("lfm2", RecordedCapture()), RecurrentModel(build("lfm2"))
    assert model.paged is not None and model.paged.widths == (1,)
    model.paged.widths = paged.WIDTH_BUCKETS
    found = []
    for runner in (model, plain):
        cache = runner.new_cache(1, 32)
        for part in (tokens(0, 6), *(tokens(row, 3) for row in range(1, 7)), [5]):
            out = runner.forward(torch.tensor([part]), [len(part)], cache, None, "last")
        found.append(out)
    assert difference(*found) > 1e-2


def test_a_row_whose_window_has_passed_is_read_again() -> None:
    """Its pages are gone, so that the state that was kept of it is worth nothing either."""
    config = transformers.RecurrentGemmaConfig(**COMMON, attention_window_size=8, lru_width=32)
    torch.manual_seed(0)
    gemma: Any = transformers.AutoModelForCausalLM.from_config(config).eval()
    model, plain = (RecurrentModel(gemma, False, use_pages=use) for use in (True, False))
    assert [window for window, _ in model.paged.plan.groups] == [8]  # type: ignore[union-attr]
    caches = [runner.new_cache(2, 8) for runner in (model, plain)]
    prompts = torch.tensor([tokens(0, 6), tokens(1, 6)])
    for step in range(230):
        new, counts = (prompts, [6, 6]) if not step else (torch.tensor([[step % 90 + 3]] * 2), [1, 1])
        found = [
            runner.forward(new, counts, cache, None, "last")
            for runner, cache in zip((model, plain), caches, strict=True)
        ]
        assert difference(*found) < 1e-4
        if step == 200:
            for cache in caches:
                cache.truncate([40, cache.row_lengths[1]])
            assert caches[0].read[0] == 0 and caches[0].read[1] > 200


def test_states_are_those_of_few_rows() -> None:
    """A state is large, so tables have no more rows than caches do; those of a cache that is gone are taken again."""
    model = over_pages("qwen3_next")
    caches = [model.new_cache(3, 8)]
    tables = rows_of(model)
    assert tables.num_rows == 4 and tables.states.planes[0].shape[0] == 5
    caches.append(model.new_cache(1, 8))
    assert rows_of(model) is tables
    caches.append(model.new_cache(6, 8))
    assert rows_of(model) is not tables and rows_of(model).num_rows == 8
    gone = weakref.ref(tables)
    del tables, caches[:2]
    gc.collect()
    assert gone() is None


def test_memory_of_a_row_is_counted() -> None:
    """The state of a row counts once, whatever the tokens, and once more for the one to go back to."""
    model = over_pages("qwen3_next")
    each = sum(one[0].nbytes for one in model.states)
    found = memory.row_bytes(model, 100)  # type: ignore[arg-type]
    assert model.paged is not None and model.paged._rows is None  # a question makes no tables
    assert model.new_cache(1, 8).state_bytes == model.paged.state_bytes == each
    assert found == 100 * rows_of(model).plan.bytes_per_token + 2 * each
    lm = HuggingFaceLM(build("qwen3_next"))
    plain = lm.new_cache(1, 8)
    assert isinstance(plain, RecurrentCache) and plain.state_bytes == each
    assert plain.bytes_per_token == rows_of(model).plan.bytes_per_token == cache_sizes(lm).bytes_per_token
    assert memory.row_bytes(lm, 100) == 100 * plain.bytes_per_token + 2 * each


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> RecordedCapture:
    """Models are run in the ways for a GPU, of which a recording stands for the captures."""
    capture = RecordedCapture()
    ways = tuple(way._replace(is_for_gpu=False) for way in huggingface._WAYS if way.name == "recurrent")
    monkeypatch.setattr(huggingface, "_WAYS", ways)
    monkeypatch.setattr(huggingface, "_capture_on", lambda model: capture)
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 1)
    return capture


@few(2)
@pytest.mark.parametrize("name", ["mamba", "lfm2", "minimax"])
def test_texts_are_those_of_the_rectangle(name: str, request: pytest.FixtureRequest) -> None:
    """Through the self-check and the loop, with drafts and without; a second call has the steps of the first."""
    plain = dk.LLM(build(name), small_tokenizer())
    as_on_a_gpu = request.getfixturevalue("as_on_a_gpu")
    llm = dk.LLM(build(name), small_tokenizer())
    model: Any = llm.model
    assert model.tier.name == "recurrent" and isinstance(model.runner, RecurrentModel) and model.paged is not None
    options: dict[str, Any] = {"max_new_tokens": 24, "seed": 3, "batch_size": 2}
    prompts = ["the cat and the cat and the", "on", "the"]
    for strategy in (dk.Sample(temperature=0.7), dk.Sample(temperature=0.7, speculate="prompt-lookup"), dk.Beam(2)):
        if name == "mamba" and getattr(strategy, "speculate", None):
            continue
        expected = plain.generate(prompts, strategy=strategy, **options)
        found = llm.generate(prompts, strategy=strategy, **options)
        assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert model.paged.num_replays > 20 and not model.paged.not_captured
    num_captures = len(as_on_a_gpu.num_operations)
    llm.generate(prompts, strategy=dk.Sample(temperature=0.7), **options)
    assert len(as_on_a_gpu.num_operations) == num_captures


def test_a_warm_up_captures_all_steps(as_on_a_gpu: RecordedCapture) -> None:
    lm = HuggingFaceLM(build("lfm2"))
    assert lm.paged is not None
    assert warm_up(lm, 4, drafts=True) == len(as_on_a_gpu.num_operations) == 3  # of 4, 2 and 1 rows
    cache = lm.new_cache(4, 16)
    lm.forward(torch.tensor([tokens(row, 4) for row in range(4)]), [4] * 4, cache)
    before = lm.paged.num_replays
    lm.forward(torch.tensor([[5]] * 4), [1] * 4, cache)
    assert lm.paged.num_replays == before + 1


def test_copies_of_a_model_over_pages() -> None:
    model = over_pages("lfm2")
    expected = read_steps(model, 2)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(map(torch.equal, read_steps(twin, 2), expected))
