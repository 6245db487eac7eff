"""No decoding step makes the host wait for the device: what a captured graph, and a queue that never runs dry, need.

On a CPU the waits are seen as the operations that hand a value or a data-dependent shape to Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from decodekit.models.caches import kv_cache
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.runners import attention
from decodekit.models.runners.ragged import RaggedModel
from tests.models import architectures
from tests.models.architectures import RAGGED, tokens
from tests.sizes import few, thinned

# In inference mode the composite operations are seen, else those that they consist of.
WAITS = {
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "equal",
    "unique_consecutive",
    "_unique2",
    "bincount",
}


class Watch(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        self.counts[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))

    @property
    def waits(self) -> dict[str, int]:
        return {name: count for name, count in self.counts.items() if name in WAITS}


def watched_step(lm: HuggingFaceLM, num_new: int) -> Watch:
    cache = lm.new_cache(3, 64)
    lm.forward(torch.tensor([tokens(0, 12), tokens(1, 12), tokens(2, 12)]), [12, 5, 9], cache)
    new = torch.tensor([tokens(3 + i, num_new) for i in range(3)])
    with Watch() as watch:
        lm.forward(new, [num_new] * 3, cache, logits="all")
    return watch


@few(3)
@pytest.mark.parametrize("num_new", [1, 4])
@pytest.mark.parametrize("name", RAGGED)
def test_a_step_never_waits(name: str, num_new: int) -> None:
    watch = watched_step(HuggingFaceLM(architectures.build(name)), num_new)
    assert watch.waits == {}
    products = sum(watch.counts[name] for name in ("linear", "addmm", "decodekit::few_rows_linear"))
    assert products > 10 and watch.counts["copy_"] + watch.counts["index_put_"] >= 6  # it has seen the model at work


def test_the_watch_sees_a_wait() -> None:
    """Negative control: reading one value back is noticed."""
    lm = HuggingFaceLM(architectures.build("llama"))
    lm._runner.module.lm_head.register_forward_pre_hook(lambda module, inputs: inputs[0].sum().item() and None)
    assert watched_step(lm, 1).waits == {"item": 1}


def test_masks_are_made_once_per_window_not_per_layer() -> None:
    few = architectures.build("gemma3")  # three layers: two with a window, one without
    watch = watched_step(HuggingFaceLM(few), 1)
    assert watch.counts["masked_fill_"] == 2
    level = HuggingFaceLM(architectures.build("gemma3"))
    cache = level.new_cache(2, 64)
    with Watch() as watch:
        level.forward(torch.tensor([tokens(0, 6), tokens(1, 6)]), [6, 4], cache)  # prompts into an empty cache
        cache.truncate([4, 4])
        level.forward(torch.tensor([[5], [6]]), [1, 1], cache)  # rows of one length
    assert watch.counts["masked_fill_"] == 0


def test_masks_of_a_long_chunk_are_made_once_for_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second chunk of a prompt, in blocks of queries; without room for masks, by each layer."""
    model: Any = architectures.build("llama")
    counts = []
    for most in (kv_cache.MAX_KEPT, 0):
        monkeypatch.setattr(kv_cache, "MAX_KEPT", most)
        monkeypatch.setattr(attention, "_MAX_SCORES", 4 * 32 * 8)  # heads, slots, queries of a block
        lm = HuggingFaceLM(model)
        cache = lm.new_cache(1, 64)
        lm.forward(torch.tensor([tokens(0, 8)]), [8], cache)
        with Watch() as watch:
            lm.forward(torch.tensor([tokens(1, 24)]), [24], cache)
        counts.append(watch.counts["masked_fill_"])
    assert counts[0] >= 3 and counts[1] == model.config.num_hidden_layers * counts[0] > counts[0]


class Uploads(TorchDispatchMode):
    """Notes what brings tensors of the host to the device "meta", which has no memory."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor) and one.ndim]
        is_device = any(one.is_meta for one in tree_leaves(out) if isinstance(one, torch.Tensor))
        if is_device and any(not one.is_meta for one in tensors):
            self.names.append(func._schema.name)
        return out


def uploads_of(lm: Any, cache: Any, num_tokens: list[int], rows: list[int] | None, logits: Any) -> list[str]:
    new = torch.zeros(len(num_tokens), max(num_tokens), dtype=torch.int64)
    made: list[str] = []
    real = torch.tensor

    def tensor(data: Any, *args: Any, device: Any = None, **options: Any) -> torch.Tensor:
        if device is not None and torch.device(device).type == "meta":
            made.append("tensor")
        return real(data, *args, device=device, **options)

    with pytest.MonkeyPatch.context() as patch, Uploads() as watch:
        patch.setattr(torch, "tensor", tensor)
        lm.forward(new, num_tokens, cache, rows, logits)
    return watch.names + made


@few(1)
@thinned("name", ["llama", "gemma3", "gpt2"], keep=["gemma3"])
@pytest.mark.parametrize("rows", [None, [0, 2], [1, 2]], ids=["all", "scattered", "neighbours"])
def test_a_step_of_a_rectangle_is_one_upload(name: str, rows: list[int] | None) -> None:
    """Whatever the lengths, rows and wanted logits, and none of a layer."""
    lm = RaggedModel(architectures.build(name).to("meta"))
    cache: Any = lm.new_cache(3, 64)
    assert uploads_of(lm, cache, [12, 5, 9], None, "last") == ["aten::to"]
    chosen = rows or [0, 1, 2]
    for counts in ([1] * len(chosen), [4, 1, 3][: len(chosen)], [2] * len(chosen)):
        for logits in ("last", "all", counts):
            assert uploads_of(lm, cache, counts, rows, logits) == ["aten::to"]
            cache.truncate([12, 5, 9])
    cache.truncate([5, 5, 5])
    assert uploads_of(lm, cache, [1] * len(chosen), rows, "last") == ["aten::to"]  # level rows


def test_uploads_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: indices that every layer brings to the device."""
    lm = RaggedModel(architectures.build("llama").to("meta"))
    cache = lm.new_cache(3, 64)
    uploads_of(lm, cache, [12, 5, 9], None, "last")
    host = torch.zeros(2, dtype=torch.int64)
    monkeypatch.setattr(kv_cache.Step, "places_on", lambda step, device: (host.to(device)[:, None], None, None))
    assert len(uploads_of(lm, cache, [1, 1], [0, 1], "last")) > 4


def test_attention_of_a_rectangle_on_cuda_is_not_cudnns(monkeypatch: pytest.MonkeyPatch) -> None:
    """For passes over a rectangle alone, for as long as one of several threads is in one, and as it was before."""
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    lm: Any = RaggedModel(architectures.build("llama"))
    lm._replays = None
    seen: list[bool] = []
    real = attention.scaled_dot_product_attention

    def watched(*args: Any, **options: Any) -> torch.Tensor:
        seen.append(enabled())
        return real(*args, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", watched)
    before = enabled()
    for is_cuda in (False, True):
        cache = lm.new_cache(1, 64)
        monkeypatch.setattr(lm, "_is_cuda", is_cuda)
        lm.forward(torch.tensor([tokens(0, 5)]), [5], cache, None, "last")
        assert seen and set(seen) == {before and not is_cuda} and enabled() == before
        seen.clear()
    first, second = attention.without_cudnn(), attention.without_cudnn()
    with first:
        second.__enter__()
    assert not enabled()
    second.__exit__(None, None, None)
    assert enabled() == before
