from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import decodekit as dk
from decodekit.decoding.request.completion import Chunk
from decodekit.errors import DeadEndError
from decodekit.evaluation.stopwatch import decode, gpu_utilisation, metered

PROMPTS = ["Invoice A-17, total 40.20 EUR.\n", "Name: Ada Lund\nCity: Graz\n"]


@pytest.fixture(scope="module")
def llm() -> dk.LLM:
    return dk.LLM.load("tiny")


def test_measured_texts_are_those_of_the_model(llm: dk.LLM) -> None:
    watched, meter = metered(llm)
    plain = llm.generate(PROMPTS, max_new_tokens=20)
    for batch_size in (1, 2):
        measured = decode(watched, meter, PROMPTS, max_new_tokens=20, batch_size=batch_size)
        assert [one.token_ids for one in measured] == [one.token_ids for one in plain]
        assert [one.text for one in measured] == [one.text for one in plain]


def test_gaps_are_the_times_after_the_first_piece(llm: dk.LLM) -> None:
    watched, meter = metered(llm)
    [one] = decode(watched, meter, PROMPTS[:1], max_new_tokens=20, strategy="prompt-lookup")
    assert one.stats is not None and one.stats.ttft_s is not None
    assert 0 < sum(count for _, count in one.gaps) < one.stats.num_generated_tokens
    assert all(seconds > 0 and count > 0 for seconds, count in one.gaps)
    assert sum(seconds for seconds, _ in one.gaps) <= one.wall_s
    assert one.stats.duration_s <= one.wall_s


def test_the_use_of_the_processor_is_measured_and_that_of_a_gpu_where_there_is_one(
    llm: dk.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, meter = metered(llm)
    measured = decode(watched, meter, PROMPTS, max_new_tokens=20, batch_size=2)
    assert all(one.cpu_s is not None and one.cpu_s > 0 and one.gpu_utilisation is None for one in measured)
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 40 if device == gpu else 0)
    assert gpu_utilisation(gpu) == 0.4

    def fails(device: object) -> int:
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "utilization", fails)
    assert gpu_utilisation(gpu) is None


def test_memory_is_that_of_the_largest_cache(llm: dk.LLM) -> None:
    sizes = []

    class Looking:
        """Notes the size of the cache after every pass."""

        def __init__(self, model: Any) -> None:
            self.model = model

        def __getattr__(self, name: str) -> Any:
            return getattr(self.model, name)

        def forward(self, tokens: Any, num_tokens: Any, cache: Any, rows: Any = None, **options: Any) -> Any:
            result = self.model.forward(tokens, num_tokens, cache, rows, **options)
            sizes.append(cache.num_bytes)
            return result

    looked = dk.LLM(Looking(llm.model), llm.tokenizer)
    watched, meter = metered(looked)
    measured = decode(watched, meter, ["b", "a " * 300], max_new_tokens=20, batch_size=1)
    assert {one.kv_bytes for one in measured} == {max(sizes)}
    assert len(set(sizes)) > 1  # negative control: the cache does change its size here
    gc.collect()
    [small] = decode(watched, meter, ["b"], max_new_tokens=5)
    assert small.kv_bytes is not None and small.kv_bytes < max(sizes)


def test_a_cache_that_cannot_be_watched_is_decoded_with_all_the_same(llm: dk.LLM) -> None:
    class Shy:
        """A cache without weak references, around another one."""

        __slots__ = ("cache",)

        def __init__(self, cache: Any) -> None:
            self.cache = cache

        def __getattr__(self, name: str) -> Any:
            return getattr(self.cache, name)

    class Model:
        def __init__(self, model: Any) -> None:
            self.model = model

        def __getattr__(self, name: str) -> Any:
            return getattr(self.model, name)

        def new_cache(self, num_rows: int, capacity: int) -> Any:
            return Shy(self.model.new_cache(num_rows, capacity))

        def forward(self, tokens: Any, num_tokens: Any, cache: Any, rows: Any = None, **options: Any) -> Any:
            return self.model.forward(tokens, num_tokens, cache.cache, rows, **options)

    watched, meter = metered(dk.LLM(Model(llm.model), llm.tokenizer))
    [one] = decode(watched, meter, PROMPTS[:1], max_new_tokens=5)
    assert one.error is None and one.kv_bytes is None
    assert one.text == llm.generate(PROMPTS[0], max_new_tokens=5).text


def test_masks_are_timed_where_there_is_a_constraint(llm: dk.LLM) -> None:
    watched, meter = metered(llm)
    [free] = decode(watched, meter, PROMPTS[:1], max_new_tokens=5)
    [bound] = decode(watched, meter, PROMPTS[:1], max_new_tokens=5, constraint=dk.Regex("[a-z]+"))
    assert free.stats is not None and free.stats.mask_s is None
    assert bound.stats is not None and bound.stats.mask_s is not None
    assert 0 < bound.stats.mask_s < bound.stats.duration_s


def test_whatever_a_strategy_raises_is_an_error_of_its_row(llm: dk.LLM) -> None:
    class Broken(dk.Greedy):
        def select(self, scores: Any, keys: Any, /) -> Any:
            raise ZeroDivisionError("no such luck")

    watched, meter = metered(llm)
    measured = decode(watched, meter, PROMPTS, strategy=Broken(), batch_size=2)
    assert ["raised ZeroDivisionError: no such luck" in str(one.error) for one in measured] == [True] * 2
    assert all((one.text, one.finish_reason) == (None, "error") for one in measured)
    [refused] = decode(watched, meter, PROMPTS[:1], strategy="greedy", temperature=0.5)
    assert refused.error is not None and "no effect" in refused.error


def test_prompts_that_were_done_before_a_failure_are_kept(llm: dk.LLM) -> None:
    watched, meter = metered(llm)
    done = llm.generate(PROMPTS[1], max_new_tokens=3)

    class Stops:
        def stream(self, prompts: list[str], **options: Any) -> Iterator[Chunk]:
            yield Chunk(1, done.text, done.token_ids, done)
            raise DeadEndError("nothing is allowed")

    lost, kept = decode(Stops(), meter, PROMPTS)  # type: ignore[arg-type]
    assert (lost.text, lost.error) == (None, "DK601 nothing is allowed")
    assert (kept.text, kept.error) == (done.text, None)
    assert isinstance(watched.model, type(llm.model))
