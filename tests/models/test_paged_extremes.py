"""Nothing over pages depends on the number of rows being small, or on their lengths being alike; nothing is held."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import pytest
import torch

from decodekit.decoding.loop.run_ahead import RunAhead
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.runners import paged
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
        vocab_size=64, max_position_embeddings=num_tokens,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def first_tokens(num_rows: int) -> torch.Tensor:
    return torch.tensor([[tokens(row, 1)[0] % 60] for row in range(num_rows)])


@sized("most", 160, slow=1024)
def test_any_number_of_rows_is_captured(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps of 1, 2, 4 ... 256, 320 ... rows; a row is what it is alone."""
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    model = RaggedModel(longest(64), use_pages=True, capture=RecordedCapture())
    assert model.paged is not None
    alone = model.new_cache(1, 8)
    expected: list[list[torch.Tensor]] = []
    for row in range(most):
        alone.reset([0])
        first = first_tokens(row + 1)[row:]
        expected.append([model.forward(first + step, [1], alone, None, "last")[0] for step in range(2)])
    counts = [count for count in (1, 2, 3, 5, 33, 100, 160, 256, 257, 320, 700, 1024) if count <= most]
    for count in counts:
        cache = model.new_cache(count, 8)
        first = first_tokens(count)
        for step in range(2):
            found = model.forward(first + step, [1] * count, cache, None, "last")
            wanted = torch.stack([rows[step] for rows in expected[:count]])
            assert torch.allclose(found, wanted, atol=1e-4), count
        assert not torch.allclose(found[: count // 2], wanted.roll(1, 0)[: count // 2], atol=1e-4) or count < 4
        del cache
    sizes = {size for rows in [model.paged.steps_over(model.paged._rows)] for _, size, _ in rows.captured}
    assert sizes <= {paged.row_bucket(count) for count in range(1, most + 1)}
    assert model.paged.not_captured == [] and model.paged.num_replays > 0


def test_a_long_row_beside_a_short_one() -> None:
    """One step over rows of 10 and of very many tokens is that of each alone; and so is a draft."""
    length = 100_000
    model = RaggedModel(longest(length + 64), use_pages=True)
    generator = torch.Generator().manual_seed(1)
    caches: list[Any] = [model.new_cache(1, length + 64) for _ in range(2)]
    both: Any = model.new_cache(2, length + 64)
    for row, (cache, count) in enumerate(zip(caches, (10, length), strict=True)):
        cache.reach([count], None)  # random keys and values take the place of a prompt, which would take minutes here
        for group in cache.rows.groups:
            for page in group.rows[cache.places[0]]:
                if page >= 0:
                    group.bytes_of(page).view(torch.float32).normal_(generator=generator)
        cache.commit([count], None)
        both.begin_with(row, cache.keep(0, count), count)
    for width in (1, 4):
        new = torch.randint(64, (2, width), generator=generator)
        found = model.forward(new, [width] * 2, both, None, "last")
        for row, cache in enumerate(caches):
            alone = model.forward(new[row : row + 1], [width], cache, None, "last")[0]
            assert torch.allclose(found[row], alone, atol=1e-5), (row, width)
    assert both.row_lengths == (15, length + 5)


def dies(reference: weakref.ref[Any], tries: int = 20) -> bool:
    """Whether an object is gone; a thread may be about to let it go."""
    for _ in range(tries):
        gc.collect()
        if reference() is None:
            return True
        time.sleep(0.02)
    return False


@sized("is_compiled", False, slow=True)
def test_nothing_is_held(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables, arenas, captured steps, mask pools, states and compiled copies die with their model."""
    monkeypatch.setattr(paged, "CAPTURE_AFTER", 0)
    torch._dynamo.reset()
    monkeypatch.setattr(paged, "PROOFS", paged.PROOFS[:2])  # one kind of calls is enough here
    lm = HuggingFaceLM(build("llama"), tier="paged")
    runner = lm.runner
    assert isinstance(runner, RaggedModel) and runner.paged is not None
    runner.paged.capture = RecordedCapture()
    if is_compiled:
        runner.paged._compiler = lambda graph, inputs: graph.forward
        assert runner.paged.compile_layers(), runner.paged.not_compiled
    cache: Any = lm.new_cache(2, 64)
    for step in range(3):
        lm.forward(torch.full((2, 1), step), [1, 1], cache)
    ahead = RunAhead(lm, runner.paged, cache)
    pool = ahead._pool()
    [captured] = [one for one in runner.paged.steps_over(cache.rows).captured.values() if one is not None]
    compiled = runner.paged._variants[Variant(is_compiled)]
    things = [cache.rows, cache.rows.groups[0].store.arenas[0], captured.state, pool, compiled, runner.paged, lm.model]
    references = [weakref.ref(thing) for thing in things]
    kept = cache.rows
    del things, captured, pool, ahead, cache, runner, lm, compiled
    torch._dynamo.reset()  # what was compiled is of the process
    assert not dies(references[0], 1)  # the control: tables that somebody holds
    del kept
    assert [dies(reference) for reference in references] == [True] * len(references)
