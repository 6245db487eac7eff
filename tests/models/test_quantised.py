"""Models whose linear layers are no plain ones: quantised by packages, by modules of their own, or spread over devices.

The packages may be missing; what they do to a model is done here by stand-ins, too: modules that keep their numbers in
buffers and in objects of their own, and tensors without memory of their own.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import decodekit as dk
from decodekit.models.checks.model_notes import state_of
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.modules.few_row_layers import Int8Linear, with_few_rows
from decodekit.models.modules.shared_copy import addresses_of, is_spread, shared_copy
from decodekit.models.programs import replay
from decodekit.models.programs.proof import NUM_PROOFS
from decodekit.products.cpu_products import PRODUCT_ROWS
from tests.models import architectures
from tests.models.test_huggingface import Checked, tokens
from tests.models.test_replay import num_proven
from tests.reference.generation_tokenizer import small_tokenizer
from tests.sizes import few

TOKENIZER = small_tokenizer()


class QuantState:
    """What bitsandbytes keeps beside a weight."""

    def __init__(self, scale: Tensor) -> None:
        self.scale, self.nested = scale, {"offset": torch.zeros(1)}


class StandInLinear(nn.Module):
    """A linear layer with int8 weights, as packages put in the place of `nn.Linear`; no parameter at all."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(dim=1, keepdim=True) / 127
        self.register_buffer("packed", (linear.weight.detach() / scale).round().to(torch.int8))
        self.state = QuantState(scale)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        weight = self.packed.to(x.dtype) * self.state.scale + self.state.nested["offset"]
        return torch.nn.functional.linear(x, weight, self.bias)


class ScaledTensor(Tensor):
    """A weight that is made of two tensors and has no memory of its own, as torchao's are."""

    @staticmethod
    def __new__(cls, packed: Tensor, scale: Tensor) -> ScaledTensor:
        return Tensor._make_wrapper_subclass(cls, packed.shape, dtype=scale.dtype, device=packed.device)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, packed: Tensor, scale: Tensor) -> None:
        self.packed, self.scale = packed, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["packed", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return type(args[0])(args[0].packed, args[0].scale)
        plain = tree_map_only(
            ScaledTensor, lambda one: one.packed.to(one.scale.dtype) * one.scale, (args, kwargs or {})
        )
        return func(*plain[0], **plain[1])


class Int8Tensor(ScaledTensor):
    """A weight with the names of torchao's tensor of int8 numbers and a scale for each output."""

    act_quant_kwargs = zero_point = None

    @property
    def qdata(self) -> Tensor:
        return self.packed

    @property
    def block_size(self) -> list[int]:
        return [1, self.shape[1]]


def with_stand_ins(name: str) -> nn.Module:
    model = architectures.build(name)
    for parent in list(model.modules()):
        for child, module in list(parent.named_children()):
            if type(module) is nn.Linear:
                setattr(parent, child, StandInLinear(module))
    return model


def with_scaled_tensors(name: str, kind: type[ScaledTensor] = ScaledTensor) -> nn.Module:
    model = architectures.build(name)
    for module in model.modules():
        if type(module) is nn.Linear:
            scale = module.weight.detach().abs().amax(dim=1, keepdim=True) / 127
            packed = (module.weight.detach() / scale).round().to(torch.int8)
            module.weight = nn.Parameter(kind(packed, scale), requires_grad=False)
    return model


MAKERS = {
    "modules": with_stand_ins,
    "tensors": with_scaled_tensors,
    "int8": partial(with_scaled_tensors, kind=Int8Tensor),
}


@few(3)
@pytest.mark.parametrize("name", ["llama", "gemma2", "lfm2"])
@pytest.mark.parametrize("kind", MAKERS)
def test_rows_are_those_of_the_model(kind: str, name: str) -> None:
    run = Checked(HuggingFaceLM(MAKERS[kind](name)), 3)
    assert run.lm.tier.name == ("recurrent" if name == "lfm2" else "ragged"), run.lm.tier
    run.forward([tokens(i, n) for i, n in enumerate((5, 2, 9))], kind="last")
    run.forward([tokens(3 + i, n) for i, n in enumerate((3, 1, 2))])
    run.truncate([6, 3, 10])
    run.forward([tokens(6 + i, 1) for i in range(3)], kind="last")


def test_int8_weights_are_read_as_they_are() -> None:
    """Steps multiply the numbers themselves; a prompt, and what has another layout, is multiplied by its package."""
    lm = HuggingFaceLM(with_scaled_tensors("llama", Int8Tensor))
    layers = [module for module in lm._runner.module.modules() if isinstance(module, nn.Linear)]
    assert {type(layer) for layer in layers} == {Int8Linear}
    layer = layers[0]
    x = torch.randn(PRODUCT_ROWS[torch.int8] + 1, layer.in_features)
    expected = torch.nn.functional.linear(x, layer.weight.packed * layer.weight.scale)
    torch.testing.assert_close(layer(x[:1]), expected[:1], atol=1e-5, rtol=1e-5)
    assert torch.equal(layer(x[:1]), layer(x[:-1])[:1]) and torch.equal(layer(x), nn.Linear.forward(layer, x))
    others = {"act_quant_kwargs": {}, "zero_point": torch.ones(1), "block_size": [1, 4], "act_pre_scale": 1.0}
    for name, value in others.items():
        model = with_scaled_tensors("llama", type("Int8Tensor", (Int8Tensor,), {name: value}))
        assert not any(isinstance(module, Int8Linear) for module in with_few_rows(model).modules()), name


@pytest.mark.parametrize("kind", MAKERS)
def test_no_weight_is_copied(kind: str) -> None:
    model = MAKERS[kind]("llama")
    twin = shared_copy(model)
    for one, other in zip(model.modules(), twin.modules(), strict=True):
        if isinstance(one, StandInLinear):
            assert isinstance(other, StandInLinear) and one.state is not other.state
            assert other.packed is one.packed and other.state.scale is one.state.scale
            assert other.state.nested["offset"] is one.state.nested["offset"]
        elif isinstance(one, nn.Linear):
            assert other.weight is one.weight
            packed = one.weight.data
            assert addresses_of(one.weight) == (packed.packed.data_ptr(), packed.scale.data_ptr())  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", MAKERS)
def test_other_numbers_are_seen(kind: str) -> None:
    model: Any = MAKERS[kind]("llama")
    before = state_of(model)
    assert state_of(model) == before
    layer = model.model.layers[0].mlp.up_proj
    if kind == "modules":
        layer.packed = layer.packed.clone()
    else:
        layer.weight = nn.Parameter(
            type(layer.weight)(layer.weight.packed.clone(), layer.weight.scale), requires_grad=False
        )
    assert state_of(model) != before


@pytest.mark.parametrize("kind", MAKERS)
def test_steps_are_recorded_or_left_alone(kind: str) -> None:
    """Modules of plain tensors are recorded; what cannot be recorded is run by its modules, with the same logits."""
    lm = HuggingFaceLM(MAKERS[kind]("llama"))
    cache, run = lm.new_cache(2, 8), lm._runner
    lm.forward(torch.tensor([[3, 4], [5, 6]]), [2, 2], cache)
    for _ in range(NUM_PROOFS + 3):
        out = lm.forward(torch.tensor([[7], [8]]), [1, 1], cache)
    assert num_proven(run._replays) == (0 if kind == "tensors" else 1)
    rows = [[3, 4], [5, 6]]
    for row, token in zip(rows, (7, 8), strict=True):
        row += [token] * (NUM_PROOFS + 3)
    expected = torch.stack([lm.model(input_ids=torch.tensor([row])).logits[0, -1] for row in rows])
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def test_a_text_of_a_quantised_model() -> None:
    llm = dk.LLM(with_stand_ins("llama"), TOKENIZER)
    texts = llm.generate(["the", "on the"], max_new_tokens=8, seed=1)
    alone = llm.generate(["the", "on the"], max_new_tokens=8, seed=1, batch_size=1)
    assert [text.token_ids for text in texts] == [text.token_ids for text in alone]
    assert all(text.token_ids for text in texts)


needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is not installed: pip install decodekit[quantised]"
)
needs_accelerate = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed: pip install accelerate"
)


@needs_torchao
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
def test_int8_weights_of_torchao(name: str, dtype: torch.dtype) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = architectures.build(name, dtype)
    quantize_(model, Int8WeightOnlyConfig())
    lm = HuggingFaceLM(model)
    assert lm.tier.name == "ragged", lm.tier
    if dtype == torch.float32:
        run = Checked(lm, 2)
        run.forward([tokens(0, 5), tokens(1, 3)], kind="last")
        run.forward([tokens(2, 1), tokens(3, 2)])
    llm = dk.LLM(model, TOKENIZER)
    assert llm.generate("the", max_new_tokens=4, seed=0).token_ids


@needs_accelerate
def test_a_model_with_hooks_of_accelerate() -> None:
    from accelerate import dispatch_model

    plain = architectures.build("llama")
    model = dispatch_model(architectures.build("llama"), {"": "cpu"}, force_hooks=True)
    lm, expected = HuggingFaceLM(model), HuggingFaceLM(plain)
    assert lm.tier.name == "ragged"
    prompts, counts = torch.tensor([[3, 4, 5], [6, 7, 0]]), [3, 2]
    out = lm.forward(prompts, counts, lm.new_cache(2, 4))  # by its modules: hooks are not written down
    torch.testing.assert_close(out, expected.forward(prompts, counts, expected.new_cache(2, 4)), atol=1e-4, rtol=1e-4)


def test_a_model_on_several_devices_is_run_by_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are not recorded: a recording is for one device. Two devices are made of one by their names."""
    model = architectures.build("llama")
    assert not is_spread(model)
    model.hf_device_map = {"model.layers.0": "cpu", "model.layers.1": "disk"}  # type: ignore[assignment]
    assert is_spread(model)
    run = Checked(HuggingFaceLM(model), 2)
    monkeypatch.setattr(replay.Replays, "step", lambda *_: pytest.fail("recorded"))
    assert run.lm.tier.name == "ragged" and run.lm._runner.is_spread  # type: ignore[union-attr]
    run.forward([tokens(0, 5), tokens(1, 3)], kind="last")
    for i in range(3):
        run.forward([tokens(2 + i, 1), tokens(5 + i, 1)])


def test_planes_lie_where_their_layers_lie() -> None:
    """Keys and values come from the device of their layer; what a step knows is brought to them."""
    from decodekit.models.caches.kv_cache import LayerShape, PlaneShape, RaggedCache

    first, second = torch.device("cpu", 0), torch.device("cpu")
    devices = enumerate((first, second))
    shapes = {i: LayerShape(*[PlaneShape(1, 4, torch.float32, device)] * 2) for i, device in devices}
    cache = RaggedCache(shapes, 3, 4, second)
    assert [plane.device for plane in cache._planes[0]] == [torch.zeros(1, device=first).device] * 2
    step = cache.begin([2, 1], [0, 2])
    new = torch.ones(2, 1, 2, 4)
    for layer in shapes:
        keys, _ = cache.append(layer, new.to(shapes[layer].key.device), new, step)
        assert keys.shape == (2, 1, 2, 4)
