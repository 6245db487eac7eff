"""The comparisons of this folder on a CUDA device: the kernels as they are compiled there, against the twins."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch

from benchmarks.gpu_gate import MOST_UNITS, units_apart
from decodekit.gpu import paged_attention
from decodekit.gpu import triton_programs as programs
from decodekit.gpu.draft_match import take_tokens
from decodekit.gpu.pages import Stored
from decodekit.gpu.sampler import chosen, why_no_kernel
from tests.gpu.rows import drawn_rows, values_of
from tests.gpu.test_verify import assert_same_step, drawn_step
from tests.gpu.worlds import World, drawn_world

pytestmark = pytest.mark.gpu


def assert_near(made: World) -> None:
    """The kernel ran, its output is attention over lists, and it wrote what the twin writes."""
    assert programs.missing() is None
    arguments = made.arguments()
    before = [arena.clone() for arena in made.store.arenas]
    out = torch.ops.decodekit.paged_attention(*arguments)
    written = made.written()
    for arena, bytes_before in zip(made.store.arenas, before, strict=True):
        arena.copy_(bytes_before)
    twin = paged_attention._twin(*arguments)
    assert torch.equal(made.written(), written)
    for found in (out, twin):
        assert units_apart(found.cpu(), made.expected()) <= MOST_UNITS[made.dtype]


# Kinds of worlds, few enough to be compiled in a minute or two; what lies in a world of a kind is drawn.
KINDS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": torch.float32, "group": 3, "key_dim": 24, "value_dim": 40},
    "bfloat16": {"dtype": torch.bfloat16, "stored": Stored.AS_GIVEN, "window": 0},
    "window": {"dtype": torch.bfloat16, "stored": Stored.AS_GIVEN, "window": 3, "has_sinks": True},
    "float16": {"dtype": torch.float16, "stored": Stored.AS_GIVEN, "page_size": 1, "softcap": 2.0},
    "int8": {"dtype": torch.bfloat16, "stored": Stored.INT8, "window": 6},
}


@pytest.mark.parametrize("kind", KINDS)
def test_attention_over_small_worlds(kind: str) -> None:
    draw = random.Random(11)
    fixed: dict[str, Any] = {"num_heads": 2, "group": 2, "key_dim": 16, "value_dim": 16, "page_size": 4, "width": 3}
    fixed |= {"stored": Stored.AS_GIVEN, "window": 0, "softcap": 0.0, "has_sinks": False, "pages_per_arena": 3}
    for _ in range(12):
        starts = [draw.choice((0, 1, 3, 4, 5, 8, 13, 21)) for _ in range(draw.randint(1, 3))]
        counts = [draw.randint(0, 3) for _ in starts]
        assert_near(drawn_world(draw, **(fixed | KINDS[kind]), starts=starts, counts=counts, device="cuda"))


LONG: list[dict[str, Any]] = [
    {}, {"width": 4, "group": 7}, {"width": 16, "group": 8}, {"width": 70},
    {"window": 100, "softcap": 30.0, "has_sinks": True}, {"width": 70, "window": 100, "softcap": 30.0},
    {"dtype": torch.float16}, {"dtype": torch.float32}, {"dtype": torch.float32, "width": 70},
    {"stored": Stored.INT8}, {"stored": Stored.INT8, "width": 70},
    {"key_dim": 192, "value_dim": 128, "group": 1}, {"key_dim": 256, "value_dim": 256, "width": 70},
    {"key_dim": 576, "value_dim": 512, "num_heads": 1, "group": 16}, {"key_dim": 512, "value_dim": 512, "width": 4},
]  # fmt: skip


@pytest.mark.parametrize("case", LONG, ids=str)
def test_attention_over_long_rows(case: dict[str, Any]) -> None:
    """Many splits, rows of very different lengths, and a dead one."""
    fixed: dict[str, Any] = {"num_heads": 2, "group": 4, "key_dim": 128, "value_dim": 64, "width": 1} | case
    fixed = {"dtype": torch.bfloat16} | fixed
    width = fixed["width"]
    starts, counts = [0, 700, 33, 1500], [width, 1, 0, width]
    assert_near(World(starts, counts, page_size=32, pages_per_arena=40, scale=0.09, device="cuda", **fixed))


def test_a_long_row_among_many_short_ones() -> None:
    """Rows that fill the card alone, and one of 20,000 tokens among them."""
    starts = [10] * 40 + [20_000] + [3] * 7
    assert_near(World(starts, [1] * 48, page_size=32, pages_per_arena=400, num_heads=8, group=1, device="cuda",
                      key_dim=64, value_dim=64, dtype=torch.bfloat16))  # fmt: skip


def test_offsets_beyond_two_to_the_31() -> None:
    """A prompt whose queries are more than 2^31 numbers, [B, Hq, T, D] as rotary embeddings leave them."""
    num_heads, width, dim = 128, 66_000, 256
    query = torch.zeros(1, num_heads, width, dim, dtype=torch.bfloat16, device="cuda").transpose(1, 2)
    assert query.numel() > 2**31
    made = World([0], [1], num_heads=1, group=num_heads, key_dim=dim, value_dim=16, dtype=torch.bfloat16, device="cuda")
    key, value = (torch.zeros(1, width, 1, d, dtype=torch.bfloat16, device="cuda") for d in (dim, 16))
    value[:, :, :, 0] = 1.0
    pages = torch.zeros(1, 1 + width // made.page_size, dtype=torch.int32, device="cuda")
    counts = torch.tensor([2], dtype=torch.int32, device="cuda")
    arguments = (query, key, value, pages, counts * 0, counts, *made.arguments()[6:])
    out = torch.ops.decodekit.paged_attention(*arguments)
    assert (out[0, :2, :, 0] == 1).all() and not out[0, 2:].any()


def test_a_captured_graph_serves_other_lengths_and_pages() -> None:
    first = World([600, 3], [1, 1], page_size=32, pages_per_arena=64, device="cuda")
    arguments = list(first.arguments())
    torch.ops.decodekit.paged_attention(*arguments)  # compiled before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.ops.decodekit.paged_attention(*arguments)
    table, starts = arguments[3], arguments[4]
    for held in ([600, 3], [200, 2], [64, 0]):
        starts.copy_(torch.tensor(held, dtype=torch.int32))
        for _ in range(20):  # what one replay leaves to be counted, the next one finds
            graph.replay()
        torch.testing.assert_close(out, torch.ops.decodekit.paged_attention(*arguments), rtol=0, atol=1e-6)
    [moved] = first.store.take(1)
    before = out.clone()
    first.store.arenas[moved // 64].zero_()
    table[0, 0] = moved
    graph.replay()
    assert not torch.equal(out[0], before[0])
    counted = programs._COUNTERS.values()
    assert counted and not any(bool(one.any()) for one in counted)


def assert_as_twin(batch: Any, *, uses: bool = True, is_asked: bool = True) -> None:
    logits, settings, keys, masks, ids = batch
    if not uses:
        settings = [(temperature, 0, 1.0, min_p, is_greedy) for temperature, _, _, min_p, is_greedy in settings]
    values = values_of(settings, keys, ids, is_asked)
    there = [None if one is None else one.cuda() for one in (logits, values, masks)]
    found = torch.ops.decodekit.sample_rows(*there, 1, uses)
    assert found.tolist() == chosen(logits, values, masks, 1, uses).tolist(), settings


def test_the_sampler_is_not_refused() -> None:
    assert why_no_kernel(torch.device("cuda", 0)) is None


@pytest.mark.parametrize("vocab_size", [5, 33, 4099])
@pytest.mark.parametrize("has_masks", [False, True])
def test_sampler_takes_the_tokens_of_its_twin(vocab_size: int, has_masks: bool) -> None:
    draw = random.Random(12)
    for _ in range(60):
        logits, *rest = drawn_rows(draw, vocab_size=vocab_size, has_masks=has_masks)
        assert_as_twin((logits.float(), *rest), uses=draw.random() < 0.5, is_asked=draw.random() < 0.5)


@pytest.mark.parametrize("vocab_size", [32_000, 152_064, 262_144])
def test_sampler_on_wide_rows(vocab_size: int) -> None:
    draw = random.Random(13)
    for _ in range(4):
        logits, *rest = drawn_rows(draw, num_rows=8, vocab_size=vocab_size, are_sound=True, has_masks=False)
        for uses in (True, False):
            assert_as_twin((logits.bfloat16() if vocab_size == 32_000 else logits.float(), *rest), uses=uses)


def test_sampler_in_a_captured_graph() -> None:
    """Other logits at the same place; the rows that are counted on the way are counted from zero at each replay."""
    batches = [drawn_rows(random.Random(seed), num_rows=4, vocab_size=4099, has_masks=False) for seed in range(6)]
    values = values_of(batches[0][1], batches[0][2], None)
    place, there = torch.zeros(4, 4099, device="cuda"), values.cuda()

    def run() -> torch.Tensor:
        out: torch.Tensor = torch.ops.decodekit.sample_rows(place, there, None, 1, True)
        return out

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    for logits, *_ in batches * 3:
        place.copy_(logits.float())
        graph.replay()
        assert found.tolist() == chosen(logits.float(), values, None, 1, True).tolist()


@pytest.mark.parametrize("compiler", [None, "inductor"])
def test_captured_steps_are_taken_and_their_texts_are_those_of_a_cpu(compiler: str | None) -> None:
    """The whole loop in float32: what could not be captured, or differs from the modules, is named."""
    import decodekit as dk
    from decodekit.models.huggingface import HuggingFaceLM

    llm = dk.LLM.load("tiny", device="cpu")
    options: dict[str, Any] = {"strategy": "sample", "temperature": 0.9, "top_k": 40, "top_p": 0.9, "seed": 5}
    prompts = ["The invoice", "One", "A much longer beginning of a text"] * 2
    expected = [[one.text for one in llm.generate(prompts, max_new_tokens=24, **extra)] for extra in ({}, options)]
    model = copy.deepcopy(llm.model.model).cuda()
    there = dk.LLM(HuggingFaceLM(model, tier="paged", compile_layers=compiler is not None), llm.tokenizer)
    for extra, texts in zip(({}, options), expected, strict=True):
        assert [one.text for one in there.generate(prompts, max_new_tokens=24, **extra)] == texts
    assert there.model.paged.not_captured == []


@pytest.mark.parametrize("name", ["lfm2", "mamba", "qwen3_next"])
def test_steps_with_recurrent_state_are_captured_and_right(name: str) -> None:
    """Through the self-check, rows of unequal lengths, in float32: the logits are those of a CPU."""
    from decodekit.models.huggingface import HuggingFaceLM
    from tests.models.architectures import build, tokens

    here, there = HuggingFaceLM(build(name)), HuggingFaceLM(build(name).cuda())
    assert there.tier.name == "recurrent" and there.paged is not None, there.tier
    caches = here.new_cache(3, 32), there.new_cache(3, 32)
    for step in range(12):
        counts = [3, 5, 4] if not step else [1, 1, 1]
        new = torch.tensor([tokens(10 * step + row, max(counts)) for row in range(3)])
        ours, theirs = (lm.forward(new, counts, cache).cpu() for lm, cache in zip((here, there), caches, strict=True))
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
    assert there.paged.num_replays >= 5 and there.paged.not_captured == []


def test_a_step_of_compiled_layers_is_few_kernels() -> None:
    """As `test_kernel_count` counts them without a GPU, 12 a layer and 6 around them; a copy of the logits, too."""
    from benchmarks import gpu_first, gpu_models
    from decodekit.models.huggingface import HuggingFaceLM

    device = torch.device("cuda")
    model = gpu_models.build("tiny", device, torch.bfloat16)
    counts = {}
    for compiles in (False, True):
        lm = HuggingFaceLM(model, tier="paged", compile_layers=compiles)
        assert lm.paged is not None and lm.paged.compile_layers() == compiles, lm.paged.not_compiled
        counts[compiles] = gpu_first.kernels(lm, device, 2, 64)["kernels"]
        assert lm.paged.not_captured == []
    assert counts[True] <= 12 * gpu_models.SHAPES["tiny"].layers + 6 + 2 < counts[False], counts


@pytest.mark.parametrize("width", [1, 2, 4, 16])
def test_the_end_of_a_step_is_its_twin(width: int) -> None:
    draw = random.Random(width)

    def on_cuda(*given: torch.Tensor) -> None:
        there = [one.cuda() for one in given]
        take_tokens(*there, has_cuts)  # type: ignore[call-arg]
        for one, other in zip(given, there, strict=True):
            one.copy_(other)

    for has_cuts in (False, True) * 10:
        assert_same_step(on_cuda, drawn_step(draw, 5, width, draw.choice((width, 16)), has_cuts), has_cuts)
