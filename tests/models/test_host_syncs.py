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

from decodekit.models.huggingface import HuggingFaceLM
from tests.models import architectures
from tests.models.architectures import RAGGED, tokens

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
    lm._runner._module.lm_head.register_forward_pre_hook(lambda module, inputs: inputs[0].sum().item() and None)
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
