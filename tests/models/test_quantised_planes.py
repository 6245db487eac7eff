"""Keys and values in eight bits: what a number becomes, and that the laws of decoding hold within the setting."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import decodekit as dk
from decodekit.errors import OptionError
from decodekit.models.caches.kv_cache import RaggedCache
from decodekit.models.caches.quantised_planes import QuantisedCache, quantised, restored
from decodekit.models.huggingface import HuggingFaceLM
from tests.models.architectures import RAGGED, build, tokens
from tests.models.test_kv_cache import CPU, LAYERS
from tests.sizes import thinned

PROMPTS = ["Invoice A-17, total 40.20 EUR.", "Call Ann Lee, 555-0100, about the meeting on Friday.", "Dear"]


def test_the_example_at_the_head_of_the_module() -> None:
    codes, scales = quantised(torch.tensor([[0.50, -1.27, 0.02, 0.88]]))
    assert codes.tolist() == [[50, -127, 2, 88]]
    assert scales.tolist() == [[pytest.approx(0.01)]]


def test_a_number_is_wrong_by_at_most_half_a_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (1e-30, 1e-3, 1.0, 1e4, 1e30):
        numbers = size * torch.randn(200, 7, generator=generator) ** 3
        codes, scales = quantised(numbers)
        assert bool((codes.abs().amax(dim=-1) == 127).all())
        error = (restored(codes, scales, torch.float32) - numbers).abs()
        assert bool((error <= scales * (0.5 + 1e-4)).all())
        assert bool((error > scales * 0.4).any())  # and not by much less


def test_zeros_stay_and_what_is_not_finite_is_not_hidden() -> None:
    numbers = torch.tensor([[0.0, 0.0], [1.0, torch.nan], [torch.inf, 1.0], [1.0, -2.0]])
    codes, scales = quantised(numbers)
    found = restored(codes, scales, torch.float32)
    assert found[0].tolist() == [0.0, 0.0]
    assert not bool(found[1:3].isfinite().any())
    assert bool(found[3].isfinite().all())


class _ScaleOfTheBatch(RaggedCache):
    """A fault: one scale for all rows and tokens of a pass."""

    def append(self, layer: int, keys: Any, values: Any, step: Any) -> Any:
        largest = max(float(keys.abs().max()), float(values.abs().max()))
        marked = [torch.cat([one, torch.full_like(one[..., :1], largest)], dim=-1) for one in (keys, values)]
        coarse = [restored(*quantised(one), torch.float32)[..., :-1] for one in marked]
        return super().append(layer, *coarse, step)


@torch.inference_mode()
def _depends_on_neighbours(kind: type[RaggedCache]) -> bool:
    """Whether a row reads other numbers alone than beside others, or in one piece than in several."""
    generator = torch.Generator().manual_seed(1)
    new = torch.randn(3, 2, 4, 4, generator=generator) * torch.tensor([1.0, 10.0, 0.1])[:, None, None, None]
    together = kind(LAYERS, 3, 8, CPU)
    step = together.begin([4, 4, 4], None)
    keys = together.append(0, new, new, step)[0]
    alone, pieces = kind(LAYERS, 1, 8, CPU), kind(LAYERS, 1, 8, CPU)
    own = alone.append(0, new[:1], new[:1], alone.begin([4], None))[0]
    for begin, count in ((0, 1), (1, 2), (3, 1)):
        step = pieces.begin([count], None)
        part = new[:1, :, begin : begin + count]
        last = pieces.append(0, part, part, step)[0]
        pieces.commit(step.row_ends, None)
    return not (torch.equal(keys[:1], own) and torch.equal(last, own))


def test_a_code_depends_on_its_own_token_alone() -> None:
    assert not _depends_on_neighbours(QuantisedCache)
    assert not _depends_on_neighbours(RaggedCache)
    assert _depends_on_neighbours(_ScaleOfTheBatch)


@thinned("name", RAGGED, keep=("llama", "gemma2"))
def test_logits_are_near_and_the_memory_is_as_predicted(name: str) -> None:
    model = build(name)
    plain, small = HuggingFaceLM(model), HuggingFaceLM(model, cache_dtype="int8")
    assert plain.runner is small.runner
    rows = torch.tensor([tokens(row, 20) for row in range(2)])
    caches = [lm.new_cache(2, 24) for lm in (plain, small)]
    errors: list[float] = []
    for begin, count in ((0, 12), (12, 4), (16, 1)):
        part = rows[:, begin : begin + count]
        exact, near = (
            lm.forward(part, [count] * 2, cache, logits="all") for lm, cache in zip((plain, small), caches, strict=True)
        )
        errors += ((near - exact).square().mean(dim=-1).sqrt() / exact.std()).flatten().tolist()
    # Not at every place: a router that is close to a tie takes another expert, and what follows sees it.
    assert 0 < sorted(errors)[len(errors) // 2] < 0.1
    found = dk.estimate(small, 2, 24)
    assert found.cache_bytes == caches[1].num_bytes < caches[0].num_bytes  # type: ignore[attr-defined]


def test_the_same_text_alone_in_a_batch_and_with_drafts() -> None:
    llm = dk.LLM.load("tiny", cache_dtype="int8")
    for kind, chosen in ((dk.Greedy, {}), (dk.Sample, {"temperature": 0.9, "seed": 5})):
        plain, drafted = kind(**chosen), kind(**chosen, speculate=[dk.PromptLookup(), dk.Suffix()])  # type: ignore[arg-type]
        alone = [llm.generate(prompt, strategy=plain, max_new_tokens=24).token_ids for prompt in PROMPTS]
        for strategy, batch_size in ((plain, 3), (drafted, 1), (drafted, 2)):
            found = llm.generate(PROMPTS, strategy=strategy, max_new_tokens=24, batch_size=batch_size)
            assert [one.token_ids for one in found] == alone


def test_the_setting_is_refused_where_it_is_not_there() -> None:
    with pytest.raises(OptionError, match="cannot be stored as 'int3'"):
        HuggingFaceLM(build("llama"), cache_dtype="int3")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="not masked on cpu"):
        HuggingFaceLM(build("falcon"), cache_dtype="int8")
