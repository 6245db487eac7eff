"""Pages give what the rectangle gives: every architecture, any rows, lengths and pages, replayed or run as they are."""

from __future__ import annotations

import copy
import pickle
import random
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from decodekit.decoding.prefixes import row_memory as memory
from decodekit.models.caches.kv_cache import LayerShape, PlaneShape
from decodekit.models.caches.paged_cache import PagedCache
from decodekit.models.caches.paged_rows import PagedRows
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.modules.merged_products import lay_together
from decodekit.models.modules.shared_copy import WeightPlaces
from decodekit.models.runners import paged
from decodekit.models.runners.captured import CaptureError, Run
from decodekit.models.runners.paged_step import LayerProbe
from decodekit.models.runners.ragged import RaggedModel
from decodekit.models.runners.step_state import StepState
from tests.models import architectures, survey
from tests.models.architectures import CONTEXT_LENGTH, RAGGED, SHARING, build, tokens
from tests.models.device_law import DeviceLawError, check_rows, wrong_entries
from tests.models.recording import RecordedCapture
from tests.sizes import few, sized

ROWS = 5
SMALLEST_VOCABULARY = 128
SURVEYED = (
    *("apertus", "cohere2", "exaone4", "glm4", "olmo3", "olmoe", "phi", "qwen3_moe", "starcoder2"),
    *("vaultgemma", "ministral", "cwm"),
)


def built(name: str) -> Any:
    if name not in SURVEYED:
        return build(name)
    model: Any = survey.build(name)
    model.config.max_position_embeddings = CONTEXT_LENGTH  # some have room for a million tokens
    return model


def runner(name: str = "llama", capture: Any = None, **changes: Any) -> RaggedModel:
    model: Any = built(name)
    for key, value in changes.items():
        setattr(model.config, key, value)
    return RaggedModel(model, use_pages=True, capture=capture)


def rows_of(model: RaggedModel) -> PagedRows:
    assert model.paged is not None and model.paged._rows is not None
    return model.paged._rows


@torch.inference_mode()
def poison(rows: PagedRows) -> None:
    """NaN in every page that nobody has, and after the end of every row."""
    for group in rows.groups:
        store = group.store
        for page in range(store.num_pages):
            if store.num_owners(page) == 0:
                group.bytes_of(page).fill_(0xFF)  # NaN in every floating type


class Events:
    """The same random events for several caches: passes of one token, drafts and prompts, rows emptied, cut, copied."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def change(self, *caches: Any) -> None:
        draw, (first, *_) = self._draw, caches
        if draw.random() < 0.15 or max(first.row_lengths) > CONTEXT_LENGTH - 60:
            rows = [row for row in range(ROWS) if first.row_lengths[row] > CONTEXT_LENGTH - 60 or draw.random() < 0.4]
            for cache in caches:
                cache.reset(rows)
        if draw.random() < 0.2:
            lengths = [draw.randint(max(0, length - 3), length) for length in first.row_lengths]
            for cache in caches:
                cache.truncate(lengths)
        if draw.random() < 0.1:
            order = torch.tensor([draw.randrange(ROWS) for _ in range(ROWS)])
            for cache in caches:
                cache.reorder(order)

    def tokens(self) -> tuple[Tensor, list[int], list[int], Any]:
        draw = self._draw
        rows = sorted(draw.sample(range(ROWS), draw.randint(1, ROWS)))
        widest = draw.choice([1, 1, 1, 5, 40])
        counts = [draw.randint(1, widest) for _ in rows]
        wanted: Any = "last" if widest != 5 else [draw.randint(1, count) for count in counts]
        new = torch.tensor([tokens(draw.randint(0, 999), max(counts)) for _ in rows]) % SMALLEST_VOCABULARY
        return new, counts, rows, wanted


def difference(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape and ours.isfinite().all()
    return float((ours - theirs).abs().max() / theirs.std())


@few(5, "deepseek_v3-12")
@sized("num_passes", 12, slow=50)
@pytest.mark.parametrize("name", [*RAGGED, *SHARING, *SURVEYED])
def test_pages_give_what_the_rectangle_gives(name: str, num_passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as they are and replayed over other lengths, pages and rows, with NaN in all pages that nobody has."""
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    capture = RecordedCapture()
    model, plain = runner(name, capture), RaggedModel(built(name))
    ours, theirs, events = model.new_cache(ROWS, 8), plain.new_cache(ROWS, 8), Events(seed=1)
    for _ in range(num_passes):
        events.change(ours, theirs)
        poison(rows_of(model))
        new, counts, rows, wanted = events.tokens()
        out = model.forward(new, counts, ours, rows, wanted)
        assert difference(out, plain.forward(new, counts, theirs, rows, wanted)) < 1e-4
        assert ours.row_lengths == theirs.row_lengths
    assert model.paged is not None and model.paged.num_replays >= num_passes // 3 and len(capture.num_operations) >= 2
    ours.reset(range(ROWS))
    assert rows_of(model).num_pages_in_use == 0


def test_layers_share_the_pages_of_earlier_ones() -> None:
    """Two of four layers store keys and values; the others read them, each where its own kind is."""
    for name in SHARING:
        model = runner(name)
        assert model.paged is not None and sorted(model.paged.plan.places) == [0, 1]
        modules = [one for one in model.module.modules() if hasattr(one, "paged_group")]
        places = [(one.paged_group, one.paged_keys, one.paged_values) for one in modules]
        assert len(modules) == 4 and places[:2] == places[2:] and places[0] != places[1]


def test_a_layer_that_reads_the_wrong_pages_shows() -> None:
    """Negative control: the last layer at the place of the first, not of the second."""
    model, plain = runner("gemma3n"), RaggedModel(build("gemma3n"))
    wrong = [one for one in model.module.modules() if hasattr(one, "paged_group")]
    vars(wrong[3]).update({name: value for name, value in vars(wrong[2]).items() if name.startswith("paged_")})
    prompt, found = torch.tensor([tokens(0, 20)]), []
    for one in (model, plain):
        cache = one.new_cache(1, 64)
        one.forward(prompt, [20], cache, None, "last")
        found.append(one.forward(torch.tensor([[9]]), [1], cache, None, "last"))
    assert difference(*found) > 1e-2


def test_pages_stay_for_the_layer_that_looks_back_farthest() -> None:
    """A layer without a window reads the keys of one with a window: their pages are not given back."""
    step, keys, modules = LayerProbe(torch.zeros(1, 2)), torch.zeros(1, 2, 2, 8), [nn.Module(), nn.Module()]
    shape = LayerShape(*[PlaneShape(2, 8, torch.float32, torch.device("cpu"))] * 2)
    step.append(0, keys, keys, None)
    assert step.reads(modules[0], keys, shape, 8) and step.layers[0].window == 8
    assert step.reads(modules[1], keys, shape, None) and step.layers[0].window is None
    assert step.readers[0] == modules
    assert not step.reads(modules[1], keys.clone(), shape, None)  # nobody has shown these


def test_a_baked_length_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a step that takes its positions from the host is found out by its first replay."""
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    model = runner(capture=RecordedCapture())
    assert model.paged is not None
    step_of = model.paged._step_of

    def baked(state: Any, num_seen: int) -> Any:
        step, inputs = step_of(state, num_seen)
        step.positions = torch.full_like(step.positions, num_seen)
        return step, inputs

    monkeypatch.setattr(model.paged, "_step_of", baked)
    cache = model.new_cache(1, 64)
    model.forward(torch.tensor([tokens(0, 20)]), [20], cache, None, "last")
    for token in range(3):
        model.forward(torch.tensor([[token + 9]]), [1], cache, None, "last")
    assert model.paged.num_replays == 0


def test_a_pass_that_waits_is_not_captured() -> None:
    with pytest.raises(CaptureError, match="_local_scalar_dense"):
        RecordedCapture()(lambda: torch.ones(2) * int(torch.ones(1)))


def test_a_step_is_one_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the copy of the packed inputs, no tensor is made of numbers of the host."""
    from torch.utils._python_dispatch import TorchDispatchMode

    made: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name.partition("::")[2]
            if name in ("lift_fresh", "_to_copy") or (name == "copy_" and args[0].dtype == torch.int32):
                made.append(name)
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    model = runner(capture=RecordedCapture())
    cache = model.new_cache(3, 64)
    model.forward(torch.tensor([tokens(i, 9) for i in range(3)]), [9, 3, 5], cache, None, "last")
    new = torch.tensor([[7], [8], [9]])
    for _ in range(4):  # the first replays are compared with the modules
        model.forward(new, [1, 1, 1], cache, None, "last")
    new = new.to(torch.int32)
    counted = copy.copy(model.paged)
    assert counted is not None and counted.capture is not None
    replay = counted.steps_over(rows_of(model)).captured[paged.MODULES, 4, 1]
    assert replay is not None and replay.proof.is_proven
    with torch.inference_mode():
        out = replay.run()
    monkeypatch.setattr(replay, "run", lambda: out)  # what the graph does is not the host's
    with Watch():
        model.forward(new, [1, 1, 1], cache, None, "last")
    assert made == ["copy_"]


@torch.inference_mode()
def test_a_step_without_an_upload_leaves_the_tables_of_others() -> None:
    """Its last upload brought an entry of another row, which has another page by now."""
    model = runner()
    ours, other = model.new_cache(1, 64), model.new_cache(1, 64)
    rows = rows_of(model)
    [group] = rows.groups
    ours.reach([1], None)
    other.reach([1], None)
    state, theirs = StepState(rows, 1, 1), StepState(rows, 1, 1)
    token = np.array([[7]], dtype=np.int32)
    state.fill([ours.places[0]], [0], [1], token)
    assert not group.entries and not wrong_entries(rows)
    other.reset([0])
    group.store.take(1)
    other.reach([1], None)
    theirs.fill([other.places[0]], [0], [1], token)
    state.inputs()
    assert not wrong_entries(rows)
    group.table[other.places[0], 0] += 1  # negative controls: a wrong entry, and a page that is lost
    assert wrong_entries(rows) == [(other.places[0], 0)]
    group.table[other.places[0], 0] -= 1
    group.store._free.pop()
    with pytest.raises(DeviceLawError, match="is not free"):
        check_rows(rows)


@torch.inference_mode()
def test_entries_are_pending_until_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    model = runner()
    cache = model.new_cache(1, 64)
    cache.reach([1], None)
    rows, token = rows_of(model), np.array([[7]], dtype=np.int32)
    [group] = rows.groups
    state, pending = StepState(rows, 1, 1), dict(group.entries)

    def fails(*_: object, **__: object) -> Tensor:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Tensor, "index_put_", fails)
        with pytest.raises(torch.OutOfMemoryError):
            state.fill(cache.places, [0], [1], token)
    assert group.entries == pending
    state.fill(cache.places, [0], [1], token)
    assert not group.entries and not wrong_entries(rows)


def decode(model: RaggedModel, num_rows: int, num_steps: int = 6) -> None:
    cache = model.new_cache(num_rows, 64)
    for step in range(num_steps):
        model.forward(torch.full((num_rows, 1), step), [1] * num_rows, cache, None, "last")


@few(1)
@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize("compiler", [None, "eager"])
def test_other_weights_reach_captured_steps(
    monkeypatch: pytest.MonkeyPatch, compiler: str | None, is_asked: bool
) -> None:
    """Moved and replaced, with layers as they are and compiled; where nobody asks, the old ones go on (control)."""
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    monkeypatch.setattr(paged, "PROOFS", [paged.PROOFS[0], (1, 1)])  # the kind of call that is made here
    model: Any = built("llama").eval()
    lay_together(model)
    captured = RaggedModel(model, use_pages=True, capture=RecordedCapture(), compiler=compiler)
    assert captured.paged is not None and captured.paged.compile_layers() == (compiler is not None)

    def steps(one: RaggedModel) -> Tensor:
        cache = one.new_cache(1, 16)
        one.forward(torch.tensor([tokens(0, 3)]), [3], cache, None, "last")
        return torch.stack([one.forward(torch.tensor([[9 + n]]), [1], cache, None, "last").clone() for n in range(8)])

    if not is_asked:
        monkeypatch.setattr(WeightPlaces, "have_changed", lambda self: False)

    def moved(layer: Any) -> None:
        layer.weight.data = layer.weight.data * 1.5

    def replaced(layer: Any) -> None:
        layer.weight = nn.Parameter(layer.weight.data * 0.7)

    steps(captured)
    for change in (moved, replaced) if is_asked else (replaced,):  # a recording holds parameters, a graph addresses
        change(model.get_decoder().layers[0].self_attn.k_proj)
        num_replays = captured.paged.num_replays
        found = steps(captured)
        assert captured.paged.num_replays > num_replays
        expected = steps(RaggedModel(copy.deepcopy(model), use_pages=True))
        assert torch.allclose(found, expected, atol=1e-5) == is_asked


def test_tables_end_with_their_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where steps over them were captured; what is captured refers to them and they to it."""
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    model = runner(capture=RecordedCapture())
    decode(model, 1)
    assert model.paged is not None and model.paged.num_replays
    old = weakref.ref(rows_of(model))
    model.new_cache(paged.MAX_ROWS + 1, 64)
    assert old() is None and rows_of(model).num_rows > paged.MAX_ROWS


def test_any_number_of_rows_is_captured_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    monkeypatch.setattr(paged, "ROW_BUCKETS", (1, 2, 4))
    monkeypatch.setattr(paged, "ROWS_BEYOND", 3)
    assert [paged.row_bucket(number) for number in range(1, 11)] == [1, 2, 4, 4, 6, 6, 9, 9, 9, 12]
    model = runner(capture=RecordedCapture())
    for num_rows in (5, 6, 7, 9):
        decode(model, num_rows, 2)
    assert model.paged is not None
    kinds = [*model.paged.steps_over(rows_of(model)).captured]
    assert kinds == [(paged.MODULES, 6, 1), (paged.MODULES, 9, 1)] and model.paged.num_replays == 8


def test_a_capture_without_memory_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: one that fails for another reason is not."""
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    monkeypatch.setattr(paged, "TRY_AGAIN_AFTER", 3)
    for error, num_replays in (torch.OutOfMemoryError(), 5), (RuntimeError("a wait"), 0):

        class FailsOnce(RecordedCapture):
            failure: Exception | None = error

            def __call__(self, run: Any, plain: Any = None) -> Any:
                failure, self.failure = self.failure, None
                if failure is not None:
                    raise failure
                return super().__call__(run)

        model = runner(capture=FailsOnce())
        decode(model, 1, 9)  # one without memory, three that wait, and five
        assert model.paged is not None and model.paged.num_replays == num_replays


@pytest.mark.parametrize("is_old", [False, True])
def test_all_logits_of_a_row_beside_fewer_of_another(is_old: bool) -> None:
    """Drafts of unequal lengths: as many columns are wanted as there are, and the head sees all of them."""
    model, plain = runner(), RaggedModel(built("llama"))
    model._keeps_per_row = model._keeps_per_row and not is_old
    ours, theirs = model.new_cache(2, 64), plain.new_cache(2, 64)
    for counts in ([3, 4], [5, 2]):
        new = torch.tensor([tokens(row, max(counts)) for row in range(2)])
        out = model.forward(new, counts, ours, None, counts)
        assert difference(out, plain.forward(new, counts, theirs, None, counts)) < 1e-4


@pytest.mark.parametrize("is_old", [False, True])
def test_the_head_sees_the_wanted_rows_alone(is_old: bool) -> None:
    """In every version of transformers: an old model cannot be told columns that differ by row."""
    model, plain = runner(), RaggedModel(built("llama"))
    model._keeps_per_row = model._keeps_per_row and not is_old
    head: Any = model.module.get_output_embeddings()
    seen: list[tuple[int, ...]] = []
    call = head.forward
    head.forward = lambda hidden: seen.append(hidden.shape[:2]) or call(hidden)  # type: ignore[func-returns-value]
    prompts, counts = torch.tensor([tokens(row, 20) for row in range(3)]), [20, 7, 13]
    out = model.forward(prompts, counts, model.new_cache(3, 64), None, "last")
    assert seen == [(3, 1)] and not head._forward_pre_hooks
    assert difference(out, plain.forward(prompts, counts, plain.new_cache(3, 64), None, "last")) < 1e-4


def test_a_page_that_is_released_meanwhile_is_not_lost() -> None:
    """While another thread adds an arena."""
    model = runner()
    ours, other = model.new_cache(1, 64), model.new_cache(1, 64)
    rows = rows_of(model)
    [group] = rows.groups
    other.reach([1], None)
    other.commit([1], None)
    store, threads = group.store, list[threading.Thread]()

    class Free(list[int]):
        def __iter__(self) -> Any:
            threads.append(threading.Thread(target=other.reset, args=([0],)))
            threads[-1].start()
            threads[-1].join(0.1)  # with a lock it ends later
            return super().__iter__()

    store._free = Free(store._free)
    with rows.lock:
        store._add_arena()
        [*store._free]  # noqa: B018
    threads[0].join()
    store._free = list(store._free)
    assert store.num_free == store.num_pages and ours.num_rows == 1
    check_rows(rows)


@torch.inference_mode()
def test_a_copy_on_write_that_fails_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = runner()
    cache = model.new_cache(2, 64)
    model.forward(torch.tensor([tokens(0, 40)]), [40], cache, [0], "last")
    cache.reorder(torch.tensor([0, 0]))
    rows = rows_of(model)
    before = rows.num_pages_in_use

    def fails(*_: object, **__: object) -> Tensor:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Tensor, "copy_", fails)
        with pytest.raises(torch.OutOfMemoryError):
            cache.reach([1], [1])
    assert rows.num_pages_in_use == before
    check_rows(rows)
    out = model.forward(torch.tensor([[5], [6]]), [1, 1], cache, None, "last")
    alone = model.new_cache(1, 64)
    model.forward(torch.tensor([tokens(0, 40)]), [40], alone, None, "last")
    assert difference(out[1:], model.forward(torch.tensor([[6]]), [1], alone, None, "last")) < 1e-5


def test_free_pages_of_arenas_are_free_memory() -> None:
    lm = HuggingFaceLM(architectures.build("llama"), tier="paged")
    cache: Any = lm.new_cache(1, 64)
    lm.forward(torch.tensor([tokens(0, 40)]), [40], cache)
    [store] = [group.store for group in cache.rows.groups]
    assert lm.paged is not None and lm.paged.num_free_bytes == (store.num_pages - 2) * store.layout.page_bytes
    free, free_with = memory.free_memory(lm.device), memory.free_for(lm)
    assert free is not None and free_with is not None and abs(free_with - free - lm.paged.num_free_bytes) < 1 << 27


def test_copied_rows_part_where_they_write() -> None:
    model = runner()
    cache = model.new_cache(2, 64)
    model.forward(torch.tensor([tokens(0, 40)]), [40], cache, [0], "last")
    cache.reorder(torch.tensor([0, 0]))
    assert rows_of(model).num_pages_in_use == 2  # shared
    both = model.forward(torch.tensor([[5], [6]]), [1, 1], cache, None, "last")
    assert rows_of(model).num_pages_in_use == 3  # the last page is each row's own
    alone = model.new_cache(1, 64)
    model.forward(torch.tensor([tokens(0, 40)]), [40], alone, None, "last")
    assert difference(both[1:], model.forward(torch.tensor([[6]]), [1], alone, None, "last")) < 1e-5


def test_a_window_gives_pages_back_and_a_lost_row_is_read_again() -> None:
    model, plain = runner("mistral"), RaggedModel(build("mistral"))
    ours, theirs = model.new_cache(1, 8), plain.new_cache(1, 8)
    text = tokens(0, 240)
    for begin in range(0, 240, 40):
        new = torch.tensor([text[begin : begin + 40]])
        for one, cache in ((model, ours), (plain, theirs)):
            one.forward(new, [40], cache, None, "last")
    in_use = rows_of(model).num_pages_in_use
    assert in_use < 8  # of 240 tokens, 32 in a page
    for cache in (ours, theirs):
        cache.truncate([70])
    new = torch.tensor([[9]])
    assert difference(model.forward(new, [1], ours, None, "last"), plain.forward(new, [1], theirs, None, "last")) < 1e-4
    assert ours.row_lengths == (71,)


@few(2)
@pytest.mark.parametrize("num_tokens", [1, 31, 32, 33, 64, 69])
def test_a_row_may_begin_with_a_kept_prefix(num_tokens: int) -> None:
    model = runner("gemma3")
    cache: Any = model.new_cache(2, 64)
    text = tokens(0, 70)
    model.forward(torch.tensor([text]), [70], cache, [0], "last")
    prefix = cache.keep(0, 70)
    assert prefix.num_tokens == 70 and prefix.num_bytes == 96 * rows_of(model).plan.bytes_per_token
    cache.reset([0])
    with pytest.raises(ValueError, match="71 tokens of a prefix of 70"):
        cache.begin_with(1, prefix, 71)
    cache.begin_with(1, prefix, num_tokens)
    rest = text[num_tokens:]
    out = model.forward(torch.tensor([rest]), [len(rest)], cache, [1], "last")
    alone = model.new_cache(1, 64)
    assert difference(out, model.forward(torch.tensor([text]), [70], alone, None, "last")) < 1e-4
    cache.reset([1])
    alone.reset([0])
    assert rows_of(model).num_pages_in_use > 0
    prefix.release()
    prefix.release()
    assert rows_of(model).num_pages_in_use == 0


def test_a_cache_that_is_gone_gives_its_rows_back() -> None:
    model = runner()
    caches = [model.new_cache(100, 8), model.new_cache(100, 8)]
    model.forward(torch.tensor([tokens(0, 9)]), [9], caches[0], [3], "last")
    rows = rows_of(model)
    assert rows.num_free_rows == 56 and rows.num_pages_in_use == 1
    caches.clear()
    assert isinstance(model.new_cache(1, 8), PagedCache)
    assert rows_of(model) is rows and rows.num_pages_in_use == 0 and rows.num_free_rows >= 255


def test_a_model_over_pages_can_be_sent_to_another_process() -> None:
    lm = HuggingFaceLM(architectures.build("llama"), tier="paged")
    twin = pickle.loads(pickle.dumps(lm))
    prompt, found = torch.tensor([tokens(0, 9)]), []
    for one in (lm, twin):
        found.append(one.forward(prompt, [9], one.new_cache(1, 9)))
    assert torch.equal(*found)


def test_the_tier_can_be_asked_for() -> None:
    lm = HuggingFaceLM(architectures.build("llama"), tier="paged")
    assert lm.tier.name == "paged" and isinstance(lm.new_cache(1, 4), PagedCache)


def is_layer(graph: Any) -> bool:
    """Whether what a compiler is given is a decoder layer, and not a module beside the layers."""
    return any("paged_attention" in str(node.target) for node in graph.graph.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_layer_is_compiled_once_for_its_kind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each layer, and not again for other rows, lengths or pages; replays are those of the modules."""
    compiled: list[bool] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(is_layer(graph))
        return graph.forward

    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    torch._dynamo.reset()

    def capture(run: Run, plain: Run | None = None) -> Run:
        run()  # a compiler leaves alone what is recorded: it is called before, as before the capture of a graph
        return RecordedCapture()(run)

    model = RaggedModel(build(name), use_pages=True, capture=capture, compiler=backend)
    plain = RaggedModel(build(name))
    assert model.paged is not None
    assert model.paged.compile_layers(), model.paged.not_compiled
    kinds_of_layers = {"llama": 1, "gemma3": 2}[name]
    num_compiled = sum(compiled)
    assert 0 < num_compiled <= 4 * kinds_of_layers  # one row or several, one column or several
    ours, theirs = model.new_cache(ROWS, 8), plain.new_cache(ROWS, 8)
    for num_rows in (1, 2, 3, 5, 5):
        rows = list(range(num_rows))
        new, counts = torch.tensor([tokens(num_rows + row, 3) for row in rows]), [3] * num_rows
        first = model.forward(new, counts, ours, rows, "last")
        assert difference(first, plain.forward(new, counts, theirs, rows, "last")) < 1e-4
        again = model.forward(new[:, :1], [1] * num_rows, ours, rows, "last")
        assert difference(again, plain.forward(new[:, :1], [1] * num_rows, theirs, rows, "last")) < 1e-4
    assert model.paged.num_replays == 10
    assert sum(compiled) == num_compiled  # nothing is compiled in the midst of texts


def test_compiled_layers_that_are_wrong_are_not_used() -> None:
    """A compiler that adds to the result of a layer: the modules go on, and it is told."""

    def backend(graph: Any, inputs: Any) -> Any:
        def wrong(*arguments: Any) -> Any:
            return [out + 0.1 if out.is_floating_point() else out for out in graph.forward(*arguments)]

        return wrong if is_layer(graph) else graph.forward

    torch._dynamo.reset()
    model = RaggedModel(build("llama"), use_pages=True, compiler=backend)
    assert model.paged is not None
    assert not model.paged.compile_layers()
    assert "differ by" in model.paged.not_compiled[0]
    assert model.paged.variants_now == [paged.MODULES]


@sized("is_captured", True, slow=False)
def test_a_text_is_read_by_one_kind_of_layers(is_captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that began before layers were compiled stay with the modules, in a pass of their own; new texts do not.

    In bfloat16 the two kinds differ in their last bits; the last line is the control that this can be seen.
    """
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 1)
    monkeypatch.setattr(paged, "PROOFS", paged.PROOFS[:3])  # steps of one column, of one row and several
    torch._dynamo.reset()

    def rounded(graph: Any, inputs: Any) -> Any:  # rounds where the modules do not
        def forward(*arguments: Any) -> Any:
            return [
                (out * 1.0078125).to(out.dtype) if out.dtype is torch.bfloat16 and out.dim() == 3 else out
                for out in graph.forward(*arguments)
            ]

        return forward if is_layer(graph) else graph.forward

    capture = (lambda run: (run(), RecordedCapture()(run))[1]) if is_captured else None
    module = build("llama", torch.bfloat16)
    model = RaggedModel(module, use_pages=True, capture=capture, compiler=rounded)
    plain = RaggedModel(module, use_pages=True)
    assert model.paged is not None

    def texts(runner: RaggedModel, rows: list[int], cache: Any, steps: int) -> list[Tensor]:
        found = []
        for step in range(steps):
            new = torch.tensor([[tokens(row, 20)[step]] for row in rows])
            found.append(runner.forward(new, [1] * len(rows), cache, rows, "last"))
        return found

    ours, theirs = model.new_cache(3, 64), plain.new_cache(3, 64)
    for runner, cache in ((model, ours), (plain, theirs)):
        runner.forward(torch.tensor([tokens(0, 20)]), [20], cache, [0], "last")
        texts(runner, [0], cache, 2)
    assert model.paged.compile_layers(), model.paged.not_compiled
    for runner, cache in ((model, ours), (plain, theirs)):
        runner.forward(torch.tensor([tokens(1, 20)]), [20], cache, [1], "last")
    mixed, modules = texts(model, [0, 1], ours, 6), texts(plain, [0, 1], theirs, 6)
    for found, expected in zip(mixed, modules, strict=True):
        assert torch.equal(found[0], expected[0])
    ours.reset([0])
    model.forward(torch.tensor([tokens(0, 20)]), [20], ours, [0], "last")
    again = texts(model, [0], ours, 2)
    assert any(not torch.equal(found[1], expected[1]) for found, expected in zip(mixed, modules, strict=True))
    assert len(again) == 2 and model.paged.variants_of(ours, [0, 1], [30, 30]) == [paged.Variant(True)] * 2


def test_what_only_captured_steps_have_is_refused_elsewhere() -> None:
    from decodekit.errors import OptionError

    with pytest.raises(OptionError, match="in the tier paged, not ragged on cpu"):
        HuggingFaceLM(build("llama"), compile_layers=True)


@few(1)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_eight_bits_in_pages_are_near(name: str) -> None:
    """And the same whatever is read together: a token is stored by itself."""
    lm, plain = (HuggingFaceLM(build(name), tier="paged", cache_dtype=kind) for kind in ("int8", None))
    new = torch.tensor([tokens(row, 30) for row in range(2)])
    found = []
    for one in (lm, plain):
        cache: Any = one.new_cache(2, 64)
        one.forward(new, [30, 25], cache)
        found.append(one.forward(new[:, :1], [1, 1], cache))
    error = (found[0] - found[1]).square().mean().sqrt() / found[1].std()
    assert 0 < error < 0.1
    alone = lm.new_cache(1, 64)
    lm.forward(new[:1], [30], alone)
    assert difference(lm.forward(new[:1, :1], [1], alone), found[0][:1]) < 1e-4
