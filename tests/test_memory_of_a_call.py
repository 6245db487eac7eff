"""More than memory holds is refused before a model runs; what fits is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import decodekit as dk
from decodekit.decoding.prefixes import row_memory as memory
from decodekit.errors import DecodingError, OptionError
from decodekit.models.huggingface import HuggingFaceLM


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


@pytest.fixture
def no_forward(llm: dk.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(*_: Any, **__: Any) -> None:
        raise AssertionError("the model runs")

    monkeypatch.setattr(llm.model, "forward", forward)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"strategy": dk.Beam(10**7)}, "num_beams=10000000"),
        ({"strategy": dk.ContrastiveSearch(10**7)}, "top_k=10000000"),
        ({"strategy": dk.Particles(10**7), "constraint": dk.Regex("[a-z]+")}, "num_particles=10000000"),
        ({"strategy": dk.BestOf(10**11)}, "n=100000000000"),
        ({"strategy": dk.Sample(num_return_sequences=10**11)}, "num_return_sequences=100000000000"),
        ({"max_new_tokens": 10**12}, "max_new_tokens must be an integer from 1 to 2,147,483,647"),
        ({"batch_size": 10**12}, "an integer from 1 to 2,147,483,647, got 1000000000000"),
        ({"logprobs": 10**9}, "at most 1,536"),
        ({"strategy": dk.Sample(top_k=10**400)}, None),
        ({"strategy": dk.Greedy(speculate=dk.PromptLookup(num_tokens=10**9))}, None),
        ({"batch_size": 10**9}, None),
        ({"strategy": dk.Beam(300)}, None),
    ],
)
def test_what_no_memory_holds_is_refused_before_the_model_runs(
    llm: dk.LLM, no_forward: None, options: dict[str, Any], says: str | None
) -> None:
    with pytest.raises(OptionError if says else DecodingError) as caught:
        llm.generate("Invoice", on_error="raise", **options)
    assert (says or "the model runs") in str(caught.value)
    if says and isinstance(caught.value, OptionError):
        assert caught.value.hint


def test_the_bound_is_that_of_the_rows(llm: dk.LLM, no_forward: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 beams need 1.2 GB of keys and values: they fit into 1.3 GB and not into 1.1."""
    for megabytes, refused in ((1100, True), (1300, False)):
        monkeypatch.setattr(memory, "free_memory", lambda device, free=megabytes * 10**6: free)
        with pytest.raises(OptionError if refused else DecodingError) as caught:
            llm.generate("Invoice", strategy=dk.Beam(500), on_error="raise")
        if refused:
            message = str(caught.value)
            assert "num_beams=500: 500 rows of the cache need 1.2 GB" in message and "1.1 GB are free" in message
            assert "at most 44" in message


def test_a_stream_of_prompts(llm: dk.LLM, no_forward: None) -> None:
    with pytest.raises(OptionError, match="batch_size=2000000000"):
        llm.as_completed(["a"], batch_size=2 * 10**9)


@pytest.mark.parametrize("problem", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()])
def test_an_allocation_that_fails_is_told(llm: dk.LLM, monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def new_cache(num_rows: int, capacity: int) -> None:
        raise problem

    monkeypatch.setattr(llm.model, "new_cache", new_cache)
    with pytest.raises(OptionError, match="num_beams=4: 4 rows of the cache"):
        llm.generate("Invoice", strategy=dk.Beam(4))


def test_memory_is_known() -> None:
    free = memory.free_memory(torch.device("cpu"))
    assert free is None or 10**6 < free < 10**15
    assert memory.free_memory(torch.device("meta")) is None


def test_bytes_of_a_token(llm: dk.LLM) -> None:
    config: Any = llm.model.model.config  # type: ignore[attr-defined]
    heads = config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert memory.bytes_per_token(llm.model) == 2 * config.num_hidden_layers * heads * width * 4
    make: Callable[..., Any] = dk.Guidance(2.0).applied_to
    assert memory.bytes_per_token(make(llm.model, llm.vocabulary)) == 2 * memory.bytes_per_token(llm.model)
    pages: Any = HuggingFaceLM(llm.model.model, tier="paged")  # type: ignore[attr-defined]
    assert memory.bytes_per_token(pages) == memory.bytes_per_token(llm.model)
    assert memory.bytes_per_token(make(pages, llm.vocabulary)) == 2 * memory.bytes_per_token(llm.model)
