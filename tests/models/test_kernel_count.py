"""How many kernels a decoding step is: at most 12 a layer, and 6 around the layers, of a model like Llama; with top-k
or top-p, which every captured step may have, 7.

Around the layers are counted operations that are more than a view, and calls of an operation of ours as the programs
that it starts. In modules that are compiled are counted the calls of the code that Inductor writes, in the slow run; in
the ordinary run, where nothing is compiled to machine code, the products of a layer, and a module beside the layers as
one kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from decodekit.costs.prediction import LOOP_KERNELS
from decodekit.decoding.draws.device_step import DecodeStep, StepShape
from decodekit.decoding.lazy_masks.mask_pool import MaskPool
from decodekit.models.modules.decoder_layers import decoder_layers
from decodekit.models.modules.merged_products import lay_together
from decodekit.models.runners import paged
from decodekit.models.runners.paged import Variant
from decodekit.models.runners.ragged import RaggedModel
from tests.models.architectures import build, tokens

OURS = {"decodekit::step_inputs": 1, "decodekit::paged_attention": 1}
"""Programs of an operation, with one or two groups of layers; tests of `gpu` count them, and those of a draw."""
NOTHING = {"empty", "new_empty", "empty_like", "lift_fresh", "detach", "alias", "is_inference"}
MOST_OF_A_LAYER, MOST_AROUND = 12, 6


class Kernels(TorchDispatchMode):
    """Counts operations that would be kernels on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.inside: str | None = None
        """Of what that is compiled: a layer, or another module."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        short = name.partition("::")[2]
        given = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        made = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        changes = func._schema.is_mutable
        is_view = made and not changes and all(one.untyped_storage().data_ptr() in given for one in made)
        if self.inside == "layer":
            self.counts["products"] += "linear" in short
        elif self.inside is None and short not in NOTHING and not is_view:
            has_cut = name == "decodekit::take_tokens" and args[-1]
            self.counts[name] += OURS.get(name, 1 + has_cut)
        return out

    def watch(self, module: Any, name: str) -> None:
        """Count a call of a compiled module by its name, and not what it does."""
        forward = module.forward

        def counted(*arguments: Any, **named: Any) -> Any:
            self.inside = name
            self.counts[name] += 1
            try:
                return forward(*arguments, **named)
            finally:
                self.inside = None

        module.forward = counted


def step_of(num_layers: int, compiler: Any, is_together: bool = True, has_cut: bool = False) -> DecodeStep:
    """A step of two texts, of a model of bfloat16; with `has_cut` as captured steps are."""
    model: Any = build("llama", torch.bfloat16)
    del model.get_decoder().layers[num_layers:]
    model.config.num_hidden_layers = num_layers
    if is_together:
        lay_together(model)
    runner = RaggedModel(model, use_pages=True, compiler=compiler)
    cache: Any = runner.new_cache(2, 64)
    runner.forward(torch.tensor([tokens(0, 3), tokens(1, 3)]), [3, 3], cache, None, "last")
    assert runner.paged is not None
    is_compiled = runner.paged.compile_layers()
    assert is_compiled == (compiler is not None), runner.paged.not_compiled
    pool = MaskPool(8, -(-runner.vocab_size // 32), torch.device("cpu"))
    step = DecodeStep(runner.paged, cache.rows, StepShape(2, 1, 1, has_cut, Variant(is_compiled)), pool)
    values = np.zeros((step.state.values.shape[0], 2), dtype=np.int32)
    cache.reach([1, 1], None)
    step.state.fill(cache.places, [3, 3], [1, 1], np.array([[5], [6]], dtype=np.int32), None, values)
    return step


@pytest.mark.slow
@pytest.mark.parametrize("has_cut", [False, True])
def test_kernels_around_the_layers_are_few(has_cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and positions; embeddings; rotary embeddings; the last norm; the head; a token. And products in layers."""
    monkeypatch.setattr(paged, "PROOFS", paged.PROOFS[:2])  # the kind of call that is counted: several rows, one column
    step, kernels = step_of(2, "eager", has_cut=has_cut), Kernels()
    compiled: Any = step._model._variants[step.shape.variant]
    layers = set(decoder_layers(compiled))
    for module in compiled.modules():
        if "forward" in vars(module):
            kernels.watch(module, "layer" if module in layers else "module")
    with torch.inference_mode(), kernels:
        step.run()
    counts = kernels.counts
    assert counts.pop("layer") == 2 and counts.pop("products") == 2 * 4
    assert counts["module"] == 2 and sum(counts.values()) <= MOST_AROUND + has_cut, counts


def test_a_kernel_more_would_be_seen() -> None:
    """Negative control: logits that are made float32 before a token is taken."""
    step, kernels = step_of(1, None), Kernels()
    with torch.inference_mode():
        logits = step._model.read(step.state)
        assert logits.dtype == torch.bfloat16
        for make, num_kernels in ((lambda: logits, 1), (lambda: logits.float(), 2)):
            kernels.counts.clear()
            with kernels:
                step._choose(make())
            assert sum(kernels.counts.values()) == num_kernels


def num_beside_the_modules(step: DecodeStep) -> int:
    """Kernels of a step that are none of the model's own."""
    kernels = Kernels()
    kernels.watch(step._model._variants[step.shape.variant], "model")
    with torch.inference_mode(), kernels:
        step.run()
    assert kernels.counts.pop("model") == 1
    return sum(kernels.counts.values())


def test_kernels_beside_the_modules_are_those_of_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    assert num_beside_the_modules(step_of(1, None, has_cut=True)) == LOOP_KERNELS
    choose = DecodeStep._choose  # the control: logits that are made float32 on their way
    monkeypatch.setattr(DecodeStep, "_choose", lambda step, logits: choose(step, logits.float()))
    assert num_beside_the_modules(step_of(1, None, has_cut=True)) == LOOP_KERNELS + 1


@pytest.mark.slow
@pytest.mark.parametrize("is_together", [True, False])
def test_kernels_of_compiled_modules(is_together: bool) -> None:
    """In the code that Inductor writes for a CPU, over the operation for attention; apart, a layer has three more."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    step = step_of(2, "inductor", is_together)
    with torch.inference_mode():
        _, codes = run_and_get_code(step.run)
    kernel = re.compile(r"^\s*(?:\w+ = )?(cpp_fused\w*|extern_kernels\.\w+|torch\.ops\.[\w.]+)\(", re.MULTILINE)
    found = [kernel.findall(code[code.index("def call(") :]) for code in codes]
    [layer] = [names for names in found if any("paged_attention" in name for name in names)]
    others = [names for names in found if names is not layer]
    assert (len(layer) <= MOST_OF_A_LAYER) == is_together, layer
    assert len(others) == 2 and all(len(names) == 1 for names in others), others
