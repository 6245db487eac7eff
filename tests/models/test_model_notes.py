"""What was learned of a model is known again while the model is as it was, and keeps nothing alive."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import decodekit as dk
from decodekit.errors import ModelError
from decodekit.models.checks import model_notes
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.wrappers.truncated import first_layers
from tests.models import architectures
from tests.reference.generation_tokenizer import small_tokenizer
from tests.sizes import few

TOKENIZER = small_tokenizer()
OPTIONS: dict[str, Any] = {"max_new_tokens": 2, "on_length": "return"}


def generated(model: nn.Module) -> tuple[int, ...]:
    return dk.generate(model, TOKENIZER, "the", **OPTIONS).token_ids  # type: ignore[no-any-return]


class Low(nn.Module):
    """An adapter of low rank around a layer, switched by plain attributes as in PEFT."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.scaling = {"first": 1.0, "second": -1.0}
        self.active = ["first"]
        self.is_disabled = False
        generator = torch.Generator().manual_seed(3)
        self.down = nn.Parameter(torch.randn(2, inner.in_features, generator=generator))
        self.up = nn.Parameter(torch.randn(inner.out_features, 2, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        for name in [] if self.is_disabled else self.active:
            out = out + self.scaling[name] * (x @ self.down.T @ self.up.T)
        return out


def add_adapter(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.up_proj = Low(layer.mlp.up_proj)


def each_adapter(model: Any, change: Callable[[Low], None]) -> None:
    for layer in model.model.layers:
        change(layer.mlp.up_proj)


@contextmanager
def counted() -> Iterator[list[int]]:
    """The widths of the forward passes of whole models while this is open."""
    from transformers import LlamaModel

    widths: list[int] = []

    def count(module: Any, arguments: Any, given: Any, out: Any) -> None:
        if isinstance(module, LlamaModel):
            widths.append(given["input_ids"].shape[-1])

    handle = torch.nn.modules.module.register_module_forward_hook(count, with_kwargs=True)
    try:
        yield widths
    finally:
        handle.remove()


def change_dtype(model: Any) -> None:
    model.to(torch.bfloat16)


def load_other_weights(model: Any) -> None:
    model.load_state_dict({name: 1.01 * weight for name, weight in model.state_dict().items()})


def replace_data(model: Any) -> None:
    model.lm_head.weight.data = model.lm_head.weight.data * 2


def replace_parameter(model: Any) -> None:
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())


def train(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def resize(model: Any) -> None:
    model.resize_token_embeddings(architectures.VOCAB_SIZE + 8)


def hook(model: Any) -> None:
    model.model.layers[0].register_forward_pre_hook(lambda module, arguments: None)


def replace_forward(model: Any) -> None:
    layer = model.model.layers[1].mlp
    layer.forward = types.MethodType(lambda self, x: type(self).forward(self, x) * 2, layer)


def set_config(model: Any) -> None:
    model.config.rms_norm_eps = 1e-3


def set_attention(model: Any) -> None:
    model.set_attn_implementation("eager")


def replace_module(model: Any) -> None:
    model.model.layers[1].mlp.act_fn = nn.GELU()


def drop_layer(model: Any) -> None:
    del model.model.layers[2:]
    model.config.num_hidden_layers = 2


def change_class(model: Any) -> None:
    class Doubled(type(model.lm_head)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2  # type: ignore[no-any-return]

    model.lm_head.__class__ = Doubled


def disable(model: Any) -> None:
    each_adapter(model, lambda low: setattr(low, "is_disabled", True))


def switch(model: Any) -> None:
    each_adapter(model, lambda low: low.active.__setitem__(0, "second"))


def rescale(model: Any) -> None:
    each_adapter(model, lambda low: low.scaling.__setitem__("first", 2.0))


CHANGES: list[Callable[[Any], None]] = [
    change_dtype, load_other_weights, replace_data, replace_parameter, train, resize, hook, replace_forward, set_config,
    set_attention, replace_module, drop_layer, change_class, add_adapter,
]  # fmt: skip
SWITCHES: list[Callable[[Any], None]] = [disable, switch, rescale]


def test_a_known_model_is_not_checked_again() -> None:
    model = architectures.build("llama")
    with counted() as first:
        generated(model)
    with counted() as second:
        generated(model)
    with counted() as third:
        llm = dk.LLM(model, TOKENIZER)
    with counted() as fourth:
        llm.generate("the", **OPTIONS)
    # The prompt, and the first of two tokens where its program is still compared with the modules.
    assert second[:1] == fourth[:1] and max(len(second), len(fourth)) <= 2
    assert third == [] and len(first) > len(second) + 4
    model.train()
    with counted() as in_training:
        generated(model)
    assert in_training[:1] == second[:1] and len(in_training) <= 2 and model.training


@few(2)
@pytest.mark.parametrize("change", [*CHANGES, *SWITCHES], ids=lambda change: change.__name__)
def test_a_changed_model_is_checked_again(change: Callable[[Any], None]) -> None:
    """And its text is that of the model as it is now, for those who made an LLM before, too."""
    model = architectures.build("llama")
    if change in SWITCHES:
        add_adapter(model)
    kept = dk.LLM(model, TOKENIZER)
    generated(model)
    with counted() as known_passes:
        generated(model)
    change(model)
    with counted() as passes:
        tokens = generated(model)
    assert len(passes) > len(known_passes)
    prompt = torch.tensor([TOKENIZER("the")["input_ids"]])
    with torch.inference_mode():
        expected = model(input_ids=prompt, use_cache=False).logits[0, -1].float()
    assert tokens[0] == int(expected.argmax())
    with counted() as again:
        assert kept.generate("the", **OPTIONS).token_ids == tokens
    assert len(again) <= len(known_passes)


def test_without_noticing_the_text_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a state that sees nothing runs an adapter that was switched off."""
    monkeypatch.setattr(model_notes, "state_of", lambda model: model_notes.ModelState())
    monkeypatch.setattr("decodekit.models.huggingface.state_of", model_notes.state_of)
    model = architectures.build("llama")
    add_adapter(model)
    before = generated(model)
    disable(model)
    assert generated(model) == before
    monkeypatch.undo()
    assert generated(model) != before


def test_a_model_that_cannot_be_run_any_more_says_so() -> None:
    model: Any = architectures.build("llama")
    llm = dk.LLM(model, TOKENIZER)
    llm.generate("the", **OPTIONS)
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    error = llm.generate("the", **OPTIONS).error
    assert isinstance(error, ModelError) and "cannot be run" in str(error)


@pytest.mark.parametrize("name", ["llama", "falcon"])
def test_a_model_is_collected(name: str) -> None:
    model = architectures.build(name)
    before = set(vars(model))
    generated(model)
    dk.generate(model, TOKENIZER, "the", strategy="speculative", **OPTIONS)
    first_layers(HuggingFaceLM(model), 1) if name == "llama" else None
    assert set(vars(model)) == before
    weak, weight = weakref.ref(model), weakref.ref(model.get_input_embeddings().weight)  # type: ignore[operator]
    del model
    gc.collect()
    assert weak() is None and weight() is None


def hook_that_holds(model: Any) -> None:
    model.model.layers[0].register_forward_pre_hook(lambda module, arguments: model.config and None)


def test_a_model_whose_hook_holds_it_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies have the same hooks: what holds the model is not kept. That it was checked is known all the same."""
    model = architectures.build("llama")
    hook_that_holds(model)
    generated(model)
    monkeypatch.setattr("decodekit.models.checks.self_check.largest_error", lambda *_: pytest.fail("checked twice"))
    generated(model)
    weak = weakref.ref(model)
    del model
    gc.collect()
    assert weak() is None


def test_threads_learn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from decodekit.models.checks import self_check

    model, checks, found = architectures.build("llama"), [0], []
    real = self_check.largest_error

    def slow(*arguments: Any) -> float:
        checks[0] += 1
        time.sleep(0.05)
        return real(*arguments)

    monkeypatch.setattr(self_check, "largest_error", slow)
    threads = [threading.Thread(target=lambda: found.append(generated(model))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert checks == [2] and found == [generated(model)] * 4


def test_copies_know_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = dk.LLM(architectures.build("llama"), TOKENIZER)
    expected = llm.generate("the", **OPTIONS).token_ids
    monkeypatch.setattr("decodekit.models.checks.self_check.largest_error", lambda *_: pytest.fail("checked twice"))
    for twin in (copy.deepcopy(llm), pickle.loads(pickle.dumps(llm))):
        assert twin.model.model is not llm.model.model  # type: ignore[attr-defined]
        assert twin.generate("the", **OPTIONS).token_ids == expected


def test_what_is_read_of_a_model_is_little() -> None:
    """Far less than a forward pass of a few tokens; both are Python for the most part at this size."""
    model: Any = architectures.build("llama")
    tokens = torch.tensor([[5, 6, 7, 8]])

    def least(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(7):
            begin = time.process_time()
            call()
            times.append(time.process_time() - begin)
        return min(times)

    with torch.inference_mode():
        assert least(lambda: model_notes.state_of(model)) < least(lambda: model(input_ids=tokens)) / 2
