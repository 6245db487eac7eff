"""The self-check must see every fault that a way of running a model could have; each test here breaks one thing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from decodekit.models import known, kv_cache
from decodekit.models.huggingface import HuggingFaceLM
from decodekit.models.kv_cache import RaggedCache, Step
from decodekit.models.ragged import RaggedModel
from decodekit.models.self_check import TOLERANCES, largest_error, small_windows
from tests.models import architectures
from tests.models.architectures import CONTEXT_LENGTH

FAULT = 3 * TOLERANCES[torch.bfloat16]  # seen even by the widest tolerance


def error_of(name: str = "llama", **changes: int) -> float:
    model = architectures.build(name)
    return largest_error(RaggedModel(model), model, changes.get("context_length", CONTEXT_LENGTH))


def test_nothing_broken() -> None:
    assert error_of() < TOLERANCES[torch.float32] / 10
    assert error_of(context_length=8) < TOLERANCES[torch.float32] / 10


def break_begin(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    real = RaggedCache.begin

    def begin(self: RaggedCache, num_tokens: Sequence[int], rows: Sequence[int] | None) -> Step:
        step = real(self, num_tokens, rows)
        change(step)
        return step

    monkeypatch.setattr(RaggedCache, "begin", begin)


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_positions_off_by_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def shift(step: Step) -> None:
        # From the second pass on: rotary positions are relative, so a shift of everything would change nothing.
        if not step.is_fresh:
            step.mask(None, 1, torch.float32, torch.device("cpu"))
            step.mask(None, 2, torch.float32, torch.device("cpu"))
            step.positions = step.positions + 1

    break_begin(monkeypatch, shift)
    assert error_of(name) > FAULT


def test_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Step.mask
    monkeypatch.setattr(Step, "mask", lambda *args: (*real(*args)[:2], torch.zeros_like(real(*args)[2])))
    assert error_of() > FAULT


def test_prompt_seen_from_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmask(step: Step) -> None:
        step.is_uniform = True

    break_begin(monkeypatch, unmask)
    assert error_of() > FAULT


def test_rows_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def swap(step: Step) -> None:
        if step.row_index is not None:
            step.row_index = step.row_index.flip(0)

    break_begin(monkeypatch, swap)
    assert error_of() > FAULT


def test_rollback_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaggedCache, "truncate", lambda self, lengths: None)
    assert error_of() > FAULT


def test_growth_loses_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def grow(self: RaggedCache, capacity: int) -> None:
        self.capacity = capacity
        self._allocate()

    monkeypatch.setattr(kv_cache.RaggedCache, "grow", grow)
    assert error_of() > FAULT


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3", "gpt_oss"])
def test_windows_are_checked_however_wide(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The check itself never reaches a window of thousands of tokens; that it is ignored must show all the same."""
    model = architectures.build(name)
    widen(model, 4096)
    assert HuggingFaceLM(model).tier.name == "ragged"
    real = Step.mask
    monkeypatch.setattr(Step, "mask", lambda self, window, *rest: real(self, None, *rest))
    assert largest_error(RaggedModel(model), model, CONTEXT_LENGTH) < 1e-4
    small = small_windows(model)
    assert small is not None
    assert largest_error(RaggedModel(small), small, CONTEXT_LENGTH) > TOLERANCES[torch.float32] * 100
    known.forget(model)  # it was found right before the fault
    lm = HuggingFaceLM(model)
    assert lm.tier.name == "rowwise"
    assert "differ from the model's own" in lm.tier.refused[0]
    # The check has left the model's own windows alone.
    assert model.config.sliding_window == 4096  # type: ignore[union-attr]


def test_chunked_attention_is_found_out() -> None:
    """Llama 4 cuts its past into chunks, which its attention function is never told."""
    model = architectures.build("llama4")
    model.config.attention_chunk_size = 8192  # type: ignore[union-attr]
    assert HuggingFaceLM(model).tier.name == "rowwise"


def test_models_without_windows() -> None:
    assert small_windows(architectures.build("llama")) is None


def test_non_finite_models_are_refused() -> None:
    model = architectures.build("llama")
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)  # type: ignore[union-attr, operator]
    with pytest.raises(Exception, match="cannot be run") as caught:
        HuggingFaceLM(model)
    assert "finite logits" in str(caught.value)


def widen(model: torch.nn.Module, window: int) -> None:
    for holder in (model.config, *model.modules()):
        if isinstance(getattr(holder, "sliding_window", None), int):
            holder.sliding_window = window  # type: ignore[union-attr, assignment]


def test_reference_is_not_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference logits come from plain passes, without decodekit's cache or attention."""
    calls: list[Tensor] = []

    def fail(*args: object, **kwargs: object) -> None:
        calls.append(torch.empty(0))
        raise AssertionError

    model = architectures.build("llama")
    runner = HuggingFaceLM(model)._runner
    expected = model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits
    monkeypatch.setattr("decodekit.models.kv_cache.RaggedCache.append", fail)
    assert torch.equal(model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits, expected)
    with pytest.raises(AssertionError):
        largest_error(runner, model, CONTEXT_LENGTH)
    assert len(calls) == 1
