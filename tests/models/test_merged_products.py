"""Products with the same input as one: where weights lie, which layers become one, and that nothing else changes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decodekit.models import loading
from decodekit.models.modules import merged_products
from decodekit.models.modules.merged_products import MergedLinear, SharedInputs, lay_together, merge_products
from decodekit.models.modules.shared_copy import shared_copy
from decodekit.models.runners import paged
from decodekit.models.runners.paged import Variant
from decodekit.models.runners.ragged import RaggedModel
from decodekit.models.runners.step_state import StepState
from tests.models.architectures import build, tokens
from tests.sizes import sized, thinned

MERGED = {
    "llama": [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")],
    "qwen2": [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")],  # with biases
    "gemma2": [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")],
}


def num_bytes(model: nn.Module) -> int:
    """Of all memory that the parameters hold."""
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in model.parameters()}
    return sum(storages.values())


def merged_copy(model: nn.Module) -> tuple[nn.Module, list[str]]:
    shared, twin = SharedInputs(), shared_copy(model)
    with torch.inference_mode(), shared.watched(twin):
        twin(torch.tensor([tokens(0, 3)]))
    return twin, merge_products(twin, shared)


def logits_of(model: nn.Module, count: int = 6) -> Tensor:
    with torch.inference_mode():
        out: Tensor = model(torch.tensor([tokens(0, count)])).logits
    return out


@pytest.mark.parametrize("name", MERGED)
def test_weights_lie_together_and_nothing_else_changes(name: str, tmp_path: Path) -> None:
    model: Any = build(name).eval()
    before, weights, size = logits_of(model), copy.deepcopy(model.state_dict()), num_bytes(model)
    assert lay_together(model) == []
    assert torch.equal(logits_of(model), before)
    assert num_bytes(model) == size  # nothing is stored twice
    layer = model.get_decoder().layers[0]
    for names, owner in zip(MERGED[name], (layer.self_attn, layer.mlp), strict=True):
        storages = {getattr(owner, one).weight.untyped_storage().data_ptr() for one in names}
        assert len(storages) == 1
    state = model.state_dict()
    assert list(state) == list(weights) and all(torch.equal(state[key], one) for key, one in weights.items())
    model.save_pretrained(tmp_path)
    again: Any = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(logits_of(again), before)
    model.load_state_dict({key: one + 0.01 for key, one in weights.items()})
    twin, reasons = merged_copy(model)
    assert reasons == [] and torch.equal(logits_of(twin), logits_of(model))  # other weights reach it


@pytest.mark.parametrize("name", MERGED)
def test_layers_become_one_in_a_copy(name: str) -> None:
    model = build(name).eval()
    lay_together(model)
    kinds = [type(one) for one in model.modules()]
    twin, reasons = merged_copy(model)
    found = [one for one in twin.modules() if isinstance(one, MergedLinear)]
    assert reasons == [] and len(found) == 5 * model.config.num_hidden_layers  # type: ignore[operator, union-attr]
    num_products = 0

    def counted(*arguments: Any) -> Tensor:
        nonlocal num_products
        num_products += 1
        return torch.nn.functional.linear(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("decodekit.models.modules.merged_products.linear", counted)
        assert torch.equal(logits_of(twin), logits_of(model))
    assert num_products == 2 * model.config.num_hidden_layers  # type: ignore[operator, union-attr]
    assert all(one.product.held is None for one in found)  # no pass keeps its numbers
    assert [type(one) for one in model.modules()] == kinds
    assert list(twin.state_dict()) == list(model.state_dict())


def test_a_part_of_another_place_would_be_seen() -> None:
    """Negative control: members that take their parts in another order."""
    model = build("llama").eval()
    lay_together(model)
    twin, _ = merged_copy(model)
    for product in {one.product for one in twin.modules() if isinstance(one, MergedLinear)}:
        if len(product.layers) == 2:
            product.layers.reverse()
            product._places.reverse()
    assert not torch.allclose(logits_of(twin), logits_of(model))


def test_why_layers_stay_apart() -> None:
    model: Any = build("llama").eval()
    _, reasons = merged_copy(model)
    assert len(reasons) == 2 and all("do not lie together" in one for one in reasons)
    lay_together(model)
    moved = copy.deepcopy(model)
    for parameter in moved.parameters():  # as `.to(...)` does
        parameter.data = parameter.data.double().float()
    assert len(merged_copy(moved)[1]) == 2

    class Adapter(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base, self.in_features = base, base.in_features

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) * 2

    for layer in model.get_decoder().layers:
        layer.self_attn.k_proj = Adapter(layer.self_attn.k_proj)
        layer.mlp.up_proj.weight = layer.mlp.gate_proj.weight
    twin, reasons = merged_copy(model)
    assert reasons == [
        "q_proj, k_proj, v_proj: layers of the kind Adapter",
        "gate_proj, up_proj: weights that other layers have, too",
    ]
    assert torch.equal(logits_of(twin), logits_of(model))
    assert lay_together(model) == reasons


def test_some_with_a_bias_stay_apart() -> None:
    model: Any = build("llama").eval()
    for layer in model.get_decoder().layers:
        layer.self_attn.k_proj.bias = nn.Parameter(torch.zeros(layer.self_attn.k_proj.out_features))
    assert lay_together(model) == ["q_proj, k_proj, v_proj: some have a bias"]


def test_a_model_that_cannot_be_run_is_left_alone() -> None:
    model: Any = build("llama").eval()
    places = [one.data_ptr() for one in model.parameters()]
    model.forward = None
    [reason] = lay_together(model)
    assert "cannot be run on two tokens: TypeError" in reason
    assert [one.data_ptr() for one in model.parameters()] == places
    assert not any(one._forward_pre_hooks for one in model.modules())


@pytest.mark.parametrize(("device", "num_storages"), [("cpu", 3), ("cuda", 1)])
def test_who_loads_a_model_lays_its_weights_together_on_cuda(
    monkeypatch: pytest.MonkeyPatch, device: str, num_storages: int
) -> None:
    monkeypatch.setattr(loading, "_device", lambda given: torch.device(device))
    monkeypatch.setattr(nn.Module, "to", lambda model, *_, **__: model)  # there is no such device here
    lm, _ = loading.load("tiny")
    layer = lm.model.get_decoder().layers[0].self_attn  # type: ignore[operator]
    weights = [one.weight for one in (layer.q_proj, layer.k_proj, layer.v_proj)]
    assert len({one.untyped_storage().data_ptr() for one in weights}) == num_storages


@sized("num_kinds", 1, slow=4)
@thinned("name", MERGED, keep=["llama"])
def test_a_compiler_sees_one_product(name: str, num_kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in the graph of a layer: four products and the attention; one kind of call is compiled once."""
    monkeypatch.setattr(paged, "PROOFS", paged.PROOFS[: 1 + num_kinds])  # behind a prompt, which the modules read
    seen: list[list[str]] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    model = build(name)
    lay_together(model)
    runner = RaggedModel(model, use_pages=True, compiler=backend)
    assert runner.paged is not None
    cache: Any = runner.new_cache(2, 64)
    runner.forward(torch.tensor([tokens(0, 3), tokens(1, 3)]), [3, 3], cache, None, "last")
    state = StepState(cache.rows, 2, 1)
    with torch.inference_mode():
        assert runner.paged.compile_layers() and runner.paged.not_merged == [], runner.paged.not_compiled
        error = (runner.paged.read(state, 0, Variant(True)) - runner.paged.read(state)).abs().max()
    assert float(error) < 1e-5
    layers = [one for one in seen if any("paged_attention" in target for target in one)]
    for targets in layers:
        assert sum("linear" in target for target in targets) == 4
    assert 0 < len(layers) <= num_kinds * 2  # two kinds of layers in Gemma 2


def test_other_weights_reach_layers_that_multiply_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written in place, given another memory, replaced; without the look at where they lie old ones stay (control)."""

    def written(layer: Any) -> None:
        layer.weight.data.mul_(1.5)

    def moved(layer: Any) -> None:
        layer.weight.data = layer.weight.data * 0.5

    def replaced(layer: Any) -> None:
        layer.weight = nn.Parameter(layer.weight.data * 0.7)

    model: Any = build("llama").eval()
    lay_together(model)
    twin: Any = merged_copy(model)[0]
    for change in (written, moved, replaced):
        before = logits_of(model)
        change(model.get_decoder().layers[0].self_attn.k_proj)
        assert torch.equal(logits_of(twin), logits_of(model)) and not torch.equal(logits_of(model), before)
    monkeypatch.setattr(merged_products._Product, "is_current", True)
    assert not torch.equal(logits_of(twin), logits_of(model))
